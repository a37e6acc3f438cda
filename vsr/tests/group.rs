//! A group on a perfect network with instant disks: the shortest way through every sub-protocol.
//! Faults are the simulator's job.

use std::collections::VecDeque;

use bytes::Bytes;
use smr::client::{Answer, Client, Finished, OnLoss, Retry, Sends};
use smr::executor::CheckpointStep;
use smr::{
    BadCheckpoint, CheckpointChunk, ClientId, Context, Durability, Effect, Executor, GroupId, Host,
    Identity, Incarnation, Input, Log, Now, OpNumber, ReadOutcome, Recovered, ReplicaId, Reply,
    Role, StateMachine, StoreBatch, To, Trust, View, Viewstamp,
};
use vsr::{Config, Limits, Message, Replica, Timing};

/// Adds up the lengths of its requests.
#[derive(Default)]
struct Sum(u64, u64);

impl StateMachine for Sum {
    type Undo = u64;

    fn apply(&mut self, _: Context, request: &[u8], reply: &mut Vec<u8>) -> u64 {
        let before = self.0;
        self.0 += request.len() as u64;
        reply.extend(self.0.to_string().bytes());
        before
    }

    fn undo(&mut self, undo: u64) {
        self.0 = undo;
    }

    fn read(&self, _: u64, _: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        reply.extend(self.0.to_string().bytes());
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {
        self.1 = self.0;
    }

    fn checkpoint_next(&mut self, _: usize, out: &mut Vec<u8>) -> bool {
        out.extend(self.1.to_le_bytes());
        true
    }

    fn checkpoint_abort(&mut self) {}

    fn restore_begin(&mut self) {
        self.0 = 0;
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        self.0 = u64::from_le_bytes(chunk.try_into().map_err(|_| BadCheckpoint)?);
        Ok(())
    }
}

#[derive(Default, Clone)]
struct Disk {
    view: View,
    log: Log,
    checkpoint: Option<(Viewstamp, Vec<Vec<u8>>)>,
    incarnation: u64,
}

impl Disk {
    fn store(&mut self, batch: &StoreBatch) {
        if let Some(base) = batch.reset {
            self.log = Log::new(base);
        }
        if let Some(keep) = batch.truncate {
            self.log.truncate(keep);
        }
        batch.append.iter().for_each(|entry| self.log.append(entry.clone()));
        self.view = batch.view.unwrap_or(self.view);
        assert!(batch.trim.is_none_or(|trim| trim <= self.checkpoint.as_ref().unwrap().0.op));
        batch.trim.into_iter().for_each(|trim| self.log.trim(trim));
    }
}

const ALL: [Durability; 3] = [Durability::Memory, Durability::Sync, Durability::Lazy];

struct Group {
    now: u64,
    durability: Durability,
    hosts: Vec<Option<Host<Replica, Sum>>>,
    disks: Vec<Disk>,
    /// Disks that store nothing for the time being, with what waits for them.
    stuck: Vec<Option<VecDeque<StoreBatch>>>,
    saved: Vec<Vec<u8>>,
    /// The chunks of the checkpoint that is being written.
    writing: Vec<Option<Vec<Vec<u8>>>>,
    network: VecDeque<(ReplicaId, ReplicaId, Incarnation, Message)>,
    client: Client,
    sends: Sends,
    finished: Vec<Finished>,
    limits: Limits,
}

impl Group {
    fn new(replicas: u8, durability: Durability) -> Group {
        Group::with(replicas, durability, OnLoss::Report)
    }

    fn with(replicas: u8, durability: Durability, on_loss: OnLoss) -> Group {
        let id = ClientId { gateway: 100, incarnation: Incarnation(1) };
        let retry = Retry::after(Timing::default().retry);
        let mut group = Group {
            now: 0,
            durability,
            hosts: (0..replicas).map(|_| None).collect(),
            disks: vec![Disk::default(); usize::from(replicas)],
            stuck: vec![None; usize::from(replicas)],
            saved: vec![Vec::new(); usize::from(replicas)],
            writing: vec![None; usize::from(replicas)],
            network: VecDeque::new(),
            client: Client::new(id, replicas, ReplicaId(0), retry, on_loss),
            sends: Vec::new(),
            finished: Vec::new(),
            limits: Limits::tiny(),
        };
        (0..replicas).for_each(|id| group.start(ReplicaId(id), Trust::New));
        group
    }

