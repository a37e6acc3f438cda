//! What a test can tell the disk to do, as text in its control file.

use std::fmt;
use std::str::FromStr;

/// The file in the mounted root that takes a [`Command`] as text when written and tells the disk's
/// state when read. Listings do not show it.
pub const CONTROL_FILE: &str = ".faultfs";

/// What can be done to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Lose everything unsynced, as a power cut does. Files stay readable; handles that were open
    /// go on with what is left.
    Drop,
    /// As [`Command::Drop`], but of the unsynced writes a random part has arrived: of file content
    /// some 512-byte sectors, of a directory's changes the first few.
    Torn {
        /// Decides which.
        seed: u64,
    },
    /// After this many more syncs that succeed, one fails with `EIO`. As in Linux, what it should
    /// have stored stays readable, but counts as clean: later syncs succeed without storing it.
    FailFsync {
        /// How many succeed before.
        after: u64,
    },
    /// After this many more changes and syncs the power goes: nothing reaches the disk and every
    /// change and sync fails with `EIO`, until [`Command::Drop`] or [`Command::Torn`] decides what
    /// is left.
    Cut {
        /// How many succeed before.
        after: u64,
    },
    /// Every write and sync takes this much longer, in milliseconds.
    Stall {
        /// Zero for no delay.
        ms: u64,
    },
    /// Leave this many bytes of space; then `ENOSPC`.
    Full {
        /// Free bytes from now on.
        free: u64,
    },
    /// No more stalls, failures and limits. What is lost stays lost.
    Ok,
}

/// The text is no command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownCommand(pub String);

impl fmt::Display for UnknownCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown command {:?}: use drop, torn SEED, fail-fsync N, cut N, stall MS, full BYTES \
             or ok",
            self.0
        )
    }
}

impl std::error::Error for UnknownCommand {}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Drop => f.write_str("drop"),
            Command::Torn { seed } => write!(f, "torn {seed}"),
            Command::FailFsync { after } => write!(f, "fail-fsync {after}"),
            Command::Cut { after } => write!(f, "cut {after}"),
            Command::Stall { ms } => write!(f, "stall {ms}"),
            Command::Full { free } => write!(f, "full {free}"),
            Command::Ok => f.write_str("ok"),
        }
    }
}

impl FromStr for Command {
    type Err = UnknownCommand;

    fn from_str(text: &str) -> Result<Command, UnknownCommand> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let unknown = || UnknownCommand(text.trim().to_owned());
        let number = |word: &str| word.parse().map_err(|_| unknown());
        match words[..] {
            ["drop"] => Ok(Command::Drop),
            ["torn", seed] => Ok(Command::Torn { seed: number(seed)? }),
            ["fail-fsync", after] => Ok(Command::FailFsync { after: number(after)? }),
            ["cut", after] => Ok(Command::Cut { after: number(after)? }),
            ["stall", ms] => Ok(Command::Stall { ms: number(ms)? }),
            ["full", free] => Ok(Command::Full { free: number(free)? }),
            ["ok"] => Ok(Command::Ok),
            _ => Err(unknown()),
        }
    }
}
