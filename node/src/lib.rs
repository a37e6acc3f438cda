//! Runs one replica: event loop, threads, clock.
