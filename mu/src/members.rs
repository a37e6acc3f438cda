//! Who counts: members and their majorities ([Mu] 5.4).
//!
//! A number names the members of the group under it, so every entry says who they are: those named
//! by the last decided entry. A change is a change of number: the leader stands anew with the other
//! members in its number, and its first entry ([`smr::Content::ViewStart`]) is the special entry of
//! the paper. A replica is added when it follows already (it fetched a follower's checkpoint).
//!
//! Invariant: whoever chooses or decides has a majority of the members as of the last entry known
//! to be decided, and of those that each entry above names. So no two decisions miss each other,
//! whatever became of the changes before.

use alloc::vec::Vec;

use smr::contract::Output;
use smr::{Now, OpNumber, ReplicaId, View};

use crate::attempt::LeadState;
use crate::event::{Change, ChangeError, Memory};
use crate::layout::{self, Slot};
use crate::replica::{Out, Replica};

/// A replica as a set of one.
pub(crate) fn bit(replica: ReplicaId) -> u16 {
    1 << replica.0
}

pub(crate) fn set(replicas: &[ReplicaId]) -> u16 {
    replicas.iter().fold(0, |set, &id| set | bit(id))
}

/// Whether a set has more than half of the members.
pub(crate) fn is_majority(set: u16, members: u16) -> bool {
    2 * (set & members).count_ones() > members.count_ones()
}

impl<M: Memory> Replica<M> {
    /// The members as of the last operation that this replica executed, a bit each.
    pub fn members(&self) -> u16 {
        self.named_by(self.executed.view)
    }

    pub(crate) fn named_by(&self, view: View) -> u16 {
        layout::members_of(view, self.config.members)
    }

    /// Whether a replica is a member, as far as anybody's board has told. It decides who stands and
    /// who is granted permission, not what is a majority.
    pub(crate) fn is_member(&self, replica: ReplicaId) -> bool {
        self.named_by(self.newest.max(self.executed.view)) & bit(replica) != 0
    }

    /// Whether these replicas are enough for what this one is doing.
    pub(crate) fn is_quorum(&self, set: u16) -> bool {
        match &self.lead.configs[..] {
            [] => is_majority(set, self.members()),
            configs => configs.iter().all(|&members| is_majority(set, members)),
        }
    }

    /// Whether more members may be read than these.
    pub(crate) fn some_are_unread(&self, set: u16) -> bool {
        self.lead.configs.iter().any(|members| members & !set != 0)
    }

    /// Whether the membership can be changed here and now, by [`crate::Event::Change`]. It has been
    /// changed once [`Replica::members`] says so; if the lead is lost meanwhile it may come to
    /// nothing.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn may_change(&self, change: Change) -> Result<(), ChangeError> {
        if !self.is_open() {
            return Err(ChangeError::NotLeading);
        }
        let members = self.members();
        match change {
            Change::Add(id) | Change::Remove(id) if id.0 >= self.config.replicas => {
                Err(ChangeError::Pointless)
            }
            Change::Add(id) if members & bit(id) != 0 => Err(ChangeError::Pointless),
            Change::Remove(id) if members & bit(id) == 0 || members == bit(id) => {
                Err(ChangeError::Pointless)
            }
            Change::Add(id) => {
                let head = self.peers[id.index()].head.head;
                let follows = self.followers[id.index()].is_confirmed() && head >= self.lead.start;
                if follows { Ok(()) } else { Err(ChangeError::NotCaughtUp) }
            }
            Change::Remove(_) => Ok(()),
        }
    }

    pub(crate) fn on_change(&mut self, now: Now, change: Change, out: &mut Out) {
        if self.may_change(change).is_err() {
            self.dropped += 1;
            return;
        }
        let before = self.members();
        let after = match change {
            Change::Add(id) => before | bit(id),
            Change::Remove(id) => before & !bit(id),
        };
        self.abort(now, out);
        self.lead.change = Some((before, after));
        self.begin_attempt(now, out);
    }

    /// The members that the next number names.
    pub(crate) fn next_members(&self) -> u16 {
        match (self.lead.change, self.lead.hint) {
            (Some((_, after)), _) => after,
            (None, Some(hint)) => hint,
            (None, None) => self.members(),
        }
    }

    /// Takes note of whose majorities are needed for slots that are to be proposed, of which those
    /// up to `decided` are decided. False if this attempt cannot do it.
    pub(crate) fn settle_members(&mut self, chosen: &[Slot], decided: OpNumber) -> bool {
        #[cfg(feature = "planted-bugs")]
        if self.bug(crate::Bug::MembersUnread) {
            return true; // with those that it has executed, as before
        }
        let known = chosen.iter().take_while(|slot| slot.viewstamp().op <= decided).last();
        let base = known.map_or(self.executed.view, |slot| slot.viewstamp().view);
        let open = chosen.iter().filter(|slot| slot.viewstamp().op > decided);
        let mut configs: Vec<u16> = alloc::vec![self.named_by(base)];
        for members in open.map(|slot| self.named_by(slot.viewstamp().view)) {
            if configs.last() != Some(&members) {
                configs.push(members);
            }
        }
        let last = *configs.last().expect("one at least");
        let own = self.named_by(self.lead.number);
        let expected = self.lead.change.map_or(own, |(before, _)| before);
        if last != expected {
            self.lead.hint = Some(last);
            return false;
        }
        if last != own {
            configs.push(own);
        }
        self.lead.configs = configs;
        true
    }

    /// The own first entry is decided: from here on its members count, and a leader that is none of
    /// them has done its work.
    pub(crate) fn members_settled(&mut self, now: Now, out: &mut Out) {
        let own = self.named_by(self.lead.number);
        if self.lead.state != LeadState::Leading || self.executed.op < self.lead.start {
            return;
        }
        if self.lead.configs.len() > 1 {
            self.lead.configs = alloc::vec![own];
        }
        self.lead.change = None;
        self.lead.hint = None;
        if own & bit(self.me) == 0 {
            self.abort(now, out);
        }
    }

    /// Asks followers for what they have not stored, because somebody waits for it.
    pub(crate) fn hurry(&mut self, out: &mut Out) {
        if self.is_durable() {
            out.push(Output::Flush);
            out.push(Output::Send(smr::To::Others, crate::message::Message::Flush));
        }
    }
}
