//! Scenarios: text files of commands with what followed from them, one per figure of the paper and
//! per rare branch. A line that begins with `>` is a command; `#` begins a comment; what stands
//! between is output, which [`run_scenario`] writes anew.
//!
//! Nothing is random in a scenario: messages take 0.5 ms, a sync of the disk 0.2 ms. Replicas are
//! 0, 1, 2...; gateways 100 to 103 live apart, and 102 and 103 send again what was lost. Cuts and
//! drops concern replicas only, so that clients reach every replica unless `away` says otherwise.

use smr::Durability;

use crate::disk::Damage;
use crate::gateway::APART;
use crate::ledger::{Checked, show};
use crate::options::Options;
use crate::service::{Action, Command};
use crate::subject::Subject;
use crate::world::{Filter, Trace, World};

/// How long a command waits for an answer, or a group to settle.
const PATIENCE: u64 = 500_000;

/// What the story of a scenario leaves out.
const SILENT: [&str; 5] = [" <- ", " stored ", " calls ", " has ", "cut "];

/// Runs the commands of a scenario and returns its text with what follows from them.
///
/// # Errors
/// If a command makes no sense: its line, and why.
pub fn run_scenario<P: Subject>(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut world: Option<World<P>> = None;
    for (number, line) in text.lines().enumerate() {
        let Some(command) = line.strip_prefix('>') else {
            if line.starts_with('#') || line.is_empty() {
                out.push_str(line);
                out.push('\n');
            }
            continue;
        };
        out.push_str(line);
        out.push('\n');
        let words: Vec<&str> = command.split_whitespace().collect();
        let lines = match (&mut world, &words[..]) {
            (None, ["group", replicas, durability]) => {
                let group = create(replicas, durability)
                    .ok_or_else(|| format!("line {}: group N memory|lazy|sync", number + 1))?;
                world.insert(group).command(&["begin"])
            }
            (Some(world), words) => world.command(words),
            (None, _) => Err("the first command is group".into()),
        };
        for line in lines.map_err(|error| format!("line {}: {error}", number + 1))? {
            out.push_str(&line);
            out.push('\n');
        }
    }
    Ok(out)
}

fn create<P: Subject>(replicas: &str, durability: &str) -> Option<World<P>> {
    let durability = match durability {
        "memory" => Durability::Memory,
        "sync" => Durability::Sync,
        "lazy" => Durability::Lazy,
        _ => return None,
    };
    let replicas = replicas.parse().ok().filter(|replicas| (1..=9).contains(replicas))?;
    Some(World::new(Options::calm(replicas, durability), Trace::Keep(Vec::new())))
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word} is no number that fits here"))
}

fn milliseconds(word: &str) -> Result<u64, String> {
    let digits = word.strip_suffix("ms").ok_or_else(|| format!("{word} is no time: 10ms"))?;
    number::<u64>(digits).map(|time| time * 1_000)
}

fn any(word: &str) -> Result<Option<usize>, String> {
    if word == "*" { Ok(None) } else { number(word).map(Some) }
}

impl<P: Subject> World<P> {
    /// Does one command; returns what is to be seen of it.
    fn command(&mut self, words: &[&str]) -> Result<Vec<String>, String> {
        let result = self.obey(words)?;
        let mut lines = self.take_story();
        match result {
            Ok(more) => lines.extend(more),
            Err(violation) => lines.push(format!("VIOLATION {violation}")),
        }
        Ok(lines)
    }

    fn take_story(&mut self) -> Vec<String> {
        let Trace::Keep(lines) = &mut self.trace else { return Vec::new() };
        let lines = std::mem::take(lines).into_iter();
        // Without the time: a scenario shows what happens, not how quickly.
        let lines = lines.map(|line| line[12..].to_owned());
        lines.filter(|line| !SILENT.iter().any(|silent| line.contains(silent))).collect()
    }

    fn replica(&self, word: &str) -> Result<Vec<usize>, String> {
        if word == "all" {
            return Ok((0..self.nodes.len()).collect());
        }
        let id = number(word)?;
        if id < self.nodes.len() { Ok(vec![id]) } else { Err(format!("there is no replica {id}")) }
    }

