//! `orderbook bench`: what the engine takes by itself, without sockets and replication.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use orderbook::Engine;
use orderbook::tape::Tape;
use smr::{Context, OpNumber, StateMachine};

const CONTEXT: Context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };

/// Applies a tape in requests of several sizes and prints rates and latencies.
pub fn bench(tape: &Tape) -> Result<()> {
    let count = tape.count();
    println!("{count} commands, applied with their undo records, on one thread:");
    for batch in [1, 16, 128, 1024] {
        let best = (0..3).map(|_| time(tape, batch)).min().unwrap_or_default();
        let rate = count as f64 / best.as_secs_f64();
        let each = best.as_nanos() as f64 / count as f64;
        println!("  {batch:>4} a request: {:.2} M/s, {each:.0} ns each", rate / 1e6);
    }
    let histogram = latencies(tape)?;
    let at = |quantile: f64| histogram.value_at_quantile(quantile);
    println!(
        "  latency of one at a time, clock included: p50 {} ns, p99 {} ns, p99.9 {} ns, max {} ns",
        at(0.5),
        at(0.99),
        at(0.999),
        histogram.max()
    );
    Ok(())
}

/// The whole tape on a new engine.
fn time(tape: &Tape, batch: usize) -> Duration {
    let mut engine = Engine::default();
    let mut reply = Vec::new();
    let requests: Vec<&[u8]> = tape.batches(batch).collect();
    let start = Instant::now();
    for request in requests {
        reply.clear();
        engine.apply(CONTEXT, request, &mut reply);
    }
    start.elapsed()
}

/// One command at a time, after the first half has filled the books.
fn latencies(tape: &Tape) -> Result<Histogram<u64>> {
    let mut engine = Engine::default();
    let mut reply = Vec::new();
    let mut histogram = Histogram::new(3)?;
    let warm = tape.count() / 2;
    for (number, request) in tape.batches(1).enumerate() {
        reply.clear();
        let start = Instant::now();
        engine.apply(CONTEXT, request, &mut reply);
        let taken = start.elapsed();
        if number >= warm {
            histogram.record(taken.as_nanos() as u64)?;
        }
    }
    Ok(histogram)
}
