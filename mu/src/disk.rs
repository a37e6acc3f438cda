//! The disk as a peer (durabilities `sync` and `lazy`): what was handed to it, what is stored, and
//! how a leader learns that.
//!
//! The log on disk is the chain of entries that this replica's slots hold; the view on disk is its
//! promise. A follower tells the leader whose number it has promised how far that leader's entries
//! are stored, in words of the leader's board.
//!
//! Invariants: a promise counts only once it is on disk; nothing is told that is not stored, and
//! nothing told counts under another number or for another life.

use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::contract::Output;
use smr::stores::Stores;
use smr::{
    Content, Durability, Entry, Now, OpNumber, ReplicaId, StoreBatch, StoreNumber, View, Viewstamp,
};

use crate::attempt::LeadState;
use crate::event::{Memory, Purpose};
use crate::layout::{self, BOARD, LOG, MIN_PROPOSAL, Slot};
use crate::replica::{Out, Replica};

/// The state of the disk.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) stores: Stores,
    /// minProposal as it was last seen in the own log.
    promised: View,
    /// What was told last: under which number, how far.
    told: Option<(View, OpNumber)>,
}

/// What a batch does beside adopting the present view.
#[derive(Default)]
pub(crate) struct StoreChange {
    pub(crate) reset: Option<Viewstamp>,
    pub(crate) truncate: Option<Viewstamp>,
    pub(crate) append: Vec<Arc<Entry>>,
}

impl<M: Memory> Replica<M> {
    /// Whether entries go to the disk at all.
    pub(crate) fn is_durable(&self) -> bool {
        self.config.durability != Durability::Memory
    }

    pub(crate) fn is_lazy(&self) -> bool {
        self.config.durability == Durability::Lazy
    }

    /// Stores a change together with the present view, as one batch.
    pub(crate) fn store_batch(&mut self, now: Now, change: StoreChange, out: &mut Out) {
        let StoreChange { reset, truncate, append } = change;
        let stores = &mut self.disk.stores;
        if let Some(keep) = truncate {
            stores.clamp(keep);
        }
        if reset.is_some() {
            stores.clamp(Viewstamp::default());
        }
        let (view, newest) = (self.view.max(self.disk.promised), stores.newest_view());
        let starts = |entry: &Arc<Entry>| entry.content == Content::ViewStart;
        let awaited = view > newest || append.iter().any(starts);
        let bytes = append.iter().map(|entry| entry.size()).sum();
        let number = stores.issue(now, self.log.last(), view.max(newest), bytes);
        let (truncate, trim) = (truncate.map(|keep| keep.op), stores.take_trim());
        let view = (view > newest).then_some(view);
        self.checkpoints.grown += bytes;
        out.push(Output::Store(StoreBatch { number, reset, truncate, append, view, trim }));
        if self.is_lazy() && awaited {
            out.push(Output::Flush);
        }
    }

    /// Makes these entries, which follow each other, the log's end: above what they follow.
    pub(crate) fn hold(&mut self, now: Now, entries: Vec<Arc<Entry>>, out: &mut Out) {
        let known = |entry: &Arc<Entry>| {
            entry.viewstamp.op <= self.log.base().op || self.log.contains(entry.viewstamp)
        };
        let append: Vec<Arc<Entry>> = entries.into_iter().skip_while(known).collect();
        let Some(first) = append.first() else { return };
        let keep = first.previous;
        assert!(self.log.contains(keep), "the log holds what they follow");
        let truncate = (self.log.last() != keep).then_some(keep);
        assert!(keep.op >= self.stable.op, "what is stable stands");
        self.log.truncate(keep.op);
        append.iter().for_each(|entry| self.log.append(entry.clone()));
        self.store_batch(now, StoreChange { truncate, append, ..StoreChange::default() }, out);
    }

    pub(crate) fn on_stored(&mut self, now: Now, number: StoreNumber, out: &mut Out) {
        self.disk.stores.on_stored(number);
        self.tell_leader(out);
        self.durable_moved(now, out);
    }

    /// A would-be leader has raised minProposal in the own log: the promise goes to disk, whatever
    /// this replica is doing.
    pub(crate) fn note_promise(&mut self, now: Now, out: &mut Out) {
        if !self.is_durable() || self.installing() {
            return;
        }
        let mut word = [0];
        self.memory.load(LOG, MIN_PROPOSAL, &mut word);
        // A leader that does not know yet that it is one no more keeps its view until it does.
        self.disk.promised = View(word[0]);
        if self.view.max(self.disk.promised) > self.disk.stores.newest_view() {
            self.store_batch(now, StoreChange::default(), out);
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::PromiseNotStored) {
            let stores = &mut self.disk.stores;
            stores.start(stores.newest_view(), stores.disk());
        }
        self.tell_leader(out);
    }

