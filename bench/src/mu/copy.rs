//! The bound of the throughput: the same bytes, as entries of the same size in rings of the same
//! length, written to both followers and read there once, without any protocol.

use std::collections::VecDeque;
use std::time::Instant;

use anyhow::{Context, Result};
use fabric::shm::Endpoint;
use fabric::{Access, Geometry, GrantNumber, Place, RegionId, RegionSpec, Status};
use smr::ReplicaId;

use super::job::{Outcome, Seat, Spread, Throughput, histogram};
use super::process::{REPLICAS, attach, monotonic};
use crate::cores::{pin, preempted};

const RING: RegionId = RegionId(0);
/// By follower: how many entries it has read.
const HEADS: RegionId = RegionId(1);
const SLOTS: u64 = 512;
/// Of an entry, in words: its bytes and its number.
const fn slot(load: &Throughput) -> u32 {
    (load.batch * super::job::COMMAND / 8 + 1) as u32
}

fn start(seat: &Seat, load: &Throughput) -> Result<Endpoint> {
    pin(seat.core);
    let spec = |words| RegionSpec { access: Access::Open, words };
    let regions = vec![spec(SLOTS as u32 * slot(load)), spec(16 * u32::from(REPLICAS))];
    let geometry = Geometry { processes: REPLICAS, regions };
    let mut endpoint =
        Endpoint::new(geometry, ReplicaId(seat.id)).context("cannot make shared memory")?;
    attach(&mut endpoint, seat)?;
    Ok(endpoint)
}

fn head_of(process: ReplicaId, follower: u8) -> Place {
    Place { process, region: HEADS, offset: 16 * u32::from(follower) }
}

/// Writes, as the leader would.
pub(super) fn lead(seat: &Seat, load: Throughput) -> Result<Outcome> {
    let mut endpoint = start(seat, &load)?;
    let own = endpoint.window(ReplicaId(0)).expect("its own");
    let mut entry = vec![7; slot(&load) as usize];
    let (mut times, mut begun) = (histogram(), VecDeque::new());
    let (start, before) = (Instant::now(), preempted());
    let (mut written, mut read, mut waited) = (0_u64, 0_u64, 0_u64);
    let mut full_since = None;
    while start.elapsed().as_secs_f64() < load.seconds {
        for _ in 0..64 {
            if written == read + SLOTS {
                full_since.get_or_insert_with(monotonic);
            } else {
                waited += full_since.take().map_or(0, |since| monotonic() - since);
                begun.push_back(monotonic());
                written += 1;
                *entry.last_mut().expect("a number") = written;
                let offset = (written % SLOTS) as u32 * slot(&load);
                for follower in 1..REPLICAS {
                    let to = Place { process: ReplicaId(follower), region: RING, offset };
                    let status = endpoint.write(to, GrantNumber(0), entry.iter().copied());
                    assert_eq!(status, Status::Ok, "an open region can be written");
                }
            }
            let mut heads = [[0]; REPLICAS as usize - 1];
            for (follower, head) in (1..).zip(&mut heads) {
                own.read(HEADS, head_of(ReplicaId(0), follower).offset, head);
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
    let mut endpoint = start(seat, load)?;
    let own = endpoint.window(ReplicaId(seat.id)).expect("its own");
    let parent = rustix::process::getppid();
    let head = head_of(ReplicaId(0), seat.id);
    let mut words = vec![0; slot(load) as usize];
    let (mut read, mut idle, mut sum) = (0_u64, 0_u32, 0_u64);
    loop {
        let offset = ((read + 1) % SLOTS) as u32 * slot(load);
        let mut number = [0];
        own.read(RING, offset + slot(load) - 1, &mut number);
        if number[0] == read + 1 {
            own.read(RING, offset, &mut words);
            sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
            read += 1;
            idle = 0;
            endpoint.write(head, GrantNumber(0), [read].into_iter());
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
