//! Files: the segmented log, checkpoints, identity.
