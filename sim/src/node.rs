//! One replica's process and machine: host, disk, clock, and the files that are being written.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use smr::rng::Rng;
use smr::{
    CheckpointChunk, ClientMessage, Entry, Executor, GroupId, Host, Identity, Incarnation, Now,
    OpNumber, ReplicaId, Report, Role, StoreNumber, Trust, Viewstamp,
};

use crate::bug::Bug;
use crate::disk::{CheckpointFile, Disk};
use crate::ledger::{Checked, Ledger};
use crate::options::Options;
use crate::service::TestService;
use crate::subject::{Setup, Sight, Subject, Tap};

/// What comes to a process.
#[derive(Debug)]
pub(crate) enum Incoming {
    Message {
        from: usize,
        incarnation: Incarnation,
        bytes: Bytes,
    },
    Client(Bytes),
    /// The turn in which the process takes what clients have said.
    Turn,
    Stored(StoreNumber),
    Timer(u64),
    CheckpointTick,
    CheckpointPut(CheckpointFile),
    ReadPiece {
        to: ReplicaId,
        position: Option<Viewstamp>,
        offset: u64,
    },
    Install(Viewstamp),
}

/// A clock that starts anywhere and runs at its own speed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    offset: u64,
    /// Thousandths of the true speed.
    rate: u64,
    /// How far the wall clock is off, in milliseconds.
    pub(crate) unix_ms: u64,
}

impl Clock {
    pub(crate) fn new(rng: &mut Rng, drift: u64) -> Clock {
        let rate = 1_000 - drift + rng.below(2 * drift + 1);
        Clock { offset: rng.below(1 << 40), rate, unix_ms: 1_700_000_000_000 + rng.below(2_000) }
    }

    pub(crate) fn now(&self, world: u64) -> Now {
        let micros = self.offset + world * self.rate / 1_000;
        Now { micros, unix_ms: self.unix_ms + world / 1_000 }
    }

    /// The first moment at which this clock shows `micros`.
    pub(crate) fn world(&self, micros: u64) -> u64 {
        (micros.saturating_sub(self.offset) * 1_000).div_ceil(self.rate)
    }
}

pub(crate) struct Writing {
    pub(crate) position: Viewstamp,
    pub(crate) chunks: Vec<Vec<u8>>,
}

pub(crate) struct Saved {
    pub(crate) position: Viewstamp,
    pub(crate) bytes: Vec<u8>,
    pub(crate) total: u64,
}

/// What is seen of a process from outside.
#[derive(Default)]
pub(crate) struct Witness {
    /// Executed and not stable, oldest first.
    pub(crate) applied: VecDeque<Arc<Entry>>,
    /// The operation below them.
    pub(crate) stable: OpNumber,
    /// What was committed before the step under way.
    pub(crate) before: OpNumber,
    pub(crate) committed: OpNumber,
    pub(crate) executed: Viewstamp,
    pub(crate) report: Option<Report>,
}

impl Witness {
    /// The entry that the process holds at a number, if it is above what is stable.
    pub(crate) fn applied(&self, op: OpNumber) -> Option<&Arc<Entry>> {
        let index = op.0.checked_sub(self.stable.0 + 1)?;
        self.applied.get(index as usize)
    }

    /// Its viewstamp.
    pub(crate) fn applied_at(&self, op: OpNumber) -> Option<Viewstamp> {
        self.applied(op).map(|entry| entry.viewstamp)
    }
}

pub(crate) struct Node<P: Subject> {
    pub(crate) id: usize,
    /// Counts the starts, whatever the replica is told.
    pub(crate) life: u64,
    pub(crate) incarnation: Incarnation,
    pub(crate) host: Option<Host<Tap<P>, TestService>>,
    pub(crate) sight: Sight,
    pub(crate) disk: Disk,
    pub(crate) clock: Clock,
    pub(crate) paused: bool,
    /// What arrived during a pause.
    pub(crate) inbox: Vec<Incoming>,
    /// What clients have said since the last turn.
    pub(crate) said: Vec<ClientMessage>,
    pub(crate) timer: Option<u64>,
    pub(crate) writing: Option<Writing>,
    pub(crate) saved: Option<Saved>,
    pub(crate) witness: Witness,
    /// It has died and not recovered since, so far as anybody can see.
    pub(crate) forgetful: bool,
    /// The last operation that any of its lives acknowledged.
    pub(crate) owed: Viewstamp,
    /// This life knows what the former ones acknowledged.
    pub(crate) remembers: bool,
    /// The lives that it said it knows.
    pub(crate) told: Vec<Incarnation>,
}

