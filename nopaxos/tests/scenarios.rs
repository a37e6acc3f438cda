//! Cases that the paper names, one by one and without other faults; and known errors of other
//! implementations.

mod common;

use common::stories::{
    idle, members_leave_before_others_have_their_log, promise_of_a_former_life,
    reply_of_a_former_life, slow_disks, start_view_of_a_former_life, without_a_quorum,
};
use common::{Group, Plan};
use nopaxos::{Body, Config, Limits, Lives, Message, Replica, Status, Suffix, Tally, ViewId};
use oum::{Members, Session};
use smr::contract::Recovered;
use smr::{Durability, Identity, Incarnation, Input, Log, Now, OpNumber, Protocol, ReplicaId};
use smr::{Trust, Viewstamp};

const LEADER: ReplicaId = ReplicaId(0);

/// A client that does not send again before a test is over.
fn patient(replicas: u8) -> Plan {
    Plan { client_retry: 60_000, ..Plan::calm(replicas) }
}

fn last(group: &Group, id: u8) -> u64 {
    group.replica(ReplicaId(id)).log().last().op.0
}

fn sum(group: &Group, of: impl Fn(&nopaxos::Tally) -> u64) -> u64 {
    group.ids().map(|id| of(&group.replica(id).tally())).sum()
}

#[test]
fn a_request_takes_one_round_trip_and_no_message_between_replicas() {
    let mut per_request = Vec::new();
    for replicas in [3, 5, 7, 9] {
        let plan = Plan { think: 20, ..Plan::calm(replicas) };
        let mut group = Group::new(plan, 1);
        group.run(10_000, false);
        let (sent, done) = (group.sent, group.clients.operations.len());
        group.run_for(100_000);
        let done = group.clients.operations.len() - done;
        let each = (group.sent - sent) as f64 / done as f64 / f64::from(replicas);
        per_request.push(each);
        assert_eq!(sum(&group, |tally| tally.no_ops), 0, "no number of a session is skipped");
        let took = |one: &common::clients::Operation| one.done.map(|(at, ..)| at - one.called);
        let slowest = group.clients.operations[100..].iter().filter_map(took).max();
        assert!(slowest <= Some(3 * plan.delay + 1), "client, sequencer, replica, client");
        group.settle();
    }
    // Only heartbeats: their number follows from time, not from the requests.
    assert!(per_request.iter().all(|&each| each < 0.1), "{per_request:?}");
}

#[test]
fn what_one_replica_misses_it_gets_from_another() {
    for misses in [0, 1] {
        let mut group = idle(patient(3));
        let (session, next) = group.next_message();
        group.lose.insert((session, next, misses));
        group.write(0);
        group.write(1);
        group.run_for(400);
        assert!(group.clients.is_idle(), "both are done: {:?}", group.statuses());
        let tally = group.replica(ReplicaId(misses)).tally();
        assert_eq!((tally.missing, tally.found, tally.no_ops), (1, 1, 0));
        group.settle();
    }
}

#[test]
fn what_all_miss_becomes_a_no_op_and_the_client_sends_again() {
    let mut group = idle(Plan { client_retry: 3_000, ..Plan::calm(3) });
    let (session, next) = group.next_message();
    group.lose.extend((0..3).map(|id| (session, next, id)));
    group.write(0);
    group.write(1);
    group.run_for(1_000);
    assert_eq!(sum(&group, |tally| tally.no_ops), 3, "one slot on three replicas");
    assert!(!group.clients.is_idle());
    group.run_for(5_000);
    assert!(group.clients.is_idle());
    group.settle();
}

#[test]
fn a_body_that_one_replica_misses_it_gets_from_another() {
    for misses in [0, 1] {
        let mut group = idle(Plan { datagram: 0, ..patient(3) });
        group.lose_bodies = Some(ReplicaId(misses));
        group.write(0);
        group.write(1);
        group.run_for(400);
        assert!(group.clients.is_idle(), "both are done: {:?}", group.statuses());
        let tally = group.replica(ReplicaId(misses)).tally();
        assert_eq!((tally.missing, tally.found, tally.no_ops), (2, 2, 0));
        group.settle();
    }
}

