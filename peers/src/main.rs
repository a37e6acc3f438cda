//! The `masstree` crate of crates.io, played as a contestant for `lockstep bench index`.
//!
//! It stands outside the workspace because two crates of one name in one workspace make
//! `cargo test -p masstree` ambiguous. Build it with `cargo build --release` in this directory, and
//! hand it to the study: `--with masstree-0.9=peers/target/release/lockstep-peers`.

use anyhow::Context;
use clap::Parser;
use indexbench::contestants::{Index, Session};
use indexbench::keys::Form;
use indexbench::life::Work;
use indexbench::study::Case;
use published::{MassTree, RangeBound};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Plays the published crate for a study.
#[derive(Parser)]
struct Options {
    /// The life to live, as JSON
    #[arg(long)]
    play: String,
}

struct Published(MassTree<u64>);

struct PublishedSession<'a>(&'a MassTree<u64>, seize::LocalGuard<'a>);

impl Index for Published {
    type Session<'a> = PublishedSession<'a>;

    fn new() -> Self {
        Published(MassTree::new())
    }

    fn session(&self) -> PublishedSession<'_> {
        PublishedSession(&self.0, self.0.guard())
    }
}

impl Session for PublishedSession<'_> {
    fn put(&self, key: &[u8], value: u64) {
        self.0.insert_with_guard(key, value, &self.1);
    }

    fn get(&self, key: &[u8]) -> Option<u64> {
        self.0.get_with_guard(key, &self.1)
    }

    fn remove(&self, key: &[u8]) -> Option<bool> {
        let removed = self.0.remove_with_guard(key, &self.1);
        Some(removed.expect("nobody else removes this key").is_some())
    }

    fn scan(&self, start: &[u8], n: usize) -> usize {
        let mut seen = 0;
        let visit = |key: &[u8], value: u64| {
            std::hint::black_box((key, value));
            seen += 1;
            seen < n
        };
        let from = RangeBound::Included(start);
        self.0.scan_intra_leaf_batch(from, RangeBound::Unbounded, visit, &self.1);
        seen
    }

    fn scan_reverse(&self, start: &[u8], n: usize) -> Option<usize> {
        let mut seen = 0;
        let visit = |key: &[u8], value: u64| {
            std::hint::black_box((key, value));
            seen += 1;
            seen < n
        };
        let from = RangeBound::Included(start);
        self.0.scan_rev_batch(RangeBound::Unbounded, from, visit, &self.1);
        Some(seen)
    }

    fn renew(&mut self) {
        self.1 = self.0.guard();
    }
}

fn main() -> anyhow::Result<()> {
    let mut case: Case =
        serde_json::from_str(&Options::parse().play).context("this is no life")?;
    // Its scans of keys that share a prefix take time in proportion to the number of keys, and do
    // not end with millions.
    let scans = [Work::Scan10, Work::Scan100, Work::ReverseScan10, Work::ReverseScan100];
    if matches!(case.life.form, Form::Prefixed(_)) {
        case.life.works.retain(|work| !scans.contains(work));
    }
    println!("{}", serde_json::to_string(&case.play_with::<Published>()?)?);
    Ok(())
}
