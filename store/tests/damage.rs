//! Files that are not as they were written: a report, or the same state; never another one.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::*;
use resp::Value;

const KEYS: usize = 300;

/// Fills a store, with a checkpoint in the middle, and stops it. The state is known: key i holds
/// i of the letters of its turn.
fn fill(directory: &Path) {
    let mut options = options(directory, 2);
    options.checkpoint_bytes = 1 << 16;
    let running = Running::start(options.clone()).expect("it starts");
    let mut clients = [running.client(), running.client()];
    let start = Instant::now();
    let mut turn = 0;
    while running.checkpoints() == 0 || turn % 26 != 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint");
        for key in 0..KEYS {
            let value = letters(turn, key);
            let client = &mut clients[key % 2];
            client.send(&["SET", &format!("key{key}"), &value]);
            client.answer().expect("an answer");
        }
        clients[0].call(&format!("HSET hash f {turn} g {turn}"));
        turn += 1;
    }
    drop(clients);
    running.end().expect("stops");
    // And something in the logs alone.
    options.checkpoint_bytes = u64::MAX;
    let running = Running::start(options).expect("it starts");
    let mut client = running.client();
    for key in 0..KEYS {
        client.send(&["SET", &format!("key{key}"), &letters(25, key)]);
        client.answer().expect("an answer");
    }
    client.call("DEL key0");
    drop(client);
    running.end().expect("stops");
}

fn letters(turn: usize, key: usize) -> String {
    char::from(b'a' + (turn % 26) as u8).to_string().repeat(key)
}

/// Whether a store that starts from these files holds what it held. An error when it does not
/// start.
fn check(directory: &Path) -> Result<bool, String> {
    let running = Running::start(options(directory, 2)).map_err(|error| error.to_string())?;
    let mut client = running.client();
    let mut same = client.call("EXISTS key0") == Some(Value::Integer(0));
    for key in 1..KEYS {
        let value = client.call(&format!("GET key{key}")).expect("an answer");
        same &= value == Value::Bulk(letters(25, key).into_bytes());
    }
    drop(client);
    running.end().map_err(|error| error.to_string())?;
    Ok(same)
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| !path.ends_with("lock"));
    paths.sort();
    paths
}

#[test]
fn damage_is_reported_and_never_read() {
    let (good, bad) = (directory("good"), directory("bad"));
    fill(&good);
    copy(&good, &bad);
    assert_eq!(check(&bad), Ok(true));
    let (mut reported, mut harmless) = (0, 0);
    let mut judge = |what: String| match check(&bad) {
        Ok(true) => harmless += 1,
        Ok(false) => panic!("{what}: another state"),
        Err(error) => {
            assert!(error.contains(bad.to_str().unwrap()), "{what}: {error}");
            reported += 1;
        }
    };
    for path in files(&good) {
        let name = path.file_name().expect("a name");
        let bytes = std::fs::read(&path).expect("read");
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        for part in 0..if used == 0 { 0 } else { 4 } {
            let at = (used * part / 4 + 3).min(used - 1);
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x20;
            copy(&good, &bad);
            std::fs::write(bad.join(name), &damaged).expect("written");
            judge(format!("{name:?} flipped at {at} of {used}"));
            copy(&good, &bad);
            std::fs::write(bad.join(name), &bytes[..at]).expect("written");
            judge(format!("{name:?} cut at {at} of {used}"));
        }
        copy(&good, &bad);
        std::fs::remove_file(bad.join(name)).expect("removed");
        judge(format!("{name:?} removed"));
    }
    assert!(reported > 25, "{reported} reported, {harmless} harmless");
    std::fs::remove_dir_all(good).expect("removed");
    std::fs::remove_dir_all(bad).expect("removed");
}
