//! Stories that more than one test tells.

use nopaxos::{Body, Limits, Lives, Message, Suffix, Timing};
use oum::Members;
use smr::{Incarnation, Input, OpNumber, ReplicaId, Viewstamp};

use super::{Group, Plan};

/// A group in its first session that has nothing to do.
pub fn idle(plan: Plan) -> Group {
    let mut group = Group::new(Plan { think: 1_000_000_000, ..plan }, 1);
    group.write(0);
    group.run(5_000, false);
    assert!(group.clients.is_idle(), "the first write ends the view without a session");
    group
}

impl Group {
    /// One client writes, and nobody waits.
    pub fn write(&mut self, client: usize) {
        let mut payloads = Vec::new();
        let now = self.clock();
        self.clients.ask(now, client, &mut payloads);
        payloads.into_iter().for_each(|send| self.client_sends(send));
    }

    /// The message of the present session that comes next.
    pub fn next_message(&self) -> (u32, u64) {
        let newest = self.sequencers.last().expect("there is one");
        let (session, last) = newest.counter.session(super::GROUP).expect("it has begun");
        (session.0, last + 1)
    }

    pub fn run_for(&mut self, micros: u64) {
        self.run(self.now + micros, false);
    }
}

/// Diskless recovery (Michael, Ports, Sharma, Szekeres, DISC 2017): replica 1 replies, crashes and
/// forgets; the message comes to the leader only after 1 has recovered without it, and never to 2;
/// then the leader dies. Whoever counts 1's reply has lost the request.
pub fn reply_of_a_former_life(plan: Plan) -> Group {
    let mut group = idle(plan);
    let (session, next) = group.next_message();
    group.late.insert((session, next, 0), 8_000);
    group.lose.insert((session, next, 2));
    group.mute.push(("GapReply", None, None));
    group.write(1);
    group.run_for(100);
    let restart = group.now + 100;
    group.kill(ReplicaId(1), restart);
    // The client does not send again before the end.
    group.run_for(9_000);
    let dead = group.now + 40_000;
    group.kill(ReplicaId(0), dead);
    group.run_for(30_000);
    group.settle();
    group
}

/// The same with the promise of a NO-OP: the leader has not got a message that 1 has; 2 promises
/// the NO-OP, crashes and forgets it, and the promise comes late. If the leader goes on with it,
/// what it tells a client next was computed without that message, which the next leader has from 1.
pub fn promise_of_a_former_life(plan: Plan) -> Group {
    let mut group = idle(plan);
    let (session, next) = group.next_message();
    let (leader, other, forgetful) = (ReplicaId(0), ReplicaId(1), ReplicaId(2));
    let slot = group.replica(leader).log().last().op.next();
    group.lose.extend([(session, next, 0), (session, next, 2)]);
    group.mute.push(("GapReply", None, None));
    group.mute.push(("GapCommitRep", None, None));
    group.mute.push(("GapCommit", None, Some(other.0)));
    group.write(0);
    group.write(1);
    group.run_for(300);
    assert_eq!(group.replica(forgetful).log().last().op.0, slot.0 + 1, "it has the NO-OP");
    group.mute.push(("GapCommit", None, None));
    let restart = group.now + 100;
    group.kill(forgetful, restart);
    group.run_for(2_000);
    let view = group.replica(leader).view_id();
    let mut lives = Lives::new(3);
    lives.learn(forgetful, Incarnation(1));
    let (members, body) = (Members::all(3), Body::GapCommitRep { slots: vec![slot] });
    let message = Message { view, members, lives, body };
    let incarnation = Incarnation(1);
    group.step(leader, Input::Message { from: forgetful, incarnation, message });
    group.run_for(100);
    let dead = group.now + 40_000;
    group.kill(leader, dead);
    group.run_for(30_000);
    group.settle();
    group
}

/// No replica hears another, all hear the sequencer, and two clients go on asking for 120 requests
/// that nobody may answer. Then all is well.
pub fn without_a_quorum(plan: Plan) -> Group {
    let limits = Limits { unstable_bytes: 10_000, ..plan.limits };
    let plan = Plan { client_window: 60, think: 20, datagram: 100, limits, ..plan };
    let mut group = Group::new(plan, 1);
    group.run(10_000, false);
    let all: Vec<ReplicaId> = group.ids().collect();
    for &from in &all {
        let others = all.iter().filter(|&&to| to != from);
        group.cuts.extend(others.map(|&to| (from, to, 110_000)));
    }
    group.run(109_000, false);
    group
}

