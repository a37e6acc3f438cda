//! Network, disk, clock and process faults from one seed, and the checkers.
