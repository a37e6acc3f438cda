//! The demo and the commands that look at it.

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use support::{PROGRAM, Scratch};

/// Ten ports in a row, and ten more a hundred above, that were free a moment ago. They lie below
/// those that the kernel gives to outgoing connections, and so do those six thousand above.
fn free_base() -> u16 {
    let mut base = 20_000 + (std::process::id() % 60 * 100) as u16;
    let free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    while !(0..9).all(|offset| free(base + offset) && free(base + 100 + offset)) {
        base += 10;
    }
    base
}

struct Demo(Child, BufReader<ChildStdout>);

impl Demo {
    fn start(port: u16, more: &[&str]) -> Demo {
        let mut command = Command::new(PROGRAM);
        command.args(["demo", "--port", &port.to_string()]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut demo = Demo(child, output);
        demo.wait_for("ready:");
        demo
    }

    /// Reads until a line holds the text.
    fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.1.read_line(&mut line).expect("readable") > 0, "it ended before {text}");
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32).expect("a pid")
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn status(port: u16) -> serde_json::Value {
    let output = support::run(&["status", "--port", &port.to_string(), "-o", "json"]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn pids(status: &serde_json::Value) -> Vec<Pid> {
    let replicas = status["replicas"].as_array().expect("an array");
    let pids = replicas.iter().map(|replica| replica["pid"].as_i64().expect("a pid"));
    pids.map(|pid| Pid::from_raw(pid as i32).expect("a pid")).collect()
}

fn all_gone(pids: &[Pid]) -> bool {
    let end = Instant::now() + support::PATIENCE;
    while pids.iter().any(|&pid| test_kill_process(pid).is_ok()) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn the_demo_restarts_what_dies_and_leaves_nothing_behind() {
    let port = free_base();
    let started = Instant::now();
    let mut demo = Demo::start(port, &["--durability", "sync"]);
    assert!(started.elapsed() < support::PATIENCE / 4);
    let taken = support::run(&["demo", "--port", &port.to_string()]);
    assert!(!taken.status.success());
    let text = String::from_utf8_lossy(&taken.stderr);
    assert!(text.contains(&port.to_string()) && text.contains("--port"), "{text}");
    let before = status(port + 1);
    let first = pids(&before);
    assert_eq!(first.len(), 3);
    let role = |replica: &serde_json::Value| replica["role"] == "primary";
    let replicas = before["replicas"].as_array().expect("an array");
    let primary = replicas.iter().position(role).expect("a primary");
    kill_process(first[primary], Signal::KILL).expect("killed");
    demo.wait_for("died (signal 9)");
    demo.wait_for("caught up");
    let after = pids(&status(port));
    assert_ne!(after[primary], first[primary]);
    // However it ends, its replicas end with it.
    kill_process(demo.pid(), Signal::KILL).expect("killed");
    assert!(all_gone(&after));
}

#[test]
fn the_demo_orders_by_mu_and_takes_a_killed_leader_back() {
    let port = free_base() + 2000;
    let mut demo = Demo::start(port, &["--order", "mu"]);
    let mut client = support::Client::try_connect(port + 1).expect("accepts");
    assert_eq!(client.call("SET key value"), support::ok());
    let before = status(port);
    assert_eq!(before["replicas"][0]["order"], "mu");
    let first = pids(&before);
    kill_process(first[0], Signal::KILL).expect("killed");
    assert_eq!(client.call("GET key"), support::bulk("value"));
    demo.wait_for("died (signal 9)");
    demo.wait_for("replica 0 caught up");
    assert_ne!(pids(&status(port + 1))[0], first[0]);
    assert_eq!(client.call("GET key"), support::bulk("value"));
}

#[test]
fn a_demo_with_a_directory_goes_on_where_it_stopped() {
    let port = free_base() + 1000;
    let scratch = Scratch::new();
    let dir = scratch.0.to_str().expect("text");
    let demo = Demo::start(port, &["--dir", dir, "--replicas", "1"]);
    let mut client = support::Client::try_connect(port).expect("accepts");
    assert_eq!(client.call("SET key value"), support::ok());
    kill_process(demo.pid(), Signal::TERM).expect("signalled");
    let mut demo = demo;
    assert!(demo.0.wait().expect("waited").success());
    let wrong = support::run(&["demo", "--dir", dir, "--port", &port.to_string()]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--replicas 1"), "{wrong:?}");
    let _demo = Demo::start(port, &["--dir", dir, "--replicas", "1"]);
    let mut client = support::Client::try_connect(port).expect("accepts");
    assert_eq!(client.call("GET key"), support::bulk("value"));
}

/// Runs the rounds, and returns what they say.
fn chaos(port: u16, fault: &str) -> serde_json::Value {
    let port = port.to_string();
    let rounds = ["--rounds", "2", "--rate", "1500", "--settle", "0.2", "--json"];
    let mut arguments = vec!["chaos", fault, "--port", &port];
    arguments.extend(rounds);
    let output = support::run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_demo_orders_by_nopaxos_and_replaces_sequencers_and_leaders_under_load() {
    let port = free_base() + 4000;
    let mut demo = Demo::start(port, &["--order", "nopaxos"]);
    let session = || {
        let status = status(port);
        assert_eq!(status["replicas"][1]["order"], "nopaxos");
        status["replicas"][1]["multicast"]["session"].as_u64().expect("a session")
    };
    let before = session();
    for fault in ["kill-sequencer", "kill-primary", "kill-random"] {
        let report = chaos(port, fault);
        assert_eq!(report["lost_writes"], 0, "{report}");
        assert_eq!(report["linearizable"], true, "{report}");
        assert!(report["acknowledged_writes"].as_u64() > Some(0), "{report}");
        if fault == "kill-sequencer" {
            assert_eq!(report["unknown_outcomes"], 0, "no connection breaks: {report}");
            assert!(session() >= before + 2);
        }
    }
    demo.wait_for("restarted");
    let all = pids(&status(port));
    kill_process(demo.pid(), Signal::KILL).expect("killed");
    assert!(all_gone(&all));
}

#[test]
fn a_nopaxos_group_that_lost_its_state_starts_over() {
    let port = free_base() + 6000;
    let _demo = Demo::start(port, &["--order", "nopaxos"]);
    let mut client = support::Client::try_connect(port).expect("accepts");
    assert_eq!(client.call("SET key value"), support::ok());
    for pid in pids(&status(port)) {
        kill_process(pid, Signal::KILL).expect("killed");
    }
    let end = Instant::now() + support::PATIENCE;
    let lost = |replica: &serde_json::Value| replica["role"] == "state-lost";
    while !status_if_any(port).is_some_and(|all| all.iter().all(lost)) {
        assert!(Instant::now() < end, "{:?}", status_if_any(port));
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = port.to_string();
    let alone = support::run(&["bootstrap", "--accept-loss", "--port", &text]);
    let words = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(!alone.status.success() && words.contains("--controller"), "{words}");
    let controller = format!("127.0.0.1:{}", port + 130);
    let done =
        support::run(&["bootstrap", "--accept-loss", "--port", &text, "--controller", &controller]);
    assert!(done.status.success(), "{done:?}");
    let mut client = support::Client::try_connect(port + 1).expect("accepts");
    assert_eq!(client.call("GET key"), resp::Value::Null);
    assert_eq!(client.call("SET key again"), support::ok());
}

/// What the replicas say, if any of them answers.
fn status_if_any(port: u16) -> Option<Vec<serde_json::Value>> {
    let output = support::run(&["status", "--port", &port.to_string(), "-o", "json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    status["replicas"].as_array().cloned()
}
