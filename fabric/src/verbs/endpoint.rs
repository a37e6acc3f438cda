//! One process's face: its card, its own memory, its peers. Everything happens within its calls;
//! there is no thread.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use smr::ReplicaId;

use super::abi::Wc;
use super::block::Pool;
use super::card::{Card, Completions, Domain};
use super::channel::{Action, Around, Channel, Done, Item, Kit};
use super::error::Error;
use super::frame::{Hello, Message};
use super::link::Link;
use super::memory::Own;
use super::options::Options;
use super::owner::{Book, Target};
use super::peer::Peer;
use super::queue::Allowed;
use crate::contract::{
    Access, Completion, Fabric, Geometry, GrantNumber, Place, RegionId, Status, Verb, VerbId,
};

/// How many requests a queue pair has under way at most.
const DEPTH: u32 = 64;
/// The links are looked at every so many turns, unless an answer is awaited.
const LINK_EVERY: u32 = 16;
/// The longest read or write, in words: cards take messages of up to 8 MiB (rxe) or more.
const LONGEST: usize = 1 << 20;

/// One process of the fabric, on one card. Verbs have up to 2^20 words; more is a panic.
pub struct Endpoint {
    geometry: Arc<Geometry>,
    // The peers' queue pairs go before the memory that they use.
    peers: Vec<Option<Peer>>,
    pool: Pool,
    kit: Kit,
    card: Arc<Card>,
    own: Own,
    /// By channel: of the regions that it leads to.
    domains: Vec<Arc<Domain>>,
    /// By region; none of open ones.
    books: Vec<Option<Book>>,
    done: VecDeque<Done>,
    turns: u32,
}

impl Endpoint {
    /// Opens the card and makes the memory of process `me`, all zero. The owner holds its exclusive
    /// regions.
    ///
    /// # Errors
    /// [`Error`], which says what is missing.
    ///
    /// # Panics
    /// If the geometry has a number out of range, more than 254 exclusive regions, or no process
    /// `me`.
    pub fn new(geometry: Geometry, me: ReplicaId, options: Options) -> Result<Endpoint, Error> {
        geometry.check();
        assert!(me.0 < geometry.processes, "no such process");
        let card = Card::open(&options)?;
        let geometry = Arc::new(geometry);
        let (own, domains) = Own::new(&card, geometry.clone())?;
        let book = |index: usize| {
            let region = RegionId(index as u8);
            let is_exclusive = geometry.regions[index].access == Access::Exclusive;
            is_exclusive.then(|| Book::new(&own, region, me))
        };
        let books = (0..geometry.regions.len()).map(book).collect();
        let peers = u32::from(geometry.processes - 1) * u32::from(geometry.channels());
        let queues = peers.max(1);
        let depth = (card.most_completions / queues).min(card.most_requests).clamp(1, DEPTH);
        let completions = Completions::new(&card, queues * depth)?;
        let domain = Domain::new(&card)?;
        let pool = Pool::new(domain.clone());
        let kit = Kit { me, options, domain, completions, depth: depth as usize };
        let peers = (0..geometry.processes).map(|_| None).collect();
        let (done, turns) = Default::default();
        Ok(Endpoint { geometry, peers, pool, kit, card, own, domains, books, done, turns })
    }

    /// Agrees with the process at the other end, which does the same, on how to reach each other's
    /// memory, and returns which process it is. Blocks for as long as the stream's read timeout
    /// says. The stream is kept: it carries what cards can't say. Whoever was attached under this
    /// id before is cut off first, and holds no grant; it need not have ended. That only one
    /// process of an id tries is the caller's to see to.
    ///
    /// # Errors
    /// [`Error`]; nothing has changed, and the stream is closed.
    pub fn attach(&mut self, stream: TcpStream) -> Result<ReplicaId, Error> {
        let hello = Hello {
            process: self.kit.me,
            geometry: (*self.geometry).clone(),
            address: self.card.address,
            regions: self.own.remotes(),
        };
        let (me, geometry) = (self.kit.me, &self.geometry);
        let check = |hello: &Hello| match hello {
            Hello { geometry: theirs, .. } if *theirs != **geometry => {
                Err(Error::NotAPeer { what: "its memory has another shape" })
            }
            Hello { process, .. } if *process == me => {
                Err(Error::NotAPeer { what: "it has the same id" })
            }
            Hello { process, .. } if process.0 >= geometry.processes => {
                Err(Error::NotAPeer { what: "it has no id of this group" })
            }
            _ => Ok(()),
        };
        let (link, hello) = Link::greet(stream, hello, check)?;
        let process = hello.process;
        self.part(process);
        let former = self.peers[process.index()].as_ref();
        let channel = |number: u8| {
            let former = former.map(|peer| &peer.channels[usize::from(number)]);
            Channel::new(process, number, former)
        };
        let numbers = 0..self.geometry.channels();
        let channels = numbers.clone().map(channel).collect();
        let targets = numbers.map(|_| Target::default()).collect();
        let peer = Peer { link, hello, channels, targets, is_over: false };
        self.peers[process.index()] = Some(peer);
        self.each_channel(process, Channel::connect);
        Ok(process)
    }

