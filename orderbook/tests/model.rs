//! The engine against a book that is too simple to be wrong: a list of orders in the order of their
//! priority, searched from end to end.

mod support;

use orderbook::frame::{Answer, OrderView};
use orderbook::{
    Command, Engine, Fill, Kind, Limits, MAX_PRICE, MAX_QUANTITY, NewOrder, OrderId, Price,
    Quantity, Refusal, Report, Side, Symbol,
};
use smr::rng::Rng;
use support::{TINY, apply_one, levels_of, read_one, recent, symbol};

struct Naive {
    limits: Limits,
    /// Those that wait longer come first.
    orders: Vec<OrderView>,
    symbols: Vec<Symbol>,
    next_order: u64,
    next_trade: u64,
}

impl Naive {
    fn execute(&mut self, command: Command) -> Option<Answer> {
        let done = match command {
            Command::Enter(new) => self.enter(new),
            Command::Cancel(order) => self.cancel(order),
            Command::Modify { order, quantity, price } => self.modify(order, quantity, price),
            _ => return None,
        };
        Some(done.map_or_else(Answer::Refused, |(report, fills)| Answer::Report(report, fills)))
    }

    fn enter(&mut self, new: NewOrder) -> Result<(Report, Vec<Fill>), Refusal> {
        sound(new.quantity, if new.kind == Kind::Market { Price(1) } else { new.price })?;
        if new.kind == Kind::Market && new.price.0 != 0 {
            return Err(Refusal::BadPrice);
        }
        let worst = match (new.kind, new.side) {
            (Kind::Market, Side::Buy) => Price(u64::MAX),
            (Kind::Market, Side::Sell) => Price(0),
            _ => new.price,
        };
        let known = self.symbols.contains(&new.symbol);
        if !known && new.kind != Kind::Limit {
            return Err(Refusal::UnknownSymbol);
        }
        let rests = new.kind == Kind::Limit;
        let full = self.orders.len() == self.limits.orders as usize;
        if rests && full && self.best(new.symbol, new.side, worst).is_none() {
            return Err(Refusal::BookFull);
        }
        if !known && self.symbols.len() == usize::from(self.limits.symbols) {
            return Err(Refusal::SymbolsFull);
        }
        if !known {
            self.symbols.push(new.symbol);
        }
        let order = OrderId(self.next_order);
        self.next_order += 1;
        let (before, trade) = (self.orders.clone(), self.next_trade);
        let mut view = OrderView {
            order,
            symbol: new.symbol,
            side: new.side,
            price: new.price,
            remaining: new.quantity,
            filled: 0,
        };
        let mut fills = self.trade(&mut view, worst);
        if new.kind == Kind::Fok && view.remaining.0 > 0 {
            // All is as if nothing had happened.
            (self.orders, self.next_trade) = (before, trade);
            (view.remaining, view.filled) = (new.quantity, 0);
            fills.clear();
        }
        Ok((self.finish(view, rests, worst, trade, 0), fills))
    }

    fn cancel(&mut self, order: OrderId) -> Result<(Report, Vec<Fill>), Refusal> {
        let place = self.find(order)?;
        let cancelled = self.orders.remove(place).remaining;
        let trade = self.next_trade;
        Ok((Report { order, cancelled, trade, ..Report::default() }, Vec::new()))
    }

    fn modify(
        &mut self,
        order: OrderId,
        quantity: Quantity,
        price: Price,
    ) -> Result<(Report, Vec<Fill>), Refusal> {
        sound(quantity, price)?;
        let place = self.find(order)?;
        let trade = self.next_trade;
        let old = self.orders[place];
        let dropped = old.remaining.0.saturating_sub(quantity.0);
        if price == old.price && quantity <= old.remaining {
            self.orders[place].remaining = quantity;
            let (resting, cancelled) = (quantity, Quantity(dropped));
            return Ok((Report { order, resting, cancelled, trade, ..Report::default() }, vec![]));
        }
        self.orders.remove(place);
        let mut view = OrderView { remaining: quantity, price, ..old };
        let fills = self.trade(&mut view, price);
        let mut report = self.finish(view, true, price, trade, dropped);
        report.filled.0 -= old.filled;
        Ok((report, fills))
    }

    fn find(&self, order: OrderId) -> Result<usize, Refusal> {
        let given = (1..self.next_order).contains(&order.0);
        let missing = if given { Refusal::ClosedOrder } else { Refusal::UnknownOrder };
        self.orders.iter().position(|view| view.order == order).ok_or(missing)
    }

    /// The order that one on `side` would trade with first.
    fn best(&self, symbol: Symbol, side: Side, worst: Price) -> Option<usize> {
        let fits = |view: &OrderView| {
            view.symbol == symbol
                && view.side == side.opposite()
                && if side == Side::Buy { view.price <= worst } else { view.price >= worst }
        };
        let fitting = self.orders.iter().enumerate().filter(|(_, view)| fits(view));
        let key = |place: usize, price: Price| match side {
            Side::Buy => (price.0, place),
            Side::Sell => (u64::MAX - price.0, place),
        };
        fitting.min_by_key(|(place, view)| key(*place, view.price)).map(|(place, _)| place)
    }

