//! The watch's rules, one by one.

#![allow(missing_docs)]

use std::net::SocketAddr;

use controller::{Act, Addresses, Group, News, Reason, Timing, Watch};
use oum::{Control, Life, Members, Session};
use smr::{GroupId, ReplicaId};

const GROUP: GroupId = GroupId(7);
const TIMING: Timing = Timing { probe: 5_000, suspect: 40_000 };

fn address(kind: u8, index: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, kind, index], 1))
}

fn sequencer(index: u8) -> SocketAddr {
    address(1, index)
}

fn group(session: u32, served_by: Option<(u8, u64)>) -> Group {
    let members = (0..3).map(|index| address(2, index)).collect();
    let addresses = Addresses { members, multicast: None };
    Group {
        session: Session(session),
        sequencer: served_by.map(|(index, life)| (sequencer(index), Life(life))),
        ..Group::new(addresses)
    }
}

fn opened(session: u32, life: u64) -> Control {
    Control::Opened { group: GROUP, session: Session(session), life: Life(life), stamped: 0 }
}

/// A leader that knows two sequencers, both of which answer.
struct Leader {
    watch: Watch,
    acts: Vec<Act>,
}

impl Leader {
    fn new(group: &Group) -> Leader {
        let mut watch = Watch::new(TIMING);
        watch.lead(true);
        watch.learn_sequencers(&[sequencer(0), sequencer(1)]);
        let mut leader = Leader { watch, acts: Vec::new() };
        leader.watch.learn_group(0, GROUP, group, &mut leader.acts);
        leader.tick(0);
        leader
    }

    fn hear(&mut self, now: u64, from: SocketAddr, control: &Control) -> Vec<Act> {
        self.watch.receive(now, from, control, &mut self.acts);
        std::mem::take(&mut self.acts)
    }

    fn tick(&mut self, now: u64) -> Vec<Act> {
        self.watch.tick(now, &mut self.acts);
        std::mem::take(&mut self.acts)
    }
}

/// A leader whose group is in session 4 at sequencer 0, and all members know it.
fn settled() -> Leader {
    let mut leader = Leader::new(&group(4, Some((0, 100))));
    leader.hear(0, sequencer(0), &opened(4, 100));
    leader.hear(
        0,
        sequencer(1),
        &Control::Opened { group: GroupId(0), session: Session(0), life: Life(200), stamped: 0 },
    );
    for member in 0..3 {
        let from = ReplicaId(member);
        let listening =
            Control::Listening { group: GROUP, session: Session(4), from, settled: false };
        leader.hear(0, address(2, member), &listening);
    }
    leader
}

fn proposals(acts: &[Act]) -> Vec<(u32, SocketAddr, u64)> {
    let proposal = |act: &Act| match *act {
        Act::Propose { present, sequencer, life, .. } => Some((present.0, sequencer, life.0)),
        _ => None,
    };
    acts.iter().filter_map(proposal).collect()
}

fn reasons(acts: &[Act]) -> Vec<Reason> {
    let reason = |act: &Act| match *act {
        Act::Tell(News::Failed(.., reason)) => Some(reason),
        _ => None,
    };
    acts.iter().filter_map(reason).collect()
}

fn listens(acts: &[Act]) -> usize {
    let is_listen = |act: &&Act| matches!(act, Act::Send(_, Control::Listen { .. }));
    acts.iter().filter(is_listen).count()
}

#[test]
fn a_silent_sequencer_is_left_after_the_time_and_not_before() {
    let mut leader = settled();
    for now in (5_000..45_000).step_by(5_000) {
        leader.hear(now, sequencer(1), &opened(0, 200));
        assert_eq!(proposals(&leader.tick(now)), []);
    }
    let acts = leader.tick(45_000);
    assert_eq!(proposals(&acts), [(4, sequencer(1), 200)]);
    assert_eq!(reasons(&acts), [Reason::Silent]);
    assert_eq!(proposals(&leader.tick(50_000)), [], "it waits for the answer");
}

#[test]
fn a_leader_that_was_stopped_does_not_blame_the_sequencer() {
    let mut leader = settled();
    assert_eq!(proposals(&leader.tick(5_000)), []);
    assert_eq!(proposals(&leader.tick(10_000_000)), []);
    leader.hear(10_000_100, sequencer(0), &opened(4, 100));
    assert_eq!(proposals(&leader.tick(10_005_000)), []);
}

#[test]
fn a_sequencer_that_answers_now_and_then_is_kept() {
    let mut leader = settled();
    for now in (5_000..2_000_000).step_by(5_000) {
        if now % 35_000 == 0 {
            leader.hear(now, sequencer(0), &opened(4, 100));
        }
        leader.hear(now, sequencer(1), &opened(0, 200));
        assert_eq!(proposals(&leader.tick(now)), [], "{now}");
    }
}