    fn time(&self) -> Now {
        Now { micros: self.now, unix_ms: self.now / 1000 }
    }

    fn start(&mut self, id: ReplicaId, trust: Trust) {
        let replicas = self.hosts.len() as u8;
        let disk = &mut self.disks[id.index()];
        disk.incarnation += 1;
        let incarnation = Incarnation(disk.incarnation);
        let identity = Identity { group: GroupId(1), replica: id, incarnation };
        let mut config = Config::new(identity, replicas, self.durability, 7);
        config.limits = self.limits;
        let mut executor = Executor::new(Sum::default());
        if self.durability == Durability::Memory || trust == Trust::Lost {
            disk.checkpoint = None;
            disk.log = Log::new(Viewstamp::default());
        }
        if let Some((position, chunks)) = &disk.checkpoint {
            executor.restore_begin();
            for (number, chunk) in chunks.iter().enumerate() {
                executor.restore_chunk(number as u64, chunk).unwrap();
            }
            disk.log.trim(position.op);
        }
        let checkpoint = disk.checkpoint.as_ref().map(|checkpoint| checkpoint.0);
        let (view, log) = (disk.view, disk.log.clone());
        let recovered = Recovered { trust, view, log, checkpoint };
        self.writing[id.index()] = None;
        self.hosts[id.index()] = Some(Host::new(Replica::new(config), executor));
        self.input(id, Input::Start(recovered));
    }

    fn input(&mut self, id: ReplicaId, input: Input<Message, std::convert::Infallible>) {
        let now = self.time();
        let mut effects = Vec::new();
        let Some(host) = &mut self.hosts[id.index()] else { return };
        host.step(now, input, &mut effects);
        self.perform(id, effects);
    }

    fn perform(&mut self, id: ReplicaId, effects: Vec<Effect<Message, std::convert::Infallible>>) {
        let incarnation = Incarnation(self.disks[id.index()].incarnation);
        for effect in effects {
            match effect {
                Effect::Send(to, message) => {
                    for peer in (0..self.hosts.len() as u8).map(ReplicaId) {
                        if peer != id && (to == To::Others || to == To::One(peer)) {
                            self.network.push_back((id, peer, incarnation, message.clone()));
                        }
                    }
                }
                Effect::Store(batch) if self.stuck[id.index()].is_some() => {
                    self.stuck[id.index()].as_mut().unwrap().push_back(batch);
                }
                Effect::Store(batch) => {
                    self.disks[id.index()].store(&batch);
                    self.input(id, Input::Stored(batch.number));
                }
                Effect::Flush => {}
                Effect::Reply(reply) => self.reply(reply),
                Effect::WriteCheckpoint(_) => self.writing[id.index()] = Some(Vec::new()),
                Effect::ReadCheckpoint { to, position, offset } => {
                    let chunk = self.piece(id, position, offset);
                    self.input(id, Input::CheckpointChunk { to, chunk });
                }
                Effect::SaveChunk(chunk) => self.save(id, &chunk),
                Effect::InstallState(position) => self.install(id, position),
                Effect::Protocol(never) => match never {},
            }
        }
    }

    fn file(chunks: &[Vec<u8>]) -> Vec<u8> {
        chunks.iter().flat_map(|c| [&(c.len() as u64).to_le_bytes(), &c[..]].concat()).collect()
    }

    fn piece(&self, id: ReplicaId, at: Option<Viewstamp>, offset: u64) -> Option<CheckpointChunk> {
        let (position, chunks) = self.disks[id.index()].checkpoint.as_ref()?;
        let file = Group::file(chunks);
        let end = file.len().min(offset as usize + 10);
        let bytes = Bytes::copy_from_slice(&file[offset as usize..end]);
        let total = file.len() as u64;
        (at.is_none_or(|at| at == *position)).then_some(CheckpointChunk {
            position: *position,
            offset,
            total,
            bytes,
        })
    }

