//! Connections between replicas. Each replica dials every other one and sends on that connection
//! alone; what others send arrives on the connections that they have dialed.
//!
//! What cannot be sent is dropped whole: the protocol expects loss. Nothing here blocks.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use smr::{Identity, ReplicaId, To};
use wire::{Frame, FrameReader, Header, Kind, MAX_PAYLOAD, NO_REPLICA, encode_frame};

use crate::clock;
use crate::dial::{Dialed, Dialer, notice_death};
use crate::event::Event;
use crate::face::{Counters, PeerStatus};
use crate::hello::{self, Hello};
use crate::poll::{Door, Interest, Poll, Token};
use crate::slab::Slab;

/// Frames for a peer are dropped while this many bytes wait to be sent to it.
const QUEUE_BYTES: usize = 64 << 20;
/// A queue's memory is given back above this.
const KEEP_BYTES: usize = 1 << 20;
/// Reads of one connection in one turn, 64 KiB or more each.
const READS_A_TURN: usize = 8;
/// Accepted connections that have not said who they are: at most so many, and for so long, in
/// microseconds.
const MAX_STRANGERS: usize = 16;
const STRANGER_PATIENCE: u64 = 3_000_000;
/// Pauses before a connection is dialed again: when it broke, and when the peer would not have us.
const AFTER_LOSS: Duration = Duration::from_millis(1);
const AFTER_REFUSAL: Duration = Duration::from_millis(500);

/// The way to one peer.
struct Link {
    replica: ReplicaId,
    address: String,
    /// Where the peer's clients reach it, once it has said so.
    clients: String,
    dialer: Dialer,
    stream: Option<TcpStream>,
    /// The peer's hello comes this way.
    reader: FrameReader,
    welcome: bool,
    queue: Vec<u8>,
    sent: usize,
    interest: Interest,
    /// The last refusal that was reported, so that it is reported once.
    refusal: Option<String>,
}

/// A connection that was accepted.
struct Inbound {
    stream: TcpStream,
    reader: FrameReader,
    from: Option<Identity>,
    /// When it was accepted, in [`smr::Now::micros`].
    since: u64,
}

/// All connections to and from peers.
pub(crate) struct Peers {
    hello: Hello,
    links: Vec<Option<Link>>,
    inbound: Slab<Inbound>,
    door: Door,
    dialed: Receiver<Dialed>,
    shared: Vec<u8>,
    pub events: Vec<Event>,
}

impl Peers {
    /// Starts dialing. `addresses` has a place for every replica, the own one included.
    pub fn start(
        hello: Hello,
        listener: TcpListener,
        addresses: &[String],
        poll: &Poll,
    ) -> io::Result<Peers> {
        listener.set_nonblocking(true)?;
        poll.add(&listener, Token::Peers, Interest::READ)?;
        let (sender, dialed) = channel();
        let mut links = Vec::new();
        for (index, address) in addresses.iter().enumerate() {
            let replica = ReplicaId(index as u8);
            if replica == hello.identity.replica {
                links.push(None);
                continue;
            }
            let dialer = Dialer::start(replica, address.clone(), sender.clone(), poll.waker())?;
            dialer.dial(Duration::ZERO);
            links.push(Some(Link {
                replica,
                address: address.clone(),
                clients: String::new(),
                dialer,
                stream: None,
                reader: FrameReader::new(0),
                welcome: false,
                queue: Vec::new(),
                sent: 0,
                interest: Interest::READ,
                refusal: None,
            }));
        }
        let (inbound, shared, events) = (Slab::default(), Vec::new(), Vec::new());
        let door = Door::new(listener, Token::Peers);
        Ok(Peers { hello, links, inbound, door, dialed, shared, events })
    }

    fn header(&self, kind: Kind) -> Header {
        let Identity { group, replica, incarnation } = self.hello.identity;
        Header { kind, group, from: replica, incarnation }
    }