#[test]
fn a_restarted_sequencer_gets_no_session_back() {
    let mut leader = settled();
    // No other one answers: the same, but in a new session and its new life.
    for now in (5_000..100_000).step_by(5_000) {
        leader.hear(now, sequencer(0), &opened(4, 100));
        assert_eq!(proposals(&leader.tick(now)), []);
    }
    let acts = leader.hear(100_000, sequencer(0), &opened(0, 101));
    assert_eq!(proposals(&acts), [(4, sequencer(0), 101)]);
    assert_eq!(reasons(&acts), [Reason::Restarted]);
    let is_open = |act: &Act| matches!(act, Act::Send(_, Control::Open { .. }));
    assert!(!acts.iter().any(is_open), "nothing is opened before it is committed");
}

#[test]
fn complaints_of_f_members_are_not_enough_and_of_f_plus_1_are() {
    let mut leader = settled();
    let complain = |from: u8, session: u32| Control::Unheard {
        group: GROUP,
        session: Session(session),
        from: ReplicaId(from),
    };
    for now in [1_000, 2_000] {
        let acts = leader.hear(now, address(2, 1), &complain(1, 4));
        assert_eq!(proposals(&acts), [], "one and the same");
    }
    assert_eq!(proposals(&leader.hear(3_000, address(2, 2), &complain(2, 3))), [], "too late");
    assert_eq!(proposals(&leader.hear(3_000, address(2, 9), &complain(9, 4))), [], "no member");
    let acts = leader.hear(4_000, address(2, 2), &complain(2, 4));
    assert_eq!(proposals(&acts), [(4, sequencer(1), 200)]);
    assert_eq!(reasons(&acts), [Reason::Unheard]);
}

#[test]
fn members_are_told_once_the_session_is_open_and_until_they_know() {
    let mut leader = settled();
    leader.watch.learn_group(50_000, GROUP, &group(5, Some((1, 200))), &mut leader.acts);
    let acts = std::mem::take(&mut leader.acts);
    assert_eq!(acts.len(), 1, "{acts:?}");
    assert!(
        matches!(acts[0], Act::Send(to, Control::Open { session: Session(5), life: Life(200), .. })
        if to == sequencer(1))
    );
    assert_eq!(listens(&leader.tick(50_000)), 0);
    let ask = Control::Ask { group: GROUP };
    assert_eq!(leader.hear(51_000, address(3, 0), &ask), [], "not open yet");
    // A late answer of the session before, and of another life.
    leader.hear(51_000, sequencer(1), &opened(0, 200));
    assert_eq!(listens(&leader.tick(55_000)), 0);
    assert_eq!(listens(&leader.hear(56_000, sequencer(1), &opened(5, 200))), 3);
    assert_eq!(listens(&leader.hear(56_000, address(3, 0), &ask)), 1);
    let known = |from| Control::Listening {
        group: GROUP,
        session: Session(5),
        from: ReplicaId(from),
        settled: false,
    };
    leader.hear(57_000, address(2, 0), &known(0));
    assert_eq!(listens(&leader.tick(61_000)), 2, "the others are told again");
    leader.hear(62_000, address(2, 1), &known(1));
    let acts = leader.hear(63_000, address(2, 2), &known(2));
    assert_eq!(acts, [Act::Tell(News::Listening(GROUP, Session(5), 13_000))]);
    assert_eq!(listens(&leader.tick(66_000)), 0);
}

#[test]
fn a_late_answer_of_the_group_changes_nothing() {
    let mut leader = settled();
    leader.watch.learn_group(1_000, GROUP, &group(3, Some((1, 200))), &mut leader.acts);
    leader.watch.learn_group(1_000, GROUP, &group(4, Some((0, 100))), &mut leader.acts);
    assert_eq!(leader.acts, []);
}

#[test]
fn one_that_does_not_lead_only_says_who_does() {
    let mut leader = settled();
    leader.watch.lead(false);
    leader.watch.follow(Some(address(0, 2)));
    assert_eq!(leader.tick(1_000_000), []);
    assert_eq!(leader.hear(1_000_000, sequencer(0), &opened(0, 101)), []);
    leader.watch.learn_group(1_000_000, GROUP, &group(9, Some((1, 1))), &mut leader.acts);
    let acts = leader.hear(1_000_000, address(3, 0), &Control::Ask { group: GROUP });
    let elsewhere = Control::Elsewhere { group: GROUP, controller: address(0, 2) };
    assert_eq!(acts, [Act::Send(address(3, 0), elsewhere)]);
    leader.watch.follow(None);
    assert_eq!(leader.hear(1_000_001, address(3, 0), &Control::Ask { group: GROUP }), []);
}

