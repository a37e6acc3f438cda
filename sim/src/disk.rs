//! A replica's disk: batches become durable in order and atomically, several at a time; a crash
//! keeps any prefix of what was not yet acknowledged. Checkpoint files are complete or absent.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use smr::rng::Rng;
use smr::{
    Content, Durability, Entry, Log, OpNumber, Recovered, StoreBatch, StoreNumber, Trust, View,
    Viewstamp,
};

use crate::bug::Bug;
use crate::options::DiskOptions;

/// A checkpoint file: chunks, each behind its length, and a checksum behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointFile {
    pub(crate) position: Viewstamp,
    pub(crate) bytes: Bytes,
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl CheckpointFile {
    pub(crate) fn of_chunks(position: Viewstamp, chunks: &[Vec<u8>]) -> CheckpointFile {
        let mut bytes = Vec::new();
        for chunk in chunks {
            bytes.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
            bytes.extend_from_slice(chunk);
        }
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        CheckpointFile { position, bytes: bytes.into() }
    }

    /// The chunks, or `None` if the file is damaged.
    pub(crate) fn chunks(&self) -> Option<Vec<Bytes>> {
        let (body, sum) = self.bytes.split_last_chunk::<8>()?;
        if checksum(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = self.bytes.slice(..body.len());
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let len = u32::from_le_bytes(*rest.first_chunk::<4>()?) as usize;
            if rest.len() < 4 + len {
                return None;
            }
            let mut chunk = rest.split_to(4 + len);
            chunks.push(chunk.split_off(4));
        }
        Some(chunks)
    }
}

/// How a disk is damaged while its replica is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// A record of the log no longer matches its checksum.
    Record,
    /// The checkpoint no longer matches its checksum.
    Checkpoint,
    /// There is a new disk.
    Gone,
}

pub(crate) struct Disk {
    options: DiskOptions,
    rng: Rng,
    bug: Option<Bug>,
    view: View,
    log: Log,
    checkpoint: Option<CheckpointFile>,
    queue: VecDeque<StoreBatch>,
    /// How many batches of the queue the sync under way covers.
    syncing: usize,
    /// No sync ends before this time.
    pub(crate) stalled_until: u64,
    /// Something that was acknowledged is gone, and the replica has not recovered yet.
    pub(crate) lost: bool,
    /// The batch whose completion ends the recovery.
    cure: Option<StoreNumber>,
}

impl Disk {
    pub(crate) fn new(options: DiskOptions, seed: u64, bug: Option<Bug>) -> Disk {
        Disk {
            options,
            rng: Rng::new(seed),
            bug,
            view: View::default(),
            log: Log::new(Viewstamp::default()),
            checkpoint: None,
            queue: VecDeque::new(),
            syncing: 0,
            stalled_until: 0,
            lost: false,
            cure: None,
        }
    }

    /// From now on the disk is quick.
    pub(crate) fn heal(&mut self) {
        self.options.slow = 0;
        self.options.spread = self.options.spread.min(500);
        self.options.latency = self.options.latency.min(500);
        self.options.damage = 0;
        self.stalled_until = 0;
    }

    /// The highest durable view.
    pub(crate) fn view(&self) -> View {
        self.view
    }

    /// Whether an operation would be there after a crash.
    pub(crate) fn holds(&self, at: Viewstamp) -> bool {
        let in_checkpoint = self.checkpoint.as_ref().is_some_and(|c| c.position.op >= at.op);
        in_checkpoint || self.log.contains(at)
    }

    /// The last operation that would be there after a crash.
    pub(crate) fn last(&self) -> Viewstamp {
        self.log.last()
    }

    /// Takes a batch. `cures` says that its completion ends a recovery.
    pub(crate) fn submit(&mut self, batch: StoreBatch, cures: bool) {
        if cures && self.lost && self.cure.is_none() {
            self.cure = Some(batch.number);
        }
        self.queue.push_back(batch);
    }

    /// Starts to sync what is queued, unless a sync is under way; returns its duration.
    pub(crate) fn sync(&mut self) -> Option<u64> {
        if self.syncing > 0 || self.queue.is_empty() {
            return None;
        }
        self.syncing = self.queue.len();
        Some(self.duration())
    }

