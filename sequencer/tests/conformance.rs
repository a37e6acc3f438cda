//! The suite against the end-host sequencer, over loopback, and what is its alone.

mod suite;

use std::net::{SocketAddr, UdpSocket};
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
    outside.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let member = socket("127.0.0.1");
    member.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let group = GroupId(9);
    let ask = |control: Control| {
        let mut datagram = Vec::new();
        control.encode(&mut datagram);
        outside.send_to(&datagram, running.address).expect("sent");
        let mut buffer = [0; 256];
        let (length, _) = outside.recv_from(&mut buffer).expect("answered");
        Control::decode(&Bytes::copy_from_slice(&buffer[..length])).expect("a control message")
    };
    let Control::Opened { life, .. } = ask(Control::Probe { group }) else { panic!("no answer") };
    // Another family than the sequencer's socket has.
    let unreachable = "[::1]:9".parse().expect("an address");
    let members = vec![unreachable, member.local_addr().expect("bound")];
    ask(Control::Open { group, session: oum::Session(1), life, members });
    let mut message = Vec::new();
    oum::Sender::new(group).message(b"to all", &mut message);
    for _ in 0..3 {
        outside.send_to(&message, running.address).expect("sent");
        let mut buffer = [0; 256];
        member.recv_from(&mut buffer).expect("forwarded");
    }
    assert_eq!(running.stop().unsent, 3);
}

#[test]
fn every_start_is_another_life() {
    let life = || {
        let running = Running::start("127.0.0.1:0", Duration::ZERO);
        let outside = socket("127.0.0.1");
        let mut probe = Vec::new();
        Control::Probe { group: GroupId(1) }.encode(&mut probe);
        outside.send_to(&probe, running.address).expect("sent");
        let mut buffer = [0; 256];
        let (length, _) = outside.recv_from(&mut buffer).expect("answered");
        running.stop();
        match Control::decode(&Bytes::copy_from_slice(&buffer[..length])) {
            Ok(Control::Opened { life, .. }) => life,
            other => panic!("{other:?}"),
        }
    };
    assert_ne!(life(), life());
}
