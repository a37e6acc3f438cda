//! One process's face: its own memory, and its peers'. What a verb does is done when `post`
//! returns; whether writes count is looked at when the first completion after them is asked for,
//! with one fence for all: so the caches fetch the lines of several peers at the same time.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use smr::ReplicaId;

use super::error::Error;
use super::greeting;
use super::lanes::Lanes;
use super::layout::Layout;
use super::segment::{Segment, Window};
use super::vigil::Vigil;
use crate::contract::{
    Access, Completion, Fabric, Geometry, GrantNumber, Place, RegionId, Status, Verb, VerbId,
};
use crate::holder::{self, Holder};

/// A peer whose memory is mapped. The socket is closed last: whoever sees it closed knows that this
/// process stores to no lane any more.
struct Peer {
    segment: Segment,
    /// By region: what this process has renounced.
    renounced: Vec<GrantNumber>,
    /// Kept open for as long as this process may store to the peer's memory.
    stream: Option<UnixStream>,
    /// None of this process.
    vigil: Option<Vigil>,
}

/// One process of the fabric. Not `Clone`: one thread at a time writes a process's lanes.
pub struct Endpoint {
    me: ReplicaId,
    layout: Arc<Layout>,
    file: Arc<OwnedFd>,
    /// By region; none of open ones.
    lanes: Vec<Option<Lanes>>,
    /// By process, itself included.
    peers: Vec<Option<Peer>>,
    done: VecDeque<Done>,
    /// Some of `done` are writes that were not looked at again.
    unsettled: bool,
    /// What will be written soon.
    awaited: Vec<(Place, u32)>,
    /// Space for reads to come.
    spare: Vec<Vec<u64>>,
}

/// What a process shows to others: its memory.
#[derive(Clone)]
pub struct Introduction {
    me: ReplicaId,
    layout: Arc<Layout>,
    file: Arc<OwnedFd>,
}

impl Introduction {
    /// Exchanges memory with the process at the other end, which does the same. Blocks for as long
    /// as the stream's read timeout says.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::NotAPeer`]; the stream is closed.
    pub fn exchange(&self, stream: UnixStream) -> Result<Acquaintance, Error> {
        greeting::send(&stream, &self.file)?;
        let file = greeting::receive(&stream)?;
        let (segment, process) = Segment::open(file, self.layout.clone())?;
        if process == self.me {
            return Err(Error::NotAPeer { what: "it has the same id" });
        }
        Ok(Acquaintance { process, segment, stream })
    }
}

/// A process whose memory is here, and of which nothing is used before both sides agree.
pub struct Acquaintance {
    process: ReplicaId,
    segment: Segment,
    stream: UnixStream,
}

impl Acquaintance {
    /// Which process it is.
    pub fn process(&self) -> ReplicaId {
        self.process
    }

    /// The connection, which is closed when that process ends.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Whether [`Endpoint::adopt`] would not wait.
    pub fn has_answered(&self) -> bool {
        greeting::has_spoken(&self.stream)
    }
}

/// A verb that is done, with the words of a read.
struct Done {
    id: VerbId,
    status: Status,
    grant: Option<GrantNumber>,
    read: Option<Vec<u64>>,
    /// A write whose words are stored: where, and under which grant.
    stored: Option<(ReplicaId, RegionId, Holder)>,
}

impl Endpoint {
    /// Makes the memory of process `me`, all zero. The owner holds its exclusive regions.
    ///
    /// # Errors
    /// [`Error::Os`].
    ///
    /// # Panics
    /// If the geometry has a number out of range, or has no process `me`.
    pub fn new(geometry: Geometry, me: ReplicaId) -> Result<Endpoint, Error> {
        assert!(me.0 < geometry.processes, "no such process");
        let layout = Arc::new(Layout::new(geometry));
        let file = Arc::new(super::mapping::Mapping::create(layout.words)?);
        let own = Segment::create(&*file, layout.clone(), me)?;
        let regions = layout.geometry.regions.len();
        let book = |region: u8| {
            let region = RegionId(region);
            let exclusive = layout.access(region) == Access::Exclusive;
            exclusive.then(|| Lanes::new(&own, region, me))
        };
        let lanes = (0..=254).take(regions).map(book).collect();
        let mut peers: Vec<_> = (0..layout.geometry.processes).map(|_| None).collect();
        let renounced = vec![GrantNumber(0); regions];
        peers[me.index()] = Some(Peer { segment: own, renounced, stream: None, vigil: None });
        let (done, awaited, spare) = Default::default();
        Ok(Endpoint { me, layout, file, lanes, peers, done, unsettled: false, awaited, spare })
    }

