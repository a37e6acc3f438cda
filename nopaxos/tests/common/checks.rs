//! What must hold after every step, and in the end.

use std::collections::BTreeMap;

use nopaxos::{Body, Message, Reply, Status};
use smr::{ClientId, Viewstamp};
use smr::{Content, Durability, Entry, Executor, OpNumber, Outcome, ReplicaId, RequestNumber};

use super::Group;
use super::clients::Operation;
use super::service::Register;

/// No entry of these clients takes more bytes.
const LONGEST_ENTRY: usize = 200;

/// What a slot holds, for comparison.
type Held = (Viewstamp, Option<(ClientId, RequestNumber)>);

fn held(entry: &Entry) -> Held {
    let request = match &entry.content {
        Content::Batch { requests, .. } => requests.first().map(|r| (r.client, r.number)),
        Content::ViewStart => None,
    };
    (entry.viewstamp, request)
}

/// The stable log, as the first replica to know a slot had it, executed by one machine.
pub struct Reference {
    pub executor: Executor<Register>,
    slots: BTreeMap<OpNumber, Held>,
    waiting: BTreeMap<OpNumber, std::sync::Arc<Entry>>,
    digests: BTreeMap<OpNumber, u64>,
    /// How far each replica's log was compared.
    seen: BTreeMap<(u8, u64), OpNumber>,
    durability: Durability,
}

impl Reference {
    pub fn new(durability: Durability) -> Reference {
        Reference {
            executor: Executor::new(Register::default()),
            slots: BTreeMap::new(),
            waiting: BTreeMap::new(),
            digests: BTreeMap::new(),
            seen: BTreeMap::new(),
            durability,
        }
    }

    /// How many stable slots have a NO-OP.
    pub fn no_ops(&self) -> usize {
        let is = |(_, held): &(&OpNumber, &Held)| held.1.is_none();
        self.slots.iter().filter(is).count()
    }

    /// Whether an operation is in the stable log.
    pub fn holds(&self, viewstamp: Viewstamp) -> bool {
        self.slots.get(&viewstamp.op).is_some_and(|held| held.0 == viewstamp)
    }

    pub fn stable(&self) -> OpNumber {
        self.executor.executed().op
    }

    fn learn(&mut self, entry: &std::sync::Arc<Entry>) {
        let (slot, now) = (entry.viewstamp.op, held(entry));
        let known = *self.slots.entry(slot).or_insert(now);
        assert_eq!(known, now, "agreement: two stable logs differ at {slot:?}");
        self.waiting.entry(slot).or_insert_with(|| entry.clone());
        while let Some(next) = self.waiting.get(&self.executor.executed().op.next()) {
            let next = next.clone();
            let op = next.viewstamp.op;
            self.executor.execute(next);
            self.executor.commit(op, |_| {});
            self.executor.stabilise(op);
            self.digests.insert(op, self.executor.machine().digest);
        }
    }
}

impl Group {
    /// After every step of a replica.
    pub(super) fn check(&mut self, id: ReplicaId) {
        self.note_forgetful();
        let machine = &mut self.machines[id.index()];
        let host = machine.host.as_ref().expect("it runs");
        let (replica, executor) = (host.protocol(), host.executor());
        machine.whole |= replica.status() == Status::Normal;
        let point = replica.stable_point();
        let seen = self.reference.seen.entry((id.0, machine.life)).or_default();
        let from = *seen;
        *seen = point;
        for slot in (from.0 + 1..=point.0).map(OpNumber) {
            // What came with a checkpoint is not in its log.
            if let Some(entry) = replica.log().get(slot) {
                self.reference.learn(entry);
            }
        }
        if machine.installing {
            return;
        }
        assert!(executor.stable() <= point, "what is not synchronised is not stable");
        let executed = executor.executed().op;
        let is_leader = executed > point;
        if !is_leader && let Some(&digest) = self.reference.digests.get(&executed) {
            assert_eq!(executor.machine().digest, digest, "two states at {executed:?}");
        }
        let (log, limits) = (replica.log(), self.plan.limits);
        let slots = log.last().op.0 - point.0;
        // Every view adds the slot of its start.
        let most = limits.unstable + 100;
        assert!(slots <= most, "{slots} slots that may change: it is unbounded");
        let most = 2 * limits.unstable_bytes + 2 * LONGEST_ENTRY;
        if log.bytes_above(point) > most {
            let sizes = log.above(point).filter(|entry| held(entry).1.is_some());
            let bytes: usize = sizes.map(|entry| entry.size()).sum();
            assert!(bytes <= most, "{bytes} bytes that may change: it is unbounded");
        }
    }

