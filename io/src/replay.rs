//! Reads the log back, and tells a torn tail from damage.
//!
//! What may be missing legitimately: segments below the first one that is there, if the checkpoint
//! covers them (judged by the caller), and what was written after the last sync. Everything else
//! that is missing or damaged had been acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use smr::codec::Malformed;
use smr::{Entry, Log, OpNumber, StoreBatch, View, Viewstamp};

use crate::record::{self, Found, Kind, Place};
use crate::segments::Segments;
use crate::{Error, Finding};

/// What the log held.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// The last operation below `entries`.
    base_op: OpNumber,
    /// Consecutive.
    entries: VecDeque<Arc<Entry>>,
    pub(crate) view: View,
    /// The highest sequence seen, in a dropped record too.
    pub(crate) sequence: u64,
    /// The segments that are part of the log, oldest first, each with the highest operation that it
    /// mentions.
    pub(crate) segments: Vec<(u64, OpNumber)>,
    /// Where the last record of the last of them ends, in bytes.
    pub(crate) end: usize,
    /// Segments that are not part of the log.
    pub(crate) dropped: Vec<u64>,
    /// The torn tail or the damage.
    pub(crate) finding: Option<Finding>,
}

impl Replayed {
    /// Whether the finding is a loss.
    pub(crate) fn is_damaged(&self) -> bool {
        self.finding.as_ref().is_some_and(Finding::is_loss)
    }

    /// Forgets all entries: what a group in durability `memory` has logged means nothing to its
    /// next life.
    pub(crate) fn forget_entries(&mut self) {
        self.entries.clear();
        self.base_op = OpNumber(0);
    }

    /// The entries that follow the checkpoint, or an empty log on top of it with the reason.
    pub(crate) fn join(&mut self, checkpoint: Option<Viewstamp>) -> (Log, Option<Finding>) {
        let base = checkpoint.unwrap_or_default();
        let mut log = Log::new(base);
        if self.base_op > base.op {
            let gap = Finding::Gap { log_base: self.base_op, checkpoint: base.op };
            return (log, Some(gap));
        }
        let mut below = None;
        while self.entries.front().is_some_and(|entry| entry.viewstamp.op <= base.op) {
            below = self.entries.pop_front().map(|entry| entry.viewstamp);
        }
        let is_continued = match (below, self.entries.front()) {
            (_, Some(first)) => first.previous == base,
            (Some(last), None) => last == base,
            (None, None) => self.base_op == base.op,
        };
        if !is_continued {
            return (log, Some(Finding::Superseded { checkpoint: base }));
        }
        for entry in self.entries.drain(..) {
            log.append(entry);
        }
        (log, None)
    }

    fn last_op(&self) -> OpNumber {
        OpNumber(self.base_op.0 + self.entries.len() as u64)
    }

    /// Does what one batch says. Entries that the checkpoint covers are dropped once trimmed.
    fn apply(&mut self, batch: StoreBatch, covered: OpNumber) -> Result<OpNumber, Malformed> {
        let mut highest = OpNumber(0);
        if let Some(base) = batch.reset {
            self.entries.clear();
            self.base_op = base.op;
            highest = base.op;
        }
        if let Some(keep) = batch.truncate {
            while self.last_op() > keep && self.entries.pop_back().is_some() {}
            // Below the base: the entries between were in segments that are gone. What follows has
            // been covered by a checkpoint since, or the gap is found by the caller.
            self.base_op = self.base_op.min(keep);
        }
        for entry in batch.append {
            let follows = match self.entries.back() {
                Some(last) => last.viewstamp == entry.previous,
                None => entry.previous.op == self.base_op,
            };
            if !follows {
                return Err(Malformed);
            }
            highest = entry.viewstamp.op;
            self.entries.push_back(entry);
        }
        self.view = self.view.max(batch.view.unwrap_or_default());
        let trim = batch.trim.unwrap_or_default().min(covered);
        while self.entries.front().is_some_and(|entry| entry.viewstamp.op < trim) {
            let entry = self.entries.pop_front().expect("just seen");
            self.base_op = entry.viewstamp.op;
        }
        Ok(highest)
    }

    /// Takes one sound record whose sequence is the next.
    fn take(&mut self, bytes: &[u8], found: &Found, covered: OpNumber) -> Result<(), Malformed> {
        let payload = &bytes[found.payload.clone()];
        match found.stamp.kind {
            Kind::Segment => {
                let start = record::decode_segment(payload)?;
                if self.sequence == 0 {
                    self.base_op = start.last_op;
                }
                self.view = self.view.max(start.view);
            }
            Kind::Batch => {
                let highest = self.apply(record::decode_batch(payload)?, covered)?;
                let segment = self.segments.last_mut().expect("its segment has begun");
                segment.1 = segment.1.max(highest);
            }
            Kind::Mark => {}
        }
        self.sequence = found.stamp.sequence;
        Ok(())
    }
}

