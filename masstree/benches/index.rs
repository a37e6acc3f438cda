//! The tree beside other ordered maps: `cargo bench -p masstree -- --help`.
//!
//! `cargo bench -p masstree` takes a quick look. The real thing has 10 million keys and takes its
//! time: the README says how.

use clap::Parser;

/// As recommended by most of the contestants, and what the server runs with.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Ordered maps, compared.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    study: indexbench::study::StudyOptions,
    /// Cargo says this to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    indexbench::study::run(&Options::parse().study, &[]).map(drop)
}
