//! Fast Paxos (Lamport, Distributed Computing 19(2), 2006, as measured in [NOPaxos] 6): clients
//! send to all replicas, each accepts a request where it arrives and tells the leader, which
//! executes and answers what a superquorum accepted in one place. Three message delays, 2n
//! messages at the leader.
//!
//! | client | to all | request |
//! |---|---|---|
//! | follower | leader | Accepted: place, digest of the log up to it |
//! | leader | client | result |
//!
//! A collision (places differ) or a lost request is settled by a new view of the same leader,
//! whose log f + 1 accept: a classic round for all open places at once. Lamport votes for one
//! place's value; here a vote is for the log up to a place, so that a lost request is one
//! collision, not one in every place behind it.

use smr::OpNumber;
use smr::contract::Output;

use crate::replica::{Out, Scheme};

/// One replica.
pub type Replica = crate::replica::Replica<FastPaxos>;

/// The leader counts, and executes what is decided; the others execute what it calls decided.
#[derive(Clone, Copy, Debug)]
pub struct FastPaxos;

impl Scheme for FastPaxos {
    fn appended(replica: &mut Replica, out: &mut Out) {
        if !replica.leads() {
            replica.accept(replica.log.last().op, out);
        }
    }

    fn replaced(replica: &mut Replica, keep: OpNumber, _: &mut Out) {
        assert!(replica.executed <= keep, "only what is decided is executed");
    }

    fn committed(replica: &mut Replica, before: OpNumber, out: &mut Out) {
        let through = replica.commit;
        replica.execute(through, out);
        if replica.leads() {
            (before.0 + 1..=through.0).for_each(|op| out.push(Output::Answer(OpNumber(op))));
        }
        out.push(Output::Commit { through, reply: false });
        out.push(Output::Stable(through));
    }
}
