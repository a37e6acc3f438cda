//! What the controllers agree on: groups, their sessions, and the sequencers there are.
//!
//! A group's session only grows. `next` compares and sets it, so that two controllers that both
//! take themselves for the leader cannot give one number twice ([NOPaxos] 4.3).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use oum::{Life, Members, Session};
use smr::{BadCheckpoint, Context, GroupId, ReadOutcome, StateMachine};

use crate::text::{Addresses, Command, push_all, push_group, read_group};

/// There are so many groups, and no more.
pub const MAX_GROUPS: usize = 1024;
/// There are so many sequencers, and no more.
pub const MAX_SEQUENCERS: usize = 64;
/// The last session of a group: NOPaxos keeps it in 24 bits.
pub const MAX_SESSION: Session = Session((1 << 24) - 1);

/// A group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its present session; 0 before the first.
    pub session: Session,
    /// Which life of which sequencer the session belongs to.
    pub sequencer: Option<(SocketAddr, Life)>,
    /// Where its replicas are reached. All get what is numbered.
    pub addresses: Addresses,
    /// Those of them that count.
    pub counting: Members,
}

impl Group {
    /// A group before its first session, in which all count.
    pub fn new(addresses: Addresses) -> Group {
        let counting = Members::all(addresses.members.len() as u8);
        Group { addresses, counting, ..Group::default() }
    }
}

impl Group {
    /// Begins the change to other members that count. Returns whether there is one.
    fn count(&mut self, after: Members) -> Result<bool, String> {
        let count = self.addresses.members.len();
        if let Some(id) = after.ids().find(|id| id.index() >= count) {
            return Err(format!("there is no replica {}: they are 0 to {}", id.0, count - 1));
        }
        let (before, next) = (self.counting, self.counting.change_to(after));
        if before.changed() == after {
            return Ok(false);
        }
        if before.is_changing() {
            return Err("another change of members is under way: wait for its end".to_owned());
        }
        // Before the first session, too: replicas that count until then may have started a view.
        self.counting = next;
        Ok(true)
    }
}

/// What a command has changed, as it was before.
#[derive(Debug)]
pub enum Change {
    /// A group; `None` if there was none.
    Group(GroupId, Option<Group>),
    /// The list of sequencers.
    Sequencers(Vec<SocketAddr>),
}

/// The configuration. A request holds commands, a line each; its answer holds a line for each.
#[derive(Debug, Default)]
pub struct Config {
    sequencers: Vec<SocketAddr>,
    groups: BTreeMap<GroupId, Group>,
    /// What of a checkpoint is still to be written. The state is small: it is copied.
    checkpoint: Option<VecDeque<String>>,
}

impl Config {
    fn execute(&mut self, command: Command, changes: &mut Vec<Change>) -> Result<String, String> {
        let id = match command {
            Command::Sequencer(at) => return self.know(at, changes),
            Command::Forget(at) => {
                changes.push(Change::Sequencers(self.sequencers.clone()));
                self.sequencers.retain(|&known| known != at);
                return Ok("ok".to_owned());
            }
            Command::Show => return Ok(self.show()),
            Command::Create(id, addresses) => {
                let is_full = self.groups.len() >= MAX_GROUPS;
                if let Entry::Vacant(entry) = self.groups.entry(id) {
                    if is_full {
                        return Err(format!("there are {MAX_GROUPS} groups, and no more can be"));
                    }
                    entry.insert(Group::new(addresses));
                    changes.push(Change::Group(id, None));
                }
                id
            }
            Command::Alter(id, addresses) => {
                self.begin(id, changes, |group| {
                    let count = group.addresses.members.len();
                    if count != addresses.members.len() {
                        return Err(format!("its replicas are {count}, and stay as many"));
                    }
                    Ok(std::mem::replace(&mut group.addresses, addresses.clone()) != addresses)
                })?;
                id
            }
            Command::Count(id, after) => {
                self.begin(id, changes, |group| group.count(after))?;
                id
            }
            Command::Settle { group, present } => {
                self.begin(group, changes, |state| {
                    let is_present = state.session == present && state.sequencer.is_some();
                    let is_due = is_present && state.counting.is_changing();
                    if is_due {
                        state.counting = state.counting.changed();
                    }
                    Ok(is_due)
                })?;
                group
            }
            Command::Next { group, present, sequencer, life } => {
                self.begin(group, changes, |state| {
                    let is_present = state.session == present;
                    if is_present {
                        state.sequencer = Some((sequencer, life));
                    }
                    Ok(is_present)
                })?;
                group
            }
        };
        let mut line = "group ".to_owned();
        push_group(id, &self.groups[&id], &mut line);
        Ok(line)
    }

