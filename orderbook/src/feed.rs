//! Streams of commands that look like an exchange's: most orders are added near the best prices and
//! cancelled again, few trade, and few symbols have most of the traffic.
//!
//! A feed runs an engine of its own, so that it knows the numbers of orders: its commands mean what
//! they should where they are executed from the first, in their order, on an engine that was empty.

use smr::rng::Rng;

use crate::engine::{Engine, Limits};
use crate::order::{Command, Kind, NewOrder, OrderId, Price, Quantity, Side, Symbol};

/// What a feed is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Where the random choices start. The same shape gives the same feed.
    pub seed: u64,
    /// How many symbols, 1 to 4,096. The n-th has 1/n of the traffic of the first.
    pub symbols: u16,
    /// About how many orders are in the book of a busy symbol, at least 1.
    pub depth: u32,
}

impl Default for Shape {
    /// Seed 1, 100 symbols, 1,000 orders each.
    fn default() -> Shape {
        Shape { seed: 1, symbols: 100, depth: 1000 }
    }
}

/// What is true of a symbol beside its book.
#[derive(Debug)]
struct Market {
    symbol: Symbol,
    /// What everybody takes its price to be, in ticks.
    fair: u64,
    /// Orders that may be in its book, about by age.
    live: Vec<OrderId>,
}

/// A feed: an endless iterator over commands.
#[derive(Debug)]
pub struct Feed {
    rng: Rng,
    engine: Engine,
    depth: usize,
    markets: Vec<Market>,
    /// Traffic of this symbol and those before it together.
    shares: Vec<u64>,
}

impl Feed {
    /// A feed from its start.
    ///
    /// # Panics
    /// If the shape is out of its range.
    pub fn new(shape: Shape) -> Feed {
        assert!((1..=4096).contains(&shape.symbols), "1 to 4,096 symbols");
        assert!(shape.depth > 0, "at least one order");
        let mut rng = Rng::new(shape.seed);
        let mut total = 0;
        let (mut markets, mut shares) = (Vec::new(), Vec::new());
        for number in 1..=u64::from(shape.symbols) {
            total += (1 << 32) / number;
            shares.push(total);
            let name = format!("S{number}");
            let symbol = Symbol::new(name.as_bytes()).expect("letters and digits");
            markets.push(Market { symbol, fair: 5_000 + rng.below(45_000), live: Vec::new() });
        }
        let engine = Engine::new(Limits::default());
        Feed { rng, engine, depth: shape.depth as usize, markets, shares }
    }

