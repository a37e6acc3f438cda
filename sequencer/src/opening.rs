//! When a sequencer begins a session that a controller asks for ([NOPaxos] 4.3): all sequencers
//! by the same rule.

use oum::Session;

/// What becomes of an OPEN for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// It is of another life of the sequencer, not above the present session, or there is no room.
    Refused,
    /// It is the present session: the answer was lost.
    Repeated,
    /// It is to begin.
    Begins,
}

impl Opening {
    /// Of `session`, where the group's one is `present`. `has_room` is for a group without any.
    pub(crate) fn of(
        session: Session,
        present: Option<Session>,
        is_of_this_life: bool,
        has_room: bool,
    ) -> Opening {
        if !is_of_this_life || (present.is_none() && !has_room) {
            Opening::Refused
        } else if present == Some(session) {
            Opening::Repeated
        } else if session > present.unwrap_or_default() {
            Opening::Begins
        } else {
            Opening::Refused
        }
    }
}