#[test]
fn receiving_goes_on_beyond_a_gap_and_replies_do_not() {
    let mut group = idle(Plan { client_window: 8, ..patient(3) });
    let (session, next) = group.next_message();
    group.lose.extend((0..3).map(|id| (session, next, id)));
    group.mute.push(("GapCommitRep", None, None));
    (0..6).for_each(|_| group.write(0));
    let before = last(&group, 0);
    group.run_for(1_000);
    let (_, ahead, open) = group.replica(LEADER).waiting();
    assert_eq!((last(&group, 0), ahead, open), (before, 6, 1), "one gap and what is behind it");
    assert!(group.clients.operations.iter().rev().take(6).all(|one| one.done.is_none()));
    group.mute.clear();
    group.run_for(500);
    assert_eq!(last(&group, 0), before + 6, "all at once");
    group.settle();
}

#[test]
fn a_no_op_overwrites_a_followers_request() {
    let mut group = idle(patient(3));
    let (session, next) = group.next_message();
    group.lose.insert((session, next, 0));
    group.mute.push(("GapReply", None, None));
    group.write(0);
    group.write(1);
    group.run_for(1_000);
    assert_eq!(sum(&group, |tally| tally.no_ops), 3, "the followers had it");
    group.settle();
}

#[test]
fn a_no_op_undoes_what_an_ousted_leader_executed() {
    let mut group = idle(patient(3));
    let (session, next) = group.next_message();
    group.lose.extend((1..3).map(|id| (session, next, id)));
    for other in [ReplicaId(1), ReplicaId(2)] {
        group.cuts.push((LEADER, other, 40_000));
        group.cuts.push((other, LEADER, 40_000));
    }
    group.write(0);
    group.run_for(100);
    let executed = group.host(LEADER).expect("it runs").executor().executed();
    assert_eq!(executed.op.0, last(&group, 1) + 1, "the leader executes at once");
    group.run(39_000, false);
    assert_ne!(group.replica(ReplicaId(1)).view_id().leader_number, 0, "another one leads");
    group.run(60_000, false);
    assert!(group.replica(LEADER).tally().rolled_back > 0, "what it executed alone is undone");
    group.settle();
}

#[test]
fn a_start_view_of_the_present_view_changes_nothing() {
    let mut group = idle(Plan { client_window: 8, ..patient(3) });
    let leader = group.replica(LEADER);
    let (view, after) = (leader.view_id(), Viewstamp::default());
    let entries: Vec<_> = leader.log().above(OpNumber(0)).take(1).cloned().collect();
    let body = Body::StartView(Suffix { after, entries });
    let message = Message { view, members: Members::all(3), lives: Lives::new(3), body };
    (0..5).for_each(|_| group.write(0));
    group.run_for(35);
    let before = (last(&group, 1), group.replica(ReplicaId(1)).waiting());
    let incarnation = Incarnation(1);
    group.step(ReplicaId(1), Input::Message { from: LEADER, incarnation, message });
    assert_eq!((last(&group, 1), group.replica(ReplicaId(1)).waiting()), before);
    assert_eq!(group.replica(ReplicaId(1)).tally().views, 1);
    group.settle();
}

#[test]
fn leader_and_session_change_at_the_same_time() {
    for seed in 0..20 {
        let mut group = Group::new(Plan::calm(5), seed);
        group.run(10_000 + 50 * seed, false);
        group.pause(LEADER, group.now + 20_000);
        group.run_for(3_300 + 10 * seed);
        group.sequencers.last_mut().expect("there is one").alive = false;
        group.new_sequencer();
        group.run_for(10_000);
        let view = group.replica(ReplicaId(1)).view_id();
        assert_eq!((view.leader_number > 0, view.session), (true, Session(2)), "both went up");
        group.settle();
    }
}

#[test]
fn a_session_ends_in_the_middle_of_gap_agreement() {
    for muted in ["GapCommit", "GapCommitRep", "GapReply", "GapRequest"] {
        let mut group = idle(Plan { client_retry: 4_000, client_window: 2, ..Plan::calm(3) });
        let (session, next) = group.next_message();
        group.lose.insert((session, next, 0));
        group.lose.insert((session, next, 2));
        group.mute.push((muted, None, None));
        group.write(0);
        group.write(1);
        group.run_for(250);
        group.sequencers.last_mut().expect("there is one").alive = false;
        group.new_sequencer();
        group.write(1);
        group.run_for(20_000);
        assert!(group.clients.is_idle(), "{muted}");
        assert_eq!(group.replica(LEADER).view_id().session, Session(2));
        group.settle();
    }
}

