//! What is looked at after every step of a process, and before its messages leave.

use smr::{Content, Durability, Incarnation, OpNumber, Report, Role, View, Viewstamp};

use crate::ledger::{Checked, Commitment, show};
use crate::subject::{Promise, Seen, Subject};
use crate::world::World;

impl<P: Subject> World<P> {
    /// Everything that must hold of a process after it took an input.
    pub(crate) fn after_step(&mut self, id: usize) -> Checked<()> {
        self.nodes[id].witness.before = self.nodes[id].witness.committed;
        let seen = std::mem::take(&mut *self.nodes[id].sight.borrow_mut());
        for seen in seen {
            self.witness(id, seen)?;
        }
        let node = &mut self.nodes[id];
        let host = node.host.as_ref().expect("it took a step");
        let executor = host.executor();
        let (executed, stable) = (executor.executed(), executor.stable());
        if executor.committed() != node.witness.committed {
            return Err(format!("r{id}: the executor's commit number is not what was told"));
        }
        if executed != node.witness.executed {
            node.witness.executed = executed;
            self.ledger.executed(executed, executor.machine().digest())?;
        }
        let report = smr::Protocol::report(host.protocol());
        let admits = smr::Protocol::admission(host.protocol()).is_ok();
        check_report(id, &report, executed, admits, node.witness.report.as_ref())?;
        let before = node.witness.report.replace(report);
        if report.durability == Durability::Lazy {
            self.check_lazy(id, before, report, stable)?;
        }
        if before.is_none_or(|before| before.durable != report.durable) {
            self.check_durable(id, report.durable)?;
        }
        self.remember(id);
        self.note_role(id, before, report)
    }

    fn witness(&mut self, id: usize, seen: Seen) -> Checked<()> {
        match seen {
            Seen::Execute(entry) => {
                let at = entry.viewstamp;
                if entry.content == Content::ViewStart && at.view.primary().index() == id {
                    self.elected(id, at.view);
                }
                self.nodes[id].witness.applied.push_back(entry);
                self.note(|| format!("r{id} executes {}", show(at)));
            }
            Seen::Stable(through) => self.witness_stable(id, through)?,
            Seen::Rollback(keep) => {
                self.witness_loss(id, keep)?;
                let witness = &mut self.nodes[id].witness;
                witness.committed = witness.committed.min(keep);
                let applied = &mut witness.applied;
                let before = applied.len();
                while applied.back().is_some_and(|entry| entry.viewstamp.op > keep) {
                    applied.pop_back();
                }
                if applied.len() < before {
                    self.marks.hit("undone");
                }
                self.note(|| format!("r{id} undoes what is above {}", keep.0));
            }
            Seen::Commit(through) => self.witness_commit(id, through)?,
            Seen::Deposed => {
                self.marks.hit("deposed");
                self.note(|| format!("r{id} is deposed"));
            }
            Seen::ReadReady => {}
        }
        Ok(())
    }

    fn witness_commit(&mut self, id: usize, through: OpNumber) -> Checked<()> {
        let before = self.nodes[id].witness.committed;
        if through.0 > before.0 + 1 {
            self.marks.hit("commit-several");
        }
        if through > before {
            self.note(|| format!("r{id} commits {}", through.0));
        }
        loop {
            let witness = &mut self.nodes[id].witness;
            let next = witness.committed.next();
            let Some(entry) = witness.applied(next).filter(|_| next <= through) else { break };
            let entry = entry.clone();
            witness.committed = next;
            let commitment = self.ledger.commit(&entry)?;
            if commitment == Commitment::Known {
                continue;
            }
            if self.gone {
                return Err(format!("state lost: r{id} commits without any state"));
            }
            self.check_loss(id, entry.viewstamp, &commitment)?;
            if commitment != Commitment::BornLost {
                // The committer counts as it is in the middle of its step.
                self.check_held(id, entry.viewstamp, entry.content == Content::ViewStart)?;
            }
        }
        Ok(())
    }

    /// What is committed is where the durability says: at a quorum, except for those who have lost
    /// it since.
    fn check_held(&self, committer: usize, at: Viewstamp, starts: bool) -> Checked<()> {
        // In `lazy` a view's first entry makes final how the view before ended.
        let sync = self.options.durability == Durability::Sync || (self.lazy() && starts);
        let held = self.nodes.iter().filter(|node| {
            if sync {
                return node.disk.holds(at) || node.disk.lost;
            }
            let has = node.witness.stable >= at.op || node.witness.applied_at(at.op) == Some(at);
            has || node.id == committer || node.forgetful || node.forgets() || !node.is_up()
        });
        let held = held.count();
        if held > self.options.f() {
            return Ok(());
        }
        Err(format!("durability: {} is committed, but only {held} replicas hold it", show(at)))
    }

    /// A durable point is on disk at a quorum, except for those who have lost it since.
    fn check_durable(&mut self, id: usize, at: Viewstamp) -> Checked<()> {
        if self.lazy() {
            self.ledger.note_durable(at)?;
        }
        let on_disk = |node: &&crate::node::Node<P>| node.disk.holds(at) || node.disk.lost;
        let held = self.nodes.iter().filter(on_disk).count();
        if at == Viewstamp::default() || held > self.options.f() {
            return Ok(());
        }
        let at = show(at);
        Err(format!("durability: r{id} says that {at} is durable, but {held} disks hold it"))
    }