    fn save(&mut self, id: ReplicaId, chunk: &CheckpointChunk) {
        let saved = &mut self.saved[id.index()];
        saved.truncate(chunk.offset as usize);
        assert_eq!(saved.len() as u64, chunk.offset);
        saved.extend_from_slice(&chunk.bytes);
    }

    fn install(&mut self, id: ReplicaId, position: Viewstamp) {
        let mut rest = &self.saved[id.index()][..];
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let len = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            chunks.push(rest[8..8 + len].to_vec());
            rest = &rest[8 + len..];
        }
        let executor = self.hosts[id.index()].as_mut().unwrap().restore();
        executor.restore_begin();
        for (number, chunk) in chunks.iter().enumerate() {
            executor.restore_chunk(number as u64, chunk).unwrap();
        }
        assert_eq!(executor.executed(), position);
        self.writing[id.index()] = None;
        self.disks[id.index()].checkpoint = Some((position, chunks));
        self.input(id, Input::StateInstalled(Some(position)));
    }

    /// Takes a step of the checkpoint that a replica writes, if it writes one.
    fn checkpoint(&mut self, id: ReplicaId) {
        let Some(mut chunks) = self.writing[id.index()].take() else { return };
        let host = self.hosts[id.index()].as_mut().unwrap();
        match host.checkpoint_next(100) {
            CheckpointStep::Chunk(chunk) => {
                chunks.push(chunk);
                self.writing[id.index()] = Some(chunks);
            }
            CheckpointStep::Done(position) => {
                let bytes = Group::file(&chunks).len() as u64;
                self.disks[id.index()].checkpoint = Some((position, chunks));
                self.input(id, Input::CheckpointWritten { position, bytes });
            }
        }
    }

    fn reply(&mut self, reply: Reply) {
        let now = self.time();
        self.finished.extend(self.client.on_reply(now, reply, &mut self.sends));
    }

    fn deliver(&mut self) {
        loop {
            if let Some((from, to, incarnation, message)) = self.network.pop_front() {
                let mut bytes = Vec::new();
                message.encode(&mut bytes);
                assert_eq!(Message::decode(Bytes::from(bytes)), Ok(message.clone()));
                self.input(to, Input::Message { from, incarnation, message });
            } else if let Some((to, message)) =
                (!self.sends.is_empty()).then(|| self.sends.remove(0))
            {
                let (now, mut effects) = (self.time(), Vec::new());
                if let Some(host) = &mut self.hosts[to.index()] {
                    host.client(now, message, &mut effects);
                    self.perform(to, effects);
                }
            } else {
                return;
            }
        }
    }

