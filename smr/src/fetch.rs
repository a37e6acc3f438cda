//! The side of a state transfer that fetches: a checkpoint comes piece by piece, in order, and is
//! installed when it is whole. What is asked of whom, and what an installed state means, is the
//! protocol's.

use crate::contract::CheckpointChunk;
use crate::ids::{Now, ReplicaId, Viewstamp};

/// A checkpoint on its way to a replica.
#[derive(Debug)]
pub struct Fetch {
    from: ReplicaId,
    position: Option<Viewstamp>,
    offset: u64,
    retry_at: u64,
    tries: u32,
    installing: bool,
}

impl Fetch {
    /// Begins with the newest checkpoint of `from`, which is to be asked now, and again at
    /// `retry_at`, in [`Now::micros`].
    pub fn new(from: ReplicaId, retry_at: u64) -> Fetch {
        Fetch { from, position: None, offset: 0, retry_at, tries: 0, installing: false }
    }

    /// Who is asked.
    pub fn from(&self) -> ReplicaId {
        self.from
    }

    /// The piece that is missing: of which checkpoint, once that is known, and from which byte.
    pub fn next(&self) -> (Option<Viewstamp>, u64) {
        (self.position, self.offset)
    }

    /// Whether all pieces are here, and the state is being replaced.
    pub fn is_installing(&self) -> bool {
        self.installing
    }

    /// When to ask again.
    pub fn deadline(&self) -> Option<u64> {
        (!self.installing).then_some(self.retry_at)
    }

    /// Whether it is time to ask again.
    pub fn is_due(&self, now: Now) -> bool {
        self.deadline().is_some_and(|at| now.micros >= at)
    }

    /// Asks for the missing piece again, and next at `retry_at`. Returns how often in a row.
    pub fn ask_again(&mut self, retry_at: u64) -> u32 {
        self.retry_at = retry_at;
        self.tries += 1;
        self.tries
    }

    /// Whether this is the piece that is missing, and not a duplicate or of another attempt.
    pub fn expects(&self, from: ReplicaId, chunk: &CheckpointChunk) -> bool {
        self.asks(from)
            && self.position.is_none_or(|position| position == chunk.position)
            && chunk.offset == self.offset
            && !chunk.bytes.is_empty()
    }

    /// Whether pieces of this replica are missing.
    pub fn asks(&self, from: ReplicaId) -> bool {
        self.from == from && !self.installing
    }

    /// Takes the piece that was expected. `true` if it was the last: the state is to be installed.
    /// If not, the next one is to be asked for now, and again at `retry_at`.
    pub fn take(&mut self, chunk: &CheckpointChunk, retry_at: u64) -> bool {
        self.position = Some(chunk.position);
        self.offset += chunk.bytes.len() as u64;
        self.tries = 0;
        self.retry_at = retry_at;
        self.installing = self.offset >= chunk.total;
        self.installing
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::{OpNumber, View};

    fn chunk(op: u64, offset: u64, bytes: usize) -> CheckpointChunk {
        let position = Viewstamp::new(View(1), OpNumber(op));
        CheckpointChunk { position, offset, total: 10, bytes: Bytes::from(alloc::vec![0; bytes]) }
    }

    #[test]
    fn pieces_are_taken_once_in_order_and_of_one_checkpoint() {
        let now = |micros| Now { micros, ..Now::default() };
        let (source, other) = (ReplicaId(1), ReplicaId(2));
        let mut fetch = Fetch::new(source, 100);
        assert_eq!(fetch.next(), (None, 0));
        assert!(!fetch.is_due(now(99)) && fetch.is_due(now(100)));
        assert_eq!((fetch.ask_again(200), fetch.ask_again(300)), (1, 2));
        assert!(!fetch.expects(other, &chunk(5, 0, 6)), "another replica's");
        assert!(!fetch.expects(source, &chunk(5, 6, 4)), "a later one");
        assert!(!fetch.expects(source, &chunk(5, 0, 0)), "an empty one");
        assert!(fetch.expects(source, &chunk(5, 0, 6)));
        assert!(!fetch.take(&chunk(5, 0, 6), 400));
        assert_eq!(
            (fetch.next(), fetch.deadline()),
            ((Some(chunk(5, 0, 6).position), 6), Some(400))
        );
        assert_eq!(fetch.ask_again(500), 1, "counted anew");
        assert!(!fetch.expects(source, &chunk(5, 0, 6)), "a duplicate");
        assert!(!fetch.expects(source, &chunk(7, 6, 4)), "of another checkpoint");
        assert!(fetch.take(&chunk(5, 6, 4), 600) && fetch.is_installing());
        assert!(fetch.deadline().is_none() && !fetch.is_due(now(u64::MAX)));
        assert!(!fetch.expects(source, &chunk(5, 10, 1)) && !fetch.asks(source));
    }
}
