//! The processes of a demo: starting them, noticing what becomes of them, stopping them.

use std::fmt;
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use crate::cli::Order;
use crate::demo::{Plan, SEQUENCERS, proves_service};
use crate::link::ask_status;

/// Statuses are asked for this often.
const ASK: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(200);
/// A replica that ends sooner than this after its start is given time before the next.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The machine's own network takes longer datagrams than others.
const DATAGRAM_BYTES: &str = "8000";
/// How long processes may take to stop in good order.
const STOP: Duration = Duration::from_secs(5);

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Replica(u8),
    Sequencer(u8),
    Controller,
}

impl Part {
    fn log_name(self) -> String {
        match self {
            Part::Replica(id) => format!("{id}.log"),
            Part::Sequencer(id) => format!("sequencer-{id}.log"),
            Part::Controller => "controller.log".to_owned(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Replica(id) => write!(f, "replica {id}"),
            Part::Sequencer(id) => write!(f, "sequencer {id}"),
            Part::Controller => f.write_str("the controller"),
        }
    }
}

/// One process.
struct Member {
    part: Part,
    child: Option<Child>,
    started: Instant,
    /// A replica has answered a command that passed the group.
    served: bool,
    /// When it was noticed that it had ended, and from when on it may be started again.
    down: Option<(Instant, Instant)>,
    /// It is a replica that was started again, when it had ended: its recovery is to be told.
    returning: Option<Instant>,
}

/// All processes.
pub struct Group {
    members: Vec<Member>,
    resp: Vec<String>,
    dir: PathBuf,
    primary: Option<u64>,
    asked: Instant,
}

impl Group {
    /// Starts everything.
    pub fn start(plan: &Plan) -> Result<Group> {
        let mut group = Group {
            members: Vec::new(),
            resp: (0..plan.replicas).map(|id| plan.resp(id)).collect(),
            dir: plan.dir.clone(),
            primary: None,
            asked: Instant::now(),
        };
        for part in plan.parts() {
            let child = Some(spawn(plan, part)?);
            let started = Instant::now();
            let (served, down, returning) = (false, None, None);
            group.members.push(Member { part, child, started, served, down, returning });
        }
        plan.save(&group.pids())?;
        Ok(group)
    }

    pub fn pids(&self) -> Vec<(Part, Option<u32>)> {
        let pid = |member: &Member| (member.part, member.child.as_ref().map(Child::id));
        self.members.iter().map(pid).collect()
    }

    /// Whether every replica has answered a command that passed the group.
    pub fn serves(&mut self) -> bool {
        for member in &mut self.members {
            member.served |= match member.part {
                Part::Replica(id) => proves_service(&self.resp[usize::from(id)]),
                Part::Sequencer(_) | Part::Controller => true,
            };
        }
        self.members.iter().all(|member| member.served)
    }

    /// Those that have ended.
    pub fn dead(&mut self) -> Vec<Part> {
        let ended = |child: &mut Child| matches!(child.try_wait(), Ok(Some(_)));
        let members = self.members.iter_mut();
        let dead = members.filter_map(|m| m.child.as_mut().is_some_and(ended).then_some(m.part));
        dead.collect()
    }

    /// The last lines that a process has written.
    pub fn log_tail(&self, part: Part) -> String {
        let text = std::fs::read_to_string(self.dir.join(part.log_name())).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Notices what has happened, tells it, and starts what has ended.
    pub fn watch(&mut self, plan: &Plan) -> Result<()> {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if let Some(child) = &mut member.child
                && let Some(status) = child.try_wait()?
            {
                member.child = None;
                let now = Instant::now();
                let pause = SHORT_LIFE.saturating_sub(member.started.elapsed());
                member.down = Some((now, now + pause));
                let part = member.part;
                println!("{part} died ({})", cause(status));
                if status.signal().is_none() {
                    println!("{}", self.log_tail(part));
                }
            }
            let member = &mut self.members[index];
            if let Some((since, again)) = member.down
                && Instant::now() >= again
            {
                member.child = Some(spawn(plan, member.part)?);
                member.started = Instant::now();
                member.down = None;
                member.returning = matches!(member.part, Part::Replica(_)).then_some(since);
                let took = since.elapsed().as_millis();
                println!("{} restarted after {took} ms", member.part);
                plan.save(&self.pids())?;
            }
        }
        if self.asked.elapsed() >= ASK {
            self.asked = Instant::now();
            self.ask();
        }
        Ok(())
    }

