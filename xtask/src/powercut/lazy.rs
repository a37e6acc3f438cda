//! Power cuts of a group in durability `lazy`: what is lost is measured and judged.

use std::path::Path;

use anyhow::{Result, ensure};
use bench::chaos::print_losses;
use bench::loss::{LossLoad, LossOptions};
use faultfs::FaultDisk;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::disk::Power;
use super::replicas::{PATIENCE, Replicas};
use super::{Arguments, LOADED_MS, MANY, Notices, STARTING_MS, program};
use crate::servers::REPLICAS;

/// One client in so many asks for durable answers.
const SYNC_EVERY: usize = 5;

/// Appends per second that the clients never reach: each has one on its way.
const RATE: f64 = 1e6;

/// Runs the rounds.
///
/// # Errors
/// If more was lost than may be, or the group does not come back.
pub fn run(arguments: &Arguments, disk: &FaultDisk, directory: &Path) -> Result<()> {
    let rng = SmallRng::seed_from_u64(arguments.seed);
    let mut power = Power::new(disk, arguments.torn, rng);
    let (durability, no_fsync) = (arguments.durability, arguments.no_fsync);
    let program = program(arguments)?;
    let mut replicas = Replicas::new(program, disk.path(), directory, durability, no_fsync)?;
    replicas.create()?;
    replicas.wait_until_whole()?;
    let mut load = LossLoad::start(LossOptions {
        addresses: replicas.group().addresses,
        clients: arguments.clients,
        rate: RATE,
        sync_every: SYNC_EVERY,
    });
    let mut resumed = Vec::new();
    for number in 1..=arguments.rounds {
        let before = load.acknowledged();
        let loaded = power.sleep(LOADED_MS).as_millis();
        let acknowledged = load.acknowledged() - before;
        let unsynced = cut(&mut power, &mut replicas, &mut load)?;
        if number.is_multiple_of(2) {
            replicas.start()?;
            power.sleep(STARTING_MS);
            cut(&mut power, &mut replicas, &mut load)?;
        }
        let on = load.watch();
        replicas.start()?;
        let gap = load.gap(PATIENCE)?.as_millis();
        resumed.push(gap);
        replicas.wait_until_whole()?;
        let whole = on.elapsed().as_millis();
        println!(
            "round {number}/{}: {acknowledged} writes acknowledged in {loaded} ms, power off; \
             {unsynced} files with unsynced data; next write {gap} ms after the start, whole \
             after {whole} ms",
            arguments.rounds
        );
    }
    let losses = load.finish()?;
    let mut notices = Notices::default();
    for id in 0..REPLICAS {
        notices.read(&replicas.log_text(id));
    }
    println!("power cuts                 {}", power.cuts);
    println!("that met unsynced data     {}", power.telling_cuts);
    println!("service resumed after      {} ms at most", resumed.iter().max().unwrap_or(&0));
    println!("acknowledged writes        {}", losses.acknowledged);
    println!("unknown outcomes           {} {:?}", losses.unknown, losses.failures);
    println!("acknowledged writes lost   {}", losses.operations());
    print_losses(&losses);
    for line in &notices.damage {
        println!("    {line}");
    }
    ensure!(losses.violations.is_empty(), "FAILED: more was lost than may be");
    let proves = power.telling_cuts > 0 || power.cuts < MANY;
    ensure!(proves, "FAILED: all was synced at each cut: they prove nothing");
    ensure!(notices.damage.is_empty(), "FAILED: replicas found their disks damaged");
    println!("passed");
    Ok(())
}

/// Cuts the power. What is acknowledged between the disk's end and the processes' counts as
/// acknowledged before the crash.
fn cut(power: &mut Power<'_>, replicas: &mut Replicas, load: &mut LossLoad) -> Result<usize> {
    let unsynced = power.cut(replicas)?;
    load.crash();
    Ok(unsynced)
}
