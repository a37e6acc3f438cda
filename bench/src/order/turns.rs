//! What everybody in a measurement has in common: the phase that it is in, turns on a core, how to
//! wait, and what is counted.
//!
//! Those that share a core share a thread, which gives each a turn: what it costs to switch between
//! threads is no part of any protocol, and would be most of what one client sees.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueEnum;
use serde::Serialize;
use smr::Now;

use super::member::Report;
use super::wire::{Counts, Wire, wait};

/// The longest sleep: a thread then looks whether the measurement is over.
const LONGEST: Duration = Duration::from_millis(5);

/// How threads wait for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Look again and again
    Spin,
    /// Sleep until something comes
    Sleep,
}

/// Where a measurement stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    WarmUp = 0,
    Measured = 1,
    Over = 2,
}

/// The phase, for all threads to see.
#[derive(Clone, Default)]
pub(super) struct Stage(Arc<AtomicU8>);

impl Stage {
    /// Relaxed, like the load: the number stands for itself.
    pub(super) fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }

    fn get(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) {
            0 => Phase::WarmUp,
            1 => Phase::Measured,
            _ => Phase::Over,
        }
    }
}

/// The clock and the phase, for everybody.
#[derive(Clone)]
pub(super) struct Turns {
    pub(super) stage: Stage,
    pub(super) wait: Wait,
    pub(super) origin: Instant,
}

impl Turns {
    pub(super) fn phase(&self) -> Phase {
        self.stage.get()
    }

    pub(super) fn now(&self, instant: Instant) -> Now {
        let micros = instant.saturating_duration_since(self.origin).as_micros() as u64;
        Now { micros, unix_ms: 1 + micros / 1_000 }
    }

    /// Nothing has come for anybody on this core.
    pub(super) fn rest(&self, here: &[Box<dyn Turn>], clients: Option<(&Wire, u64)>) {
        if self.wait == Wait::Spin {
            return std::hint::spin_loop();
        }
        let now = self.now(Instant::now()).micros;
        let dues = here.iter().filter_map(|one| one.due());
        let due = dues.chain(clients.map(|(_, due)| due)).min();
        let most = due.map_or(LONGEST, |at| Duration::from_micros(at.saturating_sub(now)));
        let fds = here.iter().flat_map(|one| one.fds());
        wait(fds.chain(clients.map(|(wire, _)| wire.as_fd())), most.min(LONGEST));
    }
}

/// Who has a socket of its own, and takes turns with the others on its core.
pub(super) trait Turn {
    /// Does what there is to do; returns whether there was anything.
    fn turn(&mut self) -> Result<bool>;
    /// When it wants a turn though nothing has come, in [`Now::micros`].
    fn due(&self) -> Option<u64>;
    /// Where things come.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// What it did.
    fn end(self: Box<Self>) -> End;
}

/// What somebody says in the end.
pub(super) enum End {
    Replica(Report),
    Sequencer(Outcome),
    Relay,
}

/// Gives turns on one core until the measurement is over.
pub(super) fn take_turns(mut here: Vec<Box<dyn Turn>>, turns: &Turns) -> Result<Vec<End>> {
    while turns.phase() != Phase::Over {
        let mut idle = true;
        for one in &mut here {
            idle &= !one.turn()?;
        }
        if idle {
            turns.rest(&here, None);
        }
    }
    Ok(here.into_iter().map(|one| one.end()).collect())
}

/// What somebody did while it was measured.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub(super) counts: Counts,
    /// Time of the turns that had something to do.
    pub(super) busy_us: u64,
}

/// Counts while a measurement is in its second phase.
#[derive(Default)]
pub(super) struct Meter {
    began: Option<Counts>,
    busy: Duration,
    outcome: Option<Outcome>,
}

impl Meter {
    pub(super) fn observe(&mut self, phase: Phase, counts: Counts) {
        match (phase, self.began) {
            (Phase::Measured, None) => {
                self.began = Some(counts);
                self.busy = Duration::ZERO;
            }
            (Phase::Over, Some(began)) if self.outcome.is_none() => {
                self.outcome = Some(Outcome {
                    counts: counts.since(began),
                    busy_us: self.busy.as_micros() as u64,
                });
            }
            _ => {}
        }
    }

    /// A turn since `start` had something to do.
    pub(super) fn busy(&mut self, start: Instant) {
        self.busy += start.elapsed();
    }

    pub(super) fn outcome(&self) -> Outcome {
        self.outcome.unwrap_or_default()
    }
}
