//! `faultfs`: mounts the fault disk and gives it commands.
#![forbid(unsafe_code)]

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use faultfs::{CONTROL_FILE, Command, FaultDisk};

/// A disk for tests that loses what was not synced when told to.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Mount an empty disk in memory, and serve it until it is unmounted (umount DIR).
    Mount { dir: PathBuf },
    /// Lose everything unsynced, as a power cut does.
    Drop { dir: PathBuf },
    /// Lose a random part of what is unsynced, by 512-byte sectors.
    Torn { dir: PathBuf, seed: u64 },
    /// Let AFTER more syncs succeed and then one fail.
    FailFsync { dir: PathBuf, after: u64 },
    /// Let AFTER more changes and syncs succeed; then the power is off until drop or torn.
    Cut { dir: PathBuf, after: u64 },
    /// Delay every write and sync by MS milliseconds.
    Stall { dir: PathBuf, ms: u64 },
    /// Leave FREE bytes of space.
    Full { dir: PathBuf, free: u64 },
    /// No more failures, stalls and limits.
    Ok { dir: PathBuf },
    /// Tell space and faults.
    Status { dir: PathBuf },
}

fn main() -> Result<()> {
    let (dir, command) = match Arguments::parse().action {
        Action::Mount { dir } => {
            let disk = FaultDisk::mount(&dir)?;
            println!("mounted on {}", disk.path().display());
            return Ok(disk.wait()?);
        }
        Action::Status { dir } => {
            let path = dir.join(CONTROL_FILE);
            print!("{}", std::fs::read_to_string(&path).with_context(|| not_mounted(&dir))?);
            return Ok(());
        }
        Action::Drop { dir } => (dir, Command::Drop),
        Action::Torn { dir, seed } => (dir, Command::Torn { seed }),
        Action::FailFsync { dir, after } => (dir, Command::FailFsync { after }),
        Action::Cut { dir, after } => (dir, Command::Cut { after }),
        Action::Stall { dir, ms } => (dir, Command::Stall { ms }),
        Action::Full { dir, free } => (dir, Command::Full { free }),
        Action::Ok { dir } => (dir, Command::Ok),
    };
    let control = std::fs::OpenOptions::new().write(true).open(dir.join(CONTROL_FILE));
    let mut control = control.with_context(|| not_mounted(&dir))?;
    std::io::Write::write_all(&mut control, command.to_string().as_bytes())
        .with_context(|| format!("{command} failed"))
}

fn not_mounted(dir: &std::path::Path) -> String {
    format!("{} is no fault disk: mount one there with `faultfs mount`", dir.display())
}
