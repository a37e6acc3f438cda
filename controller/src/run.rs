//! One controller: a replica of the configuration on one thread, the watch with its socket on
//! another. The watch asks the replica's group over a connection, like anybody else, and hears from
//! the node's events whether this replica leads.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use node::{Event, Node, clock};
use oum::Control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smr::{GroupId, Role};

use crate::config::Config;
use crate::face::Lines;
use crate::link::{Answer, Link};
use crate::text::{Addresses, Command, ParseError, Shown};
use crate::watch::{Act, News, Reason, Timing, Watch};

/// The configuration is read so often, in microseconds: others may have changed it.
const SHOW_EVERY: u64 = 50_000;
/// A leader that cannot read it for so long, in microseconds, takes itself for none.
const SHOW_PATIENCE: u64 = 1_000_000;
/// The watch sleeps no longer than this, in microseconds, so that it notices that it leads.
const LONGEST_SLEEP: u64 = 5_000;
/// Datagrams taken in one turn.
const TURN: usize = 256;

/// How one controller is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its replica of the configuration.
    pub node: node::Options,
    /// Where its own face is reached.
    pub face: SocketAddr,
    /// Where the controllers are reached by datagrams, by id.
    pub controllers: Vec<SocketAddr>,
    /// How often, and how long.
    pub timing: Timing,
    /// Sequencers that may be chosen, beside those that the group knows.
    pub sequencers: Vec<SocketAddr>,
    /// Groups that are made if they do not exist.
    pub groups: Vec<(GroupId, Addresses)>,
}

