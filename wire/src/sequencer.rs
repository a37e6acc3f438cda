//! Who numbers a group's requests, as replicas tell their native clients: the session u32, and the
//! address as text.

use std::net::SocketAddr;

/// Appends the payload of [`Kind::Sequencer`](crate::Kind::Sequencer).
pub fn put_sequencer(session: u32, at: SocketAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&session.to_le_bytes());
    out.extend_from_slice(at.to_string().as_bytes());
}

/// The session and the sequencer's address; `None` if the payload makes no sense.
pub fn sequencer(payload: &[u8]) -> Option<(u32, SocketAddr)> {
    let (session, at) = payload.split_first_chunk()?;
    Some((u32::from_le_bytes(*session), str::from_utf8(at).ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_understood_and_nonsense_is_not() {
        for at in ["10.0.0.1:7700", "[fe80::1]:1"] {
            let at = at.parse().unwrap();
            let mut payload = Vec::new();
            put_sequencer(7, at, &mut payload);
            assert_eq!(sequencer(&payload), Some((7, at)));
        }
        for nonsense in [&b""[..], b"abc", b"abcd", b"abcdlocalhost:1", b"abcd\xff"] {
            assert_eq!(sequencer(nonsense), None);
        }
    }
}
