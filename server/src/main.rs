//! The lockstep program: RESP gateway, demo, serve, status, bench, chaos.

fn main() {}
