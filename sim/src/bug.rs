//! Planted defects: each must be caught by a checker within a stated number of seeds.

/// A defect, of the environment or of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The disk forgets the view of every batch.
    ViewDropped,
    /// The disk answers before the batch is durable.
    StoredEarly,
    /// After a crash, a torn entry is taken for a whole one.
    TornEntryAccepted,
    /// A checkpoint comes back without its client table.
    TableLostOnRestore,
    /// A restarted replica has its old incarnation.
    IncarnationReused,
    /// In `memory`, a restarted replica takes its empty disk for the truth.
    ForgottenTrusted,
    /// A log with a corrupt record is said to be intact.
    CorruptionIgnored,
    /// The service does not undo.
    UndoForgotten,
    /// One of the protocol's own.
    #[cfg(feature = "planted-bugs")]
    Vsr(vsr::Bug),
}

/// The environment's defects.
const ENVIRONMENT: [Bug; 8] = [
    Bug::ViewDropped,
    Bug::StoredEarly,
    Bug::TornEntryAccepted,
    Bug::TableLostOnRestore,
    Bug::IncarnationReused,
    Bug::ForgottenTrusted,
    Bug::CorruptionIgnored,
    Bug::UndoForgotten,
];

#[cfg(feature = "planted-bugs")]
const VSR: [vsr::Bug; 19] = [
    vsr::Bug::ViewNotPersisted,
    vsr::Bug::VoteWhileRecovering,
    vsr::Bug::TruncateBeforeState,
    vsr::Bug::ReplyBeforeStored,
    vsr::Bug::AckBeforeStored,
    vsr::Bug::AcceptByNumberOnly,
    vsr::Bug::VoteInverted,
    vsr::Bug::CommitOnMinority,
    vsr::Bug::ReadWithoutQuorum,
    vsr::Bug::IncarnationIgnored,
    vsr::Bug::CountSelfBeforeStored,
    vsr::Bug::DurableOnMinority,
    vsr::Bug::UndoDroppedEarly,
    vsr::Bug::ForgetfulVoteUnmarked,
    vsr::Bug::RemindedByBackup,
    vsr::Bug::AckBeforeViewStored,
    vsr::Bug::TruncateThenAppend,
    vsr::Bug::CoverageByNumber,
    vsr::Bug::TentativeDroppedOnRestart,
];

impl Bug {
    /// Every defect that this build can show.
    pub fn all() -> Vec<Bug> {
        let all = ENVIRONMENT.to_vec();
        #[cfg(feature = "planted-bugs")]
        let all = all.into_iter().chain(VSR.map(Bug::Vsr)).collect();
        all
    }

    /// The name by which it is chosen.
    pub fn name(self) -> String {
        match self {
            #[cfg(feature = "planted-bugs")]
            Bug::Vsr(bug) => format!("{bug:?}"),
            bug => format!("{bug:?}"),
        }
    }

    /// The defect of this name.
    pub fn named(name: &str) -> Option<Bug> {
        Bug::all().into_iter().find(|bug| bug.name() == name)
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn of_vsr(self) -> Option<vsr::Bug> {
        match self {
            Bug::Vsr(bug) => Some(bug),
            _ => None,
        }
    }
}
