//! The project's own tasks: tidy, sim, compare, redis-suite.

fn main() {}