#[test]
fn a_reply_of_a_former_life_does_not_count() {
    let group = reply_of_a_former_life(patient(3));
    assert!(group.tally.views > 0);
}

#[test]
fn a_promise_of_a_former_life_does_not_count() {
    let group = promise_of_a_former_life(patient(3));
    assert!(group.tally.nonsense > 0, "the late promise");
}

#[test]
fn a_start_view_of_a_former_life_ends_no_recovery() {
    let group = start_view_of_a_former_life(patient(3));
    assert!(group.tally.views > 0);
}

#[test]
fn a_deaf_replica_drags_nobody_along() {
    let mut group = Group::new(Plan::calm(5), 1);
    for other in (0..4).map(ReplicaId) {
        group.cuts.push((other, ReplicaId(4), 100_000));
    }
    group.run(60_000, false);
    for id in (0..4).map(ReplicaId) {
        assert_eq!(group.replica(id).view_id().leader_number, 0, "a quorum hears the leader");
    }
    group.settle();
}

#[test]
fn a_leader_that_gets_no_requests_is_replaced() {
    let mut group = Group::new(Plan::calm(3), 1);
    group.run(10_000, false);
    group.machine(LEADER).deaf = true;
    let done = group.clients.operations.iter().filter(|one| one.done.is_some()).count();
    group.run_for(40_000);
    assert_ne!(group.leader(), Some(LEADER), "it hears the others, but not the sequencer");
    let now = group.clients.operations.iter().filter(|one| one.done.is_some()).count();
    assert!(now > done + 20, "the group works without it");
    group.settle();
}

#[test]
fn no_session_begins_with_a_no_op() {
    for window in [1, 8] {
        let plan = Plan { client_window: window, clients: 3, think: 30, ..Plan::calm(3) };
        let mut group = Group::new(plan, 1);
        for session in 2..6 {
            group.run_for(10_000);
            group.new_sequencer();
            group.run_for(10_000);
            assert_eq!(group.replica(LEADER).view_id().session, Session(session));
        }
        group.settle();
        let Tally { no_ops, missing, .. } = group.tally;
        assert_eq!((no_ops, missing), (0, 0), "the first number of a session is 1 for everybody");
    }
}

#[test]
fn a_leader_whose_disk_stalls_is_replaced() {
    for durability in [Durability::Sync, Durability::Lazy] {
        let mut group = Group::new(Plan { durability, ..Plan::calm(3) }, 1);
        group.run(20_000, false);
        assert_eq!(group.leader(), Some(LEADER));
        group.machine(LEADER).stuck = true;
        group.run_for(40_000);
        assert_ne!(group.leader(), Some(LEADER), "it speaks, and stores nothing");
        let done = group.clients.operations.iter().filter(|one| one.done.is_some()).count();
        group.run_for(20_000);
        let now = group.clients.operations.iter().filter(|one| one.done.is_some()).count();
        assert!(now > done + 20, "{durability:?}: the group works without it");
        group.kill(LEADER, group.now + 100); // what it was given is gone
        group.machine(LEADER).stuck = false;
        group.run_for(20_000);
        group.settle();
    }
}

#[test]
fn a_group_whose_disks_are_slower_than_elections_elects() {
    for durability in [Durability::Memory, Durability::Sync, Durability::Lazy] {
        for seed in 0..10 {
            slow_disks(Plan { durability, think: 2_000, ..Plan::calm(3) }, seed);
        }
    }
}

#[test]
fn gaps_are_agreed_on_in_batches() {
    let mut group = idle(Plan { client_window: 60, ..patient(3) });
    let (session, next) = group.next_message();
    (0..40).for_each(|n| group.lose.extend((0..3).map(|id| (session, next + n, id))));
    (0..40).for_each(|_| group.write(0));
    group.write(1);
    let before = group.sent;
    group.run_for(450);
    assert_eq!(sum(&group, |tally| tally.no_ops), 3 * 40);
    // Asked for, told, agreed to: some messages for all of them, and heartbeats.
    assert!(group.sent - before < 40, "{} messages for 40 gaps", group.sent - before);
    group.settle();
}

