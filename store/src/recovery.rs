//! From files to trees ([Mao] 3.2): the checkpoint, then what the logs hold up to the cut-off, both
//! by several threads.
//!
//! The cut-off is the least of the logs' last timestamps. (The paper drops what has that timestamp,
//! too; here no two records have the same one.) Every entry of a tree gets what the record with the
//! greatest timestamp says, so the threads share the entries out by their keys and each applies its
//! own in the order of timestamps. A cut-off, once found, is kept in the manifest: what is above it
//! stays dropped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::io::{Folder, Journal};
use kv::redo::{self, Change, Entry};
use kv::{Limits, Shared};

use crate::log::{Item, header, items};
use crate::manifest::{Generation, Manifest, is_own, log_name, part_name};
use crate::{Error, parallel};

/// What a start has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries read from the checkpoint.
    pub entries: u64,
    /// How long that took.
    pub loading: Duration,
    /// Changes of entries applied from the logs.
    pub changes: u64,
    /// Records of the logs that were above the cut-off, so that something before them may be
    /// missing.
    pub dropped: u64,
    /// How long the logs took.
    pub replaying: Duration,
    /// Files that ended in a write that was not completed.
    pub torn: Vec<PathBuf>,
}

/// A store as its files say.
pub(crate) struct Recovered {
    pub shared: Arc<Shared>,
    /// With the cut-offs of all generations.
    pub manifest: Manifest,
    pub report: Report,
}

/// A log of one generation.
struct Log {
    path: PathBuf,
    journals: Vec<Journal>,
    /// Its records above this do not count.
    cut: u64,
    /// The last timestamp in it.
    last: u64,
    /// How far it says that all logs were on disk.
    durable: u64,
    torn: Option<PathBuf>,
}

/// So many entries are looked for at a time.
const BATCH: usize = 64;

/// Where a change stands among all.
type Order = (u64, u32);

/// What a log says beside the entries of the trees.
struct Survey {
    flush: Option<Order>,
    flush_at: Option<(Order, u64)>,
    dropped: u64,
}

impl Log {
    /// The records, whether they count or not. That they make sense was seen when they were read.
    fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.journals.iter().flat_map(Journal::records).flat_map(items).flatten()
    }
}

/// Reads a store. Nothing on disk is changed. A folder that holds nothing is an empty store.
pub(crate) fn recover(folder: &Folder, threads: usize, seed: u64) -> Result<Recovered, Error> {
    let Some(mut manifest) = Manifest::load(folder)? else {
        if folder.names()?.iter().any(|name| is_own(name) && !name.ends_with(".tmp")) {
            return Err(Error::NoManifest(folder.path().to_owned()));
        }
        let manifest = Manifest { store: seed, ..Manifest::default() };
        let shared = Shared::new(Limits::default(), 0);
        return Ok(Recovered { shared, manifest, report: Report::default() });
    };
    let started = Instant::now();
    let mut logs = read_logs(folder, &manifest, threads)?;
    let cut = judge(&mut manifest, &mut logs)?;
    let reading = started.elapsed();
    let newest = logs.iter().map(|(_, log)| log.last).max().unwrap_or(cut);
    let checkpointed = manifest.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.end);
    let shared = Shared::new(Limits::default(), newest.max(cut).max(checkpointed));
    let mut report = Report::default();
    report.torn.extend(logs.iter().filter_map(|(_, log)| log.torn.clone()));
    let started = Instant::now();
    let surveys = parallel::each(threads, &logs, |(_, log)| survey(log))?;
    let flush = surveys.iter().filter_map(|survey| survey.flush).max();
    report.dropped = surveys.iter().map(|survey| survey.dropped).sum();
    let surveying = started.elapsed();
    let flush_at = surveys.iter().filter_map(|survey| survey.flush_at).max();
    if let Some(checkpoint) = &manifest.checkpoint {
        let started = Instant::now();
        // What a later flush has removed is no part of the state; all after it is in the logs.
        if flush.is_none_or(|(timestamp, _)| timestamp <= checkpoint.begin) {
            report.entries = load(folder, &manifest, &shared, threads)?;
        }
        shared.restore_flush_at(checkpoint.flush_at);
        report.loading = started.elapsed();
    }
    if let Some((_, time)) = flush_at {
        shared.restore_flush_at(time);
    }
    let started = Instant::now();
    report.changes = apply(&shared, &logs, flush, threads)?;
    report.replaying = reading + surveying + started.elapsed();
    Ok(Recovered { shared, manifest, report })
}