    /// Exchanges memory with the process at the other end, which does the same, and returns which
    /// process it is. Blocks for as long as the stream's read timeout says. The stream is kept, so
    /// that each side learns of the other's end. A new process of a peer takes its former one's
    /// place and holds no grant. That only one process of an id tries is the caller's to see to (by
    /// the lock of its data directory).
    ///
    /// Who must not block does the same in steps: [`Endpoint::introduction`] on another thread,
    /// then [`Endpoint::agree`], and [`Endpoint::adopt`] once the other side has answered.
    ///
    /// # Errors
    /// [`Error`]; nothing has changed, and the stream is closed.
    pub fn attach(&mut self, stream: UnixStream) -> Result<ReplicaId, Error> {
        let acquaintance = self.introduction().exchange(stream)?;
        self.agree(&acquaintance)?;
        self.adopt(acquaintance)
    }

    /// What this process shows to others, for any thread.
    pub fn introduction(&self) -> Introduction {
        Introduction { me: self.me, layout: self.layout.clone(), file: self.file.clone() }
    }

    /// Agrees to use the memory of an acquaintance, and lets go of that of its former process.
    ///
    /// # Errors
    /// [`Error::StillAttached`], or the acquaintance has gone; nothing has changed.
    pub fn agree(&mut self, acquaintance: &Acquaintance) -> Result<(), Error> {
        let process = acquaintance.process;
        if !self.has_ended(process) {
            return Err(Error::StillAttached(process));
        }
        greeting::agree(&acquaintance.stream)?;
        self.settle();
        // The other side frees what its former grants opened: nothing may be stored there any more.
        self.peers[process.index()] = None;
        Ok(())
    }

    /// Takes up an acquaintance that was agreed to, waiting for its answer.
    ///
    /// # Errors
    /// It has gone, or another process of its id was taken up meanwhile.
    pub fn adopt(&mut self, acquaintance: Acquaintance) -> Result<ReplicaId, Error> {
        let Acquaintance { process, segment, stream } = acquaintance;
        greeting::is_agreed(&stream)?;
        if !self.has_ended(process) {
            return Err(Error::StillAttached(process));
        }
        self.settle();
        let own = self.peers[self.me.index()].as_ref().expect("attached from the start");
        for lanes in self.lanes.iter_mut().flatten() {
            lanes.process_ended(&own.segment, process);
        }
        let renounced = vec![GrantNumber(0); self.lanes.len()];
        let vigil = Some(Vigil::over(&stream));
        self.peers[process.index()] =
            Some(Peer { segment, renounced, stream: Some(stream), vigil });
        Ok(process)
    }

    /// Lets go of the memory of a process that has ended: verbs on it end with [`Status::Gone`].
    ///
    /// # Panics
    /// If it has not ended.
    pub fn forget(&mut self, process: ReplicaId) {
        assert!(self.has_ended(process), "a process that lives is not forgotten");
        self.settle();
        self.peers[process.index()] = None;
    }

    /// Who may write an exclusive region of this process.
    ///
    /// # Panics
    /// If the region is open.
    pub fn holder(&self, region: RegionId) -> Option<ReplicaId> {
        assert!(self.layout.access(region) == Access::Exclusive, "the region is open");
        let holder = Holder::load(self.own().holder(region));
        holder.in_force().then(|| ReplicaId(holder.lane()))
    }

    /// Whether the process of a peer has ended (a stopped one has not). Its memory stays. True of
    /// one that was never attached.
    pub fn has_ended(&self, process: ReplicaId) -> bool {
        match &self.peers[process.index()] {
            Some(Peer { stream: Some(stream), .. }) => greeting::has_ended(stream),
            Some(Peer { stream: None, .. }) => false,
            None => true,
        }
    }

