//! What the simulated fabric does to verbs.

/// Times are in ticks, whose length is the caller's affair; chances are in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The shortest time from posting to the first word.
    pub delay: u64,
    /// How much longer it takes, at most.
    pub spread: u64,
    /// The chance that a verb takes longer still,
    pub late: u64,
    /// by this much at most.
    pub late_by: u64,
    /// The chance that the words of a verb move at up to four different moments,
    pub tear: u64,
    /// which lie apart by this much at most.
    pub tear_by: u64,
    /// The chance that words that landed are not seen at once by their owner's processor,
    pub hidden: u64,
    /// but this much later at most.
    pub hidden_by: u64,
    /// The longest time from the last word to the completion.
    pub acknowledge: u64,
    /// The longest time that a change of permission takes.
    pub switch: u64,
    /// When a verb that should have completed is given up: [`crate::Status::Gone`] ([Mu] 5.1,
    /// "Large network delays").
    pub timeout: u64,
    /// The chance that a grant zeroes the words that its owner does not keep.
    pub forget: u64,
    /// The chance that words that a revocation should have stopped land nevertheless, as on
    /// soft-RoCE when only access flags change. Breaks the contract: what runs above must be seen
    /// to break by the checkers.
    pub late_after_revoke: u64,
    /// How much later they land, at most.
    pub late_after_revoke_by: u64,
    /// The writer's processor moves the words, as in shared memory, and not its card: a paused or
    /// killed process moves no more of them.
    pub by_processor: bool,
}

impl Default for Options {
    /// A quiet network, in nanoseconds.
    fn default() -> Options {
        Options {
            delay: 500,
            spread: 200,
            late: 0,
            late_by: 0,
            tear: 0,
            tear_by: 0,
            hidden: 0,
            hidden_by: 0,
            acknowledge: 500,
            switch: 2_000,
            timeout: 1_000_000,
            forget: 0,
            late_after_revoke: 0,
            late_after_revoke_by: 0,
            by_processor: false,
        }
    }
}

impl Options {
    /// Everything that the contract allows, often.
    pub fn rough() -> Options {
        Options {
            spread: 2_000,
            late: 50_000,
            late_by: 50_000,
            tear: 500_000,
            tear_by: 2_000,
            hidden: 300_000,
            hidden_by: 5_000,
            acknowledge: 2_000,
            switch: 100_000,
            forget: 500_000,
            ..Options::default()
        }
    }
}