    /// Before a message leaves.
    pub(super) fn check_message(&self, id: ReplicaId, message: &Message) {
        let replica = self.replica(id);
        if replica.status() == Status::Recovering {
            let allowed = matches!(
                message.body,
                Body::Recover
                    | Body::RecoverReply { .. }
                    | Body::AskView
                    | Body::ViewChangeReq
                    | Body::Fetch { .. }
                    | Body::StateGone
            );
            assert!(allowed, "a recovering replica votes for nothing: {message:?}");
        }
        let disk = &self.machines[id.index()].disk;
        let promises = matches!(
            message.body,
            Body::ViewChange(_)
                | Body::StartView(_)
                | Body::GapCommitRep { .. }
                | Body::SyncReply { .. }
        );
        let view = message.view.to_view(self.plan.replicas);
        assert!(!promises || disk.view >= view, "a view is on disk before a replica acts in it");
        if self.plan.durability == Durability::Sync
            && let Body::ViewChange(suffix) = &message.body
        {
            let on_disk = suffix.entries.iter().all(|entry| disk.holds(entry.viewstamp));
            assert!(on_disk, "a vote rests on what is on disk");
        }
    }

    /// Before a reply leaves.
    pub(super) fn check_reply(&self, id: ReplicaId, reply: &Reply) {
        let durable = reply.reply.durable;
        let is_known = durable.op <= self.reference.stable();
        assert!(!is_known || durable.op.0 == 0 || self.reference.holds(durable), "{durable:?}");
        // Of new members' disks a durable point says nothing that was reached before they were.
        let always = self.rosters.iter().all(|members| *members == self.rosters[0]);
        if self.plan.durability == Durability::Lazy && always {
            let holds = |machine: &&super::Machine| machine.disk.holds(durable);
            let disks = self.machines.iter().filter(holds).count();
            assert!(2 * disks > self.machines.len(), "{durable:?} is on {disks} disks");
        }
        let Outcome::Done { position, .. } = &reply.reply.outcome else { return };
        let machine = &self.machines[id.index()];
        let view = reply.reply.view;
        assert!(machine.disk.view >= view, "a view is on disk before a replica acts in it");
        let on_disk = machine.disk.holds(*position);
        let on_disk = on_disk || durable.op >= position.op;
        assert!(self.plan.durability != Durability::Sync || on_disk, "a reply before its disk");
    }

    /// A client has learned that an acknowledged write is lost.
    pub(super) fn check_loss(&mut self, operation: &Operation) {
        let (at, position, _) = operation.done.expect("it was acknowledged");
        assert_eq!(self.plan.durability, Durability::Lazy, "lost: {operation:?}");
        assert!(!operation.durable, "it was durable: {operation:?}");
        assert!(self.excused_at >= Some(at), "lost while f others remembered it: {operation:?}");
        // Nor was it durable: what is durable is in the stable log of all.
        assert!(!self.reference.holds(position), "lost from the middle: {operation:?}");
        self.lost.push(position);
    }

    /// Everything that was acknowledged is there, once, with the answer that was given; and the
    /// order of execution is one that the clients could have seen (linearizability: the register's
    /// history is what the reference executed, so it only has to respect real time).
    pub fn check_history(&self) {
        let middle = self.lost.iter().find(|&&position| self.reference.holds(position));
        assert_eq!(middle, None, "lost, while what came after it is there");
        let written = &self.reference.executor.machine().written;
        let mut done = Vec::new();
        for operation in &self.clients.operations {
            let value = operation.value;
            if operation.lost {
                assert!(!written.contains_key(&value), "lost, and there: {operation:?}");
                continue;
            }
            let Some((returned, slot, found)) = operation.done else { continue };
            let Some(&(executed, before)) = written.get(&value) else {
                panic!("acknowledged and lost: {operation:?}");
            };
            assert!(executed <= slot.op.0, "{value} was executed after it was acknowledged");
            assert_eq!(found, before, "{value}: the client was told what never was");
            done.push((operation.called, returned, executed));
        }
        let mut returns: Vec<_> = done.iter().map(|&(_, returned, at)| (returned, at)).collect();
        returns.sort_unstable();
        let (mut latest, mut index) = (0, 0);
        done.sort_unstable();
        for (called, _, executed) in done {
            while index < returns.len() && returns[index].0 < called {
                latest = returns[index].1.max(latest);
                index += 1;
            }
            assert!(executed > latest, "linearizability: slot {executed} after {latest}");
        }
    }
}
