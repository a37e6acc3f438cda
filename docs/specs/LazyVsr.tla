------------------------------ MODULE LazyVsr ------------------------------
(***************************************************************************)
(* Lazy VSR as Lockstep builds it (durability "lazy"): safety.             *)
(*                                                                         *)
(* A primary numbers operations; a replica acknowledges an operation when  *)
(* it is in its memory, and the disk follows behind.  An operation is      *)
(* committed (acknowledged to the client) when f + 1 replicas hold it in   *)
(* memory in one view, the view's first entry being on their disks.  It is *)
(* durable when a dp (durable point) covers it: when it is on f + 1 disks. *)
(* A crash takes what was in memory only; the replica is then forgetful    *)
(* until it has re-synchronised, and marks its votes.                      *)
(*                                                                         *)
(* What is abstracted, and why no violation is lost by it:                 *)
(*                                                                         *)
(* - Messages of a view's leader (PREPARE, ELECTACCEPT, CATCHUPOK) are     *)
(*   read from vlog, the longest log that the leader of the view ever had: *)
(*   any piece of it may arrive at any time, again, late or never.         *)
(* - The disk stores one batch per change of the log, in order, so what it *)
(*   holds is what the memory held at some moment.  Store copies the whole *)
(*   memory; a slow disk is one for which Store does not happen.           *)
(* - An acknowledgement is noted the moment it could be sent, and commit   *)
(*   and dp the moment they could be computed.  No guard asks for their    *)
(*   absence and no invariant for the order in which they came, so one     *)
(*   that is late or lost is the weaker case of this.                      *)
(* - Acknowledgements of a replica's former lives are never dropped,       *)
(*   though the code does drop them: the model allows more.                *)
(* - An election is one step: candidacy, votes and the view's first entry. *)
(*   Between its vote and the election a replica of three can do nothing   *)
(*   that it could not do before or after.  (With more replicas this       *)
(*   leaves out that one voter has moved on before another votes.)  A      *)
(*   candidacy in vain raises views only, which is what Promise does.      *)
(* - A crash and the restart are one step: a replica that is down is one   *)
(*   that takes no step.                                                   *)
(* - View numbers are taken from 1 .. MaxView by whoever stands; that      *)
(*   numbers of different replicas differ is built in (the code has the    *)
(*   replica's id in the low bits).                                        *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Replicas,     \* 2f + 1 of them, interchangeable
    None,         \* nobody, nothing
    MaxView,      \* views 1 .. MaxView
    MaxLen,       \* entries in a log
    MaxCrashes,   \* crashes in a run, all replicas together
    Bug           \* "none", or the name of the defect that is planted

VARIABLES
    view,      \* highest view seen, in memory
    dview,     \* the same on disk
    mem,       \* the log in memory
    disk,      \* the log on disk
    leads,     \* whether the replica is its view's leader: elected; primary once committed
    mark,      \* whether the replica takes itself for forgetful
    restarted, \* whether it is: restarted, and not re-synchronised by the right rule
    target,    \* what the log must hold to end forgetfulness: [at, right], or None
    owner,     \* who was elected in a view, or None
    vlog,      \* the log of a view's leader; of a past one, its last
    ack,       \* in led views: <<memory, disk>> as acknowledged by each replica
    commit,    \* the last operation committed in a view, or 0
    dp,        \* the highest durable point computed in a view, or 0
    excused,   \* whether more than f were forgetful or unreachable at the view's election
    again,     \* whether a view was led twice
    crashes    \* how many there were

vars == <<view, dview, mem, disk, leads, mark, restarted, target, owner, vlog, ack, commit,
          dp, excused, again, crashes>>

Views == 1 .. MaxView
F == Cardinality(Replicas) \div 2
Quorum == F + 1
Symmetry == Permutations(Replicas)

Max(a, b) == IF a > b THEN a ELSE b
Highest(set) == CHOOSE n \in set : \A m \in set : m <= n

(***************************************************************************)
(* Logs.  The position of an entry is its operation number, so an entry is *)
(* the number of its view; the two together are its viewstamp.  While no   *)
(* view is led twice a viewstamp names one operation.                      *)
(***************************************************************************)
Last(log) == IF log = <<>> THEN <<0, 0>> ELSE <<log[Len(log)], Len(log)>>
NotAfter(a, b) == a[1] < b[1] \/ (a[1] = b[1] /\ a[2] <= b[2])
Holds(log, stamp) == stamp[2] <= Len(log) /\ log[stamp[2]] = stamp[1]
IsPrefix(a, b) == Len(a) <= Len(b) /\ SubSeq(b, 1, Len(a)) = a

\* The number of the last viewstamp that two logs share, or 0.
Shared(a, b) ==
    LET same == {n \in DOMAIN a : n <= Len(b) /\ a[n] = b[n]}
    IN IF same = {} THEN 0 ELSE Highest(same)

\* The number of a view's first entry in a log that holds it.
StartIn(log, v) == CHOOSE n \in DOMAIN log : log[n] = v /\ (n = 1 \/ log[n - 1] # v)

(***************************************************************************)
(* What follows from a step at once: acknowledgements, commitment, dp, and *)
(* that a forgetful replica which becomes primary is forgetful no longer.  *)
(***************************************************************************)
NoAck == [r \in Replicas |-> <<0, 0>>]

\* <<memory, disk>> as replica r can acknowledge it in view v after the step, or <<0, 0>>.
Acknowledgeable(v, r) ==
    IF view'[r] # v \/ Last(mem'[r])[1] # v THEN <<0, 0>>
    ELSE LET stored == Shared(disk'[r], mem'[r]) IN
        IF stored >= StartIn(mem'[r], v) THEN <<Len(mem'[r]), stored>>
        ELSE IF Bug = "AckUnstoredStart" THEN <<Len(mem'[r]), 0>>
        ELSE IF Bug = "DpOfOldView" /\ leads'[r] THEN <<0, stored>>
        ELSE <<0, 0>>

\* The highest n in first .. last with which at least count replicas agree, or 0.
Agreed(first, last, count, Agrees(_, _)) ==
    LET good == {n \in first .. last : Cardinality({r \in Replicas : Agrees(r, n)}) >= count}
    IN IF good = {} THEN 0 ELSE Highest(good)

\* The arguments are what the step has made of mark and restarted.
Settle(marks, truth) ==
    LET led == {view'[r] : r \in {s \in Replicas : leads'[s]}}
        Becomes(flags) ==
            [r \in Replicas |-> flags[r] /\ ~(leads'[r] /\ commit'[view'[r]] > 0)]
    IN
    /\ ack' = [v \in Views |->
        IF v \notin led THEN NoAck
        ELSE [r \in Replicas |-> LET now == Acknowledgeable(v, r) IN
            <<Max(ack[v][r][1], now[1]), Max(ack[v][r][2], now[2])>>]]
    /\ commit' = [v \in Views |->
        IF v \notin led THEN commit[v]
        ELSE LET InMemory(r, n) == ack'[v][r][1] >= n
             IN Max(commit[v], Agreed(StartIn(vlog'[v], v), Len(vlog'[v]), Quorum, InMemory))]
    /\ dp' = [v \in Views |->
        IF v \notin led THEN dp[v]
        ELSE LET OnDisk(r, n) == ack'[v][r][2] >= n
                 first == IF Bug = "DpOfOldView" THEN 1 ELSE StartIn(vlog'[v], v)
                 count == IF Bug = "DpOfMinority" THEN F ELSE Quorum
             IN Max(dp[v], Agreed(first, Len(vlog'[v]), count, OnDisk))]
    /\ mark' = Becomes(marks)
    /\ restarted' = Becomes(truth)

(***************************************************************************)
(* The start: view 1 is led, and its first entry is on every disk.         *)
(***************************************************************************)
Init == \E first \in Replicas :
    /\ view = [r \in Replicas |-> 1]
    /\ dview = [r \in Replicas |-> 1]
    /\ mem = [r \in Replicas |-> <<1>>]
    /\ disk = [r \in Replicas |-> <<1>>]
    /\ leads = [r \in Replicas |-> r = first]
    /\ mark = [r \in Replicas |-> FALSE]
    /\ restarted = [r \in Replicas |-> FALSE]
    /\ target = [r \in Replicas |-> None]
    /\ owner = [v \in Views |-> IF v = 1 THEN first ELSE None]
    /\ vlog = [v \in Views |-> IF v = 1 THEN <<1>> ELSE <<>>]
    /\ ack = [v \in Views |-> IF v = 1 THEN [r \in Replicas |-> <<1, 1>>] ELSE NoAck]
    /\ commit = [v \in Views |-> IF v = 1 THEN 1 ELSE 0]
    /\ dp = [v \in Views |-> IF v = 1 THEN 1 ELSE 0]
    /\ excused = [v \in Views |-> FALSE]
    /\ again = FALSE
    /\ crashes = 0

(***************************************************************************)
(* Operation within a view.                                                *)
(***************************************************************************)
Primary(r) == leads[r] /\ commit[view[r]] > 0

Propose(r) ==
    /\ Primary(r)
    /\ Len(mem[r]) < MaxLen
    /\ mem' = [mem EXCEPT ![r] = Append(@, view[r])]
    /\ vlog' = [vlog EXCEPT ![view[r]] = mem'[r]]
    /\ UNCHANGED <<view, dview, disk, leads, target, owner, excused, again, crashes>>
    /\ Settle(mark, restarted)

\* PREPARE, ELECTACCEPT and CATCHUPOK: what follows the last viewstamp that this log shares with
\* the leader's, or a piece of it, takes the place of what this log has there.  The view changes
\* with the log, not before it.
Accept(r, v) ==
    /\ v >= view[r] /\ vlog[v] # <<>> /\ owner[v] # r
    /\ LET common == Shared(mem[r], vlog[v]) IN \E end \in common + 1 .. Len(vlog[v]) :
        mem' = [mem EXCEPT ![r] =
            SubSeq(mem[r], 1, common) \o SubSeq(vlog[v], common + 1, end)]
    /\ view' = [view EXCEPT ![r] = v]
    /\ leads' = [leads EXCEPT ![r] = FALSE]
    /\ UNCHANGED <<dview, disk, target, owner, vlog, excused, again, crashes>>
    /\ Settle(mark, restarted)

\* The disk has done what it was given: the log's changes and the view, in order.
Store(r) ==
    /\ disk[r] # mem[r] \/ dview[r] # view[r]
    /\ disk' = [disk EXCEPT ![r] = mem[r]]
    /\ dview' = [dview EXCEPT ![r] = view[r]]
    /\ UNCHANGED <<view, mem, leads, target, owner, vlog, excused, again, crashes>>
    /\ Settle(mark, restarted)

(***************************************************************************)
(* Elections.                                                              *)
(***************************************************************************)
Forgetful == {r \in Replicas : restarted[r]}

\* A vote is for a log that ends no earlier than the voter's.
MayVote(r, c) ==
    IF Bug = "VoteInverted" THEN NotAfter(Last(mem[c]), Last(mem[r]))
    ELSE NotAfter(Last(mem[r]), Last(mem[c]))

\* Whether these votes elect at once.  f + 1 unmarked ones do; so do f + 1 marked ones, for then
\* more than f are forgetful.
Decides(voters) ==
    \/ Cardinality({r \in voters : ~mark[r]}) >= Quorum
    \/ Cardinality({r \in voters : mark[r]}) >= Quorum
    \/ Bug = "MarkIgnored"

\* Otherwise they elect after the candidate's patience: the others were silent for so long.  That
\* those are unreachable is an assumption on timing: a replica that is there and refuses stands
\* itself before the patience ends.  Without it, a refusal would pass for silence.
Excuse(voters, c) ==
    LET others == Replicas \ voters
        gone == IF Decides(voters) THEN {}
                ELSE IF Bug = "RefusalIsSilence" THEN {r \in others : MayVote(r, c)}
                ELSE others
    IN Cardinality(Forgetful \cup gone) > F

\* Every vote, the candidate's own too, is given with the whole log and the view on disk.  The
\* candidate's log is the measure from here on.
Elect(c, v, voters) ==
    LET unstored == CASE Bug = "VoteUnstored" -> voters \ {c}
                      [] Bug = "ViewUnstored" -> {c}
                      [] OTHER -> {}
        unflushed == IF Bug = "VoteLogUnstored" THEN voters ELSE unstored
    IN
    /\ owner[v] = None \/ (Bug = "ViewUnstored" /\ owner[v] = c)
    /\ Len(mem[c]) < MaxLen
    /\ \A r \in voters : v > view[r] /\ MayVote(r, c)
    /\ Decides(voters) \/ Excuse(voters, c) \/ Bug = "RefusalIsSilence"
    /\ view' = [r \in Replicas |-> IF r \in voters THEN v ELSE view[r]]
    /\ dview' = [r \in Replicas |-> IF r \in voters \ unstored THEN v ELSE dview[r]]
    /\ disk' = [r \in Replicas |-> IF r \in voters \ unflushed THEN mem[r] ELSE disk[r]]
    /\ leads' = [r \in Replicas |-> r = c \/ (leads[r] /\ r \notin voters)]
    /\ mem' = [mem EXCEPT ![c] = Append(@, v)]
    /\ vlog' = [vlog EXCEPT ![v] = mem'[c]]
    /\ owner' = [owner EXCEPT ![v] = c]
    /\ excused' = [excused EXCEPT ![v] = Excuse(voters, c)]
    /\ again' = (again \/ owner[v] # None)
    /\ UNCHANGED <<target, crashes>>
    /\ Settle(mark, restarted)

\* ELECTPREPARE of a candidate that is elected without this replica: refused, or too late.  The
\* view is raised in either case.
Promise(r, v) ==
    /\ v > view[r] /\ vlog[v] # <<>>
    /\ view' = [view EXCEPT ![r] = v]
    /\ leads' = [leads EXCEPT ![r] = FALSE]
    /\ UNCHANGED <<dview, mem, disk, target, owner, vlog, excused, again, crashes>>
    /\ Settle(mark, restarted)

(***************************************************************************)
(* Crashes, forgetfulness and its end.                                     *)
(***************************************************************************)
Crash(r) ==
    /\ crashes < MaxCrashes
    /\ crashes' = crashes + 1
    /\ mem' = [mem EXCEPT ![r] = disk[r]]
    /\ view' = [view EXCEPT ![r] = dview[r]]
    /\ leads' = [leads EXCEPT ![r] = FALSE]
    /\ target' = [target EXCEPT ![r] =
        IF Bug = "StaleAnswer" /\ @ # None THEN [@ EXCEPT !.right = FALSE] ELSE None]
    /\ UNCHANGED <<dview, disk, owner, vlog, excused, again>>
    /\ Settle([mark EXCEPT ![r] = TRUE], [restarted EXCEPT ![r] = TRUE])

\* The primary of a view no older than the asker's answers the question of this very life.
Answer(r, p) ==
    LET right == Primary(p)
        wrong == Bug = "UnmarkByBackup" /\ ~leads[p] /\ Last(mem[p])[1] = view[p]
    IN
    /\ mark[r] /\ p # r
    /\ right \/ wrong
    /\ view[p] >= view[r]
    /\ target' = [target EXCEPT ![r] = [at |-> Last(mem[p]), right |-> right]]
    /\ target' # target
    /\ UNCHANGED <<view, dview, mem, disk, leads, mark, restarted, owner, vlog, ack, commit,
                   dp, excused, again, crashes>>

Unmark(r) ==
    /\ mark[r] /\ target[r] # None
    /\ Holds(mem[r], target[r].at)
    /\ mark' = [mark EXCEPT ![r] = FALSE]
    /\ restarted' = [restarted EXCEPT ![r] = @ /\ ~target[r].right]
    /\ target' = [target EXCEPT ![r] = IF Bug = "StaleAnswer" THEN @ ELSE None]
    /\ UNCHANGED <<view, dview, mem, disk, leads, owner, vlog, ack, commit, dp, excused,
                   again, crashes>>

(***************************************************************************)
(* Steps that only planted defects allow.                                  *)
(***************************************************************************)
\* PREPARE accepted because its number is the next one.
AcceptByNumber(r) ==
    LET v == view[r]
        next == Len(mem[r]) + 1
    IN
    /\ Bug = "AcceptByNumber"
    /\ vlog[v] # <<>> /\ owner[v] # r
    /\ next <= Len(vlog[v]) /\ next > StartIn(vlog[v], v)
    /\ mem' = [mem EXCEPT ![r] = Append(@, vlog[v][next])]
    /\ UNCHANGED <<view, dview, disk, leads, target, owner, vlog, excused, again, crashes>>
    /\ Settle(mark, restarted)

\* On hearing of a later view: back to the durable point at once, before the state has arrived.
TruncateFirst(r, v) ==
    LET known == dp[Last(mem[r])[1]] IN
    /\ Bug = "TruncateFirst"
    /\ vlog[v] # <<>> /\ v > view[r]
    /\ mem' = [mem EXCEPT ![r] = SubSeq(@, 1, Max(known, 1))]
    /\ view' = [view EXCEPT ![r] = v]
    /\ leads' = [leads EXCEPT ![r] = FALSE]
    /\ UNCHANGED <<dview, disk, target, owner, vlog, excused, again, crashes>>
    /\ Settle(mark, restarted)

Next ==
    \/ \E r \in Replicas :
        Propose(r) \/ Store(r) \/ Crash(r) \/ Unmark(r) \/ AcceptByNumber(r)
    \/ \E r \in Replicas, v \in Views : Accept(r, v) \/ Promise(r, v) \/ TruncateFirst(r, v)
    \/ \E r, p \in Replicas : Answer(r, p)
    \/ \E v \in Views, voters \in SUBSET Replicas :
        Cardinality(voters) >= Quorum /\ \E c \in voters : Elect(c, v, voters)

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold.                                                         *)
(***************************************************************************)
Elections == {v \in Views : vlog[v] # <<>>}

\* (a) What a dp covers is in the log of every later leader, and on f + 1 disks for good.
Durable == \A v \in Elections : dp[v] > 0 =>
    LET covered == SubSeq(vlog[v], 1, dp[v]) IN
    /\ \A w \in Elections : w > v => IsPrefix(covered, vlog[w])
    /\ Cardinality({r \in Replicas : IsPrefix(covered, disk[r])}) >= Quorum

\* (b) What was acknowledged is in the log of every later leader, unless it was missing from one
\* at whose election more than f were forgetful or unreachable.
Tentative == \A v \in Elections : \A w \in Elections : (w > v /\ commit[v] > 0) =>
    LET shared == Shared(vlog[v], vlog[w]) IN
    shared < commit[v] =>
        LET lost == SubSeq(vlog[v], 1, shared + 1) IN
        \E x \in Elections : x > v /\ x <= w /\ excused[x] /\ ~IsPrefix(lost, vlog[x])

\* (c) Logs that share a viewstamp are equal up to it.  Checked by comparing the end of each run of
\* a view's entries, and all that precedes it, with the log of the view's leader.
Logs == {mem[r] : r \in Replicas} \cup {disk[r] : r \in Replicas} \cup {vlog[v] : v \in Views}
RunEnds(log) == {n \in DOMAIN log : n = Len(log) \/ log[n + 1] # log[n]}
Agreement == \A log \in Logs : \A n \in RunEnds(log) :
    n <= Len(vlog[log[n]]) /\ SubSeq(log, 1, n) = SubSeq(vlog[log[n]], 1, n)

\* (d), (e) Nobody is elected in a view that had a leader, so a viewstamp names one operation; at
\* most one replica leads a view, and it has the view's log.
OnePrimary ==
    /\ ~again
    /\ \A r \in Replicas : leads[r] => owner[view[r]] = r /\ mem[r] = vlog[view[r]]

\* (f) Nothing commits in a view whose first entry is not on f + 1 disks, where it stays.
StartStored == \A v \in Elections : commit[v] > 0 =>
    LET start == SubSeq(vlog[v], 1, StartIn(vlog[v], v))
    IN Cardinality({r \in Replicas : IsPrefix(start, disk[r])}) >= Quorum

\* (g) What is durable is committed.
DurableIsCommitted == \A v \in Views : dp[v] <= commit[v]

\* Views only grow along a log, and nobody holds entries of a view that it has not entered.
LogsInOrder ==
    /\ \A log \in Logs : \A n \in DOMAIN log : n = 1 \/ log[n - 1] <= log[n]
    /\ \A r \in Replicas :
        /\ dview[r] <= view[r]
        /\ Last(mem[r])[1] <= view[r]
        /\ Last(disk[r])[1] <= dview[r]

\* The replicas' own idea of forgetfulness is the true one.
MarksAreTrue == mark = restarted

(***************************************************************************)
(* What must not hold, or the model would show nothing.                    *)
(***************************************************************************)
\* Acknowledged operations are never lost: with an excuse they are.
NothingLost == \A v \in Elections : \A w \in Elections :
    (w > v /\ commit[v] > 0) => IsPrefix(SubSeq(vlog[v], 1, commit[v]), vlog[w])

\* Who restarts stays forgetful: he does not.
ForgetfulForEver == crashes > 0 => Forgetful # {}

\* No disk ever holds committed operations that a later leader does not have: one does.
NothingToRollBack == \A r \in Replicas : \A v \in Elections :
    (Last(disk[r])[1] = v /\ Len(disk[r]) <= commit[v]) =>
        \A w \in Elections : w > v => IsPrefix(disk[r], vlog[w])

=============================================================================
