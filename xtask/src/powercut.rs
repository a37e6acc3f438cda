//! `cargo xtask powercut`: power cuts of a real group on a fault disk, under checked load.
//!
//! SIGKILL alone proves nothing about durability: the kernel keeps what dead processes wrote. Here
//! the replicas keep their data on a disk of `faultfs`. A cut makes the disk refuse everything,
//! kills the replicas, waits until they are dead, so that nothing is under way to the disk, and
//! takes away what was not synced. In every second round the power goes again while the group is
//! still starting.
//!
//! Invariant: no run passes that could not have failed. Writes were acknowledged before each cut,
//! among many cuts some met unsynced data, and `--no-fsync` shows that replicas which do not sync
//! are found out.

mod ballast;
mod disk;
mod lazy;
mod replicas;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use bench::checked::{CheckedLoad, CheckedOptions, Recorded};
use bench::checker;
use faultfs::FaultDisk;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::servers::{self, REPLICAS};
use ballast::Ballast;
use disk::Power;
use replicas::{Durability, PATIENCE, Replicas, Stuck};

/// For so many milliseconds a whole group is under load before its power goes.
const LOADED_MS: Range<u64> = 200..800;

/// So many milliseconds after a start the power goes again.
const STARTING_MS: Range<u64> = 0..250;

/// The disk takes so many milliseconds for each write and each sync, as real ones do. Without this
/// a cut would hardly ever come between the two.
const STALL_MS: u64 = 1;

/// Most cuts meet unsynced data; so many cannot all have come at a quiet moment.
const MANY: u32 = 10;

/// What replicas say about their disk after a cut that is as it should be.
const HARMLESS: &[&str] = &["it had not been acknowledged", "was overtaken by the checkpoint"];

const HELP: &str = "\
Exit code 0: nothing acknowledged was lost, no replica found its disk damaged, and the history of
all clients is linearizable; with --no-fsync: the loss was noticed. The last line begins with
`passed`. Also 0, with a first line `SKIPPED: reason`, where no FUSE file system can be mounted:
this needs /dev/fuse and the right to mount (root, or fusermount3). Exit code 1: anything else.

The replicas' logs are left in xtask/powercut below the target directory.";

/// How often, and how.
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Arguments {
    /// Rounds: load, power cut, restart
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    /// Let every other cut tear what was not synced, instead of losing it all
    #[arg(long)]
    torn: bool,
    /// What an acknowledgement means
    #[arg(long, value_enum, default_value = "sync")]
    durability: Durability,
    /// Clients, with durability lazy
    #[arg(long, default_value_t = 20)]
    clients: usize,
    /// Run replicas that never sync: succeed only if the loss is noticed
    #[arg(long)]
    no_fsync: bool,
    /// Where the random choices start
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The program to test [default: lockstep of the target directory, built for release]
    #[arg(long)]
    program: Option<PathBuf>,
}

/// What came of a run.
#[derive(Debug)]
struct Report {
    cuts: u32,
    telling_cuts: u32,
    syncs: u64,
    operations: usize,
    acknowledged_writes: u64,
    lost_writes: u64,
    unknown_outcomes: u64,
    linearizable: Option<bool>,
    violation: Option<String>,
    notices: Notices,
}

/// What the replicas said about their disks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Notices {
    /// How often the end of a log had not been synced.
    harmless: usize,
    /// What a power cut never does to a disk that was used well.
    damage: Vec<String>,
}

impl Notices {
    fn read(&mut self, log: &str) {
        for line in log.lines().filter(|line| line.contains(": disk: ")) {
            if HARMLESS.iter().any(|text| line.contains(text)) {
                self.harmless += 1;
            } else {
                self.damage.push(line.to_string());
            }
        }
    }
}

/// Runs the task.
///
/// # Errors
/// If something acknowledged was lost, or the group does not come back; with replicas that do not
/// sync, if that was not noticed.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(arguments.rounds > 0, "--rounds must be at least 1");
    let directory = servers::directory("powercut")?;
    let alone = File::create(directory.join("lock"))?;
    alone.try_lock().context("another run of this task is under way")?;
    let disk = match FaultDisk::mount(&directory.join("disk")) {
        Ok(disk) => disk,
        Err(reason) => {
            println!("SKIPPED: {reason}");
            println!("This needs /dev/fuse and the right to mount. No power was cut: whether");
            println!("acknowledged writes are durable was NOT tested.");
            return Ok(());
        }
    };
    disk.stall(STALL_MS);
    if arguments.durability == Durability::Lazy {
        return lazy::run(arguments, &disk, &directory);
    }
    let result = cut_and_judge(arguments, &disk, &directory);
    if let Ok(report) = &result {
        print(report);
    }
    let conclusion = conclude(arguments.no_fsync, result)?;
    println!("{conclusion}");
    Ok(())
}

