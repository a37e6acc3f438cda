//! What a sync costs on this disk, for each way of preparing the file, and for the log as it is:
//! `cargo run --release -p io --example fsync -- [DIR]`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use io::{Directory, Format, Settings};
use smr::{
    ClientId, Content, Durability, Entry, GroupId, Incarnation, OpNumber, ReplicaId, Request,
    RequestNumber, StoreBatch, StoreNumber, Trust, View, Viewstamp,
};

const SYNCS: usize = 2000;
const RECORD: usize = 4096;
const O_DSYNC: i32 = 0o10000;

fn main() {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("io-fsync-{}", std::process::id()));
    std::fs::create_dir(&dir).expect("a writable directory");
    let plain =
        |path: &Path| OpenOptions::new().write(true).create_new(true).open(path).expect("created");
    let allocated = |path: &Path| {
        let file = plain(path);
        let none = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, none, 0, (SYNCS * RECORD) as u64).expect("allocated");
        file.sync_all().expect("synced");
        file
    };
    let zeroed = |path: &Path| {
        let file = allocated(path);
        file.write_all_at(&vec![0; SYNCS * RECORD], 0).expect("written");
        file.sync_all().expect("synced");
        file
    };
    let dsync = |path: &Path| {
        zeroed(path);
        OpenOptions::new().write(true).custom_flags(O_DSYNC).open(path).expect("opened")
    };
    println!("writes of {RECORD} bytes, each synced; microseconds");
    sequence("growing file, fdatasync", &plain(&dir.join("a")), true);
    sequence("allocated, fdatasync", &allocated(&dir.join("b")), true);
    sequence("written before, fdatasync", &zeroed(&dir.join("c")), true);
    sequence("written before, O_DSYNC", &dsync(&dir.join("d")), false);
    for (entries, body) in [(1, 100), (16, 100), (64, 1000), (16, 60_000)] {
        log(&dir, entries, body);
    }
    std::fs::remove_dir_all(&dir).expect("removed");
}

fn sequence(name: &str, file: &File, sync: bool) {
    let record = vec![7; RECORD];
    let mut times = Vec::with_capacity(SYNCS);
    for index in 0..SYNCS {
        let start = Instant::now();
        file.write_all_at(&record, (index * RECORD) as u64).expect("written");
        if sync {
            file.sync_data().expect("synced");
        }
        times.push(start.elapsed());
    }
    report(name, &mut times);
}

fn report(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 1000].as_secs_f64() * 1e6;
    let [p10, p50, p99, p999] = [100, 500, 990, 999].map(at);
    println!("{name:<30} p10 {p10:>6.0}  p50 {p50:>6.0}  p99 {p99:>6.0}  p99.9 {p999:>6.0}");
}

/// Batches of one entry each; `group` of them to a sync.
fn log(dir: &Path, group: usize, body: usize) {
    let path = dir.join(format!("log-{group}-{body}"));
    let (group_id, replica, durability) = (GroupId(1), ReplicaId(0), Durability::Sync);
    let incarnation = Incarnation(0);
    let trust = Trust::New;
    let ordered_by = smr::OrderedBy::Vsr;
    let format = Format {
        group: group_id,
        replica,
        replicas: 3,
        durability,
        ordered_by,
        trust,
        incarnation,
    };
    Directory::create(&path, &format).expect("formatted");
    let mut opened = Directory::open(&path, Settings::default()).expect("opened");
    let request = Request {
        client: ClientId::default(),
        number: RequestNumber(1),
        oldest_unanswered: RequestNumber(1),
        body: Bytes::from(vec![7; body]),
    };
    let (mut last, mut number) = (Viewstamp::default(), 0);
    let (mut times, start) = (Vec::with_capacity(SYNCS), Instant::now());
    for _ in 0..SYNCS.min((512 << 20) / (group * body)) {
        let before = Instant::now();
        for _ in 0..group {
            let entry = Entry {
                viewstamp: Viewstamp::new(View(256), last.op.next()),
                previous: last,
                commit: OpNumber(0),
                durable: Viewstamp::default(),
                content: Content::Batch { unix_ms: 1, requests: vec![request.clone()] },
            };
            last = entry.viewstamp;
            number += 1;
            let batch = StoreBatch {
                number: StoreNumber(number),
                reset: None,
                truncate: None,
                append: vec![Arc::new(entry)],
                view: None,
                trim: None,
            };
            opened.log.append(&batch).expect("appended");
        }
        opened.log.sync().expect("synced");
        times.push(before.elapsed());
    }
    let seconds = start.elapsed().as_secs_f64();
    report(&format!("log, {group} x {body} bytes a sync"), &mut times);
    let (rate, volume) = (number as f64 / seconds, (number as usize * body) as f64 / 1e6 / seconds);
    println!("{:<30} {rate:.0} batches/s, {volume:.0} MB/s", "");
}
