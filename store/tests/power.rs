//! Power cuts under load, on a disk that loses what was not synced. Needs FUSE; says so and skips
//! where there is none.

mod common;

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use common::*;
use faultfs::FaultDisk;
use io::Syncing;
use store::{Error, Options};

fn mounted(name: &str) -> Option<FaultDisk> {
    let path = std::env::temp_dir().join(format!("store-{name}-{}", std::process::id()));
    match FaultDisk::mount(&path) {
        Ok(disk) => Some(disk),
        Err(reason) => {
            eprintln!("SKIPPED {name}: {reason}");
            None
        }
    }
}

/// What a change waits for at most, and what its write may take on a machine that is busy.
const OLDEST: Duration = Duration::from_millis(200);
const SLACK: Duration = Duration::from_millis(300);

/// What one client has written: the numbers from 1 on, each to both of its keys at once.
struct History {
    keys: [String; 2],
    /// When each was acknowledged.
    acknowledged: Vec<Instant>,
    sent: u64,
    sync: bool,
}

/// Writes until the server is gone; when it begins it says so at the barrier.
fn write(mut client: Client, name: usize, sync: bool, ready: &Barrier) -> History {
    let keys = [format!("x{name}"), format!("y{name}")];
    let mut history = History { keys, acknowledged: Vec::new(), sent: 0, sync };
    if sync {
        client.call("SYNC");
    }
    // Numbers go on where the life before has left them.
    let first = client.number(&history.keys[0]);
    history.acknowledged.resize(first as usize, Instant::now() - Duration::from_secs(9));
    ready.wait();
    loop {
        history.sent = history.acknowledged.len() as u64 + 1;
        let [x, y] = &history.keys;
        let answered = client.call(&format!("MSET {x} {0} {y} {0}", history.sent));
        if answered.is_none_or(|answer| answer.as_bytes() != Some(b"OK")) {
            return history;
        }
        history.acknowledged.push(Instant::now());
    }
}

/// Starts the store, lets clients write, cuts the power after a while and returns what they saw
/// and when it went.
fn life(
    disk: &FaultDisk,
    options: Options,
    clients: &[bool],
    millis: u64,
) -> (Vec<History>, Instant) {
    let running = Running::start(options).expect("it starts");
    let (histories, ready) = (Mutex::new(Vec::new()), Barrier::new(clients.len() + 1));
    let cut = std::thread::scope(|scope| {
        for (name, &sync) in clients.iter().enumerate() {
            let (client, histories, ready) = (running.client(), &histories, &ready);
            scope.spawn(move || {
                let history = write(client, name, sync, ready);
                histories.lock().unwrap().push(history);
            });
        }
        ready.wait();
        std::thread::sleep(Duration::from_millis(millis));
        let cut = Instant::now();
        disk.cut(0);
        // A store that writes notices that by itself.
        std::thread::sleep(Duration::from_millis(300));
        running.stop();
        cut
    });
    let error = running.end().expect_err("the disk is gone");
    assert!(matches!(error, Error::Disk(_)), "{error}");
    (histories.into_inner().unwrap(), cut)
}

/// What is wrong with what the store holds after a cut, if anything is.
fn judge(histories: &[History], cut: Instant, client: &mut Client) -> Result<(), String> {
    for history in histories {
        let [x, y] = [0, 1].map(|index| client.number(&history.keys[index]));
        if x != y {
            return Err(format!("half a command: {x} and {y}"));
        }
        if x > history.sent {
            return Err(format!("{x} was never written"));
        }
        let age = if history.sync { Duration::ZERO } else { OLDEST + SLACK };
        let due = history.acknowledged.iter().filter(|&&at| history.sync || at + age <= cut);
        let due = due.count() as u64;
        if x < due {
            return Err(format!("{} of {due} is there (sync: {})", x, history.sync));
        }
    }
    Ok(())
}

#[test]
fn after_a_power_cut_a_recent_prefix_is_there_and_all_that_was_synced() {
    let Some(disk) = mounted("cuts") else { return };
    let path = disk.path().join("data");
    let mut checkpointed = 0;
    for round in 0..12u64 {
        let mut options = options(&path, 2);
        // A checkpoint again and again, so that cuts meet one in every state.
        options.checkpoint_bytes = 1 << 16;
        let clients = [false, true, false, round % 2 == 0];
        let (histories, cut) = life(&disk, options.clone(), &clients, 250 + round * 67 % 400);
        if round % 2 == 0 {
            disk.drop_unsynced()
        } else {
            disk.tear_unsynced(round)
        }
        disk.ok();
        let running = Running::start(options).expect("a power cut damages nothing");
        checkpointed += usize::from(running.report.entries > 0);
        judge(&histories, cut, &mut running.client()).unwrap_or_else(|e| panic!("{round}: {e}"));
        running.end().expect("stops");
    }
    assert!(checkpointed > 3, "only {checkpointed} rounds met a checkpoint");
}

