//! Deliberate defects, each of which a checker must catch. Without the feature `planted-bugs` none
//! can be chosen.

/// A deliberate defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The client counts replies of former lives.
    ClientCountsTheDead,
    /// A replica counts votes and promises of former lives.
    CountsTheDead,
    /// The client does without the leader's reply.
    ClientForgetsTheLeader,
    /// A restarted replica takes any START-VIEW for its recovery.
    RecoverWithoutQuorum,
    /// A leader passes a gap without waiting for f others.
    NoOpWithoutQuorum,
    /// Where one log has a NO-OP and another a request, the request wins.
    MergePrefersRequests,
    /// Logs of all views are merged, not those of the latest one alone.
    MergeAnyView,
    /// A replica replies to what it has beyond an open gap.
    ReplyBeyondGap,
    /// A synchronised replica keeps requests where the leader has a NO-OP.
    SyncIgnoresNoOps,
    /// What replaces a slot takes all slots after it along.
    SpliceForgets,
    /// A new session goes on at the old one's number.
    SessionKeepsPosition,
    /// A follower executes what it has replied to, synchronised or not.
    ExecuteBeyondSync,
    /// A view's number is adopted by comparing its leader number alone.
    LeaderNumberAlone,
    /// In `sync`, replies do not wait for the disk.
    ReplyBeforeStored,
    /// In `lazy`, a request is executed whatever log its client has seen.
    ExpectsAnyView,
    /// In `lazy`, nothing waits until a NO-OP is on disk.
    NoOpUnstored,
    /// The client that was told of a loss does not send again what was lost.
    ReplaysNothing,
    /// Nothing bounds the bytes of what may still change.
    TakesEverything,
    /// A restarted replica takes nothing of its log for stable but its checkpoint.
    ForgetsTheStable,
    /// While members change, a majority of the new ones is enough.
    CountsTheNewAlone,
    /// A replica that is no member counts.
    CountsStrangers,
    /// The change of members is taken for done as soon as its view has started.
    SettlesAtOnce,
    /// The vote for a view leaves before the view is on disk.
    VoteBeforeStored,
    /// The leader answers at once what was to be answered when it is durable.
    AnswersBeforeDurable,
    /// A view is given up before it is on disk.
    SuspectsBeforeStored,
}
