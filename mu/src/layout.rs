//! Where everything is: two regions per replica, and the slots of the log ([Mu] Listing 1).
//!
//! A slot is seven words and an entry: two cells, a checksum, operation, length. A cell is a number
//! and a tag that binds it to the checksum: no subset of the words of two values reads as a third
//! state. Proposing a value again under another number writes the cell that does not count; the
//! value keeps its old number until the new one is whole (docs/protocols/mu.md, "Slots").

use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;

use fabric::{Access, Geometry, GrantNumber, RegionId, RegionSpec};
use smr::codec::Writer;
use smr::{Entry, Incarnation, OpNumber, ReplicaId, View, Viewstamp};
use zerocopy::IntoBytes;

use crate::config::{Config, Limits};
use crate::space::Space;

/// The log: who holds its grant writes it. Replication plane.
pub const LOG: RegionId = RegionId(0);
/// The board: background plane, open.
pub const BOARD: RegionId = RegionId(1);

/// The log's first words.
pub(crate) const MIN_PROPOSAL: u32 = 0;
/// FUO as the last leader told it.
pub(crate) const FIRST_UNDECIDED: u32 = 1;
/// Written by leaders to find out whether they still lead.
pub(crate) const ROUND: u32 = 2;
/// Two words: what the leader knows to be decided, see [`sealed`].
pub(crate) const DECIDED: u32 = 4;
/// Two words: the durable point, see [`sealed`].
pub(crate) const DURABLE_POINT: u32 = 6;
const SLOTS: u32 = 8;

/// The board's first words, the owner's.
pub(crate) const HEARTBEAT: u32 = 0;
/// The log head, see [`Head`].
pub(crate) const HEAD: u32 = 1;
/// The owner's life.
pub(crate) const LIFE: u32 = 2;
/// The view of the last operation executed, and a seal over it and the log head.
pub(crate) const EXECUTED: u32 = 3;
/// 1 if the owner may have forgotten what it acknowledged (durability `lazy`).
pub(crate) const FORGETFUL: u32 = 5;
/// How much of a checkpoint the owner has fetched, see [`crate::reserve`].
pub(crate) const FETCHED: u32 = 6;
/// How many words the detector reads.
pub(crate) const PULSE: u32 = 7;
/// By replica: its newest life that the owner knows.
pub(crate) const KNOWN: u32 = 8;
/// How many of the board's words a would-be leader reads.
pub(crate) const BOARD_HEAD: u32 = 20;
/// By requester: its permission request ([Mu] 5.2), written by the requester.
pub(crate) const REQUESTS: u32 = 24;
/// By owner of a log: the grant and the request that it answers, written by that owner.
pub(crate) const ACKS: u32 = 40;
/// By follower: two words, what is durable there, see [`sealed`]; written by that follower to the
/// board of the leader whose number it has promised.
const DURABLE: u32 = 64;
const BOARD_WORDS: u32 = 88;

/// Words of a slot before its entry: two cells, then these three.
pub(crate) const HEADER: usize = 7;
const CELL: usize = 2;
const CHECKSUM: usize = 4;
const OP: usize = 5;
const LEN: usize = 6;
/// Bytes of an entry without requests, at least.
const LEAST: u64 = 57;
/// Bytes of a slot that a batch's requests cannot use.
pub(crate) const OVERHEAD: usize = HEADER * 8 + 72;

/// The shape of the fabric that a group with this configuration runs on.
pub fn geometry(config: &Config) -> Geometry {
    let log = RegionSpec { access: Access::Exclusive, words: log_words(&config.limits) };
    let board = RegionSpec { access: Access::Open, words: BOARD_WORDS };
    Geometry { processes: config.replicas, regions: alloc::vec![log, board] }
}

pub(crate) fn log_words(limits: &Limits) -> u32 {
    SLOTS + limits.slots * limits.slot_words
}

/// Where an operation's slot begins, in words of the log.
pub(crate) fn offset(limits: &Limits, op: OpNumber) -> u32 {
    SLOTS + (op.0 % u64::from(limits.slots)) as u32 * limits.slot_words
}

