//! Real sequencers and controllers: sequencers are killed, restarted and cut off, controllers are
//! killed, and members are told of a higher session each time.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use oum::{Control, Header, Session};
use smr::{GroupId, ReplicaId};
use support::{PATIENCE, PROGRAM, Scratch, free_ports};

const GROUP: GroupId = GroupId(0xa1);

/// What a member has received, and when.
#[derive(Clone, Debug)]
enum Heard {
    Listen(Session, SocketAddr),
    Message(Session, u64, Bytes),
}

/// A member without a protocol behind it: it says that it knows the sessions that it is told of.
struct Member {
    address: SocketAddr,
    heard: Receiver<(Instant, Heard)>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    fn start(id: u8) -> Member {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let address = socket.local_addr().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, heard) = channel();
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                listen(&socket, ReplicaId(id), &sender);
            }
        });
        Member { address, heard, stop, thread: Some(thread) }
    }

    /// Waits until a session above `above` is told; returns when, and what.
    fn told_above(&self, above: Session) -> (Instant, Session, SocketAddr) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left).expect("no higher session is told") {
                (at, Heard::Listen(session, sequencer)) if session > above => {
                    return (at, session, sequencer);
                }
                _ => {}
            }
        }
    }

    fn next_message(&self) -> (Session, u64, Bytes) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (_, heard) = self.heard.recv_timeout(left).expect("no message");
            if let Heard::Message(session, number, payload) = heard {
                return (session, number, payload);
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn listen(socket: &UdpSocket, from: ReplicaId, heard: &Sender<(Instant, Heard)>) {
    let mut buffer = [0; 2048];
    let Ok((length, controller)) = socket.recv_from(&mut buffer) else { return };
    let (now, datagram) = (Instant::now(), Bytes::copy_from_slice(&buffer[..length]));
    if let Ok((header, payload)) = Header::decode(&datagram) {
        let _ = heard.send((now, Heard::Message(header.session, header.sequence, payload)));
    }
    if let Ok(Control::Listen { group, session, sequencer, .. }) = Control::decode(&datagram) {
        let _ = heard.send((now, Heard::Listen(session, sequencer)));
        let mut answer = Vec::new();
        Control::Listening { group, session, from, settled: false }.encode(&mut answer);
        let _ = socket.send_to(&answer, controller);
    }
}

/// Sequencers, controllers and members.
struct Site {
    sequencers: Vec<SocketAddr>,
    controllers: Vec<SocketAddr>,
    faces: Vec<SocketAddr>,
    members: Vec<Member>,
    sequencing: Vec<Option<Child>>,
    controlling: Vec<Option<Child>>,
    scratch: Scratch,
}

impl Site {
    fn start(controllers: usize) -> Site {
        let ports = free_ports(2 + 2 * controllers);
        let at = |&port: &u16| SocketAddr::from(([127, 0, 0, 1], port));
        let mut site = Site {
            sequencers: ports[..2].iter().map(at).collect(),
            controllers: ports[2..2 + controllers].iter().map(at).collect(),
            faces: ports[2 + controllers..].iter().map(at).collect(),
            members: (0..3).map(Member::start).collect(),
            sequencing: (0..2).map(|_| None).collect(),
            controlling: (0..controllers).map(|_| None).collect(),
            scratch: Scratch::new(),
        };
        (0..2).for_each(|id| site.start_sequencer(id));
        (0..controllers).for_each(|id| site.start_controller(id, true));
        site
    }

    fn spawn(&self, name: &str, command: &mut Command) -> Child {
        let log = self.scratch.0.join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).expect("a log");
        command.arg("--die-with-parent").arg(std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("the program starts")
    }

    fn start_sequencer(&mut self, id: usize) {
        let mut command = Command::new(PROGRAM);
        command.args(["sequencer", "--listen", &self.sequencers[id].to_string()]);
        self.sequencing[id] = Some(self.spawn(&format!("sequencer{id}"), &mut command));
    }

    fn start_controller(&mut self, id: usize, bootstrap: bool) {
        let list = |addresses: &[SocketAddr]| {
            addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        let members: Vec<SocketAddr> = self.members.iter().map(|member| member.address).collect();
        let mut command = Command::new(PROGRAM);
        command.args(["controller", "--id", &id.to_string()]);
        command.args(["--peers", &list(&self.controllers)]);
        command.args(["--listen", &self.faces[id].to_string()]);
        command.arg("--dir").arg(self.scratch.0.join(format!("controller{id}")));
        command.args(["--sequencers", &list(&self.sequencers)]);
        command.args(["--group", &format!("{:x}={}", GROUP.0, list(&members))]);
        command.args(bootstrap.then_some("--bootstrap"));
        self.controlling[id] = Some(self.spawn(&format!("controller{id}"), &mut command));
    }

    /// All members have been told of the same session above this one; when the last was.
    fn told_above(&self, above: Session) -> (Instant, Session, usize) {
        let told: Vec<_> = self.members.iter().map(|member| member.told_above(above)).collect();
        let (_, session, at) = told[0];
        assert!(told.iter().all(|&(_, s, a)| (s, a) == (session, at)), "{told:?}");
        let place = self.sequencers.iter().position(|&known| known == at);
        let last = told.iter().map(|&(when, ..)| when).max().expect("members");
        (last, session, place.expect("a sequencer of ours"))
    }

    /// What a client sends to the sequencer reaches all members in this session.
    fn serves(&self, place: usize, session: Session, number: u64) {
        let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let payload = [&session.0.to_be_bytes()[..], &number.to_be_bytes()].concat();
        let mut message = Vec::new();
        oum::Sender::new(GROUP).message(&payload, &mut message);
        client.send_to(&message, self.sequencers[place]).expect("sent");
        for member in &self.members {
            let heard = member.next_message();
            assert_eq!(heard, (session, number, Bytes::copy_from_slice(&payload)));
        }
    }

    fn command(&self, controller: usize, line: &str) -> String {
        support::command(&self.faces[controller].to_string(), line)
    }
}

fn kill(child: &mut Option<Child>) {
    let mut child = child.take().expect("it runs");
    child.kill().expect("killed");
    child.wait().expect("waited");
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in self.sequencing.iter_mut().chain(&mut self.controlling).flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for entry in std::fs::read_dir(&self.scratch.0).expect("there").flatten() {
                if let Ok(text) = std::fs::read_to_string(entry.path()) {
                    eprintln!("{}:\n{text}", entry.path().display());
                }
            }
        }
    }
}

