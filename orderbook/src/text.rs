//! The text protocol: a command a line, an answer a line, words apart by spaces. Words are taken in
//! any case. `docs/orderbook.md` has all of them.

use std::io::Write;

use crate::frame::{Answer, LevelView, read_answer};
use crate::order::{Command, Kind, NewOrder, OrderId, Price, Quantity, Refusal, Side, Symbol};

/// The longest line, its end included, in bytes.
pub const MAX_LINE: usize = 128;

/// What a line asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing: the line is empty or begins with `#`.
    Empty,
    /// Something of the service.
    Command(Command),
    /// A word, to see that there is somebody.
    Ping,
    /// The state of the replica.
    Status,
    /// The end of the connection.
    Quit,
    /// Nothing that makes sense, or a word or number that cannot be.
    Nonsense,
}

/// Reads a line, without its end.
pub fn read_line(line: &[u8]) -> Line {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let Some(verb) = words.next() else { return Line::Empty };
    if verb[0] == b'#' {
        return Line::Empty;
    }
    let read = command(verb, &mut words);
    match read {
        Some(line) if words.next().is_none() => line,
        _ => Line::Nonsense,
    }
}

fn command<'a>(verb: &[u8], words: &mut impl Iterator<Item = &'a [u8]>) -> Option<Line> {
    let verb = &Upper::of(verb)?;
    let kind = match verb.get() {
        b"LIMIT" => Some(Kind::Limit),
        b"MARKET" => Some(Kind::Market),
        b"IOC" => Some(Kind::Ioc),
        b"FOK" => Some(Kind::Fok),
        _ => None,
    };
    if let Some(kind) = kind {
        let symbol = symbol(words.next()?)?;
        let side = match Upper::of(words.next()?)?.get() {
            b"BUY" => Side::Buy,
            b"SELL" => Side::Sell,
            _ => return None,
        };
        let quantity = Quantity(number(words.next()?)?);
        let price = if kind == Kind::Market { 0 } else { number(words.next()?)? };
        let new = NewOrder { symbol, side, kind, quantity, price: Price(price) };
        return Some(Line::Command(Command::Enter(new)));
    }
    let command = match verb.get() {
        b"CANCEL" => Command::Cancel(OrderId(number(words.next()?)?)),
        b"MODIFY" => Command::Modify {
            order: OrderId(number(words.next()?)?),
            quantity: Quantity(number(words.next()?)?),
            price: Price(number(words.next()?)?),
        },
        b"TOP" => Command::Top(symbol(words.next()?)?),
        b"DEPTH" => {
            let symbol = symbol(words.next()?)?;
            let levels = words.next().map_or(Some(10), number)?;
            Command::Depth(symbol, u16::try_from(levels).ok()?)
        }
        b"ORDER" => Command::Status(OrderId(number(words.next()?)?)),
        b"DIGEST" => Command::Digest,
        b"PING" => return Some(Line::Ping),
        b"STATUS" => return Some(Line::Status),
        b"QUIT" => return Some(Line::Quit),
        _ => return None,
    };
    Some(Line::Command(command))
}

/// A short word in upper case.
struct Upper([u8; 8], usize);

impl Upper {
    fn of(word: &[u8]) -> Option<Upper> {
        let mut letters = [0; 8];
        letters.get_mut(..word.len())?.copy_from_slice(word);
        letters.make_ascii_uppercase();
        Some(Upper(letters, word.len()))
    }

    fn get(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

fn symbol(word: &[u8]) -> Option<Symbol> {
    Symbol::new(Upper::of(word)?.get())
}

fn number(word: &[u8]) -> Option<u64> {
    // No sign: `parse` would take one.
    word.iter().all(u8::is_ascii_digit).then_some(())?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// Appends a command as a line, such that [`read_line`] reads the same.
pub fn push_command(out: &mut Vec<u8>, command: &Command) {
    let written = match *command {
        Command::Enter(NewOrder { symbol, side, kind, quantity, price }) => {
            let verb = ["LIMIT", "MARKET", "IOC", "FOK"][kind as usize];
            let side = side_word(side);
            let start = write!(out, "{verb} {symbol} {side} {}", quantity.0);
            if kind == Kind::Market { start } else { start.and(write!(out, " {}", price.0)) }
        }
        Command::Cancel(order) => write!(out, "CANCEL {}", order.0),
        Command::Modify { order, quantity, price } => {
            write!(out, "MODIFY {} {} {}", order.0, quantity.0, price.0)
        }
        Command::Top(symbol) => write!(out, "TOP {symbol}"),
        Command::Depth(symbol, levels) => write!(out, "DEPTH {symbol} {levels}"),
        Command::Status(order) => write!(out, "ORDER {}", order.0),
        Command::Digest => write!(out, "DIGEST"),
    };
    written.expect("a vector takes all");
    out.push(b'\n');
}

fn side_word(side: Side) -> &'static str {
    match side {
        Side::Buy => "BUY",
        Side::Sell => "SELL",
    }
}

/// Appends a binary answer as a line.
pub fn push_answer(out: &mut Vec<u8>, answer: &[u8]) {
    match read_answer(answer) {
        Some(answer) => push_words(out, &answer).expect("a vector takes all"),
        None => return push_refusal(out, Refusal::Garbled),
    }
    out.push(b'\n');
}

/// Appends a refusal as a line.
pub fn push_refusal(out: &mut Vec<u8>, refusal: Refusal) {
    writeln!(out, "ERR {refusal}").expect("a vector takes all");
}

fn push_words(out: &mut Vec<u8>, answer: &Answer) -> std::io::Result<()> {
    match answer {
        Answer::Report(report, fills) => {
            let (filled, resting) = (report.filled.0, report.resting.0);
            let (order, cancelled) = (report.order.0, report.cancelled.0);
            write!(out, "OK {order} FILLED {filled} RESTING {resting} CANCELLED {cancelled}")?;
            for (trade, fill) in (report.trade..).zip(fills) {
                let (maker, quantity, price) = (fill.maker.0, fill.quantity.0, fill.price.0);
                write!(out, " TRADE {trade} {maker} {quantity} {price}")?;
            }
            Ok(())
        }
        Answer::Top(symbol, [bid, ask]) => {
            write!(out, "TOP {symbol} BID {} {} ASK {} {}", bid.0.0, bid.1, ask.0.0, ask.1)
        }
        Answer::Depth(symbol, [bids, asks]) => {
            write!(out, "DEPTH {symbol}")?;
            push_levels(out, "BIDS", bids)?;
            push_levels(out, "ASKS", asks)
        }
        Answer::Status(view) => {
            let (order, symbol, side) = (view.order.0, view.symbol, side_word(view.side));
            let (price, remaining, filled) = (view.price.0, view.remaining.0, view.filled);
            write!(out, "ORDER {order} {symbol} {side} {price} RESTING {remaining} FILLED {filled}")
        }
        Answer::Digest(view) => {
            let (orders, symbols) = (view.orders, view.symbols);
            write!(out, "DIGEST {:016x} ORDERS {orders} SYMBOLS {symbols}", view.digest)?;
            write!(out, " ACCEPTED {} TRADES {}", view.accepted, view.trades)
        }
        Answer::Refused(refusal) => write!(out, "ERR {refusal}"),
    }
}

fn push_levels(out: &mut Vec<u8>, name: &str, levels: &[LevelView]) -> std::io::Result<()> {
    write!(out, " {name} {}", levels.len())?;
    for level in levels {
        write!(out, " {} {} {}", level.price.0, level.quantity, level.orders)?;
    }
    Ok(())
}
