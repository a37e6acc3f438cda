//! Cases that the paper and the errata name, one by one, without other faults.

mod common;

use common::{Group, Plan};
use fabric::sim::Options;
use mu::Limits;
use smr::{ReplicaId, Role};

const LEADER: ReplicaId = ReplicaId(0);

fn group(seed: u64) -> Group {
    let plan = Plan {
        replicas: 3,
        options: Options::rough(),
        limits: Limits::tiny(),
        clients: 4,
        watched: false,
        ..Plan::draw(seed)
    };
    let mut group = Group::new(plan, seed);
    group.run(5_000, false);
    assert_eq!(group.role(LEADER), Some(Role::Primary), "the lowest id leads");
    group
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
        let mut group = group(seed);
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
