//! What is looked at in durability `lazy` alone: that nothing durable is ever taken back, that
//! what else is lost was lost by the rules, and that no client sees a state that mixes what was
//! lost and what was kept.

use bytes::Bytes;
use smr::{OpNumber, Outcome, Reply, Report, RequestNumber, Role, Viewstamp};

use crate::gateway::Operation;
use crate::ledger::{Checked, Commitment, show};
use crate::subject::Subject;
use crate::world::World;

/// The most bytes that one entry has.
const ENTRY: usize = 600;

impl<P: Subject> World<P> {
    /// A replica's durable point, what it has made stable, and how much is tentative.
    pub(crate) fn check_lazy(
        &mut self,
        id: usize,
        before: Option<Report>,
        report: Report,
        stable: OpNumber,
    ) -> Checked<()> {
        if stable > report.durable.op {
            let (stable, durable) = (stable.0, show(report.durable));
            return Err(format!("stable: r{id} cannot undo {stable}, and {durable} is durable"));
        }
        let Some(before) = before else { return Ok(()) };
        let leads = report.role == Role::Primary && before.role == Role::Primary;
        if leads && report.view == before.view && report.lag_bytes > self.options.lag {
            self.marks.hit("back-pressure");
            let lag = report.lag_bytes;
            if lag > before.lag_bytes && lag > self.options.lag + ENTRY {
                return Err(format!("memory: r{id} proposes, and {lag} bytes are tentative"));
            }
        }
        if before.forgetful && !report.forgetful && report.role != Role::Primary {
            self.marks.hit("forgetful-reminded");
        }
        if report.risky_elections > before.risky_elections {
            let forgetful = self.nodes.iter().filter(|node| node.forgets()).count();
            let many = forgetful > self.options.f();
            self.marks.hit(if many { "elected-with-marks" } else { "patience-used" });
        }
        let resigned = before.role == Role::Primary && report.role == Role::ViewChange;
        let stalled = self.queue.now() < self.nodes[id].disk.stalled_until;
        if resigned && report.view == before.view && report.disk.op < report.durable.op {
            self.marks.hit(if stalled {
                "resigned-behind-its-disk"
            } else {
                "resigned-for-slow-disk"
            });
        }
        Ok(())
    }

    /// A replica forgets how to undo.
    pub(crate) fn witness_stable(&mut self, id: usize, through: OpNumber) -> Checked<()> {
        let witness = &mut self.nodes[id].witness;
        while witness.stable < through {
            let Some(entry) = witness.applied.pop_front() else {
                return Err(format!("stable: r{id} has not executed {}", through.0));
            };
            witness.stable = entry.viewstamp.op;
        }
        Ok(())
    }

    /// A replica takes back what is above `keep`: nothing that it knows to be durable. (What it has
    /// not acknowledged in the view of a durable point, it may drop and fetch again.)
    pub(crate) fn witness_loss(&mut self, id: usize, keep: OpNumber) -> Checked<()> {
        let applied = self.nodes[id].witness.applied.iter().rev();
        let above = applied.take_while(|entry| entry.viewstamp.op > keep);
        let acknowledged = above.filter(|entry| self.ledger.knows(entry.viewstamp)).count();
        if acknowledged > 0 {
            self.marks.hit("rolled-back-acknowledged");
            if acknowledged > 3 {
                self.marks.hit("rolled-back-long-tail");
            }
            if self.nodes[id].writing.is_some() {
                self.marks.hit("rolled-back-during-checkpoint");
            }
        }
        let known = self.nodes[id].witness.report.map_or(OpNumber(0), |report| report.durable.op);
        if self.lazy() && keep < known {
            let (keep, known) = (keep.0, known.0);
            return Err(format!("durability: r{id} keeps {keep}, and {known} is durable"));
        }
        Ok(())
    }

    /// What a reply says of durability is so.
    pub(crate) fn check_reply(&mut self, id: usize, reply: &Reply) -> Checked<()> {
        let Outcome::Done { position, .. } = reply.outcome else { return Ok(()) };
        if !self.lazy() {
            return Ok(());
        }
        let durable = self.ledger.durable();
        if reply.durable.op > durable.op || !self.ledger.stands(reply.durable) {
            return Err(format!("durability: r{id} answers with {}", show(reply.durable)));
        }
        if !self.durable.contains(&(reply.client, reply.number)) {
            return Ok(());
        }
        if position.op <= self.nodes[id].witness.before {
            self.marks.hit("durable-reply-held");
        }
        Ok(())
    }

