//! Real replicas, sequencers and a controller of a group that has a multicast address: each message
//! leaves the sequencer once.

mod support;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use oum::Header;
use resp::Value;
use rustix::net;
use serde_json::json;
use support::{Group, Scratch, bulk, command, controlled, free_ports, ok, program};

const REPLICAS: usize = 3;

/// A sequencer that is started again whenever it has ended.
struct Kept {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    fn start(name: String, at: String, scratch: &Arc<Scratch>) -> Kept {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, scratch) = (Arc::clone(&stop), Arc::clone(scratch));
        let thread = std::thread::spawn(move || {
            let start = || program(&name, &scratch, &["sequencer", "--listen", &at]);
            let mut child = start();
            while !seen.load(Ordering::Relaxed) {
                if child.try_wait().expect("asked").is_some() {
                    child = start();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            end(&mut child);
        });
        Kept { stop, thread: Some(thread) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// A socket that hears a multicast address on this machine alone; port 0 has one chosen.
fn join(multicast: SocketAddrV4) -> std::io::Result<UdpSocket> {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::DGRAM, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &multicast)?;
    let socket = UdpSocket::from(socket);
    socket.join_multicast_v4(multicast.ip(), &Ipv4Addr::LOCALHOST)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(socket)
}

/// Sends a datagram to a multicast address over loopback and hears it.
fn probe() -> std::io::Result<()> {
    let heard = join(SocketAddrV4::new(Ipv4Addr::new(239, 77, 3, 1), 0))?;
    let outside = UdpSocket::bind("127.0.0.1:0")?;
    net::sockopt::set_ip_multicast_if(&outside, &Ipv4Addr::LOCALHOST)?;
    outside.send_to(b"heard?", heard.local_addr()?)?;
    heard.recv(&mut [0; 16])?;
    Ok(())
}

/// Says so, if this machine has no multicast on loopback.
fn can_multicast(name: &str) -> bool {
    probe().inspect_err(|why| eprintln!("SKIPPED {name}: no multicast on loopback: {why}")).is_ok()
}

/// Two sequencers, a controller and replicas.
struct Site {
    group: Group,
    face: String,
    members: String,
    multicast: SocketAddrV4,
    controller: Child,
    _sequencers: Vec<Kept>,
    scratch: Arc<Scratch>,
}

impl Site {
    fn start() -> Site {
        let ports = free_ports(5 + REPLICAS);
        let at = |port: u16| format!("127.0.0.1:{port}");
        let [first, second, controller, face] = [0, 1, 2, 3].map(|place| at(ports[place]));
        let scratch = Arc::new(Scratch::new());
        let sequencers = [(0, &first), (1, &second)];
        let sequencers = sequencers
            .map(|(id, at)| Kept::start(format!("sequencer{id}"), at.clone(), &scratch))
            .into();
        let multicast = SocketAddrV4::new(Ipv4Addr::new(239, 77, 3, 2), ports[4]);
        let own = &ports[5..];
        let members = own.iter().map(|&port| at(port)).collect::<Vec<_>>().join(",");
        let (both, created) = (format!("{first},{second}"), format!("a1={members}@{multicast}"));
        let parts = [&controller, &face, &both, &created].map(String::as_str);
        let (controller, group) = controlled("memory", &scratch, parts, own);
        Site { group, face, members, multicast, controller, _sequencers: sequencers, scratch }
    }

    /// What the replicas and the others have said.
    fn logs(&self) -> String {
        let names = ["controller", "sequencer0", "sequencer1"];
        let log = |name: &str| std::fs::read_to_string(self.scratch.0.join(format!("{name}.log")));
        let others: String = names.map(|name| log(name).unwrap_or_default()).concat();
        self.group.logs() + &others
    }

    fn of(&self, id: usize, field: &str) -> serde_json::Value {
        self.group.status(id, "multicast")[field].clone()
    }

    /// Writes through every replica, and reads through every other one.
    fn serves(&self, round: &str) {
        for id in 0..REPLICAS {
            let set = self.group.client(id).call(&format!("SET key{id} {round}"));
            assert_eq!(set, ok(), "{}", self.logs());
            for other in 0..REPLICAS {
                let got = self.group.client(other).call(&format!("GET key{id}"));
                assert_eq!(got, bulk(round), "{}", self.logs());
            }
        }
    }

    /// Waits until all replicas say that they have joined the multicast address: what they say is
    /// some milliseconds old.
    fn all_hear_it(&self) {
        let joined = json!(self.multicast.to_string());
        for id in 0..3 {
            self.group.wait_until("it hears", || self.of(id, "joined") == joined);
        }
    }

    /// Has the replicas reached elsewhere; returns once all know.
    fn alter(&self, multicast: Option<SocketAddrV4>) {
        let before = self.of(0, "session").as_u64().expect("a session");
        let at = multicast.map(|at| format!("@{at}")).unwrap_or_default();
        let answer = command(&self.face, &format!("alter a1 {}{at}", self.members));
        assert!(answer.starts_with("group a1 "), "{answer}");
        let joined = json!(multicast.map(|at| at.to_string()));
        for id in 0..3 {
            self.group.wait_until("it hears what it should", || {
                self.of(id, "joined") == joined && self.of(id, "session").as_u64() > Some(before)
            });
        }
    }

    fn program(&self, arguments: &[&str]) -> String {
        let port = self.group.ports[0].to_string();
        let output = support::run(&[arguments, &["--port", &port]].concat());
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {why}{}", self.logs());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        end(&mut self.controller);
    }
}

/// What is stamped next, as anybody hears it.
fn hears(spy: &UdpSocket) -> Header {
    let mut buffer = [0; 2048];
    let length = spy.recv(&mut buffer).expect("something is sent there");
    Header::decode(&Bytes::copy_from_slice(&buffer[..length])).expect("a message").0
}

#[test]
fn a_group_with_a_multicast_address_survives_its_sequencers() {
    if !can_multicast("a_group_with_a_multicast_address_survives_its_sequencers") {
        return;
    }
    let site = Site::start();
    let spy = join(site.multicast).expect("joined");
    site.serves("first");
    let header = hears(&spy);
    assert!(header.session.0 > 0 && header.sequence > 0, "{header:?}");
    site.all_hear_it();
    let report = site.program(&[
        "chaos",
        "kill-sequencer",
        "--rounds",
        "3",
        "--rate",
        "1500",
        "--settle",
        "0.2",
        "--json",
    ]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["lost_writes"], 0, "{report}");
    assert_eq!(report["linearizable"], true, "{report}");
    assert_eq!(report["unknown_outcomes"], 0, "no connection breaks: {report}");
    assert!(report["acknowledged_writes"].as_u64() > Some(0), "{report}");
    site.serves("last");
    let logs = site.logs();
    assert!(logs.contains(&format!("with 3 members at {}", site.multicast)), "{logs}");
    assert!(!logs.contains("cannot send to") && !logs.contains("DEAF"), "{logs}");
}

#[test]
fn the_multicast_address_changes_while_the_group_serves() {
    if !can_multicast("the_multicast_address_changes_while_the_group_serves") {
        return;
    }
    let mut site = Site::start();
    let spy = join(site.multicast).expect("joined");
    site.serves("at-the-first");
    // A replica that does not count hears what the others do.
    let text = site.program(&["member", "remove", "2", "--controller", &site.face]);
    assert!(text.contains("[0, 1]"), "{text}");
    site.serves("with-two");
    site.all_hear_it();
    site.program(&["member", "add", "2", "--controller", &site.face]);
    site.alter(None);
    let last = site.of(0, "session").as_u64().expect("a session");
    site.serves("alone");
    spy.set_nonblocking(true).expect("set");
    while spy.recv(&mut [0; 2048]).is_ok() {}
    site.serves("still-alone");
    assert!(spy.recv(&mut [0; 2048]).is_err(), "nothing is sent there in session {last}");
    site.multicast.set_ip(Ipv4Addr::new(239, 77, 3, 3));
    site.alter(Some(site.multicast));
    let spy = join(site.multicast).expect("joined");
    site.serves("at-another");
    let header = hears(&spy);
    assert!(u64::from(header.session.0) > last, "{header:?}");
    // The whole group forgets all, and starts over where it was.
    (0..3).for_each(|id| site.group.kill(id));
    (0..3).for_each(|id| site.group.spawn(id, false));
    for id in 0..3 {
        site.group.wait_for(id, "role", &json!("state-lost"));
    }
    site.group.wait_until("one hears", || (0..3).any(|id| !site.of(id, "joined").is_null()));
    site.program(&["bootstrap", "--accept-loss", "--controller", &site.face]);
    assert_eq!(site.group.client(1).call("GET key0"), Value::Null);
    site.serves("from-the-start");
    site.all_hear_it();
}