/// Reads all logs, with the places of their generations in the manifest.
fn read_logs(
    folder: &Folder,
    manifest: &Manifest,
    threads: usize,
) -> Result<Vec<(usize, Log)>, Error> {
    let names = folder.names()?;
    let mut tasks = Vec::new();
    for (at, generation) in manifest.generations.iter().enumerate() {
        for (thread, &first) in generation.first.iter().enumerate() {
            let prefix = log_name(generation.number, thread, 0);
            let prefix = &prefix[..prefix.len() - 6];
            let segments = names.iter().filter_map(|name| name.strip_prefix(prefix)?.parse().ok());
            let mut segments: Vec<u64> = segments.filter(|&segment| segment >= first).collect();
            segments.sort_unstable();
            let expected = first..first + segments.len().max(1) as u64;
            for (index, expected) in expected.enumerate() {
                if segments.get(index) != Some(&expected) {
                    let name = log_name(generation.number, thread, expected);
                    return Err(Error::Missing(folder.path_of(&name)));
                }
            }
            tasks.push((at, thread, segments));
        }
    }
    parallel::each(threads, &tasks, |(at, thread, segments)| {
        let generation = &manifest.generations[*at];
        Ok((*at, read_log(folder, manifest, generation, *thread, segments)?))
    })
}

fn read_log(
    folder: &Folder,
    manifest: &Manifest,
    generation: &Generation,
    thread: usize,
    segments: &[u64],
) -> Result<Log, Error> {
    let mut log = Log {
        path: PathBuf::new(),
        journals: Vec::new(),
        cut: generation.cut,
        last: generation.start,
        durable: 0,
        torn: None,
    };
    for (index, &segment) in segments.iter().enumerate() {
        let name = log_name(generation.number, thread, segment);
        log.path = folder.path_of(&name);
        if generation.cut == 0 {
            // From here on it counts as stored.
            folder.sync_file(&name)?;
        }
        let journal = Journal::read(&log.path, manifest.seed(&name))?;
        if let Some(offset) = journal.torn() {
            log.torn = Some(log.path.clone());
            if index + 1 < segments.len() {
                // The next one was begun when this one was on disk.
                let what = "it is cut off, though it was complete on disk";
                let path = log.path.clone();
                return Err(::io::Error::Damaged { path, offset, what }.into());
            }
        }
        for chunk in journal.records() {
            let nonsense = |what| Error::Nonsense { path: log.path.clone(), what };
            let (mark, durable) = header(chunk).ok_or_else(|| nonsense("a chunk is too short"))?;
            let mut last = log.last;
            for item in items(chunk) {
                let item = item.map_err(|()| nonsense("a chunk's items make no sense"))?;
                if item.timestamp <= last || item.timestamp > redo::LARGEST_TIMESTAMP {
                    return Err(nonsense("its timestamps do not ascend"));
                }
                last = item.timestamp;
            }
            log.last = last.max(mark);
            log.durable = log.durable.max(durable);
        }
        log.journals.push(journal);
    }
    Ok(log)
}

/// Finds the cut-off of the last generation, and refuses logs that have lost what was on disk.
fn judge(manifest: &mut Manifest, logs: &mut [(usize, Log)]) -> Result<u64, Error> {
    let mut newest = 0;
    for at in 0..manifest.generations.len() {
        let of = |logs: &[(usize, Log)]| -> Vec<(PathBuf, u64, u64)> {
            let own = logs.iter().filter(|(of, _)| *of == at);
            own.map(|(_, log)| (log.path.clone(), log.last, log.durable)).collect()
        };
        let own = of(logs);
        let Some((path, least, _)) = own.iter().min_by_key(|(_, last, _)| *last).cloned() else {
            continue;
        };
        let known = own.iter().map(|&(.., durable)| durable).max().unwrap_or(0);
        let ended = manifest.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.end);
        // The checkpoint is of the last life, or older.
        let ended = if at + 1 == manifest.generations.len() { ended } else { 0 };
        let durable = known.max(manifest.generations[at].cut).max(ended);
        if least < durable {
            return Err(Error::Short { path, reaches: least, durable });
        }
        let generation = &mut manifest.generations[at];
        if generation.cut == 0 {
            generation.cut = least;
        }
        newest = generation.cut;
        let cut = generation.cut;
        logs.iter_mut().filter(|(of, _)| *of == at).for_each(|(_, log)| log.cut = cut);
    }
    Ok(newest)
}