    fn show(&self) -> String {
        let mut line = "all ".to_owned();
        push_all(&self.sequencers, self.groups.iter(), &mut line);
        line
    }

    fn know(&mut self, at: SocketAddr, changes: &mut Vec<Change>) -> Result<String, String> {
        if self.sequencers.contains(&at) {
            return Ok("ok".to_owned());
        }
        if self.sequencers.len() >= MAX_SEQUENCERS {
            return Err(format!("there are {MAX_SEQUENCERS} sequencers: forget one first"));
        }
        changes.push(Change::Sequencers(self.sequencers.clone()));
        self.sequencers.push(at);
        Ok("ok".to_owned())
    }

    /// Begins the group's next session if `change` wants it. Before the first one there is no
    /// session to end.
    fn begin(
        &mut self,
        id: GroupId,
        changes: &mut Vec<Change>,
        change: impl FnOnce(&mut Group) -> Result<bool, String>,
    ) -> Result<(), String> {
        let group = self.groups.get_mut(&id);
        let group = group.ok_or_else(|| format!("there is no group {:x}", id.0))?;
        let mut next = group.clone();
        if !change(&mut next)? {
            return Ok(());
        }
        if next.sequencer.is_some() {
            if group.session >= MAX_SESSION {
                return Err(format!("group {:x} has had its last session", id.0));
            }
            next.session.0 += 1;
        }
        changes.push(Change::Group(id, Some(std::mem::replace(group, next))));
        Ok(())
    }

    fn answer(result: Result<String, String>, reply: &mut Vec<u8>) {
        let line = result.unwrap_or_else(|why| format!("error {why}"));
        reply.extend_from_slice(line.as_bytes());
        reply.push(b'\n');
    }
}

/// The commands of a request.
fn commands(request: &[u8]) -> impl Iterator<Item = Result<Command, String>> {
    let lines = request.split(|&byte| byte == b'\n');
    let text = lines.filter(|line| !line.is_empty()).map(|line| str::from_utf8(line));
    text.map(|line| {
        let line = line.map_err(|_| "not text".to_owned())?;
        Command::parse(line).map_err(|error| error.to_string())
    })
}

impl StateMachine for Config {
    type Undo = Vec<Change>;

    fn apply(&mut self, _: Context, request: &[u8], reply: &mut Vec<u8>) -> Vec<Change> {
        let mut changes = Vec::new();
        for command in commands(request) {
            let result = command.and_then(|command| self.execute(command, &mut changes));
            Config::answer(result, reply);
        }
        changes
    }

    fn undo(&mut self, changes: Vec<Change>) {
        for change in changes.into_iter().rev() {
            match change {
                Change::Group(id, Some(group)) => {
                    self.groups.insert(id, group);
                }
                Change::Group(id, None) => {
                    self.groups.remove(&id);
                }
                Change::Sequencers(list) => self.sequencers = list,
            }
        }
    }

    fn read(&self, _: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        for command in commands(request) {
            let result = command.and_then(|command| {
                let refusal = || "a command that changes something was sent as a read".to_owned();
                command.reads().then(|| self.show()).ok_or_else(refusal)
            });
            Config::answer(result, reply);
        }
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {
        let sequencers = self.sequencers.iter().map(|at| format!("sequencer {at}\n"));
        let groups = self.groups.iter().map(|(&id, group)| {
            let mut line = "group ".to_owned();
            push_group(id, group, &mut line);
            line + "\n"
        });
        self.checkpoint = Some(sequencers.chain(groups).collect());
    }

    fn checkpoint_next(&mut self, budget: usize, out: &mut Vec<u8>) -> bool {
        let lines = self.checkpoint.as_mut().expect("a checkpoint was begun");
        let end = out.len() + budget;
        while let Some(line) = lines.pop_front() {
            out.extend_from_slice(line.as_bytes());
            if out.len() >= end {
                break;
            }
        }
        let done = lines.is_empty();
        if done {
            self.checkpoint = None;
        }
        done
    }

    fn checkpoint_abort(&mut self) {
        self.checkpoint = None;
    }

    fn restore_begin(&mut self) {
        *self = Config::default();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        let text = str::from_utf8(chunk).map_err(|_| BadCheckpoint)?;
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("sequencer", at)) => {
                    self.sequencers.push(at.parse().map_err(|_| BadCheckpoint)?);
                }
                Some(("group", rest)) => {
                    let (id, group) = read_group(rest).map_err(|_| BadCheckpoint)?;
                    self.groups.insert(id, group);
                }
                _ => return Err(BadCheckpoint),
            }
        }
        Ok(())
    }
}