fn program(arguments: &Arguments) -> Result<PathBuf> {
    match &arguments.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string()),
        None => servers::lockstep(),
    }
}

fn cut_and_judge(arguments: &Arguments, disk: &FaultDisk, directory: &Path) -> Result<Report> {
    let program = program(arguments)?;
    let rng = SmallRng::seed_from_u64(arguments.seed);
    let mut power = Power::new(disk, arguments.torn, rng);
    let (durability, no_fsync) = (arguments.durability, arguments.no_fsync);
    let mut replicas = Replicas::new(program, disk.path(), directory, durability, no_fsync)?;
    replicas.create()?;
    replicas.wait_until_whole().map_err(|error| trouble(power.cuts, error))?;
    let mut options = CheckedOptions::new(replicas.group().addresses);
    options.seed = arguments.seed;
    let load = CheckedLoad::start(options);
    let _ballast = Ballast::start(replicas.group().addresses);
    for number in 1..=arguments.rounds {
        let line = round(number, &mut power, &mut replicas, &load)
            .with_context(|| format!("round {number} of {}", arguments.rounds))
            .map_err(|error| trouble(power.cuts, error))?;
        println!("round {number}/{}: {line}", arguments.rounds);
    }
    let recorded = load.finish().map_err(|error| Stuck(format!("{error:#}")))?;
    let mut notices = Notices::default();
    for id in 0..REPLICAS {
        notices.read(&replicas.log_text(id));
    }
    Ok(report(&power, &recorded, notices))
}

/// A group that fails before any cut has not noticed anything: that is another kind of trouble.
fn trouble(cuts: u32, error: Error) -> Error {
    if cuts == 0 { anyhow!("before the first power cut: {error:#}") } else { error }
}

/// One round, for a group that is whole. Returns what happened.
fn round(
    number: u32,
    power: &mut Power<'_>,
    replicas: &mut Replicas,
    load: &CheckedLoad,
) -> Result<String> {
    let before = load.acknowledged();
    power.sleep(LOADED_MS);
    let acknowledged = load.acknowledged() - before;
    if acknowledged == 0 {
        bail!(Stuck("no write was acknowledged before the power cut".to_string()));
    }
    let mut unsynced = power.cut(replicas)?;
    let mut line = format!("{acknowledged} writes acknowledged, power off");
    if number.is_multiple_of(2) {
        replicas.start()?;
        let after = power.sleep(STARTING_MS);
        unsynced += power.cut(replicas)?;
        line += &format!(", again {} ms after the restart", after.as_millis());
    }
    let cut_at = load.watch(None);
    replicas.start()?;
    replicas.wait_until_whole()?;
    let whole = cut_at.elapsed();
    let gap = load.gap(PATIENCE).map_err(|error| Stuck(format!("{error:#}")))?;
    let (gap, whole) = (gap.as_millis(), whole.as_millis());
    line += &format!("; {unsynced} files with unsynced data");
    Ok(line + &format!("; next write after {gap} ms, whole after {whole} ms"))
}

fn report(power: &Power<'_>, recorded: &Recorded, notices: Notices) -> Report {
    let verdict = checker::check(&recorded.history);
    Report {
        cuts: power.cuts,
        telling_cuts: power.telling_cuts,
        syncs: power.syncs(),
        operations: recorded.history.operations.len(),
        acknowledged_writes: recorded.history.acknowledged_writes(),
        lost_writes: recorded.lost_writes,
        unknown_outcomes: recorded.history.unknown(),
        linearizable: verdict.linearizable(),
        violation: verdict.explanation(),
        notices,
    }
}