    /// Whether a peer's process has ended, or its connection. Its memory is out of reach then. True
    /// of one that was never attached.
    pub fn has_ended(&self, process: ReplicaId) -> bool {
        match &self.peers[process.index()] {
            Some(peer) => peer.is_over || peer.link.has_ended(),
            None => process != self.kit.me,
        }
    }

    /// This process's own regions, for other threads and for who reads while the endpoint is in
    /// use.
    pub fn own(&self) -> Own {
        self.own.clone()
    }

    /// Does what [`Fabric::poll`] does, but takes no completion: an owner that polls for nothing
    /// calls it now and then, since its peers connect with its help. True while a verb of this
    /// process, or a connection, is under way.
    pub fn turn(&mut self) -> bool {
        self.collect();
        self.listen();
        for id in 0..self.geometry.processes {
            self.each_channel(ReplicaId(id), Channel::flush);
        }
        self.peers.iter().flatten().any(|peer| peer.channels.iter().any(Channel::is_busy))
    }

    /// Takes what the card has completed.
    fn collect(&mut self) {
        let mut space = [Wc::default(); 16];
        let completions = self.kit.completions.clone();
        loop {
            let ended = completions.poll(&mut space);
            if ended.is_empty() {
                return;
            }
            for wc in ended {
                let (process, channel) = ((wc.wr_id >> 56) as u8, (wc.wr_id >> 48) as u8);
                self.with_channel(ReplicaId(process), channel, |channel, around| {
                    channel.on_completed(wc.wr_id, wc.status, around);
                });
            }
        }
    }

    /// Takes what peers say, and lets time pass.
    fn listen(&mut self) {
        for id in (0..self.geometry.processes).map(ReplicaId) {
            while let Some(message) = self.hear(id) {
                self.on_message(id, message);
            }
            let Some(peer) = &self.peers[id.index()] else { continue };
            if peer.link.is_closed() && !peer.is_over {
                self.part(id);
            }
            let Some(peer) = &self.peers[id.index()] else { continue };
            if peer.channels.iter().any(Channel::is_unsettled) {
                let now = Instant::now();
                self.each_channel(id, |channel, around| channel.tick(now, around));
            }
        }
    }

    fn hear(&mut self, id: ReplicaId) -> Option<Message> {
        self.peers[id.index()].as_mut()?.link.receive()
    }

    fn on_message(&mut self, from: ReplicaId, message: Message) {
        match message {
            Message::Connect { channel, generation, end } => {
                if channel >= self.geometry.channels() {
                    return self.distrust(from);
                }
                self.on_connect(from, channel, (generation, end));
            }
            Message::Connected { channel, generation, end, holder } => {
                self.with_channel(from, channel, |channel, around| {
                    channel.on_connected(generation, end, holder, around);
                });
            }
            Message::Broken { channel, generation } => {
                // What has completed has completed.
                self.collect();
                self.with_channel(from, channel, |channel, around| {
                    channel.on_broken(generation, around);
                });
            }
            Message::Renounce { channel, token } => {
                let Some(region) = self.geometry.exclusive(channel) else {
                    return self.distrust(from);
                };
                let (number, holds) = self.book(region).renounce(from);
                if holds {
                    self.revoke(region);
                }
                let number = number.0;
                self.say(from, &Message::Renounced { channel, token, number });
            }
            Message::Renounced { channel, token, number } => {
                self.with_channel(from, channel, |channel, around| {
                    channel.on_renounced(token, number, around);
                });
            }
            Message::Hello(_) | Message::Agreed => self.distrust(from),
        }
    }

