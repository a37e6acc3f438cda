//! Price-time priority: the best price trades first, at one price the order that was there first.
//! A trade is at the price of the order that rested.

use crate::book::rank;
use crate::engine::{Engine, Resting};
use crate::order::{
    Fill, Kind, MAX_PRICE, MAX_QUANTITY, NewOrder, OrderId, Price, Quantity, Refusal, Report, Side,
};
use crate::slab::NONE;

/// An order on its way into a book.
#[derive(Clone, Copy)]
struct Incoming {
    id: OrderId,
    book: u16,
    side: Side,
    quantity: u64,
    /// The rank of the worst acceptable price on the opposite side.
    bound: u64,
}

/// What was traded.
struct Taken {
    filled: u64,
    /// There was more to trade with than one command may.
    capped: bool,
}

fn check_price(price: Price) -> Result<(), Refusal> {
    if (1..=MAX_PRICE).contains(&price.0) { Ok(()) } else { Err(Refusal::BadPrice) }
}

fn check_quantity(quantity: Quantity) -> Result<(), Refusal> {
    if (1..=MAX_QUANTITY).contains(&quantity.0) { Ok(()) } else { Err(Refusal::BadQuantity) }
}

impl Engine {
    /// Enters an order; calls `fill` for each trade.
    pub(crate) fn enter(
        &mut self,
        new: &NewOrder,
        fill: &mut impl FnMut(Fill),
    ) -> Result<Report, Refusal> {
        check_quantity(new.quantity)?;
        match new.kind {
            Kind::Market if new.price.0 != 0 => return Err(Refusal::BadPrice),
            Kind::Market => {}
            _ => check_price(new.price)?,
        }
        let opposite = new.side.opposite();
        // Behind every price that can be, before that of an empty side.
        let bound = match new.kind {
            Kind::Market => u64::MAX - 1,
            _ => rank(opposite, new.price),
        };
        let full = self.orders.used() >= self.limits.orders;
        let book = match self.book_of(new.symbol) {
            Ok(book) => book,
            Err(_) if new.kind == Kind::Limit && full => return Err(Refusal::BookFull),
            Err(_) if new.kind == Kind::Limit => self.list(new.symbol)?,
            Err(unknown) => return Err(unknown),
        };
        let crosses = self.books[usize::from(book)].ladder(opposite).best_within(bound).is_some();
        // An order that trades either is used up or makes room for itself.
        if new.kind == Kind::Limit && full && !crosses {
            return Err(Refusal::BookFull);
        }
        let id = OrderId(self.totals.next_order);
        self.totals.next_order += 1;
        let incoming = Incoming { id, book, side: new.side, quantity: new.quantity.0, bound };
        let trade = self.totals.next_trade;
        let killed = new.kind == Kind::Fok && !self.available(&incoming);
        let mut taken = Taken { filled: 0, capped: false };
        if crosses && !killed {
            taken = self.trade(&incoming, fill);
        }
        let left = incoming.quantity - taken.filled;
        let rests = new.kind == Kind::Limit && !taken.capped && left > 0;
        if rests {
            self.rest(&incoming, new.price, left, taken.filled);
        }
        let (resting, cancelled) = if rests { (left, 0) } else { (0, left) };
        Ok(report(id, taken.filled, resting, cancelled, trade))
    }

    /// Takes an order out of its book.
    pub(crate) fn cancel(&mut self, id: OrderId) -> Result<Report, Refusal> {
        let slot = self.slot_of(id)?;
        let remaining = self.orders[slot].remaining;
        self.detach(slot);
        Ok(report(id, 0, 0, remaining, self.totals.next_trade))
    }

    /// Changes what remains of an order and its price; calls `fill` for each trade.
    pub(crate) fn modify(
        &mut self,
        id: OrderId,
        quantity: Quantity,
        price: Price,
        fill: &mut impl FnMut(Fill),
    ) -> Result<Report, Refusal> {
        check_quantity(quantity)?;
        check_price(price)?;
        let slot = self.slot_of(id)?;
        let order = self.orders[slot];
        let trade = self.totals.next_trade;
        let dropped = order.remaining.saturating_sub(quantity.0);
        if price == order.price && quantity.0 <= order.remaining {
            if dropped > 0 {
                self.set_remaining(slot, quantity.0, order.filled);
            }
            return Ok(report(id, 0, quantity.0, dropped, trade));
        }
        self.detach(slot);
        let (book, side) = (order.book, order.side);
        let bound = rank(side.opposite(), price);
        let incoming = Incoming { id, book, side, quantity: quantity.0, bound };
        let taken = self.trade(&incoming, fill);
        let left = quantity.0 - taken.filled;
        if taken.capped || left == 0 {
            return Ok(report(id, taken.filled, 0, dropped + left, trade));
        }
        self.rest(&incoming, price, left, order.filled.saturating_add(taken.filled));
        Ok(report(id, taken.filled, left, dropped, trade))
    }

    /// Trades with the opposite side as far as price, quantity and limits go.
    fn trade(&mut self, incoming: &Incoming, fill: &mut impl FnMut(Fill)) -> Taken {
        let mut left = incoming.quantity;
        let mut fills = 0;
        let opposite = incoming.side.opposite();
        let mut capped = false;
        while left > 0 {
            let ladder = self.books[usize::from(incoming.book)].ladder(opposite);
            let Some(level) = ladder.best_within(incoming.bound) else { break };
            if fills == self.limits.fills {
                capped = true;
                break;
            }
            let slot = self.levels[level].head;
            let maker = &self.orders[slot];
            let (id, price, remaining) = (maker.id, maker.price, maker.remaining);
            let quantity = left.min(remaining);
            if quantity == remaining {
                self.detach(slot);
            } else {
                let filled = maker.filled.saturating_add(quantity);
                self.set_remaining(slot, remaining - quantity, filled);
            }
            left -= quantity;
            fills += 1;
            fill(Fill { maker: id, quantity: Quantity(quantity), price });
        }
        self.totals.next_trade += u64::from(fills);
        Taken { filled: incoming.quantity - left, capped }
    }

    /// Whether all of an order could be traded now.
    fn available(&self, incoming: &Incoming) -> bool {
        let ladder = self.books[usize::from(incoming.book)].ladder(incoming.side.opposite());
        let (mut left, mut fills) = (incoming.quantity, 0);
        for (rank, level) in ladder.iter() {
            let level = &self.levels[level];
            if rank > incoming.bound || fills >= self.limits.fills {
                return false;
            }
            if level.quantity < left {
                left -= level.quantity;
                fills += level.count;
                continue;
            }
            let mut at = level.head;
            while at != NONE && fills < self.limits.fills {
                let order = &self.orders[at];
                if order.remaining >= left {
                    return true;
                }
                left -= order.remaining;
                fills += 1;
                at = order.next;
            }
            return false;
        }
        false
    }

    fn rest(&mut self, incoming: &Incoming, price: Price, remaining: u64, filled: u64) {
        let priority = self.totals.next_priority;
        self.totals.next_priority += 1;
        let Incoming { id, book, side, .. } = *incoming;
        let (level, prev, next) = (NONE, NONE, NONE);
        self.enqueue(Resting {
            id,
            priority,
            price,
            remaining,
            filled,
            level,
            prev,
            next,
            book,
            side,
        });
    }
}

fn report(order: OrderId, filled: u64, resting: u64, cancelled: u64, trade: u64) -> Report {
    let [filled, resting, cancelled] = [filled, resting, cancelled].map(Quantity);
    Report { order, filled, resting, cancelled, trade }
}