#[test]
fn a_view_starts_though_the_owner_of_its_log_dies() {
    for seed in 0..30 {
        let plan = Plan { limits: Limits::tiny(), think: 60, ..Plan::calm(5) };
        let mut group = Group::new(plan, seed);
        group.run(8_000, false);
        // The next leader lags behind a checkpoint of the others, and they die as it asks them.
        group.machine(ReplicaId(1)).deaf = true;
        for other in [0, 2, 3, 4].map(ReplicaId) {
            group.cuts.push((other, ReplicaId(1), group.now + 12_000));
        }
        group.run_for(12_000);
        group.kill(LEADER, group.now + 60_000);
        group.machine(ReplicaId(1)).deaf = false;
        group.run_for(2_600 + 40 * seed);
        group.kill(ReplicaId(2 + (seed % 3) as u8), group.now + 60_000);
        group.run_for(30_000);
        assert!(group.leader().is_some_and(|id| id != LEADER), "{:?}", group.statuses());
        group.settle();
    }
}

#[test]
fn nothing_acknowledged_is_missing_after_a_crash_of_all() {
    for seed in 0..20 {
        let plan = Plan { durability: Durability::Sync, think: 50, ..Plan::calm(3) };
        let mut group = Group::new(plan, seed);
        group.run(10_000 + 37 * seed, false);
        for id in group.ids() {
            group.kill(id, group.now + 1_000);
        }
        group.run_for(40_000);
        assert!(group.leader().is_some(), "it comes back by itself: {:?}", group.statuses());
        group.settle();
    }
}

#[test]
fn a_lazy_group_comes_back_with_all_that_was_durable() {
    for seed in 0..20 {
        let plan = Plan { durability: Durability::Lazy, think: 50, disk: 300, ..Plan::calm(3) };
        let mut group = Group::new(plan, seed);
        group.run(10_000 + 37 * seed, false);
        let durable = group.reference.stable();
        assert!(durable > OpNumber(10), "disks follow");
        for id in group.ids() {
            group.kill(id, group.now + 1_000);
        }
        group.run_for(60_000);
        assert!(group.leader().is_some(), "it comes back by itself: {:?}", group.statuses());
        // That stable logs agree with what was stable before is checked at every step.
        assert!(group.reference.stable() > durable, "{:?}", group.statuses());
        group.settle();
    }
}

/// How many acknowledged writes clients have learned to be lost.
fn lost_with_the_group(replay: bool) -> usize {
    let mut lost = 0;
    for seed in 0..6 {
        let calm = Plan { durability: Durability::Lazy, clients: 3, ..Plan::calm(3) };
        let plan = Plan { client_window: 8, think: 40, disk: 2_000, replay, ..calm };
        let mut group = Group::new(plan, seed);
        group.run(40_000 + 371 * seed, false);
        for id in group.ids() {
            group.kill(id, group.now + 1_000);
        }
        group.run_for(60_000);
        let again = group.clients.operations.iter().rev().filter(|one| one.done.is_some());
        assert!(again.count() > 50, "clients go on: {:?}", group.statuses());
        group.settle();
        lost += group.lost.len();
    }
    lost
}

#[test]
fn clients_learn_what_a_crash_of_all_has_taken() {
    assert!(lost_with_the_group(false) > 20, "disks were behind");
}

#[test]
fn what_a_crash_of_all_has_taken_is_sent_again_in_order() {
    // That each of them is there once, in the end, is checked when a group settles.
    assert!(lost_with_the_group(true) > 20, "disks were behind");
}

