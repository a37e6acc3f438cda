//! The lanes under loom, which tries every interleaving and every value that the memory model lets
//! a load return. Run with `RUSTFLAGS="--cfg loom" cargo test -p fabric --lib loom_`.
//!
//! Each test runs the real steps of `holder.rs`. Those that must panic leave one step out, and show
//! that the model would notice.

use loom::sync::Arc;
use loom::thread;

use crate::contract::GrantNumber;
use crate::holder::{self, Holder};
use crate::sync::{AtomicU64, Ordering};

const OWNER: u8 = 0;
const WRITER: u8 = 1;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(test);
}

/// A region of two words, held by the writer under grant 2.
struct Region {
    holder: AtomicU64,
    renounced: AtomicU64,
    lanes: [[AtomicU64; 2]; 2],
}

impl Region {
    fn shared() -> Arc<Region> {
        let lane = || [AtomicU64::new(0), AtomicU64::new(0)];
        let region = Region {
            holder: AtomicU64::new(0),
            renounced: AtomicU64::new(0),
            lanes: [lane(), lane()],
        };
        holder::grant(&region.holder, Self::held());
        Arc::new(region)
    }

    fn held() -> Holder {
        Holder::new(GrantNumber(2), WRITER)
    }

    fn lane(&self, lane: u8) -> &[AtomicU64] {
        &self.lanes[usize::from(lane)]
    }

    fn write(&self, value: u64) -> bool {
        holder::write(&self.holder, Self::held(), self.lane(WRITER), &[value, value])
    }

    /// The first half of a write, of the first word alone.
    fn store(&self, value: u64) -> bool {
        let lane = &self.lane(WRITER)[..1];
        holder::store(&self.holder, Self::held(), lane, &[value])
    }

    fn read(&self) -> [u64; 2] {
        let mut words = [0; 2];
        holder::read(&self.holder, |lane| self.lane(lane), &mut words);
        words
    }

    /// The owner takes the region for itself, with all its words.
    fn take(&self) {
        holder::revoke(&self.holder);
        self.adopt();
    }

    fn adopt(&self) {
        holder::adopt(self.lane(WRITER), self.lane(OWNER));
        holder::grant(&self.holder, Holder::new(GrantNumber(3), OWNER));
    }
}

#[test]
fn loom_a_completed_write_is_adopted() {
    model(|| {
        let region = Region::shared();
        let writer = region.clone();
        let thread = thread::spawn(move || (writer.write(1), writer.write(2)));
        region.take();
        let adopted = region.read();
        let written = thread.join().unwrap();
        match written {
            (true, true) => assert_eq!(adopted, [2, 2]),
            (true, false) => assert!(adopted.iter().all(|&word| word >= 1)),
            (false, second) => assert!(!second, "a refused grant stays refused"),
        }
        assert_eq!(region.read(), adopted, "late stores change nothing");
    });
}

#[test]
#[should_panic(expected = "adopted")]
fn loom_without_the_writers_fence_a_completed_write_is_lost() {
    model(|| {
        let region = Region::shared();
        let writer = region.clone();
        let thread = thread::spawn(move || {
            for cell in writer.lane(WRITER) {
                cell.store(1, Ordering::Release);
            }
            Holder::load(&writer.holder) == Region::held()
        });
        region.take();
        let adopted = region.read();
        if thread.join().unwrap() {
            assert_eq!(adopted, [1, 1], "adopted");
        }
    });
}

