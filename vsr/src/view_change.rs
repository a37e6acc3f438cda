//! View change ([Mao] 4.2.5): ELECTPREPARE, ELECTPREPAREOK, ELECTACCEPT; ELECTACCEPTOK is the
//! PREPAREOK of the view's first entry. Before it leaves its view a replica asks whether a quorum
//! would follow (PREVOTE), so that a deaf replica disturbs nobody.
//!
//! Invariants: a vote is given only when the view is on disk, and only to a candidate whose log
//! ends no earlier than the voter's (opMax <= cOpMax); so the elected log holds all that was
//! acknowledged (in `lazy`, with f + 1 votes of replicas that are not forgetful).

use alloc::sync::Arc;
use alloc::vec;

use smr::contract::Role;
use smr::{Content, Entry, Now, OpNumber, ReplicaId, View, Viewstamp};

use crate::message::Message;
use crate::replica::{Out, Replica, ReplicaSet};
use crate::storage::Change;

#[derive(Debug)]
struct PreVote {
    attempt: u64,
    granted: ReplicaSet,
}

#[derive(Debug, Default)]
struct Candidacy {
    /// Whether the view was on disk and ELECTPREPARE has gone out.
    announced: bool,
    votes: ReplicaSet,
    /// Those of forgetful replicas.
    marked: ReplicaSet,
    /// A replica that answers holds more than the candidate does.
    refused: bool,
}

/// A replica's part in elections.
#[derive(Debug, Default)]
pub(crate) struct Election {
    /// When this replica suspects its primary, in [`Now::micros`].
    pub(crate) due_at: u64,
    pre_vote: Option<PreVote>,
    candidacy: Option<Candidacy>,
    /// To whom a vote goes once the view is on disk.
    vote_for: Option<ReplicaId>,
    /// The highest view that anybody has told of.
    highest: View,
    /// Since when, and when last, there were votes enough, but too many of forgetful replicas, in
    /// [`Now::micros`].
    short: Option<(u64, u64)>,
}

impl Election {
    /// The primary lives: no suspicion before `due_at`.
    pub(crate) fn heard(&mut self, due_at: u64) {
        self.due_at = due_at;
        self.pre_vote = None;
        self.short = None;
    }

    /// The view has changed: what was going on in the old one is over.
    pub(crate) fn leave(&mut self) {
        self.pre_vote = None;
        self.candidacy = None;
        self.vote_for = None;
    }

    /// A replica has begun a new life: what the old one granted does not count.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        if let Some(pre_vote) = &mut self.pre_vote {
            pre_vote.granted.remove(replica);
        }
        if let Some(candidacy) = &mut self.candidacy {
            candidacy.votes.remove(replica);
            candidacy.marked.remove(replica);
        }
    }
}

impl Replica {
    /// The primary is suspected: asks the others whether they agree.
    pub(crate) fn election_timeout(&mut self, now: Now, out: &mut Out) {
        let timing = self.config.timing;
        // Who cannot store a view cannot lead before the disk answers, however slow it is; who
        // installs a state has nothing to lead with.
        if self.stores.stalled(now.micros.saturating_sub(timing.election)) || self.installing() {
            self.election.due_at = now.micros + timing.election;
            return;
        }
        self.election.candidacy = None;
        self.election.due_at = now.micros + timing.election / 2 + self.jitter();
        let attempt = self.rng.next_u64();
        let granted = ReplicaSet::of(self.me);
        self.election.pre_vote = Some(PreVote { attempt, granted });
        if granted.len() >= self.quorum() {
            self.campaign(now, out);
            return;
        }
        self.broadcast(Message::PreVote { attempt, last: self.log.last() }, out);
    }

    pub(crate) fn on_pre_vote(
        &mut self,
        now: Now,
        from: ReplicaId,
        attempt: u64,
        last: Viewstamp,
        out: &mut Out,
    ) {
        let follows = self.role == Role::Backup
            && now.micros < self.primary_heard_at + self.config.timing.election;
        // Who is about to store a view stands or votes in it next, or could not vote anyway.
        let free = self.view_stored() && !self.leading && !follows;
        if free && self.log.last() <= last {
            let view = self.view.max(self.election.highest);
            self.send(from, Message::PreVoteOk { attempt, view }, out);
        }
    }

