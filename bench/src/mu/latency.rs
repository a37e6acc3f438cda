//! Requests one after the other ([Mu] 7.1): of an application on the replica's thread (direct), or
//! on one of its own (handover).
//!
//! The latency of a request counts from its intended start where there is one: what a pause keeps
//! from being asked is not left out ("coordinated omission").

use std::time::Instant;

use anyhow::{Result, ensure};
use bytes::Bytes;
use hdrhistogram::Histogram;
use smr::{Context, OpNumber, StateMachine};

use super::job::{Attachment, Latency, Outcome, Seat, Spread, Work, histogram};
use super::process::{Process, monotonic};
use super::service::{Requests, requests};
use crate::cores::{pin, preempted};

/// How often an application that has asked looks for the answer before it gives up its core: tens
/// of microseconds.
const SPINS: u32 = 2_000;
/// How often a replica looks for a request in each turn of its loop: a turn takes as long as some
/// tens of looks.
const LOOKS: u32 = 16;
/// Bytes of an answer at most: an order book's to one order that meets many.
const LONGEST_ANSWER: usize = 64 << 10;

/// What answers the application.
enum Server<S: StateMachine> {
    Replicated(Box<Process<S>>),
    Alone(S),
}

impl<S: StateMachine> Server<S> {
    #[inline]
    fn serve(&mut self, request: Bytes) -> Bytes {
        match self {
            Server::Replicated(process) => {
                let number = process.submit(request);
                process.wait(number);
                process.answer.clone()
            }
            Server::Alone(service) => {
                let context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };
                let mut reply = Vec::new();
                service.apply(context, &request, &mut reply);
                Bytes::from(reply)
            }
        }
    }

    #[inline]
    fn idle(&mut self) {
        if let Server::Replicated(process) = self {
            process.turn();
        }
    }
}

/// Measures as the leader.
pub(super) fn lead<S: StateMachine + Send>(
    seat: &Seat,
    latency: Latency,
    service: S,
) -> Result<Outcome> {
    let mut server = if latency.replicated {
        let mut process = Process::start(seat, Work::Latency(latency), service)?;
        process.lead();
        Server::Replicated(Box::new(process))
    } else {
        pin(seat.core);
        Server::Alone(service)
    };
    let total = latency.samples + latency.samples / 10;
    let source = requests(latency.service, latency.bytes, 1, total);
    if let Server::Replicated(process) = &mut server {
        // Making the requests took its time.
        process.lead();
    }
    let start = Instant::now();
    let (times, preempted) = match latency.attachment {
        Attachment::Direct => {
            let before = preempted();
            let times = measure(latency, source, |request| match request {
                Some(request) => drop(server.serve(request)),
                None => server.idle(),
            });
            (times, preempted() - before)
        }
        Attachment::Handover => handover(seat, latency, source, &mut server),
    };
    let seconds = start.elapsed().as_secs_f64();
    ensure!(times.len() == latency.samples, "the application ended early");
    let mut deposed = 0;
    if let Server::Replicated(process) = &mut server {
        process.finish()?;
        deposed = process.deposed;
    }
    let (latency, waited_seconds) = (Spread::of(&times), 0.0);
    Ok(Outcome { latency, commands: total, seconds, deposed, preempted, waited_seconds })
}

/// Calls `act` with each request, and without one in between. The first tenth warms up.
fn measure(
    latency: Latency,
    mut source: Requests,
    mut act: impl FnMut(Option<Bytes>),
) -> Histogram<u64> {
    let mut times = histogram();
    let warm_up = latency.samples / 10;
    let mut due = monotonic();
    for number in 0..latency.samples + warm_up {
        let Some(request) = source() else { break };
        act(None);
        let start = match latency.interval {
            None => monotonic(),
            Some(interval) => {
                due += interval;
                while monotonic() < due {
                    act(None);
                }
                due
            }
        };
        act(Some(request));
        let end = monotonic();
        if number >= warm_up {
            times.saturating_record(end - start);
        } else {
            // What the warming up was late with is not carried over.
            due = due.max(end);
        }
    }
    times
}

/// The application asks from a thread of its own.
fn handover<S: StateMachine + Send>(
    seat: &Seat,
    latency: Latency,
    source: Requests,
    server: &mut Server<S>,
) -> (Histogram<u64>, u64) {
    let longest = Work::Latency(latency).request_bytes().max(LONGEST_ANSWER);
    let (mut ask, mut asked) = fabric::handover::handover(1, longest);
    let (mut answer, mut answered) = fabric::handover::handover(1, longest);
    let core = seat.application_core;
    std::thread::scope(|scope| {
        let application = scope.spawn(move || {
            pin(core);
            let before = preempted();
            let mut reply = Vec::new();
            let times = measure(latency, source, |request| {
                let Some(request) = request else { return std::hint::spin_loop() };
                assert!(ask.send(&request), "the one before was answered");
                let mut spins = 0;
                while !answered.receive(&mut reply) {
                    // Who must wait for long lets the followers run that may share this core.
                    spins += 1;
                    match spins > SPINS {
                        true => std::thread::yield_now(),
                        false => std::hint::spin_loop(),
                    }
                }
            });
            (times, preempted() - before)
        });
        let mut request = Vec::new();
        while !asked.is_abandoned() {
            let found = (0..LOOKS).any(|_| asked.receive(&mut request));
            match found {
                true => {
                    let reply = server.serve(Bytes::from(std::mem::take(&mut request)));
                    assert!(answer.send(&reply), "the one before was taken");
                }
                false => server.idle(),
            }
        }
        application.join().expect("the application does not panic")
    })
}
