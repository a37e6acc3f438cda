//! The project's own tasks: tidy, sim, powercut, compare, redis-suite, clients, spec, verbs, xdp,
//! p4.

#![forbid(unsafe_code)]

mod clients;
mod compare;
mod debian;
mod p4;
mod powercut;
mod redis_suite;
mod servers;
mod sim;
mod spec;
mod tidy;
mod verbs;
mod xdp;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "The project's own tasks")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run the simulator: one seed with its story, or many with a summary.
    Sim(sim::Arguments),
    /// Cut the power of a group on a fault disk, again and again, under checked load.
    Powercut(powercut::Arguments),
    /// Check the rules of style and layering that neither rustfmt nor clippy knows.
    Tidy,
    /// Measure ours beside Redis, Valkey, etcd and ZooKeeper, as far as they are there.
    Compare(compare::Arguments),
    /// Run Redis's own tests against a demo group, or any RESP server.
    RedisSuite(redis_suite::Arguments),
    /// Run stock Redis libraries against a demo group, or any RESP server.
    Clients(clients::Arguments),
    /// Check the TLA+ specifications of Lazy VSR and NOPaxos with TLC: planted defects are caught.
    Spec(spec::Arguments),
    /// Run fabric's tests, and Mu, over RDMA verbs, by soft-RoCE in an emulated machine. Installs
    /// the Debian packages that it needs if it is run as root.
    Verbs(verbs::Arguments),
    /// Run the sequencers' tests against the XDP sequencer, in namespaces of this machine, and
    /// measure what it adds to multicast. Installs the Debian packages that it needs; for root.
    Xdp(xdp::Arguments),
    /// Run the sequencers' tests against the P4 sequencer on bmv2's switch, in namespaces of this
    /// machine, where the P4 tools are; for root.
    P4(p4::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Sim(arguments) => sim::run(&arguments),
        Task::Powercut(arguments) => powercut::run(&arguments),
        Task::Tidy => tidy::run(),
        Task::Compare(arguments) => compare::run(&arguments),
        Task::RedisSuite(arguments) => redis_suite::run(&arguments),
        Task::Clients(arguments) => clients::run(&arguments),
        Task::Spec(arguments) => spec::run(&arguments),
        Task::Verbs(arguments) => verbs::run(&arguments),
        Task::Xdp(arguments) => xdp::run(&arguments),
        Task::P4(arguments) => p4::run(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