/// Of an entry, which of so many threads has it.
fn share_of(entry: &Entry<'_>, shares: usize) -> usize {
    let (_, key) = entry.place();
    crc32c::crc32c(key) as usize % shares
}

/// Looks for what concerns all entries, and at whether all records make sense.
fn survey(log: &Log) -> Result<Survey, Error> {
    let mut survey = Survey { flush: None, flush_at: None, dropped: 0 };
    for item in log.items() {
        if item.timestamp > log.cut {
            survey.dropped += 1;
            continue;
        }
        for (index, change) in redo::changes(item.record).enumerate() {
            let order = (item.timestamp, index as u32);
            let what = "a record makes no sense";
            let nonsense = |_| Error::Nonsense { path: log.path.clone(), what };
            match change.map_err(nonsense)? {
                Change::Entry(_) => {}
                Change::Flush => survey.flush = Some(order),
                Change::FlushAt(time) => survey.flush_at = Some((order, time)),
            }
        }
    }
    Ok(survey)
}

/// The entries that the logs say something of, up to the cut-offs, in the order of timestamps.
fn in_order(logs: &[(usize, Log)]) -> impl Iterator<Item = (Order, Entry<'_>)> {
    let counted =
        logs.iter().map(|(_, log)| log.items().take_while(|item| item.timestamp <= log.cut));
    let mut runs: Vec<_> = counted.map(Iterator::peekable).collect();
    let mut next = BinaryHeap::new();
    for (run, items) in runs.iter_mut().enumerate() {
        next.extend(items.peek().map(|item| Reverse((item.timestamp, run))));
    }
    let records = std::iter::from_fn(move || {
        let mut least = next.peek_mut()?;
        let Reverse((_, run)) = *least;
        let item = runs[run].next().expect("it was seen");
        match runs[run].peek() {
            Some(after) => *least = Reverse((after.timestamp, run)),
            None => drop(PeekMut::pop(least)),
        }
        Some(item)
    });
    records.flat_map(|item| {
        let changes = redo::changes(item.record).zip(0..);
        changes.filter_map(move |(change, index)| match change {
            Ok(Change::Entry(entry)) => Some(((item.timestamp, index), entry)),
            _ => None,
        })
    })
}

/// Loads the checkpoint. Returns how many entries it has.
fn load(
    folder: &Folder,
    manifest: &Manifest,
    shared: &Arc<Shared>,
    threads: usize,
) -> Result<u64, Error> {
    let checkpoint = manifest.checkpoint.as_ref().expect("there is one");
    let parts: Vec<(usize, u64)> = checkpoint.parts.iter().copied().enumerate().collect();
    let loaded = parallel::each(threads, &parts, |&(part, records)| {
        let name = part_name(checkpoint.number, part);
        let path = folder.path_of(&name);
        if !path.exists() {
            return Err(Error::Missing(path));
        }
        let journal = Journal::read(&path, manifest.seed(&name))?;
        if journal.records().len() as u64 != records {
            let what = "it has not as many records as it had when it was complete";
            return Err(Error::Nonsense { path, what });
        }
        let mut store = shared.store();
        let mut entries = 0;
        for change in journal.records().flat_map(redo::changes) {
            let Ok(Change::Entry(entry)) = change else {
                return Err(Error::Nonsense { path, what: "an entry makes no sense" });
            };
            store.replay(&entry);
            entries += 1;
        }
        Ok(entries)
    })?;
    Ok(loaded.iter().sum())
}

