//! The log of a group as one replica holds it: entries without gaps above a base that a checkpoint
//! (or nothing) stands for. Truncation happens at the tail, trimming at the head.
//!
//! Invariant: `entries[i].previous` is the viewstamp before it, so two logs that hold the same
//! viewstamp are equal up to it ([Mao] 4.3, lemma 4.3.2).

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

use crate::codec::{Malformed, Reader, Writer};
use crate::ids::{OpNumber, View, Viewstamp};
use crate::request::Request;

/// What an entry does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The first entry of its view: agreement on how the view before ended (ELECTACCEPT, [Mao]
    /// 4.2.5).
    ViewStart,
    /// Requests to execute, with the primary's wall clock, which decides expiry. None: a NO-OP
    /// ([NOPaxos] 5.2.2).
    Batch {
        /// Milliseconds since 1970 at the primary.
        unix_ms: u64,
        /// In execution order.
        requests: Vec<Request>,
    },
}

/// One operation of the log. It never changes once proposed; replicas share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its identity.
    pub viewstamp: Viewstamp,
    /// The identity of the entry before it.
    pub previous: Viewstamp,
    /// What the primary knew to be committed when it proposed this.
    pub commit: OpNumber,
    /// What the primary knew to be on disk at a quorum when it proposed this (dp, [Mao] 4.2.2).
    pub durable: Viewstamp,
    /// What it does.
    pub content: Content,
}

impl Entry {
    /// Bytes of memory and log that the entry takes, closely enough to bound both.
    pub fn size(&self) -> usize {
        let requests = match &self.content {
            Content::ViewStart => 0,
            Content::Batch { requests, .. } => {
                requests.iter().map(|r| Request::OVERHEAD + r.body.len()).sum()
            }
        };
        80 + requests
    }

    /// Appends the entry.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.viewstamp(self.viewstamp);
        out.viewstamp(self.previous);
        out.u64(self.commit.0);
        out.viewstamp(self.durable);
        match &self.content {
            Content::ViewStart => out.u8(0),
            Content::Batch { unix_ms, requests } => {
                out.u8(1);
                out.u64(*unix_ms);
                out.u32(requests.len() as u32);
                for request in requests {
                    request.encode(out);
                }
            }
        }
    }

    /// Takes an entry from the front.
    pub fn decode(from: &mut Reader) -> Result<Entry, Malformed> {
        let (viewstamp, previous) = (from.viewstamp()?, from.viewstamp()?);
        if viewstamp.op.0 != previous.op.0.wrapping_add(1) || viewstamp.view < previous.view {
            return Err(Malformed);
        }
        let (commit, durable) = (from.op()?, from.viewstamp()?);
        let content = match from.u8()? {
            0 => Content::ViewStart,
            1 => {
                let unix_ms = from.u64()?;
                let count = from.count(Request::OVERHEAD)?;
                let mut requests = Vec::with_capacity(count);
                for _ in 0..count {
                    requests.push(Request::decode(from)?);
                }
                Content::Batch { unix_ms, requests }
            }
            _ => return Err(Malformed),
        };
        Ok(Entry { viewstamp, previous, commit, durable, content })
    }

    /// Reads an entry that fills `bytes`.
    pub fn from_bytes(bytes: Bytes) -> Result<Entry, Malformed> {
        let mut from = Reader::new(bytes);
        let entry = Entry::decode(&mut from)?;
        from.finish()?;
        Ok(entry)
    }
}

/// The entries above `base`.
#[derive(Clone, Debug, Default)]
pub struct Log {
    base: Viewstamp,
    entries: VecDeque<Arc<Entry>>,
    /// The views that have entries here, each with its first operation; the base's view comes
    /// first.
    views: VecDeque<(View, OpNumber)>,
    /// For each entry the sum of all sizes up to it, those below the base included.
    ends: VecDeque<usize>,
    /// The same sum at the base.
    below: usize,
}

