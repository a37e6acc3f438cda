//! Stories that more than one test tells.

use nopaxos::{Body, Lives, Message};
use smr::{Incarnation, Input, ReplicaId};

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
    let message = Message { view, lives, body: Body::GapCommitRep { slots: vec![slot] } };
    let incarnation = Incarnation(1);
    group.step(leader, Input::Message { from: forgetful, incarnation, message });
    group.run_for(100);
    let dead = group.now + 40_000;
    group.kill(leader, dead);
    group.run_for(30_000);
    group.settle();
    group
}
