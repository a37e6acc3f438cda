//! Power cuts at every point, on a disk that loses what was not synced. Needs FUSE; says so and
//! skips where there is none.

mod common;

use common::*;
use faultfs::FaultDisk;
use io::{Directory, Error, Finding, Opened, Settings, Syncing};
use smr::{Log, OpNumber, StoreBatch, Trust, View, Viewstamp};

fn mounted(name: &str) -> Option<FaultDisk> {
    let path = std::env::temp_dir().join(format!("io-{name}-{}", std::process::id()));
    match FaultDisk::mount(&path) {
        Ok(disk) => Some(disk),
        Err(reason) => {
            eprintln!("SKIPPED {name}: {reason}");
            None
        }
    }
}

fn gone(disk: FaultDisk) {
    let path = disk.path().to_owned();
    drop(disk);
    std::fs::remove_dir(&path).expect("unmounted and empty");
}

/// A seeded generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What the log is after some batches.
#[derive(Clone)]
struct State {
    log: Log,
    view: View,
}

impl State {
    fn apply(&mut self, batch: &StoreBatch) {
        if let Some(keep) = batch.truncate {
            self.log.truncate(keep);
        }
        batch.append.iter().for_each(|entry| self.log.append(entry.clone()));
        self.view = batch.view.unwrap_or(self.view);
    }

    /// Whether the disk holds this, on top of its checkpoint.
    fn matches(&self, opened: &Opened) -> bool {
        let recovered = &opened.recovered;
        let base = recovered.log.base();
        recovered.view == self.view
            && self.log.contains(base)
            && recovered.log.above(base.op).eq(self.log.above(base.op))
    }
}

/// One run of a replica's disk through several power cuts.
struct Run {
    random: Random,
    syncing: Syncing,
    /// What was acknowledged.
    stored: State,
    /// Batches after that, in order. Any number of them may have arrived.
    pending: Vec<StoreBatch>,
    /// The checkpoint on disk, and one that may be.
    checkpoint: Viewstamp,
    next_checkpoint: Option<Viewstamp>,
    lives: u64,
}

impl Run {
    fn latest(&self) -> State {
        let mut state = self.stored.clone();
        self.pending.iter().for_each(|batch| state.apply(batch));
        state
    }

    fn next_batch(&mut self, number: u64) -> StoreBatch {
        let state = self.latest();
        let mut next = batch(number);
        if self.random.below(8) == 0 || state.view == View(0) {
            next.view = Some(state.view.next_for(smr::ReplicaId(0)));
        }
        let (last, least) = (state.log.last().op.0, self.checkpoint.op.0);
        if self.random.below(6) == 0 {
            next.truncate = Some(OpNumber(last.saturating_sub(self.random.below(3)).max(least)));
        }
        let mut tail = state.log;
        tail.truncate(next.truncate.unwrap_or(OpNumber(u64::MAX)));
        for _ in 0..self.random.below(4) {
            let body = self.random.below(1500) as usize;
            let entry = entry(tail.last(), state.view.0.max(256), body);
            tail.append(entry.clone());
            next.append.push(entry);
        }
        next
    }

    /// Works until the power goes.
    fn work(&mut self, opened: &mut Opened) -> Result<(), Error> {
        for number in 1.. {
            match self.random.below(12) {
                0..6 => {
                    let batch = self.next_batch(number);
                    self.pending.push(batch.clone());
                    opened.log.append(&batch)?;
                }
                6..11 => {
                    match self.random.below(3) {
                        0 => opened.log.settle()?,
                        _ => opened.log.sync()?,
                    };
                    self.stored = self.latest();
                    self.pending.clear();
                }
                _ => self.checkpoint(opened, number)?,
            }
        }
        unreachable!("the power goes before the numbers end")
    }

    fn checkpoint(&mut self, opened: &mut Opened, number: u64) -> Result<(), Error> {
        opened.log.sync()?;
        self.stored = self.latest();
        self.pending.clear();
        let last = self.stored.log.last();
        if last.op <= self.checkpoint.op {
            return Ok(());
        }
        self.next_checkpoint = Some(last);
        let mut writer = opened.directory.create_checkpoint(last)?;
        for chunk in checkpoint_chunks(last) {
            writer.chunk(&chunk)?;
        }
        writer.finish()?;
        self.checkpoint = self.next_checkpoint.take().expect("just set");
        opened.log.append(&StoreBatch { trim: Some(last.op), ..batch(number) })
    }