/// Where the slots of the operations above the first number and up to the last are, with the log's
/// first words.
pub(crate) fn words_of(limits: &Limits, ops: Range<u64>) -> Vec<Range<u32>> {
    let (slots, size) = (u64::from(limits.slots), limits.slot_words);
    let count = ops.end - ops.start;
    if count >= slots {
        return alloc::vec![0..log_words(limits)];
    }
    let at = |slot: u64| SLOTS + slot as u32 * size;
    let first = (ops.start + 1) % slots;
    let end = first + count;
    let mut ranges = alloc::vec![0..SLOTS];
    if end > slots {
        ranges.push(at(0)..at(end - slots));
    }
    ranges.push(at(first)..at(end.min(slots)));
    ranges
}

pub(crate) fn request_of(requester: ReplicaId) -> u32 {
    REQUESTS + u32::from(requester.0)
}

pub(crate) fn ack_of(owner: ReplicaId) -> u32 {
    ACKS + 2 * u32::from(owner.0)
}

pub(crate) fn durable_of(follower: ReplicaId) -> u32 {
    DURABLE + 2 * u32::from(follower.0)
}

/// Two words that tell an operation under a number: they may come apart, and none of another number
/// counts. `who` is the life of the writer, or what else must be the same.
pub(crate) fn sealed(number: View, who: u64, op: OpNumber) -> [u64; 2] {
    [op.0, tag(number.0, mix(mix(K[1], who, K[0]), op.0, K[2]))]
}

/// Whom a seal in a log names: the word, and the grant under which it is written.
pub(crate) fn under(offset: u32, grant: GrantNumber) -> u64 {
    u64::from(offset) << 56 | grant.0
}

/// What two words of [`sealed`] say, if they are whole and under this number.
pub(crate) fn unsealed(words: [u64; 2], number: View, who: u64) -> Option<OpNumber> {
    let op = OpNumber(words[0]);
    (sealed(number, who, op) == words).then_some(op)
}

pub(crate) fn known_of(replica: ReplicaId) -> u32 {
    KNOWN + u32::from(replica.0)
}

/// Where an operation's slot is in a log: its first word, and how many it has. For checkers.
pub fn slot_place(limits: &Limits, op: OpNumber) -> (u32, u32) {
    (offset(limits, op), limits.slot_words)
}

/// The number and the value's viewstamp, if these words are a whole slot of this operation. For
/// checkers.
pub fn slot_in(limits: &Limits, op: OpNumber, words: &[u64]) -> Option<(View, Viewstamp)> {
    Slot::parse(limits, op, words).map(|slot| (slot.number(), slot.viewstamp()))
}

/// How far a replica has executed, and from where on its log has what it executed: the slots of
/// operations above `base` and up to `head` hold decided values. One word, so that both are of the
/// same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) head: OpNumber,
    pub(crate) base: OpNumber,
}

impl Head {
    const SPAN_BITS: u32 = 24;

    pub(crate) fn pack(self) -> u64 {
        let span = (self.head.0 - self.base.0).min((1 << Self::SPAN_BITS) - 1);
        self.head.0 << Self::SPAN_BITS | span
    }

    pub(crate) fn unpack(word: u64) -> Head {
        let (head, span) = (word >> Self::SPAN_BITS, word & ((1 << Self::SPAN_BITS) - 1));
        Head { head: OpNumber(head), base: OpNumber(head.saturating_sub(span)) }
    }
}

/// Bits of a number: round, members, its proposer's life and id.
const ROUND_SHIFT: u32 = 33;
const MEMBERS_SHIFT: u32 = 24;

/// A number that nobody has used: above `above`, with its proposer's life and id in its low bits
/// (unique per process and per incarnation). It is the view, too, and names the members of
/// the group under it, a bit each.
pub(crate) fn next_number(above: View, members: u16, life: u64, me: ReplicaId) -> View {
    let members = u64::from(members) << MEMBERS_SHIFT;
    let round = (above.0 >> ROUND_SHIFT) + 1;
    View(round << ROUND_SHIFT | members | (life & 0xffff) << 8 | u64::from(me.0))
}

/// Whether a number can have been picked by its proposer in this life.
pub(crate) fn is_of_life(number: View, life: Incarnation) -> bool {
    (number.0 >> 8) & 0xffff == life.0 & 0xffff
}

/// Which round a number is of: what operators see of it.
pub fn round(number: View) -> u64 {
    number.0 >> ROUND_SHIFT
}

