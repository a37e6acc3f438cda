//! The disk through the kernel. Needs FUSE; says so and skips where there is none.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use faultfs::{CONTROL_FILE, FaultDisk};

fn mounted(name: &str) -> Option<FaultDisk> {
    let path = std::env::temp_dir().join(format!("faultfs-{name}-{}", std::process::id()));
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
    fs::remove_dir(&path).expect("unmounted and empty");
}

fn sync_folder(disk: &FaultDisk) {
    File::open(disk.path()).expect("opened").sync_all().expect("synced");
}

#[test]
fn synced_survives_and_unsynced_does_not() {
    let Some(disk) = mounted("power") else { return };
    let path = disk.path().join("file");
    let mut file = File::create(&path).expect("created");
    file.write_all(b"kept").expect("written");
    file.sync_data().expect("synced");
    sync_folder(&disk);
    file.write_all(&[7; 3 << 20]).expect("a long write");
    assert_eq!(fs::read(&path).expect("read").len(), 4 + (3 << 20));
    disk.drop_unsynced();
    assert_eq!(fs::read(&path).expect("read"), b"kept");
    File::create(disk.path().join("other")).expect("created").sync_all().expect("synced");
    disk.drop_unsynced();
    assert!(!disk.path().join("other").exists(), "its directory was not synced");
    drop(file);
    gone(disk);
}

#[test]
fn renames_and_removals_need_a_sync_of_the_directory() {
    let Some(disk) = mounted("names") else { return };
    let (from, to) = (disk.path().join("from"), disk.path().join("to"));
    let mut file = File::create(&from).expect("created");
    file.write_all(b"x").expect("written");
    file.sync_all().expect("synced");
    sync_folder(&disk);
    fs::rename(&from, &to).expect("renamed");
    disk.drop_unsynced();
    assert!(from.exists() && !to.exists());
    fs::rename(&from, &to).expect("renamed");
    sync_folder(&disk);
    disk.drop_unsynced();
    assert!(!from.exists() && to.exists());
    fs::remove_file(&to).expect("removed");
    disk.drop_unsynced();
    assert_eq!(fs::read(&to).expect("read"), b"x");
    let names: Vec<_> = fs::read_dir(disk.path()).expect("listed").collect();
    assert_eq!(names.len(), 1);
    drop(file);
    gone(disk);
}

#[test]
fn what_a_log_needs_works() {
    let Some(disk) = mounted("calls") else { return };
    fs::create_dir(disk.path().join("log")).expect("made");
    let path = disk.path().join("log/a");
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("created");
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).expect("space");
    assert_eq!(file.metadata().expect("stat").len(), 1 << 20);
    file.write_all_at(b"abc", 1000).expect("written");
    file.set_len(1002).expect("truncated");
    assert_eq!(fs::read(&path).expect("read")[999..], *b"\0ab");
    file.try_lock().expect("locked");
    let other = File::open(&path).expect("opened");
    other.try_lock().expect_err("somebody has it");
    rustix::fs::fstatvfs(&file).expect("statvfs");
    let dsync = OpenOptions::new().write(true).custom_flags(0o10000).open(&path).expect("opened");
    File::open(disk.path().join("log")).expect("opened").sync_all().expect("synced");
    sync_folder(&disk);
    dsync.write_all_at(b"!", 0).expect("written");
    disk.drop_unsynced();
    assert_eq!(fs::read(&path).expect("read")[0], b'!');
    drop((file, other, dsync));
    gone(disk);
}

#[test]
fn faults_through_the_control_file() {
    let Some(disk) = mounted("control") else { return };
    let control = disk.path().join(CONTROL_FILE);
    let say = |text: &str| fs::write(&control, text);
    let mut file = File::create(disk.path().join("a")).expect("created");
    say("fail-fsync 0").expect("taken");
    file.write_all(b"x").expect("written");
    file.sync_data().expect_err("told to fail");
    file.sync_data().expect("only once");
    say("full 8192\n").expect("taken");
    let error = file.write_all(&[0; 20_000]).expect_err("no space");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    say("stall 50").expect("taken");
    let start = Instant::now();
    file.sync_data().expect("slow");
    assert!(start.elapsed() >= Duration::from_millis(50));
    say("ok").expect("taken");
    file.write_all(&[0; 20_000]).expect("space again");
    assert_eq!(say("nonsense").expect_err("refused").kind(), std::io::ErrorKind::InvalidInput);
    let status = fs::read_to_string(&control).expect("read");
    assert!(status.contains("fail-fsync none"), "{status}");
    drop(file);
    gone(disk);
}
