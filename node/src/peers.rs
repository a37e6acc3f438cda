//! Connections between replicas. Each replica dials every other one and sends on that connection
//! alone; what others send arrives on the connections that they have dialed. Native clients dial,
//! too, and get their replies on the connection that they ask on.
//!
//! What cannot be sent is dropped whole: protocol and clients expect loss. Nothing here blocks.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use smr::{ClientId, ClientMessage, Identity, ReplicaId, To};
use wire::{
    Condition, FrameReader, HELLO_BYTES, Header, Hello, Kind, MAX_NATIVE_CLIENTS, Outbox,
    encode_frame, put_sequencer,
};

use crate::clock;
use crate::counted::Counters;
use crate::dial::{Dialer, connect, notice_death};
use crate::event::Event;
use crate::face::PeerStatus;
use crate::family::Told;
use crate::inbound::{Arrived, Inbound, Speaker, check};
use crate::poll::{Door, Interest, Poll, Token, Waker};
use crate::slab::Slab;

/// Frames for a peer are dropped while this many bytes wait to be sent to it.
const QUEUE_BYTES: usize = 64 << 20;
/// Accepted connections that have not said who they are: at most so many, and for so long, in
/// microseconds.
const MAX_STRANGERS: usize = 64;
const STRANGER_PATIENCE: u64 = 3_000_000;
/// Pauses before a connection is dialed again: when it broke, and when the peer would not have us.
const AFTER_LOSS: Duration = Duration::from_millis(1);
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// What native clients have under way is looked through once in this many microseconds.
const FORGET_PAUSE: u64 = 1_000_000;
/// Refusals of connections that others have made are reported once in this many microseconds.
const REPORT_PAUSE: u64 = 1_000_000;

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
    queue: Outbox,
    interest: Interest,
    /// The last refusal that was reported, so that it is reported once.
    refusal: Option<String>,
}

