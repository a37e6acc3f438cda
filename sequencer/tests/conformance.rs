//! The suite against the end-host sequencer, over loopback, and what is its alone.

mod suite;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use oum::Control;
use sequencer::{Counts, EndHost};
use smr::GroupId;
use suite::Site;

struct Running {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Counts>,
}

impl Running {
    fn start(listen: &str, spin: Duration) -> Running {
        let listen = listen.parse().expect("an address");
        let end_host = EndHost::open(listen, Box::new(|_| ())).expect("a sequencer");
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
    let open = Control::Open { group, session: oum::Session(1), life, members };
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

#[test]
fn members_with_one_multicast_address_get_one_copy() {
    let running = Running::start("127.0.0.1:0", Duration::ZERO);
    let first = joined(SocketAddrV4::new(Ipv4Addr::new(239, 77, 1, 1), 0));
    let address = first.local_addr().expect("bound");
    let SocketAddr::V4(v4) = address else { panic!("IPv6") };
    let members = [first, joined(v4), joined(v4)];
    let outside = socket("127.0.0.1");
    let (group, session) = (GroupId(4), oum::Session(1));
    let Control::Opened { life, .. } = ask(&outside, running.address, Control::Probe { group })
    else {
        panic!("no answer")
    };
    let open = Control::Open { group, session, life, members: vec![address; 3] };
    ask(&outside, running.address, open);
    for number in 1..=20 {
        let mut message = Vec::new();
        oum::Sender::new(group).message(b"to all", &mut message);
        outside.send_to(&message, running.address).expect("sent");
        for member in &members {
            let mut buffer = [0; 256];
            let (length, _) = member.recv_from(&mut buffer).expect("forwarded");
            let header = oum::Header::peek(&buffer[..length]).expect("a message");
            assert_eq!((header.session, header.sequence), (session, number));
        }
    }
    assert_eq!(running.stop().unsent, 0);
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