#[test]
#[should_panic(expected = "adopted")]
fn loom_without_the_owners_fence_a_completed_write_is_lost() {
    model(|| {
        let region = Region::shared();
        let writer = region.clone();
        let thread = thread::spawn(move || writer.write(1));
        region.holder.store(region.holder.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
        region.adopt();
        let adopted = region.read();
        if thread.join().unwrap() {
            assert_eq!(adopted, [1, 1], "adopted");
        }
    });
}

/// The owner takes the region and hands it back, if `comes_back` says that the lane is its own.
fn recycled(comes_back: impl Fn(&Region) -> bool + Copy + Sync + Send + 'static) {
    model(move || {
        let region = Region::shared();
        let writer = region.clone();
        let thread = thread::spawn(move || {
            writer.write(1);
            holder::renounce(&writer.renounced, GrantNumber(2));
        });
        region.take();
        let mut expected = region.read();
        if comes_back(&region) {
            holder::revoke(&region.holder);
            holder::clear(region.lane(WRITER));
            holder::adopt(&region.lane(OWNER)[..1], &region.lane(WRITER)[..1]);
            holder::grant(&region.holder, Holder::new(GrantNumber(4), WRITER));
            expected[1] = 0;
        }
        thread.join().unwrap();
        assert_eq!(region.read(), expected, "late stores change nothing");
    });
}

#[test]
fn loom_a_renounced_lane_is_used_again() {
    recycled(|region| holder::has_renounced(&region.renounced, GrantNumber(2)));
}

#[test]
#[should_panic(expected = "late stores change nothing")]
fn loom_a_lane_that_was_not_renounced_is_not_used_again() {
    recycled(|_| true);
}

/// A peer reads while the image moves to another lane and the old one is zeroed.
fn read_while_moving(clear: impl Fn(&[AtomicU64]) + Copy + Sync + Send + 'static) {
    model(move || {
        let region = Region::shared();
        assert!(region.write(1));
        holder::renounce(&region.renounced, GrantNumber(2));
        let reader = region.clone();
        let thread = thread::spawn(move || reader.read());
        region.take();
        clear(region.lane(WRITER));
        assert_eq!(thread.join().unwrap(), [1, 1], "what was written can be read");
    });
}

#[test]
fn loom_a_reader_never_sees_a_lane_that_is_no_image() {
    read_while_moving(holder::clear);
    read_while_moving(|lane| holder::adopt(&[AtomicU64::new(0), AtomicU64::new(0)], lane));
}

#[test]
#[should_panic(expected = "what was written can be read")]
fn loom_a_relaxed_clear_is_seen_by_a_reader() {
    read_while_moving(|lane| lane.iter().for_each(|cell| cell.store(0, Ordering::Relaxed)));
}

#[test]
#[should_panic(expected = "what was written can be read")]
fn loom_a_reader_must_look_twice() {
    model(|| {
        let region = Region::shared();
        assert!(region.write(1));
        let reader = region.clone();
        let thread = thread::spawn(move || {
            let lane = reader.lane(Holder::load(&reader.holder).lane());
            [0, 1].map(|index: usize| lane[index].load(Ordering::Acquire))
        });
        region.take();
        holder::clear(region.lane(WRITER));
        assert_eq!(thread.join().unwrap(), [1, 1], "what was written can be read");
    });
}

#[test]
fn loom_a_granted_lane_is_ready() {
    model(|| {
        let region = Region::shared();
        holder::revoke(&region.holder);
        let writer = region.clone();
        let thread = thread::spawn(move || {
            let next = Holder::new(GrantNumber(4), WRITER);
            holder::write(&writer.holder, next, writer.lane(WRITER), &[8, 9])
        });
        holder::clear(region.lane(WRITER));
        holder::grant(&region.holder, Holder::new(GrantNumber(4), WRITER));
        let expected = if thread.join().unwrap() { [8, 9] } else { [0, 0] };
        assert_eq!(region.read(), expected, "what was written stands");
    });
}

#[test]
fn loom_the_first_word_of_a_write_appears_last() {
    model(|| {
        let region = Region::shared();
        let writer = region.clone();
        let thread = thread::spawn(move || assert!(writer.write(1)));
        let mut words = [[0], [0]];
        for index in [0, 1] {
            let word = |lane| &region.lane(lane)[index..=index];
            holder::read(&region.holder, word, &mut words[index]);
        }
        assert!(words[0] <= words[1], "the first word is there, the second is not");
        thread.join().unwrap();
    });
}

/// Writes to two regions, between which and the second look at both there is one `settle`.
fn written_together(settle: impl Fn() + Copy + Sync + Send + 'static) {
    model(move || {
        let regions = [Region::shared(), Region::shared()];
        let [first, second] = regions.clone();
        let thread = thread::spawn(move || {
            let both = [first, second];
            let stored = both.each_ref().map(|region| region.store(1));
            settle();
            let stands = |region: &Region| holder::stands(&region.holder, Region::held());
            [0, 1].map(|index: usize| stored[index] && stands(&both[index]))
        });
        // Each owner is a process of its own.
        let [first, second] = regions;
        let other = thread::spawn(move || {
            holder::revoke(&second.holder);
            second.lane(WRITER)[0].load(Ordering::Relaxed)
        });
        holder::revoke(&first.holder);
        let found = [first.lane(WRITER)[0].load(Ordering::Relaxed), other.join().unwrap()];
        for (stood, found) in thread.join().unwrap().into_iter().zip(found) {
            assert!(!stood || found == 1, "what stood is found");
        }
    });
}

#[test]
fn loom_one_fence_serves_all_writes_before_it() {
    written_together(holder::settle);
}

#[test]
#[should_panic(expected = "what stood is found")]
fn loom_without_it_they_are_lost() {
    written_together(|| ());
}

/// The words themselves, without the fences that are around them elsewhere.
#[test]
fn loom_who_has_renounced_has_stored() {
    model(|| {
        let region = Region::shared();
        let writer = region.clone();
        let thread = thread::spawn(move || {
            writer.lane(WRITER)[0].store(1, Ordering::Relaxed);
            holder::renounce(&writer.renounced, GrantNumber(2));
        });
        if holder::has_renounced(&region.renounced, GrantNumber(2)) {
            let word = region.lane(WRITER)[0].load(Ordering::Relaxed);
            assert_eq!(word, 1, "the owner's stores come after it");
        }
        thread.join().unwrap();
    });
}
