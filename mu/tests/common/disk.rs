//! A simulated disk: batches become durable in order, some time after they were handed over; a
//! crash keeps any number of those that were not.

use std::collections::VecDeque;

use bytes::Bytes;
use smr::contract::{Recovered, Trust};
use smr::rng::Rng;
use smr::{CheckpointChunk, Log, OpNumber, StoreBatch, StoreNumber, View, Viewstamp};

#[derive(Default)]
pub struct Disk {
    view: View,
    pub log: Log,
    /// The newest checkpoint, and the one being fetched.
    pub checkpoint: Option<(Viewstamp, Vec<u8>)>,
    pub saved: Vec<u8>,
    /// With the time, in nanoseconds, when each is there.
    pending: VecDeque<(u64, StoreBatch)>,
    /// How long a batch takes, at most, in nanoseconds.
    pub slowness: u64,
    /// It does nothing before this time.
    pub stuck_until: u64,
}

impl Disk {
    pub fn new(slowness: u64) -> Disk {
        Disk { slowness, ..Disk::default() }
    }

    pub fn hand(&mut self, now: u64, batch: StoreBatch, rng: &mut Rng) {
        let last = self.pending.back().map_or(now, |&(at, _)| at);
        let at = last.max(self.stuck_until).max(now) + 1 + rng.below(self.slowness);
        self.pending.push_back((at, batch));
    }

    /// Somebody waits for what was handed over so far.
    pub fn hurry(&mut self, now: u64) {
        let most = now.max(self.stuck_until) + 30_000;
        for (at, _) in &mut self.pending {
            *at = (*at).min(most);
        }
    }

    pub fn stick(&mut self, until: u64) {
        self.stuck_until = until;
        for (at, _) in &mut self.pending {
            *at = (*at).max(until);
        }
    }

    pub fn next_at(&self) -> Option<u64> {
        self.pending.front().map(|&(at, _)| at)
    }

    /// The number of the last batch that is there now, if there are new ones.
    pub fn advance(&mut self, now: u64) -> Option<StoreNumber> {
        let mut stored = None;
        while self.next_at().is_some_and(|at| at <= now) {
            let (_, batch) = self.pending.pop_front().expect("just seen");
            stored = Some(batch.number);
            self.apply(batch);
        }
        stored
    }

    fn apply(&mut self, batch: StoreBatch) {
        if let Some(base) = batch.reset {
            self.log = Log::new(base);
        }
        if let Some(keep) = batch.truncate {
            self.log.truncate(keep);
        }
        batch.append.into_iter().for_each(|entry| self.log.append(entry));
        if let Some(view) = batch.view {
            assert!(view > self.view, "views on disk only grow");
            self.view = view;
        }
        if let Some(through) = batch.trim {
            let position = self.checkpoint.as_ref().map(|checkpoint| checkpoint.0.op);
            assert!(position >= Some(through), "a checkpoint covers what is trimmed");
            self.log.trim(through);
        }
    }

    pub fn crash(&mut self, rng: &mut Rng) {
        let kept = rng.below(self.pending.len() as u64 + 1);
        for (_, batch) in std::mem::take(&mut self.pending).into_iter().take(kept as usize) {
            self.apply(batch);
        }
        self.saved.clear();
    }

    /// Whether everything up to this operation is there.
    pub fn holds(&self, viewstamp: Viewstamp) -> bool {
        let position = self.checkpoint.as_ref().map(|checkpoint| checkpoint.0);
        self.log.contains(viewstamp)
            || self.log.base().op > viewstamp.op
            || position.is_some_and(|position| position.op >= viewstamp.op)
    }

    /// What a replica that starts is told.
    pub fn recovered(&mut self) -> Recovered {
        let position = self.checkpoint.as_ref().map(|checkpoint| checkpoint.0);
        let base = position.unwrap_or_default();
        if self.log.contains(base) {
            self.log.trim(base.op);
        } else {
            let covered = self.log.last().op <= base.op || self.log.base().op < base.op;
            assert!(covered, "a log that begins above its checkpoint");
            self.log = Log::new(base);
        }
        let (view, log) = (self.view, self.log.clone());
        Recovered { trust: Trust::Intact, view, log, checkpoint: position }
    }

    pub fn read(&self, position: Option<Viewstamp>, offset: u64) -> Option<CheckpointChunk> {
        let (at, bytes) = self.checkpoint.as_ref()?;
        if position.is_some_and(|asked| asked != *at) || offset > bytes.len() as u64 {
            return None;
        }
        let rest = &bytes[offset as usize..];
        let piece = rest[..rest.len().min(2_000)].to_vec();
        let (position, total) = (*at, bytes.len() as u64);
        Some(CheckpointChunk { position, offset, total, bytes: Bytes::from(piece) })
    }

    /// The chunks of the checkpoint that was saved, which becomes the present one.
    pub fn install(&mut self, position: Viewstamp) {
        let bytes = std::mem::take(&mut self.saved);
        self.checkpoint = Some((position, bytes));
    }

    pub fn chunks(&self) -> Vec<Vec<u8>> {
        let Some((_, bytes)) = &self.checkpoint else { return Vec::new() };
        let (mut rest, mut chunks) = (&bytes[..], Vec::new());
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (chunk, after) = after.split_at(u32::from_le_bytes(*len) as usize);
            chunks.push(chunk.to_vec());
            rest = after;
        }
        chunks
    }

    /// The last operation that is there.
    pub fn last(&self) -> OpNumber {
        self.log.last().op
    }
}
