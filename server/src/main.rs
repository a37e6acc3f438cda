//! The `lockstep` program.

#![forbid(unsafe_code)]

mod bootstrap;
mod cli;
mod controller;
mod demo;
mod faces;
mod group;
mod link;
mod member;
mod memcached;
mod redis;
mod sequencer;
mod serve;
mod standalone;
mod supervise;

use std::process::ExitCode;

use clap::Parser;

use cli::{Action, Cli, Format, Study};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lockstep: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Cli::parse().command {
        Action::Serve(flags) => serve::serve(*flags),
        Action::Demo(flags) => demo::demo(&flags),
        Action::Bench(flags) => match flags.study {
            Some(Study::Lazy(options)) => bench::lazy::run(&options),
            Some(Study::Mu(options)) => bench::mu::run(&options),
            Some(Study::MuProcess { job }) => bench::mu::process(&job),
            Some(Study::Order(options)) => bench::order::run(&options),
            Some(Study::Index(options)) => bench::index::run(&options),
            Some(Study::Store(options)) => bench::store::run(&options),
            None => {
                let report = bench::load::run(&flags.load)?;
                bench::load::print(&report, flags.load.json);
                Ok(())
            }
        },
        Action::Chaos(options) => chaos(&options),
        Action::Bootstrap(flags) => bootstrap::bootstrap(&flags),
        Action::Controller(flags) => controller::controller(flags),
        Action::Sequencer(flags) => sequencer::sequencer(&flags),
        Action::Member(flags) => member::change(&flags),
        Action::Status(flags) => {
            let members = group::ask(&flags.host, flags.port)?;
            match flags.output {
                Format::Table => print!("{}", group::to_table(&members)),
                Format::Json => println!("{:#}", group::to_json(&members)),
            }
            Ok(())
        }
    }
}

/// A run in which the group has broken a promise fails.
fn chaos(options: &bench::chaos::ChaosOptions) -> anyhow::Result<()> {
    let report = bench::chaos::run(options)?;
    bench::chaos::print(&report, options.json);
    if report.losses.is_some() {
        anyhow::ensure!(report.passed(), "the loss is not what durability lazy allows");
        return Ok(());
    }
    anyhow::ensure!(report.lost_writes == 0, "acknowledged writes were lost");
    anyhow::ensure!(report.linearizable != Some(false), "the history is not linearizable");
    Ok(())
}
