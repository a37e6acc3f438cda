//! One record of the log. Records are aligned to 8 bytes; all numbers are little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | crc32c of the rest of the header and the payload, starting from the segment's seed |
//! | 4 | 4 | payload length |
//! | 8 | 8 | sequence: 1 above the record before, across segments and restarts |
//! | 16 | 8 | the highest sequence that was known to be on disk when this was written |
//! | 24 | 4 | the segment's number, its low bits |
//! | 28 | 4 | kind, and `LOG` |
//!
//! A bad record whose sequence a later record knows to be on disk was damaged there. Any other bad
//! record was never acknowledged: it is a torn write, whatever parts of it or of its successors
//! arrived. Only damage to what the very last sync stored looks the same; a mark behind it ends
//! that.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use smr::codec::{Malformed, Reader, Writer};
use smr::{Entry, OpNumber, StoreBatch, StoreNumber, View};

/// Bytes of a record's header, and of the least record.
pub(crate) const HEADER: usize = 32;
const MAGIC: [u8; 3] = *b"LOG";
const SEGMENT_VERSION: u32 = 1;
/// Bytes of the payload of a segment's first record.
pub(crate) const SEGMENT_START: usize = 20;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The first record of a segment: the state that it starts from.
    Segment = 1,
    /// A [`StoreBatch`].
    Batch = 2,
    /// Nothing but the proof that everything before it is on disk.
    Mark = 3,
}

/// The numbers of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) kind: Kind,
    pub(crate) sequence: u64,
    pub(crate) synced: u64,
}

/// A sound record in a segment's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) stamp: Stamp,
    pub(crate) payload: Range<usize>,
    pub(crate) end: usize,
}

/// The segment that a record belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) segment: u64,
    pub(crate) seed: u32,
}

/// Begins a record at the end of `buffer`; the payload is appended next. Returns its start.
pub(crate) fn begin(buffer: &mut Vec<u8>) -> usize {
    let start = buffer.len();
    buffer.extend_from_slice(&[0; HEADER]);
    start
}

/// Completes the record that [`begin`] began at `start`.
///
/// # Panics
/// If the payload has 4 GiB or more.
pub(crate) fn seal(buffer: &mut Vec<u8>, start: usize, place: Place, stamp: Stamp) {
    let length = buffer.len() - start - HEADER;
    let length = u32::try_from(length).expect("a batch is below 4 GiB");
    let record = &mut buffer[start..];
    record[4..8].copy_from_slice(&length.to_le_bytes());
    record[8..16].copy_from_slice(&stamp.sequence.to_le_bytes());
    record[16..24].copy_from_slice(&stamp.synced.to_le_bytes());
    record[24..28].copy_from_slice(&(place.segment as u32).to_le_bytes());
    record[28] = stamp.kind as u8;
    record[29..32].copy_from_slice(&MAGIC);
    let checksum = crc32c::crc32c_append(place.seed, &record[4..]);
    record[0..4].copy_from_slice(&checksum.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(8), 0);
}

/// The record at `at`, if there is a sound one.
pub(crate) fn read(bytes: &[u8], at: usize, place: Place) -> Option<Found> {
    let head: &[u8; HEADER] = bytes.get(at..)?.first_chunk()?;
    if !begins(head, place) {
        return None;
    }
    let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    let kind = match head[28] {
        1 => Kind::Segment,
        2 => Kind::Batch,
        3 => Kind::Mark,
        _ => return None,
    };
    let payload = at + HEADER..(at + HEADER).checked_add(u32_at(4) as usize)?;
    let checksum = crc32c::crc32c_append(place.seed, bytes.get(at + 4..payload.end)?);
    if checksum != u32_at(0) {
        return None;
    }
    let end = payload.end.next_multiple_of(8);
    let stamp = Stamp { kind, sequence: u64_at(8), synced: u64_at(16) };
    Some(Found { stamp, payload, end })
}

