//! What the replicas must agree on, and what may be lost, by whose fault.

use std::collections::{BTreeMap, BTreeSet};

use smr::{Durability, OpNumber, Viewstamp};

use super::clients::Clients;

#[derive(Default)]
pub struct Ledger {
    /// By operation: what every replica that executed it must agree on.
    decided: BTreeMap<OpNumber, (Viewstamp, u64)>,
    /// What was in there and is lost (`lazy`).
    lost: BTreeSet<Viewstamp>,
    /// When more than f members were last forgetful or out of reach, counted together.
    pub short_at: Option<u64>,
    /// How often what was decided was lost.
    pub losses: u64,
}

impl Ledger {
    /// A replica has executed this, and its state is that (A.7).
    pub fn executed(&mut self, durability: Durability, at: Viewstamp, state: u64) {
        let known = *self.decided.entry(at.op).or_insert((at, state));
        if known == (at, state) || self.lost.contains(&at) {
            return;
        }
        let is_loss = durability == Durability::Lazy && known.0 != at;
        assert!(
            is_loss,
            "two values were decided for one slot (A.7): {known:?}, {:?}",
            (at, state)
        );
        if at.view < known.0.view {
            self.lost.insert(at); // only now seen, of a log that was lost before
            return;
        }
        assert!(self.short_at.is_some(), "a loss without a reason: {known:?}, {at:?}");
        self.losses += 1;
        let gone = self.decided.split_off(&at.op);
        self.lost.extend(gone.into_values().map(|(viewstamp, _)| viewstamp));
        self.decided.insert(at.op, (at, state));
    }

    pub fn last(&self) -> OpNumber {
        self.decided.last_key_value().map_or(OpNumber(0), |(&op, _)| op)
    }

    /// What was acknowledged is there in the end, as the durability promises.
    pub fn judge(
        &self,
        durability: Durability,
        clients: &Clients,
        is_kept: impl Fn(Viewstamp) -> bool,
        is_written: impl Fn(u64) -> bool,
    ) -> u64 {
        let mut lost = 0;
        for told in &clients.told {
            let Some(value) = told.value else { continue };
            assert_eq!(
                is_kept(told.position),
                is_written(value),
                "a place and its value: {told:?}"
            );
            if is_kept(told.position) {
                continue;
            }
            lost += 1;
            assert_eq!(durability, Durability::Lazy, "acknowledged and gone: {told:?}");
            assert!(!told.durable, "acknowledged as durable and gone: {told:?}");
            // An answer takes up to so long.
            let short = self.short_at.is_some_and(|at| at + 20_000 >= told.at);
            let last = self.short_at;
            assert!(
                short,
                "lost after the last time {last:?} that too many were missing: {told:?}"
            );
        }
        for &durable in &clients.durable {
            let nothing = durable == Viewstamp::default();
            assert!(nothing || is_kept(durable), "durable and gone: {durable:?}");
        }
        clients.judge(is_kept);
        lost
    }
}