#[test]
fn what_is_to_be_durable_waits_for_the_disks_alone_and_survives_a_crash_of_all() {
    let mut lost = 0;
    for seed in 0..10 {
        let calm = Plan { durability: Durability::Lazy, ..patient(3) };
        let mut group = Group::new(Plan { durable: 500, disk: 2_000, clients: 4, ..calm }, seed);
        group.run(40_000, false);
        let (mut hasty, mut durable) = (Vec::new(), Vec::new());
        for one in &group.clients.operations[8..] {
            let Some((at, ..)) = one.done else { continue };
            if one.durable { durable.push(at - one.called) } else { hasty.push(at - one.called) }
        }
        assert!(hasty.len() > 30 && durable.len() > 20, "{} {}", hasty.len(), durable.len());
        hasty.sort_unstable();
        durable.sort_unstable();
        let (hasty, durable) = (hasty[hasty.len() / 2], durable[durable.len() / 2]);
        assert!(hasty <= 3 * calm.delay + 1, "{hasty}: it waits for no disk");
        assert!((500..6_000).contains(&durable), "{durable}: two disks, and one round");
        group.ids().for_each(|id| group.kill(id, group.now + 1_000));
        group.run_for(40_000);
        group.settle();
        // That nothing of it was to be durable is checked when a client learns of it.
        lost += group.lost.len();
    }
    assert!(lost > 10, "disks were behind: {lost}");
}

#[test]
fn one_crash_takes_nothing_from_a_lazy_group() {
    for seed in 0..6 {
        let calm = Plan { durability: Durability::Lazy, clients: 3, ..Plan::calm(3) };
        let mut group = Group::new(Plan { client_window: 8, think: 40, disk: 2_000, ..calm }, seed);
        group.run(20_000 + 371 * seed, false);
        let leader = group.leader().expect("somebody leads");
        group.kill(leader, group.now + 5_000);
        group.run_for(30_000);
        group.settle();
        assert_eq!(group.lost, []);
    }
}

#[test]
fn a_memory_group_that_lost_its_state_says_so() {
    let mut group = Group::new(Plan::calm(3), 1);
    group.run(10_000, false);
    for id in [1, 2].map(ReplicaId) {
        group.kill(id, group.now + 100);
    }
    group.run_for(10_000);
    let role = |id| group.host(id).map(|host| smr::Protocol::report(host.protocol()).role);
    assert_eq!(role(ReplicaId(1)), Some(smr::Role::StateLost));
    assert_eq!(group.replica(ReplicaId(2)).status(), Status::Recovering);
    assert!(group.replica(LEADER).sync_point() > OpNumber(0), "what one replica has is not enough");
}

#[test]
fn a_replica_far_behind_comes_back_by_a_checkpoint() {
    let plan = Plan { limits: Limits::tiny(), think: 60, ..Plan::calm(3) };
    let mut group = Group::new(plan, 3);
    group.run(8_000, false);
    group.kill(ReplicaId(2), group.now + 30_000);
    group.run_for(60_000);
    assert_eq!(group.replica(ReplicaId(2)).status(), Status::Normal);
    let base = group.replica(ReplicaId(2)).log().base().op;
    assert!(base > OpNumber(100), "its log begins at a checkpoint: {base:?}");
    group.settle();
}

#[test]
fn overtaken_messages_are_no_gaps_while_the_receiver_waits() {
    let gaps = |patience: u64| {
        let plan = Plan { patience, spread: 25, think: 20, datagram: 100, ..Plan::calm(3) };
        let mut group = Group::new(plan, 1);
        group.run(60_000, false);
        group.settle();
        let done = group.clients.operations.iter().filter(|one| one.done.is_some()).count();
        (group.tally.missing, done)
    };
    let (hasty, patient) = (gaps(0), gaps(30));
    assert!(hasty.0 > 50 && patient.0 == 0, "{hasty:?} {patient:?}");
    assert!(patient.1 > hasty.1, "{hasty:?} {patient:?}");
}

#[test]
fn what_is_asked_for_without_a_quorum_is_bounded_in_bytes() {
    for durability in [Durability::Memory, Durability::Sync, Durability::Lazy] {
        let mut group = without_a_quorum(Plan { durability, ..Plan::calm(3) });
        for id in group.ids() {
            let replica = group.replica(id);
            let bytes = replica.log().bytes_above(replica.stable_point());
            // That it is bounded is checked at every step.
            assert!(bytes > 5_000, "{durability:?}: it is full: {bytes} bytes");
            assert!(replica.tally().overflow > 0, "{durability:?}: what comes then is not taken");
        }
        group.settle();
    }
}