    /// The outer error is a nonsensical command, the inner one a violation.
    fn obey(&mut self, words: &[&str]) -> Result<Checked<Vec<String>>, String> {
        let done = match words {
            ["begin"] => self.start_all(),
            ["run", time] => self.run(milliseconds(time)?),
            ["settle"] => return Ok(self.settle()),
            ["show"] => return Ok(Ok(self.show_all())),
            ["disks"] => return Ok(Ok(self.show_disks())),
            ["put" | "append" | "swap" | "flag" | "get" | "send" | "durable", ..] => {
                return self.operate(words);
            }
            ["crash", who] => self.crash_each(&self.replica(who)?, None),
            ["crash", who, "keep", batches] => {
                self.crash_each(&self.replica(who)?, Some(number(batches)?))
            }
            ["restart", who] => self.restart_each(&self.replica(who)?),
            ["pause", who] => {
                for id in self.replica(who)? {
                    self.pause(id, u64::MAX / 2);
                }
                Ok(())
            }
            ["resume", who] => {
                for id in self.replica(who)? {
                    self.resume(id);
                }
                Ok(())
            }
            ["stall", who, time] => {
                let until = self.queue.now() + milliseconds(time)?;
                for id in self.replica(who)? {
                    self.nodes[id].disk.stalled_until = until;
                }
                Ok(())
            }
            ["damage", who, damage] => self.damage_each(&self.replica(who)?, damage)?,
            _ => self.connect(words)?,
        };
        Ok(done.map(|()| Vec::new()))
    }

    /// Commands of the network.
    fn connect(&mut self, words: &[&str]) -> Result<Checked<()>, String> {
        let replicas = self.nodes.len();
        match words {
            ["heal"] => {
                self.network.heal();
                self.filters.clear();
            }
            ["cut", from, to] => {
                let (a, b) = (any(from)?, any(to)?);
                self.network.cut(|from, to| {
                    from.max(to) < replicas
                        && a.is_none_or(|a| a == from)
                        && b.is_none_or(|b| b == to)
                });
            }
            ["isolate", who] => {
                for id in self.replica(who)? {
                    self.network
                        .cut(|from, to| from.max(to) < replicas && (from == id || to == id));
                }
            }
            ["away", who] => {
                for id in self.replica(who)? {
                    self.network.cut(|from, to| from == id || to == id);
                }
            }
            ["drop", name, from, to] => {
                let (from, to) = (any(from)?, any(to)?);
                self.filters.push(Filter { name: (*name).to_owned(), from, to });
            }
            _ => return Err(format!("what is {}?", words.join(" "))),
        }
        Ok(Ok(()))
    }

    fn start_all(&mut self) -> Checked<()> {
        (0..self.nodes.len()).try_for_each(|id| self.start(id))
    }

    fn crash_each(&mut self, who: &[usize], keep: Option<usize>) -> Checked<()> {
        for &id in who {
            self.crash(id, Some(keep.unwrap_or(0)));
        }
        Ok(())
    }

    fn restart_each(&mut self, who: &[usize]) -> Checked<()> {
        for &id in who {
            if !self.nodes[id].is_up() {
                self.start(id)?;
            }
        }
        Ok(())
    }

    fn damage_each(&mut self, who: &[usize], word: &str) -> Result<Checked<()>, String> {
        let damage = match word {
            "record" => Damage::Record,
            "checkpoint" => Damage::Checkpoint,
            "gone" => Damage::Gone,
            _ => return Err("damage R record|checkpoint|gone".into()),
        };
        for &id in who {
            if self.nodes[id].is_up() {
                return Err("a disk is damaged while its replica is down".into());
            }
            let done = self.nodes[id].disk.damage(damage);
            self.nodes[id].forgetful = true;
            self.note(|| format!("the disk of r{id} is damaged: {done:?}"));
        }
        Ok(Ok(()))
    }

    fn settle(&mut self) -> Checked<Vec<String>> {
        let until = self.queue.now() + PATIENCE;
        while self.queue.now() < until {
            self.run(1_000)?;
            if self.clients_are_done() && self.is_settled() {
                return Ok(vec!["settled".into()]);
            }
        }
        Ok(vec!["not settled".into()])
    }