    /// The peer said what makes no sense: it is cut off.
    fn distrust(&mut self, peer: ReplicaId) {
        if let Some(peer) = &mut self.peers[peer.index()] {
            peer.link.close();
        }
    }

    fn say(&mut self, to: ReplicaId, message: &Message) {
        if let Some(peer) = &mut self.peers[to.index()] {
            peer.link.send(message);
        }
    }

    /// Connects a peer's channel with the regions that it leads to.
    fn on_connect(&mut self, from: ReplicaId, channel: u8, peer_end: (u32, super::frame::End)) {
        let (allowed, holder) = match self.geometry.exclusive(channel) {
            None => (Allowed::ReadsAndWrites, 0),
            Some(region) => {
                let book = self.book(region);
                (book.allowed(from), book.holder().bits())
            }
        };
        let (generation, _) = peer_end;
        let domain = &self.domains[usize::from(channel)];
        let Some(peer) = &mut self.peers[from.index()] else { return };
        let target = &mut peer.targets[usize::from(channel)];
        let address = &peer.hello.address;
        let made = target.connect(domain, &self.kit.completions, address, peer_end, allowed);
        let answer = match made {
            Ok(end) => Message::Connected { channel, generation, end, holder },
            // The way there is cut, or the card has no more queue pairs: it asks again.
            Err(_) => Message::Broken { channel, generation },
        };
        peer.link.send(&answer);
    }

    /// A peer is gone: its verbs and those for it end, and it holds nothing any more.
    fn part(&mut self, process: ReplicaId) {
        let Some(peer) = &mut self.peers[process.index()] else { return };
        peer.is_over = true;
        peer.link.close();
        for target in &mut peer.targets {
            *target = Target::default();
        }
        self.each_channel(process, Channel::end);
        for index in 0..self.books.len() {
            if self.books[index].as_mut().is_some_and(|book| book.process_ended(process)) {
                self.revoke(RegionId(index as u8));
            }
        }
    }

    fn book(&mut self, region: RegionId) -> &mut Book {
        self.books[region.index()].as_mut().expect("the region is exclusive")
    }

    fn revoke(&mut self, region: RegionId) {
        let (own, revocation) = (&self.own, self.kit.options.revocation);
        let book = self.books[region.index()].as_mut().expect("the region is exclusive");
        book.revoke(own, revocation, &mut self.peers);
        // SeqCst: the owner's loads come after what the card has said.
        fence(Ordering::SeqCst);
    }

    fn grant(&mut self, region: RegionId, to: ReplicaId) -> Option<GrantNumber> {
        let (own, revocation) = (&self.own, self.kit.options.revocation);
        let book = self.books[region.index()].as_mut().expect("the region is exclusive");
        let number = book.grant(own, revocation, to, &mut self.peers);
        // SeqCst: as above.
        fence(Ordering::SeqCst);
        number
    }

