//! Frames between replicas: versions, checksums, limits.