#[test]
fn threads_without_work_hold_nothing_back() {
    let Some(disk) = mounted("idle") else { return };
    let options = options(&disk.path().join("data"), 4);
    // One client: three of the four threads have nothing to log.
    let (histories, cut) = life(&disk, options.clone(), &[false], 700);
    assert!(histories[0].acknowledged.len() > 10);
    disk.drop_unsynced();
    disk.ok();
    let running = Running::start(options).expect("it starts");
    judge(&histories, cut, &mut running.client()).expect("a recent prefix");
    running.end().expect("stops");
}

/// Runs a store with a defect through a cut; the judge must find it.
fn caught(name: &str, sync: bool, defect: impl Fn(&mut Options)) {
    let Some(disk) = mounted(name) else { return };
    let mut defective = options(&disk.path().join("data"), 2);
    defect(&mut defective);
    let (histories, cut) = life(&disk, defective, &[sync], 900);
    disk.drop_unsynced();
    disk.ok();
    let verdict = match Running::start(options(&disk.path().join("data"), 2)) {
        Ok(running) => {
            let verdict = judge(&histories, cut, &mut running.client());
            running.end().expect("stops");
            verdict
        }
        Err(error) => Err(error.to_string()),
    };
    assert!(verdict.is_err(), "the defect was not noticed");
}

#[test]
fn the_tests_notice_a_log_that_is_forced_too_rarely() {
    caught("rare", false, |options| options.force_every = Duration::from_secs(60));
}

#[test]
fn the_tests_notice_a_disk_that_is_never_forced() {
    caught("never", true, |options| options.syncing = Syncing::UnsafeOff);
}

#[test]
fn a_failed_sync_ends_the_store_and_loses_nothing_that_was_acknowledged() {
    let Some(disk) = mounted("eio") else { return };
    let options = options(&disk.path().join("data"), 2);
    let running = Running::start(options.clone()).expect("it starts");
    let ready = Barrier::new(2);
    let history = std::thread::scope(|scope| {
        let client = running.client();
        let writer = scope.spawn(|| write(client, 0, true, &ready));
        ready.wait();
        std::thread::sleep(Duration::from_millis(200));
        disk.fail_fsync(0);
        writer.join().expect("no panic")
    });
    let error = running.end().expect_err("a sync has failed").to_string();
    assert!(error.contains("cannot fdatasync"), "{error}");
    assert!(!history.acknowledged.is_empty());
    disk.drop_unsynced();
    disk.ok();
    let running = Running::start(options).expect("it starts");
    judge(&[history], Instant::now(), &mut running.client()).expect("what was acknowledged");
    running.end().expect("stops");
}

#[test]
fn a_full_disk_stops_no_reads_and_is_left_by_itself() {
    let Some(disk) = mounted("full") else { return };
    let options = options(&disk.path().join("data"), 2);
    let running = Running::start(options.clone()).expect("it starts");
    let mut client = running.client();
    let value = "v".repeat(30_000);
    disk.full(0);
    for turn in 0..40 {
        client.send(&["SET", &format!("k{turn}"), &value]);
        assert_eq!(client.answer().expect("an answer").as_bytes(), Some(&b"OK"[..]));
    }
    let full = |running: &Running| {
        let events = running.events.lock().unwrap();
        events.iter().any(|event| matches!(event, store::Event::DiskFull(_)))
    };
    let start = Instant::now();
    while !full(&running) && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(full(&running), "nobody was told");
    assert_eq!(client.call("STRLEN k1"), Some(resp::Value::Integer(30_000)));
    disk.ok();
    client.call("SYNC");
    client.call("SET last 1").expect("an answer once there is space");
    drop(client);
    running.end().expect("stops");
    let running = Running::start(options).expect("it starts");
    assert_eq!(running.client().call("DBSIZE"), Some(resp::Value::Integer(41)));
    running.end().expect("stops");
}
