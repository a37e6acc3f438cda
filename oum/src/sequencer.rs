//! What every sequencer does ([NOPaxos] 4.2): one counter per group, and a session that only grows.

use alloc::collections::BTreeMap;

use smr::GroupId;

use crate::header::{HEADER_BYTES, Header, Session, Unreadable};

/// Why a message was not stamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no message.
    Unreadable(Unreadable),
    /// It has been stamped before: by this sequencer or another one.
    Stamped,
    /// The group has no session here.
    UnknownGroup(GroupId),
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    session: Session,
    last: u64,
}

/// The counters of one sequencer. It remembers nothing across its death: the next sequencer, this
/// one restarted included, gets a higher session ([NOPaxos] 4.3).
#[derive(Clone, Debug, Default)]
pub struct Sequencer {
    groups: BTreeMap<GroupId, Counter>,
}

impl Sequencer {
    /// Begins a session of a group; its first message gets number 1. Returns whether the session is
    /// higher than the group's present one here; otherwise nothing changes.
    pub fn begin(&mut self, group: GroupId, session: Session) -> bool {
        let present = self.groups.get(&group).map_or(Session(0), |counter| counter.session);
        let grows = session > present;
        if grows {
            self.groups.insert(group, Counter { session, last: 0 });
        }
        grows
    }

    /// A group's session and how many messages it has had.
    pub fn session(&self, group: GroupId) -> Option<(Session, u64)> {
        self.groups.get(&group).map(|counter| (counter.session, counter.last))
    }

    /// Stamps a sender's message in place. Its payload is not looked at.
    ///
    /// # Errors
    /// If it is not to be forwarded.
    pub fn stamp(&mut self, message: &mut [u8]) -> Result<Header, Refused> {
        let mut header = Header::peek(message).map_err(Refused::Unreadable)?;
        if header.session != Session(0) || header.sequence != 0 {
            return Err(Refused::Stamped);
        }
        let counter =
            self.groups.get_mut(&header.group).ok_or(Refused::UnknownGroup(header.group))?;
        counter.last += 1;
        header.session = counter.session;
        header.sequence = counter.last;
        message[..HEADER_BYTES].copy_from_slice(&header.encode());
        Ok(header)
    }
}