    /// What a commitment has shown to be lost may have been lost.
    pub(crate) fn check_loss(
        &mut self,
        id: usize,
        at: Viewstamp,
        commitment: &Commitment,
    ) -> Checked<()> {
        let (first, last, newest) = match *commitment {
            Commitment::Known | Commitment::First => return Ok(()),
            Commitment::Cut(first, last) => {
                self.marks.hit("acknowledged-lost");
                let view = self.nodes[id].host.as_ref().map(|h| smr::Protocol::view(h.protocol()));
                (first, last, view.expect("it takes a step"))
            }
            Commitment::BornLost => {
                self.marks.hit("acknowledged-when-lost");
                (at, at, self.ledger.last().view)
            }
        };
        self.note(|| format!("LOST {} to {}", show(first), show(last)));
        if self.wiped || self.truth.may_lose(last.view, newest) {
            return Ok(());
        }
        let (first, last) = (show(first), show(last));
        Err(format!("loss: {first} to {last} were acknowledged, and nobody was missing"))
    }

    /// An operation is answered as of `position`: the client has not seen anything that this log
    /// lacks.
    pub(crate) fn check_seen(&mut self, index: usize, position: Viewstamp) -> Checked<()> {
        let gateway = &mut self.gateways[index];
        let (id, seen) = (gateway.id, gateway.seen);
        if self.ledger.holds(position, seen) {
            gateway.seen = position;
            return Ok(());
        }
        if self.ledger.holds(seen, position) {
            return Ok(());
        }
        let (position, seen) = (show(position), show(seen));
        Err(format!("mixed: gateway {id} is answered as of {position}, and {seen} was lost"))
    }

    /// A client asks for everything so far to become durable, by an empty request.
    pub(crate) fn flush(&mut self, index: usize) {
        let (now, mut sends) = (self.client_now(), Vec::new());
        let gateway = &mut self.gateways[index];
        let Some(client) = &mut gateway.client else { return };
        if let Some(number) = client.submit(now, Bytes::new(), true, &mut sends) {
            gateway.flushes.insert(number, gateway.seen);
        }
        self.send_client(index, sends);
    }

    /// Such a request is answered: what its client had seen before is durable.
    pub(crate) fn flushed(&mut self, index: usize, number: RequestNumber) -> Checked<()> {
        let gateway = &mut self.gateways[index];
        let seen = gateway.flushes[&number];
        if gateway.on_loss == smr::client::OnLoss::Report {
            gateway.flushes.remove(&number);
        }
        self.marks.hit("flushed");
        if self.ledger.stands(seen) && seen.op > self.ledger.durable().op {
            let (id, seen) = (self.gateways[index].id, show(seen));
            return Err(format!("durability: gateway {id} has flushed, and {seen} is not durable"));
        }
        Ok(())
    }

    /// A client learns of a loss: it is one, and what was dropped is never executed.
    pub(crate) fn learn_loss(&mut self, index: usize, loss: &smr::client::Loss) -> Checked<()> {
        let kept = loss.kept;
        let gateway = &mut self.gateways[index];
        let (id, life, seen) = (gateway.id, gateway.life, gateway.seen);
        for number in &loss.dropped {
            gateway.flushes.remove(number);
            if let Some(operation) = gateway.under_way.remove(&(false, *number)) {
                self.history[operation].dropped = true;
            }
        }
        self.marks.hit("wrong-view-with-loss");
        self.note(|| format!("g{id} learns that what is above {} was lost: {loss:?}", kept.0));
        if seen.op > kept && self.ledger.stands(seen) {
            return Err(format!("loss: gateway {id} is told that {} was lost", show(seen)));
        }
        let rest = self.ledger.below(seen, kept.min(seen.op)).unwrap_or_default();
        self.gateways[index].seen = rest;
        let report = self.gateways[index].on_loss == smr::client::OnLoss::Report;
        let mine = |operation: &&mut Operation| operation.gateway == (index, life);
        for operation in self.history.iter_mut().filter(mine) {
            let lost = operation.position.is_some_and(|position| position.op > kept);
            operation.told_lost |= lost && (report || operation.read);
        }
        Ok(())
    }

    /// In the end: what was dropped or lost was not executed after all, and what was acknowledged
    /// stands unless its client was told.
    pub(crate) fn check_outcomes(&self) -> Checked<()> {
        for (number, operation) in self.history.iter().enumerate() {
            let Operation { command, gateway: (index, life), .. } = *operation;
            let times = self.ledger.executions(command.id);
            let gone = operation.dropped || operation.told_lost;
            if gone && times > 0 && !operation.read {
                return Err(format!("loss: operation {number} was lost, and is there in the end"));
            }
            let gateway = &self.gateways[index];
            let lives = gateway.client.is_some() && gateway.life == life;
            let Some(position) = operation.position.filter(|_| !gone) else { continue };
            let stands = self.ledger.stands(position);
            if operation.durable && !stands {
                return Err(format!("durability: operation {number} was durable, and is lost"));
            }
            if lives && !stands {
                return Err(format!("loss: nobody was told that operation {number} was lost"));
            }
            if !operation.read && stands && times != 1 {
                return Err(format!("at most once: operation {number} stands {times} times"));
            }
        }
        Ok(())
    }
}
