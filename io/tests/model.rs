//! Random batches and restarts against a model in memory.

mod common;

use common::*;
use proptest::prelude::*;
use smr::{Log, OpNumber, StoreBatch, Trust, View, Viewstamp};

#[derive(Clone, Debug)]
enum Step {
    Append { count: usize, body: usize, drop: u64 },
    NextView,
    Checkpoint { below: u64 },
    Transfer { ahead: u64 },
    Sync,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let body = prop_oneof![8 => 0..300usize, 1 => 3000..9000usize];
    prop_oneof![
        12 => (0..4usize, body, 0..6u64)
            .prop_map(|(count, body, drop)| Step::Append { count, body, drop }),
        2 => Just(Step::NextView),
        2 => (0..5u64).prop_map(|below| Step::Checkpoint { below }),
        1 => (0..8u64).prop_map(|ahead| Step::Transfer { ahead }),
        5 => Just(Step::Sync),
        2 => Just(Step::Restart),
    ]
}

/// What the disk must hold.
struct Model {
    log: Log,
    view: View,
    checkpoint: Viewstamp,
}

fn run(steps: &[Step]) {
    let scratch = Scratch::new("model");
    create(scratch.path());
    let mut opened = open(scratch.path());
    let mut model = Model {
        log: Log::new(Viewstamp::default()),
        view: View(256),
        checkpoint: Viewstamp::default(),
    };
    let mut number = 1;
    opened.log.append(&StoreBatch { view: Some(model.view), ..batch(number) }).expect("appended");
    for step in steps {
        number += 1;
        let mut next = batch(number);
        match *step {
            Step::Append { count, body, drop } => {
                let keep = model.log.last().op.0.saturating_sub(drop).max(model.log.base().op.0);
                if drop > 3 {
                    next.truncate = Some(OpNumber(keep));
                    model.log.truncate(OpNumber(keep));
                }
                for _ in 0..count {
                    let entry = entry(model.log.last(), model.view.0, body);
                    next.append.push(entry.clone());
                    model.log.append(entry);
                }
            }
            Step::NextView => {
                model.view = model.view.next_for(smr::ReplicaId(0));
                next.view = Some(model.view);
            }
            Step::Checkpoint { below } => {
                let op = OpNumber(model.log.last().op.0.saturating_sub(below));
                let Some(position) = model.log.viewstamp_at(op).filter(|at| at.op.0 > 0) else {
                    continue;
                };
                opened.log.sync().expect("synced");
                checkpoint(&opened.directory, position);
                model.checkpoint = position;
                model.log.trim(op);
                next.trim = Some(op);
            }
            Step::Transfer { ahead } => {
                let op = model.log.last().op.0 + ahead;
                let position = Viewstamp::new(model.view, OpNumber(op.max(1)));
                checkpoint(&opened.directory, position);
                model.checkpoint = position;
                model.log = Log::new(position);
                next.reset = Some(position);
            }
            Step::Sync => {
                opened.log.sync().expect("synced");
                continue;
            }
            Step::Restart => {
                opened.log.sync().expect("synced");
                drop(opened);
                opened = open(scratch.path());
                check(&opened, &model);
                continue;
            }
        }
        opened.log.append(&next).expect("appended");
    }
    opened.log.sync().expect("synced");
    drop(opened);
    check(&open(scratch.path()), &model);
}

fn check(opened: &io::Opened, model: &Model) {
    let recovered = &opened.recovered;
    assert_eq!(recovered.trust, Trust::Intact, "{:?}", opened.findings);
    assert!(opened.findings.is_empty(), "{:?}", opened.findings);
    assert_eq!(recovered.view, model.view);
    assert_eq!(recovered.checkpoint.unwrap_or_default(), model.checkpoint);
    assert_eq!(recovered.log.base(), model.log.base());
    let base = model.log.base().op;
    assert!(recovered.log.above(base).eq(model.log.above(base)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 200, ..Default::default() })]

    #[test]
    fn a_restart_changes_nothing(steps in prop::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}
