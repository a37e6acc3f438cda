//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use io::{Directory, Format, Opened, Settings, Syncing};
use smr::{
    ClientId, Content, Durability, Entry, GroupId, Incarnation, OpNumber, OrderedBy, ReplicaId,
    Request, RequestNumber, StoreBatch, StoreNumber, Trust, View, Viewstamp,
};

/// A directory that goes when it is dropped. It is in memory where that is possible: these tests
/// are not about the disk, and would be slow on one.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("io-{name}-{}-{number}", std::process::id());
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Scratch(parent.join(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn segment(&self, id: u64) -> PathBuf {
        self.0.join(format!("log/{id:010}.seg"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub const SMALL: Settings = Settings { segment_bytes: 4096, syncing: Syncing::On };

pub fn format(durability: Durability, trust: Trust) -> Format {
    let (group, replica, incarnation) = (GroupId(77), ReplicaId(1), Incarnation(0));
    let ordered_by = OrderedBy::Vsr;
    Format { group, replica, replicas: 3, durability, ordered_by, trust, incarnation }
}

pub fn create(path: &Path) {
    Directory::create(path, &format(Durability::Sync, Trust::New)).expect("formatted");
}

pub fn open(path: &Path) -> Opened {
    Directory::open(path, SMALL).expect("opened")
}

pub fn vs(view: u64, op: u64) -> Viewstamp {
    Viewstamp::new(View(view), OpNumber(op))
}

pub fn entry(previous: Viewstamp, view: u64, body: usize) -> Arc<Entry> {
    let viewstamp = vs(view, previous.op.0 + 1);
    let request = Request {
        client: ClientId { gateway: 3, incarnation: Incarnation(1) },
        number: RequestNumber(viewstamp.op.0),
        oldest_unanswered: RequestNumber(0),
        body: Bytes::from(vec![viewstamp.op.0 as u8; body]),
    };
    Arc::new(Entry {
        viewstamp,
        previous,
        commit: OpNumber(0),
        durable: Viewstamp::default(),
        content: Content::Batch { unix_ms: 1, requests: vec![request] },
    })
}

pub fn batch(number: u64) -> StoreBatch {
    StoreBatch {
        number: StoreNumber(number),
        reset: None,
        truncate: None,
        append: Vec::new(),
        view: None,
        trim: None,
    }
}

pub fn append(number: u64, entries: Vec<Arc<Entry>>) -> StoreBatch {
    StoreBatch { append: entries, ..batch(number) }
}

/// Writes a checkpoint of a few chunks.
pub fn checkpoint(directory: &Directory, position: Viewstamp) {
    let mut writer = directory.create_checkpoint(position).expect("created");
    for chunk in checkpoint_chunks(position) {
        writer.chunk(&chunk).expect("written");
    }
    writer.finish().expect("finished");
}

pub fn checkpoint_chunks(position: Viewstamp) -> Vec<Vec<u8>> {
    vec![position.op.0.to_le_bytes().to_vec(), Vec::new(), vec![9; 300]]
}
