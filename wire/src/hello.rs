//! What two processes say first on a connection, so that replicas of different groups, sizes or
//! durabilities are never mixed up. All are frames of [`Kind::Hello`], with these payloads:
//!
//! - a replica's: replicas u8, durability u8 (0 memory, 1 sync, 2 lazy), order u8 (0 vsr, 1 mu,
//!   2 nopaxos), longest request u32, the address for clients;
//! - a client's, from [`NO_REPLICA`]: its gateway u32; the header has its incarnation, and the
//!   group that it wants or zero;
//! - of somebody who only asks which group this is, from [`NO_REPLICA`]: empty.
//!
//! A replica answers each with its own hello.

use smr::{ClientId, Durability, GroupId, Identity, Incarnation, OrderedBy};

use crate::frame::{Frame, Header, Kind, NO_REPLICA, encode_frame};

/// The longest hello's payload, in bytes.
pub const HELLO_BYTES: usize = 1024;
/// Gateways that are no replica's have ids from here.
pub const FIRST_CLIENT: u32 = 1 << 16;

/// The most native clients that a replica takes at a time.
pub const MAX_NATIVE_CLIENTS: usize = 256;

/// Who a replica says it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its group, its id and its life.
    pub identity: Identity,
    /// How many replicas the group has.
    pub replicas: u8,
    /// What the group's acknowledgements mean.
    pub durability: Durability,
    /// How the group orders requests.
    pub order: OrderedBy,
    /// The longest body of a request that the group takes, in bytes.
    pub longest_body: u32,
    /// Where its RESP clients reach it; at most half of [`HELLO_BYTES`] is sent.
    pub clients: String,
}

impl Hello {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Identity { group, replica, incarnation } = self.identity;
        let header = Header { kind: Kind::Hello, group, from: replica, incarnation };
        let payload = |out: &mut Vec<u8>| {
            out.push(self.replicas);
            out.push(self.durability as u8);
            out.push(self.order as u8);
            out.extend_from_slice(&self.longest_body.to_le_bytes());
            let longest = HELLO_BYTES / 2;
            out.extend_from_slice(&self.clients.as_bytes()[..self.clients.len().min(longest)]);
        };
        encode_frame(out, &header, payload).expect("a hello is short");
    }

    /// `None` for a frame that is no replica's hello.
    pub fn decode(frame: &Frame) -> Option<Hello> {
        let Header { kind, group, from, incarnation } = frame.header;
        let [replicas, durability, order, a, b, c, d, clients @ ..] = &frame.payload[..] else {
            return None;
        };
        if kind != Kind::Hello || from == NO_REPLICA {
            return None;
        }
        Some(Hello {
            identity: Identity { group, replica: from, incarnation },
            replicas: *replicas,
            durability: Durability::from_u8(*durability)?,
            order: OrderedBy::from_u8(*order)?,
            longest_body: u32::from_le_bytes([*a, *b, *c, *d]),
            clients: String::from_utf8_lossy(clients).into_owned(),
        })
    }
}

/// The first frame of somebody who connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// A replica, which will send the protocol's messages.
    Replica(Hello),
    /// A client, which will send [`Kind::Client`] and be sent [`Kind::Reply`].
    Client {
        /// The group that it wants; 0 if it takes any.
        group: GroupId,
        /// Who it is; its gateway is at least [`FIRST_CLIENT`].
        client: ClientId,
    },
    /// Somebody who only wants the answer.
    Question,
}

impl Greeting {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (group, incarnation, gateway) = match self {
            Greeting::Replica(hello) => return hello.encode(out),
            Greeting::Client { group, client } => {
                (*group, client.incarnation, &client.gateway.to_le_bytes()[..])
            }
            Greeting::Question => (GroupId(0), Incarnation(0), &[][..]),
        };
        let header = Header { kind: Kind::Hello, group, from: NO_REPLICA, incarnation };
        let payload = |out: &mut Vec<u8>| out.extend_from_slice(gateway);
        encode_frame(out, &header, payload).expect("a hello is short");
    }

    /// `None` for a frame that is no greeting.
    pub fn decode(frame: &Frame) -> Option<Greeting> {
        let Header { kind, group, from, incarnation } = frame.header;
        match &frame.payload[..] {
            _ if from != NO_REPLICA => Hello::decode(frame).map(Greeting::Replica),
            _ if kind != Kind::Hello => None,
            [] => Some(Greeting::Question),
            &[a, b, c, d] => {
                let gateway = u32::from_le_bytes([a, b, c, d]);
                let client = ClientId { gateway, incarnation };
                (gateway >= FIRST_CLIENT).then_some(Greeting::Client { group, client })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FrameReader;
    use smr::ReplicaId;

    fn read(bytes: &[u8]) -> Option<Greeting> {
        let mut reader = FrameReader::new(HELLO_BYTES);
        reader.fill(&mut &bytes[..]).expect("a read");
        Greeting::decode(&reader.next_frame().expect("sound").expect("whole"))
    }

    #[test]
    fn greetings_survive_their_bytes() {
        let identity =
            Identity { group: GroupId(7), replica: ReplicaId(2), incarnation: Incarnation(3) };
        let clients = "127.0.0.1:7402".to_owned();
        let (durability, order, longest_body) = (Durability::Sync, OrderedBy::Mu, 7 << 20);
        let hello = Hello { identity, replicas: 3, durability, order, longest_body, clients };
        let client = ClientId { gateway: FIRST_CLIENT, incarnation: Incarnation(9) };
        let client = Greeting::Client { group: GroupId(7), client };
        for greeting in [Greeting::Replica(hello), client, Greeting::Question] {
            let mut bytes = Vec::new();
            greeting.encode(&mut bytes);
            assert_eq!(read(&bytes), Some(greeting));
        }
    }

    #[test]
    fn a_client_may_not_take_a_replicas_place() {
        let client = ClientId { gateway: FIRST_CLIENT - 1, incarnation: Incarnation(9) };
        let mut bytes = Vec::new();
        Greeting::Client { group: GroupId(7), client }.encode(&mut bytes);
        assert_eq!(read(&bytes), None);
    }
}
