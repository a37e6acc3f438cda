//! What the controller, its sequencers, the members of groups and their clients say to each other
//! ([NOPaxos] 3.2, 4.3): one datagram a message.
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 1 | 0x4c, which no multicast message begins with |
//! | 1 | 1 | version, 3 |
//! | 2 | 1 | kind |
//! | 3 | .. | the kind's fields |
//! | end - 4 | 4 | CRC-32C of all before |
//!
//! Datagrams get lost: whoever wants an answer asks again. Every message may come twice or late;
//! the session says which is newer. An `Open` names the life of the sequencer that it is for: one
//! that comes late must not begin a session again that the sequencer had before it restarted.

use alloc::vec::Vec;
use bytes::Bytes;
use core::net::{IpAddr, SocketAddr, SocketAddrV4};

use smr::codec::{Malformed, Reader, Writer};
use smr::{GroupId, MAX_REPLICAS, ReplicaId};

use crate::header::{Session, Unreadable};
use crate::members::Members;

/// The first byte of every control message.
pub const CONTROL_MAGIC: u8 = 0x4c;
const VERSION: u8 = 3;
const CRC_BYTES: usize = 4;

/// A sequencer from its start to its end: a random number that it chooses when it starts. Its
/// sessions belong to this life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life(pub u64);

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Controller to sequencer: begin this session, and send what is stamped in it to these.
    Open {
        /// The group.
        group: GroupId,
        /// A session that no sequencer has had for this group.
        session: Session,
        /// Which life of the sequencer is meant; another one does nothing.
        life: Life,
        /// The members' sockets for multicast messages, at most [`MAX_REPLICAS`].
        members: Vec<SocketAddr>,
        /// The multicast address that they hear, too, if they do: one copy is enough there.
        multicast: Option<SocketAddrV4>,
    },
    /// Controller to sequencer: are you there, and what is the group's session with you?
    Probe {
        /// The group.
        group: GroupId,
    },
    /// Sequencer to controller: the answer to both.
    Opened {
        /// The group.
        group: GroupId,
        /// Its session here; 0 if it has none.
        session: Session,
        /// The sequencer's life.
        life: Life,
        /// How many messages it has stamped in it.
        stamped: u64,
    },
    /// Controller to members, and to who asks: the group's session is this one.
    Listen {
        /// The group.
        group: GroupId,
        /// Its session.
        session: Session,
        /// Who counts in it.
        members: Members,
        /// Where senders send to.
        sequencer: SocketAddr,
        /// Where members are to hear it beside their own sockets.
        multicast: Option<SocketAddrV4>,
    },
    /// Member to controller: it has learned of this session.
    Listening {
        /// The group.
        group: GroupId,
        /// The highest session that it knows.
        session: Session,
        /// Which member.
        from: ReplicaId,
        /// Whether a quorum has a view of this session, for good: with it a change of members is
        /// done.
        settled: bool,
    },
    /// Anybody to controller: which session has this group? Answered by `Listen` or `Elsewhere`.
    Ask {
        /// The group.
        group: GroupId,
    },
    /// Member to controller: the sequencer of this session cannot be heard.
    Unheard {
        /// The group.
        group: GroupId,
        /// The session.
        session: Session,
        /// Which member.
        from: ReplicaId,
    },
    /// Member to controller: this session has had so many leaders that another one should begin.
    Worn {
        /// The group.
        group: GroupId,
        /// The session.
        session: Session,
    },
    /// Controller to who asks: this one does not lead; ask there.
    Elsewhere {
        /// The group.
        group: GroupId,
        /// The controller that led when last heard of.
        controller: SocketAddr,
    },
}

