//! The suite against the XDP sequencer, between namespaces of this machine, and what sequencing
//! adds to the latency of multicast. Run by `cargo xtask xdp`, which makes the object that
//! `SEQUENCER_OBJECT` names; needs root.

mod spaces;
mod suite;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::XdpMode;
use oum::Sender;
use sequencer::Counts;
use sequencer::xdp::{Stamping, Xdp};
use smr::GroupId;
use spaces::{Spaces, ip};
use suite::{Ending, Site};

const MEMBERS: usize = 3;
const PORT: u16 = 7700;
/// The entrance in the sequencer's namespace.
const ENTRANCE: &str = "entrance";

/// Namespaces with a pair of interfaces between the sequencer's and each other one.
struct Net {
    spaces: Spaces,
    /// Programs of the members' interfaces.
    _passing: Vec<Ebpf>,
}

fn object() -> PathBuf {
    PathBuf::from(std::env::var_os("SEQUENCER_OBJECT").expect("run by cargo xtask xdp"))
}

fn sequencer_at() -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 9, 1), PORT)
}

impl Net {
    fn new(test: &str) -> Net {
        let members = (0..MEMBERS).map(|member| format!("member{member}"));
        let names = ["sequencer", "outside"].map(str::to_owned).into_iter().chain(members);
        let mut net = Net { spaces: Spaces::new(test, names.collect()), _passing: Vec::new() };
        net.connect("outside", ENTRANCE, 9);
        for member in 0..MEMBERS {
            net.connect(&format!("member{member}"), &format!("exit{member}"), member as u8);
            let passing = net.spaces.within(&format!("member{member}"), || {
                let mut ebpf = Ebpf::load_file(object()).expect("the object");
                let pass = ebpf.program_mut("pass").expect("there");
                let pass: &mut aya::programs::Xdp = pass.try_into().expect("XDP");
                pass.load().expect("loaded");
                pass.attach("eth0", XdpMode::Driver).expect("attached");
                ebpf
            });
            net._passing.push(passing);
        }
        net
    }

    fn connect(&self, of: &str, here: &str, net: u8) {
        let (sequencer, of) = (self.spaces.name("sequencer"), self.spaces.name(of));
        ip(&format!("link add {here} netns {sequencer} type veth peer name eth0 netns {of}"));
        ip(&format!("-n {sequencer} addr add 10.77.{net}.1/24 dev {here}"));
        ip(&format!("-n {of} addr add 10.77.{net}.2/24 dev eth0"));
        ip(&format!("-n {sequencer} link set {here} up"));
        ip(&format!("-n {of} link set eth0 up"));
        ip(&format!("-n {of} route add default via 10.77.{net}.1"));
    }

    fn socket(&self, of: &str, net: u8) -> UdpSocket {
        self.spaces
            .within(of, || UdpSocket::bind((Ipv4Addr::new(10, 77, net, 2), 0)).expect("a socket"))
    }

    fn site(&self) -> Site {
        let members = (0..MEMBERS).map(|m| self.socket(&format!("member{m}"), m as u8)).collect();
        let outside = self.socket("outside", 9);
        Site { sequencer: sequencer_at().into(), outside, members }
    }

    /// Runs a sequencer while `what` is done.
    fn sequenced(&self, stamping: Stamping, what: impl FnOnce()) -> Counts {
        let stop = AtomicBool::new(false);
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let stop = &stop;
            let running = scope.spawn(move || {
                self.spaces.enter("sequencer");
                let events = Box::new(|_: &_| ());
                let xdp = Xdp::open(&object(), sequencer_at(), &[ENTRANCE], stamping, events);
                let xdp = xdp.expect("a sequencer");
                ready.send(()).expect("awaited");
                xdp.run(stop).expect("no error")
            });
            is_ready.recv().expect("it starts");
            let ending = Ending(stop);
            what();
            drop(ending);
            running.join().expect("no panic")
        })
    }
}

#[test]
fn the_xdp_sequencer_conforms() {
    let net = Net::new("suite");
    let counts = net.sequenced(Stamping::On, || suite::run(&net.site()));
    println!("{counts}");
    assert!(counts.stamped > 500 && counts.unreadable > 30, "{counts}");
    assert!(counts.restamped == 4 && counts.unknown_group == 1, "{counts}");
}

/// One thread sends and looks for the copy of one member until it is there: what is measured is the
/// way of a packet, not the waking of threads.
fn latencies(site: &Site) -> Vec<u64> {
    const MESSAGES: u32 = 4000;
    let group = GroupId(0xbe);
    site.prepare();
    site.open(group, 1);
    let member = &site.members[0];
    member.set_nonblocking(true).expect("set");
    let mut buffer = [0; 2048];
    let mut message = Vec::new();
    let mut took = Vec::new();
    for number in 0..MESSAGES {
        message.clear();
        Sender::new(group).message(&number.to_be_bytes(), &mut message);
        let start = Instant::now();
        site.outside.send_to(&message, site.sequencer).expect("sent");
        loop {
            match member.recv_from(&mut buffer) {
                Ok((length, _)) => {
                    assert_eq!(buffer[length - 4..length], number.to_be_bytes());
                    break;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            assert!(start.elapsed() < Duration::from_secs(5), "message {number} is lost");
        }
        took.push(start.elapsed().as_nanos() as u64);
    }
    took
}

#[test]
fn sequencing_adds_less_than_five_microseconds_to_multicast() {
    const ROUNDS: usize = 5;
    let net = Net::new("bench");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        net.sequenced(Stamping::On, || with.extend(latencies(&net.site())));
        net.sequenced(Stamping::Off, || without.extend(latencies(&net.site())));
    }
    let mut at = |quantile: f64| {
        let pick = |all: &mut Vec<u64>| {
            all.sort_unstable();
            all[(quantile * (all.len() - 1) as f64) as usize] as f64 / 1e3
        };
        (pick(&mut with), pick(&mut without))
    };
    for quantile in [0.5, 0.9, 0.99] {
        let (with, without) = at(quantile);
        println!("p{}: {with:.2} us sequenced, {without:.2} us not", quantile * 100.0);
    }
    let (with, without) = at(0.5);
    assert!(with < without + 5.0, "{with} us and {without} us");
}
