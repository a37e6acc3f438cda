//! What every back end does, and what none promises. Nothing here names a back end.
//!
//! A process posts verbs with ids of its choice and polls their completions. Verbs of one process
//! on one region of one owner take effect, and are seen there, in the order of posting; nothing
//! else is ordered. Words are atomic, writes and reads are not: any subset of a write's words may
//! be there before it completes, and for ever if it fails.

use core::ops::Range;

use smr::{MAX_REPLICAS, ReplicaId};

/// A region of a process: its index in [`Geometry::regions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u8);

impl RegionId {
    /// The id as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Chosen by who posts a verb, and returned with its completion. Need not be unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VerbId(pub u64);

/// Numbers the grants of one exclusive region, from 1 (the owner's own, with which the region
/// begins), growing, below 2^48. A new process of the owner begins anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantNumber(pub u64);

impl GrantNumber {
    /// Whether an owner can have given it.
    pub(crate) fn is_possible(self) -> bool {
        self.0 < 1 << 48
    }
}

/// Who may write a region. Everybody may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, always: the background plane ([Mu] 3.2). Who writes which word is a matter
    /// between the processes.
    Open,
    /// The holder of the region's grant alone: the replication plane ([Mu] 5.2).
    Exclusive,
}

/// The shape of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpec {
    /// Who may write it.
    pub access: Access,
    /// Its length in words of 64 bits, from 1.
    pub words: u32,
}

/// The shape of the whole fabric, the same in every process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How many processes there are, 1 to [`smr::MAX_REPLICAS`].
    pub processes: u8,
    /// The regions that each process owns, 1 to 255.
    pub regions: Vec<RegionSpec>,
}

impl Geometry {
    /// # Panics
    /// If a number is out of its range.
    pub(crate) fn check(&self) {
        assert!((1..=MAX_REPLICAS).contains(&self.processes), "1 to {MAX_REPLICAS} processes");
        assert!((1..=255).contains(&self.regions.len()), "1 to 255 regions");
        assert!(self.regions.iter().all(|region| region.words > 0), "a region has words");
    }

    /// The words of a region from `offset`, as indices.
    ///
    /// # Panics
    /// If the region does not exist or the words are not all inside.
    pub(crate) fn range(&self, region: RegionId, offset: u32, words: usize) -> Range<usize> {
        let len = self.regions[region.index()].words as usize;
        let start = offset as usize;
        assert!(start <= len && words <= len - start, "words outside of the region");
        start..start + words
    }
}

/// A word of somebody's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose.
    pub process: ReplicaId,
    /// Which region.
    pub region: RegionId,
    /// Which word, from 0.
    pub offset: u32,
}

/// What a process can have done.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    /// Write words, in no particular order. Once a write to an exclusive region has failed, every
    /// later one under the same grant is refused: a log has no holes.
    Write {
        /// Where the first word goes.
        to: Place,
        /// The grant under which it is made, as the owner's completion named it; ignored in open
        /// regions.
        under: GrantNumber,
        /// The words.
        words: &'a [u64],
    },
    /// Read words, each at its own moment. What a write left that has not completed may be gone
    /// in the next read, until a later grant is in force.
    Read {
        /// The first word.
        from: Place,
        /// How many.
        words: u32,
    },
    /// Take one's own exclusive region from its holder, if it has one, and hand it to `to`, which
    /// may be oneself. Refused, without any change, if `to` was granted the region before and has
    /// not renounced since. The completion carries the number; telling it to `to` is the caller's.
    Grant {
        /// Which region of one's own.
        region: RegionId,
        /// The next holder.
        to: ReplicaId,
        /// The words that must stay, by offset, in order, disjoint. Every other word stays or
        /// becomes zero.
        keep: &'a [Range<u32>],
    },
    /// Take one's own exclusive region from its holder. When it completes, the owner's loads show
    /// every write that completed or will complete with [`Status::Ok`].
    Revoke {
        /// Which region of one's own.
        region: RegionId,
    },
    /// Promise to write no more under any grant of a region that one was given until now. Whoever
    /// wants to be granted it again does this first, also after a failed write, and waits for the
    /// completion.
    Renounce {
        /// The region's owner.
        owner: ReplicaId,
        /// Which of its regions.
        region: RegionId,
    },
}

/// How a verb ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done. Says nothing about whether the other process lives.
    Ok,
    /// The grant was not in force, or not any more. Any subset of a write's words may be there.
    Refused,
    /// The memory cannot be reached. Any subset of a write's words may be there.
    Gone,
}

/// The end of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The verb's id.
    pub id: VerbId,
    /// How it ended.
    pub status: Status,
    /// The grant's number, of a [`Verb::Grant`] that was done.
    pub grant: Option<GrantNumber>,
}

/// One process's face to the fabric.
pub trait Fabric {
    /// Which process it is.
    fn me(&self) -> ReplicaId;

    /// Posts a verb. Its completion follows, unless this process ends before.
    ///
    /// # Panics
    /// If it names words, regions or processes that do not exist, or the region has the wrong
    /// [`Access`].
    fn post(&mut self, id: VerbId, verb: Verb<'_>);

    /// Says that a write to these words will be posted soon: what can be done ahead is done. It
    /// changes nothing, and need not come true.
    ///
    /// # Panics
    /// If the words are not all inside the region.
    fn expect(&mut self, to: Place, words: u32) {
        let _ = (to, words);
    }

    /// Takes the next completion. `words` is replaced by what a read that is done has read, and
    /// by nothing for other verbs.
    fn poll(&mut self, words: &mut Vec<u64>) -> Option<Completion>;

    /// Reads this process's own region. A write may have completed at its writer and not be
    /// visible here yet.
    ///
    /// # Panics
    /// If the words are not all inside the region.
    fn load(&self, region: RegionId, offset: u32, words: &mut [u64]);

    /// Writes this process's own region, at once.
    ///
    /// # Errors
    /// [`Status::Refused`] and no change if the region is exclusive and somebody else, or nobody,
    /// holds its grant.
    ///
    /// # Panics
    /// If the words are not all inside the region.
    fn store(&mut self, region: RegionId, offset: u32, words: &[u64]) -> Status;
}
