//! Cases that [Mu] names or leaves open, one by one, without other faults.

mod common;

use common::{Group, Plan};
use fabric::sim::Options;
use mu::{Change, ChangeError, Limits};
use smr::{Durability, Protocol, ReplicaId, Role};

const LEADER: ReplicaId = ReplicaId(0);

fn group(seed: u64) -> Group {
    group_of(seed, Durability::Memory, 3, 7)
}

fn group_of(seed: u64, durability: Durability, replicas: u8, members: u16) -> Group {
    let mut group = Group::new(plan_of(seed, durability, replicas, members), seed);
    group.run(5_000, false);
    assert_eq!(group.role(LEADER), Some(Role::Primary), "the lowest id leads");
    group
}

fn plan_of(seed: u64, durability: Durability, replicas: u8, members: u16) -> Plan {
    Plan {
        replicas,
        members,
        durability,
        changes: false,
        slowness: 50_000,
        options: Options::rough(),
        limits: match durability {
            Durability::Memory => Limits::tiny(),
            _ => Limits { slots: 32, kept: 1_024, kept_bytes: 1 << 20, ..Limits::tiny() },
        },
        clients: 4,
        watched: false,
        ..Plan::draw(seed)
    }
}

/// Runs for a while; returns how many operations were executed meanwhile, at most.
fn executed(group: &mut Group, micros: u64) -> u64 {
    let most = |group: &Group| {
        let executed = |id| group.host(id).map(|host| host.executor().executed().op.0);
        group.ids().filter_map(executed).max().unwrap_or(0)
    };
    let before = most(group);
    group.run(group.micros() + micros, false);
    most(group) - before
}

/// How many followers a leader has.
fn confirmed(group: &Group, id: ReplicaId) -> usize {
    let status = group.host(id).map(|host| host.protocol().status());
    status.map_or(0, |status| status.confirmed.iter().filter(|&&confirmed| confirmed).count())
}

#[test]
fn a_leader_that_wakes_up_late_writes_in_vain() {
    for seed in 0..20 {
        let mut group = group(seed);
        group.pause(LEADER, group.micros() + 20_000);
        assert!(executed(&mut group, 15_000) > 3, "the next one leads");
        assert_eq!(group.role(ReplicaId(1)), Some(Role::Primary));
        group.settle();
        group.run(group.micros() + 20_000, false);
        assert_eq!(group.role(LEADER), Some(Role::Primary), "the lowest id leads again");
    }
}

#[test]
fn a_dead_follower_blocks_nothing_and_comes_back() {
    for seed in 0..20 {
        let mut group = group(seed);
        let restart = group.micros() + 60_000;
        group.kill(ReplicaId(2), restart);
        assert!(executed(&mut group, 60_000) > 64, "more than four rings");
        group.settle();
        assert!(group.tally.transfers > 0, "by a checkpoint");
    }
}

#[test]
fn every_replica_can_lose_its_memory_one_after_the_other() {
    for seed in 0..20 {
        let mut group = Group::new(plan_of(seed, Durability::Memory, 3, 7), seed);
        group.run(5_000, false);
        for round in 0..6 {
            let id = ReplicaId(round % 3);
            group.run(group.micros() + 1_000, false);
            let killed = group.micros();
            group.kill(id, killed + 1_000);
            // Until somebody leads with all three.
            while !group.ids().any(|id| confirmed(&group, id) == 3) {
                assert!(group.micros() < killed + 200_000, "it votes and follows again");
                group.run(group.micros() + 1_000, false);
            }
            assert!(executed(&mut group, 20_000) > 0, "and the group works");
        }
        group.settle();
    }
}

#[test]
fn a_dead_leader_with_live_memory_is_replaced() {
    for seed in 0..20 {
        let mut group = group(seed);
        let before = group.micros();
        group.kill(LEADER, before + 50_000);
        while group.role(ReplicaId(1)) != Some(Role::Primary) {
            assert!(group.micros() < before + 10_000, "its heartbeat stands still");
            group.run(group.micros() + 100, false);
        }
        group.settle();
    }
}

