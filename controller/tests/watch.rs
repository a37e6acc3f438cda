//! The watch in a simulated world: controllers of which several may lead, sequencers that die and
//! come back, members that are cut off, a network that loses, doubles and delays. Whatever happens,
//! no two messages get the same number of the same session; when all has healed, everybody is in
//! one session of a living sequencer.

#![allow(missing_docs)]

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::net::SocketAddr;

use controller::{Act, Addresses, Config, Group, Timing, Watch};
use oum::{Control, Life, Sender, Sequencer, Session};
use smr::rng::Rng;
use smr::{Context, GroupId, OpNumber, ReplicaId, StateMachine};

const GROUP: GroupId = GroupId(0xa1);
const CONTROLLERS: usize = 2;
const SEQUENCERS: usize = 2;
const MEMBERS: usize = 3;
const FAULTS_END: u64 = 4_000_000;
const SETTLED: u64 = 5_500_000;
const END: u64 = 6_000_000;

fn at(kind: u8, index: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, kind, index as u8], 1))
}

const CONTROLLER: u8 = 0;
const SEQUENCER: u8 = 1;
const MEMBER: u8 = 2;
const CLIENT: u8 = 3;

fn place(address: SocketAddr) -> (u8, usize) {
    match address {
        SocketAddr::V4(v4) => (v4.ip().octets()[2], usize::from(v4.ip().octets()[3])),
        SocketAddr::V6(_) => unreachable!("no such address"),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Tick(usize),
    Deliver {
        from: SocketAddr,
        to: SocketAddr,
        datagram: Vec<u8>,
    },
    /// A command reaches the group of controllers.
    Commit {
        by: usize,
        line: String,
    },
    /// Its answer reaches who has asked.
    Answer {
        to: usize,
        line: String,
    },
    Chaos,
    Send,
    Complain,
}

struct Process {
    life: Life,
    sequencer: Sequencer,
    up: bool,
}

#[derive(Default)]
struct Member {
    session: u32,
    sequencer: Option<SocketAddr>,
    /// It does not hear these.
    deaf_to: BTreeSet<usize>,
}

struct World {
    rng: Rng,
    now: u64,
    count: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    config: Config,
    watches: Vec<Watch>,
    leads: Vec<bool>,
    processes: Vec<Process>,
    members: Vec<Member>,
    /// Which messages have got a stamp.
    stamps: BTreeSet<(u32, u64)>,
    violation: Option<String>,
    /// Planted: sequencers take an `Open` that is for another life.
    ignores_life: bool,
    sessions: BTreeSet<u32>,
}

impl World {
    fn new(seed: u64, ignores_life: bool) -> World {
        let mut rng = Rng::new(seed);
        let mut config = Config::default();
        let members: Vec<String> = (0..MEMBERS).map(|n| at(MEMBER, n).to_string()).collect();
        let mut lines = format!("group {:x} {}\n", GROUP.0, members.join(","));
        for n in 0..SEQUENCERS {
            lines += &format!("sequencer {}\n", at(SEQUENCER, n));
        }
        let context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };
        config.apply(context, lines.as_bytes(), &mut Vec::new());
        let process = |rng: &mut Rng| Process {
            life: Life(rng.next_u64()),
            sequencer: Sequencer::default(),
            up: true,
        };
        let processes = (0..SEQUENCERS).map(|_| process(&mut rng)).collect();
        let mut world = World {
            rng,
            now: 0,
            count: 0,
            queue: BinaryHeap::new(),
            config,
            watches: (0..CONTROLLERS).map(|_| Watch::new(Timing::default())).collect(),
            leads: vec![false; CONTROLLERS],
            processes,
            members: (0..MEMBERS).map(|_| Member::default()).collect(),
            stamps: BTreeSet::new(),
            violation: None,
            ignores_life,
            sessions: BTreeSet::new(),
        };
        for controller in 0..CONTROLLERS {
            world.after(0, Event::Tick(controller));
        }
        world.lead(0, true);
        for event in [Event::Chaos, Event::Send, Event::Complain] {
            world.after(10_000, event);
        }
        world
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((self.now + delay, self.count, event)));
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn run(&mut self, until: u64) {
        while self.violation.is_none()
            && self.queue.peek().is_some_and(|Reverse((due, ..))| *due <= until)
        {
            let Reverse((now, _, event)) = self.queue.pop().expect("just seen");
            self.now = now;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(who) => {
                let mut acts = Vec::new();
                self.watches[who].tick(self.now, &mut acts);
                self.act(who, acts);
                // What is committed is read now and then.
                if self.leads[who] && self.chance(10) {
                    self.commit(who, "show\n".to_owned());
                }
                let pause = 4_000 + self.rng.below(3_000);
                self.after(pause, Event::Tick(who));
            }
            Event::Deliver { from, to, datagram } => self.deliver(from, to, &datagram),
            Event::Commit { by, line } => {
                let context = Context { position: OpNumber(self.count), index: 0, unix_ms: 0 };
                let mut answer = Vec::new();
                self.config.apply(context, line.as_bytes(), &mut answer);
                let line = String::from_utf8(answer).expect("text");
                let delay = self.delay();
                self.after(delay, Event::Answer { to: by, line });
            }
            Event::Answer { to, line } => self.on_answer(to, line.trim()),
            Event::Chaos => {
                self.chaos();
                let pause = 20_000 + self.rng.below(150_000);
                self.after(pause, Event::Chaos);
            }
            Event::Send => {
                let mut message = Vec::new();
                Sender::new(GROUP).message(b"", &mut message);
                for n in 0..SEQUENCERS {
                    self.send(at(CLIENT, 0), at(SEQUENCER, n), message.clone());
                }
                self.after(2_000, Event::Send);
            }
            Event::Complain => {
                for n in 0..MEMBERS {
                    let Some(sequencer) = self.members[n].sequencer else { continue };
                    if self.members[n].deaf_to.contains(&place(sequencer).1) {
                        let session = Session(self.members[n].session);
                        let from = ReplicaId(n as u8);
                        let complaint = Control::Unheard { group: GROUP, session, from };
                        (0..CONTROLLERS).for_each(|c| {
                            self.tell(at(MEMBER, n), at(CONTROLLER, c), &complaint);
                        });
                    }
                }
                self.after(50_000, Event::Complain);
            }
        }
    }

    fn delay(&mut self) -> u64 {
        let late = self.faulty() && self.chance(5);
        50 + self.rng.below(if late { 300_000 } else { 1_000 })
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, datagram: Vec<u8>) {
        let lost = self.faulty() && self.chance(15);
        let copies = if lost { 0 } else { 1 + usize::from(self.faulty() && self.chance(10)) };
        for _ in 0..copies {
            let delay = self.delay();
            self.after(delay, Event::Deliver { from, to, datagram: datagram.clone() });
        }
    }

    fn tell(&mut self, from: SocketAddr, to: SocketAddr, control: &Control) {
        let mut datagram = Vec::new();
        control.encode(&mut datagram);
        self.send(from, to, datagram);
    }

    fn lead(&mut self, who: usize, leads: bool) {
        self.leads[who] = leads;
        self.watches[who].lead(false);
        if leads {
            self.commit(who, "show\n".to_owned());
        }
    }

    fn commit(&mut self, by: usize, line: String) {
        let delay = 200 + self.rng.below(if self.faulty() { 100_000 } else { 1_000 });
        self.after(delay, Event::Commit { by, line });
    }

    fn on_answer(&mut self, to: usize, line: &str) {
        if !self.leads[to] {
            return;
        }
        let now = self.now;
        let mut acts = Vec::new();
        let watch = &mut self.watches[to];
        match line.split_once(' ') {
            Some(("all", _)) => {
                watch.lead(true);
                let sequencers: Vec<SocketAddr> =
                    (0..SEQUENCERS).map(|n| at(SEQUENCER, n)).collect();
                watch.learn_sequencers(&sequencers);
                let group = line.split(';').nth(1).expect("there is a group");
                watch.learn_group(now, GROUP, &read(group), &mut acts);
            }
            Some(("group", group)) => watch.learn_group(now, GROUP, &read(group), &mut acts),
            _ => panic!("refused: {line}"),
        }
        self.act(to, acts);
    }

    fn act(&mut self, who: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Send(to, control) => self.tell(at(CONTROLLER, who), to, &control),
                Act::Propose { group, present, sequencer, life } => {
                    let next = controller::Command::Next { group, present, sequencer, life };
                    self.commit(who, format!("{next}\n"));
                }
                Act::Settle { group, present } => {
                    let settle = controller::Command::Settle { group, present };
                    self.commit(who, format!("{settle}\n"));
                }
                Act::Tell(_) => {}
            }
        }
    }

    fn deliver(&mut self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        let (kind, index) = place(to);
        let control = Control::decode(&datagram.to_vec().into());
        match kind {
            CONTROLLER => {
                let mut acts = Vec::new();
                let control = control.expect("members and sequencers make sense");
                self.watches[index].receive(self.now, from, &control, &mut acts);
                self.act(index, acts);
            }
            SEQUENCER if self.processes[index].up => match control {
                Ok(control) => self.on_sequencer(index, from, &control),
                Err(_) => self.stamp(index, datagram),
            },
            MEMBER => {
                let Ok(Control::Listen { session, sequencer, .. }) = control else { return };
                let member = &mut self.members[index];
                if session.0 > member.session {
                    (member.session, member.sequencer) = (session.0, Some(sequencer));
                }
                let session = Session(member.session);
                let known = Control::Listening {
                    group: GROUP,
                    session,
                    from: ReplicaId(index as u8),
                    settled: false,
                };
                self.tell(to, from, &known);
            }
            _ => {}
        }
    }

    fn on_sequencer(&mut self, index: usize, from: SocketAddr, control: &Control) {
        let process = &mut self.processes[index];
        if let Control::Open { group, session, life, .. } = *control
            && (life == process.life || self.ignores_life)
            && process.sequencer.begin(group, session)
        {
            self.sessions.insert(session.0);
        }
        let (group, life) = (control.group(), process.life);
        let (session, stamped) = process.sequencer.session(group).unwrap_or_default();
        self.tell(at(SEQUENCER, index), from, &Control::Opened { group, session, life, stamped });
    }

    fn stamp(&mut self, index: usize, message: &[u8]) {
        let mut message = message.to_vec();
        let Ok(header) = self.processes[index].sequencer.stamp(&mut message) else { return };
        if !self.stamps.insert((header.session.0, header.sequence)) {
            self.violation = Some(format!(
                "number {} of session {} was given twice",
                header.sequence, header.session.0
            ));
        }
    }

    fn chaos(&mut self) {
        if !self.faulty() {
            self.heal();
            return;
        }
        let (process, member) = (self.pick(SEQUENCERS), self.pick(MEMBERS));
        match self.rng.below(6) {
            0 | 1 => self.restart(process),
            2 => self.processes[process].up = false,
            3 => {
                let who = self.pick(CONTROLLERS);
                let leads = !self.leads[who];
                self.lead(who, leads);
            }
            4 => drop(self.members[member].deaf_to.insert(process)),
            _ => self.members[member].deaf_to.clear(),
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        self.rng.below(count as u64) as usize
    }

    fn restart(&mut self, index: usize) {
        let life = Life(self.rng.next_u64());
        self.processes[index] = Process { life, sequencer: Sequencer::default(), up: true };
    }

    fn heal(&mut self) {
        for member in &mut self.members {
            member.deaf_to.clear();
        }
        for index in 0..SEQUENCERS {
            if !self.processes[index].up {
                self.restart(index);
            }
        }
        for who in 0..CONTROLLERS {
            if self.leads[who] != (who == 0) {
                self.lead(who, who == 0);
            }
        }
    }

    fn group(&self) -> Group {
        let mut answer = Vec::new();
        self.config.read(0, b"show\n", &mut answer);
        let line = String::from_utf8(answer).expect("text");
        read(line.trim().split(';').nth(1).expect("there is a group"))
    }
}