/// All connections to and from peers.
pub(crate) struct Peers {
    hello: Hello,
    links: Vec<Option<Link>>,
    inbound: Slab<Inbound>,
    /// Where each native client's newest connection is.
    guests: HashMap<ClientId, u32>,
    /// Who numbers requests, which native clients are told.
    sequencer: Option<(u32, SocketAddr)>,
    /// How this replica fares, where native clients are told.
    condition: Option<Condition>,
    /// Native clients that have something to be sent, or are to be read from again.
    dirty: Vec<u32>,
    resumable: Vec<u32>,
    waker: Waker,
    /// When a refusal may be reported again, in [`smr::Now::micros`].
    report_at: u64,
    /// When native clients' requests are looked through again, in [`smr::Now::micros`].
    forget_at: u64,
    door: Door,
    dialed: Receiver<(ReplicaId, TcpStream)>,
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
            let to = address.clone();
            let dialer =
                Dialer::start(replica, move || connect(&to), sender.clone(), poll.waker())?;
            dialer.dial(Duration::ZERO);
            links.push(Some(Link {
                replica,
                address: address.clone(),
                clients: String::new(),
                dialer,
                stream: None,
                reader: FrameReader::new(0),
                welcome: false,
                queue: Outbox::default(),
                interest: Interest::READ,
                refusal: None,
            }));
        }
        Ok(Peers {
            hello,
            links,
            inbound: Slab::default(),
            guests: HashMap::new(),
            sequencer: None,
            condition: None,
            dirty: Vec::new(),
            resumable: Vec::new(),
            waker: poll.waker(),
            report_at: 0,
            forget_at: 0,
            door: Door::new(listener, Token::Peers),
            dialed,
            shared: Vec::new(),
            events: Vec::new(),
        })
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
                encode_frame(link.queue.buffer(), &header, payload)?;
                Ok(0)
            }
            To::Others => {
                self.shared.clear();
                encode_frame(&mut self.shared, &header, payload)?;
                let mut dropped = 0;
                for link in self.links.iter_mut().flatten() {
                    if link.takes() {
                        link.queue.buffer().extend_from_slice(&self.shared);
                    } else {
                        dropped += u64::from(link.stream.is_some());
                    }
                }
                Ok(dropped)
            }
        }
    }

    /// Sends what is queued, and closes the connections of strangers that stay strangers.
    pub fn flush(&mut self, poll: &Poll, now: u64) {
        self.door.reopen(poll);
        self.dismiss();
        for link in self.links.iter_mut().flatten() {
            if link.queue.pending() == 0 && !link.interest.write {
                continue;
            }
            if link.flush(poll).is_err() {
                link.lose(AFTER_LOSS, &mut self.events);
            }
        }
        self.forget(now);
        self.flush_guests(poll);
    }

    /// Requests that are never answered do not stop their clients for ever.
    fn forget(&mut self, now: u64) {
        if now < self.forget_at {
            return;
        }
        self.forget_at = now + FORGET_PAUSE;
        let places: Vec<u32> = self.guests.values().copied().collect();
        for place in places {
            if let Some(guest) = self.inbound.get_mut(place).and_then(Inbound::guest) {
                guest.forget(now);
            }
            self.mark(place);
        }
    }

    /// A native client's message that was taken goes no further.
    pub fn drop_message(&mut self, message: &ClientMessage) {
        let Some(&place) = self.guests.get(&message.client()) else { return };
        if let Some(guest) = self.inbound.get_mut(place).and_then(Inbound::guest) {
            guest.drop_message(message);
        }
        self.mark(place);
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
            let place = self.inbound.insert(|_, _| Inbound::new(stream));
            let added = self.inbound.get_mut(place).expect("just inserted");
            if poll.add(&added.stream, Token::Inbound(place), Interest::READ).is_err() {
                self.inbound.remove(place);
            }
        }
    }

    fn strangers(&self) -> impl Iterator<Item = (u32, &Inbound)> {
        self.inbound.iter().filter(|(_, inbound)| matches!(inbound.speaker, Speaker::Stranger))
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
            matches!(inbound.speaker, Speaker::Replica(from)
                if from.replica == peer.replica && from.incarnation <= peer.incarnation)
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

    /// An accepted connection is ready: appends what has arrived.
    pub fn on_inbound(&mut self, place: u32, arrived: &mut Arrived, counters: &mut Counters) {
        let Some(inbound) = self.inbound.get_mut(place) else { return };
        let stranger = matches!(inbound.speaker, Speaker::Stranger);
        let mut outcome = inbound.read(&self.hello, arrived);
        if stranger && outcome == Ok(true) {
            outcome = self.introduce(place, arrived);
        }
        match outcome {
            Ok(true) => self.mark(place),
            Ok(false) => self.hang_up(place),
            Err(why) => self.refuse(place, why, counters),
        }
    }

    /// A stranger may have said who it is.
    fn introduce(&mut self, place: u32, arrived: &mut Arrived) -> Result<bool, String> {
        let Some(inbound) = self.inbound.get(place) else { return Ok(true) };
        match inbound.speaker {
            Speaker::Stranger => Ok(true),
            Speaker::Replica(peer) => {
                self.succeed(place, peer);
                Ok(true)
            }
            Speaker::Guest(ref guest) => {
                let client = guest.client;
                self.seat(place, client)?;
                let seated = self.inbound.get_mut(place).expect("just seated");
                seated.take(&self.hello, arrived)
            }
        }
    }

    /// Takes what native clients sent before they were paused, of those that may go on.
    pub fn resume(&mut self, arrived: &mut Arrived, counters: &mut Counters) {
        for place in std::mem::take(&mut self.resumable) {
            let Some(inbound) = self.inbound.get_mut(place) else { continue };
            match inbound.take(&self.hello, arrived) {
                Ok(true) => self.mark(place),
                Ok(false) => self.hang_up(place),
                Err(why) => self.refuse(place, why, counters),
            }
        }
    }

    /// Makes `place` the connection of a native client, in the place of an earlier one.
    fn seat(&mut self, place: u32, client: ClientId) -> Result<(), String> {
        if let Some(&before) = self.guests.get(&client) {
            self.hang_up(before);
        }
        if self.guests.len() >= MAX_NATIVE_CLIENTS {
            return Err(format!("there are {MAX_NATIVE_CLIENTS} native clients already"));
        }
        self.guests.insert(client, place);
        self.tell_sequencer(place);
        self.tell_condition(place);
        Ok(())
    }

    fn guest(&self, place: u32) -> Option<ClientId> {
        match &self.inbound.get(place)?.speaker {
            Speaker::Guest(guest) => Some(guest.client),
            _ => None,
        }
    }

    fn hang_up(&mut self, place: u32) {
        if let Some(client) = self.guest(place)
            && self.guests.get(&client) == Some(&place)
        {
            self.guests.remove(&client);
        }
        self.inbound.remove(place);
    }

    fn refuse(&mut self, place: u32, why: String, counters: &mut Counters) {
        counters.refused_peers += 1;
        let now = clock::now().micros;
        if self.report_at <= now {
            self.report_at = now + REPORT_PAUSE;
            self.events.push(Event::PeerRefused(why));
        }
        self.hang_up(place);
    }

    /// Sees to a native client at the end of the turn, if one is there.
    fn mark(&mut self, place: u32) {
        if let Some(Inbound { speaker: Speaker::Guest(guest), .. }) = self.inbound.get_mut(place)
            && !guest.listed
            && (guest.paused || guest.pending() > 0)
        {
            guest.listed = true;
            self.dirty.push(place);
        }
    }

    /// Queues a reply to a native client. `false` if it is not connected, or is given up because it
    /// does not fetch its answers.
    pub fn reply(&mut self, reply: &impl Told) -> bool {
        let Some(&place) = self.guests.get(&reply.reply().client) else { return false };
        let header = self.header(Kind::Reply);
        let answered = match self.inbound.get_mut(place).map(|inbound| &mut inbound.speaker) {
            Some(Speaker::Guest(guest)) => guest.answer(&header, reply),
            _ => return false,
        };
        if answered {
            self.mark(place);
        } else {
            self.hang_up(place);
        }
        answered
    }

    /// Tells all native clients, and those to come, who numbers requests.
    pub fn announce(&mut self, session: u32, sequencer: SocketAddr) {
        self.sequencer = Some((session, sequencer));
        let places: Vec<u32> = self.guests.values().copied().collect();
        places.into_iter().for_each(|place| self.tell_sequencer(place));
    }

    fn tell_sequencer(&mut self, place: u32) {
        let Some((session, at)) = self.sequencer else { return };
        let header = self.header(Kind::Sequencer);
        if let Some(guest) = self.inbound.get_mut(place).and_then(Inbound::guest) {
            guest.tell(&header, |out| put_sequencer(session, at, out));
            self.mark(place);
        }
    }

    /// Tells all native clients, and those to come, how this replica fares, if that is news.
    pub fn fare(&mut self, condition: Condition) {
        if self.condition.replace(condition) != Some(condition) {
            let places: Vec<u32> = self.guests.values().copied().collect();
            places.into_iter().for_each(|place| self.tell_condition(place));
        }
    }

    fn tell_condition(&mut self, place: u32) {
        let Some(condition) = self.condition else { return };
        let header = self.header(Kind::Condition);
        if let Some(guest) = self.inbound.get_mut(place).and_then(Inbound::guest) {
            guest.tell(&header, |out| condition.encode(out));
            self.mark(place);
        }
    }

    fn flush_guests(&mut self, poll: &Poll) {
        for place in std::mem::take(&mut self.dirty) {
            let Some(inbound) = self.inbound.get_mut(place) else { continue };
            let Speaker::Guest(guest) = &mut inbound.speaker else { continue };
            guest.listed = false;
            if guest.flush(&mut inbound.stream, place, poll).is_err() {
                self.hang_up(place);
            } else if guest.paused && guest.is_open() {
                // What it has sent may be here already, where no socket tells of it.
                self.resumable.push(place);
                self.waker.wake();
            }
        }
    }

    /// What operators see.
    pub fn status(&self, into: &mut Vec<PeerStatus>) {
        into.clear();
        into.extend(self.links.iter().flatten().map(|link| PeerStatus {
            replica: link.replica,
            address: link.address.clone(),
            clients: link.clients.clone(),
            connected: link.stream.is_some() && link.welcome,
            queued: link.queue.pending(),
        }));
    }
}

impl Link {
    fn takes(&self) -> bool {
        self.stream.is_some() && self.queue.pending() < QUEUE_BYTES
    }

    fn adopt(&mut self, stream: TcpStream, hello: &Hello, poll: &Poll) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.interest = Interest::READ;
        poll.add(&stream, Token::Outbound(self.replica.0.into()), self.interest)?;
        self.stream = Some(stream);
        self.reader = FrameReader::new(HELLO_BYTES);
        self.welcome = false;
        self.queue.clear();
        hello.encode(self.queue.buffer());
        Ok(())
    }

    fn flush(&mut self, poll: &Poll) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        self.queue.flush(stream)?;
        let wanted = Interest { read: true, write: self.queue.pending() > 0 };
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