    /// Whether a peer does not run and will not by itself, as far as the kernel says: its end has
    /// begun, or it was stopped. A hint for a failure detector, milliseconds ahead of
    /// [`Endpoint::has_ended`]: a process that halts may still be in the middle of a store, and may
    /// go on. A system call or two, a few microseconds.
    pub fn is_halted(&self, process: ReplicaId) -> bool {
        let peer = self.peers[process.index()].as_ref();
        let seen = peer.is_some_and(|peer| peer.vigil.as_ref().is_some_and(Vigil::sees_halt));
        seen || self.has_ended(process)
    }

    /// The regions of a process, for other threads; none of a process that was never attached.
    pub fn window(&self, process: ReplicaId) -> Option<Window> {
        self.peers[process.index()].as_ref().map(|peer| Window(peer.segment.clone()))
    }

    /// Uses idle time: zeroes up to `budget` words that a later grant would have to.
    pub fn sweep(&mut self, budget: usize) {
        let own = self.peers[self.me.index()].as_ref().expect("attached from the start");
        let lanes = self.lanes.iter_mut().flatten();
        lanes.fold(budget, |left, lanes| lanes.sweep(&own.segment, left));
    }

    /// [`Verb::Write`] to an exclusive region at once, with words that come one at a time.
    ///
    /// # Panics
    /// As [`Fabric::post`], and if the region is open.
    #[inline]
    pub fn write(
        &mut self,
        to: Place,
        under: GrantNumber,
        words: impl ExactSizeIterator<Item = u64>,
    ) -> Status {
        assert!(self.layout.access(to.region) == Access::Exclusive, "the region is open");
        match self.lane(to, under, words.len()) {
            Ok((word, under, lane)) if holder::store_each(word, under, lane, words) => {
                holder::settle();
                self.outcome(to.process, to.region, under)
            }
            Ok(_) => Status::Refused,
            Err(status) => status,
        }
    }

    /// Stores the words of a write. One to an exclusive region, whose grant was in force, is to be
    /// looked at again.
    #[inline]
    fn store_words(
        &self,
        to: Place,
        under: GrantNumber,
        words: &[u64],
    ) -> (Status, Option<(ReplicaId, RegionId, Holder)>) {
        if self.layout.access(to.region) == Access::Open {
            self.layout.geometry.range(to.region, to.offset, words.len());
            let Some(peer) = &self.peers[to.process.index()] else { return (Status::Gone, None) };
            peer.segment.write_open(to.region, to.offset, words);
            return (Status::Ok, None);
        }
        match self.lane(to, under, words.len()) {
            Ok((word, under, lane)) if holder::store(word, under, lane, words) => {
                (Status::Ok, Some((to.process, to.region, under)))
            }
            Ok(_) => (Status::Refused, None),
            Err(status) => (status, None),
        }
    }

    /// Where words under a grant go, and the holder word that says whether they may.
    #[inline]
    fn lane(
        &self,
        to: Place,
        under: GrantNumber,
        words: usize,
    ) -> Result<(&AtomicU64, Holder, &[AtomicU64]), Status> {
        let range = self.layout.geometry.range(to.region, to.offset, words);
        let peer = self.peers[to.process.index()].as_ref().ok_or(Status::Gone)?;
        // A number that no owner gives has no holder word.
        if under <= peer.renounced[to.region.index()] || !under.is_possible() {
            return Err(Status::Refused);
        }
        let lane = &peer.segment.lane(to.region, self.me.0)[range];
        Ok((peer.segment.holder(to.region), Holder::new(under, self.me.0), lane))
    }

    /// What has become of a write that was stored and settled.
    #[inline]
    fn outcome(&self, process: ReplicaId, region: RegionId, under: Holder) -> Status {
        let peer = self.peers[process.index()].as_ref().expect("settled before it is let go of");
        match holder::stands(peer.segment.holder(region), under) {
            true => Status::Ok,
            false => Status::Refused,
        }
    }