#[test]
fn a_blackout_takes_nothing_acknowledged_from_sync() {
    for seed in 0..20 {
        let mut group = group_of(seed, Durability::Sync, 3, 7);
        for _ in 0..3 {
            group.blackout(2_000);
            group.run(group.micros() + 20_000, false);
            assert!(executed(&mut group, 10_000) > 0, "it comes back by itself");
        }
        group.settle();
        assert_eq!((group.tally.lost, group.tally.risky), (0, 0));
    }
}

#[test]
fn a_blackout_takes_a_suffix_at_most_from_lazy() {
    let (mut lost, mut risky) = (0, 0);
    for seed in 0..20 {
        let mut group = group_of(seed, Durability::Lazy, 3, 7);
        for _ in 0..3 {
            group.blackout(2_000);
            group.run(group.micros() + 20_000, false);
            assert!(executed(&mut group, 10_000) > 0, "it comes back by itself");
        }
        group.settle();
        lost += group.tally.lost;
        risky += group.tally.risky;
    }
    assert!(lost > 0 && risky > 0, "and something was lost, and said to be");
}

#[test]
fn one_forgetful_replica_costs_nothing() {
    for seed in 0..20 {
        let mut group = group_of(seed, Durability::Lazy, 3, 7);
        for round in 0..6 {
            let id = ReplicaId(round % 3);
            group.kill(id, group.micros() + 500);
            group.run(group.micros() + 20_000, false);
            let remembers = |id| !group.host(id).is_some_and(forgetful);
            assert!(group.ids().all(remembers), "it has remembered");
        }
        group.settle();
        assert_eq!((group.tally.lost, group.tally.risky), (0, 0));
    }
}

#[test]
fn who_gave_up_often_has_time_to_lead_when_it_can() {
    for seed in 0..10 {
        // Both members are needed, and do not reach each other.
        let mut group = group_of(seed, Durability::Lazy, 3, 3);
        group.fabric.borrow_mut().cut(ReplicaId(0), ReplicaId(1));
        group.run(group.micros() + 300_000, false);
        assert!(group.leader().is_none());
        group.fabric.borrow_mut().mend(ReplicaId(0), ReplicaId(1));
        // The longest patience, and not twice that.
        assert!(executed(&mut group, 64 * 4_000 + 20_000) > 0, "seed {seed}");
        group.settle();
    }
}

#[test]
fn a_lost_disk_costs_nothing() {
    for (seed, durability) in (0..20).zip([Durability::Sync, Durability::Lazy].into_iter().cycle())
    {
        let mut group = group_of(seed, durability, 3, 7);
        for round in 0..6 {
            let id = ReplicaId(round % 3);
            group.kill(id, group.micros() + 500);
            group.lose_disk(id);
            group.run(group.micros() + 20_000, false);
            let recovers = |id| group.host(id).is_some_and(|h| h.protocol().status().recovering);
            assert!(!group.ids().any(recovers), "its log is there again");
        }
        group.settle();
        assert_eq!((group.tally.lost, group.tally.risky, group.tally.disks), (0, 0, 6));
    }
}

/// Whether somebody has begun to lead, and its first entry is not decided.
fn begins(group: &Group) -> bool {
    let begins = |host: &common::Node| {
        host.protocol().report().role == Role::ViewChange
            && host.protocol().status().confirmed.iter().any(|&confirmed| confirmed)
    };
    group.ids().any(|id| group.host(id).is_some_and(begins))
}

#[test]
fn leaders_that_fail_in_a_row_do_not_fill_the_ring() {
    for (seed, durability) in (0..2).zip([Durability::Sync, Durability::Lazy].into_iter().cycle()) {
        let mut plan = plan_of(seed, durability, 3, 7);
        plan.limits.slots = 8;
        let mut group = Group::new(plan, seed);
        group.run(5_000, false);
        let mut in_a_row = 0;
        for _ in 0..60 {
            // Until it has given up; then promises are stored, and another begins.
            group.stick_disks(group.micros() + 14_000);
            group.run(group.micros() + 13_500, false);
            while group.leader().is_some() {
                group.stick_disks(group.micros() + 2_000);
                group.run(group.micros() + 1_000, false);
            }
            let until = group.micros() + 1_000_000;
            while !begins(&group) && group.leader().is_none() {
                assert!(group.micros() < until, "somebody begins when its patience is over");
                group.run(group.micros() + 5, false);
            }
            in_a_row = if begins(&group) { in_a_row + 1 } else { 0 };
            if in_a_row == 12 {
                break;
            }
        }
        assert_eq!(in_a_row, 12, "more than the ring has slots");
        group.settle();
    }
}