fn put_address(to: SocketAddr, out: &mut Writer<'_>) {
    match to.ip() {
        IpAddr::V4(ip) => {
            out.u8(4);
            out.bytes(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.u8(6);
            out.bytes(&ip.octets());
        }
    }
    out.u32(u32::from(to.port()));
}

fn take_address(from: &mut Reader) -> Result<SocketAddr, Malformed> {
    let version = from.u8()?;
    let octets = from.bytes()?;
    let ip = match version {
        4 => IpAddr::from(<[u8; 4]>::try_from(&octets[..]).map_err(|_| Malformed)?),
        6 => IpAddr::from(<[u8; 16]>::try_from(&octets[..]).map_err(|_| Malformed)?),
        _ => return Err(Malformed),
    };
    Ok(SocketAddr::new(ip, u16::try_from(from.u32()?).map_err(|_| Malformed)?))
}

fn put_multicast(to: Option<SocketAddrV4>, out: &mut Writer<'_>) {
    out.u8(u8::from(to.is_some()));
    if let Some(to) = to {
        put_address(to.into(), out);
    }
}

fn take_multicast(from: &mut Reader) -> Result<Option<SocketAddrV4>, Malformed> {
    match from.u8()? {
        0 => Ok(None),
        1 => match take_address(from)? {
            SocketAddr::V4(at) if at.ip().is_multicast() => Ok(Some(at)),
            _ => Err(Malformed),
        },
        _ => Err(Malformed),
    }
}

impl Control {
    /// The group that it is about.
    pub fn group(&self) -> GroupId {
        match *self {
            Control::Open { group, .. }
            | Control::Probe { group }
            | Control::Opened { group, .. }
            | Control::Listen { group, .. }
            | Control::Listening { group, .. }
            | Control::Ask { group }
            | Control::Unheard { group, .. }
            | Control::Worn { group, .. }
            | Control::Elsewhere { group, .. } => group,
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Control::Open { .. } => 0,
            Control::Probe { .. } => 1,
            Control::Opened { .. } => 2,
            Control::Listen { .. } => 3,
            Control::Listening { .. } => 4,
            Control::Ask { .. } => 5,
            Control::Unheard { .. } => 6,
            Control::Elsewhere { .. } => 7,
            Control::Worn { .. } => 8,
        }
    }

    /// Appends the datagram's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut writer = Writer::new(out);
        for byte in [CONTROL_MAGIC, VERSION, self.kind()] {
            writer.u8(byte);
        }
        writer.u64(self.group().0);
        match self {
            Control::Open { session, life, members, multicast, .. } => {
                writer.u32(session.0);
                writer.u64(life.0);
                writer.u32(members.len() as u32);
                for &member in members {
                    put_address(member, &mut writer);
                }
                put_multicast(*multicast, &mut writer);
            }
            Control::Probe { .. } | Control::Ask { .. } => {}
            Control::Opened { session, life, stamped, .. } => {
                writer.u32(session.0);
                writer.u64(life.0);
                writer.u64(*stamped);
            }
            Control::Listen { session, members, sequencer, multicast, .. } => {
                writer.u32(session.0);
                members.encode(&mut writer);
                put_address(*sequencer, &mut writer);
                put_multicast(*multicast, &mut writer);
            }
            Control::Listening { session, from, settled, .. } => {
                writer.u32(session.0);
                writer.u8(from.0);
                writer.u8(u8::from(*settled));
            }
            Control::Unheard { session, from, .. } => {
                writer.u32(session.0);
                writer.u8(from.0);
            }
            Control::Worn { session, .. } => writer.u32(session.0),
            Control::Elsewhere { controller, .. } => put_address(*controller, &mut writer),
        }
        let crc = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_be_bytes());
    }

    /// Reads a whole datagram.
    ///
    /// # Errors
    /// If it is no control message, of another version, or damaged.
    pub fn decode(datagram: &Bytes) -> Result<Control, Unreadable> {
        let end = datagram.len().checked_sub(CRC_BYTES).ok_or(Unreadable::Malformed)?;
        if end < 3 || datagram[0] != CONTROL_MAGIC {
            return Err(Unreadable::Malformed);
        }
        if datagram[1] != VERSION {
            return Err(Unreadable::Version(datagram[1]));
        }
        if crc32c::crc32c(&datagram[..end]).to_be_bytes() != datagram[end..] {
            return Err(Unreadable::Damaged);
        }
        Control::fields(datagram[2], datagram.slice(3..end)).map_err(|_| Unreadable::Malformed)
    }

    fn fields(kind: u8, bytes: Bytes) -> Result<Control, Malformed> {
        let mut from = Reader::new(bytes);
        let group = GroupId(from.u64()?);
        let control = match kind {
            0 => {
                let (session, life) = (Session(from.u32()?), Life(from.u64()?));
                let count = from.u32()?;
                if count > u32::from(MAX_REPLICAS) {
                    return Err(Malformed);
                }
                let members = (0..count).map(|_| take_address(&mut from));
                let members = members.collect::<Result<_, _>>()?;
                let multicast = take_multicast(&mut from)?;
                Control::Open { group, session, life, members, multicast }
            }
            1 => Control::Probe { group },
            2 => {
                let (session, life) = (Session(from.u32()?), Life(from.u64()?));
                Control::Opened { group, session, life, stamped: from.u64()? }
            }
            3 => {
                let (session, members) = (Session(from.u32()?), Members::decode(&mut from)?);
                let sequencer = take_address(&mut from)?;
                let multicast = take_multicast(&mut from)?;
                Control::Listen { group, session, members, sequencer, multicast }
            }
            4 => {
                let (session, member) = (Session(from.u32()?), ReplicaId(from.u8()?));
                let settled = from.u8()? == 1;
                Control::Listening { group, session, from: member, settled }
            }
            6 => {
                let (session, from) = (Session(from.u32()?), ReplicaId(from.u8()?));
                Control::Unheard { group, session, from }
            }
            5 => Control::Ask { group },
            7 => Control::Elsewhere { group, controller: take_address(&mut from)? },
            8 => Control::Worn { group, session: Session(from.u32()?) },
            _ => return Err(Malformed),
        };
        from.finish()?;
        Ok(control)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn all() -> Vec<Control> {
        let group = GroupId(u64::MAX - 3);
        let (session, life, from) = (Session(9), Life(1 << 40), ReplicaId(2));
        let four: SocketAddr = "10.0.0.1:65535".parse().unwrap();
        let six: SocketAddr = "[fe80::1]:1".parse().unwrap();
        let multicast = Some("239.255.0.1:65535".parse().unwrap());
        let (members, sequencer) = (Members::all(9), six);
        vec![
            Control::Open { group, session, life, members: vec![four, six], multicast },
            Control::Open { group, session, life, members: vec![], multicast: None },
            Control::Probe { group },
            Control::Opened { group, session, life, stamped: u64::MAX },
            Control::Listen { group, session, members, sequencer, multicast },
            Control::Listen { group, session, members, sequencer, multicast: None },
            Control::Listening { group, session, from, settled: true },
            Control::Ask { group },
            Control::Unheard { group, session, from },
            Control::Worn { group, session },
            Control::Elsewhere { group, controller: four },
        ]
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        for control in all() {
            let mut bytes = Vec::new();
            control.encode(&mut bytes);
            assert_eq!(Control::decode(&bytes.into()), Ok(control));
        }
    }

    #[test]
    fn cut_damaged_or_longer_datagrams_are_refused() {
        for control in all() {
            let mut whole = Vec::new();
            control.encode(&mut whole);
            for end in 0..whole.len() {
                assert!(Control::decode(&whole[..end].to_vec().into()).is_err());
                let mut damaged = whole.clone();
                damaged[end] ^= 0x10;
                assert!(Control::decode(&damaged.into()).is_err());
            }
            whole.push(0);
            assert!(Control::decode(&whole.into()).is_err());
        }
    }
    #[test]
    fn a_multicast_address_is_one() {
        let (group, session) = (GroupId(1), Session(2));
        let (members, sequencer) = (Members::all(3), "10.0.0.1:1".parse().unwrap());
        let multicast = Some("10.0.0.2:7600".parse().unwrap());
        let mut bytes = Vec::new();
        Control::Listen { group, session, members, sequencer, multicast }.encode(&mut bytes);
        assert_eq!(Control::decode(&bytes.into()), Err(Unreadable::Malformed));
    }
}