    /// Tells the leader whose number was promised what of its own is stored.
    fn tell_leader(&mut self, out: &mut Out) {
        let number = self.disk.promised;
        let leader = number.primary();
        let nobody = leader == self.me || leader.0 >= self.config.replicas;
        if number == View::default() || nobody || self.disk.stores.view() < number {
            return;
        }
        let op = self.stored_under(number);
        if self.disk.told == Some((number, op)) {
            return;
        }
        self.disk.told = Some((number, op));
        let words = layout::sealed(number, self.config.identity.incarnation.0, op);
        self.write_board(Purpose::Durable, leader, layout::durable_of(self.me), &words, out);
    }

    /// How far the entries of this number's leader are stored, if its first one is; before that,
    /// the end of this log, if it is one that the leader has adopted as a whole and all of it is
    /// stored.
    fn stored_under(&mut self, number: View) -> OpNumber {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::DurableBeforeStored) && self.log.last().view == number {
            return self.log.last().op;
        }
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::DurableUnderOldNumber) {
            return self.disk.stores.disk().op;
        }
        let disk = self.disk.stores.disk();
        if disk.view == number {
            return disk.op;
        }
        // Who follows adds nothing under lower numbers any more.
        if self.lead.state != LeadState::Following || !self.disk.stores.idle() {
            return OpNumber(0);
        }
        let adopted = |slot: &Slot| slot.number() == number && slot.viewstamp() == disk;
        self.load_slot(disk.op).filter(adopted).map_or(OpNumber(0), |_| disk.op)
    }

    /// A write to a leader's board has failed: it is made again.
    pub(crate) fn untold(&mut self) {
        self.disk.told = None;
    }

    /// Looks for what followers have told this leader, or would-be leader.
    pub(crate) fn collect_durable(&mut self, now: Now, out: &mut Out) {
        let waits = matches!(self.lead.state, LeadState::Preparing | LeadState::Leading);
        if !self.is_durable() || !waits {
            return;
        }
        let mut news = false;
        for id in self.replicas().filter(|&id| id != self.me) {
            let mut words = [0; 2];
            self.memory.load(BOARD, layout::durable_of(id), &mut words);
            let life = self.peers[id.index()].life.0;
            let told = layout::unsealed(words, self.lead.number, life);
            let follower = &mut self.followers[id.index()];
            if let Some(op) = told
                && (!follower.promised || op > follower.durable)
            {
                follower.promised = true;
                follower.durable = follower.durable.max(op);
                news = true;
            }
        }
        if news {
            self.durable_moved(now, out);
        }
    }

    /// Whether a replica's promise to this would-be leader is on disk, where that matters.
    pub(crate) fn has_promised(&self, replica: ReplicaId) -> bool {
        if !self.is_durable() {
            return true;
        }
        match replica == self.me {
            true => self.disk.stores.view() >= self.lead.number,
            false => self.followers[replica.index()].promised,
        }
    }

    /// How far a replica has this leader's own entries on disk, if any.
    pub(crate) fn durable_at(&self, replica: ReplicaId) -> u64 {
        #[cfg(feature = "planted-bugs")]
        if replica == self.me && self.bug(crate::Bug::CountSelfBeforeStored) {
            return self.log.last().op.0;
        }
        let disk = self.disk.stores.disk();
        let stored = match replica == self.me {
            true if disk.view == self.lead.number => disk.op,
            true => OpNumber(0),
            false => self.followers[replica.index()].durable,
        };
        // Before the first of them a follower tells of what was adopted.
        if stored >= self.lead.start { stored.0 } else { 0 }
    }

    /// Whether what this leader has adopted leaves no room in the ring for its own first entry.
    pub(crate) fn lacks_room(&self) -> bool {
        self.is_durable()
            && self.lead.state == LeadState::Leading
            && self.lead.blocked_at.is_some()
            && self.recent.last().op < self.lead.start
    }

    /// Whether there is no log any more but the one that this leader has adopted, and all that have
    /// it have promised this number: then it is decided, although nothing of the leader's own is.
    pub(crate) fn is_only_log(&self) -> bool {
        let end = self.recent.last();
        let has_it = |id: ReplicaId| match id == self.me {
            true => self.disk.stores.idle() && self.log.last() == end,
            false => self.followers[id.index()].durable == end.op,
        };
        self.lacks_room() && self.replicas().all(|id| self.acked(id) >= end.op.0 && has_it(id))
    }

    fn durable_moved(&mut self, now: Now, out: &mut Out) {
        match self.lead.state {
            LeadState::Preparing => self.try_choose(now, out),
            LeadState::Leading => {
                self.advance(now, out);
                self.propose(now, out);
            }
            LeadState::Following | LeadState::Gathering => {}
        }
    }
}
