//! The price levels of a symbol, best first. Orders of a level are queued through their own links
//! (see `engine`); a level knows the queue's ends and its sums.

use std::collections::BTreeMap;

use crate::order::{Price, Side, Symbol};
use crate::slab::{NONE, Slab};

/// All orders of a side at one price.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub price: Price,
    /// What remains of its orders together.
    pub quantity: u64,
    pub count: u32,
    /// The order that trades first.
    pub head: u32,
    pub tail: u32,
}

/// Where a price stands among those of its side: the best is the lowest.
#[inline]
pub(crate) fn rank(side: Side, price: Price) -> u64 {
    match side {
        Side::Buy => !price.0,
        Side::Sell => price.0,
    }
}

/// Behind every price.
const NOWHERE: u64 = u64::MAX;

/// One side of a book.
#[derive(Debug)]
pub(crate) struct Ladder {
    levels: BTreeMap<u64, u32>,
    best_rank: u64,
    best: u32,
}

impl Ladder {
    fn new() -> Ladder {
        Ladder { levels: BTreeMap::new(), best_rank: NOWHERE, best: NONE }
    }

    /// The level with the best price, if that is at least as good as `bound`.
    #[inline]
    pub fn best_within(&self, bound: u64) -> Option<u32> {
        (self.best_rank <= bound && self.best != NONE).then_some(self.best)
    }

    #[inline]
    pub fn find(&self, rank: u64) -> Option<u32> {
        if rank == self.best_rank {
            return Some(self.best);
        }
        self.levels.get(&rank).copied()
    }

    #[inline]
    pub fn add(&mut self, rank: u64, slot: u32) {
        self.levels.insert(rank, slot);
        if rank < self.best_rank {
            (self.best_rank, self.best) = (rank, slot);
        }
    }

    #[inline]
    pub fn remove(&mut self, rank: u64) {
        if rank == self.best_rank {
            self.levels.pop_first();
            let first = self.levels.first_key_value();
            let best = first.map_or((NOWHERE, NONE), |(rank, slot)| (*rank, *slot));
            (self.best_rank, self.best) = best;
        } else {
            self.levels.remove(&rank);
        }
    }

    /// The levels, best first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.levels.iter().map(|(&rank, &slot)| (rank, slot))
    }
}

/// All orders of a symbol.
#[derive(Debug)]
pub(crate) struct Book {
    pub symbol: Symbol,
    ladders: [Ladder; 2],
}

impl Book {
    pub fn new(symbol: Symbol) -> Book {
        Book { symbol, ladders: [Ladder::new(), Ladder::new()] }
    }

    #[inline]
    pub fn ladder(&self, side: Side) -> &Ladder {
        &self.ladders[side as usize]
    }

    #[inline]
    pub fn ladder_mut(&mut self, side: Side) -> &mut Ladder {
        &mut self.ladders[side as usize]
    }

    /// The best price of a side and what is to be had for it; zeros where there is none.
    pub fn touch(&self, side: Side, levels: &Slab<Level>) -> (Price, u64) {
        match self.ladder(side).best_within(NOWHERE) {
            Some(slot) => (levels[slot].price, levels[slot].quantity),
            None => (Price(0), 0),
        }
    }
}
