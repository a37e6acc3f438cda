//! The log as a chain of digests: two logs with the same digest at a place are equal up to it. And
//! how a new leader makes one log of several.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;

use smr::codec::Writer;
use smr::{Content, Entry, OpNumber, Request, View, Viewstamp};

/// Stands for everything up to a place of a log.
pub type Digest = [u8; 32];

#[derive(Clone, Debug)]
struct Slot {
    entry: Arc<Entry>,
    digest: Digest,
}

/// A log above a base that all replicas have.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    base: Viewstamp,
    base_digest: Digest,
    slots: VecDeque<Slot>,
    scratch: Vec<u8>,
}

impl Prefix {
    /// The last operation.
    pub fn last(&self) -> Viewstamp {
        self.slots.back().map_or(self.base, |slot| slot.entry.viewstamp)
    }

    fn slot(&self, op: OpNumber) -> Option<&Slot> {
        let index = op.0.checked_sub(self.base.op.0 + 1)?;
        self.slots.get(usize::try_from(index).ok()?)
    }

    /// The operation with this number, if it is here.
    pub fn get(&self, op: OpNumber) -> Option<&Arc<Entry>> {
        self.slot(op).map(|slot| &slot.entry)
    }

    /// The viewstamp at this number; the base's counts.
    pub fn viewstamp_at(&self, op: OpNumber) -> Option<Viewstamp> {
        if op == self.base.op {
            return Some(self.base);
        }
        self.slot(op).map(|slot| slot.entry.viewstamp)
    }

    /// What stands for everything up to this number; the base's is known, too.
    pub fn digest_at(&self, op: OpNumber) -> Option<Digest> {
        if op == self.base.op {
            return Some(self.base_digest);
        }
        self.slot(op).map(|slot| slot.digest)
    }

    /// The operations above this number.
    pub fn above(&self, op: OpNumber) -> impl Iterator<Item = &Arc<Entry>> {
        let skipped = op.0.saturating_sub(self.base.op.0) as usize;
        self.slots.iter().skip(skipped).map(|slot| &slot.entry)
    }

    /// Puts a request at the end.
    pub fn push(&mut self, view: View, request: Request) {
        self.append(next_entry(view, self.last(), request));
    }

    /// Puts an operation at the end.
    ///
    /// # Panics
    /// If it does not follow the last one.
    pub fn append(&mut self, entry: Arc<Entry>) {
        assert_eq!(entry.previous, self.last(), "an operation follows the last one");
        let before = self.digest_at(self.last().op).expect("the last one");
        self.scratch.clear();
        let mut writer = Writer::new(&mut self.scratch);
        writer.u64(entry.viewstamp.view.0);
        let Content::Batch { requests, .. } = &entry.content else { unreachable!("requests only") };
        requests.iter().for_each(|request| request.encode(&mut writer));
        let digest = blake3::keyed_hash(&before, &self.scratch).into();
        self.slots.push_back(Slot { entry, digest });
    }

    /// Drops everything above `keep`, and returns it.
    pub fn truncate(&mut self, keep: OpNumber) -> Vec<Arc<Entry>> {
        let kept = (keep.0 - self.base.op.0) as usize;
        self.slots.drain(kept..).map(|slot| slot.entry).collect()
    }

    /// Forgets everything up to `through`, which nobody needs again.
    pub fn trim(&mut self, through: OpNumber) {
        while self.slots.front().is_some_and(|slot| slot.entry.viewstamp.op <= through) {
            let Slot { entry, digest } = self.slots.pop_front().expect("just seen");
            (self.base, self.base_digest) = (entry.viewstamp, digest);
        }
    }
}

fn next_entry(view: View, previous: Viewstamp, request: Request) -> Arc<Entry> {
    let content = Content::Batch { unix_ms: 0, requests: [request].into() };
    let viewstamp = Viewstamp::new(view, previous.op.next());
    let (commit, durable) = (OpNumber(0), Viewstamp::default());
    Arc::new(Entry { viewstamp, previous, commit, durable, content })
}

/// The request of an operation.
pub(crate) fn request(entry: &Entry) -> &Request {
    let Content::Batch { requests, .. } = &entry.content else { unreachable!("requests only") };
    &requests[0]
}

/// What a replica holds when a view is called for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The last view that it took part in.
    pub last_normal: View,
    /// That view began with the log up to here.
    pub started: OpNumber,
    /// Its log above what the new leader has committed; nothing, if it differs below.
    pub entries: Vec<Arc<Entry>>,
}

/// The log with which a view begins, above what its leader has committed (`base`).
///
/// Only votes of the latest view count. What that view began with stands, since f + 1 replicas may
/// have decided it. Beyond, a place that a superquorum has is held by at least `threshold` of any
/// f + 1 voters, more than half of them: those stand, too. What is left was decided by nobody, and
/// follows in any order.
pub(crate) fn merge(
    votes: &[Vote],
    threshold: usize,
    base: Viewstamp,
    view: View,
) -> Vec<Arc<Entry>> {
    let latest = votes.iter().map(|vote| vote.last_normal).max().unwrap_or_default();
    // Those whose logs are the same as `merged` so far.
    let mut agreeing: Vec<&Vote> = votes.iter().filter(|vote| vote.last_normal == latest).collect();
    let started = agreeing.iter().map(|vote| vote.started).max().unwrap_or_default();
    let reported: Vec<&Arc<Entry>> = agreeing.iter().flat_map(|vote| &vote.entries).collect();
    let mut merged: Vec<Arc<Entry>> = Vec::new();
    loop {
        let at = merged.len();
        agreeing.retain(|vote| vote.entries.len() > at);
        let stands = base.op.0 + (at as u64) < started.0;
        let needed = if stands { 1 } else { threshold };
        let count =
            |entry: &Arc<Entry>| agreeing.iter().filter(|vote| vote.entries[at] == *entry).count();
        let mut there = agreeing.iter().map(|vote| &vote.entries[at]);
        let Some(entry) = there.find(|entry| count(entry) >= needed).cloned() else { break };
        agreeing.retain(|vote| vote.entries[at] == entry);
        merged.push(entry);
    }
    let identity = |entry: &Arc<Entry>| (request(entry).client, request(entry).number);
    let mut placed: BTreeSet<_> = merged.iter().map(identity).collect();
    for entry in reported {
        if placed.insert(identity(entry)) {
            let last = merged.last().map_or(base, |entry| entry.viewstamp);
            merged.push(next_entry(view, last, request(entry).clone()));
        }
    }
    merged
}
