//! Connections that others have made to this replica's port: replicas, which send on them alone,
//! native clients, and strangers until they have said who they are.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use smr::{ClientMessage, GroupId, Identity, Role};
use wire::{Frame, FrameReader, Greeting, HELLO_BYTES, Hello, MAX_PAYLOAD};

use crate::clock;
use crate::face::Face;
use crate::family::Family;
use crate::guest::Guest;
use crate::replica::Core;

/// Reads of one connection in one turn, 64 KiB or more each.
const READS_A_TURN: usize = 8;

/// Who is at the other end.
pub(crate) enum Speaker {
    Stranger,
    Replica(Identity),
    Guest(Box<Guest>),
}

/// A connection that was accepted.
pub(crate) struct Inbound {
    pub stream: TcpStream,
    reader: FrameReader,
    pub speaker: Speaker,
    /// When it was accepted, in [`smr::Now::micros`].
    pub since: u64,
}

/// What has arrived: from replicas, and from native clients.
#[derive(Default)]
pub(crate) struct Arrived {
    pub frames: Vec<Frame>,
    pub requests: Vec<ClientMessage>,
}

impl Inbound {
    pub fn new(stream: TcpStream) -> Inbound {
        Inbound {
            stream,
            reader: FrameReader::new(HELLO_BYTES),
            speaker: Speaker::Stranger,
            since: clock::now().micros,
        }
    }