fn print(report: &Report) {
    println!("power cuts                 {}", report.cuts);
    println!("that met unsynced data     {}", report.telling_cuts);
    println!("syncs of the disk          {}", report.syncs);
    println!("operations                 {}", report.operations);
    println!("acknowledged writes        {}", report.acknowledged_writes);
    println!("acknowledged writes lost   {}", report.lost_writes);
    println!("unknown outcomes           {}", report.unknown_outcomes);
    println!("unsynced ends of logs      {}", report.notices.harmless);
    println!("damaged disks              {}", report.notices.damage.len());
    for line in &report.notices.damage {
        println!("    {line}");
    }
    let linearizable = match report.linearizable {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "undecided",
    };
    println!("linearizable               {linearizable}");
    if let Some(violation) = &report.violation {
        println!("{violation}");
    }
}

/// The last line of a run that succeeds.
fn conclude(no_fsync: bool, result: Result<Report>) -> Result<String> {
    if no_fsync {
        return match result {
            Err(error) if error.is::<Stuck>() => Ok(format!("passed: noticed, in {error:#}")),
            Err(error) => Err(error),
            Ok(report) if report.lost_writes > 0 || report.linearizable == Some(false) => {
                Ok("passed: the loss was noticed, as it must be without syncs".to_string())
            }
            Ok(_) => bail!("replicas that never sync lost nothing: the cuts prove nothing"),
        };
    }
    let report = result?;
    ensure!(report.lost_writes == 0, "FAILED: {} acknowledged writes lost", report.lost_writes);
    ensure!(report.linearizable == Some(true), "FAILED: the history is not shown linearizable");
    let proves = report.telling_cuts > 0 || report.cuts < MANY;
    ensure!(proves, "FAILED: all was synced at each cut: they prove nothing");
    ensure!(report.notices.damage.is_empty(), "FAILED: replicas found their disks damaged");
    Ok("passed".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            cuts: 3,
            telling_cuts: 2,
            syncs: 100,
            operations: 10,
            acknowledged_writes: 5,
            lost_writes: 0,
            unknown_outcomes: 1,
            linearizable: Some(true),
            violation: None,
            notices: Notices::default(),
        }
    }

    #[test]
    fn loss_fails_and_without_syncs_it_must_be_noticed() {
        assert!(conclude(false, Ok(report())).is_ok());
        assert!(conclude(true, Ok(report())).is_err(), "nothing was noticed");
        let lost = || Report { lost_writes: 1, ..report() };
        assert!(conclude(false, Ok(lost())).is_err());
        assert!(conclude(true, Ok(lost())).is_ok());
        let wrong = || Report { linearizable: Some(false), ..report() };
        assert!(conclude(false, Ok(wrong())).is_err());
        assert!(conclude(true, Ok(wrong())).is_ok());
        let idle = |cuts| Report { cuts, telling_cuts: 0, ..report() };
        assert!(conclude(false, Ok(idle(MANY))).is_err());
        assert!(conclude(false, Ok(idle(3))).is_ok(), "three may come at a quiet moment");
        let undecided = || Report { linearizable: None, ..report() };
        assert!(conclude(false, Ok(undecided())).is_err());
        assert!(conclude(true, Ok(undecided())).is_err());
    }

    #[test]
    fn a_group_that_does_not_come_back_is_noticed_but_other_trouble_is_not() {
        let stuck = || Err(Stuck("ended".to_string())).context("round 1 of 2");
        assert!(conclude(false, stuck()).is_err());
        let text = conclude(true, stuck()).unwrap();
        assert!(text.contains("round 1 of 2: ended"), "{text}");
        assert!(conclude(true, Err(anyhow!("no program"))).is_err());
        let unstarted = || Error::new(Stuck("ended".to_string()));
        assert!(conclude(true, Err(trouble(0, unstarted()))).is_err(), "nothing was cut");
        assert!(conclude(true, Err(trouble(1, unstarted()))).is_ok());
    }

    #[test]
    fn damage_is_told_from_an_unsynced_end() {
        let log = "replica 0: primary in view 3 of replica 0\n\
                   replica 0: disk: the last write before the crash was incomplete and was dropped \
                   (log/1 at byte 8192); it had not been acknowledged\n\
                   replica 0: disk: the log is corrupt at byte 4096 of log/1: what follows was \
                   dropped\n";
        let mut notices = Notices::default();
        notices.read(log);
        assert_eq!(notices.harmless, 1);
        assert_eq!(notices.damage.len(), 1);
        assert!(notices.damage[0].contains("corrupt"));
        let damaged = Report { notices, ..report() };
        assert!(conclude(false, Ok(damaged)).is_err());
    }
}
