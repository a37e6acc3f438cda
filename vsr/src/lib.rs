//! Lazy Viewstamped Replication as a deterministic state machine.
