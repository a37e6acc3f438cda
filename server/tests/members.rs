//! Real replicas, sequencers and a controller: other members, and a sequencer that only the
//! controller can reach.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use oum::CONTROL_MAGIC;
use resp::Value;
use serde_json::json;
use support::{Client, Group, Scratch, bulk, controlled, free_ports, ok, program};

/// Between the network and a replica: what is numbered passes unless it comes from the sequencer
/// that the replicas are to be deaf to; what controllers say, and are told, always does.
struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    fn start(at: u16, replica: u16, controller: SocketAddr, deaf_to: &Arc<AtomicU16>) -> Relay {
        let socket = UdpSocket::bind(("127.0.0.1", at)).expect("bound");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        let replica = SocketAddr::from(([127, 0, 0, 1], replica));
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, deaf_to) = (Arc::clone(&stop), Arc::clone(deaf_to));
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while !seen.load(Ordering::SeqCst) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let control = buffer[0] == CONTROL_MAGIC;
                let to = if from == replica { controller } else { replica };
                if control || from.port() != deaf_to.load(Ordering::SeqCst) {
                    let _ = socket.send_to(&buffer[..length], to);
                }
            }
        });
        Relay { stop, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Two sequencers, a controller, and the replicas behind their relays.
struct Site {
    group: Group,
    sequencers: Vec<u16>,
    face: String,
    deaf_to: Arc<AtomicU16>,
    _relays: Vec<Relay>,
    children: Vec<Child>,
    _scratch: Scratch,
}

impl Site {
    fn start(replicas: usize, durability: &'static str) -> Site {
        let ports = free_ports(4 + 2 * replicas);
        let at = |port: u16| format!("127.0.0.1:{port}");
        let (sequencers, controller, face) = (ports[..2].to_vec(), at(ports[2]), at(ports[3]));
        let (own, relayed) = ports[4..].split_at(replicas);
        let (deaf_to, scratch) = (Arc::new(AtomicU16::new(0)), Scratch::new());
        let to = controller.parse().expect("an address");
        let relays = own.iter().zip(relayed);
        let relays = relays.map(|(&own, &at)| Relay::start(at, own, to, &deaf_to)).collect();
        let mut children: Vec<Child> = Vec::new();
        for (id, &port) in sequencers.iter().enumerate() {
            let name = format!("sequencer{id}");
            children.push(program(&name, &scratch, &["sequencer", "--listen", &at(port)]));
        }
        let all: Vec<String> = relayed.iter().map(|&port| at(port)).collect();
        let both: Vec<String> = sequencers.iter().map(|&port| at(port)).collect();
        let (members, both) = (format!("a1={}", all.join(",")), both.join(","));
        let parts = [&controller, &face, &both, &members].map(String::as_str);
        let (controller, group) = controlled(durability, &scratch, parts, own);
        children.push(controller);
        Site { group, sequencers, face, deaf_to, _relays: relays, children, _scratch: scratch }
    }

    fn member(&self, arguments: &[&str]) -> String {
        let port = self.group.ports[0].to_string();
        let mut all = vec!["member", "--port", &port, "--controller", &self.face];
        all.extend(arguments);
        let output = support::run(&all);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", self.group.logs());
        text
    }

    fn session(&self, id: usize) -> u64 {
        self.group.status(id, "multicast")["session"].as_u64().expect("a session")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn count(client: &mut Client, from: &mut i64, by: i64) {
    for _ in 0..by {
        *from += 1;
        assert_eq!(client.call("INCR count"), Value::Integer(*from));
    }
}

#[test]
fn members_are_removed_replaced_and_added_while_the_group_serves() {
    for durability in ["memory", "sync", "lazy"] {
        let mut site = Site::start(4, durability);
        let (mut client, mut sum) = (site.group.client(0), 0);
        count(&mut client, &mut sum, 50);
        let text = site.member(&["remove", "3"]);
        assert!(text.contains("[0, 1, 2]"), "{text}");
        count(&mut client, &mut sum, 50);
        // A dead member makes room for one that follows.
        site.group.kill(2);
        count(&mut client, &mut sum, 50);
        let text = site.member(&["replace", "2", "3"]);
        assert!(text.contains("[0, 1, 3]"), "{text}");
        assert_eq!(site.group.status(0, "multicast")["members"], json!([0, 1, 3]));
        count(&mut client, &mut sum, 50);
        // Two of the three that count now are enough, one of whom did not count before.
        site.group.kill(1);
        count(&mut client, &mut sum, 50);
        site.group.spawn(1, false);
        site.group.spawn(2, false);
        for id in [1, 2] {
            site.group.wait_until("it follows again", || {
                ["backup", "primary"]
                    .map(|role| json!(role))
                    .contains(&site.group.status(id, "role"))
            });
        }
        site.member(&["add", "2"]);
        count(&mut client, &mut sum, 50);
        // The leader goes.
        let leader = site.group.primary();
        site.member(&["remove", &leader.to_string()]);
        assert_ne!(site.group.primary(), leader);
        let mut other = site.group.client((leader + 1) % 4);
        count(&mut other, &mut sum, 50);
        for id in 0..4 {
            let mut client = site.group.client(id);
            assert_eq!(client.call("GET count"), bulk(&sum.to_string()), "{durability}");
        }
    }
}

#[test]
fn what_cannot_be_is_said() {
    let site = Site::start(2, "memory");
    let port = site.group.ports[0].to_string();
    let run = |arguments: &[&str]| {
        let output = support::run(&[&["member", "--port", &port][..], arguments].concat());
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(run(&["remove", "1"]).contains("give --controller"));
    let with = ["--controller", &site.face, "--patience", "1"];
    let text = run(&[&with[..], &["add", "5"]].concat());
    assert!(text.contains("no place for replica 5"), "{text}");
    let text = run(&[&with[..], &["replace", "1", "1"]].concat());
    assert!(text.contains("own place"), "{text}");
}

#[test]
fn a_sequencer_that_replicas_do_not_hear_is_left() {
    let site = Site::start(3, "memory");
    let (mut client, mut sum) = (site.group.client(1), 0);
    count(&mut client, &mut sum, 20);
    // On a busy machine the controllers may just be about to take the other one.
    let sequencer = || site.group.status(1, "multicast")["sequencer"].as_str().map(str::to_owned);
    site.group.wait_until("it hears of a sequencer", || sequencer().is_some());
    let sequencer = sequencer().expect("an address");
    let before = site.session(1);
    let port = sequencer.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    assert!(site.sequencers.contains(&port));
    // It lives, answers the controller and takes requests; nothing of it reaches the replicas.
    site.deaf_to.store(port, Ordering::SeqCst);
    count(&mut client, &mut sum, 20);
    for id in 0..3 {
        site.group.wait_until("the next session", || site.session(id) > before);
        let now = site.group.status(id, "multicast")["sequencer"].clone();
        assert_ne!(now.as_str(), Some(&sequencer[..]), "{}", site.group.logs());
    }
    assert_eq!(client.call("SET key value"), ok());
}