#[test]
fn after_a_crash_of_all_a_vote_carries_what_was_not_stable_alone() {
    for durability in [Durability::Sync, Durability::Lazy] {
        let mut group = Group::new(Plan { durability, think: 40, ..Plan::calm(3) }, 1);
        group.run(60_000, false);
        for id in group.ids() {
            group.kill(id, group.now + 1_000);
        }
        group.run_for(1_100);
        for id in group.ids() {
            let replica = group.replica(id);
            let (log, stable) = (replica.log(), replica.stable_point());
            assert!(log.last().op > OpNumber(500), "it has no checkpoint, and a long log");
            assert!(log.last().op.0 - stable.0 < 100, "{durability:?}: {stable:?} of {log:?}");
        }
        group.settle();
    }
}

fn of(ids: &[u8]) -> Members {
    Members::of(ids.iter().copied().map(ReplicaId))
}

fn done(group: &Group) -> usize {
    group.clients.operations.iter().filter(|one| one.done.is_some()).count()
}

/// Changes the members, and waits until they have changed.
fn change_to(group: &mut Group, ids: &[u8]) {
    let before = group.changes;
    group.change_members(of(ids));
    group.run_for(20_000);
    assert_eq!((group.changes, group.members()), (before + 1, of(ids)), "{:?}", group.statuses());
}

#[test]
fn a_dead_member_is_replaced_and_the_group_bears_another_loss() {
    for durability in [Durability::Memory, Durability::Sync, Durability::Lazy] {
        let mut group = Group::new(Plan { durability, ..Plan::calm(4) }, 1);
        change_to(&mut group, &[0, 1, 2]);
        group.kill(ReplicaId(2), group.now + 300_000);
        group.run_for(10_000);
        change_to(&mut group, &[0, 1, 3]);
        group.kill(ReplicaId(1), group.now + 300_000);
        group.run_for(10_000);
        let before = done(&group);
        group.run_for(20_000);
        assert!(done(&group) > before + 20, "{durability:?}: 0 and 3 are a majority");
        group.settle();
    }
}

#[test]
fn a_leader_that_is_removed_gives_way_to_a_member() {
    let mut group = Group::new(Plan::calm(3), 1);
    group.run(10_000, false);
    assert_eq!(group.leader(), Some(LEADER));
    change_to(&mut group, &[1, 2]);
    assert_eq!(group.leader(), Some(ReplicaId(1)));
    let before = done(&group);
    group.kill(LEADER, group.now + 100_000);
    group.run_for(20_000);
    assert!(done(&group) > before + 20, "it is not missed");
    change_to(&mut group, &[2]);
    group.kill(ReplicaId(1), group.now + 100_000);
    group.run_for(20_000);
    assert_eq!(group.leader(), Some(ReplicaId(2)), "alone");
    group.settle();
}

#[test]
fn all_members_are_replaced_at_once() {
    let mut group = Group::new(Plan { think: 40, ..Plan::calm(6) }, 1);
    change_to(&mut group, &[0, 1, 2]);
    change_to(&mut group, &[3, 4, 5]);
    for id in (0..3).map(ReplicaId) {
        group.kill(id, group.now + 100_000);
    }
    let before = done(&group);
    group.run_for(30_000);
    assert!(done(&group) > before + 50, "{:?}", group.statuses());
    group.settle();
}

#[test]
fn members_that_leave_take_nothing_along() {
    let group = members_leave_before_others_have_their_log(patient(6));
    assert_eq!(group.changes, 2);
}

#[test]
fn two_of_four_are_no_quorum() {
    let mut group = Group::new(Plan::calm(4), 1);
    group.run(10_000, false);
    for from in group.ids() {
        let others = group.ids().filter(|to| from.0 / 2 != to.0 / 2);
        group.cuts.extend(others.map(|to| (from, to, 60_000)));
    }
    group.run_for(200);
    let before = group.replica(LEADER).sync_point();
    group.run(59_000, false);
    assert_eq!(group.replica(LEADER).sync_point(), before, "nothing is stable that two hold");
    let views = group.ids().map(|id| group.replica(id).tally().views).max();
    assert_eq!(views, Some(1), "nor do two start a view");
    group.settle();
}