/// The members under a number; `initial` before the first one.
pub(crate) fn members_of(view: View, initial: u16) -> u16 {
    let members = (view.0 >> MEMBERS_SHIFT) as u16 & ((1 << smr::MAX_REPLICAS) - 1);
    if members == 0 { initial } else { members }
}

const K: [u64; LANES] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xff51_afd7_ed55_8ccd,
    0xc4ce_b9fe_1a85_ec53,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
];
const LANES: usize = 8;

fn mix(hash: u64, word: u64, k: u64) -> u64 {
    (hash ^ word).wrapping_mul(k).rotate_left(29)
}

/// 64 bits over a value, in lanes so that a processor overlaps them.
fn checksum(op: u64, len: u64, words: &[u64]) -> u64 {
    let mut lanes = K;
    lanes[0] = mix(K[0], op, K[1]);
    lanes[1] = mix(K[1], len, K[2]);
    let mut chunks = words.chunks_exact(LANES);
    for chunk in &mut chunks {
        for (lane, (&word, k)) in lanes.iter_mut().zip(chunk.iter().zip(K)) {
            *lane = mix(*lane, word, k);
        }
    }
    for (lane, (&word, k)) in lanes.iter_mut().zip(chunks.remainder().iter().zip(K)) {
        *lane = mix(*lane, word, k);
    }
    let (low, high) = lanes.split_at(LANES / 2);
    let pairs = low.iter().zip(high).zip(K).map(|((&low, &high), k)| mix(low, high, k));
    let joined = pairs.fold(len, |hash, lane| mix(hash, lane, K[0]));
    joined ^ joined >> 32
}

/// Binds a number to a value. Never what two unwritten words hold.
fn tag(number: u64, checksum: u64) -> u64 {
    let mixed = mix(mix(K[3], number, K[1]), checksum, K[2]);
    (mixed ^ mixed >> 32) | 1
}

/// A whole slot: its checksum and a cell were right when it was taken.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    words: Arc<[u64]>,
    number: View,
    /// Which cell has the number.
    cell: u8,
}

impl Slot {
    /// A new value.
    ///
    /// # Panics
    /// If it does not fit a slot.
    pub(crate) fn new(limits: &Limits, number: View, entry: &Entry, space: &mut Space) -> Slot {
        space.bytes.clear();
        entry.encode(&mut Writer::new(&mut space.bytes));
        let len = space.bytes.len() as u64;
        space.bytes.resize(space.bytes.len().next_multiple_of(8), 0);
        let mut shared = space.words(HEADER + space.bytes.len() / 8);
        let words = Arc::get_mut(&mut shared).expect("nobody else knows it");
        assert!(words.len() <= limits.slot_words as usize, "the entry fits a slot");
        let (header, value) = words.split_at_mut(HEADER);
        value.as_mut_bytes().copy_from_slice(&space.bytes);
        header.copy_from_slice(&[number.0, 0, 0, 0, 0, entry.viewstamp.op.0, len]);
        header[CHECKSUM] = checksum(header[OP], len, value);
        header[1] = tag(number.0, header[CHECKSUM]);
        Slot { words: shared, number, cell: 0 }
    }

    /// How many words a slot uses that begins with this header, if it can be this operation's.
    pub(crate) fn extent(limits: &Limits, op: OpNumber, header: &[u64]) -> Option<usize> {
        let words = HEADER + usize::try_from(header[LEN]).ok()?.div_ceil(8);
        let fits = header[LEN] >= LEAST && words <= limits.slot_words as usize;
        (fits && header[OP] == op.0).then_some(words)
    }

    /// The slot in these words, if it is whole and this operation's.
    pub(crate) fn parse(limits: &Limits, op: OpNumber, words: &[u64]) -> Option<Slot> {
        let words = &words[..Slot::extent(limits, op, words)?];
        Slot::whole(limits, op, words.into())
    }

    /// As [`Slot::parse`], of words that are the slot's alone.
    pub(crate) fn whole(limits: &Limits, op: OpNumber, words: Arc<[u64]>) -> Option<Slot> {
        let extent = Slot::extent(limits, op, &words);
        if extent != Some(words.len())
            || words[CHECKSUM] != checksum(words[OP], words[LEN], &words[HEADER..])
        {
            return None;
        }
        let counts =
            |cell: &usize| words[CELL * cell + 1] == tag(words[CELL * cell], words[CHECKSUM]);
        let cell = (0..2).filter(counts).max_by_key(|cell| words[CELL * cell])?;
        let number = View(words[CELL * cell]);
        Some(Slot { words, number, cell: cell as u8 })
    }

