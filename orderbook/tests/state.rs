//! Undo, checkpoints, restoring, and bytes that make no sense.

mod support;

use orderbook::feed::{Feed, Shape};
use orderbook::{Command, Engine, Limits};
use proptest::prelude::*;
use smr::rng::Rng;
use smr::{BadCheckpoint, Context, OpNumber, StateMachine};
use support::{TINY, accepted, apply, read_back, recent, seen, write_out};

fn some(rng: &mut Rng, engine: &Engine, most: u64) -> Vec<Command> {
    let next = accepted(engine);
    (0..=rng.below(most)).map(|_| recent(rng, next)).collect()
}

#[test]
fn undo_restores_the_state_exactly() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut engine = Engine::new(TINY);
        let mut stack = Vec::new();
        for _ in 0..300 {
            if rng.chance(2, 5) && !stack.is_empty() {
                let (before, undo) = stack.pop().expect("it is not empty");
                engine.undo(undo);
                assert_eq!(seen(&engine), before, "seed {seed}");
                continue;
            }
            let commands = some(&mut rng, &engine, 6);
            let before = seen(&engine);
            let (_, undo) = apply(&mut engine, &commands);
            stack.push((before, undo));
            if rng.chance(1, 20) {
                stack.clear(); // committed
            }
        }
    }
}

#[test]
fn what_is_done_again_after_an_undo_is_the_same() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let (mut engine, mut straight) = (Engine::new(TINY), Engine::new(TINY));
        for _ in 0..100 {
            let commands = some(&mut rng, &engine, 6);
            let astray = some(&mut rng, &engine, 6);
            let (_, undo) = apply(&mut engine, &astray);
            engine.undo(undo);
            let answers = apply(&mut engine, &commands).0;
            assert_eq!(answers, apply(&mut straight, &commands).0);
        }
        assert_eq!(seen(&engine), seen(&straight));
    }
}

#[test]
fn a_checkpoint_shows_its_beginning_while_orders_go_on() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut engine = Engine::new(TINY);
        for _ in 0..rng.below(40) {
            let commands = some(&mut rng, &engine, 6);
            apply(&mut engine, &commands);
        }
        let before = seen(&engine);
        let mut since = Vec::new();
        let budget = [1, 60, 200][rng.below(3) as usize];
        let chunks = write_out(&mut engine, budget, |engine| {
            for _ in 0..rng.below(4) {
                let commands = some(&mut rng, engine, 3);
                let undo = apply(engine, &commands).1;
                if rng.chance(1, 3) {
                    engine.undo(undo);
                } else {
                    since.push(commands);
                }
            }
        });
        let mut restored = read_back(TINY, &chunks);
        assert_eq!(seen(&restored), before, "seed {seed}");
        since.iter().for_each(|commands| drop(apply(&mut restored, commands)));
        assert_eq!(seen(&restored), seen(&engine), "seed {seed}");
    }
}

#[test]
fn a_checkpoint_shows_what_is_undone_after_its_beginning() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut engine = Engine::new(TINY);
        let mut undos = Vec::new();
        for _ in 0..30 {
            let commands = some(&mut rng, &engine, 6);
            undos.push(apply(&mut engine, &commands).1);
        }
        let before = seen(&engine);
        let chunks = write_out(&mut engine, 60, |engine| {
            for undo in undos.pop().into_iter().chain(undos.pop()) {
                engine.undo(undo);
            }
            engine.check();
        });
        assert_eq!(seen(&read_back(TINY, &chunks)), before, "seed {seed}");
    }
}

#[test]
fn a_large_book_is_written_while_a_feed_goes_on() {
    let mut feed = Feed::new(Shape { seed: 9, symbols: 30, depth: 500 });
    let mut engine = Engine::default();
    let first: Vec<Command> = feed.by_ref().take(50_000).collect();
    apply(&mut engine, &first);
    let digest = engine.digest();
    let mut since = Vec::new();
    let chunks = write_out(&mut engine, 4096, |engine| {
        let commands: Vec<Command> = feed.by_ref().take(200).collect();
        apply(engine, &commands);
        since.extend(commands);
    });
    assert!(chunks.len() > 10 && chunks.iter().all(|chunk| chunk.len() < 8192));
    let mut restored = read_back(Limits::default(), &chunks);
    assert_eq!(restored.digest(), digest);
    apply(&mut restored, &since);
    restored.check();
    assert_eq!(restored.digest(), engine.digest());
    assert_eq!(restored.digest(), feed.engine().digest());
}

#[test]
fn a_checkpoint_that_was_given_up_leaves_nothing_behind() {
    let mut engine = Engine::new(TINY);
    let mut rng = Rng::new(4);
    for _ in 0..50 {
        engine.checkpoint_begin();
        engine.checkpoint_next(1, &mut Vec::new());
        let commands = some(&mut rng, &engine, 6);
        apply(&mut engine, &commands);
        engine.checkpoint_abort();
    }
    let before = seen(&engine);
    let chunks = write_out(&mut engine, 100, |_| {});
    assert_eq!(seen(&read_back(TINY, &chunks)), before);
}

#[test]
fn checkpoints_of_other_limits_and_nonsense_are_refused() {
    let mut engine = Engine::new(TINY);
    let mut rng = Rng::new(8);
    for _ in 0..30 {
        let commands = some(&mut rng, &engine, 6);
        apply(&mut engine, &commands);
    }
    let chunks = write_out(&mut engine, usize::MAX, |_| {});
    let [whole] = &chunks[..] else { panic!("one chunk") };
    let mut other = Engine::new(Limits { fills: 4, ..TINY });
    assert_eq!(other.restore_chunk(whole), Err(BadCheckpoint));
    for length in 0..whole.len() {
        let mut target = Engine::new(TINY);
        assert_eq!(target.restore_chunk(&whole[..length]), Err(BadCheckpoint), "{length}");
    }
    // Whatever is changed, it is refused or makes a state that holds together.
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << bit;
            let mut target = Engine::new(TINY);
            if target.restore_chunk(&damaged).is_ok() && damaged[1] == 1 {
                target.check();
                // Nothing comes behind the last chunk.
                assert_eq!(target.restore_chunk(whole), Err(BadCheckpoint));
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_request(request in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut engine = Engine::new(TINY);
        let context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };
        let mut reply = Vec::new();
        let undo = engine.apply(context, &request, &mut reply);
        prop_assert!(!reply.is_empty() || request.is_empty());
        engine.check();
        engine.undo(undo);
        prop_assert_eq!(engine.digest(), Engine::new(TINY).digest());
        reply.clear();
        engine.read(0, &request, &mut reply);
        prop_assert!(!reply.is_empty() || request.is_empty());
    }

    #[test]
    fn any_bytes_are_refused_as_a_chunk(chunk in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert_eq!(Engine::new(TINY).restore_chunk(&chunk), Err(BadCheckpoint));
    }
}