/// Whether a record of this segment seems to begin at `at`, sound or not.
pub(crate) fn seems_to_begin(bytes: &[u8], at: usize, place: Place) -> bool {
    bytes.get(at..).and_then(<[u8]>::first_chunk).is_some_and(|head| begins(head, place))
}

fn begins(head: &[u8; HEADER], place: Place) -> bool {
    head[29..32] == MAGIC && head[24..28] == (place.segment as u32).to_le_bytes()
}

/// The sound records from `at` on, wherever they begin.
pub(crate) fn scan(bytes: &[u8], at: usize, place: Place) -> impl Iterator<Item = Found> {
    let mut at = at.next_multiple_of(8);
    std::iter::from_fn(move || {
        while at + HEADER <= bytes.len() {
            if let Some(found) = read(bytes, at, place) {
                at = found.end;
                return Some(found);
            }
            at += 8;
        }
        None
    })
}

/// The content of a segment's first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentStart {
    /// The highest view stored before.
    pub(crate) view: View,
    /// The last operation of the log before.
    pub(crate) last_op: OpNumber,
}

/// Appends a segment's first record to an empty buffer.
pub(crate) fn encode_segment(buffer: &mut Vec<u8>, start: SegmentStart) {
    let mut out = Writer::new(buffer);
    out.u32(SEGMENT_VERSION);
    out.u64(start.view.0);
    out.u64(start.last_op.0);
}

pub(crate) fn decode_segment(payload: &[u8]) -> Result<SegmentStart, Malformed> {
    let mut from = Reader::new(Bytes::copy_from_slice(payload));
    if from.u32()? != SEGMENT_VERSION {
        return Err(Malformed);
    }
    let start = SegmentStart { view: from.view()?, last_op: from.op()? };
    from.finish()?;
    Ok(start)
}

const RESET: u8 = 1;
const TRUNCATE: u8 = 2;
const VIEW: u8 = 4;
const TRIM: u8 = 8;

/// Appends a batch; its number belongs to one life of the replica and is left out.
pub(crate) fn encode_batch(buffer: &mut Vec<u8>, batch: &StoreBatch) {
    let mut out = Writer::new(buffer);
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    out.u8(flag(batch.reset.is_some(), RESET)
        | flag(batch.truncate.is_some(), TRUNCATE)
        | flag(batch.view.is_some(), VIEW)
        | flag(batch.trim.is_some(), TRIM));
    if let Some(reset) = batch.reset {
        out.viewstamp(reset);
    }
    if let Some(truncate) = batch.truncate {
        out.u64(truncate.0);
    }
    if let Some(view) = batch.view {
        out.u64(view.0);
    }
    if let Some(trim) = batch.trim {
        out.u64(trim.0);
    }
    out.u32(u32::try_from(batch.append.len()).expect("a batch has fewer entries"));
    for entry in &batch.append {
        entry.encode(&mut out);
    }
}

/// The batch in a sound record; its number is zero.
pub(crate) fn decode_batch(payload: &[u8]) -> Result<StoreBatch, Malformed> {
    // A copy, so that an entry does not keep its whole segment in memory.
    let mut from = Reader::new(Bytes::copy_from_slice(payload));
    let flags = from.u8()?;
    let mut batch = StoreBatch {
        number: StoreNumber(0),
        reset: None,
        truncate: None,
        append: Vec::new(),
        view: None,
        trim: None,
    };
    if flags & RESET != 0 {
        batch.reset = Some(from.viewstamp()?);
    }
    if flags & TRUNCATE != 0 {
        batch.truncate = Some(from.op()?);
    }
    if flags & VIEW != 0 {
        batch.view = Some(from.view()?);
    }
    if flags & TRIM != 0 {
        batch.trim = Some(from.op()?);
    }
    let count = from.count(32)?;
    batch.append.reserve_exact(count);
    for _ in 0..count {
        batch.append.push(Arc::new(Entry::decode(&mut from)?));
    }
    from.finish()?;
    Ok(batch)
}