    /// As [`Slot::parse`], for defects that let more pass.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn parse_with(
        bug: Option<crate::Bug>,
        limits: &Limits,
        op: OpNumber,
        words: &[u64],
    ) -> Option<Slot> {
        let slots = u64::from(limits.slots);
        match bug {
            Some(crate::Bug::LapIgnored) if words[OP] % slots == op.0 % slots => {
                Slot::parse(limits, OpNumber(words[OP]), words)
            }
            Some(crate::Bug::ChecksumIgnored) => {
                let words = &words[..Slot::extent(limits, op, words)?];
                let cell = usize::from(words[CELL] > words[0]);
                let number = View(words[CELL * cell]);
                Some(Slot { words: words.into(), number, cell: cell as u8 })
            }
            _ => Slot::parse(limits, op, words),
        }
    }

    pub(crate) fn number(&self) -> View {
        self.number
    }

    /// The same value under another number.
    pub(crate) fn renumbered(&self, number: View) -> Slot {
        let mut words: Vec<u64> = self.words.to_vec();
        words[..CHECKSUM].copy_from_slice(&[number.0, tag(number.0, self.value()), 0, 0]);
        Slot { words: words.into(), number, cell: 0 }
    }

    /// What to write so that this slot has another number, and at which of its words.
    pub(crate) fn renumbering(&self, number: View) -> (u32, [u64; 2]) {
        let cell = u32::from(1 - self.cell);
        (cell * CELL as u32, [number.0, tag(number.0, self.value())])
    }

    pub(crate) fn into_words(self) -> Arc<[u64]> {
        self.words
    }

    pub(crate) fn words(&self) -> &Arc<[u64]> {
        &self.words
    }

    /// Tells values of one operation apart.
    pub(crate) fn value(&self) -> u64 {
        self.words[CHECKSUM]
    }

    pub(crate) fn viewstamp(&self) -> Viewstamp {
        Viewstamp::new(View(self.words[HEADER]), OpNumber(self.words[HEADER + 1]))
    }

    pub(crate) fn previous(&self) -> Viewstamp {
        Viewstamp::new(View(self.words[HEADER + 2]), OpNumber(self.words[HEADER + 3]))
    }

    /// Whether this header is that of the same operation and value.
    pub(crate) fn is_headed(&self, header: &[u64]) -> bool {
        header[CHECKSUM..HEADER] == self.words[CHECKSUM..HEADER]
    }

    /// What the value's proposer knew to be decided: FUO - 1.
    pub(crate) fn decided(&self) -> OpNumber {
        OpNumber(self.words[HEADER + 4])
    }

    /// The value, whose requests are this slot's own bytes.
    ///
    /// # Panics
    /// If it is no entry: the checksum says that a leader wrote it as it is.
    pub(crate) fn entry(&self) -> Entry {
        let bytes = Bytes::from_owner(Value(self.words.clone()));
        Entry::from_bytes(bytes).expect("a whole slot holds an entry")
    }
}

/// A slot's words as the entry's bytes.
struct Value(Arc<[u64]>);