/// Replica 1 replies to a request that 2 never gets, crashes and forgets; a START-VIEW that the
/// leader sent before it knew of the new life comes to 1; then the leader stands still. If that was
/// enough for 1 to recover, it and 2 go on without the request.
pub fn start_view_of_a_former_life(plan: Plan) -> Group {
    let mut group = idle(plan);
    let (leader, forgetful) = (ReplicaId(0), ReplicaId(1));
    let (view, after) = (group.replica(leader).view_id(), Viewstamp::default());
    let entries = group.replica(leader).log().above(OpNumber(0)).cloned().collect();
    let body = Body::StartView(Suffix { after, entries });
    let message = Message { view, members: Members::all(3), lives: Lives::new(3), body };
    let (session, next) = group.next_message();
    group.lose.insert((session, next, 2));
    group.mute.push(("GapReply", None, None));
    group.mute.push(("SyncPrepare", None, Some(2)));
    group.write(1);
    group.run_for(100);
    assert!(group.clients.is_idle(), "the leader and one other are enough");
    let restart = group.now + 10;
    group.kill(forgetful, restart);
    group.run_for(11);
    let incarnation = Incarnation(1);
    group.step(forgetful, Input::Message { from: leader, incarnation, message });
    let until = group.now + 40_000;
    group.pause(leader, until);
    group.mute.clear();
    group.run_for(60_000);
    group.settle();
    group
}

/// 0 and 1 of the members 0, 1 and 2 have a request that nobody else gets; all are to be replaced
/// by 3, 4 and 5. Replica 3 starts a view of the change with that request, tells nobody, and stands
/// still. If that were enough, 4 and 5 would go on alone, without it.
pub fn members_leave_before_others_have_their_log(plan: Plan) -> Group {
    let mut group = idle(plan);
    let of = |ids: [u8; 3]| Members::of(ids.map(ReplicaId));
    let tell = |group: &mut Group| group.ids().for_each(|id| group.tell_session(id));
    group.change_members(of([0, 1, 2]));
    tell(&mut group);
    group.run_for(2_000);
    tell(&mut group);
    group.run_for(2_000);
    assert_eq!(group.members(), of([0, 1, 2]));
    let (session, next) = group.next_message();
    group.lose.extend((2..6).map(|id| (session, next, id)));
    for kind in ["GapReply", "SyncPrepare", "StartView"] {
        group.mute.push((kind, None, None));
    }
    group.write(1);
    group.run_for(100);
    assert!(group.clients.is_idle(), "two of three are enough");
    let before = group.changes;
    group.change_members(of([3, 4, 5]));
    tell(&mut group);
    for _ in 0..60 {
        if group.changes == before {
            group.run_for(10);
        }
    }
    let until = group.now + 40_000;
    group.pause(ReplicaId(3), until);
    group.mute.clear();
    tell(&mut group);
    group.run_for(60_000);
    group.settle();
    group
}

/// A forced write takes up to twelve times as long as a view has to start before its leader is
/// suspected. The group starts, and goes on after the end of its sequencer and of its leader.
pub fn slow_disks(plan: Plan, seed: u64) -> Group {
    let (election, disk) = (800, 4_800);
    let timing = Timing { election, jitter: 400, stall: 20 * disk, ..plan.timing };
    let mut group = Group::new(Plan { disk, timing, ..plan }, seed);
    group.run(10 * disk, false);
    let mut done = 0;
    for round in 0..3 {
        let now = group.clients.operations.iter().filter(|one| one.done.is_some()).count();
        assert!(now > done, "round {round}: nothing is answered {:?}", group.statuses());
        done = now;
        match round {
            0 => group.new_sequencer(),
            _ => {
                let (leader, restart) = (group.leader().expect("it answers"), group.now + disk);
                group.kill(leader, restart);
            }
        }
        group.run_for(12 * disk);
    }
    let leaders = |id| group.replica(id).view_id().leader_number;
    let most = group.ids().map(leaders).max();
    assert!(most < Some(8), "no view is given up for the disks: {most:?}");
    group.settle();
    group
}