    fn show_all(&self) -> Vec<String> {
        let show_one = |id: usize| {
            let node = &self.nodes[id];
            let (Some(host), Some(report)) = (&node.host, &node.witness.report) else {
                return format!("r{id} down");
            };
            let executor = host.executor();
            let lazy = if self.lazy() {
                let forgetful = if report.forgetful { " forgetful" } else { "" };
                format!(" durable {}{forgetful}", show(report.durable))
            } else {
                String::new()
            };
            let values = (0..3).map(|key| executor.machine().value(key).to_string());
            format!(
                "r{id} {} view {}.{} log {} commit {}{lazy} checkpoint {} values {}",
                report.role.name(),
                report.view.0 >> 8,
                report.view.0 & 0xff,
                show(report.op),
                report.commit.0,
                show(report.checkpoint),
                values.collect::<Vec<_>>().join(" ")
            )
        };
        (0..self.nodes.len()).map(show_one).collect()
    }

    fn show_disks(&self) -> Vec<String> {
        let show_one = |id: usize| {
            let disk = &self.nodes[id].disk;
            let view = disk.view().0;
            let checkpoint = disk.checkpoint().map(|file| file.position).unwrap_or_default();
            format!(
                "disk of r{id}: view {}.{} log to {} checkpoint {}",
                view >> 8,
                view & 0xff,
                show(disk.last()),
                show(checkpoint)
            )
        };
        (0..self.nodes.len()).map(show_one).collect()
    }

    /// `put GATEWAY KEY VALUE` and so on; with `send` before it nobody waits for the answer,
    /// with `durable` the answer waits for the disks.
    fn operate(&mut self, words: &[&str]) -> Result<Checked<Vec<String>>, String> {
        let (durable, words) = match words {
            ["durable", rest @ ..] => (true, rest),
            _ => (false, words),
        };
        let (wait, words) = match words {
            ["send", rest @ ..] => (false, rest),
            _ => (true, words),
        };
        let (gateway, key, action) = match words {
            ["put", gateway, key, value] => (gateway, key, Action::Put(number(value)?)),
            ["append", gateway, key, value] => (gateway, key, Action::Append(number(value)?)),
            ["swap", gateway, key, expected, new] => {
                let (expected, new) = (number(expected)?, number(new)?);
                (gateway, key, Action::Swap { expected, new })
            }
            ["flag", gateway, key] => (gateway, key, Action::Flag),
            ["get", gateway, key] => (gateway, key, Action::Get),
            _ => return Err(format!("what is {}?", words.join(" "))),
        };
        let (gateway, key) = (number(gateway)?, number(key)?);
        let id = self.history.len() as u64 + 1;
        let command = Command { id, key, action, padding: 100 };
        let index = self.gateway(gateway)?;
        let read = action == Action::Get;
        let Some(operation) = self.issue(index, command, read, durable) else {
            return Ok(Ok(vec!["not sent: the window is full, or the gateway stopped".into()]));
        };
        Ok(if wait { self.await_answer(operation) } else { Ok(Vec::new()) })
    }

    fn gateway(&mut self, id: u32) -> Result<usize, String> {
        if let Some(index) = self.gateways.iter().position(|gateway| gateway.id == id) {
            return Ok(index);
        }
        if !(APART..APART + 4).contains(&id) {
            return Err("gateways are 100 to 103".into());
        }
        let index = self.add_gateway(id, 0);
        if id >= APART + 2 {
            self.gateways[index].on_loss = smr::client::OnLoss::Replay;
        }
        self.open(index);
        Ok(index)
    }

    fn await_answer(&mut self, operation: usize) -> Checked<Vec<String>> {
        let until = self.queue.now() + PATIENCE;
        while self.queue.now() < until && self.history[operation].position.is_none() {
            self.run(1_000)?;
        }
        let known = &self.history[operation];
        Ok(vec![match (known.found, known.position) {
            (Some(found), Some(position)) => format!("found {found} as of {}", position.op.0),
            _ => "no answer".into(),
        }])
    }
}
