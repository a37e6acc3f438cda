//! Who counts in a session ([NOPaxos] 5.2.5): a session's number stands for its members.
//!
//! Members change through a session in which majorities of both the former and the new ones are
//! needed, so that any two quorums of it, of the session before and of the one after it have
//! somebody in common.

use smr::codec::{Malformed, Reader, Writer};
use smr::{MAX_REPLICAS, ReplicaId};

/// The members of a session, of up to [`MAX_REPLICAS`] replicas. The default stands for members
/// that are not known: they have no quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Members {
    /// A bit for each; different while they change.
    before: u16,
    after: u16,
}

const ALL: u16 = (1 << MAX_REPLICAS) - 1;

fn ids(set: u16) -> impl Iterator<Item = ReplicaId> {
    (0..MAX_REPLICAS).map(ReplicaId).filter(move |id| set & 1 << id.0 != 0)
}

/// Whether these are a majority of the set.
fn is_majority(set: u16, with: &impl Fn(ReplicaId) -> bool) -> bool {
    let count = ids(set).filter(|&id| with(id)).count() as u32;
    count > set.count_ones() / 2
}

impl Members {
    /// These replicas, and no change.
    pub fn of(all: impl IntoIterator<Item = ReplicaId>) -> Members {
        let after = all.into_iter().fold(0, |set, id| set | 1 << id.0);
        Members { before: after, after }
    }

    /// The replicas with the ids below `count`.
    pub fn all(count: u8) -> Members {
        Members::of((0..count).map(ReplicaId))
    }

    /// The session in which these members become `after`.
    #[must_use]
    pub fn change_to(self, after: Members) -> Members {
        Members { before: self.after, after: after.after }
    }

    /// The session after the change.
    #[must_use]
    pub fn changed(self) -> Members {
        Members { before: self.after, after: self.after }
    }

    /// Those of the session before the change.
    #[must_use]
    pub fn former(self) -> Members {
        Members { before: self.before, after: self.before }
    }

    /// Whether they are known.
    pub fn is_known(self) -> bool {
        self.after != 0
    }

    /// Whether they are about to change.
    pub fn is_changing(self) -> bool {
        self.before != self.after
    }

    /// Whether a replica counts.
    pub fn has(self, id: ReplicaId) -> bool {
        (self.before | self.after) & 1 << id.0 != 0
    }

    /// Whether a replica may lead: one that stays.
    pub fn may_lead(self, id: ReplicaId) -> bool {
        self.after & 1 << id.0 != 0
    }

    /// Those that stay, and those that come.
    pub fn ids(self) -> impl Iterator<Item = ReplicaId> {
        ids(self.after)
    }

    /// All that count.
    pub fn counting(self) -> impl Iterator<Item = ReplicaId> {
        ids(self.before | self.after)
    }

    /// Whether these replicas are a quorum: majorities of the former and of the new members.
    pub fn is_quorum(self, with: impl Fn(ReplicaId) -> bool) -> bool {
        self.is_known() && is_majority(self.before, &with) && is_majority(self.after, &with)
    }

    /// Whether every quorum has one of these replicas.
    pub fn meets_quorums(self, with: impl Fn(ReplicaId) -> bool) -> bool {
        self.is_known() && !self.is_quorum(|id| !with(id))
    }

    /// The highest value that a quorum has reached, each replica having reached `value`; the
    /// lowest of all values while the members are not known.
    pub fn reached<T: Ord + Copy + Default>(self, value: impl Fn(ReplicaId) -> T) -> T {
        let of = |set: u16| {
            let mut values = [T::default(); MAX_REPLICAS as usize];
            let mut count = 0;
            for (place, id) in values.iter_mut().zip(ids(set)) {
                *place = value(id);
                count += 1;
            }
            let values = &mut values[..count];
            values.sort_unstable_by(|a, b| b.cmp(a));
            values.get(count / 2).copied().unwrap_or_default()
        };
        of(self.before).min(of(self.after))
    }