    /// Queues a frame. Returns how many copies were dropped because a peer does not keep up.
    ///
    /// # Errors
    /// If the payload is too long for a frame.
    pub fn send(
        &mut self,
        to: To,
        kind: Kind,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64, wire::Error> {
        let header = self.header(kind);
        match to {
            To::One(replica) => {
                let Some(link) = self.links.get_mut(replica.index()).and_then(Option::as_mut)
                else {
                    return Ok(0);
                };
                if !link.takes() {
                    return Ok(u64::from(link.stream.is_some()));
                }
                encode_frame(&mut link.queue, &header, payload)?;
                Ok(0)
            }
            To::Others => {
                self.shared.clear();
                encode_frame(&mut self.shared, &header, payload)?;
                let mut dropped = 0;
                for link in self.links.iter_mut().flatten() {
                    if link.takes() {
                        link.queue.extend_from_slice(&self.shared);
                    } else {
                        dropped += u64::from(link.stream.is_some());
                    }
                }
                Ok(dropped)
            }
        }
    }

    /// Sends what is queued, and closes the connections of strangers that stay strangers.
    pub fn flush(&mut self, poll: &Poll) {
        self.door.reopen(poll);
        self.dismiss();
        for link in self.links.iter_mut().flatten() {
            if link.sent == link.queue.len() && !link.interest.write {
                continue;
            }
            if link.flush(poll).is_err() {
                link.lose(AFTER_LOSS, &mut self.events);
            }
        }
    }

    /// Connections that the dialers have made.
    pub fn adopt(&mut self, poll: &Poll) {
        while let Ok((replica, stream)) = self.dialed.try_recv() {
            let Some(link) = self.links[replica.index()].as_mut() else { continue };
            if let Err(error) = link.adopt(stream, &self.hello, poll) {
                link.refuse(error.to_string(), &mut self.events);
            }
        }
    }

    /// Peers that connect.
    pub fn accept(&mut self, poll: &Poll) {
        while let Some((stream, _)) = self.door.accept(poll) {
            if notice_death(&stream).is_err() {
                continue;
            }
            // The oldest goes: a peer greets at once, so those that stay are no peers.
            if self.strangers().count() >= MAX_STRANGERS
                && let Some((oldest, _)) = self.strangers().min_by_key(|(_, inbound)| inbound.since)
            {
                self.inbound.remove(oldest);
            }
            let place = self.inbound.insert(|_, _| Inbound {
                stream,
                reader: FrameReader::new(hello::LIMIT),
                from: None,
                since: clock::now().micros,
            });
            let added = self.inbound.get_mut(place).expect("just inserted");
            if poll.add(&added.stream, Token::Inbound(place), Interest::READ).is_err() {
                self.inbound.remove(place);
            }
        }
    }

    fn strangers(&self) -> impl Iterator<Item = (u32, &Inbound)> {
        self.inbound.iter().filter(|(_, inbound)| inbound.from.is_none())
    }

    fn dismiss(&mut self) {
        let Some((place, oldest)) = self.strangers().min_by_key(|(_, inbound)| inbound.since)
        else {
            return;
        };
        if oldest.since + STRANGER_PATIENCE <= clock::now().micros {
            self.inbound.remove(place);
        }
    }

    /// Closes the connections that the peer behind `place` had before, in this life or an earlier
    /// one: it sends on its newest alone.
    fn succeed(&mut self, place: u32, peer: Identity) {
        let earlier = |inbound: &Inbound| {
            inbound.from.is_some_and(|from| {
                from.replica == peer.replica && from.incarnation <= peer.incarnation
            })
        };
        let others = self.inbound.iter().filter(|&(other, _)| other != place);
        let earlier: Vec<u32> =
            others.filter(|(_, inbound)| earlier(inbound)).map(|(other, _)| other).collect();
        for other in earlier {
            self.inbound.remove(other);
        }
    }

    /// A dialed connection is ready: the peer's hello, its end, or room to send.
    pub fn on_outbound(&mut self, place: u32, read: bool) {
        let Some(link) = self.links.get_mut(place as usize).and_then(Option::as_mut) else {
            return;
        };
        if read && link.stream.is_some() {
            match link.listen(&self.hello) {
                Ok(true) => {}
                Ok(false) => link.lose(AFTER_LOSS, &mut self.events),
                Err(why) => link.refuse(why, &mut self.events),
            }
        }
    }

    /// An accepted connection is ready: appends what has arrived to `frames`.
    pub fn on_inbound(&mut self, place: u32, frames: &mut Vec<Frame>, counters: &mut Counters) {
        let Some(inbound) = self.inbound.get_mut(place) else { return };
        let known = inbound.from.is_some();
        match inbound.read(&self.hello, frames) {
            Ok(true) => {
                if let (false, Some(peer)) = (known, inbound.from) {
                    self.succeed(place, peer);
                }
                return;
            }
            Ok(false) => {}
            Err(why) => {
                counters.refused_peers += 1;
                self.events.push(Event::PeerRefused(why));
            }
        }
        self.inbound.remove(place);
    }

    /// What operators see.
    pub fn status(&self, into: &mut Vec<PeerStatus>) {
        into.clear();
        into.extend(self.links.iter().flatten().map(|link| PeerStatus {
            replica: link.replica,
            address: link.address.clone(),
            clients: link.clients.clone(),
            connected: link.stream.is_some() && link.welcome,
            queued: link.queue.len() - link.sent,
        }));
    }
}

impl Link {
    fn takes(&self) -> bool {
        self.stream.is_some() && self.queue.len() - self.sent < QUEUE_BYTES
    }

