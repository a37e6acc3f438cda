//! Throughput while the sequencer fails ([NOPaxos] 6.4, Figure 11).
//!
//! The bench is the controller here: it kills the sequencer, and after a stated time, which stands
//! for whatever notices failures, has the clients use another one, whose first message tells the
//! replicas of the new session. A killed sequencer does not come back.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::group::with_group;
use super::turns::Phase;
use super::{Order, OrderOptions};

/// Microseconds of a bucket of the timeline.
const BUCKET: u64 = 1_000;

/// The sequencer fails so many microseconds after counting began.
const BEFORE: u64 = 500_000;

/// What was seen.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    /// From the failure until clients used the next sequencer: given, not measured.
    pub(super) detection_ms: u64,
    pub(super) rounds: usize,
    /// From the failure to the first answer of the new session, in milliseconds, one a round.
    pub(super) back_ms: Vec<f64>,
    /// From the failure to the first hundredth of a second with 90 % of the throughput before.
    pub(super) peak_ms: Vec<f64>,
    /// Requests: if one of them had not been executed, the measurement had failed.
    pub(super) acknowledged: u64,
    /// Of the first round: milliseconds since the failure, and answers per second then.
    pub(super) timeline: Vec<(f64, f64)>,
}

/// Fails sequencers, each in a group of its own.
pub(super) fn measure(
    options: &OrderOptions,
    end: Instant,
    mut each: impl FnMut(usize),
) -> Result<Figures> {
    let mut figures = Figures {
        detection_ms: options.detection_ms,
        rounds: 0,
        back_ms: Vec::new(),
        peak_ms: Vec::new(),
        acknowledged: 0,
        timeline: Vec::new(),
    };
    for round in 0..options.failovers {
        ensure!(Instant::now() < end, "not all sequencers failed within --limit-s");
        each(round + 1);
        one(options, end, &mut figures)?;
    }
    figures.back_ms.sort_unstable_by(f64::total_cmp);
    figures.peak_ms.sort_unstable_by(f64::total_cmp);
    Ok(figures)
}

fn one(options: &OrderOptions, end: Instant, figures: &mut Figures) -> Result<()> {
    let mut began = None;
    let setting = options.setting(Order::Nopaxos, options.busy_clients);
    let (mut failed, mut switched) = (None, None);
    // A group whose acknowledged requests are not all executed is an error of the measurement.
    let (_, load) = with_group(options, setting, 2, |load, sequencers| {
        load.timeline = Some((BUCKET, Vec::new()));
        let measured = Duration::from_millis(options.detection_ms + 1_500);
        load.run(Duration::from_millis(250), measured, end, |load, phase, now| {
            if began.is_none() && phase == Phase::Measured {
                began = Some(now.micros);
            }
            if failed.is_none() && began.is_some_and(|at| now.micros >= at + BEFORE) {
                // Relaxed: the flag stands for itself.
                sequencers.killed[0].store(true, Ordering::Relaxed);
                failed = Some(now.micros);
            }
            let detected = failed.map(|at| at + 1_000 * options.detection_ms);
            if switched.is_none() && detected.is_some_and(|at| now.micros >= at) {
                load.reroute(sequencers.addresses[1]);
                switched = Some(now.micros);
            }
        })
    })?;
    let (Some(failed), Some(switched)) = (failed, switched) else {
        anyhow::bail!("the measurement was over before the sequencer failed")
    };
    let counts = &load.timeline.as_ref().expect("it was asked for").1;
    let bucket = |micros: u64| (micros / BUCKET) as usize;
    let answered = |from: u64, to: u64| -> u64 {
        counts.iter().take(bucket(to)).skip(bucket(from)).sum::<u64>()
    };
    let first = (bucket(switched)..counts.len()).find(|&at| counts[at] > 0);
    let Some(first) = first else {
        anyhow::bail!("no request was answered after the sequencer had failed")
    };
    let peak = answered(failed - 400_000, failed) as f64 / 40.0;
    let recovered = (switched..failed + 1_400_000)
        .step_by(BUCKET as usize)
        .find(|&at| answered(at, at + 10_000) as f64 >= 0.9 * peak);
    let millis = |micros: u64| micros as f64 / 1e3;
    figures.rounds += 1;
    figures.back_ms.push(millis((first as u64 + 1) * BUCKET - failed));
    figures.peak_ms.extend(recovered.map(|at| millis(at - failed)));
    figures.acknowledged += load.answered().iter().sum::<u64>();
    if figures.timeline.is_empty() {
        figures.timeline = (bucket(failed - 200_000)..bucket(failed + 600_000))
            .step_by(5)
            .map(|at| {
                let five = counts.iter().skip(at).take(5).sum::<u64>();
                let since = (at as f64 + 2.5) * BUCKET as f64 - failed as f64;
                (since / 1e3, five as f64 * 1e6 / (5.0 * BUCKET as f64))
            })
            .collect();
    }
    Ok(())
}