/// Replays the log. `first_expected` is a segment that must be there, or a higher one; zero for
/// none. `checkpoint` is the position of the checkpoint that the log continues.
pub(crate) fn replay(
    segments: &Segments,
    first_expected: u64,
    checkpoint: Option<Viewstamp>,
) -> Result<Replayed, Error> {
    let covered = checkpoint.unwrap_or_default().op;
    let ids = segments.ids()?;
    let mut out = Replayed::default();
    for (index, &id) in ids.iter().enumerate() {
        let bytes = segments.read(id)?;
        let place = Place { segment: id, seed: segments.seed(id) };
        let expected = out.sequence + 1;
        let header = record::read(&bytes, 0, place).filter(|found| {
            let follows = found.stamp.sequence == expected || index == 0;
            found.stamp.kind == Kind::Segment && follows
        });
        if header.is_none() {
            examine(segments, &mut out, &ids[index..], None)?;
            break;
        }
        out.segments.push((id, OpNumber(0)));
        let end = replay_segment(&mut out, &bytes, place, covered);
        out.end = end;
        let is_continued = match ids.get(index + 1) {
            Some(&next) => continues(segments, next, out.sequence)?,
            None => false,
        };
        if !is_continued {
            examine(segments, &mut out, &ids[index + 1..], Some((id, &bytes[..], end)))?;
            break;
        }
    }
    let newest = out.segments.last().map_or(0, |&(id, _)| id);
    if newest < first_expected && !out.is_damaged() {
        let path = segments.folder.path_of(&Segments::name(first_expected));
        out.finding = Some(Finding::MissingSegment(path));
    }
    Ok(out)
}

/// Takes the records of one segment up to the first that is not sound. Returns where that is.
fn replay_segment(out: &mut Replayed, bytes: &[u8], place: Place, covered: OpNumber) -> usize {
    let mut at = 0;
    while let Some(found) = record::read(bytes, at, place) {
        let follows = at == 0 || found.stamp.sequence == out.sequence + 1;
        if !follows || out.take(bytes, &found, covered).is_err() {
            break;
        }
        at = found.end;
    }
    at
}

/// Whether this segment begins with the record after `sequence`.
fn continues(segments: &Segments, id: u64, sequence: u64) -> Result<bool, Error> {
    let bytes = segments.read_start(id)?;
    let place = Place { segment: id, seed: segments.seed(id) };
    Ok(record::read(&bytes, 0, place).is_some_and(|found| found.stamp.sequence == sequence + 1))
}

/// Decides what the end of the log is: `end` of the segment `last`, if there is one, and the
/// segments `later`, none of which continues it. Finds either the torn tail or the damage.
fn examine(
    segments: &Segments,
    out: &mut Replayed,
    later: &[u64],
    last: Option<(u64, &[u8], usize)>,
) -> Result<(), Error> {
    let expected = out.sequence + 1;
    let mut rest = Rest { sequence: out.sequence, view: out.view, ..Rest::default() };
    if let Some((id, bytes, end)) = last {
        let place = Place { segment: id, seed: segments.seed(id) };
        rest.has_remains = record::seems_to_begin(bytes, end, place);
        rest.look_at(record::scan(bytes, end, place), bytes, expected);
    }
    for &id in later {
        let bytes = segments.read(id)?;
        let place = Place { segment: id, seed: segments.seed(id) };
        rest.look_at(record::scan(&bytes, 0, place), &bytes, expected);
    }
    out.dropped.extend_from_slice(later);
    let path_of = |id| segments.folder.path_of(&Segments::name(id));
    let (path, offset) = match (last, later.first()) {
        (Some((id, _, end)), _) => (path_of(id), end as u64),
        (None, Some(&id)) => (path_of(id), 0),
        (None, None) => return Ok(()),
    };
    out.finding = match (last, later.first()) {
        (Some((id, ..)), Some(&next)) if rest.is_damage && next != id + 1 && !rest.has_remains => {
            Some(Finding::MissingSegment(path_of(id + 1)))
        }
        _ if rest.is_damage => Some(Finding::CorruptLog { path, offset }),
        _ if rest.has_remains => Some(Finding::TornTail { path, offset }),
        _ => None,
    };
    if rest.is_damage {
        // Views only grow, so the dropped records are still good for this; and no record that is
        // written from here on may be taken for one of them.
        (out.sequence, out.view) = (rest.sequence, rest.view);
    }
    Ok(())
}

/// What lies behind the end of the log.
#[derive(Default)]
struct Rest {
    sequence: u64,
    view: View,
    has_remains: bool,
    is_damage: bool,
}

impl Rest {
    fn look_at(&mut self, records: impl Iterator<Item = Found>, bytes: &[u8], expected: u64) {
        for found in records {
            self.has_remains = true;
            // A sound record that is not the next one, or is but makes no sense, was not torn.
            let stamp = found.stamp;
            self.is_damage |= stamp.synced >= expected || stamp.sequence <= expected;
            self.sequence = self.sequence.max(stamp.sequence);
            let payload = &bytes[found.payload];
            let view = match stamp.kind {
                Kind::Segment => record::decode_segment(payload).ok().map(|start| start.view),
                Kind::Batch => record::decode_batch(payload).ok().and_then(|batch| batch.view),
                Kind::Mark => None,
            };
            self.view = self.view.max(view.unwrap_or_default());
        }
    }
}
