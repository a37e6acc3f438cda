//! What an operator or a test chooses.

use std::time::Duration;

/// How a revocation is made sure of, before it is acknowledged ([Mu] 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// By the queue pair's access flags, which are read back; by its state if the card refuses.
    /// For cards that are known to let nothing in after a change of flags: the fastest, and the
    /// former holder's connection lives until it writes.
    Flags,
    /// By both. Software devices (rxe) let a packet in now and then after a change of flags.
    FlagsThenState,
    /// By the queue pair's state alone, as for a card that changes no flags.
    State,
}

/// How an endpoint uses its card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The card's name as `ibv_devices` prints it; `None` for the first with an active port.
    pub card: Option<String>,
    /// The card's port, from 1.
    pub port: u8,
    /// How long a card asks again before it gives up a verb: 1 ms to 10 s. Cards round it, and
    /// take up to about twice as long.
    pub silence: Duration,
    /// How long a peer's program may take to answer: to connect again, or to take note that a
    /// grant is renounced. What waits for it longer is [`crate::Status::Gone`].
    pub patience: Duration,
    /// How a grant is taken away.
    pub revocation: Revocation,
}

impl Default for Options {
    /// The first card; what is dead is known to be after tens of milliseconds.
    fn default() -> Options {
        Options {
            card: None,
            port: 1,
            silence: Duration::from_millis(20),
            patience: Duration::from_millis(50),
            revocation: Revocation::FlagsThenState,
        }
    }
}

/// How often a card asks again before it gives up. Never 7, which some cards take for ever.
pub(crate) const RETRIES: u8 = 3;

impl Options {
    /// The card's time-out for one attempt, as an exponent: 4.096 us times 2^n.
    pub(crate) fn timeout_exponent(&self) -> u8 {
        let silence = self.silence.clamp(Duration::from_millis(1), Duration::from_secs(10));
        let unit = 4_096 * (u128::from(RETRIES) + 1);
        (silence.as_nanos() / unit).ilog2() as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_gives_up_in_time() {
        for millis in [0, 1, 20, 67, 1_000, 100_000] {
            let silence = Duration::from_millis(millis);
            let options = Options { silence, ..Options::default() };
            let attempt = Duration::from_nanos(4_096 << options.timeout_exponent());
            let all = attempt * (u32::from(RETRIES) + 1);
            let asked = silence.clamp(Duration::from_millis(1), Duration::from_secs(10));
            assert!(all <= asked && asked < 2 * all, "{millis} ms became {all:?}");
        }
        assert_eq!(Options::default().timeout_exponent(), 10);
    }
}