    fn note_role(&mut self, id: usize, before: Option<Report>, report: Report) -> Checked<()> {
        let role = before.map(|before| before.role);
        let recovering = |role| matches!(role, Role::Recovering | Role::StateLost);
        if role != Some(report.role) || before.is_some_and(|before| before.view != report.view) {
            self.note(|| {
                let view = report.view.0;
                format!("r{id} is {} in view {}.{}", report.role.name(), view >> 8, view & 0xff)
            });
        }
        if role == Some(report.role) {
            return Ok(());
        }
        if !recovering(report.role) && self.nodes[id].forgetful {
            self.nodes[id].forgetful = false;
            self.check_recovered(id)?;
            let memory = self.options.durability == Durability::Memory;
            self.marks.hit(if !memory {
                "recovered-from-lost-disk"
            } else {
                "recovered-in-memory"
            });
        }
        if report.role == Role::StateLost {
            self.marks.hit("state-lost");
        }
        if report.role == Role::Primary {
            self.marks.hit("elected");
        }
        let stalled = self.queue.now() < self.nodes[id].disk.stalled_until;
        if role == Some(Role::Primary) && stalled {
            self.marks.hit("resigned-with-stalled-disk");
        }
        Ok(())
    }

    /// Recovery ends only after f + 1 others have said that they know the new life: a quorum must
    /// not count what a former life said.
    fn check_recovered(&self, id: usize) -> Checked<()> {
        let life = self.nodes[id].incarnation;
        let others = self.nodes.iter().filter(|node| node.id != id);
        let knowing = others.filter(|node| node.told.get(id).is_some_and(|&told| told >= life));
        let knowing = knowing.count();
        if knowing > self.options.f() {
            return Ok(());
        }
        Err(format!("recovery: r{id} has recovered, and only {knowing} others know its new life"))
    }

    /// What a message promises must be true when it leaves.
    pub(crate) fn check_send(&mut self, id: usize, message: &P::Message) -> Checked<()> {
        let promise = P::promise(message);
        let name = P::name(message);
        let node = &mut self.nodes[id];
        let known = P::incarnations(message);
        node.told.resize(node.told.len().max(known.len()), Incarnation(0));
        for (told, &known) in node.told.iter_mut().zip(known) {
            // Who restarts and forgets learns it again from a quorum before it counts.
            *told = known.max(*told);
        }
        let report = node.witness.report.expect("it took a step");
        if let Some(known) = known.get(id)
            && *known != node.incarnation
            && *known != Incarnation(0)
        {
            return Err(format!("incarnation: r{id} does not know its own in {name}"));
        }
        let view = match promise {
            Promise::Nothing => return Ok(()),
            Promise::View(view) | Promise::Holds(view, _) | Promise::Leads(view, _) => view,
        };
        if matches!(report.role, Role::Recovering | Role::StateLost) {
            return Err(format!("recovery: r{id} sends {name} while it is {}", report.role.name()));
        }
        if node.disk.view() < view {
            return Err(format!("view: r{id} sends {name} of view {} before it is stored", view.0));
        }
        match promise {
            Promise::Leads(view, _) if view.primary().index() != id => {
                Err(format!("lead: r{id} sends {name} in the lead of view {}", view.0))
            }
            Promise::Leads(_, last) => {
                if report.role == Role::Primary {
                    self.owes(id, last);
                }
                Ok(())
            }
            Promise::Holds(view, op) => self.check_holds(id, view, op, name),
            _ => Ok(()),
        }
    }

    fn check_holds(&mut self, id: usize, view: View, op: OpNumber, name: &str) -> Checked<()> {
        let node = &self.nodes[id];
        if op > node.witness.executed.op {
            return Err(format!("acknowledgement: r{id} sends {name} for {} unseen", op.0));
        }
        if self.options.durability == Durability::Memory || (self.lazy() && op.0 == 0) {
            return Ok(());
        }
        let at = node.witness.applied_at(op).or_else(|| self.ledger.viewstamp_at(op));
        if self.lazy() {
            if node.disk.last().view < view {
                return Err(format!("view: r{id} sends {name} before the view's start is stored"));
            }
            self.owes(id, at.unwrap_or_default());
            return Ok(());
        }
        match at {
            Some(at) if node.disk.holds(at) => Ok(()),
            _ => Err(format!(
                "acknowledgement: r{id} sends {name} for {} before it is on disk",
                op.0
            )),
        }
    }
}

/// What a report may say.
fn check_report(
    id: usize,
    report: &Report,
    executed: Viewstamp,
    admits: bool,
    before: Option<&Report>,
) -> Checked<()> {
    let leads = report.role == Role::Primary;
    let lazy = report.durability == Durability::Lazy;
    let rules = [
        (report.commit <= report.op.op, "commit lies above the log"),
        (report.durable.op <= report.op.op, "the durable point lies above the log"),
        (report.checkpoint.op <= report.commit, "the checkpoint lies above what is committed"),
        (report.op.view <= report.view, "the log is of a view not seen"),
        (executed.op <= report.op.op, "more is executed than logged"),
        (!leads || report.view.primary().index() == id, "leads another's view"),
        (!admits || leads, "takes requests and does not lead"),
        (before.is_none_or(|b| b.view <= report.view), "the view went back"),
        (lazy || before.is_none_or(|b| b.commit <= report.commit), "the commit number went back"),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, broken)) => Err(format!("report of r{id}: {broken}: {report:?}")),
    }
}