    /// Starts the replica again and judges what the disk holds.
    fn restart(&mut self, disk: &FaultDisk) -> Result<Opened, String> {
        let settings = Settings { segment_bytes: 16 << 10, syncing: self.syncing };
        let path = disk.path().join("data");
        // The power may go during the start as well, once in a while.
        if self.random.below(3) == 0 {
            disk.cut(self.random.below(12));
            match Directory::open(&path, settings) {
                Ok(_) | Err(Error::Os { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
            self.crash(disk);
        }
        let opened = Directory::open(&path, settings).map_err(|error| error.to_string())?;
        if opened.recovered.trust == Trust::Lost {
            return Err(format!("lost: {:?}", opened.findings));
        }
        if opened.identity.incarnation.0 <= self.lives {
            return Err("a life was forgotten".to_owned());
        }
        self.lives = opened.identity.incarnation.0;
        let found = opened.recovered.checkpoint.unwrap_or_default();
        if found != self.checkpoint && Some(found) != self.next_checkpoint {
            return Err(format!("checkpoint {found:?} instead of {:?}", self.checkpoint));
        }
        (self.checkpoint, self.next_checkpoint) = (found, None);
        let mut state = self.stored.clone();
        for batch in std::mem::take(&mut self.pending) {
            if state.matches(&opened) {
                break;
            }
            state.apply(&batch);
        }
        if !state.matches(&opened) {
            let (found, stored) = (opened.recovered.log.last(), self.stored.log.last());
            return Err(format!("{found:?} is on disk, {stored:?} was acknowledged"));
        }
        self.stored = state;
        Ok(opened)
    }

    fn crash(&mut self, disk: &FaultDisk) {
        match self.random.below(4) {
            // Only the process dies: what it wrote stays visible, and unsynced.
            0 => disk.ok(),
            1 => disk.drop_unsynced(),
            _ => disk.tear_unsynced(self.random.below(u64::MAX)),
        }
    }
}

fn run(disk: &FaultDisk, seed: u64, syncing: Syncing) -> Result<(), String> {
    create(&disk.path().join("data"));
    let mut run = Run {
        random: Random(seed),
        syncing,
        stored: State { log: Log::new(Viewstamp::default()), view: View(0) },
        pending: Vec::new(),
        checkpoint: Viewstamp::default(),
        next_checkpoint: None,
        lives: 0,
    };
    for _ in 0..6 {
        let mut opened = run.restart(disk)?;
        disk.cut(run.random.below(60));
        let error = run.work(&mut opened).expect_err("the power goes");
        if !matches!(error, Error::Os { .. }) {
            return Err(format!("an unexpected error: {error}"));
        }
        drop(opened);
        run.crash(disk);
    }
    run.restart(disk).map(drop)
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    let Some(disk) = mounted("power") else { return };
    for seed in 0..40 {
        if let Err(what) = run(&disk, seed, Syncing::On) {
            panic!("seed {seed}: {what}");
        }
        std::fs::remove_dir_all(disk.path().join("data")).expect("removed");
    }
    gone(disk);
}

#[test]
fn leaving_out_fsync_is_caught() {
    let Some(disk) = mounted("unsafe") else { return };
    let mut caught = 0;
    for seed in 0..10 {
        caught += u32::from(run(&disk, seed, Syncing::UnsafeOff).is_err());
        disk.ok();
        std::fs::remove_dir_all(disk.path().join("data")).unwrap_or_default();
    }
    assert!(caught >= 8, "caught {caught} of 10 times");
    gone(disk);
}

/// Wherever the power goes while a damaged log is dropped and rewritten, the loss is not forgotten.
#[test]
fn a_loss_survives_power_cuts() {
    let Some(disk) = mounted("loss") else { return };
    let path = disk.path().join("data");
    for after in 0..40 {
        create(&path);
        let mut opened = open(&path);
        let mut last = Viewstamp::default();
        for op in 1..30 {
            let next = entry(last, 256, 300);
            last = next.viewstamp;
            opened.log.append(&append(op, vec![next])).expect("appended");
            opened.log.sync().expect("synced");
        }
        drop(opened);
        let segment = path.join("log/0000000002.seg");
        let mut bytes = std::fs::read(&segment).expect("read");
        bytes[1000] ^= 1;
        std::fs::write(&segment, bytes).expect("written");
        std::fs::File::open(&segment).expect("opened").sync_all().expect("synced");
        disk.cut(after);
        drop(Directory::open(&path, SMALL));
        disk.tear_unsynced(after);
        let opened = open(&path);
        assert_eq!(opened.recovered.trust, Trust::Lost, "power cut after {after}");
        assert!(opened.recovered.log.last().op < OpNumber(29));
        drop(opened);
        std::fs::remove_dir_all(&path).expect("removed");
    }
    gone(disk);
}

#[test]
fn after_a_failed_fsync_nothing_is_written() {
    let Some(disk) = mounted("failed-fsync") else { return };
    let path = disk.path().join("data");
    create(&path);
    let mut opened = open(&path);
    opened.log.append(&append(1, vec![entry(vs(0, 0), 256, 10)])).expect("appended");
    opened.log.sync().expect("synced");
    opened.log.append(&append(2, vec![entry(vs(256, 1), 256, 10)])).expect("appended");
    disk.fail_fsync(0);
    let failed = opened.log.sync();
    assert!(matches!(failed, Err(Error::Os { action: "fdatasync", .. })), "{failed:?}");
    // The next fsync would succeed, as in Linux, without having stored anything.
    assert!(matches!(opened.log.sync(), Err(Error::Poisoned(_))));
    assert!(matches!(opened.log.append(&batch(3)), Err(Error::Poisoned(_))));
    drop(opened);
    disk.drop_unsynced();
    let opened = open(&path);
    assert_eq!(opened.recovered.trust, Trust::Intact);
    assert_eq!(opened.recovered.log.last(), vs(256, 1));
    drop(opened);
    gone(disk);
}

#[test]
fn a_full_disk_refuses_entries_and_recovers() {
    let Some(disk) = mounted("full") else { return };
    let path = disk.path().join("data");
    create(&path);
    let mut opened = open(&path);
    let mut last = Viewstamp::default();
    let mut number = 0;
    let mut fill = |opened: &mut Opened, last: &mut Viewstamp| loop {
        number += 1;
        let next = entry(*last, 256, 700);
        if let Err(error) = opened.log.append(&append(number, vec![next.clone()])) {
            break error;
        }
        *last = next.viewstamp;
        opened.log.sync().expect("synced");
        assert!(last.op.0 < 1000, "the disk never fills up");
    };
    for _ in 0..10 {
        let next = entry(last, 256, 700);
        last = next.viewstamp;
        opened.log.append(&append(1, vec![next])).expect("appended");
    }
    opened.log.sync().expect("synced");
    disk.full(64 << 10);
    let refused = fill(&mut opened, &mut last);
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    // Views and trims go on, in the space set aside.
    let mut free_batches = 0;
    while free_batches < 40 {
        let view = Some(View(256 + (free_batches << 8)));
        opened.log.append(&StoreBatch { view, ..batch(900) }).expect("no entries");
        opened.log.sync().expect("synced");
        free_batches += 1;
    }
    let again = fill(&mut opened, &mut last);
    assert!(matches!(again, Error::Full { .. }), "{again}");
    // A checkpoint frees space, and the log goes on by itself.
    checkpoint(&opened.directory, last);
    let next = entry(last, 256 + (39 << 8), 3000);
    opened.log.append(&append(951, vec![next.clone()])).expect("space again");
    opened.log.sync().expect("synced");
    disk.ok();
    drop(opened);
    disk.drop_unsynced();
    let opened = open(&path);
    assert_eq!(
        (opened.recovered.trust, opened.recovered.log.last()),
        (Trust::Intact, next.viewstamp)
    );
    assert!(!opened.findings.iter().any(|f| matches!(f, Finding::TornTail { .. })));
    drop(opened);
    gone(disk);
}

#[test]
fn a_checkpoint_on_a_full_disk_can_be_tried_again() {
    let Some(disk) = mounted("full-checkpoint") else { return };
    let path = disk.path().join("data");
    create(&path);
    let opened = open(&path);
    disk.full(8 << 10);
    let attempt = || {
        let mut writer = opened.directory.create_checkpoint(vs(256, 1))?;
        writer.chunk(&vec![1; 3 << 20])?;
        writer.finish()
    };
    let refused = attempt();
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    disk.ok();
    attempt().expect("space again");
    drop(opened);
    gone(disk);
}
