//! The words of the engine: symbols, prices, quantities, orders, commands and what becomes of them.

use std::fmt;

/// The highest price, in ticks.
pub const MAX_PRICE: u64 = (1 << 48) - 1;
/// The largest quantity of one order. With the most orders there can be, sums stay below 2^64.
pub const MAX_QUANTITY: u64 = (1 << 40) - 1;

/// An order's number, from 1, in the order in which the engine accepted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrderId(pub u64);

/// A price in ticks, 1 to [`MAX_PRICE`] in an order. What a tick is worth is the users' affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price(pub u64);

/// A number of shares, lots or whatever is traded: 1 to [`MAX_QUANTITY`] in an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(pub u64);

/// What is traded: 1 to 8 of `A` to `Z`, `0` to `9`, `.` and `-`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol([u8; 8]);

impl Symbol {
    /// A symbol of these letters, or nothing if they make none.
    pub fn new(letters: &[u8]) -> Option<Symbol> {
        let mut padded = [0; 8];
        padded.get_mut(..letters.len())?.copy_from_slice(letters);
        Symbol::from_padded(padded)
    }

    /// A symbol filled up with zero bytes at the end, or nothing if it is none.
    pub fn from_padded(padded: [u8; 8]) -> Option<Symbol> {
        let length = padded.iter().position(|&byte| byte == 0).unwrap_or(8);
        let sound = |byte: &u8| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-');
        let (letters, rest) = padded.split_at(length);
        let whole = length > 0 && letters.iter().all(sound) && rest.iter().all(|&byte| byte == 0);
        whole.then_some(Symbol(padded))
    }

    /// Its letters, filled up with zero bytes.
    pub fn padded(self) -> [u8; 8] {
        self.0
    }

    /// Its letters.
    pub fn as_str(&self) -> &str {
        let length = self.0.iter().position(|&byte| byte == 0).unwrap_or(8);
        std::str::from_utf8(&self.0[..length]).expect("its letters are ASCII")
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which way an order goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Side {
    /// It buys.
    Buy = 0,
    /// It sells.
    Sell = 1,
}

impl Side {
    /// The side that it trades with.
    pub fn opposite(self) -> Side {
        match self {
            Side::Buy => Side::Sell,
            Side::Sell => Side::Buy,
        }
    }

    /// The side with this number, as on the wire.
    pub fn from_byte(byte: u8) -> Option<Side> {
        match byte {
            0 => Some(Side::Buy),
            1 => Some(Side::Sell),
            _ => None,
        }
    }
}

/// What an order does with the quantity that finds no counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// It rests in the book at the order's price.
    Limit = 0,
    /// It is cancelled; any price is taken.
    Market = 1,
    /// Immediate or cancel: it is cancelled.
    Ioc = 2,
    /// Fill or kill: unless all of it trades at once, nothing does.
    Fok = 3,
}

impl Kind {
    /// The kind with this number, as on the wire.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Limit, Kind::Market, Kind::Ioc, Kind::Fok].get(usize::from(byte)).copied()
    }
}

/// An order as it comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewOrder {
    /// What to trade.
    pub symbol: Symbol,
    /// Which way.
    pub side: Side,
    /// What becomes of the rest.
    pub kind: Kind,
    /// How much.
    pub quantity: Quantity,
    /// The worst price that is acceptable; zero for [`Kind::Market`].
    pub price: Price,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Enters an order.
    Enter(NewOrder),
    /// Takes an order out of the book.
    Cancel(OrderId),
    /// Gives an order in the book another quantity still to trade and another price. It keeps its
    /// place if the price stays and the quantity does not grow; else it is matched and queued like
    /// a new order, under its old number.
    Modify {
        /// Which one.
        order: OrderId,
        /// What is to remain of it, 1 to [`MAX_QUANTITY`].
        quantity: Quantity,
        /// Its price from now on.
        price: Price,
    },
    /// Reads the best prices of a symbol.
    Top(Symbol),
    /// Reads this many of the best price levels of each side, 1 to [`MAX_DEPTH`].
    Depth(Symbol, u16),
    /// Reads the state of an order.
    Status(OrderId),
    /// Reads the digest of the whole state.
    Digest,
}

/// The most price levels of a side in the answer to [`Command::Depth`].
pub const MAX_DEPTH: u16 = 256;

impl Command {
    /// Whether it changes the state.
    pub fn writes(&self) -> bool {
        matches!(self, Command::Enter(_) | Command::Cancel(_) | Command::Modify { .. })
    }
}

/// A trade of the incoming order with one that rested in the book, at the price of the latter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The order that rested.
    pub maker: OrderId,
    /// How much was traded.
    pub quantity: Quantity,
    /// At which price.
    pub price: Price,
}