/// Applies what comes after the last flush. Every thread goes through all logs, which is little
/// beside what it does with its own entries.
fn apply(
    shared: &Arc<Shared>,
    logs: &[(usize, Log)],
    flush: Option<Order>,
    threads: usize,
) -> Result<u64, Error> {
    let shares: Vec<usize> = (0..threads).collect();
    let applied = parallel::each(threads, &shares, |&share| {
        let (mut store, mut applied) = (shared.store(), 0);
        let mut batch = Vec::with_capacity(BATCH);
        for (order, entry) in in_order(logs) {
            if share_of(&entry, threads) != share || flush.is_some_and(|flush| order < flush) {
                continue;
            }
            batch.push(entry);
            applied += 1;
            if batch.len() == BATCH {
                store.replay_all(&batch);
                batch.clear();
            }
        }
        store.replay_all(&batch);
        Ok(applied)
    })?;
    Ok(applied.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Logs;
    use crate::writer::begin;
    use ::io::Syncing;

    fn request(words: &[&str]) -> Vec<u8> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let spec = kv::lookup(words[0]).expect("a command");
        let mut request = Vec::new();
        kv::request::push_command(&mut request, resp::Protocol::V2, spec, &words);
        request
    }

    /// Adds a log of one chunk: commands, each with a timestamp of its own, and a mark.
    fn write_log(folder: &Folder, manifest: &Manifest, at: (u64, usize), items: &[(u64, &str)]) {
        let start = manifest.generations.iter().find(|g| g.number == at.0).expect("named").start;
        let mut journal = begin(folder, manifest, (at.0, at.1, 1), start, 1 << 16).expect("begun");
        for &(timestamp, line) in items {
            let shared = Shared::new(Limits::default(), timestamp - 10);
            let logs = Logs::new(shared.clone(), 1, 0);
            let mut store = shared.store();
            // Something to delete.
            store.serve(1, &request(&["SET", "b", "0"]), &mut Vec::new(), &mut |_, _| {});
            let line: Vec<&str> = line.split(' ').collect();
            store.serve(1, &request(&line), &mut Vec::new(), &mut |shared, record| {
                shared.advance(timestamp - 1);
                logs.open(0).push(shared, record);
            });
            let work = logs.next_work(0, Duration::ZERO, 0);
            assert_eq!(work.mark, timestamp);
            journal.append(&work.chunks[0]).expect("appended");
        }
        journal.sync().expect("synced");
    }

    fn keys(folder: &Folder) -> (Vec<String>, Manifest) {
        let recovered = recover(folder, 2, 1).expect("it recovers");
        let mut reply = Vec::new();
        let request = request(&["KRANGE", "-", "+", "WITHVALUES"]);
        recovered.shared.store().serve(1, &request, &mut reply, &mut |_, _| {});
        let item = kv::reply::items(&reply).next().expect("an answer").to_vec();
        let resp::Value::Array(words) = resp::Value::parse(&item).expect("a reply").0 else {
            panic!("an array");
        };
        let text = |word: &resp::Value| String::from_utf8_lossy(word.as_bytes().unwrap()).into();
        (words.iter().map(text).collect(), recovered.manifest)
    }

    #[test]
    fn what_is_above_a_cut_off_is_dropped_and_stays_dropped() {
        let path = std::env::temp_dir().join(format!("store-cutoff-{}", std::process::id()));
        let folder = Folder::create(&path, Syncing::On).expect("a folder");
        let generation = |number, start| Generation { number, start, cut: 0, first: vec![1, 1] };
        let mut manifest = Manifest { store: 5, ..Manifest::default() };
        manifest.generations.push(generation(1, 10));
        // Of the second log nothing has arrived above 40: 45 and 50 may lack what came before.
        write_log(&folder, &manifest, (1, 0), &[(20, "SET a 1"), (30, "SET b 1"), (45, "SET a 2")]);
        write_log(&folder, &manifest, (1, 1), &[(25, "SET b 0"), (40, "SET c 1")]);
        manifest.store(&folder).expect("stored");
        let (first, mut manifest) = keys(&folder);
        assert_eq!(first, ["a", "1", "b", "1", "c", "1"]);
        assert_eq!(manifest.generations[0].cut, 40);
        manifest.generations.push(generation(2, 45));
        write_log(&folder, &manifest, (2, 0), &[(60, "DEL b"), (70, "SET d 1")]);
        write_log(&folder, &manifest, (2, 1), &[(80, "SET c 2")]);
        manifest.store(&folder).expect("stored");
        let (second, manifest) = keys(&folder);
        assert_eq!(second, ["a", "1", "c", "1", "d", "1"], "neither 45 nor 80");
        assert_eq!(manifest.generations[1].cut, 70);
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