/// Why a controller cannot go on.
#[derive(Debug)]
pub enum Error {
    /// Its replica.
    Node(node::Error),
    /// Its socket, and what was to be done with it.
    Socket(&'static str, SocketAddr, io::Error),
    /// Its own face gave an answer that makes no sense.
    Face(ParseError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Node(error) => error.fmt(f),
            Error::Socket(what, at, error) => write!(f, "cannot {what} {at} over UDP: {error}"),
            Error::Face(error) => write!(f, "the configuration is not readable: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Who leads, as far as this replica knows.
#[derive(Clone, Copy, Debug)]
struct Leadership {
    leads: bool,
    leader: Option<usize>,
}

/// Runs a controller until `stop` is set. `events` is told what an operator should know.
///
/// # Errors
/// If an address cannot be had, the data directory cannot be used, or the disk fails.
pub fn run(
    options: Options,
    stop: &Arc<AtomicBool>,
    events: impl Fn(&str) + Clone + Send + 'static,
) -> Result<(), Error> {
    let at = options.controllers[usize::from(options.node.replica.0)];
    let socket = UdpSocket::bind(at).map_err(|error| Error::Socket("listen on", at, error))?;
    let set = socket.set_nonblocking(true);
    set.map_err(|error| Error::Socket("set up", at, error))?;
    let (sender, leadership) = channel();
    let told = events.clone();
    let on_event = Box::new(move |event: &Event| on_event(event, &sender, &told));
    let node = Node::open(options.node.clone(), Lines, Config::default(), on_event);
    let node = node.map_err(Error::Node)?;
    events(&format!("taking commands on {}, datagrams on {at} over UDP", options.face));
    let seen = Arc::clone(stop);
    let watcher = std::thread::spawn(move || {
        let ended = Watcher::new(options, socket, leadership, Box::new(events)).run(&seen);
        // Without its watch a controller is of no use: another one takes over.
        seen.store(true, Ordering::Relaxed);
        ended
    });
    let ran = node.run(stop).map_err(Error::Node);
    stop.store(true, Ordering::Relaxed);
    let watched = watcher.join().expect("the watch does not panic");
    ran.map(|_| ()).and(watched)
}

fn on_event(event: &Event, sender: &Sender<Leadership>, tell: &impl Fn(&str)) {
    if let Event::Role { role, view, .. } = *event {
        let leader = matches!(role, Role::Primary | Role::Backup);
        let leader = leader.then(|| usize::from(view.primary().0));
        // The watch may have ended.
        let _ = sender.send(Leadership { leads: role == Role::Primary, leader });
    }
    tell(&event.to_string());
}

struct Watcher {
    options: Options,
    socket: UdpSocket,
    leadership: Receiver<Leadership>,
    tell: Box<dyn Fn(&str)>,
    watch: Watch,
    link: Link,
    /// The replica says that it leads.
    elected: bool,
    asked_at: u64,
    shown_at: u64,
    acts: Vec<Act>,
}

impl Watcher {
    fn new(
        options: Options,
        socket: UdpSocket,
        leadership: Receiver<Leadership>,
        tell: Box<dyn Fn(&str)>,
    ) -> Watcher {
        Watcher {
            watch: Watch::new(options.timing),
            link: Link::new(options.face),
            options,
            socket,
            leadership,
            tell,
            elected: false,
            asked_at: 0,
            shown_at: 0,
            acts: Vec::new(),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Result<(), Error> {
        // Relaxed: the flag stands for itself.
        while !stop.load(Ordering::Relaxed) {
            self.wait()?;
            self.follow(clock::now().micros);
            self.take_answers()?;
            self.take_datagrams()?;
            let now = clock::now().micros;
            self.read_configuration(now);
            self.watch.tick(now, &mut self.acts);
            self.act();
        }
        Ok(())
    }

    fn wait(&self) -> Result<(), Error> {
        let now = clock::now().micros;
        let due = self.watch.deadline().unwrap_or(u64::MAX);
        let sleep = due.saturating_sub(now).min(LONGEST_SLEEP);
        let timeout = Timespec { tv_sec: 0, tv_nsec: sleep as i64 * 1000 };
        let mut files = vec![PollFd::new(&self.socket, PollFlags::IN)];
        files.extend(self.link.stream().map(|stream| PollFd::new(stream, PollFlags::IN)));
        match poll(&mut files, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(self.broken("wait for", error.into())),
        }
    }

    fn broken(&self, what: &'static str, error: io::Error) -> Error {
        let own = self.options.controllers[usize::from(self.options.node.replica.0)];
        Error::Socket(what, own, error)
    }

    /// Learns who leads. A leader first reads the configuration.
    fn follow(&mut self, now: u64) {
        for Leadership { leads, leader } in self.leadership.try_iter() {
            if leads != self.elected {
                self.watch.lead(false);
                // Answers to what was asked before are of no use.
                self.link.close();
                (self.asked_at, self.shown_at) = (0, now);
            }
            self.elected = leads;
            let place = leader.and_then(|leader| self.options.controllers.get(leader));
            self.watch.follow(place.copied());
        }
    }

    fn read_configuration(&mut self, now: u64) {
        if !self.elected {
            return;
        }
        if now >= self.asked_at + SHOW_EVERY && !self.link.shows() {
            self.asked_at = now;
            self.link.ask(&Command::Show);
        }
        if self.watch.leads() && now >= self.shown_at + SHOW_PATIENCE {
            (self.tell)("no majority of the controllers answers: this one no longer leads");
            self.watch.lead(false);
        }
    }

    fn take_answers(&mut self) -> Result<(), Error> {
        let now = clock::now().micros;
        for answer in self.link.answers().map_err(Error::Face)? {
            match answer {
                Answer::All(shown) => self.on_shown(now, &shown),
                Answer::Group(id, group) => {
                    self.watch.learn_group(now, id, &group, &mut self.acts);
                    self.act();
                }
                Answer::Refused(why) => (self.tell)(&format!("refused: {why}")),
                Answer::Done => {}
            }
        }
        Ok(())
    }

    fn on_shown(&mut self, now: u64, shown: &Shown) {
        if !self.elected {
            return;
        }
        self.shown_at = now;
        self.watch.lead(true);
        self.watch.learn_sequencers(&shown.sequencers);
        for (id, group) in &shown.groups {
            self.watch.learn_group(now, *id, group, &mut self.acts);
        }
        let sequencers = self.options.sequencers.iter();
        let unknown = sequencers.filter(|at| !shown.sequencers.contains(at));
        let mut missing: Vec<Command> = unknown.map(|&at| Command::Sequencer(at)).collect();
        for (id, addresses) in &self.options.groups {
            if !shown.groups.iter().any(|(known, _)| known == id) {
                missing.push(Command::Create(*id, addresses.clone()));
            }
        }
        for command in missing {
            self.link.ask(&command);
            self.asked_at = 0; // and see what has become of it
        }
    }

    fn take_datagrams(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 2048];
        for _ in 0..TURN {
            let (length, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(self.broken("receive on", error)),
            };
            // What makes no sense is dropped.
            let Ok(control) = Control::decode(&Bytes::copy_from_slice(&buffer[..length])) else {
                continue;
            };
            self.watch.receive(clock::now().micros, from, &control, &mut self.acts);
            self.act();
        }
        Ok(())
    }

    fn act(&mut self) {
        let mut datagram = Vec::new();
        for act in std::mem::take(&mut self.acts) {
            match act {
                Act::Send(to, control) => {
                    datagram.clear();
                    control.encode(&mut datagram);
                    // Lost, as it could be on its way: it is sent again.
                    let _ = self.socket.send_to(&datagram, to);
                }
                Act::Propose { group, present, sequencer, life } => {
                    self.link.ask(&Command::Next { group, present, sequencer, life });
                }
                Act::Settle { group, present } => {
                    self.link.ask(&Command::Settle { group, present });
                }
                Act::Tell(news) => (self.tell)(&describe(&news)),
            }
        }
    }
}

fn describe(news: &News) -> String {
    match *news {
        News::Failed(group, session, at, reason) => {
            let why = match reason {
                Reason::Silent => "does not answer",
                Reason::Restarted => "was restarted",
                Reason::Unheard => "is not heard by the members",
                Reason::Worn => "stays, but the session has had many leaders: another one begins",
            };
            format!("group {:x}: sequencer {at} of session {} {why}", group.0, session.0)
        }
        News::NoOther(group, session) => format!(
            "group {:x}: NOT SERVED: session {} is over and no other sequencer answers; start one \
             of those that the controllers know (`show`)",
            group.0, session.0
        ),
        News::Opened(group, session, at, micros) => {
            let after = millis(micros);
            format!("group {:x}: session {} opened at {at} after {after} ms", group.0, session.0)
        }
        News::Listening(group, session, micros) => {
            let after = millis(micros);
            format!("group {:x}: all members in session {} after {after} ms", group.0, session.0)
        }
    }
}

fn millis(micros: u64) -> String {
    format!("{:.1}", micros as f64 / 1000.0)
}
