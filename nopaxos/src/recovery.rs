//! Recovery of a replica that has restarted and may have forgotten what it promised ([NOPaxos]
//! 5.2.5).
//!
//! Its new incarnation goes to so many others first that every quorum has one of them: whichever is
//! counted afterwards, one of it knows that what the former life said is void. Then it takes the
//! log of the leader of the latest view among those, as it is after the leader has learned of the
//! new life.

use smr::{Durability, Incarnation, MAX_REPLICAS, Now, ReplicaId};

use crate::bug::Bug;
use crate::config::Config;
use crate::lives::Lives;
use crate::message::{Body, Message};
use crate::replica::{Out, Replica, Status};
use crate::view_id::ViewId;

#[derive(Clone, Copy, Debug)]
struct Told {
    life: Incarnation,
    view: ViewId,
    normal: bool,
    recovering: bool,
}

/// What a recovering replica was told by the others.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    told: [Option<Told>; MAX_REPLICAS as usize],
    /// When it makes do with what the disks hold.
    desperate_at: u64,
    /// Whether its disk holds a log.
    keeps: bool,
}

impl Recovery {
    pub(crate) fn begin(&mut self, now: Now, config: &Config, keeps: bool) {
        self.desperate_at = now.micros + config.timing.patience;
        self.keeps = keeps;
    }
}

impl Replica {
    pub(crate) fn retry_recovery(&mut self, now: Now, out: &mut Out) {
        self.broadcast(Body::Recover, out);
        if let Some(view) = self.latest_told() {
            if self.view.join(view) != view {
                // A former life was ahead of everybody. Views only grow: they come along.
                self.view = self.view.join(view);
                self.broadcast(Body::ViewChangeReq, out);
                return;
            }
            let leader = view.leader(self.config.replicas);
            if leader != self.me {
                self.send(leader, Body::AskView, out);
            }
        } else if self.must_make_do(now) {
            self.status = Status::ViewChange;
            let next = self.view.next_leader();
            let session = next.session.max(self.latest_session());
            self.start_view_change(now, ViewId { session, ..next }, out);
        }
    }

    /// More than f replicas have restarted, with their disks: nobody who remembers everything can
    /// be waited for (durability `lazy`).
    fn must_make_do(&self, now: Now) -> bool {
        self.config.durability == Durability::Lazy
            && self.recovery.keeps
            && now.micros >= self.recovery.desperate_at
            && self.too_many_recover()
    }

    /// Whether those that are not recovering, as this one is, are too few for a quorum.
    fn too_many_recover(&self) -> bool {
        let recovers = |id: ReplicaId| {
            let told = self.recovery.told[id.index()];
            id == self.me || told.is_some_and(|told| told.recovering && self.counts(id, told.life))
        };
        self.latest_members().meets_quorums(recovers)
    }

    /// Whether too many replicas have forgotten for any to recover.
    pub(crate) fn state_is_lost(&self) -> bool {
        !self.recovery.keeps && self.too_many_recover()
    }

    pub(crate) fn on_recover(&self, from: ReplicaId, out: &mut Out) {
        let normal = self.status == Status::Normal && self.view_is_stored();
        let recovering = self.status == Status::Recovering;
        self.send(from, Body::RecoverReply { normal, recovering }, out);
    }

    pub(crate) fn on_recover_reply(&mut self, from: ReplicaId, message: &Message) {
        let Body::RecoverReply { normal, recovering } = message.body else { return };
        let knows_me = message.lives.of(self.me) == self.config.identity.incarnation;
        if self.status == Status::Recovering && knows_me {
            let (life, view) = (message.lives.of(from), message.view);
            self.recovery.told[from.index()] = Some(Told { life, view, normal, recovering });
        }
    }

    /// The latest view among others in status Normal that know this life, if every quorum has one
    /// of them.
    pub(crate) fn latest_told(&self) -> Option<ViewId> {
        let told = |id: ReplicaId| {
            let told = self.recovery.told[id.index()];
            told.filter(|told| told.normal && self.counts(id, told.life))
        };
        let views = self.ids().filter_map(|id| Some(told(id)?.view));
        let latest = views.fold(ViewId::default(), ViewId::join);
        self.latest_members().meets_quorums(|id| told(id).is_some()).then_some(latest)
    }

    /// Whether START-VIEW of this view, from one that knew these lives, ends the recovery.
    pub(crate) fn may_recover_in(&self, view: ViewId, lives: &Lives) -> bool {
        if self.bug(Bug::RecoverWithoutQuorum) {
            return true;
        }
        let knows_me = lives.of(self.me) == self.config.identity.incarnation;
        knows_me && self.latest_told().is_some_and(|latest| view >= latest)
    }
}
