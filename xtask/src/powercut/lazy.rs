//! Power cuts of a group in durability `lazy`: what is lost is measured and judged.

use std::path::Path;

use anyhow::{Error, Result, bail, ensure};
use bench::chaos::print_losses;
use bench::loss::{LossLoad, LossOptions, Losses, SYNC_EVERY};
use faultfs::FaultDisk;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::disk::Power;
use super::replicas::{PATIENCE, Replicas, Stuck};
use super::{Arguments, LOADED_MS, MANY, Notices, STARTING_MS, program, trouble};
use crate::servers::REPLICAS;

/// Appends per second that the clients never reach: each has one on its way.
const RATE: f64 = 1e6;

/// What came of a run.
#[derive(Debug)]
struct Report {
    cuts: u32,
    telling_cuts: u32,
    losses: Losses,
    notices: Notices,
}

/// Runs the rounds.
///
/// # Errors
/// If more was lost than may be, or the group does not come back; with replicas that do not sync,
/// if that was not noticed.
pub fn run(arguments: &Arguments, disk: &FaultDisk, directory: &Path) -> Result<()> {
    let conclusion = conclude(arguments.no_fsync, cut_and_judge(arguments, disk, directory))?;
    println!("{conclusion}");
    Ok(())
}

fn cut_and_judge(arguments: &Arguments, disk: &FaultDisk, directory: &Path) -> Result<Report> {
    let rng = SmallRng::seed_from_u64(arguments.seed);
    let mut power = Power::new(disk, arguments.torn, rng);
    let (durability, no_fsync) = (arguments.durability, arguments.no_fsync);
    let program = program(arguments)?;
    let mut replicas = Replicas::new(program, disk.path(), directory, durability, no_fsync)?;
    replicas.create()?;
    replicas.wait_until_whole().map_err(|error| trouble(power.cuts, error))?;
    let mut load = LossLoad::start(LossOptions {
        addresses: replicas.group().addresses,
        clients: arguments.clients,
        rate: RATE,
        sync_every: SYNC_EVERY,
    });
    let mut resumed = Vec::new();
    for number in 1..=arguments.rounds {
        let (gap, line) = round(number, &mut power, &mut replicas, &mut load)
            .map_err(|error| trouble(power.cuts, error))?;
        resumed.push(gap);
        println!("round {number}/{}: {line}", arguments.rounds);
    }
    let losses = load.finish().map_err(|error| Stuck(format!("{error:#}")))?;
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
    Ok(Report { cuts: power.cuts, telling_cuts: power.telling_cuts, losses, notices })
}

/// One round, for a group that is whole. How many milliseconds nothing was acknowledged, and what
/// happened.
fn round(
    number: u32,
    power: &mut Power<'_>,
    replicas: &mut Replicas,
    load: &mut LossLoad,
) -> Result<(u128, String)> {
    let stuck = |error: Error| Stuck(format!("{error:#}"));
    let before = load.acknowledged();
    let loaded = power.sleep(LOADED_MS).as_millis();
    let acknowledged = load.acknowledged() - before;
    let unsynced = cut(power, replicas, load)?;
    if number.is_multiple_of(2) {
        replicas.start()?;
        power.sleep(STARTING_MS);
        cut(power, replicas, load)?;
    }
    let on = load.watch();
    replicas.start()?;
    let gap = load.gap(PATIENCE).map_err(stuck)?.as_millis();
    replicas.wait_until_whole()?;
    load.resume();
    let whole = on.elapsed().as_millis();
    let line = format!(
        "{acknowledged} writes acknowledged in {loaded} ms, power off; {unsynced} files with \
         unsynced data; next write {gap} ms after the start, whole after {whole} ms"
    );
    Ok((gap, line))
}

/// The last line of a run that succeeds.
fn conclude(no_fsync: bool, result: Result<Report>) -> Result<String> {
    if no_fsync {
        return match result {
            Err(error) if error.is::<Stuck>() => Ok(format!("passed: noticed, in {error:#}")),
            Err(error) => Err(error),
            // A run that has tested nothing has a violation, too, but has lost nothing.
            Ok(report)
                if report.losses.operations() > 0 && !report.losses.violations.is_empty() =>
            {
                Ok("passed: the loss was noticed, as it must be without syncs".to_owned())
            }
            Ok(_) => bail!("replicas that never sync broke no promise: the cuts prove nothing"),
        };
    }
    let Report { cuts, telling_cuts, losses, notices } = result?;
    ensure!(losses.violations.is_empty(), "FAILED: more was lost than may be");
    let proves = telling_cuts > 0 || cuts < MANY;
    ensure!(proves, "FAILED: all was synced at each cut: they prove nothing");
    ensure!(notices.damage.is_empty(), "FAILED: replicas found their disks damaged");
    Ok("passed".to_owned())
}

/// Cuts the power. What is acknowledged between the disk's end and the processes' counts as
/// acknowledged before the crash.
fn cut(power: &mut Power<'_>, replicas: &mut Replicas, load: &mut LossLoad) -> Result<usize> {
    let unsynced = power.cut(replicas)?;
    load.crash();
    Ok(unsynced)
}

#[cfg(test)]
mod tests {
    use bench::loss::Taken;

    use super::*;

    fn report(operations: u64, violations: &[&str]) -> Result<Report> {
        let losses = Losses {
            crashes: vec![Taken { operations, ms: 1.0 }],
            violations: violations.iter().map(|&text| text.to_owned()).collect(),
            ..Losses::default()
        };
        Ok(Report { cuts: 3, telling_cuts: 2, losses, notices: Notices::default() })
    }

    #[test]
    fn broken_promises_fail_and_without_syncs_they_must_be_noticed() {
        assert!(conclude(false, report(7, &[])).is_ok(), "lazy may lose");
        assert!(conclude(false, report(7, &["durable, and lost"])).is_err());
        assert!(conclude(true, report(7, &[])).is_err(), "nothing was noticed");
        assert!(conclude(true, report(7, &["durable, and lost"])).is_ok());
        assert!(conclude(true, report(0, &["nothing was tested"])).is_err());
        let stuck = || Err(Stuck("ended".to_owned()).into());
        assert!(conclude(false, stuck()).is_err() && conclude(true, stuck()).is_ok());
        assert!(conclude(true, Err(trouble(0, Stuck("ended".to_owned()).into()))).is_err());
    }
}
