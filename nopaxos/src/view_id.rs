//! View ids ([NOPaxos] 5.2): pairs, partially ordered.

use core::cmp::Ordering;

use oum::Session;
use smr::{ReplicaId, View};

/// A view: who leads, and which session of the sequencer orders. One view is at or before another
/// if both its numbers are; others cannot be compared, and are joined component by component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ViewId {
    /// Counts leaders; the view's leader is this modulo the number of replicas.
    pub leader_number: u32,
    /// The sequencer's session, below 2^24; 0 before the first.
    pub session: Session,
}

/// The session numbers that fit a [`View`].
pub(crate) const MAX_SESSION: u32 = (1 << 24) - 1;

impl ViewId {
    /// The least view that is at or after both.
    pub fn join(self, other: ViewId) -> ViewId {
        ViewId {
            leader_number: self.leader_number.max(other.leader_number),
            session: self.session.max(other.session),
        }
    }

    /// The view with the next leader.
    ///
    /// # Panics
    /// After 2^32 leaders.
    pub fn next_leader(self) -> ViewId {
        let leader_number = self.leader_number.checked_add(1).expect("fewer than 2^32 leaders");
        ViewId { leader_number, ..self }
    }

    /// Its leader in a group of so many replicas.
    pub fn leader(self, replicas: u8) -> ReplicaId {
        ReplicaId((self.leader_number % u32::from(replicas)) as u8)
    }

    /// The same as one number, with the leader's id in its low bits: of two views that can be
    /// compared the later one has the higher number.
    ///
    /// # Panics
    /// If the session is 2^24 or higher.
    pub fn to_view(self, replicas: u8) -> View {
        assert!(self.session.0 <= MAX_SESSION, "sessions stay below 2^24");
        let leader = u64::from(self.leader(replicas).0);
        View(u64::from(self.session.0) << 40 | u64::from(self.leader_number) << 8 | leader)
    }

    /// The view that [`ViewId::to_view`] gives this number.
    pub fn from_view(view: View) -> ViewId {
        ViewId { leader_number: (view.0 >> 8) as u32, session: Session((view.0 >> 40) as u32) }
    }
}

impl PartialOrd for ViewId {
    fn partial_cmp(&self, other: &ViewId) -> Option<Ordering> {
        let leaders = self.leader_number.cmp(&other.leader_number);
        let sessions = self.session.cmp(&other.session);
        match (leaders, sessions) {
            (Ordering::Equal, order) | (order, Ordering::Equal) => Some(order),
            (a, b) if a == b => Some(a),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(leader_number: u32, session: u32) -> ViewId {
        ViewId { leader_number, session: Session(session) }
    }

    #[test]
    fn views_are_partially_ordered_and_joined() {
        assert!(id(1, 2) < id(1, 3) && id(1, 2) < id(2, 2) && id(1, 2) < id(2, 3));
        assert_eq!(id(2, 1).partial_cmp(&id(1, 2)), None);
        assert_eq!(id(2, 1).join(id(1, 2)), id(2, 2));
    }

    #[test]
    fn one_number_keeps_the_order_and_names_the_leader() {
        let ids = [id(0, 0), id(0, 1), id(1, 1), id(4, 1), id(4, 2), id(u32::MAX, MAX_SESSION)];
        for pair in ids.windows(2) {
            assert!(pair[0].to_view(3) < pair[1].to_view(3));
        }
        for id in ids {
            assert_eq!(ViewId::from_view(id.to_view(3)), id);
            assert_eq!(id.to_view(3).primary(), id.leader(3));
        }
    }
}