/// A group of replicas that are asked for nothing, with a short ring.
fn idle_group(seed: u64, durability: Durability) -> Group {
    let mut plan = plan_of(seed, durability, 3, 7);
    (plan.limits.slots, plan.clients) = (8, 0);
    Group::new(plan, seed)
}

/// Runs until somebody leads.
fn elect(group: &mut Group) {
    let until = group.micros() + 1_000_000;
    while group.leader().is_none() {
        assert!(group.micros() < until, "somebody leads");
        group.run(group.micros() + 5, false);
    }
}

/// Groups that are asked for nothing elect a leader and are struck, again and again.
fn strike_idle_groups(prepare: impl Fn(&mut Group), strike: impl Fn(&mut Group)) {
    for (seed, durability) in (0..8).zip([Durability::Sync, Durability::Lazy].into_iter().cycle()) {
        let mut group = idle_group(seed, durability);
        prepare(&mut group);
        for _ in 0..40 {
            elect(&mut group);
            strike(&mut group);
        }
        group.settle();
    }
}

#[test]
fn groups_that_stop_again_and_again_in_idleness_do_not_fill_the_ring() {
    let prepare = |group: &mut Group| {
        elect(group);
        group.kill(ReplicaId(2), u64::MAX / 2_000);
    };
    strike_idle_groups(prepare, |group| {
        group.run(group.micros() + 3_000, false);
        group.blackout(500);
    });
}

#[test]
fn leaders_that_crash_with_all_before_a_second_entry_do_not_fill_the_ring() {
    strike_idle_groups(|_| (), |group| group.blackout(500));
}

#[test]
fn leaders_that_crash_alone_before_a_second_entry_do_not_fill_the_ring() {
    strike_idle_groups(
        |_| (),
        |group| {
            let leader = group.leader().expect("just elected");
            group.kill(leader, group.micros() + 2_000);
        },
    );
}

fn forgetful(host: &common::Node) -> bool {
    host.protocol().report().forgetful
}

#[test]
fn replicas_are_added_and_removed() {
    for (seed, durability) in
        (0..30).zip([Durability::Memory, Durability::Sync, Durability::Lazy].into_iter().cycle())
    {
        let mut group = group_of(seed, durability, 5, 7);
        group.run(group.micros() + 5_000, false);
        let all = [
            Change::Add(ReplicaId(3)),
            Change::Add(ReplicaId(4)),
            Change::Remove(ReplicaId(2)),
            Change::Remove(ReplicaId(0)), // the leader
        ];
        for (change, members) in all.into_iter().zip([15, 31, 27, 26]) {
            group.change_to(change).expect("it follows already");
            group.run(group.micros() + 5_000, false);
            let leader = group.leader().expect("somebody leads");
            assert_eq!(group.members(leader), members);
            assert_ne!(members & 1 << leader.0, 0, "a member leads");
        }
        assert_eq!(group.leader(), Some(ReplicaId(1)));
        let refused = group.change_to(Change::Remove(ReplicaId(2)));
        assert_eq!(refused, Err(ChangeError::Pointless));
        // Two of the three members are enough, and those that were removed are not.
        group.kill(ReplicaId(3), u64::MAX / 2);
        assert!(executed(&mut group, 10_000) > 0);
        group.settle();
    }
}

#[test]
fn a_leader_that_dies_while_members_change_leaves_one_membership() {
    for (seed, durability) in
        (0..60).zip([Durability::Memory, Durability::Sync, Durability::Lazy].into_iter().cycle())
    {
        let mut group = group_of(seed, durability, 5, 15);
        let change = [Change::Add(ReplicaId(4)), Change::Remove(ReplicaId(3))][seed as usize % 2];
        group.run(group.micros() + 5_000, false);
        group.change_to(change).expect("it follows already");
        group.run(group.micros() + seed / 3, false);
        group.kill(LEADER, group.micros() + 15_000);
        group.run(group.micros() + 10_000, false);
        let leader = group.leader().expect("somebody leads");
        let after = [31, 7][seed as usize % 2];
        assert!([15, after].contains(&group.members(leader)));
        group.settle();
    }
}
