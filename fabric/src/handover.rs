//! Messages from one thread to one other, through slots of cache lines: how an application hands
//! its requests to its replica's thread, and gets the answers, where they are two threads
//! ([Mu] 3.3, 6: "handover").
//!
//! A slot's first word says which message it holds, and is stored last. Who waits looks at that
//! word, in the line that the message begins in: a message of up to [`FIRST_LINE`] bytes costs the
//! transfer of one line. Where the receiver is, is looked at only once per lap.
//!
//! Invariant: the sender stores to a slot only after the receiver has taken what it held.
//! Invariant: of a receiver that goes to sleep and a sender, one notices the other.
//! Deliberately absent: waiting. Who spins, and for how long, depends on who shares the core.

use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering, fence};

/// Words of a cache line.
const WORDS: usize = 8;
/// The longest message that arrives with its slot's first line, in bytes.
pub const FIRST_LINE: usize = (WORDS - 1) * 8;
/// Bits of a slot's first word for the message's length in bytes; the others number it, from 1.
const LENGTH_BITS: u32 = 24;

/// What processors move at once; two, since they fetch neighbours in pairs.
#[repr(align(128))]
struct Apart<T>(T);

#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

impl Line {
    fn zero() -> Line {
        Line(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

struct Ring {
    slots: u64,
    /// Of a slot.
    lines: usize,
    memory: Box<[Line]>,
    /// How many messages the receiver has taken.
    taken: Apart<AtomicU64>,
    sender_gone: Apart<AtomicBool>,
    receiver_gone: AtomicBool,
    /// The receiver sleeps, or is about to.
    asleep: Apart<AtomicBool>,
}

impl Ring {
    /// The lines of the slot of a message.
    #[inline]
    fn slot(&self, number: u64) -> &[Line] {
        let start = (number % self.slots) as usize * self.lines;
        &self.memory[start..start + self.lines]
    }
}

/// The words of a slot behind the first one.
#[inline]
fn words(slot: &[Line]) -> impl Iterator<Item = &AtomicU64> {
    slot.iter().flat_map(|line| &line.0).skip(1)
}

#[inline]
fn label(number: u64, length: usize) -> u64 {
    number << LENGTH_BITS | length as u64
}

/// Where messages are put in.
pub struct Sender {
    ring: Arc<Ring>,
    /// How many were sent.
    sent: u64,
    /// How many the receiver had taken when that was last looked at.
    taken: u64,
}

/// Where they are taken out, in their order.
pub struct Receiver {
    ring: Arc<Ring>,
    taken: u64,
}

/// A way for up to `slots` messages of up to `bytes` bytes each that are sent and not taken.
///
/// # Panics
/// If `slots` is 0, or `bytes` is 2^24 or more.
pub fn handover(slots: usize, bytes: usize) -> (Sender, Receiver) {
    assert!(slots > 0, "a message needs a slot");
    assert!(bytes < 1 << LENGTH_BITS, "messages are shorter than 16 MiB");
    let lines = (1 + bytes.div_ceil(8)).div_ceil(WORDS);
    let ring = Arc::new(Ring {
        slots: slots as u64,
        lines,
        memory: (0..slots * lines).map(|_| Line::zero()).collect(),
        taken: Apart(AtomicU64::new(0)),
        sender_gone: Apart(AtomicBool::new(false)),
        receiver_gone: AtomicBool::new(false),
        asleep: Apart(AtomicBool::new(false)),
    });
    (Sender { ring: ring.clone(), sent: 0, taken: 0 }, Receiver { ring, taken: 0 })
}

impl Sender {
    /// Sends a message, or does nothing and returns `false` while all slots are in use.
    ///
    /// # Panics
    /// If it is longer than the slots are.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> bool {
        let ring = &*self.ring;
        assert!(message.len() <= (ring.lines * WORDS - 1) * 8, "the message fits a slot");
        if self.sent - self.taken >= ring.slots {
            // Acquire: pairs with the release in `receive`: its loads of the slot come before the
            // stores below.
            self.taken = ring.taken.0.load(Ordering::Acquire);
            if self.sent - self.taken >= ring.slots {
                return false;
            }
        }
        self.sent += 1;
        let slot = ring.slot(self.sent);
        let chunks = message.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        for (cell, word) in words(slot).zip(chunks) {
            // Relaxed: nobody reads it before it has seen the first word.
            cell.store(word, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `receive`: the message comes first.
        slot[0].0[0].store(label(self.sent, message.len()), Ordering::Release);
        true
    }

    /// Whether the receiver may be asleep and must be woken to take what was sent. For receivers
    /// that never [sleep](Receiver::sleep) there is no need to ask.
    #[inline]
    pub fn must_wake(&self) -> bool {
        // SeqCst: pairs with the fence in `sleep`. If that one comes first, the load below sees
        // that the receiver sleeps; else it sees the message.
        fence(Ordering::SeqCst);
        self.ring.asleep.0.load(Ordering::Relaxed)
    }

    /// Whether nobody takes messages any more.
    pub fn is_abandoned(&self) -> bool {
        // Relaxed: the flag stands for itself.
        self.ring.receiver_gone.load(Ordering::Relaxed)
    }
}

impl Receiver {
    /// Whether a message can be taken.
    #[inline]
    pub fn has_message(&self) -> bool {
        // Acquire: pairs with the release in `send`.
        let first = self.ring.slot(self.taken + 1)[0].0[0].load(Ordering::Acquire);
        first >> LENGTH_BITS == self.taken + 1
    }

    /// Says that the receiver is about to sleep until it is woken. Returns whether it may: `false`
    /// if a message is there, or nobody is left to send one.
    pub fn sleep(&self) -> bool {
        // Relaxed: the fence orders it.
        self.ring.asleep.0.store(true, Ordering::Relaxed);
        // SeqCst: pairs with the fence in `must_wake`.
        fence(Ordering::SeqCst);
        let may = !self.has_message() && !self.is_abandoned();
        if !may {
            self.rise();
        }
        may
    }

    /// Says that the receiver is awake.
    pub fn rise(&self) {
        // Relaxed: who still sees it asleep wakes it once too often.
        self.ring.asleep.0.store(false, Ordering::Relaxed);
    }

    /// Takes the next message and puts it in the place of what `message` holds; `false`, and no
    /// change, if there is none.
    #[inline]
    pub fn receive(&mut self, message: &mut Vec<u8>) -> bool {
        let ring = &*self.ring;
        let slot = ring.slot(self.taken + 1);
        // Acquire: pairs with the release in `send`.
        let first = slot[0].0[0].load(Ordering::Acquire);
        if first >> LENGTH_BITS != self.taken + 1 {
            return false;
        }
        let length = (first & ((1 << LENGTH_BITS) - 1)) as usize;
        message.clear();
        for cell in words(slot).take(length.div_ceil(8)) {
            // Relaxed: the first word was seen.
            message.extend_from_slice(&cell.load(Ordering::Relaxed).to_le_bytes());
        }
        message.truncate(length);
        self.taken += 1;
        // Release: pairs with the acquire in `send`.
        ring.taken.0.store(self.taken, Ordering::Release);
        true
    }

    /// Whether nobody sends messages any more. What was sent before can still be taken.
    pub fn is_abandoned(&self) -> bool {
        // Acquire: pairs with the release of the sender's end: who sees it sees all messages.
        self.ring.sender_gone.0.load(Ordering::Acquire)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `Receiver::is_abandoned`.
        self.ring.sender_gone.0.store(true, Ordering::Release);
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Relaxed: the flag stands for itself.
        self.ring.receiver_gone.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod modelled {
    use loom::thread;

    use super::*;

    #[test]
    fn loom_messages_arrive_whole_and_in_order() {
        for slots in [1, 2] {
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(3);
            builder.check(move || {
                let (mut sender, mut receiver) = handover(slots, 16);
                let thread = thread::spawn(move || {
                    let mut sent = 0;
                    for number in 1..=3_u8 {
                        // The receiver need not come: what was not taken stays.
                        sent += u8::from(sender.send(&[number; 9]));
                    }
                    sent
                });
                let mut message = Vec::new();
                let mut received = 0;
                for _ in 0..3 {
                    if receiver.receive(&mut message) {
                        received += 1;
                        assert_eq!(message.len(), 9);
                        assert!(message.iter().all(|&byte| byte == message[0]), "whole");
                    }
                }
                let sent = thread.join().unwrap();
                assert!(receiver.is_abandoned());
                while receiver.receive(&mut message) {
                    received += 1;
                }
                assert_eq!(received, sent, "none is lost or there twice");
            });
        }
    }
}

#[cfg(all(test, loom))]
mod asleep {
    use loom::thread;

    use super::*;

    #[test]
    fn loom_nobody_sleeps_through_a_message() {
        loom::model(|| {
            let (mut sender, receiver) = handover(1, 8);
            let thread = thread::spawn(move || {
                assert!(sender.send(b"a"));
                let wakes = sender.must_wake();
                (sender, wakes)
            });
            let sleeps = receiver.sleep();
            let (sender, wakes) = thread.join().unwrap();
            assert!(!sleeps || wakes, "it would sleep for ever");
            drop(sender);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_length_arrive_as_they_are() {
        let (mut sender, mut receiver) = handover(3, 200);
        let mut received = vec![1];
        assert!(!receiver.receive(&mut received) && received == [1]);
        for length in 0..=200 {
            let message: Vec<u8> = (0..length).collect();
            assert!(sender.send(&message));
            assert!(receiver.receive(&mut received));
            assert_eq!(received, message);
        }
    }

    #[test]
    fn so_many_fit_and_no_more() {
        let (mut sender, mut receiver) = handover(2, 8);
        assert!(sender.send(b"a") && sender.send(b"b") && !sender.send(b"c"));
        let mut message = Vec::new();
        assert!(receiver.receive(&mut message) && message == b"a");
        assert!(sender.send(b"c") && !sender.send(b"d"));
        drop(sender);
        assert!(receiver.is_abandoned());
        assert!(receiver.receive(&mut message) && message == b"b");
        assert!(receiver.receive(&mut message) && message == b"c");
        assert!(!receiver.receive(&mut message));
    }

    #[test]
    fn two_threads_lose_nothing() {
        let (mut sender, mut receiver) = handover(4, 100);
        let of = |number: u32| vec![number as u8; 1 + number as usize % 100];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..100_000 {
                    while !sender.send(&of(number)) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut message = Vec::new();
            for number in 0..100_000 {
                while !receiver.receive(&mut message) {
                    std::thread::yield_now();
                }
                assert_eq!(message, of(number));
            }
        });
        assert!(receiver.is_abandoned());
    }

    #[test]
    #[should_panic(expected = "fits a slot")]
    fn what_is_too_long_is_not_sent() {
        let (mut sender, _receiver) = handover(1, 56);
        sender.send(&[0; 57]);
    }
}
