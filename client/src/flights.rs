//! Which ticket a request's number stands for, and which tickets are late.
//!
//! Invariant: `writes[i]` is about the request `first + i`. A slot stays until its answer came, and
//! if what was lost is replayed, until its operation is known to be durable.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use smr::{OpNumber, RequestNumber};

use crate::session::Ticket;

/// A request that was submitted: whose it is, when, and when to give up, in [`smr::Now::micros`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub ticket: Ticket,
    pub since: u64,
    pub deadline: u64,
}

#[derive(Debug)]
struct Slot {
    flight: Flight,
    /// Somebody waits for it.
    open: bool,
    /// The operation that executed it, once acknowledged.
    done: Option<OpNumber>,
}

/// Everything that the client machine has.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    first: u64,
    writes: VecDeque<Slot>,
    /// A read's body is kept in case it must be logged. Nobody waits without a flight.
    reads: BTreeMap<RequestNumber, (Option<Flight>, Bytes)>,
}

impl Flights {
    /// A logged request got this number. Slots from there on are of numbers that were given up.
    pub fn write(&mut self, number: RequestNumber, flight: Flight) {
        if self.writes.is_empty() || number.0 < self.first {
            self.writes.clear();
            self.first = number.0;
        }
        self.writes.truncate((number.0 - self.first) as usize);
        assert_eq!(self.first + self.writes.len() as u64, number.0, "numbers have no gaps");
        self.writes.push_back(Slot { flight, open: true, done: None });
    }

    /// A read got this number.
    pub fn read(&mut self, number: RequestNumber, flight: Flight, body: Bytes) {
        self.reads.insert(number, (Some(flight), body));
    }

    /// A read has ended: who waits for it, and its body.
    pub fn end_read(&mut self, number: RequestNumber) -> Option<(Option<Flight>, Bytes)> {
        self.reads.remove(&number)
    }

    /// A logged request was executed by `op`. Whose it is, and whether they wait for this answer.
    pub fn executed(&mut self, number: RequestNumber, op: OpNumber) -> Option<(Flight, bool)> {
        let slot = self.slot(number)?;
        slot.done = Some(op);
        Some((slot.flight, std::mem::take(&mut slot.open)))
    }

    /// A logged request will not be executed: who waits for it.
    pub fn dropped(&mut self, number: RequestNumber) -> Option<Flight> {
        let slot = self.slot(number)?;
        slot.done = Some(OpNumber(0));
        std::mem::take(&mut slot.open).then_some(slot.flight)
    }

    /// What was executed above `kept` is lost and will be executed anew.
    pub fn reopen(&mut self, kept: OpNumber) {
        for slot in &mut self.writes {
            slot.done = slot.done.filter(|&done| done <= kept);
        }
    }

    fn slot(&mut self, number: RequestNumber) -> Option<&mut Slot> {
        let index = number.0.checked_sub(self.first)?;
        self.writes.get_mut(usize::try_from(index).ok()?)
    }

    /// The first logged request that is not acknowledged.
    pub fn oldest(&self) -> Option<RequestNumber> {
        let index = self.writes.iter().position(|slot| slot.done.is_none())?;
        Some(RequestNumber(self.first + index as u64))
    }

    /// Forgets what was executed up to `op`.
    pub fn trim(&mut self, op: OpNumber) {
        while self.writes.front().is_some_and(|slot| slot.done.is_some_and(|done| done <= op)) {
            self.writes.pop_front();
            self.first += 1;
        }
    }

    /// All who wait.
    pub fn open(&self) -> impl Iterator<Item = &Flight> {
        let writes = self.writes.iter().filter(|slot| slot.open).map(|slot| &slot.flight);
        writes.chain(self.reads.values().filter_map(|(flight, _)| flight.as_ref()))
    }

    /// Takes out all who wait.
    pub fn abandon(&mut self, mut each: impl FnMut(Flight)) {
        self.expire(u64::MAX, &mut each);
    }

    /// Takes out those whose deadline is not after `now`. Returns the next deadline.
    pub fn expire(&mut self, now: u64, mut each: impl FnMut(Flight)) -> u64 {
        let mut next = u64::MAX;
        for slot in &mut self.writes {
            if slot.open && slot.flight.deadline <= now {
                slot.open = false;
                each(slot.flight);
            } else if slot.open {
                next = next.min(slot.flight.deadline);
            }
        }
        for (flight, _) in self.reads.values_mut() {
            match flight {
                Some(late) if late.deadline <= now => {
                    each(*late);
                    *flight = None;
                }
                Some(flight) => next = next.min(flight.deadline),
                None => {}
            }
        }
        next
    }
}