    /// The engine that has executed what the feed has given so far.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    fn step(&mut self) -> Command {
        let at = self.rng.below(*self.shares.last().expect("one symbol"));
        let market = self.shares.partition_point(|&share| share <= at);
        if self.rng.chance(1, 50) {
            let fair = &mut self.markets[market].fair;
            *fair = if self.rng.chance(1, 2) { *fair + 1 } else { (*fair - 1).max(1_000) };
        }
        // The book grows to its depth and then stays about there.
        let adds = if self.markets[market].live.len() < self.depth { 55 } else { 42 };
        let choice = self.rng.below(100);
        if choice < adds {
            return self.add(market);
        }
        match choice {
            90..97 => self.modify(market),
            97.. => self.trade(market),
            _ => self.cancel(market),
        }
    }

    fn side(&mut self) -> Side {
        if self.rng.chance(1, 2) { Side::Buy } else { Side::Sell }
    }

    /// Mostly round lots, mostly few.
    fn quantity(&mut self) -> Quantity {
        if self.rng.chance(1, 8) {
            return Quantity(1 + self.rng.below(99));
        }
        Quantity(100 * (1 + u64::from(self.rng.next_u64().trailing_zeros().min(9))))
    }

    /// A price on the order's own side, most likely near the fair one.
    fn price(&mut self, market: usize, side: Side) -> Price {
        let distance = match self.rng.below(16) {
            0 => self.rng.below(200),
            1..4 => self.rng.below(20),
            _ => u64::from(self.rng.next_u64().trailing_zeros().min(8)),
        };
        let fair = self.markets[market].fair;
        Price(match side {
            Side::Buy => fair - 1 - distance,
            Side::Sell => fair + 1 + distance,
        })
    }

    fn add(&mut self, market: usize) -> Command {
        let side = self.side();
        let (quantity, price) = (self.quantity(), self.price(market, side));
        let symbol = self.markets[market].symbol;
        Command::Enter(NewOrder { symbol, side, kind: Kind::Limit, quantity, price })
    }

    /// An order of the market's that is in the book, most likely a young one.
    fn pick(&mut self, market: usize) -> Option<OrderId> {
        let live = &mut self.markets[market].live;
        while !live.is_empty() {
            let reach = self.rng.below(live.len() as u64) + 1;
            let place = live.len() - 1 - self.rng.below(reach) as usize;
            if self.engine.slot_of(live[place]).is_ok() {
                return Some(live[place]);
            }
            live.swap_remove(place);
        }
        None
    }

    fn cancel(&mut self, market: usize) -> Command {
        self.pick(market).map_or_else(|| self.add(market), Command::Cancel)
    }

    fn modify(&mut self, market: usize) -> Command {
        let Some(order) = self.pick(market) else { return self.add(market) };
        let slot = self.engine.slot_of(order).expect("just picked");
        let old = self.engine.orders[slot];
        if self.rng.chance(1, 2) {
            let quantity = Quantity((old.remaining / 2).max(1));
            return Command::Modify { order, quantity, price: old.price };
        }
        let price = self.price(market, old.side);
        Command::Modify { order, quantity: old.quantity(), price }
    }

    /// An order that trades at once with what is at the best price.
    fn trade(&mut self, market: usize) -> Command {
        let (side, symbol) = (self.side(), self.markets[market].symbol);
        let Ok(book) = self.engine.book_of(symbol) else { return self.add(market) };
        let book = &self.engine.books[usize::from(book)];
        let (price, _) = book.touch(side.opposite(), &self.engine.levels);
        if price.0 == 0 {
            return self.add(market);
        }
        let quantity = self.quantity();
        let (kind, price) = match self.rng.below(8) {
            0 => (Kind::Market, Price(0)),
            1 => (Kind::Fok, price),
            _ => (Kind::Ioc, price),
        };
        Command::Enter(NewOrder { symbol, side, kind, quantity, price })
    }

    /// Executes a command, and remembers an order that is in the book now.
    fn follow(&mut self, command: &Command) {
        match *command {
            Command::Enter(new) => {
                let report = self.engine.enter(&new, &mut |_| {});
                let report = report.expect("a feed stays within the limits");
                if report.resting.0 > 0 {
                    let market = &mut self.markets[market_of(new.symbol)];
                    market.live.push(report.order);
                }
            }
            Command::Cancel(order) => {
                self.engine.cancel(order).expect("it was picked from the book");
            }
            Command::Modify { order, quantity, price } => {
                let report = self.engine.modify(order, quantity, price, &mut |_| {});
                report.expect("it was picked from the book");
            }
            _ => {}
        }
        self.engine.forget_changes();
    }
}

fn market_of(symbol: Symbol) -> usize {
    let number: usize = symbol.as_str()[1..].parse().expect("the feed named it");
    number - 1
}

impl Iterator for Feed {
    type Item = Command;

    fn next(&mut self) -> Option<Command> {
        let command = self.step();
        self.follow(&command);
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_is_the_same_for_the_same_seed() {
        let take = |seed| {
            let mut feed = Feed::new(Shape { seed, ..Shape::default() });
            let commands: Vec<Command> = feed.by_ref().take(20_000).collect();
            feed.engine().check();
            (commands, feed.engine().digest())
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn the_mix_is_an_exchanges() {
        let mut feed = Feed::new(Shape { seed: 3, symbols: 20, depth: 300 });
        let (mut adds, mut takes, mut cancels, mut modifies) = (0, 0, 0, 0);
        for command in feed.by_ref().take(200_000) {
            match command {
                Command::Enter(NewOrder { kind: Kind::Limit, .. }) => adds += 1,
                Command::Enter(_) => takes += 1,
                Command::Cancel(_) => cancels += 1,
                _ => modifies += 1,
            }
        }
        assert!((80_000..110_000).contains(&adds), "{adds} adds");
        assert!((70_000..100_000).contains(&cancels), "{cancels} cancels");
        assert!((4_000..8_000).contains(&takes), "{takes} orders that take");
        assert!((10_000..16_000).contains(&modifies), "{modifies} modifies");
        assert!((1_000..10_000).contains(&feed.engine().orders()), "{}", feed.engine().orders());
        assert!(feed.engine().totals.next_trade > 10_000);
    }
}
