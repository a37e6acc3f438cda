//! The processes of a measurement, from the side of the one that started them.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::MuOptions;
use super::job::{Job, Outcome, Seat, Work};

pub(super) struct Group {
    folder: PathBuf,
    children: Vec<Child>,
    lines: Receiver<(u8, String)>,
}

impl Group {
    /// Starts so many replicas; they are this program.
    pub(super) fn start(
        options: &MuOptions,
        replicas: u8,
        heartbeat: u64,
        work: Work,
    ) -> Result<Group> {
        static GROUPS: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the numbers must differ.
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("lockstep-mu-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let (sender, lines) = channel();
        let mut group = Group { folder, children: Vec::new(), lines };
        for id in 0..replicas {
            let seat = Seat {
                id,
                folder: group.folder.clone(),
                core: options.cores[usize::from(id)],
                application_core: options.cores[3],
                heartbeat,
            };
            group.spawn(&Job { seat, work }, sender.clone())?;
        }
        Ok(group)
    }

    fn spawn(&mut self, job: &Job, lines: Sender<(u8, String)>) -> Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command.args(["bench", "mu-process", &serde_json::to_string(job)?]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a process")?;
        let output = child.stdout.take().expect("piped");
        self.children.push(child);
        let id = job.seat.id;
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Who does not listen any more has what it wanted.
                let _ = lines.send((id, line));
            }
        });
        Ok(())
    }

    /// The next line that a process says, unless it comes too late.
    pub(super) fn line(&self, end: Instant) -> Result<Option<(u8, String)>> {
        match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("all processes of the group have ended"),
        }
    }

    pub(super) fn signal(&self, id: u8, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.children[usize::from(id)].id() as i32);
        kill_process(pid.expect("a process has an id"), signal).context("cannot send a signal")
    }

    /// What the leader says when it is done.
    pub(super) fn outcome(mut self, end: Instant) -> Result<Outcome> {
        loop {
            let until = end.min(Instant::now() + std::time::Duration::from_millis(200));
            if let Some((id, line)) = self.line(until)? {
                ensure!(id == 0, "replica {id} said {line:?}");
                return serde_json::from_str(&line).context("the leader's figures make no sense");
            }
            for (id, child) in self.children.iter_mut().enumerate() {
                if let Some(status) = child.try_wait()?
                    && !(id == 0 && status.success())
                {
                    bail!("replica {id} ended before the measurement did: {status}");
                }
            }
            ensure!(
                Instant::now() < end,
                "the measurement took longer than its part may: give it more with --limit"
            );
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
