//! Shared by the tests: a fabric of three processes, whichever back end carries it.

#![allow(dead_code)] // each test uses its part

use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fabric::sim::{Options, World};
use fabric::{
    Access, Completion, Fabric, Geometry, GrantNumber, Place, RegionId, RegionSpec, Status, Verb,
    VerbId, shm, verbs,
};
use smr::ReplicaId;

/// An open region of 16 words.
pub const BOARD: RegionId = RegionId(0);
/// An exclusive region of 600 words, more than a page.
pub const LOG: RegionId = RegionId(1);
/// An exclusive region of 8 words.
pub const OTHER: RegionId = RegionId(2);

pub fn geometry() -> Geometry {
    let shapes = [(Access::Open, 16), (Access::Exclusive, 600), (Access::Exclusive, 8)];
    let regions = shapes.map(|(access, words)| RegionSpec { access, words });
    Geometry { processes: 3, regions: regions.to_vec() }
}

pub fn place(process: u8, region: RegionId, offset: u32) -> Place {
    Place { process: ReplicaId(process), region, offset }
}

/// What the suite needs of a back end's processes.
pub trait Rig {
    fn on(&mut self, process: u8, act: &mut dyn FnMut(&mut dyn Fabric));
    /// Lets a little happen; false if nothing is under way.
    fn step(&mut self) -> bool;
    /// The process ends.
    fn kill(&mut self, process: u8);
    /// A new process takes its place.
    fn restart(&mut self, process: u8);
    /// Whether a process's memory is there after its end.
    fn memory_stays(&self) -> bool {
        true
    }
}

/// What the suite does with them.
impl dyn Rig + '_ {
    pub fn settle(&mut self) {
        while self.step() {}
    }

    pub fn post(&mut self, process: u8, id: u64, verb: Verb<'_>) {
        self.on(process, &mut |fabric| fabric.post(VerbId(id), verb));
    }

    pub fn poll(&mut self, process: u8) -> Option<(Completion, Vec<u64>)> {
        let mut polled = None;
        self.on(process, &mut |fabric| {
            let mut words = vec![7; 3];
            polled = fabric.poll(&mut words).map(|completion| (completion, words));
        });
        polled
    }

    /// Posts a verb and waits for it, the only one under way.
    pub fn run(&mut self, process: u8, verb: Verb<'_>) -> (Completion, Vec<u64>) {
        self.post(process, 77, verb);
        self.settle();
        let (completion, words) = self.poll(process).expect("it completes");
        assert_eq!(completion.id, VerbId(77));
        assert_eq!(self.poll(process), None, "it completes once");
        (completion, words)
    }

    pub fn write(&mut self, process: u8, to: Place, under: GrantNumber, words: &[u64]) -> Status {
        let (completion, read) = self.run(process, Verb::Write { to, under, words });
        assert_eq!((completion.grant, read), (None, vec![]));
        completion.status
    }

    pub fn read(&mut self, process: u8, from: Place, words: u32) -> Vec<u64> {
        let (completion, words) = self.run(process, Verb::Read { from, words });
        assert_eq!(completion.status, Status::Ok);
        words
    }

    pub fn grant(
        &mut self,
        owner: u8,
        region: RegionId,
        to: u8,
        keep: &[Range<u32>],
    ) -> Option<GrantNumber> {
        let to = ReplicaId(to);
        let (completion, _) = self.run(owner, Verb::Grant { region, to, keep });
        let done = completion.grant.is_some();
        assert_eq!(completion.status, if done { Status::Ok } else { Status::Refused });
        completion.grant
    }

    pub fn revoke(&mut self, owner: u8, region: RegionId) {
        let (completion, _) = self.run(owner, Verb::Revoke { region });
        assert_eq!((completion.status, completion.grant), (Status::Ok, None));
    }

    pub fn renounce(&mut self, process: u8, owner: u8, region: RegionId) {
        let owner = ReplicaId(owner);
        let (completion, _) = self.run(process, Verb::Renounce { owner, region });
        assert_eq!(completion.status, Status::Ok);
    }

    pub fn load(&mut self, process: u8, region: RegionId, offset: u32, words: usize) -> Vec<u64> {
        let mut found = vec![0; words];
        self.on(process, &mut |fabric| fabric.load(region, offset, &mut found));
        found
    }

    pub fn store(&mut self, process: u8, region: RegionId, offset: u32, words: &[u64]) -> Status {
        let mut status = Status::Gone;
        self.on(process, &mut |fabric| status = fabric.store(region, offset, words));
        status
    }
}

/// Processes of the simulator.
pub struct Simulated(pub World);

impl Simulated {
    pub fn new(options: Options, seed: u64, without: Option<u8>) -> Simulated {
        let mut world = World::new(geometry(), options, seed);
        if let Some(process) = without {
            world.wreck(ReplicaId(process));
        }
        Simulated(world)
    }
}

impl Rig for Simulated {
    fn on(&mut self, process: u8, act: &mut dyn FnMut(&mut dyn Fabric)) {
        let mut port = self.0.port(ReplicaId(process));
        assert_eq!(port.me(), ReplicaId(process));
        act(&mut port);
    }

    fn step(&mut self) -> bool {
        let Some(next) = self.0.next_at() else { return false };
        self.0.step(next);
        true
    }