#[test]
fn groups_are_spread_over_the_sequencers() {
    let mut watch = Watch::new(TIMING);
    let mut acts = Vec::new();
    watch.lead(true);
    watch.learn_sequencers(&[sequencer(0), sequencer(1)]);
    for id in 1..=10 {
        watch.learn_group(0, GroupId(id), &group(0, None), &mut acts);
    }
    watch.tick(0, &mut acts);
    assert_eq!(proposals(&acts), [], "nobody has answered yet");
    let answer =
        |life| Control::Opened { group: GroupId(0), session: Session(0), life, stamped: 0 };
    watch.receive(1, sequencer(0), &answer(Life(5)), &mut acts);
    assert_eq!(proposals(&acts).len(), 10, "the first that answers is taken");
    let mut late = Watch::new(TIMING);
    late.lead(true);
    late.learn_sequencers(&[sequencer(0), sequencer(1)]);
    late.tick(0, &mut acts);
    acts.clear();
    for index in 0..2 {
        late.receive(1, sequencer(index), &answer(Life(u64::from(index) + 5)), &mut acts);
    }
    for id in 1..=10 {
        late.learn_group(2, GroupId(id), &group(0, None), &mut acts);
    }
    let first = proposals(&acts).iter().filter(|(_, at, _)| *at == sequencer(0)).count();
    assert_eq!((proposals(&acts).len(), first), (10, 5));
}

#[test]
fn a_session_with_too_many_leaders_is_followed_by_one_of_the_same_sequencer() {
    let mut leader = settled();
    let worn = |session| Control::Worn { group: GROUP, session: Session(session) };
    assert_eq!(proposals(&leader.hear(1_000, address(2, 0), &worn(3))), [], "it is over");
    let acts = leader.hear(1_000, address(2, 0), &worn(4));
    assert_eq!(reasons(&acts), [Reason::Worn]);
    assert!(matches!(proposals(&acts)[..], [(4, ..)]));
}

#[test]
fn the_sequencer_and_the_members_are_told_of_the_multicast_address() {
    let multicast = Some("239.0.0.1:7".parse().unwrap());
    let mut group = group(4, Some((0, 100)));
    group.addresses.multicast = multicast;
    let mut watch = Watch::new(TIMING);
    watch.lead(true);
    watch.learn_sequencers(&[sequencer(0)]);
    let mut leader = Leader { watch, acts: Vec::new() };
    leader.watch.learn_group(0, GROUP, &group, &mut leader.acts);
    let (session, life, members) = (Session(4), Life(100), group.addresses.members.clone());
    let open = Control::Open { group: GROUP, session, life, members, multicast };
    assert_eq!(leader.acts, [Act::Send(sequencer(0), open)]);
    leader.tick(0);
    let acts = leader.hear(0, sequencer(0), &opened(4, 100));
    let (members, sequencer) = (Members::all(3), sequencer(0));
    let listen = Control::Listen { group: GROUP, session, members, sequencer, multicast };
    for member in 0..3 {
        // Each at its own socket: it may not have joined.
        assert!(acts.contains(&Act::Send(address(2, member), listen.clone())), "{acts:?}");
    }
}

#[test]
fn a_change_of_members_is_ended_when_one_says_that_it_has_settled() {
    let two = Members::of([0, 1].map(ReplicaId));
    let changing = Group { counting: Members::all(3).change_to(two), ..group(4, Some((0, 100))) };
    let mut leader = Leader::new(&changing);
    leader.hear(0, sequencer(0), &opened(4, 100));
    let mut says = |now, member, session, settled| {
        let (group, session, from) = (GROUP, Session(session), ReplicaId(member));
        let listening = Control::Listening { group, session, from, settled };
        let acts = leader.hear(now, address(2, member), &listening);
        acts.iter().filter(|act| matches!(act, Act::Settle { present: Session(4), .. })).count()
    };
    for member in 0..3 {
        assert_eq!(says(1_000, member, 4, false), 0);
    }
    assert_eq!(says(2_000, 1, 3, true), 0, "another session has");
    assert_eq!(says(2_000, 1, 4, true), 1);
    assert_eq!(says(2_001, 0, 4, true), 0, "it is asked for already");
    assert_eq!(says(900_000, 0, 4, true), 1, "the answer may be lost");
    assert_eq!(listens(&leader.tick(905_000)), 3, "all are asked until it is done");
    // One that is not there keeps the others from nothing.
    let mut leader = Leader::new(&changing);
    leader.hear(0, sequencer(0), &opened(4, 100));
    for member in 0..2 {
        let (group, session, from) = (GROUP, Session(4), ReplicaId(member));
        let listening = Control::Listening { group, session, from, settled: false };
        leader.hear(1_000, address(2, member), &listening);
    }
    assert_eq!(listens(&leader.tick(905_000)), 3);
}