    /// Lets time pass in steps of a millisecond.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.deliver();
            self.now += 1000;
            for id in (0..self.hosts.len() as u8).map(ReplicaId) {
                let host = self.hosts[id.index()].as_ref();
                if host.and_then(Host::deadline).is_some_and(|at| at <= self.now) {
                    self.input(id, Input::Timeout);
                }
                self.checkpoint(id);
            }
            let now = self.time();
            self.client.timeout(now, &mut self.sends);
        }
        self.deliver();
    }

    /// Stops all disks: what is stored from here on is lost in a crash.
    fn stick(&mut self) {
        self.stuck.fill(Some(VecDeque::new()));
    }

    /// Lets a stopped disk store what waits for it.
    fn unstick(&mut self, id: ReplicaId) {
        for batch in self.stuck[id.index()].take().into_iter().flatten() {
            self.disks[id.index()].store(&batch);
            self.input(id, Input::Stored(batch.number));
        }
    }

    /// Lets as much be tentative as a real group does.
    fn limits_off(&mut self) {
        self.limits = Limits::default();
        for id in (0..3).map(ReplicaId) {
            self.stuck[id.index()] = None;
            self.crash(id);
            self.start(id, Trust::Intact);
        }
        self.run(1_000);
        self.stick();
    }

    fn crash(&mut self, id: ReplicaId) {
        self.hosts[id.index()] = None;
        self.stuck[id.index()] = None;
        self.network.retain(|&(from, to, ..)| from != id && to != id);
    }

    fn crash_all(&mut self) {
        (0..3).for_each(|id| self.crash(ReplicaId(id)));
        (0..3).for_each(|id| self.start(ReplicaId(id), Trust::Intact));
    }

    fn report(&self, id: ReplicaId) -> smr::Report {
        smr::Protocol::report(self.hosts[id.index()].as_ref().unwrap().protocol())
    }

    fn submit(&mut self, body: &'static [u8]) {
        let now = self.time();
        self.client.submit(now, Bytes::from_static(body), false, &mut self.sends).unwrap();
    }

    /// Submits a request and returns its answer.
    fn ask(&mut self, body: &'static [u8]) -> Bytes {
        self.submit(body);
        self.answer()
    }

    fn read(&mut self) -> Bytes {
        let now = self.time();
        self.client.read(now, Bytes::new(), &mut self.sends).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> Bytes {
        for _ in 0..5_000 {
            self.run(1);
            if let Some(finished) = self.finished.pop() {
                let Answer::Done { body, .. } = finished.answer else { panic!("{finished:?}") };
                return body;
            }
        }
        let roles: Vec<_> = self.hosts.iter().map(|h| h.as_ref().map(role)).collect();
        panic!("no answer within five seconds: {roles:?}");
    }

    fn primary(&self) -> ReplicaId {
        let leads = |h: &Option<Host<_, _>>| h.as_ref().is_some_and(|h| role(h) == Role::Primary);
        ReplicaId(self.hosts.iter().position(leads).expect("a primary") as u8)
    }

    fn role(&self, id: ReplicaId) -> Role {
        role(self.hosts[id.index()].as_ref().unwrap())
    }

    fn sums(&self) -> Vec<u64> {
        self.hosts.iter().flatten().map(|host| host.executor().machine().0).collect()
    }
}

fn role(host: &Host<Replica, Sum>) -> Role {
    smr::Protocol::report(host.protocol()).role
}

#[test]
fn a_group_of_any_size_serves() {
    for durability in ALL {
        for replicas in [1, 2, 3, 5] {
            let mut group = Group::new(replicas, durability);
            assert_eq!(group.ask(b"four"), "4");
            assert_eq!(group.ask(b"six666"), "10");
            assert_eq!(group.read(), "10");
            group.run(100);
            assert_eq!(group.sums(), vec![10; usize::from(replicas)]);
        }
    }
}

#[test]
fn the_next_primary_goes_on_where_the_last_one_died() {
    for durability in ALL {
        let mut group = Group::new(3, durability);
        assert_eq!(group.ask(b"one"), "3");
        let died = group.primary();
        group.hosts[died.index()] = None;
        assert_eq!(group.ask(b"two"), "6");
        assert_eq!(group.read(), "6");
        assert!(group.now < 1_500_000, "fail-over took until {}", group.now);
        group.start(died, Trust::Intact);
        group.run(1_000);
        assert_eq!(group.role(died), Role::Backup);
        assert_eq!(group.sums(), vec![6; 3]);
    }
}

#[test]
fn all_at_once_the_disks_bring_it_back_and_memory_says_that_it_cannot() {
    for durability in ALL {
        let mut group = Group::new(3, durability);
        assert_eq!(group.ask(b"precious"), "8");
        group.hosts = (0..3).map(|_| None).collect();
        group.network.clear();
        (0..3).for_each(|id| group.start(ReplicaId(id), Trust::Intact));
        group.run(1_000);
        if durability != Durability::Memory {
            assert_eq!(group.read(), "8");
        } else {
            (0..3).for_each(|id| assert_eq!(group.role(ReplicaId(id)), Role::StateLost));
            group.submit(b"more");
            group.run(500);
            assert_eq!(group.finished.pop().unwrap().answer, Answer::StateLost);
        }
    }
}

