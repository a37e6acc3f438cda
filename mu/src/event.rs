//! What is of this family alone: verbs to post, and what becomes of them.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use fabric::{Completion, Fabric, GrantNumber, Place, RegionId, Verb, VerbId};
use smr::ReplicaId;

/// A replica's own regions, to read. The log is in them: nothing else carries it.
pub trait Memory {
    /// Reads words of an own region, each at its own moment.
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]);
}

/// What happens to a replica beside the common inputs.
#[derive(Clone, Debug)]
pub enum Event {
    /// Look at your memory: others may have changed it. The environment spins with this, or sends
    /// it when it knows of a change.
    Look,
    /// A verb has ended. Completions come in the order in which the fabric gives them.
    Completed {
        /// How.
        completion: Completion,
        /// What a read has read.
        words: Vec<u64>,
    },
    /// The environment knows that this replica's process has ended or stands still: an answer to
    /// [`crate::Replica::doubted`]. It may be wrong.
    Halted(ReplicaId),
    /// An operator wants a replica to be added or removed; dropped and counted unless
    /// [`crate::Replica::may_change`].
    Change(Change),
}

/// A change of membership, one replica at a time ([Mu] 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// This replica becomes a member.
    Add(ReplicaId),
    /// This replica is a member no more.
    Remove(ReplicaId),
}

/// Why the membership cannot be changed here and now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// Another replica leads, or this one has just begun to: ask the leader.
    NotLeading,
    /// The members are so already, or nobody would be left, or there is no such replica.
    Pointless,
    /// The replica that is to be added does not hold what the group has decided yet: start it and
    /// wait until it follows.
    NotCaughtUp,
}

/// What a verb does; [`Verb`] with words of its own.
#[derive(Clone, Debug)]
pub enum Operation {
    /// [`Verb::Write`] of a slot or a part of one, shared between the followers.
    WriteSlot {
        /// Where the first word goes.
        to: Place,
        /// The grant.
        under: GrantNumber,
        /// The words.
        words: Arc<[u64]>,
        /// Where the next slot begins, which will be about as long.
        next: u32,
    },
    /// [`Verb::Write`] of up to two words.
    Write {
        /// Where the first word goes.
        to: Place,
        /// The grant, in exclusive regions.
        under: GrantNumber,
        /// The words.
        words: [u64; 2],
        /// How many of them, 1 or 2.
        count: u8,
    },
    /// [`Verb::Read`].
    Read {
        /// The first word.
        from: Place,
        /// How many.
        words: u32,
    },
    /// [`Verb::Revoke`] of the own log.
    Revoke,
    /// [`Verb::Grant`] of the own log to a replica.
    Grant {
        /// To whom.
        to: ReplicaId,
        /// The words that must stay.
        keep: Vec<Range<u32>>,
    },
    /// [`Verb::Renounce`] the log of a replica.
    Renounce {
        /// Whose.
        owner: ReplicaId,
    },
}

/// What a replica wants done beside the common outputs.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Post a verb; its completion comes back as [`Event::Completed`].
    Post(VerbId, Operation),
    /// Store a word of the own open region, at once.
    Store {
        /// Which word.
        offset: u32,
        /// Its value.
        value: u64,
    },
    /// Store words of the own log, before anybody was granted it: what the disk held.
    Restore {
        /// The first word.
        offset: u32,
        /// The words.
        words: Vec<u64>,
    },
}

impl Effect {
    /// Does it on a fabric.
    pub fn perform(&self, fabric: &mut impl Fabric) {
        match self {
            Effect::Store { offset, value } => {
                let status = fabric.store(crate::layout::BOARD, *offset, &[*value]);
                assert_eq!(status, fabric::Status::Ok, "an open region can be stored to");
            }
            Effect::Restore { offset, words } => {
                let status = fabric.store(crate::layout::LOG, *offset, words);
                assert_eq!(status, fabric::Status::Ok, "nobody else was granted the log yet");
            }
            Effect::Post(id, operation) => operation.post(*id, fabric),
        }
    }
}

impl Operation {
    fn post(&self, id: VerbId, fabric: &mut impl Fabric) {
        let region = crate::layout::LOG;
        match self {
            Operation::WriteSlot { to, under, words, next } => {
                fabric.post(id, Verb::Write { to: *to, under: *under, words });
                fabric.expect(Place { offset: *next, ..*to }, words.len() as u32);
            }
            Operation::Write { to, under, words, count } => {
                let words = &words[..usize::from(*count)];
                fabric.post(id, Verb::Write { to: *to, under: *under, words });
            }
            Operation::Read { from, words } => {
                fabric.post(id, Verb::Read { from: *from, words: *words });
            }
            Operation::Revoke => fabric.post(id, Verb::Revoke { region }),
            Operation::Grant { to, keep } => {
                fabric.post(id, Verb::Grant { region, to: *to, keep });
            }
            Operation::Renounce { owner } => {
                fabric.post(id, Verb::Renounce { owner: *owner, region });
            }
        }
    }
}

/// What a verb was for, packed into its id: kind, replica, lease, argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A read of a board's first words, for the detector.
    Pulse,
    /// The own grant to a replica.
    Grant,
    /// An acknowledgement of a grant.
    Ack,
    /// Steps of an attempt, in order.
    Renounce,
    Request,
    LogHead,
    BoardHead,
    Promise,
    /// A read of slots, from this one.
    Slots,
    /// Slots up to this one are written, or their numbers are.
    Accept,
    /// FUO.
    Inform,
    /// A round's confirmation.
    Confirm,
    /// A read of a log head that is in the way.
    Head,
    /// The own log's last holder loses it, for this requester.
    Revoke,
    /// What is durable here, told to a leader.
    Durable,
}

const PURPOSES: [Purpose; 15] = [
    Purpose::Pulse,
    Purpose::Grant,
    Purpose::Ack,
    Purpose::Renounce,
    Purpose::Request,
    Purpose::LogHead,
    Purpose::BoardHead,
    Purpose::Promise,
    Purpose::Slots,
    Purpose::Accept,
    Purpose::Inform,
    Purpose::Confirm,
    Purpose::Head,
    Purpose::Revoke,
    Purpose::Durable,
];

/// A verb's id, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) purpose: Purpose,
    pub(crate) peer: ReplicaId,
    /// Which of the times that this replica asked the peer for permission.
    pub(crate) lease: u16,
    /// Below 2^40: an operation or a round.
    pub(crate) argument: u64,
}

impl Ticket {
    pub(crate) fn pack(self) -> VerbId {
        assert!(self.argument < 1 << 40, "numbers stay below 2^40");
        let kind = (self.purpose as u64) << 60;
        let lease = u64::from(self.lease) << 40;
        VerbId(kind | u64::from(self.peer.0) << 56 | lease | self.argument)
    }

    pub(crate) fn unpack(id: VerbId) -> Ticket {
        Ticket {
            purpose: PURPOSES[(id.0 >> 60) as usize],
            peer: ReplicaId((id.0 >> 56) as u8 & 15),
            lease: (id.0 >> 40) as u16,
            argument: id.0 & ((1 << 40) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_survive_their_ids() {
        for (index, purpose) in PURPOSES.into_iter().enumerate() {
            assert_eq!(purpose as usize, index);
            let ticket = Ticket { purpose, peer: ReplicaId(8), lease: 65_535, argument: 77 };
            assert_eq!(Ticket::unpack(ticket.pack()), ticket);
        }
    }
}