/// What became of an order that was entered, modified or cancelled. For an order entered, its
/// quantity is the sum of `filled`, `resting` and `cancelled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Which order.
    pub order: OrderId,
    /// How much of it was traded by this command.
    pub filled: Quantity,
    /// How much of it is in the book now.
    pub resting: Quantity,
    /// How much of it this command took out for good.
    pub cancelled: Quantity,
    /// The number of the first trade of this command; the others follow. Without a trade, the
    /// number that the next one will have.
    pub trade: u64,
}

/// Why a command came to nothing. The number is its code on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    /// The bytes are not a command.
    Malformed = 0x80,
    /// The price is not between 1 and [`MAX_PRICE`], or a market order has one.
    BadPrice = 0x81,
    /// The quantity is not between 1 and [`MAX_QUANTITY`].
    BadQuantity = 0x82,
    /// No limit order was ever entered for the symbol.
    UnknownSymbol = 0x83,
    /// The order's number was never given out.
    UnknownOrder = 0x84,
    /// The order was filled, cancelled or killed.
    ClosedOrder = 0x85,
    /// The order would rest, and there is no room for more orders.
    BookFull = 0x86,
    /// There is no room for another symbol.
    SymbolsFull = 0x87,
    /// The group has no quorum: the command was not executed.
    Unavailable = 0xc0,
    /// The command was not answered in time: it may have been executed, or may yet be.
    Timeout = 0xc1,
    /// The group's state is gone (durability `memory`).
    StateLost = 0xc2,
    /// Another process runs as this replica: the outcome is unknown.
    Retired = 0xc3,
    /// The command was executed, but its answer is lost.
    Garbled = 0xc4,
    /// The disk of the replica is full: orders are refused, cancels and reads go on.
    DiskFull = 0xc5,
    /// The replica has as many clients as it takes.
    TooManyClients = 0xc6,
}

impl Refusal {
    const ALL: [Refusal; 15] = [
        Refusal::Malformed,
        Refusal::BadPrice,
        Refusal::BadQuantity,
        Refusal::UnknownSymbol,
        Refusal::UnknownOrder,
        Refusal::ClosedOrder,
        Refusal::BookFull,
        Refusal::SymbolsFull,
        Refusal::Unavailable,
        Refusal::Timeout,
        Refusal::StateLost,
        Refusal::Retired,
        Refusal::Garbled,
        Refusal::DiskFull,
        Refusal::TooManyClients,
    ];

    /// The refusal with this code.
    pub fn from_code(code: u8) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == code)
    }

    /// A word for programs and a text for people.
    pub fn text(self) -> (&'static str, &'static str) {
        match self {
            Refusal::Malformed => ("MALFORMED", "this is not a command"),
            Refusal::BadPrice => ("BAD_PRICE", "a price is 1 to 281474976710655 ticks"),
            Refusal::BadQuantity => ("BAD_QUANTITY", "a quantity is 1 to 1099511627775"),
            Refusal::UnknownSymbol => ("UNKNOWN_SYMBOL", "no limit order was entered for it"),
            Refusal::UnknownOrder => ("UNKNOWN_ORDER", "this number was never given out"),
            Refusal::ClosedOrder => ("CLOSED_ORDER", "the order is no longer in the book"),
            Refusal::BookFull => ("BOOK_FULL", "no room for another order: cancel some"),
            Refusal::SymbolsFull => ("SYMBOLS_FULL", "no room for another symbol"),
            Refusal::Unavailable => ("UNAVAILABLE", "no quorum of replicas: not executed"),
            Refusal::Timeout => ("TIMEOUT", "the outcome is unknown"),
            Refusal::StateLost => ("STATE_LOST", "too many replicas crashed: the state is gone"),
            Refusal::Retired => ("RETIRED", "another process runs as this replica"),
            Refusal::Garbled => ("GARBLED", "executed, but the answer is lost"),
            Refusal::DiskFull => ("DISK_FULL", "orders are refused until there is space"),
            Refusal::TooManyClients => ("TOO_MANY_CLIENTS", "connect to another replica"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, text) = self.text();
        write!(f, "{word} {text}")
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_checked() {
        for good in ["A", "AAPL", "BRK.B", "BTC-USD1"] {
            let symbol = Symbol::new(good.as_bytes()).expect(good);
            assert_eq!(symbol.as_str(), good);
            assert_eq!(Symbol::from_padded(symbol.padded()), Some(symbol));
        }
        for bad in [&b""[..], b"aapl", b"NINELONGX", b"A B", b"A\0B", b"\xff"] {
            assert_eq!(Symbol::new(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_on_the_wire_lead_back() {
        for code in 0..=255 {
            assert!(Refusal::from_code(code).is_none_or(|refusal| refusal as u8 == code));
            assert!(Kind::from_byte(code).is_none_or(|kind| kind as u8 == code));
            assert!(Side::from_byte(code).is_none_or(|side| side as u8 == code));
        }
        assert_eq!((0..=255).filter_map(Refusal::from_code).count(), Refusal::ALL.len());
    }
}
