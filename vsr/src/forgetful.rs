//! A replica that restarts in durability `lazy` may have forgotten operations that it acknowledged
//! from memory. Until it holds them again its votes are marked, and an election does not rest on
//! them (contracts: forgetful votes).
//!
//! It asks everybody. Once the primary of its own or a later view has answered, that primary knows
//! this life and counts no acknowledgement of a former one any more; so whatever a former life
//! acknowledged is in the log that the answer names, or was lost when that view was elected. Only a
//! primary's word will do: a backup may have less than the former life acknowledged. Every view in
//! which a former life acknowledged anything is on its disk.

use smr::{Now, View, Viewstamp};

use crate::message::{Message, Standing};
use crate::replica::{Out, Replica};

/// What this replica does to remember.
#[derive(Debug)]
pub(crate) struct Forgetful {
    pub(crate) retry_at: u64,
    attempt: u64,
    /// With this operation the log holds all that was acknowledged.
    target: Option<Viewstamp>,
}

impl Replica {
    /// The replica has restarted.
    pub(crate) fn forget(&mut self, now: Now) {
        let attempt = self.rng.next_u64();
        self.forgetful = Some(Forgetful { retry_at: now.micros, attempt, target: None });
    }

    pub(crate) fn forgetful_timeout(&mut self, now: Now, out: &mut Out) {
        let retry = self.config.timing.retry;
        let Some(forgetful) = &mut self.forgetful else { return };
        if now.micros < forgetful.retry_at {
            return;
        }
        forgetful.retry_at = now.micros + retry;
        let attempt = forgetful.attempt;
        self.broadcast(Message::Recovery { attempt }, out);
    }

    /// Somebody has answered a question of this life.
    pub(crate) fn on_reminder(
        &mut self,
        attempt: u64,
        view: View,
        last: Viewstamp,
        standing: Standing,
    ) {
        #[cfg(feature = "planted-bugs")]
        let standing = if self.bug(crate::Bug::RemindedByBackup) && standing == Standing::Backup {
            Standing::Primary
        } else {
            standing
        };
        let own = self.view;
        let Some(forgetful) = &mut self.forgetful else { return };
        if attempt != forgetful.attempt || standing != Standing::Primary || view < own {
            return;
        }
        if forgetful.target.is_none_or(|target| target.view < last.view) {
            forgetful.target = Some(last);
        }
        self.recall();
    }

    /// The log has grown: it may hold everything again.
    pub(crate) fn recall(&mut self) {
        let target = self.forgetful.as_ref().and_then(|forgetful| forgetful.target);
        if target.is_some_and(|target| self.log.contains(target) || self.log.base() > target) {
            self.forgetful = None;
        }
    }
}