    fn adopt(&mut self, stream: TcpStream, hello: &Hello, poll: &Poll) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.interest = Interest::READ;
        poll.add(&stream, Token::Outbound(self.replica.0.into()), self.interest)?;
        self.stream = Some(stream);
        self.reader = FrameReader::new(hello::LIMIT);
        self.welcome = false;
        self.queue.clear();
        self.sent = 0;
        hello.encode(&mut self.queue);
        Ok(())
    }

    fn flush(&mut self, poll: &Poll) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while self.sent < self.queue.len() {
            match stream.write(&self.queue[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.sent == self.queue.len() {
            self.queue.clear();
            self.sent = 0;
            if self.queue.capacity() > KEEP_BYTES {
                self.queue = Vec::new();
            }
        } else if self.sent > self.queue.len() / 2 {
            self.queue.drain(..self.sent);
            self.sent = 0;
        }
        let wanted = Interest { read: true, write: self.sent < self.queue.len() };
        if wanted != self.interest {
            poll.change(&*stream, Token::Outbound(self.replica.0.into()), wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }

    /// Takes the peer's hello. `false` if the connection has ended.
    fn listen(&mut self, own: &Hello) -> Result<bool, String> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        match self.reader.fill(stream) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(_) => return Ok(false),
        }
        while let Some(frame) = self.reader.next_frame().map_err(|error| error.to_string())? {
            let hello = Hello::decode(&frame).ok_or("its hello makes no sense")?;
            if hello.identity.replica != self.replica {
                let found = hello.identity.replica.0;
                return Err(format!("replica {found} answers there: check --id and --peers"));
            }
            check(own, &hello)?;
            self.clients = hello.clients;
            self.welcome = true;
            self.refusal = None;
        }
        Ok(true)
    }

    fn lose(&mut self, pause: Duration, events: &mut Vec<Event>) {
        if self.welcome {
            events.push(Event::PeerLost(self.replica));
        }
        self.stream = None;
        self.welcome = false;
        self.queue.clear();
        self.sent = 0;
        self.dialer.dial(pause);
    }

    fn refuse(&mut self, why: String, events: &mut Vec<Event>) {
        let why = format!("replica {} at {}: {why}", self.replica.0, self.address);
        if self.refusal.as_ref() != Some(&why) {
            events.push(Event::PeerRefused(why.clone()));
            self.refusal = Some(why);
        }
        self.welcome = false;
        self.lose(AFTER_REFUSAL, events);
    }
}

impl Inbound {
    /// Appends the frames that have arrived. `false` if the connection has ended.
    fn read(&mut self, own: &Hello, frames: &mut Vec<Frame>) -> Result<bool, String> {
        for _ in 0..READS_A_TURN {
            let space = self.reader.space().len();
            let count = match self.reader.fill(&mut self.stream) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return Ok(false),
            };
            while let Some(frame) = self.reader.next_frame().map_err(|error| error.to_string())? {
                match self.from {
                    Some(from) if frame.header.from == from.replica => frames.push(frame),
                    Some(_) => return Err("it changes its name".to_owned()),
                    None => {
                        if !self.greet(own, &frame)? {
                            return Ok(false);
                        }
                    }
                }
            }
            if count < space {
                break;
            }
        }
        Ok(true)
    }

    /// Answers the first frame. `false` for somebody who only asks.
    fn greet(&mut self, own: &Hello, frame: &Frame) -> Result<bool, String> {
        let mut answer = Vec::new();
        own.encode(&mut answer);
        // The socket's buffer is empty: a short write means that the connection is broken.
        let sent = self.stream.write(&answer).is_ok_and(|count| count == answer.len());
        if frame.header.kind == Kind::Hello && frame.header.from == NO_REPLICA {
            return Ok(false);
        }
        let hello = Hello::decode(frame).ok_or("its hello makes no sense")?;
        check(own, &hello).map_err(|why| format!("replica {}: {why}", hello.identity.replica.0))?;
        if hello.identity.replica == own.identity.replica {
            return Err(format!("another replica says that it is {}", own.identity.replica.0));
        }
        self.from = Some(hello.identity);
        self.reader.set_limit(MAX_PAYLOAD);
        Ok(sent)
    }
}

fn check(own: &Hello, other: &Hello) -> Result<(), String> {
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
    Ok(())
}
