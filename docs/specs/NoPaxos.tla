------------------------------ MODULE NoPaxos ------------------------------
(***************************************************************************)
(* NOPaxos as Lockstep builds it (durabilities "memory" and "sync"):       *)
(* safety.  It is the protocol of [NOPaxos] 5 with the deviations that     *)
(* docs/protocols/nopaxos.md lists.                                        *)
(*                                                                         *)
(* A sequencer numbers the requests of a session; every replica gets them  *)
(* in that order, or learns that one was dropped.  Within a view the log   *)
(* of a replica follows from those numbers; what the replicas agree on is  *)
(* which of them are NO-OPs.  A client takes a request for done when a     *)
(* quorum, the view's leader among it, has it in the same slot.  A quorum  *)
(* is a majority of the members of the session; while they change, of the  *)
(* former and of the new ones.                                             *)
(*                                                                         *)
(* What is abstracted, and why no violation is lost by it:                 *)
(*                                                                         *)
(* - A request is the number that its session gave it.  Any number may be  *)
(*   received at any time, out of order (what it skips was dropped, or is  *)
(*   found at another replica later), again in a later view of the         *)
(*   session, or never.                                                    *)
(* - Replies, GAP-COMMIT-REPs, SYNC-REPLYs and VIEW-CHANGEs are noted the  *)
(*   moment they could be sent, and what they bring about the moment it    *)
(*   could come about.  No guard asks for their absence, so one that is    *)
(*   late or lost is the weaker case of this.                              *)
(* - A replica leaves its view at any time, for the next leader or for the *)
(*   next session, one number at a time.  That f + 1 must suspect a leader *)
(*   only forbids runs; to join another view-id is to take several such    *)
(*   steps.                                                                *)
(* - The controllers' session is committed when the first replica leaves  *)
(*   for it.  Nobody sees it before, and what it must wait for, once true, *)
(*   stays true.  A change of members takes two sessions; what there may   *)
(*   be beyond those is for sequencers that fail.                          *)
(* - Who counts follows from the session.  Everybody does all that members *)
(*   do, and may lead: that one who does not stay gives way is for the     *)
(*   group to go on.  Who recovers, and has forgotten who counts, may ask  *)
(*   the members of any session.                                           *)
(* - The view is on disk when it is adopted: between the two a replica     *)
(*   says nothing, so a crash there is one before both.  In "sync" a slot  *)
(*   is on disk when it is in the log, for the same reason.                *)
(* - The incarnation vectors of messages are merged only where safety      *)
(*   rests on it; everywhere else the model knows less, and forbids less.  *)
(* - A crash and the restart are one step: a replica that is down is one   *)
(*   that takes no step.                                                   *)
(* - Logs are sent whole: that what lies below a sync-point need not be    *)
(*   sent is what SyncStable says.                                         *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    N,            \* replicas 0 .. N - 1
    Members,      \* who counts in the first session
    Targets,      \* the sets of members that are ever wanted instead
    MaxChanges,   \* how often the members change
    MaxLeader,    \* leader numbers 0 .. MaxLeader
    MaxSession,   \* sessions 1 .. MaxSession
    MaxMessage,   \* messages of a session 1 .. MaxMessage
    MaxCrashes,   \* crashes in a run, all replicas together
    Durability,   \* "memory" or "sync"
    Bug           \* "none", or the name of the defect that is planted

VARIABLES
    roster,    \* who counts in each session that there is, <<former members, new members>>
    view,      \* the view-id <<leader number, session>>
    status,    \* "normal", "change", "recovering"; "muted": in "sync", restarted in this view
    log,       \* entries; from the first hole or undecided NO-OP on, what is kept beyond gaps
    life,      \* incarnations
    lives,     \* what each replica knows of everybody's incarnation
    told,      \* of a recovering one: who has told it what, <<replica, life, view-id>>
    decided,   \* slots of a view in which its leader has said GAP-COMMIT
    passed,    \* those of them that a quorum has agreed to
    reps,      \* GAP-COMMIT-REPs: <<view-id, slot, replica, life>>
    votes,     \* VIEW-CHANGEs: [at, from, life, knows, log]
    replies,   \* REPLYs: [at, slot, entry, from, life, knows]
    done,      \* what a client may take for done: [at, slot, entry]
    synced,    \* the sync-point reached in a view
    matched,   \* SYNC-REPLYs: in each view, of each replica, <<life, slot>>
    vlog       \* the log of a view's leader; of a past one, its last

vars == <<roster, view, status, log, life, lives, told, decided, passed, reps, votes, replies, done,
          synced, matched, vlog>>

Replicas == 0 .. N - 1
Views == (0 .. MaxLeader) \X (1 .. MaxSession)
Leader(v) == v[1] % N

Max(a, b) == IF a > b THEN a ELSE b
Highest(set) == CHOOSE n \in set : \A m \in set : m <= n

(***************************************************************************)
(* Who counts.  A session's number stands for its members; while they      *)
(* change, for the former and the new ones.                                *)
(***************************************************************************)
IsMajority(set, members) == 2 * Cardinality(set \cap members) > Cardinality(members)

IsQuorum(set, session) ==
    /\ IsMajority(set, roster[session][1]) \/ Bug = "CountsTheNewAlone"
    /\ IsMajority(set, roster[session][2])

\* Whether every quorum has one of these.
MeetsQuorums(set, session) == ~IsQuorum(Replicas \ set, session)

IsChanging(members) == members[1] # members[2]

(***************************************************************************)
(* View-ids are partially ordered.  Those of views that have started can   *)
(* be compared (Comparable), and are so by one number.                     *)
(***************************************************************************)
AtMost(v, w) == v[1] <= w[1] /\ v[2] <= w[2]
Before(v, w) == AtMost(v, w) /\ v # w
Rank(v) == v[2] * (MaxLeader + 1) + v[1]

\* Whether these, its leader among them, are a quorum of the view.  A leader need not be a member.
IsQuorumOf(v, set) ==
    \/ IsQuorum(set, v[2])
    \/ Bug = "LeaderCountsItself" /\ \A members \in {roster[v[2]][1], roster[v[2]][2]} :
            2 * Cardinality(set \cap (members \cup {Leader(v)})) > Cardinality(members)

(***************************************************************************)
(* Logs.  An entry is <<view-id, what>>: the start of the view, a NO-OP, a *)
(* hole, or the number of a message of the view's session.                 *)
(***************************************************************************)
Start == 0
NoOp == 100
Hole == 200
IsRequest(entry) == entry[2] \in 1 .. MaxMessage

\* The number of the message whose slot is i: every view takes one slot for its start.
NumberAt(l, i, v) ==
    1 + Cardinality({j \in 1 .. i - 1 : j > Len(l) \/ (l[j][1][2] = v[2] /\ l[j][2] # Start)})

\* The slots of view v above `end` for which there are messages.
SlotsAbove(l, end, v) == {i \in end + 1 .. Len(l) + MaxMessage : NumberAt(l, i, v) <= MaxMessage}

\* A log with an entry of view v in slot i.
Put(l, i, v, what) ==
    [j \in 1 .. Max(i, Len(l)) |->
        IF j = i THEN <<v, what>> ELSE IF j <= Len(l) THEN l[j] ELSE <<v, Hole>>]

At(l, i) == IF i <= Len(l) THEN l[i][2] ELSE Hole
LastView(l) == l[Len(l)][1]
StartIn(l, v) == CHOOSE i \in DOMAIN l : l[i] = <<v, Start>>
IsPrefix(a, b) == Len(a) <= Len(b) /\ SubSeq(b, 1, Len(a)) = a

\* How far a log is filled.  A leader does not go past a NO-OP that is not agreed on.
FilledTo(l, undecided) ==
    LET open == {i \in DOMAIN l : l[i][2] = Hole \/ i \in undecided}
    IN IF open = {} THEN Len(l) ELSE (CHOOSE i \in open : \A j \in open : i <= j) - 1

Undecided(r) == IF Leader(view[r]) = r THEN decided[view[r]] \ passed[view[r]] ELSE {}
Filled(r) == SubSeq(log[r], 1, FilledTo(log[r], Undecided(r)))

(***************************************************************************)
(* Incarnations: a vote or reply counts while no later life of its sender  *)
(* is known.                                                               *)
(***************************************************************************)
Merge(a, b) == [r \in Replicas |-> Max(a[r], b[r])]
Counts(r, q, incarnation) == incarnation >= lives[r][q]

(***************************************************************************)
(* What follows from a step at once.                                       *)
(***************************************************************************)
Leads(r, v) == r = Leader(v) /\ view'[r] = v /\ status'[r] = "normal"
Follows(r, v) == r # Leader(v) /\ view'[r] = v /\ status'[r] = "normal"

\* [NOPaxos] 5.2.2, step 2: all slots up to it are filled.
NewReps == UNION {
    {<<view'[r], i, r, life'[r]>> :
        i \in {j \in 1 .. FilledTo(log'[r], {}) : log'[r][j] = <<view'[r], NoOp>>}} :
    r \in {q \in Replicas : Follows(q, view'[q])}}

\* Step 3.
Passes(v, i, noted) ==
    \/ Bug = "NoOpWithoutQuorum"
    \/ IsQuorumOf(v, {Leader(v)} \cup {q \in Replicas : \E c \in 1 .. MaxCrashes + 1 :
            /\ <<v, i, q, c>> \in noted
            /\ c >= lives'[Leader(v)][q]})

\* What replica r replies to in its view.
NewReplies(r) ==
    LET v == view'[r]
        undecided == IF Leader(v) = r THEN decided'[v] \ passed'[v] ELSE {}
        filled == FilledTo(log'[r], undecided)
        end == IF Bug = "ReplyBeyondGap" /\ Leader(v) # r THEN Len(log'[r]) ELSE filled
        first == IF status'[r] = "normal" THEN 1 ELSE end + 1
    IN {[at |-> v, slot |-> i, entry |-> log'[r][i], from |-> r, life |-> life'[r],
         knows |-> lives'[r]] : i \in {j \in first .. end : IsRequest(log'[r][j])}}

\* A quorum of them, of present lives as far as these very replies tell.
Suffices(set, v) ==
    LET from == {reply.from : reply \in set} IN
    /\ \/ IsQuorumOf(v, from)
       \/ Bug = "ClientCountsStrangers" /\ 2 * Cardinality(from) > Cardinality(roster[v[2]][2])
    /\ \/ \E reply \in set : reply.from = Leader(reply.at)
       \/ Bug = "ClientForgetsTheLeader"
    /\ \/ \A a \in set : \A b \in set : a.life >= b.knows[a.from]
       \/ Bug = "ClientCountsTheDead"

\* How far the log of a follower is its leader's.
Matches(l, leaders) ==
    LET end == Highest({i \in 0 .. Len(leaders) : i <= FilledTo(l, {})})
        same == {i \in 0 .. end :
                    \/ SubSeq(l, 1, i) = SubSeq(leaders, 1, i)
                    \/ Bug = "SyncIgnoresNoOps"}
    IN Highest(same)

Settle ==
    LET noted == reps \cup NewReps
    IN
    /\ passed' = [v \in Views |-> passed[v] \cup
            {i \in decided'[v] : Leads(Leader(v), v) /\ Passes(v, i, noted)}]
    \* What nobody will look at any more is forgotten.
    /\ reps' = {rep \in noted :
            /\ Leads(Leader(rep[1]), rep[1])
            /\ rep[2] \notin passed'[rep[1]]}
    /\ vlog' = [v \in Views |->
            IF ~Leads(Leader(v), v) THEN vlog[v]
            ELSE LET l == log'[Leader(v)]
                 IN SubSeq(l, 1, FilledTo(l, decided'[v] \ passed'[v]))]
    /\ LET said == replies \cup UNION {NewReplies(r) : r \in Replicas}
           isDone(one) == \E set \in SUBSET
                {reply \in said : reply.at = one.at /\ reply.slot = one.slot
                                  /\ reply.entry = one.entry} : Suffices(set, one.at)
           all == {[at |-> reply.at, slot |-> reply.slot, entry |-> reply.entry] : reply \in said}
       IN
       /\ done' = done \cup {one \in all \ done : isDone(one)}
       /\ replies' = {reply \in said :
            [at |-> reply.at, slot |-> reply.slot, entry |-> reply.entry] \notin done'}
    /\ matched' = [v \in Views |-> [r \in Replicas |->
            IF ~Leads(Leader(v), v) THEN <<0, 0>>
            ELSE IF ~Follows(r, v) THEN matched[v][r]
            ELSE LET i == Matches(log'[r], vlog'[v]) IN
                IF matched[v][r][1] = life'[r] THEN <<life'[r], Max(i, matched[v][r][2])>>
                ELSE <<life'[r], i>>]]
    /\ synced' = [v \in Views |->
            IF ~Leads(Leader(v), v) THEN synced[v]
            ELSE LET reached == {i \in synced[v] .. Len(vlog'[v]) :
                        IsQuorumOf(v, {Leader(v)} \cup {r \in Replicas \ {Leader(v)} :
                            /\ matched'[v][r][2] >= i
                            /\ matched'[v][r][1] >= lives'[Leader(v)][r]})}
                 IN IF reached = {} THEN synced[v] ELSE Highest(reached)]
    /\ votes' = {vote \in votes \cup
            {[at |-> view'[r], from |-> r, life |-> life'[r], knows |-> lives'[r],
              log |-> log'[r]] : r \in {q \in Replicas : status'[q] = "change"}} :
            LET leader == Leader(vote.at) IN
            AtMost(view'[leader], vote.at) /\ ~Leads(leader, vote.at)}

(***************************************************************************)
(* The start: everybody is in the first view.                              *)
(***************************************************************************)
First == <<0, 1>>

Init ==
    LET begin == <<<<First, Start>>>> IN
    /\ roster = <<<<Members, Members>>>>
    /\ view = [r \in Replicas |-> First]
    /\ status = [r \in Replicas |-> "normal"]
    /\ log = [r \in Replicas |-> begin]
    /\ life = [r \in Replicas |-> 1]
    /\ lives = [r \in Replicas |-> [q \in Replicas |-> 1]]
    /\ told = [r \in Replicas |-> {}]
    /\ decided = [v \in Views |-> {}]
    /\ passed = [v \in Views |-> {}]
    /\ reps = {}
    /\ votes = {}
    /\ replies = {}
    /\ done = {}
    /\ synced = [v \in Views |-> IF v = First THEN 1 ELSE 0]
    /\ matched = [v \in Views |-> [r \in Replicas |->
            IF v = First /\ r # Leader(First) THEN <<1, 1>> ELSE <<0, 0>>]]
    /\ vlog = [v \in Views |-> IF v = First THEN begin ELSE <<>>]

(***************************************************************************)
(* Operation within a view (5.2.1, 5.2.2).                                 *)
(***************************************************************************)
InView == UNCHANGED <<roster, view, status, life, lives, told>>

\* A message, or what a GAP-REPLY brings of it.
Receive(r) ==
    /\ status[r] = "normal"
    /\ \E i \in SlotsAbove(log[r], FilledTo(log[r], {}), view[r]) :
        /\ At(log[r], i) = Hole
        /\ log' = [log EXCEPT ![r] = Put(log[r], i, view[r], NumberAt(log[r], i, view[r]))]
    /\ InView /\ UNCHANGED decided
    /\ Settle

\* GAP-COMMIT of a dropped request; several at once, in any order.
Decide(r) ==
    LET v == view[r] IN
    /\ status[r] = "normal" /\ Leader(v) = r
    /\ \E i \in SlotsAbove(log[r], FilledTo(log[r], {}), v) :
        /\ At(log[r], i) = Hole
        /\ log' = [log EXCEPT ![r] = Put(log[r], i, v, NoOp)]
        /\ decided' = [decided EXCEPT ![v] = @ \cup {i}]
    /\ InView
    /\ Settle

\* A follower hears of a NO-OP: by GAP-COMMIT, GAP-REPLY or SYNC-PREPARE.  A request gives way.
Obey(r) ==
    LET v == view[r] IN
    /\ status[r] = "normal" /\ Leader(v) # r
    /\ \E i \in decided[v] :
        /\ At(log[r], i) # NoOp
        /\ log' = [log EXCEPT ![r] = Put(log[r], i, v, NoOp)]
    /\ InView /\ UNCHANGED decided
    /\ Settle

(***************************************************************************)
(* Sessions, as the controllers commit them.                               *)
(***************************************************************************)
Sessions(Is(_, _)) == Cardinality({j \in 2 .. Len(roster) : Is(roster[j - 1], roster[j])})
IsSame(before, after) == before = after
IsBegun(before, after) == ~IsChanging(before) /\ IsChanging(after)

\* A view of the session has started, and its start is stable.
Settled(session) == \E v \in Views :
    /\ v[2] = session
    /\ \/ \E i \in 1 .. synced[v] : vlog[v][i][1][2] = session
       \/ Bug = "SettlesAtOnce" /\ vlog[v] # <<>>

\* Who may count in the session after the last one: the same, since a sequencer has failed; the
\* former and the new members, since they are to change; the new ones alone, since they have.
Successors ==
    LET present == roster[Len(roster)] IN
    (IF Sessions(IsSame) < MaxSession - 1 - 2 * MaxChanges THEN {present} ELSE {})
    \cup (IF ~IsChanging(present) /\ Sessions(IsBegun) < MaxChanges
          THEN {<<present[2], new>> : new \in Targets \ {present[2]}} ELSE {})
    \cup (IF IsChanging(present) /\ (Settled(Len(roster)) \/ Bug = "SettlesUnasked")
          THEN {<<present[2], present[2]>>} ELSE {})
    \cup (IF Bug = "CountsAtOnce" THEN {<<new, new>> : new \in Targets} ELSE {})

(***************************************************************************)
(* View changes (5.2.3).                                                   *)
(***************************************************************************)
Leave(r, v) ==
    /\ status[r] # "recovering"
    /\ view' = [view EXCEPT ![r] = v]
    /\ status' = [status EXCEPT ![r] = "change"]
    /\ log' = [log EXCEPT ![r] = Filled(r)]
    /\ UNCHANGED <<life, lives, told, decided>>
    /\ Settle

NextLeader(r) ==
    /\ view[r][1] < MaxLeader
    /\ Leave(r, <<view[r][1] + 1, view[r][2]>>)
    /\ UNCHANGED roster

NextSession(r) ==
    /\ view[r][2] < MaxSession
    /\ IF view[r][2] < Len(roster) THEN UNCHANGED roster
       ELSE \E members \in Successors : roster' = Append(roster, members)
    /\ Leave(r, <<view[r][1], view[r][2] + 1>>)

\* A slot is a NO-OP if it is one in any of the logs, else it has its request.
Merged(logs) ==
    LET length == Highest({Len(l) : l \in logs}) IN
    [i \in 1 .. length |->
        LET entries == {l[i] : l \in {k \in logs : i <= Len(k)}}
            first == {e \in entries : (e[2] = NoOp) = (Bug # "MergePrefersRequests")}
        IN IF first # {} THEN CHOOSE e \in first : TRUE ELSE CHOOSE e \in entries : TRUE]

StartView(r) ==
    LET v == view[r] IN
    /\ status[r] = "change" /\ Leader(v) = r
    /\ \E set \in SUBSET {vote \in votes : vote.at = v} :
        LET known == [q \in Replicas |->
                Highest({vote.knows[q] : vote \in set} \cup {lives[r][q]})]
            last == Highest({Rank(LastView(vote.log)) : vote \in set})
            good == {vote \in set : Rank(LastView(vote.log)) = last \/ Bug = "MergeAnyView"}
        IN
        /\ \E own \in set : own.from = r /\ own.life = life[r]
        /\ IsQuorumOf(v, {vote.from : vote \in set})
        /\ Cardinality({vote.from : vote \in set}) = Cardinality(set)
        /\ \/ \A vote \in set : vote.life >= known[vote.from]
           \/ Bug = "VotesOfTheDead"
        /\ log' = [log EXCEPT ![r] =
                Append(Merged({vote.log : vote \in good}), <<v, Start>>)]
        /\ lives' = [lives EXCEPT ![r] = known]
    /\ status' = [status EXCEPT ![r] = "normal"]
    /\ UNCHANGED <<roster, view, life, told, decided>>
    /\ Settle

\* START-VIEW.  What the leader's log has got since then comes as everything in a view does.
Enter(r) == \E v \in Views :
    /\ vlog[v] # <<>> /\ Leader(v) # r
    /\ \/ status[r] = "normal" /\ Before(view[r], v)
       \/ status[r] \in {"change", "muted"} /\ AtMost(view[r], v)
    /\ view' = [view EXCEPT ![r] = v]
    /\ status' = [status EXCEPT ![r] = "normal"]
    \* Who was in this view before keeps what it has of it.
    /\ log' = [log EXCEPT ![r] =
            IF LastView(log[r]) = v THEN log[r]
            ELSE SubSeq(vlog[v], 1, StartIn(vlog[v], v))]
    /\ UNCHANGED <<roster, life, lives, told, decided>>
    /\ Settle

(***************************************************************************)
(* Crashes and recovery (5.2.5; Michael et al., DISC 2017).                *)
(***************************************************************************)
RECURSIVE Sum(_)
Sum(set) == IF set = {} THEN 0 ELSE LET r == CHOOSE q \in set : TRUE
                                    IN life[r] - 1 + Sum(set \ {r})

Crash(r) ==
    /\ Sum(Replicas) < MaxCrashes
    /\ life' = [life EXCEPT ![r] = @ + 1]
    /\ lives' = [lives EXCEPT ![r] = [q \in Replicas |-> IF q = r THEN life[r] + 1 ELSE 1]]
    /\ told' = [told EXCEPT ![r] = {}]
    /\ IF Durability = "memory"
       THEN /\ log' = [log EXCEPT ![r] = <<>>]
            /\ status' = [status EXCEPT ![r] = "recovering"]
            /\ UNCHANGED view
       ELSE /\ log' = [log EXCEPT ![r] = Filled(r)]
            /\ status' = [status EXCEPT ![r] =
                    IF Bug = "RestartVotes" THEN "change" ELSE "muted"]
            /\ view' = [view EXCEPT ![r] =
                    IF Bug = "ViewUnstored" THEN LastView(log[r]) ELSE @]
    /\ UNCHANGED <<roster, decided>>
    /\ Settle

\* RECOVER and its answer.
Tell(r, q) ==
    /\ status[r] = "recovering" /\ status[q] = "normal"
    /\ lives' = [lives EXCEPT ![q][r] = life[r], ![r] = Merge(@, lives[q])]
    /\ told' = [told EXCEPT ![r] = {one \in @ : one[1] # q} \cup {<<q, life[q], view[q]>>}]
    /\ told' # told
    /\ UNCHANGED <<roster, view, status, log, life, decided>>
    /\ Settle

\* Every quorum has one that knows the new life; the leader of a view no older than theirs has learned
\* of it, and sends its log as it is now.
Recover(r) ==
    LET counted == {one \in told[r] : Counts(r, one[1], one[2])}
        latest == <<Highest({one[3][1] : one \in counted}),
                    Highest({one[3][2] : one \in counted})>>
    IN
    /\ status[r] = "recovering"
    /\ \E session \in 1 .. Len(roster) : MeetsQuorums({one[1] : one \in counted}, session)
    /\ \E p \in Replicas \ {r} :
        /\ status[p] = "normal" /\ Leader(view[p]) = p
        /\ lives[p][r] = life[r]
        /\ AtMost(latest, view[p])
        /\ AtMost(view[r], view[p])
        /\ view' = [view EXCEPT ![r] = view[p]]
        /\ log' = [log EXCEPT ![r] =
                IF Bug = "RecoverAtStart" THEN SubSeq(log[p], 1, StartIn(log[p], view[p]))
                ELSE Filled(p)]
        /\ lives' = [lives EXCEPT ![r] = Merge(@, lives[p])]
    /\ status' = [status EXCEPT ![r] = "normal"]
    /\ told' = [told EXCEPT ![r] = {}]
    /\ UNCHANGED <<roster, life, decided>>
    /\ Settle

(***************************************************************************)
(* Steps that only planted defects allow.                                  *)
(***************************************************************************)
\* Any START-VIEW ends a recovery.
RecoverByAny(r) == \E v \in Views :
    /\ Bug = "RecoverWithoutQuorum"
    /\ status[r] = "recovering"
    /\ vlog[v] # <<>> /\ Leader(v) # r /\ AtMost(view[r], v)
    /\ view' = [view EXCEPT ![r] = v]
    /\ log' = [log EXCEPT ![r] = SubSeq(vlog[v], 1, StartIn(vlog[v], v))]
    /\ status' = [status EXCEPT ![r] = "normal"]
    /\ UNCHANGED <<roster, life, lives, told, decided>>
    /\ Settle

\* A view-id is adopted because its leader number is higher, whatever its session.
AdoptByLeader(r, q) ==
    /\ Bug = "LeaderNumberAlone"
    /\ view[q][1] > view[r][1]
    /\ ~AtMost(view[r], view[q])
    /\ Leave(r, view[q])
    /\ UNCHANGED roster

Next ==
    \E r \in Replicas :
        \/ Receive(r) \/ Decide(r) \/ Obey(r)
        \/ NextLeader(r) \/ NextSession(r) \/ StartView(r) \/ Enter(r)
        \/ Crash(r) \/ Recover(r) \/ RecoverByAny(r)
        \/ \E q \in Replicas \ {r} : Tell(r, q) \/ AdoptByLeader(r, q)

Spec == Init /\ [][Next]_vars

(***************************************************************************)
(* What must hold in every state.                                          *)
(***************************************************************************)
Started == {v \in Views : vlog[v] # <<>>}

\* (a) Within a view two logs differ in a slot at most by a NO-OP, or by what is missing in one.
Agreement ==
    LET all == {log[r] : r \in Replicas} \cup {vlog[v] : v \in Started} IN
    \A a \in all : \A b \in all : \A i \in DOMAIN a \cap DOMAIN b :
        a[i][1] = b[i][1] =>
            \/ a[i][2] = b[i][2]
            \/ {a[i][2], b[i][2]} \cap {NoOp, Hole} # {}

\* (b) What a client takes for done is in its slot in every later view.
ReplySurvives == \A one \in done : \A w \in Started :
    Before(one.at, w) => one.slot <= Len(vlog[w]) /\ vlog[w][one.slot] = one.entry

\* (c) A NO-OP that a leader has gone past is in its slot in every later view,
GonePast(v) == passed[v] \cap DOMAIN vlog[v]
NoOpSurvives == \A v \in Started : \A i \in GonePast(v) : \A w \in Started :
    Before(v, w) => i <= Len(vlog[w]) /\ vlog[w][i] = <<v, NoOp>>

\* and nobody is told that the request of that slot is done.
NotBoth == \A one \in done : one.slot \notin GonePast(one.entry[1])

\* (d) What is at or below a sync-point is in every later view, and in the log of each follower that
\* executes up to there.
SyncStable ==
    /\ \A v \in Started : \A w \in Started :
        Before(v, w) => IsPrefix(SubSeq(vlog[v], 1, synced[v]), vlog[w])
    /\ \A r \in Replicas :
        LET v == view[r]
            reached == {i \in 0 .. synced[v] : matched[v][r][1] = life[r] /\ i <= matched[v][r][2]}
        IN status[r] = "normal" =>
            \A i \in reached : SubSeq(log[r], 1, i) = SubSeq(vlog[v], 1, i)

\* (e) Views that have started can be compared.
Comparable == \A v \in Started : \A w \in Started : AtMost(v, w) \/ AtMost(w, v)

\* (f) A view starts once: nobody who could start it is there after it has started.
OneStart == \A v \in Started :
    LET leader == Leader(v) IN ~(view[leader] = v /\ status[leader] = "change")

\* (g) Once the new members count alone, no quorum of a session before the change is left there: no
\* view of it starts any more.
FormerHaveLeft == \A j \in 3 .. Len(roster) :
    IsChanging(roster[j - 1]) /\ ~IsChanging(roster[j]) =>
        \A session \in {i \in 1 .. j - 2 : ~IsChanging(roster[i])} :
            ~IsQuorum({r \in Replicas : view[r][2] <= session}, session)

\* Views only grow along a log; who is in status Normal has the start of its view.
LogsInOrder == \A r \in Replicas :
    /\ \A i \in DOMAIN log[r] : i = 1 \/ AtMost(log[r][i - 1][1], log[r][i][1])
    /\ status[r] = "normal" => \E i \in DOMAIN log[r] : log[r][i] = <<view[r], Start>>

(***************************************************************************)
(* What must not hold, or the model would show nothing.                    *)
(***************************************************************************)
\* A leader never executes what a later view does not have: it does, and must undo it.
NothingToUndo == \A v \in Started : \A w \in Started : Before(v, w) => IsPrefix(vlog[v], vlog[w])

\* Who has forgotten never comes back.
NobodyRecovers == \A r \in Replicas : life[r] > 1 => status[r] # "normal"

\* No follower ever gives up a request for a NO-OP.
NothingOverwritten == \A reply \in replies : \A r \in Replicas :
    (reply.from = r /\ life[r] = reply.life /\ view[r] = reply.at /\ status[r] = "normal")
        => log[r][reply.slot] = reply.entry

\* No two views are ever waited for that cannot be compared.
AlwaysComparable == \A r \in Replicas : \A q \in Replicas :
    AtMost(view[r], view[q]) \/ AtMost(view[q], view[r])

\* Nothing is ever done by new members alone.
NoChangeEnds == \A one \in done :
    LET members == roster[one.at[2]] IN IsChanging(members) \/ members[2] = Members

=============================================================================