#[test]
fn logs_are_trimmed_while_requests_flow() {
    for durability in ALL {
        let mut group = Group::new(3, durability);
        group.ask(b"begin");
        group.run(100);
        // No time passes, so that no heartbeat is due.
        for _ in 0..50 {
            group.submit(&[b'x'; 100]);
            group.deliver();
        }
        assert_eq!(group.finished.len(), 50);
        for host in group.hosts.iter().flatten() {
            let entries = host.protocol().log_len();
            assert!(entries < 10, "{entries} entries are kept in {durability:?}");
        }
    }
}

#[test]
fn a_replica_that_missed_too_much_fetches_a_checkpoint() {
    for durability in ALL {
        let mut group = Group::new(3, durability);
        group.ask(b"begin");
        let away = ReplicaId((group.primary().0 + 1) % 3);
        group.hosts[away.index()] = None;
        for _ in 0..60 {
            group.ask(&[b'x'; 100]);
        }
        group.run(100);
        let trust = if durability != Durability::Memory { Trust::Lost } else { Trust::Intact };
        group.start(away, trust);
        group.run(1_000);
        assert_eq!(group.role(away), Role::Backup);
        assert_eq!(group.sums(), vec![6_005; 3]);
        let base = smr::Protocol::report(group.hosts[away.index()].as_ref().unwrap().protocol());
        assert!(base.checkpoint.op > OpNumber(0), "it came back by checkpoint");
    }
}

#[test]
fn lazy_answers_before_the_disk_and_a_durable_request_after_it() {
    let mut group = Group::new(3, Durability::Lazy);
    assert_eq!(group.ask(b"begin"), "5");
    group.run(100);
    group.stick();
    assert_eq!(group.ask(b"fast"), "9");
    let primary = group.primary();
    let report = group.report(primary);
    assert!(report.durable.op < report.commit && report.lag_bytes > 0, "{report:?}");
    let now = group.time();
    group.client.submit(now, Bytes::from_static(b"sure"), true, &mut group.sends).unwrap();
    group.run(300);
    assert_eq!(group.finished, [], "it waits for two disks");
    group.unstick(primary);
    group.run(50);
    assert_eq!(group.finished, [], "it waits for two disks");
    group.unstick(ReplicaId((primary.0 + 1) % 3));
    assert_eq!(group.answer(), "13");
    group.run(50);
    assert_eq!(group.report(primary).lag_bytes, 0);
}

#[test]
fn a_group_whose_disks_do_not_follow_stops_taking_requests() {
    let mut group = Group::new(3, Durability::Lazy);
    group.ask(b"begin");
    group.run(100);
    group.stick();
    for _ in 0..30 {
        group.submit(&[b'x'; 100]);
        group.deliver();
    }
    let done = group.finished.len();
    assert!((5..25).contains(&done), "{done} were answered");
    let primary = group.primary();
    assert!(group.report(primary).lag_bytes < 3_000, "{:?}", group.report(primary));
    (0..3).for_each(|id| group.unstick(ReplicaId(id)));
    group.run(1_000);
    assert_eq!(group.finished.len(), 30);
}

#[test]
fn what_a_crash_of_all_takes_is_reported_or_replayed() {
    for on_loss in [OnLoss::Report, OnLoss::Replay] {
        let mut group = Group::with(3, Durability::Lazy, on_loss);
        assert_eq!(group.ask(b"kept"), "4");
        group.run(100);
        group.stick();
        assert_eq!(group.ask(b"lost1"), "9");
        assert_eq!(group.ask(b"lost2"), "14");
        group.crash_all();
        group.submit(b"next");
        group.run(2_000);
        let loss = group.client.take_loss().expect("two are gone");
        let bodies = group.finished.drain(..).map(|finished| match finished.answer {
            Answer::Done { body, .. } => (finished.again, body),
            other => panic!("{other:?}"),
        });
        let bodies: Vec<_> = bodies.collect();
        match on_loss {
            OnLoss::Report => {
                assert_eq!((loss.dropped.len(), bodies.len()), (1, 0));
                assert_eq!(group.sums(), vec![4; 3]);
                assert_eq!(group.ask(b"after"), "9");
            }
            OnLoss::Replay => {
                assert_eq!(loss.replayed, 2);
                let expected = [(true, "9"), (true, "14"), (false, "18")];
                assert_eq!(bodies, expected.map(|(again, body)| (again, Bytes::from(body))));
                assert_eq!(group.sums(), vec![18; 3]);
                assert_eq!(group.client.tentative(), 0);
            }
        }
        assert!(group.client.take_loss().is_none());
    }
}

