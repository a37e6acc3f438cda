//! The `lockstep` program.

#![forbid(unsafe_code)]

mod cli;
mod redis;
mod serve;

use clap::Parser;

use cli::{Action, Cli};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Action::Serve(flags) => serve::serve(flags),
        Action::Demo(_) | Action::Status(_) | Action::Bootstrap(_) => todo!(),
    }
}