    pub(crate) fn on_pre_vote_ok(
        &mut self,
        now: Now,
        from: ReplicaId,
        attempt: u64,
        view: View,
        out: &mut Out,
    ) {
        let quorum = self.quorum();
        let Some(pre_vote) = &mut self.election.pre_vote else { return };
        if pre_vote.attempt != attempt {
            return;
        }
        pre_vote.granted.insert(from);
        let agreed = pre_vote.granted.len() >= quorum;
        self.election.highest = self.election.highest.max(view);
        if agreed {
            self.campaign(now, out);
        }
    }

    /// Steps 1 and 2: a new view, on disk before anybody hears of it.
    pub(crate) fn campaign(&mut self, now: Now, out: &mut Out) {
        let view = self.view.max(self.election.highest).next_for(self.me);
        self.set_view(now, view, out);
        self.election.candidacy = Some(Candidacy::default());
        self.election.due_at = now.micros + self.config.timing.election + self.jitter();
        self.store(now, Change::default(), out);
        self.election_stored(now, out);
    }

    /// What waited for the view to be on disk.
    pub(crate) fn election_stored(&mut self, now: Now, out: &mut Out) {
        if !self.view_stored() {
            return;
        }
        if let Some(to) = self.election.vote_for.take() {
            self.election.due_at = now.micros + self.config.timing.election + self.jitter();
            let (forgetful, incarnations) = (self.marked(), self.incarnations());
            let vote = Message::ElectPrepareOk { view: self.view, forgetful, incarnations };
            self.send(to, vote, out);
        }
        let Some(candidacy) = &mut self.election.candidacy else { return };
        if !candidacy.announced {
            candidacy.announced = true;
            // The voters' disks may need as long as this one did.
            let disk = now.micros - self.view_changed_at;
            self.election.due_at = now.micros + disk + self.config.timing.election + self.jitter();
            let (view, last) = (self.view, self.log.last());
            self.broadcast(Message::ElectPrepare { view, last }, out);
            self.count_vote(now, self.me, self.marked(), out);
        }
    }

    /// Step 3: in either case the view is raised; the vote depends on the logs.
    pub(crate) fn on_elect_prepare(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        last: Viewstamp,
        out: &mut Out,
    ) {
        if from != view.primary() {
            self.dropped += 1;
            return;
        }
        if view < self.view {
            self.send(from, Message::StaleView { view: self.view }, out);
            return;
        }
        if view > self.view {
            self.set_view(now, view, out);
            self.election.due_at = now.micros + self.config.timing.election + self.jitter();
            self.store(now, Change::default(), out);
        }
        let votes = self.log.last() <= last;
        #[cfg(feature = "planted-bugs")]
        let votes = if self.bug(crate::Bug::VoteInverted) { !votes } else { votes };
        if votes {
            self.election.vote_for = Some(from);
            self.election_stored(now, out);
        } else {
            self.refuse(now, from, view, out);
        }
    }

    /// Who is elected after a crash of many may have less than this replica, which therefore says
    /// so and stands soon itself. One whose disk does not answer could not: it counts as silent.
    fn refuse(&mut self, now: Now, candidate: ReplicaId, view: View, out: &mut Out) {
        let patience = self.config.timing.election;
        if self.lazy() && !self.stores.stalled(now.micros.saturating_sub(patience)) {
            self.send(candidate, Message::ElectRefuse { view }, out);
            self.election.due_at = now.micros + self.jitter() / 4;
        }
    }

    /// Without f + 1 unmarked votes there is no election over one that answers and holds more.
    pub(crate) fn on_elect_refuse(&mut self, view: View) {
        if let Some(candidacy) = self.election.candidacy.as_mut().filter(|_| view == self.view) {
            candidacy.refused = true;
            self.election.short = None;
        }
    }