    /// Appends what has arrived. `false` if the connection has ended.
    pub fn read(&mut self, own: &Hello, arrived: &mut Arrived) -> Result<bool, String> {
        for _ in 0..READS_A_TURN {
            if let Speaker::Guest(guest) = &self.speaker
                && guest.paused
            {
                return Ok(self.is_whole());
            }
            let space = self.reader.space().len();
            let count = match self.reader.fill(&mut self.stream) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Ok(false),
            };
            let stranger = matches!(self.speaker, Speaker::Stranger);
            if !self.take(own, arrived)? {
                return Ok(false);
            }
            // One that has said who it is waits until it has its place.
            if count < space || stranger {
                break;
            }
        }
        Ok(true)
    }

    /// The native client at the other end, if one is there.
    pub fn guest(&mut self) -> Option<&mut Guest> {
        match &mut self.speaker {
            Speaker::Guest(guest) => Some(guest),
            _ => None,
        }
    }

    /// Whether the connection still stands, of one that is not read from.
    fn is_whole(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(count) => count > 0,
            Err(error) => {
                matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
            }
        }
    }

    /// Takes the frames that are there, of a native client as far as it may ask. `false` if the
    /// connection is to be closed without a word.
    pub fn take(&mut self, own: &Hello, arrived: &mut Arrived) -> Result<bool, String> {
        loop {
            if let Speaker::Guest(guest) = &mut self.speaker {
                guest.paused = !guest.is_open();
                if guest.paused {
                    return Ok(true);
                }
            }
            let Some(frame) = self.reader.next_frame().map_err(|error| error.to_string())? else {
                return Ok(true);
            };
            match &mut self.speaker {
                Speaker::Replica(from) if frame.header.from == from.replica => {
                    arrived.frames.push(frame);
                }
                Speaker::Replica(_) => return Err("it changes its name".to_owned()),
                Speaker::Guest(guest) => {
                    let id = guest.client.gateway;
                    let longest = own.longest_body as usize;
                    let message = guest.take(frame, longest, clock::now().micros);
                    let message = message.map_err(|why| format!("client {id:08x}: {why}"))?;
                    arrived.requests.push(message);
                }
                Speaker::Stranger => {
                    if !self.greet(own, &frame)? {
                        return Ok(false);
                    }
                    // Nothing of a native client is taken before it has its place.
                    if matches!(self.speaker, Speaker::Guest(_)) {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Answers the first frame. `false` for somebody who only asks.
    fn greet(&mut self, own: &Hello, frame: &Frame) -> Result<bool, String> {
        let mut answer = Vec::new();
        own.encode(&mut answer);
        // The socket's buffer is empty: a short write means that the connection is broken.
        let sent = self.stream.write(&answer).is_ok_and(|count| count == answer.len());
        self.speaker = match Greeting::decode(frame).ok_or("its hello makes no sense")? {
            Greeting::Question => return Ok(false),
            Greeting::Client { group, client } => {
                if group != GroupId(0) && group != own.identity.group {
                    let (id, theirs) = (client.gateway, group.0);
                    return Err(format!("client {id:08x} wants group {theirs:016x}"));
                }
                Speaker::Guest(Box::new(Guest::new(client)))
            }
            Greeting::Replica(hello) => {
                let replica = hello.identity.replica;
                check(own, &hello).map_err(|why| format!("replica {}: {why}", replica.0))?;
                if replica == own.identity.replica {
                    return Err(format!("another replica says that it is {}", replica.0));
                }
                Speaker::Replica(hello.identity)
            }
        };
        self.reader.set_limit(MAX_PAYLOAD);
        Ok(sent)
    }
}

impl<F: Face, P: Family> Core<F, P> {
    /// Hands on what replicas and native clients have said.
    pub(crate) fn take_arrived(&mut self) {
        let mut arrived = std::mem::take(&mut self.arrived);
        for frame in arrived.frames.drain(..) {
            self.on_frame(frame);
        }
        let (full, role) = (self.status.disk_full, self.status.report.role);
        let peers = &mut self.peers;
        let taken = arrived.requests.drain(..).filter(|message| {
            let waits = must_wait(full, role, message);
            if waits {
                peers.drop_message(message);
            }
            !waits
        });
        let (family, now) = (&mut self.family, self.now);
        let taken = taken.inspect(|message| family.note_asked(message, now));
        P::ask(&mut self.host, now, taken, &mut self.effects);
        self.arrived = arrived;
    }
}

/// Whether a native client has to send this again later. What its requests do is not known here, so
/// that all of them wait while the primary's disk is nearly full, but for those that only ask for
/// durability.
fn must_wait(disk_full: bool, role: Role, message: &ClientMessage) -> bool {
    let ClientMessage::Request { request, .. } = message else { return false };
    disk_full && role == Role::Primary && !request.body.is_empty()
}

/// Whether two replicas belong together.
pub(crate) fn check(own: &Hello, other: &Hello) -> Result<(), String> {
    if other.identity.group != own.identity.group {
        let (theirs, ours) = (other.identity.group.0, own.identity.group.0);
        return Err(format!("it belongs to group {theirs:016x}, this replica to {ours:016x}"));
    }
    if other.replicas != own.replicas {
        let (theirs, ours) = (other.replicas, own.replicas);
        return Err(format!("it counts {theirs} replicas, this replica {ours}"));
    }
    if other.durability != own.durability {
        return Err("it has another durability".to_owned());
    }
    if other.order != own.order {
        let (theirs, ours) = (other.order.name(), own.order.name());
        return Err(format!("it orders by {theirs}, this replica by {ours}"));
    }
    if other.longest_body != own.longest_body {
        let (theirs, ours) = (other.longest_body, own.longest_body);
        return Err(format!("its longest request has {theirs} bytes, this replica's {ours}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use smr::{
        ClientId, Durability, Incarnation, OrderedBy, ReadRequest, ReplicaId, Request,
        RequestNumber, View,
    };
    use wire::{FIRST_CLIENT, Header, Kind, NO_REPLICA, encode_frame};

    use super::*;

    #[test]
    fn a_native_client_has_its_place_before_its_requests_are_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let mut other = TcpStream::connect(address).expect("connected");
        let mut inbound = Inbound::new(listener.accept().expect("accepted").0);
        let (group, incarnation) = (GroupId(1), Incarnation(1));
        let client = ClientId { gateway: FIRST_CLIENT, incarnation };
        let mut bytes = Vec::new();
        Greeting::Client { group, client }.encode(&mut bytes);
        let number = RequestNumber(1);
        let request = ReadRequest { client, number, body: bytes::Bytes::new() };
        let message = ClientMessage::Read { expected: View(0), request };
        let header = Header { kind: Kind::Client, group, from: NO_REPLICA, incarnation };
        encode_frame(&mut bytes, &header, |out| message.encode(out)).expect("short");
        other.write_all(&bytes).expect("sent");
        let identity = Identity { group, replica: ReplicaId(0), incarnation };
        let (durability, order) = (Durability::Lazy, OrderedBy::Vsr);
        let (longest_body, clients) = (1 << 20, String::new());
        let own = Hello { identity, replicas: 3, durability, order, longest_body, clients };
        let mut arrived = Arrived::default();
        while matches!(inbound.speaker, Speaker::Stranger) {
            assert_eq!(inbound.read(&own, &mut arrived), Ok(true));
        }
        assert_eq!(arrived.requests.len(), 0);
        assert_eq!(inbound.take(&own, &mut arrived), Ok(true));
        assert_eq!(arrived.requests.len(), 1);
    }

    #[test]
    fn while_the_disk_of_the_primary_is_full_requests_with_a_body_wait() {
        let client = ClientId { gateway: FIRST_CLIENT, incarnation: Incarnation(1) };
        let number = RequestNumber(1);
        let request = |body: &'static [u8]| {
            let (body, oldest_unanswered) = (bytes::Bytes::from_static(body), number);
            let request = Request { client, number, oldest_unanswered, body };
            ClientMessage::Request { expected: View(0), durable: true, request }
        };
        let body = bytes::Bytes::from_static(b"GET");
        let request_to_read = ReadRequest { client, number, body };
        let read = ClientMessage::Read { expected: View(0), request: request_to_read };
        assert!(must_wait(true, Role::Primary, &request(b"SET")));
        assert!(!must_wait(true, Role::Primary, &request(b"")));
        assert!(!must_wait(true, Role::Primary, &read));
        assert!(!must_wait(true, Role::Backup, &request(b"SET")), "it says who leads");
        assert!(!must_wait(false, Role::Primary, &request(b"SET")));
    }
}
