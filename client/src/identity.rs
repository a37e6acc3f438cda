//! Who a client says it is. A gateway's id is drawn at random for every
//! [`Session`](crate::Session), and its life is the time of its start.
//!
//! Why that is enough: two sessions are the same client to the group only if they draw the same id
//! out of two thousand million and start in the same microsecond. If only the ids are the same, the
//! one that started later retires the other, which is told so ([`Error::Retired`]) and answers
//! nothing wrong; among the 4096 sessions that a group remembers, that is less than one chance in
//! two hundred that any two ever meet, and in half a million for a given one.
//!
//! [`Error::Retired`]: crate::Error::Retired

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use smr::ClientId;
use wire::FIRST_CLIENT;

use crate::clock;

/// Ids stay below this, so that those above can be given away otherwise.
const END: u32 = 1 << 31;

/// An id that no other client has.
pub(crate) fn fresh() -> io::Result<ClientId> {
    let mut bytes = [0; 8];
    // Eight bytes are never cut short.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    let span = u64::from(END - FIRST_CLIENT);
    let gateway = FIRST_CLIENT + (u64::from_le_bytes(bytes) % span) as u32;
    Ok(ClientId { gateway, incarnation: clock::incarnation() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_above_those_of_replicas_and_differ() {
        let ids: std::collections::BTreeSet<u32> =
            (0..1000).map(|_| fresh().expect("random bytes").gateway).collect();
        assert!(ids.len() > 995);
        assert!(ids.iter().all(|id| (FIRST_CLIENT..END).contains(id)));
    }
}