const _: () = assert!(cfg!(target_endian = "little"), "words are the bytes of an entry");

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0[HEADER..].as_bytes()[..self.0[LEN] as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smr::Content;

    fn entry(op: u64, view: u64) -> Entry {
        Entry {
            viewstamp: Viewstamp::new(View(view), OpNumber(op)),
            previous: Viewstamp::new(View(view), OpNumber(op - 1)),
            commit: OpNumber(op - 1),
            durable: Viewstamp::default(),
            content: Content::ViewStart,
        }
    }

    #[test]
    fn a_slot_is_whole_or_nothing() {
        let limits = Limits::tiny();
        let slot = Slot::new(&limits, View(3), &entry(20, 2), &mut Space::default());
        let mut words = slot.words().to_vec();
        words.resize(limits.slot_words as usize, 0);
        let whole = Slot::parse(&limits, OpNumber(20), &words).expect("whole");
        assert_eq!(whole.entry(), entry(20, 2));
        assert_eq!((whole.number(), whole.decided()), (View(3), OpNumber(19)));
        assert!(Slot::parse(&limits, OpNumber(36), &words).is_none(), "a former lap's");
        for index in (0..slot.words().len()).filter(|index| !(2..4).contains(index)) {
            let mut torn = words.clone();
            torn[index] ^= 1 << (index % 64);
            assert!(Slot::parse(&limits, OpNumber(20), &torn).is_none(), "word {index}");
        }
        for number in [9, 11, 12] {
            let now = Slot::parse(&limits, OpNumber(20), &words).expect("whole");
            let (at, cell) = now.renumbering(View(number));
            for part in 0..2 {
                let mut torn = words.clone();
                torn[at as usize + part] = cell[part];
                let kept = Slot::parse(&limits, OpNumber(20), &torn).expect("whole");
                assert_eq!(kept.number(), now.number(), "the old number counts until then");
            }
            words[at as usize..][..2].copy_from_slice(&cell);
            let again = Slot::parse(&limits, OpNumber(20), &words).expect("whole");
            assert_eq!((again.number(), again.value()), (View(number), slot.value()));
        }
    }

    #[test]
    fn a_number_belongs_to_one_value() {
        let limits = Limits::tiny();
        let old = Slot::new(&limits, View(3), &entry(20, 2), &mut Space::default());
        let new = Slot::new(&limits, View(9), &entry(20, 9), &mut Space::default());
        // Every subset of the words of a write over an accepted value.
        for subset in 0_u32..1 << old.words().len() {
            let pick = |index: usize| {
                let from = if subset >> index & 1 == 1 { &new } else { &old };
                from.words()[index]
            };
            let mut words: Vec<u64> = (0..old.words().len()).map(pick).collect();
            words.resize(limits.slot_words as usize, 0);
            if let Some(slot) = Slot::parse(&limits, OpNumber(20), &words) {
                let expected = if slot.value() == old.value() { 3 } else { 9 };
                assert_eq!(slot.number(), View(expected));
            }
        }
    }

    #[test]
    fn numbers_are_unique_and_grow() {
        let first = next_number(View(0), 7, 1, ReplicaId(0));
        let other = next_number(View(0), 7, 2, ReplicaId(0));
        let third = next_number(other, 3, 1, ReplicaId(2));
        assert!(first < other && other < third && third.primary() == ReplicaId(2));
        assert_eq!((members_of(third, 7), members_of(View(0), 7)), (3, 7));
        assert!(is_of_life(third, Incarnation(1)) && !is_of_life(third, Incarnation(2)));
    }

    #[test]
    fn a_seal_holds_its_words_together() {
        let words = sealed(View(9), 2, OpNumber(77));
        assert_eq!(unsealed(words, View(9), 2), Some(OpNumber(77)));
        assert_eq!(unsealed(words, View(8), 2), None, "of another number");
        assert_eq!(unsealed(words, View(9), 1), None, "of another life");
        assert_eq!(unsealed([78, words[1]], View(9), 2), None, "torn");
        let former = sealed(View(9), 1, OpNumber(0));
        assert_eq!(unsealed([3, former[1]], View(9), 2), None, "torn, and of another life");
        assert_eq!(unsealed([0, 0], View(0), 0), None, "never written");
    }

    #[test]
    fn slots_are_found_around_the_ring() {
        let limits = Limits::tiny();
        let at = |slot: u32| SLOTS + slot * limits.slot_words;
        assert_eq!(words_of(&limits, 18..20), [0..SLOTS, at(3)..at(5)]);
        assert_eq!(words_of(&limits, 13..18), [0..SLOTS, at(0)..at(3), at(14)..at(16)]);
        assert_eq!(words_of(&limits, 13..15), [0..SLOTS, at(14)..at(16)]);
        assert_eq!(words_of(&limits, 20..20), [0..SLOTS, at(5)..at(5)]);
        let all = 0..log_words(&limits);
        assert_eq!(words_of(&limits, 4..20), [all]);
    }

    #[test]
    fn heads_survive_their_word() {
        let head = Head { head: OpNumber(1 << 39), base: OpNumber((1 << 39) - 5) };
        assert_eq!(Head::unpack(head.pack()), head);
    }
}