impl Log {
    /// An empty log on top of `base`.
    pub fn new(base: Viewstamp) -> Log {
        let mut views = VecDeque::new();
        views.push_back((base.view, base.op));
        Log { base, entries: VecDeque::new(), views, ends: VecDeque::new(), below: 0 }
    }

    /// The viewstamp just below the first entry.
    pub fn base(&self) -> Viewstamp {
        self.base
    }

    /// The viewstamp of the last entry (opMax), or the base.
    pub fn last(&self) -> Viewstamp {
        self.entries.back().map_or(self.base, |entry| entry.viewstamp)
    }

    /// The sum of the entries' [`Entry::size`].
    pub fn bytes(&self) -> usize {
        self.end() - self.below
    }

    /// The sum of the sizes of the entries above `after`.
    pub fn bytes_above(&self, after: OpNumber) -> usize {
        let Some(index) = after.0.checked_sub(self.base.op.0 + 1) else { return self.bytes() };
        let end = usize::try_from(index).ok().and_then(|index| self.ends.get(index));
        end.map_or(0, |end| self.end() - end)
    }

    fn end(&self) -> usize {
        self.ends.back().copied().unwrap_or(self.below)
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry with this number, if it is here.
    pub fn get(&self, op: OpNumber) -> Option<&Arc<Entry>> {
        let index = op.0.checked_sub(self.base.op.0 + 1)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    /// The viewstamp at this number; the base's counts.
    pub fn viewstamp_at(&self, op: OpNumber) -> Option<Viewstamp> {
        if op == self.base.op {
            return Some(self.base);
        }
        self.get(op).map(|entry| entry.viewstamp)
    }

    /// Whether this very operation is here (or is the base).
    pub fn contains(&self, viewstamp: Viewstamp) -> bool {
        self.viewstamp_at(viewstamp.op) == Some(viewstamp)
    }

    /// Appends the next entry.
    ///
    /// # Panics
    /// If it does not follow the last one.
    pub fn append(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.previous, self.last(), "an entry must follow the last one");
        if self.views.back().is_none_or(|&(view, _)| view != entry.viewstamp.view) {
            self.views.push_back((entry.viewstamp.view, entry.viewstamp.op));
        }
        self.ends.push_back(self.end() + entry.size());
        self.entries.push_back(entry);
    }

    /// Drops every entry above `keep`.
    ///
    /// # Panics
    /// If `keep` lies below the base.
    pub fn truncate(&mut self, keep: OpNumber) {
        assert!(keep >= self.base.op, "cannot truncate below the base");
        while self.entries.back().is_some_and(|entry| entry.viewstamp.op > keep) {
            self.entries.pop_back();
            self.ends.pop_back();
        }
        while self.views.len() > 1 && self.views.back().is_some_and(|&(_, first)| first > keep) {
            self.views.pop_back();
        }
    }

    /// Drops every entry up to and including `through`, which becomes the base.
    pub fn trim(&mut self, through: OpNumber) {
        while self.entries.front().is_some_and(|entry| entry.viewstamp.op <= through) {
            let entry = self.entries.pop_front().expect("just seen");
            self.below = self.ends.pop_front().expect("one for each entry");
            self.base = entry.viewstamp;
        }
        while self.views.len() > 1 && self.views[1].1 <= self.base.op {
            self.views.pop_front();
        }
        if let Some(first) = self.views.front_mut() {
            *first = (self.base.view, self.base.op);
        }
    }

    /// The last viewstamp of each view in the log, oldest first (tailView, [Mao] 4.2.6). The base
    /// stands for its view.
    pub fn tails(&self) -> Vec<Viewstamp> {
        let ends = self.views.iter().skip(1).map(|&(_, first)| OpNumber(first.0 - 1));
        self.views
            .iter()
            .zip(ends.chain(core::iter::once(self.last().op)))
            .map(|(&(view, _), op)| Viewstamp { view, op })
            .collect()
    }

    /// The largest viewstamp that this log shares with one whose tails are given (vstMin, [Mao]
    /// 4.2.6), or `None` if that lies below this log's base.
    pub fn common(&self, tails: &[Viewstamp]) -> Option<Viewstamp> {
        let own = self.tails();
        for theirs in tails.iter().rev() {
            if let Some(ours) = own.iter().rev().find(|ours| ours.view == theirs.view) {
                let shared = Viewstamp::new(ours.view, ours.op.min(theirs.op));
                return (shared.op >= self.base.op).then_some(shared);
            }
        }
        None
    }

    /// The entries above `after`, oldest first.
    pub fn above(&self, after: OpNumber) -> impl Iterator<Item = &Arc<Entry>> {
        let skip = after.0.saturating_sub(self.base.op.0);
        self.entries.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn vs(view: u64, op: u64) -> Viewstamp {
        Viewstamp::new(View(view), OpNumber(op))
    }

    fn log(viewstamps: &[Viewstamp]) -> Log {
        let mut log = Log::new(Viewstamp::default());
        for &viewstamp in viewstamps {
            log.append(Arc::new(Entry {
                viewstamp,
                previous: log.last(),
                commit: OpNumber(0),
                durable: Viewstamp::default(),
                content: Content::ViewStart,
            }));
        }
        log
    }

    #[test]
    fn tails_and_common() {
        let leader = log(&[vs(21, 1), vs(21, 2), vs(32, 3), vs(32, 4)]);
        let follower = log(&[vs(21, 1), vs(21, 2), vs(21, 3)]);
        assert_eq!(follower.tails(), vec![vs(0, 0), vs(21, 3)]);
        assert_eq!(leader.common(&follower.tails()), Some(vs(21, 2)));
        assert_eq!(follower.common(&leader.tails()), Some(vs(21, 2)));
        let mut trimmed = leader.clone();
        trimmed.trim(OpNumber(3));
        assert_eq!(trimmed.tails(), vec![vs(32, 4)]);
        assert_eq!(trimmed.common(&follower.tails()), None);
        assert_eq!(trimmed.base(), vs(32, 3));
    }

    #[test]
    fn truncate_forgets_views() {
        let mut log = log(&[vs(21, 1), vs(32, 2), vs(32, 3)]);
        log.truncate(OpNumber(1));
        assert_eq!(log.last(), vs(21, 1));
        assert_eq!(log.tails(), vec![vs(0, 0), vs(21, 1)]);
    }

    #[test]
    fn bytes_are_known_above_every_operation() {
        let mut log = log(&[vs(21, 1), vs(21, 2), vs(32, 3), vs(32, 4)]);
        let each = log.bytes() / 4;
        let above = |log: &Log, op| log.bytes_above(OpNumber(op)) / each;
        assert_eq!([0, 1, 3, 4, 9].map(|op| above(&log, op)), [4, 3, 1, 0, 0]);
        log.trim(OpNumber(2));
        log.truncate(OpNumber(3));
        assert_eq!([0, 2, 3].map(|op| above(&log, op)), [1, 1, 0]);
        assert_eq!(log.bytes(), each);
        log.trim(OpNumber(3));
        assert_eq!((log.bytes(), above(&log, 3)), (0, 0));
    }

    #[test]
    fn entry_survives_its_bytes() {
        let entry = Entry {
            viewstamp: vs(256, 7),
            previous: vs(256, 6),
            commit: OpNumber(5),
            durable: vs(256, 4),
            content: Content::Batch {
                unix_ms: 12,
                requests: vec![Request {
                    client: crate::ids::ClientId::default(),
                    number: crate::ids::RequestNumber(3),
                    oldest_unanswered: crate::ids::RequestNumber(2),
                    body: Bytes::from_static(b"set"),
                }],
            },
        };
        let mut out = Vec::new();
        entry.encode(&mut Writer::new(&mut out));
        assert_eq!(Entry::from_bytes(Bytes::from(out)), Ok(entry));
    }
}
