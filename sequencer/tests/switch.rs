//! The suite against `p4/sequencer.p4` on bmv2's switch, whose ports are veths to namespaces of
//! this machine. Run by `cargo xtask p4`, which compiles the program that `SWITCH_PROGRAM` names;
//! needs root and the P4 tools.

mod spaces;
mod suite;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sequencer::p4::{self, Ask, Host};
use spaces::{Spaces, ip};
use suite::{Ending, Site};

/// Behind the ports of the same numbers: the sequencer, three members, and whoever is outside.
const HOSTS: [&str; 5] = ["sequencer", "member2", "member3", "member4", "outside"];
const OUTSIDE: u8 = HOSTS.len() as u8;
const THRIFT: u16 = 9797;

/// The switch, ended with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}

fn connect(spaces: &Spaces) -> Vec<Host> {
    let switch = spaces.name("switch");
    let hosts = HOSTS.iter().zip(1..);
    hosts
        .map(|(name, number)| {
            let of = spaces.name(name);
            ip(&format!(
                "link add port{number} netns {switch} type veth peer name eth0 netns {of}"
            ));
            ip(&format!("-n {of} link set eth0 address 02:00:00:00:00:{number:02x}"));
            ip(&format!("-n {of} addr add {}/24 dev eth0", address(number)));
            ip(&format!("-n {switch} link set port{number} up"));
            ip(&format!("-n {of} link set eth0 up"));
            // The switch takes frames from the wire, where a checksum has to be.
            ip(&format!("netns exec {of} ethtool -K eth0 tx off"));
            let hardware = [2, 0, 0, 0, 0, number];
            Host { address: address(number), port: u16::from(number), hardware }
        })
        .collect()
}

fn start() -> Running {
    let program = std::env::var_os("SWITCH_PROGRAM").expect("run by cargo xtask p4");
    let ports = (1..=OUTSIDE).flat_map(|port| ["-i".to_owned(), format!("{port}@port{port}")]);
    let switch = Command::new("simple_switch")
        .args(ports)
        .args(["--thrift-port", &THRIFT.to_string()])
        .arg(program)
        .stdout(Stdio::null())
        .spawn();
    Running(switch.expect("simple_switch"))
}

/// The switch's command line, as soon as it is there.
fn command_line() -> Ask {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match p4::command_line(THRIFT) {
            Ok(ask) => return ask,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_switch_conforms() {
    let names = HOSTS.iter().chain(&["switch"]).map(|&name| name.to_owned());
    let spaces = Spaces::new("p4", names.collect());
    let hosts = connect(&spaces);
    let (_running, ask) = spaces.within("switch", || (start(), command_line()));
    let socket = |number: u8, port: u16| {
        let name = HOSTS[usize::from(number) - 1];
        spaces.within(name, || UdpSocket::bind((address(number), port)).expect("a socket"))
    };
    let control = socket(1, 7700);
    let SocketAddr::V4(listen) = control.local_addr().expect("bound") else { panic!("IPv6") };
    let plane = p4::Switch::open(ask, listen, hosts, control, Box::new(|_| ()));
    let plane = plane.expect("a sequencer");
    let site = Site {
        sequencer: listen.into(),
        outside: socket(OUTSIDE, 0),
        members: (2..OUTSIDE).map(|number| socket(number, 0)).collect(),
    };
    let stop = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        let running = scope.spawn(|| plane.run(&stop).expect("no error"));
        let ending = Ending(&stop);
        suite::run(&site);
        drop(ending);
        running.join().expect("no panic")
    });
    println!("{counts}");
    assert!(counts.stamped > 500 && counts.unreadable > 30, "{counts}");
    assert!(counts.restamped == 4 && counts.unknown_group == 1, "{counts}");
}