    /// Looks again at the holder words of the writes that were posted.
    #[inline]
    fn settle(&mut self) {
        if !std::mem::replace(&mut self.unsettled, false) {
            return;
        }
        holder::settle();
        for index in 0..self.done.len() {
            if let Some((process, region, under)) = self.done[index].stored.take() {
                self.done[index].status = self.outcome(process, region, under);
            }
        }
        // Not before the fence, which would wait for it.
        for (place, words) in self.awaited.drain(..) {
            if let Some(peer) = &self.peers[place.process.index()] {
                peer.segment.fetch(place, self.me, words);
            }
        }
    }

    fn renounce(&mut self, owner: ReplicaId, region: RegionId) -> Status {
        assert!(self.layout.access(region) == Access::Exclusive, "the region is open");
        let Some(peer) = &mut self.peers[owner.index()] else { return Status::Gone };
        // Every grant that this process has been given has this number or a lower one, and every
        // later one will have a higher one.
        let number = Holder::load(peer.segment.holder(region)).number();
        peer.renounced[region.index()] = number;
        holder::renounce(peer.segment.renounced(region, self.me), number);
        Status::Ok
    }

    fn own(&self) -> &Segment {
        &self.peers[self.me.index()].as_ref().expect("attached from the start").segment
    }

    /// The book of one of this process's exclusive regions, and its memory.
    fn lanes(&mut self, region: RegionId) -> (&mut Lanes, &Segment) {
        let own = self.peers[self.me.index()].as_ref().expect("attached from the start");
        (self.lanes[region.index()].as_mut().expect("the region is exclusive"), &own.segment)
    }
}

impl Fabric for Endpoint {
    fn me(&self) -> ReplicaId {
        self.me
    }

    fn post(&mut self, id: VerbId, verb: Verb<'_>) {
        let mut done = Done { id, status: Status::Ok, grant: None, read: None, stored: None };
        if !matches!(verb, Verb::Write { .. }) {
            self.settle();
        }
        match verb {
            Verb::Write { to, under, words } => {
                (done.status, done.stored) = self.store_words(to, under, words);
                self.unsettled |= done.stored.is_some();
            }
            Verb::Read { from, words } => {
                self.layout.geometry.range(from.region, from.offset, words as usize);
                match &self.peers[from.process.index()] {
                    Some(peer) => {
                        let mut read = self.spare.pop().unwrap_or_default();
                        read.resize(words as usize, 0);
                        peer.segment.read(from.region, from.offset, &mut read);
                        done.read = Some(read);
                    }
                    None => done.status = Status::Gone,
                }
            }
            Verb::Grant { region, to, keep } => {
                let (lanes, own) = self.lanes(region);
                done.grant = lanes.grant(own, to, keep);
                if done.grant.is_none() {
                    done.status = Status::Refused;
                }
            }
            Verb::Revoke { region } => {
                let (lanes, own) = self.lanes(region);
                lanes.revoke(own);
            }
            Verb::Renounce { owner, region } => done.status = self.renounce(owner, region),
        }
        self.done.push_back(done);
    }

    fn poll(&mut self, words: &mut Vec<u64>) -> Option<Completion> {
        self.settle();
        let done = self.done.pop_front()?;
        words.clear();
        if let Some(read) = done.read {
            let spare = std::mem::replace(words, read);
            self.spare.push(spare);
        }
        Some(Completion { id: done.id, status: done.status, grant: done.grant })
    }

    fn expect(&mut self, to: Place, words: u32) {
        self.layout.geometry.range(to.region, to.offset, words as usize);
        if self.unsettled {
            self.awaited.push((to, words));
        } else if let Some(peer) = &self.peers[to.process.index()] {
            peer.segment.fetch(to, self.me, words);
        }
    }

    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]) {
        self.own().read(region, offset, words);
    }

    fn store(&mut self, region: RegionId, offset: u32, words: &[u64]) -> Status {
        let own = self.own();
        if self.layout.access(region) == Access::Open {
            own.write_open(region, offset, words);
            return Status::Ok;
        }
        let range = self.layout.geometry.range(region, offset, words.len());
        let holder = Holder::load(own.holder(region));
        if holder.lane() != self.me.0 || !holder.in_force() {
            return Status::Refused;
        }
        let lane = &own.lane(region, self.me.0)[range];
        let written = holder::write(own.holder(region), holder, lane, words);
        assert!(written, "only this thread changes the holder word");
        Status::Ok
    }
}