/// What `show` says of a group.
fn read(text: &str) -> Group {
    let words: Vec<&str> = text.split(' ').collect();
    let life = Life(u64::from_str_radix(words[3], 16).expect("a life"));
    let members = words[4].split(',').map(|at| at.parse().expect("an address"));
    Group {
        session: Session(words[1].parse().expect("a session")),
        sequencer: words[2].parse().ok().map(|at| (at, life)),
        ..Group::new(Addresses::new(members.collect(), None).expect("members"))
    }
}

#[test]
fn no_number_is_given_twice_and_all_end_in_one_session() {
    let wanted = std::env::var("CONTROLLER_SEEDS").ok();
    let seeds = wanted.map_or(300, |text| text.parse().expect("a number"));
    let mut sessions = 0;
    for seed in 0..seeds {
        let mut world = World::new(seed, false);
        world.run(SETTLED);
        let (settled, stamped) = (world.group(), world.stamps.len());
        world.run(END);
        assert_eq!(world.violation, None, "seed {seed}");
        let group = world.group();
        assert_eq!(settled, group, "seed {seed}: it changes without need");
        assert!(world.stamps.len() > stamped, "seed {seed}: nothing is stamped");
        let (sequencer, life) = group.sequencer.expect("a sequencer");
        let process = &world.processes[place(sequencer).1];
        assert!(process.up && process.life == life, "seed {seed}: the sequencer is dead");
        let (open, _) = process.sequencer.session(GROUP).expect("open");
        assert_eq!(open, group.session, "seed {seed}");
        for member in &world.members {
            let known = (member.session, member.sequencer);
            assert_eq!(known, (group.session.0, Some(sequencer)), "seed {seed}");
        }
        sessions += world.sessions.len();
    }
    assert!(sessions as u64 > seeds * 5, "only {sessions} sessions: the world is too kind");
}

#[test]
fn an_open_for_another_life_would_give_numbers_twice() {
    let violations = (0..300).filter(|&seed| {
        let mut world = World::new(seed, true);
        world.run(FAULTS_END);
        world.violation.is_some()
    });
    assert!(violations.count() > 0, "the world does not find what it is there for");
}
