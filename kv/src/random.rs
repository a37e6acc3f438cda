//! Random draws from a seed, a random entry of a tree, and RANDOMKEY.

use std::ops::Bound;

use masstree::{Guard, Masstree};
use resp::write;

use crate::call::ReadCall;
use crate::error::Outcome;
use crate::store::{Space, Store};
use crate::value::Value;

/// Scatters the bits of a number (the finalizer of SplitMix64).
pub(crate) fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of numbers that follows from a seed.
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(mix(self.0)) * bound as u128) >> 64) as usize
    }
}

/// The first entry from `start` on that has the prefix.
fn first(
    tree: &Masstree<Value>,
    prefix: &[u8],
    start: &[u8],
    guard: &Guard,
) -> Option<(Vec<u8>, Value)> {
    let mut found = None;
    tree.scan(Bound::Included(start), guard, |key, value| {
        if key.starts_with(prefix) {
            found = Some((key.to_vec(), value.clone()));
        }
        false
    });
    found
}

/// The last key that has the prefix.
fn last(tree: &Masstree<Value>, prefix: &[u8], guard: &Guard) -> Option<Vec<u8>> {
    let after = successor(prefix);
    let upper = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut found = None;
    tree.scan_reverse(upper, guard, |key, _| {
        if key.starts_with(prefix) {
            found = Some(key.to_vec());
        }
        false
    });
    found
}

/// The first string above all that have the prefix; `None` if there is none.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut after = prefix[..=kept].to_vec();
    after[kept] += 1;
    Some(after)
}

/// A random entry among those that have the prefix. Wherever keys part, all branches are equally
/// likely, so that keys with few neighbours come more often than others.
pub(crate) fn sample(
    tree: &Masstree<Value>,
    prefix: &[u8],
    draws: &mut Draws,
    guard: &Guard,
) -> Option<(Vec<u8>, Value)> {
    let mut prefix = prefix.to_vec();
    loop {
        let (low, value) = first(tree, &prefix, &prefix, guard)?;
        let high = last(tree, &prefix, guard)?;
        if low == high {
            return Some((low, value));
        }
        let common = low.iter().zip(&high).take_while(|(a, b)| a == b).count();
        prefix = low[..common].to_vec();
        let ends_here = low.len() == common;
        let mut branches = Vec::new();
        let mut next = Some(0);
        while let Some(byte) = next {
            prefix.push(byte);
            let found = first(tree, &prefix[..common], &prefix, guard);
            prefix.pop();
            let Some((key, _)) = found else { break };
            // Only the entry that ends here has no byte, and it is below every start but that of
            // the first search.
            let byte = key[common];
            branches.push(byte);
            next = byte.checked_add(1);
        }
        let chosen = draws.below(branches.len() + usize::from(ends_here));
        match branches.get(chosen) {
            Some(&byte) => prefix.push(byte),
            None => return Some((low, value)),
        }
    }
}

/// A field, member or index, and its value.
pub(crate) type Entry = (Vec<u8>, Value);

/// Of collections up to this many entries all are looked at, so that each is equally likely.
const FEW: u64 = 1024;

/// The entries of a collection, to be drawn from.
pub(crate) struct Pool<'a> {
    pub store: &'a Store,
    pub guard: &'a Guard,
    pub seed: u64,
    pub id: u64,
    pub count: u64,
}

impl Pool<'_> {
    fn all(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        self.store.scan_fields(self.id, b"", self.guard, |entry, value| {
            entries.push((entry.to_vec(), value.clone()));
            true
        });
        entries
    }

    /// That many entries, or all, each at most once.
    pub(crate) fn distinct(&self, wanted: usize) -> Vec<Entry> {
        if wanted == 0 {
            return Vec::new();
        }
        let mut draws = Draws::new(self.seed);
        let mut entries = self.all();
        if wanted < entries.len() {
            for at in 0..wanted {
                let other = at + draws.below(entries.len() - at);
                entries.swap(at, other);
            }
            entries.truncate(wanted);
        }
        entries
    }

    /// That many entries, drawn each time from all.
    pub(crate) fn repeated(&self, wanted: usize) -> Vec<Entry> {
        let mut draws = Draws::new(self.seed);
        if self.count <= FEW {
            let entries = self.all();
            if entries.is_empty() {
                return entries;
            }
            return (0..wanted).map(|_| entries[draws.below(entries.len())].clone()).collect();
        }
        let tree = self.store.trees.of(Space::Fields);
        let prefix = self.id.to_be_bytes();
        let draw = || sample(tree, &prefix, &mut draws, self.guard);
        let strip = |(key, value): Entry| (key[prefix.len()..].to_vec(), value);
        std::iter::repeat_with(draw).take(wanted).flatten().map(strip).collect()
    }
}

/// `RANDOMKEY`
pub(crate) fn randomkey(call: &mut ReadCall<'_>, _args: &[&[u8]]) -> Outcome {
    const ATTEMPTS: usize = 100;
    let (tree, guard) = (call.store.trees.of(Space::Keys), call.guard);
    let mut draws = Draws::new(call.seed);
    for _ in 0..ATTEMPTS {
        let Some((key, value)) = sample(tree, b"", &mut draws, guard) else { break };
        if call.is_live(&key, &value) {
            write::bulk(call.reply, &key);
            return Ok(());
        }
        if call.is_void() {
            break;
        }
    }
    // Nearly all keys are expired: any that is not will do.
    let mut found = None;
    tree.scan(Bound::Unbounded, guard, |key, value| {
        if call.is_live(key, value) {
            found = Some(key.to_vec());
        }
        found.is_none() && !call.is_void()
    });
    match found {
        Some(key) => write::bulk(call.reply, &key),
        None => write::null(call.reply, call.protocol),
    }
    Ok(())
}
