//! As many requests as may be outstanding, for a while ([Mu] 7.4).

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::Result;
use smr::StateMachine;

use super::job::{Outcome, Seat, Service, Spread, Throughput, Work, histogram};
use super::process::{Process, monotonic};
use super::service::requests;
use crate::cores::preempted;

/// Commands that an order book is given at most.
const ORDERS: u64 = 4_000_000;

/// Measures as the leader.
pub(super) fn lead<S: StateMachine>(seat: &Seat, load: Throughput, service: S) -> Result<Outcome> {
    let mut source = requests(load.service, load.bytes(), load.batch, ORDERS / load.batch as u64);
    if load.service == Service::Keys {
        source = requests(load.service, super::job::COMMAND, load.batch, 0);
    }
    let mut process = Process::start(seat, Work::Throughput(load), service)?;
    process.lead();
    let (mut times, mut begun) = (histogram(), VecDeque::new());
    let (start, before) = (Instant::now(), preempted());
    let (mut counted, mut waited, mut held_up_since) = (0, 0, None);
    let mut open = true;
    while open || process.outstanding() > 0 {
        for _ in 0..16 {
            while open && process.outstanding() < load.outstanding {
                let Some(request) = source() else {
                    open = false;
                    break;
                };
                begun.push_back(monotonic());
                process.submit(request);
            }
            process.complete();
            if process.is_held_up() {
                held_up_since.get_or_insert_with(monotonic);
            } else {
                waited += held_up_since.take().map_or(0, |since| monotonic() - since);
            }
            while counted < process.answered() {
                counted += 1;
                let begun = begun.pop_front().expect("each request that is answered began");
                times.saturating_record(monotonic() - begun);
            }
        }
        process.turn();
        open &= start.elapsed().as_secs_f64() < load.seconds;
    }
    let seconds = start.elapsed().as_secs_f64();
    let preempted = preempted() - before;
    let deposed = process.deposed;
    process.finish()?;
    let commands = process.answered() * load.batch as u64;
    let (latency, waited_seconds) = (Spread::of(&times), waited as f64 / 1e9);
    Ok(Outcome { latency, commands, seconds, deposed, preempted, waited_seconds })
}
