//! The file `manifest`: which files make up the store. It is replaced as a whole.
//!
//! ```text
//! magic `LSMF`, version u32, store u64
//! count u32, of each generation: number u64, start u64, cut u64 (0: not known yet),
//!            count u32, of each log: its first segment u64
//! checkpoint u8; if 1: number u64, begin u64, end u64, flush_at u64,
//!            count u32, of each part: its records u64
//! crc32c u32 of all before
//! ```
//!
//! A generation is a life of the server. Its logs are `log-GENERATION-THREAD-SEGMENT`; the parts of
//! a checkpoint are `checkpoint-NUMBER-PART`. Files that the manifest does not name are remains.

use std::io::ErrorKind;

use ::io::Folder;

use crate::Error;

const FILE: &str = "manifest";
const MAGIC: [u8; 4] = *b"LSMF";
const VERSION: u32 = 1;

/// One life of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Generation {
    pub number: u64,
    /// Its timestamps are above this one.
    pub start: u64,
    /// Its records above this timestamp do not count; 0 while that is not known.
    pub cut: u64,
    /// Of each log, the first segment that is kept.
    pub first: Vec<u64>,
}

/// A complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub number: u64,
    /// Everything up to this timestamp is in it.
    pub begin: u64,
    /// Nothing above this one is.
    pub end: u64,
    /// When everything is to be removed, in milliseconds since 1970; 0 for never.
    pub flush_at: u64,
    /// The records of each part.
    pub parts: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Tells stores apart.
    pub store: u64,
    /// Oldest first; the last one is the present, or the one before a start.
    pub generations: Vec<Generation>,
    pub checkpoint: Option<Checkpoint>,
}

pub(crate) fn log_name(generation: u64, thread: usize, segment: u64) -> String {
    format!("log-{generation:06}-{thread:03}-{segment:06}")
}

pub(crate) fn part_name(checkpoint: u64, part: usize) -> String {
    format!("checkpoint-{checkpoint:06}-{part:03}")
}

/// A file's name in numbers: its kind, and what stands behind it.
fn numbers(name: &str) -> Option<(&str, Vec<u64>)> {
    let mut words = name.split('-');
    let kind = words.next().filter(|kind| matches!(*kind, "log" | "checkpoint"))?;
    let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    Some((kind, numbers?))
}

/// Whether a name is of this store's files, the manifest left out.
pub(crate) fn is_own(name: &str) -> bool {
    numbers(name).is_some() || name.ends_with(".tmp")
}

impl Manifest {
    /// What the checksums of a file start from.
    pub fn seed(&self, name: &str) -> u64 {
        // FNV-1a: the names of one store differ, and so do the stores.
        name.bytes().fold(self.store ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Whether a file belongs to the store.
    pub fn names(&self, name: &str) -> bool {
        match numbers(name) {
            Some(("log", at)) => match at[..] {
                [generation, thread, segment] => self.generations.iter().any(|known| {
                    let first = known.first.get(thread as usize);
                    known.number == generation && first.is_some_and(|&first| segment >= first)
                }),
                _ => false,
            },
            Some((_, at)) => match (&self.checkpoint, &at[..]) {
                (Some(known), &[number, part]) => {
                    known.number == number && (part as usize) < known.parts.len()
                }
                _ => false,
            },
            None => false,
        }
    }

    /// Removes the store's files that it does not name.
    pub fn sweep(&self, folder: &Folder) -> Result<(), Error> {
        let names = folder.names()?;
        for name in names.iter().filter(|name| is_own(name) && !self.names(name)) {
            folder.remove(name)?;
        }
        folder.sync()?;
        Ok(())
    }

    /// Puts it in the place of the one on disk.
    pub fn store(&self, folder: &Folder) -> Result<(), Error> {
        folder.replace(FILE, &self.encode())?;
        Ok(())
    }

    /// The one on disk, if there is one.
    pub fn load(folder: &Folder) -> Result<Option<Manifest>, Error> {
        let path = folder.path_of(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::os("read", &path.display().to_string(), e)),
        };
        match decode(&bytes) {
            Some(manifest) => Ok(Some(manifest)),
            None if bytes.len() >= 8 && bytes[..4] == MAGIC && bytes[4..8] != [1, 0, 0, 0] => {
                let found = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
                Err(::io::Error::Version { path, found }.into())
            }
            None => Err(Error::Nonsense { path, what: "its checksum is wrong" }),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.store.to_le_bytes());
        out.extend_from_slice(&(self.generations.len() as u32).to_le_bytes());
        for generation in &self.generations {
            for number in [generation.number, generation.start, generation.cut] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            push_list(&mut out, &generation.first);
        }
        out.push(u8::from(self.checkpoint.is_some()));
        if let Some(checkpoint) = &self.checkpoint {
            let Checkpoint { number, begin, end, flush_at, parts } = checkpoint;
            for number in [number, begin, end, flush_at] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            push_list(&mut out, parts);
        }
        let checksum = crc32c::crc32c(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }
}

fn push_list(out: &mut Vec<u8>, list: &[u64]) {
    out.extend_from_slice(&(list.len() as u32).to_le_bytes());
    list.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn list(&mut self) -> Option<Vec<u64>> {
        (0..self.u32()?).map(|_| self.u64()).collect()
    }
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let (rest, checksum) = bytes.split_last_chunk::<4>()?;
    if crc32c::crc32c(rest) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut from = Reader(rest);
    if from.array()? != MAGIC || from.u32()? != VERSION {
        return None;
    }
    let store = from.u64()?;
    let mut generations = Vec::new();
    for _ in 0..from.u32()? {
        let (number, start, cut) = (from.u64()?, from.u64()?, from.u64()?);
        generations.push(Generation { number, start, cut, first: from.list()? });
    }
    let checkpoint = match from.array()? {
        [0] => None,
        _ => {
            let (number, begin) = (from.u64()?, from.u64()?);
            let (end, flush_at) = (from.u64()?, from.u64()?);
            Some(Checkpoint { number, begin, end, flush_at, parts: from.list()? })
        }
    };
    from.0.is_empty().then_some(Manifest { store, generations, checkpoint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_and_a_flipped_bit_is_noticed() {
        let generation = Generation { number: 3, start: 70, cut: 90, first: vec![1, 4] };
        let checkpoint =
            Checkpoint { number: 2, begin: 50, end: 60, flush_at: 0, parts: vec![7, 0] };
        let manifest =
            Manifest { store: 99, generations: vec![generation], checkpoint: Some(checkpoint) };
        let bytes = manifest.encode();
        assert_eq!(decode(&bytes), Some(manifest.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        assert!(manifest.names(&log_name(3, 1, 4)) && manifest.names(&part_name(2, 1)));
        assert!(!manifest.names(&log_name(3, 1, 3)) && !manifest.names(&log_name(2, 0, 9)));
        assert!(!manifest.names(&part_name(2, 2)) && !manifest.names(&part_name(1, 0)));
        assert!(is_own("manifest.tmp") && !is_own("manifest") && !is_own("lock"));
    }
}