    /// Whether something is not acknowledged yet.
    pub(crate) fn is_busy(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the next sync will cover several batches.
    pub(crate) fn groups(&self) -> bool {
        self.queue.len() > self.syncing + 1
    }

    /// How long some other file takes.
    pub(crate) fn duration(&mut self) -> u64 {
        let mut duration = self.options.latency + self.rng.below(self.options.spread + 1);
        if self.rng.chance(self.options.slow, 1_000_000) {
            duration += self.rng.below(self.options.slow_by + 1);
        }
        duration
    }

    /// What the sync under way will be answered with.
    pub(crate) fn syncing(&self) -> StoreNumber {
        self.queue[self.syncing - 1].number
    }

    /// The sync is over: its batches are durable.
    pub(crate) fn synced(&mut self) -> StoreNumber {
        let number = self.syncing();
        for batch in self.queue.drain(..self.syncing).collect::<Vec<_>>() {
            self.apply(&batch);
        }
        self.syncing = 0;
        if self.cure.is_some_and(|cure| cure <= number) {
            self.lost = false;
            self.cure = None;
        }
        number
    }

    fn apply(&mut self, batch: &StoreBatch) {
        if let Some(base) = batch.reset {
            self.log = Log::new(base);
        }
        if let Some(keep) = batch.truncate {
            self.log.truncate(keep);
        }
        for entry in &batch.append {
            self.log.append(entry.clone());
        }
        if let Some(view) = batch.view.filter(|_| self.bug != Some(Bug::ViewDropped)) {
            assert!(view >= self.view, "views only grow");
            self.view = view;
        }
        if let Some(through) = batch.trim {
            let covered = self.checkpoint.as_ref().map_or(OpNumber(0), |c| c.position.op);
            let has = !self.log.is_empty();
            assert!(!has || through <= covered, "only what a checkpoint covers is trimmed");
            self.log.trim(through);
        }
    }

    /// The process died. `keep` of what was not acknowledged has reached the disk.
    pub(crate) fn crash(&mut self, keep: Option<usize>) {
        let unsynced = self.queue.len();
        let keep = keep.unwrap_or_else(|| self.rng.below(unsynced as u64 + 1) as usize);
        let queue = std::mem::take(&mut self.queue);
        for batch in queue.iter().take(keep) {
            self.apply(batch);
        }
        if self.bug == Some(Bug::TornEntryAccepted)
            && let Some(torn) = queue.get(keep)
        {
            self.apply(&tear(torn));
        }
        self.syncing = 0;
        self.cure = None;
    }

    /// Damages what is there; returns what was done.
    pub(crate) fn damage(&mut self, damage: Damage) -> Damage {
        let damage = match damage {
            Damage::Checkpoint if self.checkpoint.is_some() => Damage::Checkpoint,
            Damage::Record if !self.log.is_empty() => Damage::Record,
            _ => Damage::Gone,
        };
        match damage {
            Damage::Record => {
                let good = self.rng.below(self.log.len() as u64);
                self.log.truncate(OpNumber(self.log.base().op.0 + good));
            }
            Damage::Checkpoint => {
                self.checkpoint = None;
                self.log = Log::new(Viewstamp::default());
            }
            Damage::Gone => {
                self.view = View::default();
                self.checkpoint = None;
                self.log = Log::new(Viewstamp::default());
            }
        }
        self.lost = self.bug != Some(Bug::CorruptionIgnored);
        damage
    }

    /// What a starting replica finds. In `memory` nothing but the view is worth keeping.
    pub(crate) fn start(
        &mut self,
        durability: Durability,
        first: bool,
    ) -> (Recovered, Option<CheckpointFile>) {
        if durability == Durability::Memory {
            self.checkpoint = None;
            self.log = Log::new(Viewstamp::default());
        }
        let trusted = self.bug == Some(Bug::ForgottenTrusted) && durability == Durability::Memory;
        let trust = match self.lost {
            _ if first || trusted => Trust::New,
            true => Trust::Lost,
            false => Trust::Intact,
        };
        let checkpoint = self.checkpoint.clone();
        if let Some(CheckpointFile { position, .. }) = checkpoint {
            // The file was put in place and the log not yet replaced: the file is the newer.
            if self.log.contains(position) {
                self.log.trim(position.op);
            } else {
                assert!(self.log.base().op <= position.op, "a gap below the log");
                self.log = Log::new(position);
            }
        }
        let position = checkpoint.as_ref().map(|checkpoint| checkpoint.position);
        let recovered =
            Recovered { trust, view: self.view, log: self.log.clone(), checkpoint: position };
        (recovered, checkpoint)
    }

    /// The checkpoint in place.
    pub(crate) fn checkpoint(&self) -> Option<&CheckpointFile> {
        self.checkpoint.as_ref()
    }

    /// Puts a checkpoint in the place of the one before.
    pub(crate) fn put_checkpoint(&mut self, file: CheckpointFile) {
        self.checkpoint = Some(file);
    }

    /// How many bytes of a file are moved at a time.
    pub(crate) fn piece(&self) -> usize {
        self.options.piece
    }

    /// Whether a transferred file turns out to be damaged.
    pub(crate) fn damages_transfer(&mut self) -> bool {
        self.rng.chance(self.options.damage, 1_000_000)
    }
}

/// A batch whose last entry has its header and none of its requests.
fn tear(batch: &StoreBatch) -> StoreBatch {
    let mut torn = StoreBatch { trim: None, ..batch.clone() };
    if let Some(last) = torn.append.last_mut()
        && let Content::Batch { unix_ms, .. } = last.content
    {
        let content = Content::Batch { unix_ms, requests: Vec::new() };
        *last = Arc::new(Entry { content, ..Entry::clone(last) });
    }
    torn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(op: u64) -> Arc<Entry> {
        let at = |op| {
            if op == 0 { Viewstamp::default() } else { Viewstamp::new(View(256), OpNumber(op)) }
        };
        Arc::new(Entry {
            viewstamp: at(op),
            previous: at(op - 1),
            commit: OpNumber(0),
            durable: Viewstamp::default(),
            content: Content::ViewStart,
        })
    }

    fn append(number: u64) -> StoreBatch {
        StoreBatch {
            number: StoreNumber(number),
            reset: None,
            truncate: None,
            append: vec![entry(number)],
            view: Some(View(256)),
            trim: None,
        }
    }

    fn disk() -> Disk {
        Disk::new(DiskOptions { latency: 5, ..DiskOptions::default() }, 1, None)
    }

    #[test]
    fn several_batches_are_answered_by_one_sync() {
        let mut disk = disk();
        disk.submit(append(1), false);
        assert_eq!(disk.sync(), Some(5));
        disk.submit(append(2), false);
        disk.submit(append(3), false);
        assert_eq!(disk.sync(), None);
        assert_eq!(disk.synced(), StoreNumber(1));
        assert_eq!(disk.sync(), Some(5));
        assert_eq!(disk.synced(), StoreNumber(3));
        assert!(disk.holds(entry(3).viewstamp));
    }

    #[test]
    fn a_crash_keeps_a_prefix() {
        let mut disk = disk();
        for number in 1..=3 {
            disk.submit(append(number), false);
        }
        disk.crash(Some(2));
        let (recovered, _) = disk.start(Durability::Sync, false);
        assert_eq!(recovered.trust, Trust::Intact);
        assert_eq!(recovered.log.last(), entry(2).viewstamp);
        let (recovered, _) = disk.start(Durability::Memory, false);
        assert_eq!(recovered.log.last(), Viewstamp::default());
        assert_eq!(recovered.view, View(256));
    }

    #[test]
    fn damage_is_reported_until_a_recovery_is_stored() {
        let mut disk = disk();
        disk.submit(append(1), false);
        disk.sync();
        disk.synced();
        assert_eq!(disk.damage(Damage::Checkpoint), Damage::Gone);
        disk.crash(None);
        assert_eq!(disk.start(Durability::Sync, false).0.trust, Trust::Lost);
        disk.submit(append(1), true);
        disk.sync();
        assert_eq!(disk.start(Durability::Sync, false).0.trust, Trust::Lost);
        disk.synced();
        assert_eq!(disk.start(Durability::Sync, false).0.trust, Trust::Intact);
    }

    #[test]
    fn a_file_knows_its_damage() {
        let chunks = [vec![1, 2, 3], vec![], vec![4]];
        let mut file = CheckpointFile::of_chunks(Viewstamp::default(), &chunks);
        assert_eq!(file.chunks().expect("whole"), chunks);
        let mut bytes = file.bytes.to_vec();
        bytes[4] ^= 1;
        file.bytes = bytes.into();
        assert_eq!(file.chunks(), None);
    }
}