    /// Tells of new primaries, and of replicas that have caught up.
    fn ask(&mut self) {
        let statuses: Vec<Option<Json>> =
            self.resp.iter().map(|address| ask_status(address, PATIENCE).ok()).collect();
        let primaries = statuses.iter().flatten().filter(|status| status["role"] == "primary");
        let Some(primary) = primaries.max_by_key(|status| status["view"].as_u64()) else {
            return;
        };
        let id = primary["id"].as_u64();
        if self.primary != id {
            if self.primary.is_some() {
                let view = primary["view_number"].as_u64().unwrap_or(0);
                println!("replica {} is the new primary, in view {view}", id.unwrap_or(0));
            }
            self.primary = id;
        }
        let commit = primary["commit_number"].as_u64();
        for member in &mut self.members {
            let Part::Replica(id) = member.part else { continue };
            let status = &statuses[usize::from(id)];
            let (Some(since), Some(status)) = (member.returning, status) else { continue };
            let follows = status["status"] == "normal" && status["view"] == primary["view"];
            if follows && status["commit_number"].as_u64() >= commit {
                member.returning = None;
                let took = since.elapsed().as_millis();
                println!("{} caught up {took} ms after it died", member.part);
            }
        }
    }

    /// Stops everything, in good order if they can.
    pub fn stop(&mut self) -> Result<()> {
        for member in &self.members {
            if let Some(child) = &member.child
                && let Some(pid) = Pid::from_raw(child.id() as i32)
            {
                // It may have ended by itself, but it is not waited for: the id is still its own.
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        let end = Instant::now() + STOP;
        for member in &mut self.members {
            let Some(mut child) = member.child.take() else { continue };
            while child.try_wait()?.is_none() {
                if Instant::now() >= end {
                    child.kill()?;
                    child.wait()?;
                    println!("{} did not stop by itself", member.part);
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(child) = &mut member.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn cause(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, code) => format!("exit code {}", code.unwrap_or(0)),
    }
}

fn spawn(plan: &Plan, part: Part) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let log = plan.dir.join(part.log_name());
    let log = File::options().create(true).append(true).open(&log)?;
    let mut command = Command::new(program);
    match part {
        Part::Replica(id) => serve(plan, id, &mut command),
        Part::Sequencer(id) => {
            command.args(["sequencer", "--listen", &plan.sequencer(id)]);
        }
        Part::Controller => control(plan, &mut command),
    }
    command.arg("--die-with-parent").arg(std::process::id().to_string());
    if !plan.created && !matches!(part, Part::Sequencer(_)) {
        command.arg("--bootstrap");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().with_context(|| format!("cannot start {part}"))
}

fn serve(plan: &Plan, id: u8, command: &mut Command) {
    let peers: Vec<String> = (0..plan.replicas).map(|id| plan.peer(id)).collect();
    command.arg("serve").arg("--id").arg(id.to_string());
    command.arg("--peers").arg(peers.join(","));
    command.arg("--resp").arg(plan.resp(id));
    if let Some(port) = plan.memcached_port(id) {
        command.arg("--memcached-port").arg(port.to_string());
    }
    command.arg("--dir").arg(plan.dir.join(id.to_string()));
    command.args(["--durability", plan.durability, "--group", &plan.group]);
    command.args(["--order", plan.order.name()]);
    if plan.order == Order::Nopaxos {
        command.args(["--controllers", &plan.controller(), "--multicast", &plan.peer(id)]);
        command.args(["--datagram-bytes", DATAGRAM_BYTES]);
    }
}

fn control(plan: &Plan, command: &mut Command) {
    let all = |of: &dyn Fn(u8) -> String, count| (0..count).map(of).collect::<Vec<_>>().join(",");
    let sequencers = all(&|id| plan.sequencer(id), SEQUENCERS);
    let members = all(&|id| plan.peer(id), plan.replicas);
    command.args(["controller", "--id", "0", "--peers", &plan.controller()]);
    command.args(["--listen", &plan.controller_face(), "--sequencers", &sequencers]);
    command.arg("--group").arg(format!("{}={members}", plan.group));
    command.arg("--dir").arg(plan.dir.join("controller"));
}
