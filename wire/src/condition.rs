//! How a replica fares, as it tells native clients that do not ask it: those of a group that orders
//! by nopaxos send to the sequencer.

/// How a replica fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// It leads, and its disk is nearly full: nothing should be sent that is logged.
    pub is_full: bool,
    /// The group's state is lost.
    pub is_lost: bool,
}

impl Condition {
    /// Appends the payload of [`Kind::Condition`](crate::Kind::Condition).
    pub fn encode(self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_full) | u8::from(self.is_lost) << 1);
    }

    /// Reads a payload; `None` if it makes no sense.
    pub fn decode(payload: &[u8]) -> Option<Condition> {
        match payload {
            &[bits @ 0..=3] => Some(Condition { is_full: bits & 1 != 0, is_lost: bits & 2 != 0 }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_understood_and_nonsense_is_not() {
        for (is_full, is_lost) in [(false, false), (true, false), (false, true), (true, true)] {
            let (condition, mut payload) = (Condition { is_full, is_lost }, Vec::new());
            condition.encode(&mut payload);
            assert_eq!(Condition::decode(&payload), Some(condition));
        }
        for nonsense in [&b""[..], &[4], &[0, 0]] {
            assert_eq!(Condition::decode(nonsense), None);
        }
    }
}