    fn with_channel(
        &mut self,
        peer: ReplicaId,
        channel: u8,
        act: impl FnOnce(&mut Channel, &mut Around<'_>),
    ) {
        let Some(Some(peer)) = self.peers.get_mut(peer.index()) else { return };
        let Peer { link, hello, channels, .. } = peer;
        let Some(channel) = channels.get_mut(usize::from(channel)) else { return };
        let (kit, pool, done) = (&self.kit, &mut self.pool, &mut self.done);
        act(channel, &mut Around { kit, pool, done, link, hello });
    }

    fn each_channel(
        &mut self,
        peer: ReplicaId,
        mut act: impl FnMut(&mut Channel, &mut Around<'_>),
    ) {
        for channel in 0..self.geometry.channels() {
            self.with_channel(peer, channel, &mut act);
        }
    }

    fn end(&mut self, id: VerbId, status: Status, grant: Option<GrantNumber>) {
        self.done.push_back(Done { id, status, grant, read: None });
    }

    fn is_exclusive(&self, region: RegionId) -> bool {
        self.geometry.regions[region.index()].access == Access::Exclusive
    }

    fn post_write(&mut self, id: VerbId, to: Place, under: GrantNumber, words: &[u64]) {
        assert!(words.len() <= LONGEST, "a write has up to {LONGEST} words");
        self.geometry.range(to.region, to.offset, words.len());
        let is_exclusive = self.is_exclusive(to.region);
        if is_exclusive && !under.is_possible() {
            return self.end(id, Status::Refused, None);
        }
        if to.process == self.kit.me {
            if is_exclusive && !self.book(to.region).may_write(under) {
                return self.end(id, Status::Refused, None);
            }
            self.own.write(to.region, to.offset, words);
            return self.end(id, Status::Ok, None);
        }
        if self.peers[to.process.index()].is_none() {
            return self.end(id, Status::Gone, None);
        }
        let block = self.pool.take(words.len());
        block.fill(words);
        let action = Action::Write { under: is_exclusive.then_some(under), block };
        self.launch(id, to, words.len(), action);
    }

    fn post_read(&mut self, id: VerbId, from: Place, words: usize) {
        assert!(words <= LONGEST, "a read has up to {LONGEST} words");
        self.geometry.range(from.region, from.offset, words);
        if from.process == self.kit.me {
            let block = self.pool.take(words);
            block.copy(self.own.words(from.region, from.offset, words));
            let read = Some((block, words));
            let done = Done { id, status: Status::Ok, grant: None, read };
            return self.done.push_back(done);
        }
        if self.peers[from.process.index()].is_none() {
            return self.end(id, Status::Gone, None);
        }
        let action = Action::Read { block: self.pool.take(words) };
        self.launch(id, from, words, action);
    }

    fn post_renounce(&mut self, id: VerbId, owner: ReplicaId, region: RegionId) {
        assert!(self.is_exclusive(region), "the region is open");
        if owner == self.kit.me {
            let me = self.kit.me;
            self.book(region).renounce(me);
            return self.end(id, Status::Ok, None);
        }
        if self.peers[owner.index()].is_none() {
            return self.end(id, Status::Gone, None);
        }
        let place = Place { process: owner, region, offset: 0 };
        self.launch(id, place, 0, Action::Renounce);
    }

    fn launch(&mut self, id: VerbId, place: Place, words: usize, action: Action) {
        let Place { process, region, offset } = place;
        let item = Item { id, region, offset, words: words as u32, action };
        let channel = self.geometry.channel(region);
        self.with_channel(process, channel, |channel, around| channel.post(item, around));
    }
}

impl Fabric for Endpoint {
    fn me(&self) -> ReplicaId {
        self.kit.me
    }

    fn post(&mut self, id: VerbId, verb: Verb<'_>) {
        match verb {
            Verb::Write { to, under, words } => self.post_write(id, to, under, words),
            Verb::Read { from, words } => self.post_read(id, from, words as usize),
            Verb::Grant { region, to, keep } => {
                // All words stay.
                for range in keep {
                    self.geometry.range(region, range.start, range.len());
                }
                assert!(to.0 < self.geometry.processes, "no such process");
                let number = self.grant(region, to);
                let status = if number.is_some() { Status::Ok } else { Status::Refused };
                self.end(id, status, number);
            }
            Verb::Revoke { region } => {
                self.revoke(region);
                self.end(id, Status::Ok, None);
            }
            Verb::Renounce { owner, region } => self.post_renounce(id, owner, region),
        }
    }

    fn poll(&mut self, words: &mut Vec<u64>) -> Option<Completion> {
        self.turns = self.turns.wrapping_add(1);
        let mut peers = self.peers.iter().flatten();
        let unsettled = peers.any(|peer| peer.channels.iter().any(Channel::is_unsettled));
        if unsettled || self.turns.is_multiple_of(LINK_EVERY) {
            self.turn();
        } else {
            self.collect();
            if self.done.is_empty() {
                for id in 0..self.geometry.processes {
                    self.each_channel(ReplicaId(id), Channel::flush);
                }
            }
        }
        let done = self.done.pop_front()?;
        words.clear();
        if let Some((block, count)) = done.read {
            block.take(words, count);
            self.pool.give(block);
        }
        Some(Completion { id: done.id, status: done.status, grant: done.grant })
    }

    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.own.read(region, offset, words);
    }

    fn store(&mut self, region: RegionId, offset: u32, words: &[u64]) -> Status {
        if self.is_exclusive(region) && !self.book(region).is_own() {
            return Status::Refused;
        }
        self.own.write(region, offset, words);
        Status::Ok
    }
}