    fn kill(&mut self, process: u8) {
        self.0.kill(ReplicaId(process));
    }

    fn restart(&mut self, process: u8) {
        self.0.restart(ReplicaId(process));
    }
}

/// Processes' endpoints that share memory; they live in one process here.
pub struct Shared(pub Vec<Option<shm::Endpoint>>);

impl Shared {
    pub fn new(without: Option<u8>) -> Shared {
        let mut shared = Shared((0..3).map(|_| None).collect());
        for process in (0..3).filter(|&process| Some(process) != without) {
            shared.restart(process);
        }
        shared
    }
}

/// What each side of an attachment says.
pub type Attached = Result<ReplicaId, shm::Error>;

/// Two endpoints exchange their memory.
pub fn attach(one: &mut shm::Endpoint, other: &mut shm::Endpoint) -> (Attached, Attached) {
    let (left, right) = UnixStream::pair().expect("a pair of sockets");
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || other.attach(right));
        let here = one.attach(left);
        (here, thread.join().expect("no panic"))
    })
}

impl Rig for Shared {
    fn on(&mut self, process: u8, act: &mut dyn FnMut(&mut dyn Fabric)) {
        let endpoint = self.0[usize::from(process)].as_mut().expect("it lives");
        assert_eq!(endpoint.me(), ReplicaId(process));
        act(endpoint);
    }

    fn step(&mut self) -> bool {
        false
    }

    fn kill(&mut self, process: u8) {
        self.0[usize::from(process)].take().expect("it lives");
    }

    fn restart(&mut self, process: u8) {
        let endpoint = shm::Endpoint::new(geometry(), ReplicaId(process));
        let mut endpoint = endpoint.expect("memory can be shared");
        for peer in self.0.iter_mut().flatten() {
            let (here, there) = attach(&mut endpoint, peer);
            assert_eq!(here.expect("attached"), peer.me());
            assert_eq!(there.expect("attached"), ReplicaId(process));
        }
        self.0[usize::from(process)] = Some(endpoint);
    }
}

/// Processes' endpoints that use RDMA cards; they live in one process here.
pub struct Carded {
    endpoints: Vec<Option<verbs::Endpoint>>,
    cards: Vec<String>,
    revocation: verbs::Revocation,
}

impl Carded {
    /// The cards that the environment names, as in `FABRIC_CARDS=rx1,rx2,rx3`: one per process, or
    /// one for all.
    pub fn cards() -> Option<Vec<String>> {
        let names = std::env::var("FABRIC_CARDS").ok()?;
        Some(names.split(',').map(str::to_string).collect())
    }

    pub fn new(cards: Vec<String>, revocation: verbs::Revocation, without: Option<u8>) -> Carded {
        let mut carded = Carded { endpoints: (0..3).map(|_| None).collect(), cards, revocation };
        for process in (0..3).filter(|&process| Some(process) != without) {
            carded.restart(process);
        }
        carded.settle();
        carded
    }

    fn settle(&mut self) {
        let rig: &mut dyn Rig = self;
        rig.settle();
    }
}

/// Two endpoints agree over TCP.
pub fn attach_verbs(
    one: &mut verbs::Endpoint,
    other: &mut verbs::Endpoint,
) -> [Result<ReplicaId, verbs::Error>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("bound");
    std::thread::scope(|scope| {
        let thread =
            scope.spawn(move || other.attach(TcpStream::connect(address).expect("connected")));
        let here = one.attach(listener.accept().expect("connected").0);
        [here, thread.join().expect("no panic")]
    })
}

impl Rig for Carded {
    fn on(&mut self, process: u8, act: &mut dyn FnMut(&mut dyn Fabric)) {
        let endpoint = self.endpoints[usize::from(process)].as_mut().expect("it lives");
        assert_eq!(endpoint.me(), ReplicaId(process));
        act(endpoint);
    }

    fn step(&mut self) -> bool {
        let endpoints = self.endpoints.iter_mut().flatten();
        let is_busy = endpoints.fold(false, |busy, endpoint| endpoint.turn() | busy);
        if is_busy {
            // Emulated cards need the processors that this test would spin on.
            std::thread::sleep(Duration::from_micros(20));
        }
        is_busy
    }

    fn kill(&mut self, process: u8) {
        self.endpoints[usize::from(process)].take().expect("it lives");
        self.settle();
    }

    fn restart(&mut self, process: u8) {
        let card = self.cards.get(usize::from(process)).or(self.cards.last());
        let options = verbs::Options {
            card: card.cloned(),
            // Emulated machines stand still now and then.
            silence: Duration::from_millis(400),
            patience: Duration::from_secs(5),
            revocation: self.revocation,
            ..verbs::Options::default()
        };
        let endpoint = verbs::Endpoint::new(geometry(), ReplicaId(process), options);
        let mut endpoint = endpoint.expect("the card can be used");
        for peer in self.endpoints.iter_mut().flatten() {
            let [here, there] = attach_verbs(&mut endpoint, peer);
            assert_eq!(here.expect("attached"), peer.me());
            assert_eq!(there.expect("attached"), ReplicaId(process));
        }
        self.endpoints[usize::from(process)] = Some(endpoint);
        self.settle();
    }

    fn memory_stays(&self) -> bool {
        false
    }
}
