//! The thread that writes one log: everything that has come together, with one sync, whenever
//! somebody waits for it and otherwise several times in 200 ms ([Mao] 3.2).

use std::sync::atomic::Ordering;
use std::time::Duration;

use ::io::{Folder, JournalWriter};

use crate::Error;
use crate::log::{HEADER, Logs, Work};
use crate::manifest::{Manifest, log_name};
use crate::server::Event;

/// How long a log that ends waits for the others.
const LAST_WORD: Duration = Duration::from_secs(2);
/// How long a full disk is left alone.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// A log that is being written.
pub(crate) struct Writer<'a> {
    logs: &'a Logs,
    folder: &'a Folder,
    /// For the seeds of names.
    manifest: Manifest,
    generation: u64,
    index: usize,
    segment: u64,
    step: u64,
    journal: JournalWriter,
    events: &'a (dyn Fn(&Event) + Sync),
}

/// What the writers have in common.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub logs: &'a Logs,
    pub folder: &'a Folder,
    pub manifest: &'a Manifest,
    /// Bytes of space that a log takes at a time.
    pub step: u64,
    pub events: &'a (dyn Fn(&Event) + Sync),
}

/// Makes the first segment of a log, with a mark of where its generation starts.
pub(crate) fn begin(
    folder: &Folder,
    manifest: &Manifest,
    (generation, index, segment): (u64, usize, u64),
    mark: u64,
    step: u64,
) -> Result<JournalWriter, Error> {
    let name = log_name(generation, index, segment);
    let mut journal = JournalWriter::create(folder, &name, manifest.seed(&name), step)?;
    let mut chunk = vec![0; HEADER];
    chunk[..8].copy_from_slice(&mark.to_le_bytes());
    journal.append(&chunk)?;
    journal.sync()?;
    Ok(journal)
}

impl<'a> Writer<'a> {
    pub fn new(
        setting: Setting<'a>,
        generation: u64,
        index: usize,
        journal: JournalWriter,
    ) -> Writer<'a> {
        let Setting { logs, folder, manifest, step, events } = setting;
        let manifest = Manifest { store: manifest.store, ..Manifest::default() };
        Writer { logs, folder, manifest, generation, index, segment: 1, step, journal, events }
    }

    /// Writes until it is stopped or fails; then all ends.
    pub fn run(mut self, interval: Duration) {
        let mut told = 0;
        loop {
            let work = self.logs.next_work(self.index, interval, told);
            let (stop, mark) = (work.stop, work.mark);
            told = work.durable;
            if let Err(error) = self.write(work) {
                return self.logs.fail(error);
            }
            if stop && (told >= mark || !self.others_reach(mark)) {
                return;
            }
        }
    }

    /// Waits, at the end, for the other logs, so that the last word of this one is that all are on
    /// disk: with it a log that loses its end later is found out. Returns whether they are.
    fn others_reach(&self, mark: u64) -> bool {
        let start = std::time::Instant::now();
        while self.logs.durable() < mark && !self.logs.failed.load(Ordering::Acquire) {
            if start.elapsed() > LAST_WORD {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        !self.logs.failed.load(Ordering::Acquire)
    }

    fn write(&mut self, work: Work) -> Result<(), Error> {
        let before = self.journal.bytes();
        for chunk in &work.chunks {
            self.append(chunk)?;
        }
        let count = work.chunks.len();
        self.logs.reuse(self.index, work.chunks);
        self.journal.sync()?;
        let written = (count, self.journal.bytes() - before);
        self.logs.stored(self.index, work.mark, written);
        if work.rotate { self.rotate(work.mark) } else { Ok(()) }
    }

    /// A full disk is waited for: what is buffered stays, and nobody is told that it is stored.
    fn append(&mut self, chunk: &[u8]) -> Result<(), Error> {
        let journal = &mut self.journal;
        wait_for_space(self.logs, self.events, || Ok(journal.append(chunk)?))
    }

    /// Everything so far is on disk, and what follows goes into another file.
    fn rotate(&mut self, mark: u64) -> Result<(), Error> {
        let at = (self.generation, self.index, self.segment + 1);
        let (folder, manifest, step) = (self.folder, &self.manifest, self.step);
        let next =
            wait_for_space(self.logs, self.events, || begin(folder, manifest, at, mark, step))?;
        std::mem::replace(&mut self.journal, next).finish()?;
        self.segment += 1;
        self.logs.rotated(self.index, self.segment);
        Ok(())
    }
}

/// Tries again for as long as the disk is full and the server is to go on.
fn wait_for_space<T>(
    logs: &Logs,
    events: &(dyn Fn(&Event) + Sync),
    mut attempt: impl FnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let mut full = false;
    loop {
        match attempt() {
            Err(Error::Disk(error @ ::io::Error::Full { .. })) => {
                if !std::mem::replace(&mut full, true)
                    && logs.full.fetch_add(1, Ordering::Relaxed) == 0
                {
                    events(&Event::DiskFull(error.to_string()));
                }
                if logs.stopping() || logs.failed.load(Ordering::Acquire) {
                    return Err(error.into());
                }
                std::thread::sleep(FULL_PAUSE);
            }
            done => {
                if full && logs.full.fetch_sub(1, Ordering::Relaxed) == 1 {
                    events(&Event::DiskFree);
                }
                return done;
            }
        }
    }
}
