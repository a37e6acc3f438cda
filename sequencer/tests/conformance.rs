//! The suite against the end-host sequencer, over loopback, and what is its alone.

mod suite;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use oum::Control;
use sequencer::{Counts, EndHost, Event};
use smr::GroupId;
use suite::Site;

struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counts>,
}

impl Running {
    fn start(listen: &str, spin: Duration) -> Running {
        Running::telling(listen, spin, Box::new(|_| ()))
    }

    fn telling(listen: &str, spin: Duration, events: Box<dyn FnMut(&Event) + Send>) -> Running {
        let listen = listen.parse().expect("an address");
        let end_host = EndHost::open(listen, events).expect("a sequencer");
        let address = end_host.address().expect("bound");
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        let thread = std::thread::spawn(move || end_host.run(spin, &seen).expect("no error"));
        Running { address, stop, thread }
    }

    fn stop(self) -> Counts {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

fn socket(host: &str) -> UdpSocket {
    UdpSocket::bind((host, 0)).expect("a socket")
}

/// What the sequencer answers.
fn ask(outside: &UdpSocket, sequencer: SocketAddr, control: Control) -> Control {
    outside.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let mut datagram = Vec::new();
    control.encode(&mut datagram);
    outside.send_to(&datagram, sequencer).expect("sent");
    let mut buffer = [0; 256];
    let (length, _) = outside.recv_from(&mut buffer).expect("answered");
    Control::decode(&Bytes::copy_from_slice(&buffer[..length])).expect("a control message")
}

#[test]
fn the_end_host_sequencer_conforms() {
    for (host, spin) in [("127.0.0.1", 0), ("127.0.0.1", 100), ("::1", 0)] {
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let running = Running::start(&format!("{bracketed}:0"), Duration::from_micros(spin));
        let members = (0..3).map(|_| socket(host)).collect();
        suite::run(&Site { sequencer: running.address, outside: socket(host), members });
        let counts = running.stop();
        assert_eq!(counts.unsent, 0);
        assert!(counts.unreadable > 30 && counts.restamped == 4, "{counts}");
        assert!(counts.unknown_group == 1 && counts.refused >= 5, "{counts}");
    }
}

#[test]
fn a_member_that_cannot_be_sent_to_keeps_nothing_from_the_others() {
    let running = Running::start("127.0.0.1:0", Duration::ZERO);
    let outside = socket("127.0.0.1");
    let member = socket("127.0.0.1");
    member.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let group = GroupId(9);
    let Control::Opened { life, .. } = ask(&outside, running.address, Control::Probe { group })
    else {
        panic!("no answer")
    };
    // Another family than the sequencer's socket has.
    let unreachable = "[::1]:9".parse().expect("an address");
    let members = vec![unreachable, member.local_addr().expect("bound")];
    let session = oum::Session(1);
    let open = Control::Open { group, session, life, members, multicast: None };
    ask(&outside, running.address, open);
    let mut message = Vec::new();
    oum::Sender::new(group).message(b"to all", &mut message);
    for _ in 0..3 {
        outside.send_to(&message, running.address).expect("sent");
        let mut buffer = [0; 256];
        member.recv_from(&mut buffer).expect("forwarded");
    }
    assert_eq!(running.stop().unsent, 3);
}

/// A socket that hears a multicast address on this machine alone.
fn joined(group: SocketAddrV4) -> UdpSocket {
    use rustix::net;
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::DGRAM, None);
    let socket = socket.expect("a socket");
    net::sockopt::set_socket_reuseaddr(&socket, true).expect("set");
    net::bind(&socket, &group).expect("bound");
    let socket = UdpSocket::from(socket);
    socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST).expect("joined");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    socket
}

/// Opens session 1 for members that hear `multicast`, too.
fn open(
    outside: &UdpSocket,
    sequencer: SocketAddr,
    group: GroupId,
    members: &[&UdpSocket],
    multicast: SocketAddrV4,
) {
    let Control::Opened { life, .. } = ask(outside, sequencer, Control::Probe { group }) else {
        panic!("no answer")
    };
    let members = members.iter().map(|member| member.local_addr().expect("bound")).collect();
    let (session, multicast) = (oum::Session(1), Some(multicast));
    let opened =
        ask(outside, sequencer, Control::Open { group, session, life, members, multicast });
    assert_eq!(opened, Control::Opened { group, session, life, stamped: 0 });
}

/// Has so many messages stamped, each of which all of these receive.
fn all_receive(outside: &UdpSocket, sequencer: SocketAddr, group: GroupId, all: &[&UdpSocket]) {
    for number in 1..=20 {
        let mut message = Vec::new();
        oum::Sender::new(group).message(b"to all", &mut message);
        outside.send_to(&message, sequencer).expect("sent");
        for socket in all {
            let mut buffer = [0; 256];
            let (length, _) = socket.recv_from(&mut buffer).expect("forwarded");
            let header = oum::Header::peek(&buffer[..length]).expect("a message");
            assert_eq!((header.session, header.sequence), (oum::Session(1), number));
        }
    }
}

#[test]
fn members_that_hear_a_multicast_address_get_one_copy_there() {
    let running = Running::start("127.0.0.1:0", Duration::ZERO);
    let first = joined(SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 1), 0));
    let SocketAddr::V4(multicast) = first.local_addr().expect("bound") else { panic!("IPv6") };
    let joined = [first, joined(multicast), joined(multicast)];
    let (outside, own) = (socket("127.0.0.1"), [0; 3].map(|_| socket("127.0.0.1")));
    let group = GroupId(4);
    open(&outside, running.address, group, &own.each_ref(), multicast);
    all_receive(&outside, running.address, group, &joined.each_ref());
    for member in &own {
        member.set_nonblocking(true).expect("set");
        let error = member.recv_from(&mut [0; 256]).expect_err("it gets no copy of its own");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
    assert_eq!(running.stop().unsent, 0);
}

#[test]
fn members_get_a_copy_each_where_there_is_no_way_to_their_multicast_address() {
    let (told, events) = std::sync::mpsc::channel();
    let tell = Box::new(move |event: &Event| told.send(event.clone()).expect("the test waits"));
    let running = Running::telling("[::1]:0", Duration::ZERO, tell);
    let (outside, members) = (socket("::1"), [0; 3].map(|_| socket("::1")));
    let (group, multicast) = (GroupId(4), SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 2), 7_600));
    open(&outside, running.address, group, &members.each_ref(), multicast);
    for member in &members {
        member.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    }
    all_receive(&outside, running.address, group, &members.each_ref());
    assert_eq!(running.stop().unsent, 0);
    let Ok(Event::NoWay { multicast: at, .. }) = events.recv() else { panic!("it is told") };
    assert_eq!(at, multicast);
    let (session, members) = (oum::Session(1), 3);
    assert_eq!(events.recv(), Ok(Event::Opened { group, session, members, multicast: None }));
}

#[test]
fn every_start_is_another_life() {
    let life = || {
        let running = Running::start("127.0.0.1:0", Duration::ZERO);
        let probe = Control::Probe { group: GroupId(1) };
        let answer = ask(&socket("127.0.0.1"), running.address, probe);
        running.stop();
        match answer {
            Control::Opened { life, .. } => life,
            other => panic!("{other:?}"),
        }
    };
    assert_ne!(life(), life());
}