    /// Whether this replica's vote is that of one that may have forgotten what it acknowledged.
    fn marked(&self) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::ForgetfulVoteUnmarked) {
            return false;
        }
        self.forgetful.is_some()
    }

    pub(crate) fn on_elect_prepare_ok(
        &mut self,
        now: Now,
        from: ReplicaId,
        view: View,
        forgetful: bool,
        out: &mut Out,
    ) {
        if view == self.view {
            self.count_vote(now, from, forgetful, out);
        }
    }

    /// Step 4. The votes of f + 1 replicas that remember everything preserve what was acknowledged.
    /// If that cannot be had, any f + 1 votes do once all have voted or had time to (contracts:
    /// forgetful votes). Who refuses is not silent. Marks say who may have forgotten, not who has:
    /// f + 1 of them do not prove that nobody else is worth waiting for.
    fn count_vote(&mut self, now: Now, from: ReplicaId, forgetful: bool, out: &mut Out) {
        let (quorum, all) = (self.quorum(), usize::from(self.config.replicas));
        let timing = self.config.timing;
        let Some(candidacy) = &mut self.election.candidacy else { return };
        if !candidacy.announced {
            return;
        }
        candidacy.votes.insert(from);
        if forgetful {
            candidacy.marked.insert(from);
        }
        let (votes, marked) = (candidacy.votes.len(), candidacy.marked.len());
        if votes - marked >= quorum {
            self.elected(now, out);
        } else if votes >= quorum && !candidacy.refused {
            // Who was cut off meanwhile begins anew.
            let pause = 4 * (timing.election + timing.election_jitter);
            let going_on = |&(_, last): &(u64, u64)| now.micros < last + pause;
            let since = self.election.short.filter(going_on).map_or(now.micros, |short| short.0);
            self.election.short = Some((since, now.micros));
            if votes == all || now.micros >= since + timing.patience {
                self.risky_elections += 1;
                self.elected(now, out);
            }
        }
    }

    /// Step 5: the candidate's log is the measure from here on.
    fn elected(&mut self, now: Now, out: &mut Out) {
        assert!(!self.installing(), "candidates have their state");
        self.election.leave();
        self.transfer = None;
        self.leading = true;
        let entry = self.next_entry(Content::ViewStart);
        self.view_start = entry.viewstamp.op;
        self.extend(now, vec![entry], None, out);
        self.send_elect_accept(now, out);
        self.advance(now, out);
    }

    pub(crate) fn send_elect_accept(&mut self, now: Now, out: &mut Out) {
        self.heartbeat_at = now.micros + self.config.timing.heartbeat;
        let entry = self.log.get(self.view_start).expect("uncommitted entries are not trimmed");
        let message = Message::ElectAccept { entry: Arc::clone(entry) };
        self.broadcast(message, out);
    }

    /// Step 6. What the elected log does not hold was not acknowledged by a quorum, or is
    /// lost (`lazy`).
    pub(crate) fn on_elect_accept(
        &mut self,
        now: Now,
        from: ReplicaId,
        entry: Arc<Entry>,
        out: &mut Out,
    ) {
        let view = entry.viewstamp.view;
        if from != view.primary() {
            self.dropped += 1;
            return;
        }
        if view < self.view {
            self.send(from, Message::StaleView { view: self.view }, out);
            return;
        }
        if self.installing() {
            return; // it will be sent again
        }
        if !self.log.contains(entry.viewstamp) {
            if !self.log.contains(entry.previous) {
                self.start_catch_up(now, from, view, out);
                return;
            }
            if view > self.view {
                self.set_view(now, view, out);
            }
            let dropped = self.log.last() != entry.previous;
            let truncate = dropped.then_some(entry.previous.op);
            let commit = entry.commit;
            self.extend(now, vec![entry], truncate, out);
            self.learn_commit(commit, out);
            self.enter_as_backup(now);
        }
        self.acknowledge(out);
    }

    /// Step 7: f + 1 replicas hold the view's first entry.
    pub(crate) fn become_primary(&mut self, now: Now) {
        assert!(self.leading && self.view_stored());
        self.role = Role::Primary;
        self.election.short = None;
        // How the views before ended is final now.
        self.forgetful = None;
        self.view_changed_at = now.micros;
        self.heartbeat_at = now.micros; // the backups hear of the commitment at once
    }

    /// Gives up the lead for want of progress, and leaves the others time to elect.
    pub(crate) fn resign(&mut self, now: Now, out: &mut Out) {
        self.give_up_lead(out);
        self.view_start = OpNumber(0);
        self.election.due_at = now.micros + 2 * self.config.timing.election + self.jitter();
    }

    /// Somebody has promised a higher view. A leader that hears it cannot lead that replica any
    /// more; it has the best log, so it stands again above that view.
    pub(crate) fn on_stale_view(&mut self, now: Now, view: View, out: &mut Out) {
        self.election.highest = self.election.highest.max(view);
        if self.leading && view > self.view {
            self.campaign(now, out);
        }
    }
}