    fn trade(&mut self, view: &mut OrderView, worst: Price) -> Vec<Fill> {
        let mut fills = Vec::new();
        while view.remaining.0 > 0 && fills.len() < self.limits.fills as usize {
            let Some(place) = self.best(view.symbol, view.side, worst) else { break };
            let maker = &mut self.orders[place];
            let quantity = view.remaining.min(maker.remaining);
            maker.remaining.0 -= quantity.0;
            maker.filled += quantity.0;
            view.remaining.0 -= quantity.0;
            view.filled += quantity.0;
            fills.push(Fill { maker: maker.order, quantity, price: maker.price });
            if maker.remaining.0 == 0 {
                self.orders.remove(place);
            }
            self.next_trade += 1;
        }
        fills
    }

    fn finish(
        &mut self,
        view: OrderView,
        rests: bool,
        worst: Price,
        trade: u64,
        dropped: u64,
    ) -> Report {
        let (order, filled) = (view.order, Quantity(view.filled));
        let mut report =
            Report { order, filled, trade, cancelled: Quantity(dropped), ..Report::default() };
        let capped = self.best(view.symbol, view.side, worst).is_some();
        if view.remaining.0 > 0 && rests && !capped {
            report.resting = view.remaining;
            self.orders.push(view);
        } else {
            report.cancelled.0 += view.remaining.0;
        }
        report
    }

    fn levels(&self, symbol: Symbol, side: Side) -> Vec<(u64, u64, u32)> {
        let mut levels: Vec<(u64, u64, u32)> = Vec::new();
        for view in self.orders.iter().filter(|view| (view.symbol, view.side) == (symbol, side)) {
            match levels.iter_mut().find(|level| level.0 == view.price.0) {
                Some(level) => (level.1, level.2) = (level.1 + view.remaining.0, level.2 + 1),
                None => levels.push((view.price.0, view.remaining.0, 1)),
            }
        }
        levels.sort_unstable();
        if side == Side::Buy {
            levels.reverse();
        }
        levels
    }

    fn compare(&self, engine: &Engine) {
        engine.check();
        for &symbol in &self.symbols {
            let [bids, asks] = [Side::Buy, Side::Sell].map(|side| self.levels(symbol, side));
            let top = [&bids, &asks].map(|levels| levels.first().map_or((0, 0), |l| (l.0, l.1)));
            let top = top.map(|(price, quantity)| (Price(price), quantity));
            assert_eq!(read_one(engine, Command::Top(symbol)), Answer::Top(symbol, top));
            let depth = [levels_of(&bids), levels_of(&asks)];
            assert_eq!(read_one(engine, Command::Depth(symbol, 256)), Answer::Depth(symbol, depth));
        }
        for view in &self.orders {
            let found = read_one(engine, Command::Status(view.order));
            assert_eq!(found, Answer::Status(*view));
        }
        assert_eq!(engine.orders() as usize, self.orders.len());
    }
}

fn sound(quantity: Quantity, price: Price) -> Result<(), Refusal> {
    if quantity.0 == 0 || quantity.0 > MAX_QUANTITY {
        return Err(Refusal::BadQuantity);
    }
    if price.0 == 0 || price.0 > MAX_PRICE { Err(Refusal::BadPrice) } else { Ok(()) }
}

/// Runs commands on both; returns which refusals were met, by their codes.
fn compare(seed: u64, limits: Limits, steps: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut engine = Engine::new(limits);
    let (orders, symbols) = (Vec::new(), Vec::new());
    let mut naive = Naive { limits, orders, symbols, next_order: 1, next_trade: 1 };
    let mut refused = Vec::new();
    for step in 0..steps {
        let command = recent(&mut rng, naive.next_order);
        let answer = apply_one(&mut engine, command);
        if let Some(expected) = naive.execute(command) {
            assert_eq!(answer, expected, "seed {seed}, step {step}, {command:?}");
        }
        if let Answer::Refused(refusal) = answer {
            refused.push(refusal as u8);
        }
        if step % 16 == 0 {
            naive.compare(&engine);
        }
    }
    naive.compare(&engine);
    refused
}

#[test]
fn the_engine_does_what_the_simple_book_does() {
    let mut refused: Vec<u8> = (0..60).flat_map(|seed| compare(seed, TINY, 3_000)).collect();
    refused.sort_unstable();
    refused.dedup();
    // All refusals of the engine's own, but for bytes that are no command.
    assert_eq!(refused, [0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87]);
}

#[test]
fn larger_books_do_it_too() {
    let limits = Limits { orders: 500, symbols: 3, fills: 50 };
    for seed in 100..110 {
        compare(seed, limits, 4_000);
    }
    assert_eq!(symbol(1).as_str(), "S1");
}
