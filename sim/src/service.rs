//! The service that the simulator replicates: a small map whose every answer shows the state before
//! it, so that a lost, repeated or reordered operation is seen by whoever comes next.
//!
//! Its digest covers all of the state and is kept step by step, so that states can be compared
//! after every operation.

use std::collections::BTreeMap;

use smr::{BadCheckpoint, Context, ReadOutcome, StateMachine};

/// What a command does to its key. Values are unique, so that each names its writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Sets the value.
    Put(u64),
    /// Makes the value depend on the old one and the new.
    Append(u64),
    /// Sets the value if the old one is as expected.
    Swap {
        /// What must be there.
        expected: u64,
        /// What then replaces it.
        new: u64,
    },
    /// Looks at the value. As a logged request it also takes the flag away.
    Get,
    /// Marks the key: looking at it needs the log until somebody has looked.
    Flag,
}

impl Action {
    /// The value after the action on `old`.
    pub fn after(self, old: u64) -> u64 {
        match self {
            Action::Put(value) => value,
            Action::Append(value) => mix(old.rotate_left(17) ^ mix(value)),
            Action::Swap { expected, new } if old == expected => new,
            Action::Swap { .. } | Action::Get | Action::Flag => old,
        }
    }
}

/// One command of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Never used twice.
    pub id: u64,
    /// To which key.
    pub key: u16,
    /// What.
    pub action: Action,
    /// Bytes that mean nothing.
    pub padding: u16,
}

impl Command {
    /// The bytes of the command.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, first, second) = match self.action {
            Action::Put(value) => (0, value, 0),
            Action::Append(value) => (1, value, 0),
            Action::Swap { expected, new } => (2, expected, new),
            Action::Get => (3, 0, 0),
            Action::Flag => (4, 0, 0),
        };
        let mut out = Vec::with_capacity(27 + usize::from(self.padding));
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.key.to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&u64::to_le_bytes(first));
        out.extend_from_slice(&u64::to_le_bytes(second));
        out.resize(out.len() + usize::from(self.padding), 0);
        out
    }

    /// The command that these bytes are.
    pub fn decode(bytes: &[u8]) -> Option<Command> {
        let u64_at = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (first, second) = (u64_at(11)?, u64_at(19)?);
        let action = match bytes[10] {
            0 => Action::Put(first),
            1 => Action::Append(first),
            2 => Action::Swap { expected: first, new: second },
            3 => Action::Get,
            4 => Action::Flag,
            _ => return None,
        };
        let key = u16::from_le_bytes([bytes[8], bytes[9]]);
        let padding = u16::try_from(bytes.len() - 27).ok()?;
        Some(Command { id: u64_at(0)?, key, action, padding })
    }
}

/// What a key holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Slot {
    value: u64,
    flagged: bool,
    /// The group's time of the last change: replicas must agree on it, too.
    unix_ms: u64,
}

/// What it takes to undo one command.
#[derive(Debug)]
pub struct Undo {
    id: Option<u64>,
    key: u16,
    before: Option<Slot>,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Slot(u16, Slot),
    Executed(u64, u32),
}

/// The service.
#[derive(Debug, Default)]
pub struct TestService {
    slots: BTreeMap<u16, Slot>,
    /// How often each command was executed: more than once is a violation.
    executed: BTreeMap<u64, u32>,
    digest: u64,
    repeated: u64,
    checkpoint: Vec<Item>,
    /// A planted defect: taking back does nothing.
    forgets_undo: bool,
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn slot_digest(key: u16, slot: Slot) -> u64 {
    let flag = u64::from(slot.flagged);
    mix(mix(slot.value ^ mix(u64::from(key) + 1)) ^ mix(slot.unix_ms * 2 + flag))
}

fn executed_digest(id: u64, times: u32) -> u64 {
    mix(mix(id) ^ u64::from(times))
}

impl TestService {
    /// An empty service; `forgets_undo` plants a defect.
    pub fn new(forgets_undo: bool) -> TestService {
        TestService { forgets_undo, ..TestService::default() }
    }

