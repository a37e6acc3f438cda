//! Speculative Paxos (Ports, Li, Liu, Sharma, Krishnamurthy, NSDI 2015, as measured in [NOPaxos]
//! 6): clients send to all replicas, each executes a request where it arrives and answers with
//! its place and a digest of the log up to it; the client believes a superquorum of equal
//! answers. Two message delays, two messages per replica.
//!
//! | client | to all | request |
//! |---|---|---|
//! | replica | client | result, place, digest of the log up to it |
//! | leader | others | SYNC, now and then: what is decided |
//! | follower | leader | Accepted: its last place, and the digest there |
//!
//! SYNC finds logs that differ. A new view of the same leader reconciles them: what may have been
//! believed keeps its place, what was executed otherwise is rolled back and executed anew, and all
//! that is open is answered again. With too few replicas for a superquorum, f + 1 decide the log
//! that a view began with, and the leader tells the clients so.

use smr::OpNumber;
use smr::contract::Output;

use crate::config::Bug;
use crate::replica::{Out, Scheme};

/// One replica.
pub type Replica = crate::replica::Replica<SpeculativePaxos>;

/// Every replica executes at once; the client counts.
#[derive(Clone, Copy, Debug)]
pub struct SpeculativePaxos;

fn answer(above: OpNumber, through: OpNumber, out: &mut Out) {
    (above.0 + 1..=through.0).for_each(|op| out.push(Output::Answer(OpNumber(op))));
}

impl Scheme for SpeculativePaxos {
    fn appended(replica: &mut Replica, out: &mut Out) {
        let last = replica.log.last().op;
        replica.execute(last, out);
        out.push(Output::Answer(last));
    }

    fn replaced(replica: &mut Replica, keep: OpNumber, out: &mut Out) {
        if replica.executed > keep && !replica.config.bug(Bug::SkipRollback) {
            replica.tally.rolled_back += replica.executed.0 - keep.0;
            replica.executed = keep;
            out.push(Output::Rollback(keep));
        }
        let last = replica.log.last().op;
        replica.execute(last, out);
        // Answers of several views are not counted together.
        answer(replica.commit, last, out);
    }

    fn committed(replica: &mut Replica, before: OpNumber, out: &mut Out) {
        let through = replica.commit;
        if replica.leads() {
            answer(before, through.min(replica.started), out);
        }
        out.push(Output::Commit { through, reply: false });
        out.push(Output::Stable(through));
    }
}