    /// Appends them.
    pub fn encode(self, out: &mut Writer<'_>) {
        out.u32(u32::from(self.before) << 16 | u32::from(self.after));
    }

    /// Takes them from the front.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(from: &mut Reader) -> Result<Members, Malformed> {
        let sets = from.u32()?;
        let (before, after) = ((sets >> 16) as u16, sets as u16);
        let is_sound = (before | after) & !ALL == 0 && (before == 0) == (after == 0);
        if is_sound { Ok(Members { before, after }) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn of(ids: &[u8]) -> Members {
        Members::of(ids.iter().copied().map(ReplicaId))
    }

    fn has(ids: &[u8]) -> impl Fn(ReplicaId) -> bool {
        |id| ids.contains(&id.0)
    }

    #[test]
    fn a_quorum_is_a_majority_also_of_an_even_number() {
        let four = Members::all(4);
        assert!(!four.is_quorum(has(&[0, 1])), "the other two could be one, too");
        assert!(four.is_quorum(has(&[0, 1, 3])));
        assert!(Members::all(1).is_quorum(has(&[0])));
        assert!(!Members::default().is_quorum(has(&[0, 1, 2, 3, 4, 5, 6, 7, 8])));
        assert!(!Members::default().meets_quorums(has(&[0])));
        assert!(four.meets_quorums(has(&[0, 1])) && !four.meets_quorums(has(&[0])));
    }

    #[test]
    fn while_members_change_both_majorities_are_needed() {
        let changing = of(&[0, 1, 2]).change_to(of(&[0, 3, 4]));
        assert!(changing.is_changing() && !changing.changed().is_changing());
        assert!(!changing.is_quorum(has(&[0, 1, 2])) && !changing.is_quorum(has(&[0, 3, 4])));
        assert!(changing.is_quorum(has(&[0, 1, 3])) && changing.is_quorum(has(&[1, 2, 3, 4])));
        assert!(changing.has(ReplicaId(1)) && !changing.may_lead(ReplicaId(1)));
        assert_eq!(changing.changed(), of(&[0, 3, 4]));
        let value = |id: ReplicaId| [9, 7, 5, 3, 1][id.index()];
        assert_eq!(of(&[0, 1, 2]).reached(value), 7);
        assert_eq!(changing.reached(value), 3, "what 0 and 3 have reached");
        assert_eq!(Members::all(4).reached(value), 5, "three of four");
        assert_eq!(Members::default().reached(value), 0);
    }

    #[test]
    fn any_two_quorums_of_sessions_that_follow_on_each_other_meet() {
        let sets =
            |n: u32| (1..1_u32 << n).map(|set| Members { before: set as u16, after: set as u16 });
        for old in sets(4) {
            for new in sets(4) {
                let changing = old.change_to(new);
                for of in [old, new] {
                    for a in 1..16_u32 {
                        for b in 1..16_u32 {
                            let is = |set: u32| move |id: ReplicaId| set & 1 << id.0 != 0;
                            let both = changing.is_quorum(is(a)) && of.is_quorum(is(b));
                            assert!(!both || a & b != 0, "{changing:?} {of:?} {a} {b}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn members_survive_their_bytes() {
        for members in [Members::default(), of(&[0, 8]), of(&[1]).change_to(of(&[2, 3]))] {
            let mut bytes = Vec::new();
            members.encode(&mut Writer::new(&mut bytes));
            let read = Members::decode(&mut Reader::new(bytes.into()));
            assert_eq!(read, Ok(members));
        }
        for nonsense in [0x0001_0000_u32, 0x0000_0001, 0x0200_0200] {
            let mut bytes = Vec::new();
            Writer::new(&mut bytes).u32(nonsense);
            assert!(Members::decode(&mut Reader::new(bytes.into())).is_err());
        }
    }
}