impl<P: Subject> Node<P> {
    pub(crate) fn new(id: usize, options: &Options, rng: &mut Rng) -> Node<P> {
        Node {
            id,
            life: 0,
            incarnation: Incarnation(0),
            host: None,
            sight: Sight::default(),
            disk: Disk::new(options.disk, rng.next_u64(), options.bug),
            clock: Clock::new(rng, options.drift),
            paused: false,
            inbox: Vec::new(),
            said: Vec::new(),
            timer: None,
            writing: None,
            saved: None,
            witness: Witness::default(),
            forgetful: false,
            owed: Viewstamp::default(),
            remembers: true,
            told: Vec::new(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.host.is_some()
    }

    /// Whether it may have forgotten what it acknowledged.
    pub(crate) fn forgets(&self) -> bool {
        !self.remembers || self.disk.lost
    }

    pub(crate) fn role(&self) -> Option<Role> {
        self.witness.report.map(|report| report.role).filter(|_| self.is_up())
    }

    /// Starts the process; returns its first input. Its checkpoint, if it has one, is loaded.
    pub(crate) fn start(
        &mut self,
        options: &Options,
        ledger: &mut Ledger,
    ) -> Checked<smr::Recovered> {
        assert!(self.host.is_none());
        self.life += 1;
        if options.bug != Some(Bug::IncarnationReused) || self.life == 1 {
            self.incarnation = Incarnation(self.life);
        }
        let (recovered, file) = self.disk.start(options.durability, self.life == 1);
        let service = TestService::new(options.bug == Some(Bug::UndoForgotten));
        let mut executor = Executor::new(service);
        self.witness = Witness::default();
        if let Some(file) = file {
            self.load(&mut executor, &file, options.bug, ledger)?;
        }
        let identity = Identity {
            group: GroupId(1),
            replica: ReplicaId(self.id as u8),
            incarnation: self.incarnation,
        };
        let protocol = P::create(Setup {
            identity,
            replicas: options.replicas,
            durability: options.durability,
            times: options.times,
            lag: options.lag,
            seed: options.seed ^ (self.life << 32) ^ (self.id as u64),
            bug: options.bug,
        });
        self.sight = Sight::default();
        self.host = Some(Host::new(Tap::new(protocol, self.sight.clone()), executor));
        self.remembers = self.life == 1;
        let durable = options.durability != smr::Durability::Memory;
        self.forgetful = self.life > 1 && (!durable || recovered.trust == Trust::Lost);
        Ok(recovered)
    }

    /// Loads a whole file into an executor.
    ///
    /// # Panics
    /// If it is damaged: the caller has looked.
    pub(crate) fn load(
        &mut self,
        executor: &mut Executor<TestService>,
        file: &CheckpointFile,
        bug: Option<Bug>,
        ledger: &mut Ledger,
    ) -> Checked<()> {
        let chunks = file.chunks().expect("the file was checked");
        executor.restore_begin();
        for (number, chunk) in chunks.iter().enumerate() {
            let mut chunk = chunk.to_vec();
            if number == 0 && bug == Some(Bug::TableLostOnRestore) {
                // Version, viewstamp, time; then the views of the log, behind their count.
                let count = chunk[25..29].try_into().map(u32::from_le_bytes).expect("four bytes");
                chunk.truncate(29 + 16 * count as usize);
                chunk.extend_from_slice(&0_u32.to_le_bytes());
            }
            executor.restore_chunk(number as u64, &chunk).expect("the file was checked");
        }
        let executed = executor.executed();
        self.witness.applied.clear();
        self.witness.stable = executed.op;
        self.witness.committed = executed.op;
        self.witness.executed = executed;
        if executed != file.position {
            return Err("checkpoint: its position is not what it holds".into());
        }
        ledger.restored(executed, executor.machine().digest())
    }

    /// The process dies. `keep` of its unacknowledged batches reach the disk; at random if `None`.
    pub(crate) fn stop(&mut self, keep: Option<usize>) {
        self.host = None;
        self.disk.crash(keep);
        self.inbox.clear();
        self.said.clear();
        self.paused = false;
        self.timer = None;
        self.writing = None;
        self.saved = None;
        self.witness.report = None;
    }

    /// A piece of the checkpoint in place.
    pub(crate) fn piece(
        &self,
        position: Option<Viewstamp>,
        offset: u64,
    ) -> Option<CheckpointChunk> {
        let file = self.disk.checkpoint()?;
        if position.is_some_and(|position| position != file.position) {
            return None;
        }
        let total = file.bytes.len();
        let start = usize::try_from(offset).ok().filter(|&start| start < total)?;
        let end = total.min(start + self.disk.piece());
        let bytes = file.bytes.slice(start..end);
        Some(CheckpointChunk { position: file.position, offset, total: total as u64, bytes })
    }

    /// Keeps a piece of somebody's checkpoint.
    pub(crate) fn save(&mut self, chunk: CheckpointChunk) -> Checked<()> {
        if chunk.offset == 0 {
            let (position, total) = (chunk.position, chunk.total);
            self.saved = Some(Saved { position, bytes: Vec::new(), total });
        }
        match &mut self.saved {
            Some(saved)
                if saved.position == chunk.position && saved.bytes.len() as u64 == chunk.offset =>
            {
                saved.bytes.extend_from_slice(&chunk.bytes);
                Ok(())
            }
            _ => Err("transfer: pieces must come in order from zero".into()),
        }
    }

    /// The saved checkpoint, if it is the one named and whole.
    pub(crate) fn take_saved(&mut self, position: Viewstamp) -> Option<CheckpointFile> {
        let saved = self.saved.take()?;
        if saved.position != position || saved.bytes.len() as u64 != saved.total {
            return None;
        }
        let mut bytes = saved.bytes;
        if self.disk.damages_transfer() {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x20;
        }
        let file = CheckpointFile { position, bytes: bytes.into() };
        file.chunks().is_some().then_some(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_never_shows_a_time_too_early() {
        let mut rng = Rng::new(3);
        for _ in 0..100 {
            let clock = Clock::new(&mut rng, 100);
            let deadline = clock.now(rng.below(1_000_000)).micros + rng.below(1_000);
            let due = clock.world(deadline);
            assert!(clock.now(due).micros >= deadline);
            assert!(due == 0 || clock.now(due - 1).micros < deadline);
        }
    }
}
