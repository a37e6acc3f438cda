//! The ordered key-value service: Redis commands on Masstree, deterministic and undoable.