#[test]
fn the_other_of_two_leaves_a_leader_that_recovers() {
    for durability in [Durability::Sync, Durability::Lazy] {
        let mut group = Group::new(Plan { durability, ..Plan::calm(2) }, 1);
        group.run(10_000, false);
        assert_eq!(group.leader(), Some(LEADER));
        group.kill(LEADER, group.now + 100);
        group.run_for(30_000);
        let before = done(&group);
        group.run_for(20_000);
        assert!(done(&group) > before + 20, "{durability:?}: {:?}", group.statuses());
        group.settle();
    }
}

#[test]
fn a_start_view_that_ends_below_what_is_stable_comes_too_late() {
    let mut group = Group::new(Plan::calm(3), 1);
    group.run(20_000, false);
    let leader = group.replica(LEADER);
    let (present, after) = (leader.view_id(), Viewstamp::default());
    let view = ViewId { leader_number: 3, ..present };
    let entries: Vec<_> = leader.log().above(OpNumber(0)).take(1).cloned().collect();
    let body = Body::StartView(Suffix { after, entries });
    let message = Message { view, members: Members::all(3), lives: Lives::new(3), body };
    let incarnation = Incarnation(1);
    group.step(ReplicaId(1), Input::Message { from: LEADER, incarnation, message });
    assert_eq!(group.replica(ReplicaId(1)).view_id(), present);
    group.settle();
}

/// Replica 1 is elected, and lacks what is stable. While nothing reaches it the others elect 2, and
/// what comes then is of that view: the votes that 1 still holds are of a view that they have left.
#[test]
fn who_gets_slots_of_a_later_view_leaves_its_own() {
    let (late, next) = (ReplicaId(1), ReplicaId(2));
    let mut group = idle(patient(3));
    group.cuts.extend([(LEADER, late, 100_000), (next, late, 100_000)]);
    let (session, number) = group.next_message();
    group.lose.insert((session, number, late.0));
    group.write(0);
    group.run_for(1_200);
    assert!(group.replica(next).sync_point() > group.replica(late).log().last().op);
    let (now, pause) = (group.now, 8_000);
    group.pause(LEADER, now + pause);
    group.cuts.clear();
    group.mute.push(("Stable", None, None));
    while group.replica(next).view_id().leader_number == 0 {
        group.run_for(10);
        assert!(group.now < now + pause, "nobody suspects the leader");
    }
    group.run_for(200); // the vote of 2 comes to 1, which asks for what it lacks
    for other in [LEADER, next] {
        group.cuts.extend([(other, late, 100_000), (late, other, 100_000)]);
    }
    group.run_for(20_000);
    let view = |group: &Group, id| (group.replica(id).status(), group.replica(id).view_id());
    assert_eq!(group.leader(), Some(next));
    assert_eq!(view(&group, late).0, Status::ViewChange);
    assert!(view(&group, late).1 < view(&group, next).1);
    group.cuts.clear();
    group.mute.clear();
    let others = ["StartView", "SyncPrepare", "SyncCommit", "Suspect", "ViewChangeReq", "AskView"];
    group.mute.extend(others.map(|kind| (kind, None, Some(late.0))));
    group.run_for(1_000);
    assert_eq!(last(&group, 1), last(&group, 2), "it has what is stable");
    assert_eq!(view(&group, late), (Status::ViewChange, view(&group, next).1));
    group.mute.clear();
    group.settle();
}

#[test]
fn a_checkpoint_of_a_later_view_than_the_disks_is_joined() {
    let id = |leader_number, session| ViewId { leader_number, session: Session(session) };
    for durability in [Durability::Sync, Durability::Lazy] {
        let incarnation = Incarnation(2);
        let identity = Identity { group: common::GROUP, replica: ReplicaId(1), incarnation };
        let mut replica = Replica::new(Config::new(identity, 3, durability, 1));
        let position = Viewstamp::new(id(1, 2).to_view(3), OpNumber(9));
        let (trust, view, log) = (Trust::Intact, id(0, 3).to_view(3), Log::new(position));
        let recovered = Recovered { trust, view, log, checkpoint: Some(position) };
        let now = Now { micros: 1, unix_ms: 1 };
        replica.step(now, Input::Start(recovered), &mut Vec::new());
        assert_eq!(replica.view_id(), id(1, 3), "{durability:?}");
    }
}