    /// Stands for the whole state: equal states have equal digests, and others hardly ever.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many executions were one too many.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// How often a command was executed.
    pub fn executions(&self, id: u64) -> u32 {
        self.executed.get(&id).copied().unwrap_or(0)
    }

    /// The value of a key.
    pub fn value(&self, key: u16) -> u64 {
        self.slots.get(&key).map_or(0, |slot| slot.value)
    }

    fn set_slot(&mut self, key: u16, slot: Option<Slot>) -> Option<Slot> {
        let old = match slot {
            Some(slot) => self.slots.insert(key, slot),
            None => self.slots.remove(&key),
        };
        for slot in old.iter().chain(slot.iter()) {
            self.digest ^= slot_digest(key, *slot);
        }
        old
    }

    fn set_executed(&mut self, id: u64, times: u32) {
        let old = if times == 0 {
            self.executed.remove(&id).unwrap_or(0)
        } else {
            self.executed.insert(id, times).unwrap_or(0)
        };
        for times in [old, times].into_iter().filter(|&times| times > 0) {
            self.digest ^= executed_digest(id, times);
        }
        self.repeated =
            self.repeated + u64::from(times.saturating_sub(1)) - u64::from(old.saturating_sub(1));
    }
}

impl StateMachine for TestService {
    type Undo = Undo;

    fn apply(&mut self, context: Context, request: &[u8], reply: &mut Vec<u8>) -> Undo {
        let Some(command) = Command::decode(request) else {
            reply.extend_from_slice(b"nonsense");
            return Undo { id: None, key: 0, before: None };
        };
        let Command { id, key, action, .. } = command;
        let before = self.slots.get(&key).copied();
        let old = before.unwrap_or_default();
        reply.extend_from_slice(&old.value.to_le_bytes());
        let flagged = match action {
            Action::Flag => true,
            Action::Get => false,
            _ => old.flagged,
        };
        let value = action.after(old.value);
        self.set_slot(key, Some(Slot { value, flagged, unix_ms: context.unix_ms }));
        let times = self.executed.get(&id).copied().unwrap_or(0);
        self.set_executed(id, times + 1);
        Undo { id: Some(id), key, before }
    }

    fn undo(&mut self, undo: Undo) {
        if self.forgets_undo {
            return;
        }
        let Some(id) = undo.id else { return };
        self.set_slot(undo.key, undo.before);
        let times = self.executed.get(&id).copied().unwrap_or(0);
        self.set_executed(id, times - 1);
    }

    fn read(&self, _unix_ms: u64, request: &[u8], reply: &mut Vec<u8>) -> ReadOutcome {
        let Some(command) = Command::decode(request) else {
            reply.extend_from_slice(b"nonsense");
            return ReadOutcome::Done;
        };
        let slot = self.slots.get(&command.key).copied().unwrap_or_default();
        if slot.flagged {
            return ReadOutcome::MustLog;
        }
        reply.extend_from_slice(&slot.value.to_le_bytes());
        ReadOutcome::Done
    }

    fn checkpoint_begin(&mut self) {
        let slots = self.slots.iter().map(|(&key, &slot)| Item::Slot(key, slot));
        let executed = self.executed.iter().map(|(&id, &times)| Item::Executed(id, times));
        self.checkpoint = executed.chain(slots).collect();
    }

    fn checkpoint_next(&mut self, budget: usize, out: &mut Vec<u8>) -> bool {
        while out.len() < budget {
            match self.checkpoint.pop() {
                Some(Item::Slot(key, slot)) => {
                    out.push(0);
                    out.extend_from_slice(&key.to_le_bytes());
                    out.extend_from_slice(&slot.value.to_le_bytes());
                    out.push(u8::from(slot.flagged));
                    out.extend_from_slice(&slot.unix_ms.to_le_bytes());
                }
                Some(Item::Executed(id, times)) => {
                    out.push(1);
                    out.extend_from_slice(&id.to_le_bytes());
                    out.extend_from_slice(&times.to_le_bytes());
                }
                None => return true,
            }
        }
        self.checkpoint.is_empty()
    }

