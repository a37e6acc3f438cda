//! The specifications below `docs/specs`, and what is checked of each.

/// A TLA+ module.
pub struct Module {
    /// Its name, and its file's.
    pub name: &'static str,
    /// Its configuration, but for the bounds, the defect and the invariants.
    pub configuration: &'static str,
    /// What must hold.
    pub invariants: &'static [&'static str],
    /// The runs of TLC.
    pub checks: &'static [Check],
}

/// One run of TLC.
pub struct Check {
    /// The defect, or "none".
    pub bug: &'static str,
    pub expected: Expected,
    /// How large a run may grow: the constants that say so.
    pub bounds: &'static str,
    /// Instead of the module's configuration.
    pub configuration: Option<&'static str>,
    /// Only with `--deep`.
    pub deep: bool,
}

#[derive(Clone, Copy)]
pub enum Expected {
    /// Every invariant holds.
    Holds,
    /// This invariant shows the harm.
    Caught(&'static str),
    /// This is no invariant: the case that it denies is reached.
    Reached(&'static str),
}

impl Expected {
    pub fn violation(self) -> Option<&'static str> {
        match self {
            Expected::Holds => None,
            Expected::Caught(name) | Expected::Reached(name) => Some(name),
        }
    }
}

const fn check(bug: &'static str, expected: Expected, bounds: &'static str) -> Check {
    Check { bug, expected, bounds, configuration: None, deep: false }
}

const fn holds(bounds: &'static str) -> Check {
    check("none", Expected::Holds, bounds)
}

const fn reached(name: &'static str, bounds: &'static str) -> Check {
    check("none", Expected::Reached(name), bounds)
}

const fn caught(bug: &'static str, name: &'static str, bounds: &'static str) -> Check {
    check(bug, Expected::Caught(name), bounds)
}

const fn among(configuration: &'static str, check: Check) -> Check {
    Check { configuration: Some(configuration), ..check }
}

const fn deep(check: Check) -> Check {
    Check { deep: true, ..check }
}

pub const MODULES: &[Module] = &[LAZY_VSR, NO_PAXOS];

const LAZY_VSR: Module = Module {
    name: "LazyVsr",
    configuration: "SYMMETRY Symmetry\nCONSTANTS r1 = r1 r2 = r2 r3 = r3\n\
        CONSTANTS Replicas = {r1, r2, r3} None = None\n",
    invariants: &[
        "Durable",
        "Tentative",
        "Agreement",
        "OnePrimary",
        "StartStored",
        "DurableIsCommitted",
        "LogsInOrder",
        "MarksAreTrue",
    ],
    checks: &[
        reached("NothingLost", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        reached("ForgetfulForEver", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        reached("NothingToRollBack", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        caught("AcceptByNumber", "Agreement", "MaxView = 3 MaxLen = 4 MaxCrashes = 0"),
        caught("AckUnstoredStart", "StartStored", "MaxView = 2 MaxLen = 2 MaxCrashes = 0"),
        caught("DpOfMinority", "Durable", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        caught("DpOfOldView", "DurableIsCommitted", "MaxView = 4 MaxLen = 3 MaxCrashes = 1"),
        caught("MarkIgnored", "Tentative", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        caught("RefusalIsSilence", "Tentative", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        caught("StaleAnswer", "Tentative", "MaxView = 2 MaxLen = 2 MaxCrashes = 2"),
        caught("TruncateFirst", "Tentative", "MaxView = 3 MaxLen = 3 MaxCrashes = 0"),
        caught("UnmarkByBackup", "Tentative", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        caught("ViewUnstored", "OnePrimary", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        caught("VoteInverted", "Tentative", "MaxView = 2 MaxLen = 2 MaxCrashes = 0"),
        caught("VoteUnstored", "Tentative", "MaxView = 2 MaxLen = 2 MaxCrashes = 1"),
        holds("MaxView = 2 MaxLen = 2 MaxCrashes = 3"),
        holds("MaxView = 3 MaxLen = 3 MaxCrashes = 1"),
        deep(caught("DpOfOldView", "Durable", "MaxView = 4 MaxLen = 3 MaxCrashes = 1")),
        // Looser than what is built, and harmless.
        Check { bug: "VoteLogUnstored", ..deep(holds("MaxView = 2 MaxLen = 3 MaxCrashes = 1")) },
        deep(holds("MaxView = 2 MaxLen = 3 MaxCrashes = 2")),
        deep(holds("MaxView = 3 MaxLen = 3 MaxCrashes = 2")),
        deep(holds("MaxView = 4 MaxLen = 3 MaxCrashes = 1")),
        deep(holds("MaxView = 3 MaxLen = 4 MaxCrashes = 1")),
    ],
};

// Of NoPaxos, how the members change: not at all, from one to another, one of two replaced, two of
// three removed, one of three removed.
const STAY: &str = "CONSTANTS N = 3 Members = {0,1,2} Targets = {} MaxChanges = 0\n";
const HANDED_OVER: &str = "CONSTANTS N = 2 Members = {0} Targets = {{1}} MaxChanges = 1\n";
const REPLACED: &str = "CONSTANTS N = 3 Members = {0,1} Targets = {{0,2}} MaxChanges = 1\n";
const TWO_REMOVED: &str = "CONSTANTS N = 3 Members = {0,1,2} Targets = {{0}} MaxChanges = 1\n";
const REMOVED: &str = "CONSTANTS N = 3 Members = {0,1,2} Targets = {{0,1}} MaxChanges = 1\n";

// Bounds of NoPaxos: the highest leader number, the sessions, the messages of each, the crashes.
const ONE_LEADER_MORE: &str =
    "MaxLeader = 1 MaxSession = 1 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";
const TWO_MESSAGES: &str =
    "MaxLeader = 1 MaxSession = 1 MaxMessage = 2 MaxCrashes = 0 Durability = \"memory\"";
const TWO_SESSIONS: &str =
    "MaxLeader = 1 MaxSession = 2 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";
const FORGETFUL: &str =
    "MaxLeader = 1 MaxSession = 1 MaxMessage = 1 MaxCrashes = 1 Durability = \"memory\"";
const RESTARTED: &str =
    "MaxLeader = 1 MaxSession = 1 MaxMessage = 1 MaxCrashes = 1 Durability = \"sync\"";
const ONE_LEADER: &str =
    "MaxLeader = 0 MaxSession = 2 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";
const ONE_LEADER_RESTARTED: &str =
    "MaxLeader = 0 MaxSession = 2 MaxMessage = 1 MaxCrashes = 1 Durability = \"sync\"";
const THREE_LEADERS: &str =
    "MaxLeader = 2 MaxSession = 1 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";
const FORGETFUL_WITH_TWO: &str =
    "MaxLeader = 1 MaxSession = 1 MaxMessage = 2 MaxCrashes = 1 Durability = \"memory\"";
const RESTARTED_WITH_TWO: &str =
    "MaxLeader = 1 MaxSession = 1 MaxMessage = 2 MaxCrashes = 1 Durability = \"sync\"";
const FORGETFUL_IN_TWO: &str =
    "MaxLeader = 1 MaxSession = 2 MaxMessage = 1 MaxCrashes = 1 Durability = \"memory\"";
const RESTARTED_IN_TWO: &str =
    "MaxLeader = 1 MaxSession = 2 MaxMessage = 1 MaxCrashes = 1 Durability = \"sync\"";

// A change of members takes three sessions; a fourth is for a sequencer that fails.
const ONE_LEADER_IN_THREE: &str =
    "MaxLeader = 0 MaxSession = 3 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";
const ONE_LEADER_IN_FOUR: &str =
    "MaxLeader = 0 MaxSession = 4 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";
const ONE_LEADER_FORGETFUL_IN_THREE: &str =
    "MaxLeader = 0 MaxSession = 3 MaxMessage = 1 MaxCrashes = 1 Durability = \"memory\"";
const ONE_LEADER_RESTARTED_IN_THREE: &str =
    "MaxLeader = 0 MaxSession = 3 MaxMessage = 1 MaxCrashes = 1 Durability = \"sync\"";
const THREE_SESSIONS: &str =
    "MaxLeader = 1 MaxSession = 3 MaxMessage = 1 MaxCrashes = 0 Durability = \"memory\"";

const NO_PAXOS: Module = Module {
    name: "NoPaxos",
    configuration: STAY,
    invariants: &[
        "Agreement",
        "ReplySurvives",
        "NoOpSurvives",
        "NotBoth",
        "SyncStable",
        "Comparable",
        "OneStart",
        "FormerHaveLeft",
        "LogsInOrder",
    ],
    checks: &[
        reached("NothingToUndo", ONE_LEADER_MORE),
        reached("NothingOverwritten", ONE_LEADER_MORE),
        reached("NobodyRecovers", FORGETFUL),
        reached("AlwaysComparable", TWO_SESSIONS),
        among(HANDED_OVER, reached("NoChangeEnds", ONE_LEADER_IN_THREE)),
        among(HANDED_OVER, caught("ClientCountsStrangers", "ReplySurvives", THREE_SESSIONS)),
        caught("ClientCountsTheDead", "ReplySurvives", FORGETFUL),
        caught("ClientForgetsTheLeader", "ReplySurvives", ONE_LEADER_MORE),
        among(TWO_REMOVED, caught("CountsAtOnce", "Comparable", TWO_SESSIONS)),
        among(HANDED_OVER, caught("CountsTheNewAlone", "ReplySurvives", THREE_SESSIONS)),
        among(HANDED_OVER, caught("LeaderCountsItself", "ReplySurvives", THREE_SESSIONS)),
        caught("LeaderNumberAlone", "Comparable", TWO_SESSIONS),
        caught("MergeAnyView", "SyncStable", TWO_SESSIONS),
        caught("MergePrefersRequests", "NoOpSurvives", ONE_LEADER_MORE),
        caught("NoOpWithoutQuorum", "NoOpSurvives", ONE_LEADER_MORE),
        caught("RecoverAtStart", "ReplySurvives", FORGETFUL),
        caught("RecoverWithoutQuorum", "ReplySurvives", FORGETFUL),
        caught("ReplyBeyondGap", "ReplySurvives", TWO_MESSAGES),
        caught("RestartVotes", "OneStart", RESTARTED),
        among(HANDED_OVER, caught("SettlesAtOnce", "ReplySurvives", THREE_SESSIONS)),
        among(HANDED_OVER, caught("SettlesUnasked", "FormerHaveLeft", THREE_SESSIONS)),
        caught("SyncIgnoresNoOps", "SyncStable", ONE_LEADER_MORE),
        caught("ViewUnstored", "ReplySurvives", RESTARTED),
        holds(ONE_LEADER),
        holds(THREE_LEADERS),
        holds(FORGETFUL),
        holds(RESTARTED),
        among(HANDED_OVER, holds(ONE_LEADER_FORGETFUL_IN_THREE)),
        among(HANDED_OVER, holds(ONE_LEADER_RESTARTED_IN_THREE)),
        // Looser than what is built, and harmless: who voted has its view on disk.
        Check { bug: "VotesOfTheDead", ..deep(holds(FORGETFUL)) },
        deep(holds(ONE_LEADER_RESTARTED)),
        deep(among(HANDED_OVER, holds(ONE_LEADER_IN_FOUR))),
        deep(among(HANDED_OVER, holds(THREE_SESSIONS))),
        deep(among(REPLACED, holds(ONE_LEADER_IN_THREE))),
        deep(among(REMOVED, holds(ONE_LEADER_IN_THREE))),
        deep(holds(TWO_MESSAGES)),
        deep(holds(TWO_SESSIONS)),
        deep(holds(FORGETFUL_WITH_TWO)),
        deep(holds(RESTARTED_WITH_TWO)),
        deep(holds(FORGETFUL_IN_TWO)),
        deep(holds(RESTARTED_IN_TWO)),
    ],
};
