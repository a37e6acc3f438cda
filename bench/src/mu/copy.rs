//! The bound of the throughput: the same bytes, in slots of the same size and rings of the same
//! length, written to all three replicas and read by both followers once, without any protocol.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use fabric::shm::{Endpoint, Window};
use fabric::{Access, Geometry, RegionId, RegionSpec};
use smr::ReplicaId;

use super::job::{Outcome, Seat, Spread, Throughput, Work, histogram};
use super::process::{REPLICAS, attach, limits, monotonic};
use crate::cores::{pin, preempted};

const RING: RegionId = RegionId(0);
/// By follower: how many entries it has read.
const HEADS: RegionId = RegionId(1);

/// How many slots a ring has, and their words.
fn ring(load: &Throughput) -> (u64, u32) {
    let limits = limits(Work::Copy(*load));
    (u64::from(limits.slots), limits.slot_words)
}

fn start(seat: &Seat, load: &Throughput) -> Result<Endpoint> {
    pin(seat.core);
    let spec = |words| RegionSpec { access: Access::Open, words };
    let (slots, words) = ring(load);
    let regions = vec![spec(slots as u32 * words), spec(16 * u32::from(REPLICAS))];
    let geometry = Geometry { processes: REPLICAS, regions };
    let mut endpoint =
        Endpoint::new(geometry, ReplicaId(seat.id)).context("cannot make shared memory")?;
    attach(&mut endpoint, seat)?;
    Ok(endpoint)
}

fn head_of(follower: u8) -> u32 {
    16 * u32::from(follower)
}

/// Writes, as the leader would.
pub(super) fn lead(seat: &Seat, load: Throughput) -> Result<Outcome> {
    let endpoint = start(seat, &load)?;
    let window = |id| endpoint.window(ReplicaId(id)).expect("attached");
    let replicas: Vec<Window> = (0..REPLICAS).map(window).collect();
    let (slots, words) = ring(&load);
    let mut entry = vec![7; words as usize];
    let (mut times, mut begun) = (histogram(), VecDeque::new());
    let (start, before) = (Instant::now(), preempted());
    let (mut written, mut read, mut waited) = (0_u64, 0_u64, 0_u64);
    let mut full_since = None;
    while start.elapsed().as_secs_f64() < load.seconds {
        for _ in 0..64 {
            if written == read + slots {
                full_since.get_or_insert_with(monotonic);
            } else {
                waited += full_since.take().map_or(0, |since| monotonic() - since);
                begun.push_back(monotonic());
                written += 1;
                *entry.last_mut().expect("a number") = written;
                let offset = (written % slots) as u32 * words;
                for replica in &replicas {
                    replica.write(RING, offset, &entry);
                }
            }
            let mut heads = [[0]; REPLICAS as usize - 1];
            for (follower, head) in (1..).zip(&mut heads) {
                replicas[0].read(HEADS, head_of(follower), head);
            }
            let slowest = heads.iter().map(|head| head[0]).min().expect("there are followers");
            while read < slowest {
                read += 1;
                let begun = begun.pop_front().expect("it was written");
                times.saturating_record(monotonic() - begun);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let preempted = preempted() - before;
    let commands = read * load.batch as u64;
    let (latency, waited_seconds) = (Spread::of(&times), waited as f64 / 1e9);
    Ok(Outcome { latency, commands, seconds, deposed: 0, preempted, waited_seconds })
}

/// Reads, as a follower would, until the process that started this one has ended.
pub(super) fn follow(seat: &Seat, load: &Throughput) -> Result<()> {
    let endpoint = start(seat, load)?;
    let own = endpoint.window(ReplicaId(seat.id)).expect("its own");
    let leader = endpoint.window(ReplicaId(0)).expect("attached");
    let parent = rustix::process::getppid();
    let (slots, length) = ring(load);
    let mut words = vec![0; length as usize];
    let (mut read, mut idle, mut sum) = (0_u64, 0_u32, 0_u64);
    loop {
        let offset = ((read + 1) % slots) as u32 * length;
        let mut number = [0];
        own.read(RING, offset + length - 1, &mut number);
        if number[0] == read + 1 {
            own.read(RING, offset, &mut words);
            sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
            read += 1;
            idle = 0;
            leader.write(HEADS, head_of(seat.id), &[read]);
            continue;
        }
        idle += 1;
        if idle > 20 {
            std::thread::yield_now();
        }
        if idle % 4_096 == 1 && rustix::process::getppid() != parent {
            std::hint::black_box(sum);
            return Ok(());
        }
    }
}