    fn checkpoint_abort(&mut self) {
        self.checkpoint.clear();
    }

    fn restore_begin(&mut self) {
        *self = TestService::new(self.forgets_undo);
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), BadCheckpoint> {
        let mut rest = chunk;
        while let Some((&kind, tail)) = rest.split_first() {
            let size = if kind == 0 { 19 } else { 12 };
            let (item, tail) = tail.split_at_checked(size).ok_or(BadCheckpoint)?;
            rest = tail;
            let number =
                |at: usize| u64::from_le_bytes(item[at..at + 8].try_into().expect("eight bytes"));
            match kind {
                0 => {
                    let key = u16::from_le_bytes([item[0], item[1]]);
                    let flagged = item[10] == 1;
                    let slot = Slot { value: number(2), flagged, unix_ms: number(11) };
                    self.set_slot(key, Some(slot));
                }
                1 => {
                    let times = u32::from_le_bytes(item[8..].try_into().expect("four bytes"));
                    self.set_executed(number(0), times);
                }
                _ => return Err(BadCheckpoint),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smr::OpNumber;

    fn context(position: u64) -> Context {
        Context { position: OpNumber(position), index: 0, unix_ms: 1_000 + position }
    }

    fn command(id: u64, action: Action) -> Vec<u8> {
        Command { id, key: 3, action, padding: 2 }.encode()
    }

    #[test]
    fn undo_brings_the_digest_back() {
        let mut service = TestService::default();
        let mut reply = Vec::new();
        service.apply(context(1), &command(1, Action::Put(5)), &mut reply);
        let before = service.digest();
        let undo = service.apply(context(2), &command(2, Action::Append(6)), &mut reply);
        let flag = service.apply(context(3), &command(3, Action::Flag), &mut reply);
        assert_ne!(service.digest(), before);
        assert_eq!(service.read(0, &command(4, Action::Get), &mut reply), ReadOutcome::MustLog);
        service.undo(flag);
        service.undo(undo);
        assert_eq!(service.digest(), before);
        assert_eq!(service.value(3), 5);
    }

    #[test]
    fn a_checkpoint_is_of_the_moment_it_was_begun_at() {
        let mut service = TestService::default();
        let mut reply = Vec::new();
        for id in 0..20 {
            let body = Command { id, key: id as u16, action: Action::Put(id), padding: 0 }.encode();
            service.apply(context(id), &body, &mut reply);
        }
        let digest = service.digest();
        service.checkpoint_begin();
        service.apply(context(30), &command(30, Action::Put(99)), &mut reply);
        let mut chunks = Vec::new();
        loop {
            let mut chunk = Vec::new();
            let last = service.checkpoint_next(50, &mut chunk);
            chunks.push(chunk);
            if last {
                break;
            }
        }
        assert!(chunks.len() > 3);
        let mut other = TestService::default();
        other.restore_begin();
        for chunk in &chunks {
            other.restore_chunk(chunk).expect("own chunk");
        }
        assert_eq!(other.digest(), digest);
        assert_eq!(other.restore_chunk(&[0, 1]), Err(BadCheckpoint));
    }

    #[test]
    fn a_second_execution_shows() {
        let mut service = TestService::default();
        let mut reply = Vec::new();
        service.apply(context(1), &command(1, Action::Put(5)), &mut reply);
        let again = service.apply(context(2), &command(1, Action::Put(5)), &mut reply);
        assert_eq!(service.repeated(), 1);
        service.undo(again);
        assert_eq!(service.repeated(), 0);
    }

    #[test]
    fn commands_survive_their_bytes() {
        for action in [Action::Swap { expected: 1, new: 2 }, Action::Get, Action::Append(9)] {
            let command = Command { id: 8, key: 7, action, padding: 5 };
            assert_eq!(Command::decode(&command.encode()), Some(command));
        }
        assert_eq!(Command::decode(b"x"), None);
    }
}