#[test]
fn a_killed_sequencer_is_replaced_in_a_higher_session() {
    const ROUNDS: usize = 20;
    let mut site = Site::start(1);
    let (_, mut session, mut place) = site.told_above(Session(0));
    site.serves(place, session, 1);
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        kill(&mut site.sequencing[place]);
        let (told, next, elsewhere) = site.told_above(session);
        took.push(told - start);
        assert!(next > session && elsewhere != place, "{next:?} at {elsewhere}");
        site.serves(elsewhere, next, 1);
        site.serves(elsewhere, next, 2);
        site.start_sequencer(place);
        (session, place) = (next, elsewhere);
        // The next one must have been seen to live before it can take over.
        std::thread::sleep(Duration::from_millis(100));
    }
    took.sort();
    let median = took[ROUNDS / 2];
    println!("kill to Listen at all members: median {median:.1?}, all {took:.1?}");
    // Nobody waited for another's patience; how fast it is when quiet is measured elsewhere.
    assert!(median < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_sequencer_that_is_alone_comes_back_in_a_higher_session() {
    let mut site = Site::start(1);
    let (_, session, place) = site.told_above(Session(0));
    site.serves(place, session, 1);
    site.serves(place, session, 2);
    let other = 1 - place;
    kill(&mut site.sequencing[other]);
    kill(&mut site.sequencing[place]);
    site.start_sequencer(place);
    let (_, next, again) = site.told_above(session);
    assert_eq!(again, place);
    site.serves(place, next, 1);
}

#[test]
fn a_sequencer_that_a_majority_does_not_hear_is_left() {
    let site = Site::start(1);
    let (_, session, place) = site.told_above(Session(0));
    let complain = |member: u8, session: Session| {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let mut datagram = Vec::new();
        Control::Unheard { group: GROUP, session, from: ReplicaId(member) }.encode(&mut datagram);
        socket.send_to(&datagram, site.controllers[0]).expect("sent");
    };
    complain(1, session);
    complain(1, session);
    std::thread::sleep(Duration::from_millis(200));
    assert!(site.command(0, "show").contains(&format!(";a1 {} ", session.0)), "one is not enough");
    complain(2, session);
    let (_, next, elsewhere) = site.told_above(session);
    assert!(next.0 == session.0 + 1 && elsewhere != place, "{next:?} at {elsewhere}");
    site.serves(elsewhere, next, 1);
}

#[test]
fn controllers_are_replaced_and_never_give_a_session_twice() {
    let mut site = Site::start(3);
    let (_, session, place) = site.told_above(Session(0));
    let status = |site: &Site, id: usize| site.command(id, "status");
    let leads = |site: &Site, id: usize| status(site, id).contains(" role primary ");
    let leader = (0..3).find(|&id| leads(&site, id)).expect("one leads");
    // One that does not lead says who does, and answers operators all the same.
    let follower = (leader + 1) % 3;
    let client = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let ask = |to: SocketAddr| {
        let mut datagram = Vec::new();
        Control::Ask { group: GROUP }.encode(&mut datagram);
        client.send_to(&datagram, to).expect("sent");
        let mut buffer = [0; 256];
        let (length, _) = client.recv_from(&mut buffer).expect("answered");
        Control::decode(&Bytes::copy_from_slice(&buffer[..length])).expect("readable")
    };
    let controller = site.controllers[leader];
    assert_eq!(ask(site.controllers[follower]), Control::Elsewhere { group: GROUP, controller });
    let sequencer = site.sequencers[place];
    let (members, multicast) = (oum::Members::all(3), None);
    let listen = Control::Listen { group: GROUP, session, members, sequencer, multicast };
    assert_eq!(ask(controller), listen);
    let shown = site.command(follower, "show");
    assert!(shown.contains(&format!(";a1 {} {sequencer} ", session.0)), "{shown}");
    // The leader dies together with the sequencer.
    kill(&mut site.controlling[leader]);
    kill(&mut site.sequencing[place]);
    let (_, next, elsewhere) = site.told_above(session);
    assert!(next > session && elsewhere != place);
    site.serves(elsewhere, next, 1);
    // All controllers die: the sessions go on from the disks.
    for id in (0..3).filter(|&id| id != leader) {
        kill(&mut site.controlling[id]);
    }
    site.serves(elsewhere, next, 2);
    kill(&mut site.sequencing[elsewhere]);
    site.start_sequencer(place);
    (0..3).for_each(|id| site.start_controller(id, false));
    let (_, last, again) = site.told_above(next);
    assert!(last > next && again == place);
    site.serves(place, last, 1);
}

#[test]
fn members_are_altered_and_wrong_commands_are_refused() {
    let mut site = Site::start(1);
    let (_, session, place) = site.told_above(Session(0));
    let others: Vec<Member> = (0..3).map(Member::start).collect();
    let addresses: Vec<String> = others.iter().map(|one| one.address.to_string()).collect();
    let altered = site.command(0, &format!("alter a1 {}", addresses.join(",")));
    assert!(altered.starts_with(&format!("group a1 {} ", session.0 + 1)), "{altered}");
    site.members = others;
    let (_, next, same) = site.told_above(session);
    assert_eq!((next.0, same), (session.0 + 1, place));
    site.serves(place, next, 1);
    for (line, error) in [
        ("nonsense", "error expected one of: show"),
        ("alter a2 127.0.0.1:1", "error there is no group a2"),
        ("group zz 127.0.0.1:1", "error a group's id"),
        ("alter a1 127.0.0.1:1@127.0.0.1:2", "error a multicast address is"),
    ] {
        let answer = site.command(0, line);
        assert!(answer.starts_with(error), "{line}: {answer}");
    }
    let long = site.command(0, &"x".repeat(2000));
    assert_eq!(long, "error the line is too long");
}

#[test]
fn wrong_flags_are_refused() {
    let scratch = Scratch::new();
    let dir = scratch.0.join("data");
    let dir = dir.to_str().expect("text");
    let base = ["controller", "--id", "0", "--peers", "127.0.0.1:1", "--dir", dir];
    for (flags, error) in [
        (&["--suspect-ms", "5", "--probe-ms", "5"][..], "must be longer than --probe-ms"),
        (&["--group", "a1"], "not ID=MEMBER"),
        (&["--group", "0=127.0.0.1:1"], "not zero"),
        (&["--group", "a1=127.0.0.1:1@127.0.0.2:1"], "239.255.255.255"),
        (&["--group", "a1=127.0.0.1:1@nowhere"], "not address:port"),
        (&["--group", "a1=[::1]:1@239.77.0.1:1"], "have addresses of IPv4"),
        (&["--group", "a1=127.0.0.1:1,127.0.0.1:1"], "different ones"),
        (&["--sequencers", "nowhere"], "not address:port"),
    ] {
        let output = support::run(&[&base[..], flags].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(error), "{flags:?}: {text}");
    }
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let taken = taken.local_addr().expect("bound").to_string();
    let output = support::run(&["sequencer", "--listen", &taken]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("cannot listen on"), "{text}");
}
