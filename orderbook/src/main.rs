//! The `orderbook` program: a replica of the exchange, and what it takes to try and measure it.

#![forbid(unsafe_code)]

mod client;
mod measure;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use orderbook::Engine;
use orderbook::feed::{Feed, Shape};
use orderbook::tape::Tape;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A replicated order-matching engine.
#[derive(Parser)]
#[command(name = "orderbook", version, about)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run one replica
    Serve(serve::Serve),
    /// Write a file of commands like an exchange's
    Feed(FeedFlags),
    /// Execute a file of commands, here or on a replica, and print digests of state and answers
    Replay(Replay),
    /// Measure the engine alone
    Bench(Bench),
    /// Measure a replica
    Load(client::Load),
}

#[derive(Args)]
struct ShapeFlags {
    /// Where the random choices start
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many symbols; the n-th has 1/n of the traffic of the first
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=4096))]
    symbols: u16,
    /// About how many orders are in the book of a busy symbol
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// How many commands
    #[arg(long, default_value_t = 1_000_000)]
    count: usize,
}

impl ShapeFlags {
    fn feed(&self) -> Feed {
        Feed::new(Shape { seed: self.seed, symbols: self.symbols, depth: self.depth })
    }

    fn record(&self) -> Tape {
        Tape::record(self.feed().take(self.count))
    }
}

#[derive(Args)]
struct FeedFlags {
    #[command(flatten)]
    shape: ShapeFlags,
    /// The file to write
    file: PathBuf,
}

#[derive(Args)]
struct Replay {
    /// The file, as `feed` writes it
    file: PathBuf,
    /// Commands per request to the engine
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// A replica to send them to, whose group must be empty; its answers must be the engine's
    #[arg(long)]
    address: Option<String>,
}

#[derive(Args)]
struct Bench {
    #[command(flatten)]
    shape: ShapeFlags,
}

fn main() -> ExitCode {
    match run(Cli::parse().action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("orderbook: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(action: Action) -> Result<()> {
    match action {
        Action::Serve(flags) => serve::serve(flags),
        Action::Feed(flags) => {
            let mut feed = flags.shape.feed();
            let tape = Tape::record(feed.by_ref().take(flags.shape.count));
            let file = &flags.file;
            tape.save(file).with_context(|| format!("cannot write {}", file.display()))?;
            let orders = feed.engine().orders();
            println!("state {:016x}, {orders} orders in the books", feed.engine().digest());
            Ok(())
        }
        Action::Replay(flags) => replay(&flags),
        Action::Bench(flags) => measure::bench(&flags.shape.record()),
        Action::Load(flags) => client::load(&flags),
    }
}

fn replay(flags: &Replay) -> Result<()> {
    let file = &flags.file;
    let tape = Tape::load(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut engine = Engine::default();
    let answers = tape.play(&mut engine, flags.batch as usize);
    let state = engine.digest();
    println!("engine: state {state:016x}, answers {:016x}", answers.0);
    if let Some(address) = &flags.address {
        let (found, heard) = client::replay(address, &tape)?;
        println!("replica: state {found:016x}, answers {:016x}", heard.0);
        ensure!((found, heard) == (state, answers), "the replica's state or answers differ");
    }
    Ok(())
}