/// An operation that only the primary and a replica that forgets it have acknowledged; the third
/// replica was paused, and now the primary is.
fn one_forgot_and_one_never_heard() -> (Group, ReplicaId, Host<Replica, Sum>) {
    let mut group = Group::new(3, Durability::Lazy);
    group.ask(b"begin");
    group.run(100);
    let primary = group.primary();
    let (forgets, ignorant) = (ReplicaId((primary.0 + 1) % 3), ReplicaId((primary.0 + 2) % 3));
    group.stuck[forgets.index()] = Some(VecDeque::new());
    let paused = group.hosts[ignorant.index()].take();
    assert_eq!(group.ask(b"dear"), "9");
    group.crash(forgets);
    let primarys = group.hosts[primary.index()].take().unwrap();
    group.hosts[ignorant.index()] = paused;
    group.start(forgets, Trust::Intact);
    (group, primary, primarys)
}

#[test]
fn a_forgetful_vote_waits_for_one_who_remembers() {
    let (mut group, primary, primarys) = one_forgot_and_one_never_heard();
    group.run(900);
    let leads = |host: &Host<_, _>| role(host) == Role::Primary;
    assert!(!group.hosts.iter().flatten().any(leads), "it would cost what was acknowledged");
    group.hosts[primary.index()] = Some(primarys);
    group.run(1_000);
    assert_eq!(group.sums(), vec![9; 3]);
    for id in (0..3).map(ReplicaId) {
        let report = group.report(id);
        assert!(!report.forgetful && report.rolled_back == 0, "{report:?}");
        assert_eq!(report.risky_elections, 0);
    }
}

#[test]
fn patience_ends_and_the_loss_is_reported() {
    let (mut group, primary, primarys) = one_forgot_and_one_never_heard();
    group.run(2_000);
    let elected = group.primary();
    assert_eq!(group.report(elected).risky_elections, 1);
    group.hosts[primary.index()] = Some(primarys);
    group.run(1_000);
    assert_eq!(group.sums(), vec![5; 3]);
    assert_eq!(group.report(primary).rolled_back, 1);
    group.submit(b"more");
    group.run(300);
    assert_eq!(group.client.take_loss().map(|loss| loss.dropped.len()), Some(1));
}

#[test]
fn a_long_replay_ends_and_reads_wait_for_it() {
    let mut group = Group::with(3, Durability::Lazy, OnLoss::Replay);
    assert_eq!(group.ask(b"kept"), "4");
    group.run(100);
    group.limits_off();
    for _ in 0..200 {
        group.submit(b"x");
        group.deliver();
    }
    assert_eq!(group.client.tentative(), 200);
    group.finished.clear();
    group.crash_all();
    let now = group.time();
    for _ in 0..20 {
        group.client.read(now, Bytes::new(), &mut group.sends).expect("nothing is known yet");
    }
    for _ in 0..3_000 {
        group.run(1);
        if group.finished.len() >= 220 {
            break;
        }
    }
    let (reads, writes): (Vec<_>, Vec<_>) = group.finished.iter().partition(|done| done.read);
    assert_eq!((reads.len(), writes.len()), (20, 200));
    assert!(writes.iter().all(|done| done.again));
    for read in reads {
        let Answer::Done { body, .. } = &read.answer else { panic!("{read:?}") };
        assert_eq!(body, "204", "a read sees every write that was answered before it");
    }
    assert_eq!(group.sums(), vec![204; 3]);
}
