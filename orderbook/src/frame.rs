//! The binary protocol, which is also what the log holds and what the service answers. All numbers
//! are little-endian.
//!
//! A command: 0x81, kind u8, length u16 of what follows. Kinds: 1 enter (symbol 8 bytes, side u8,
//! kind u8, quantity u64, price u64), 2 cancel (order u64), 3 modify (order, quantity, price), 16
//! top (symbol), 17 depth (symbol, levels u16), 18 status (order), 19 digest.
//!
//! An answer: 0x81, status u8, two zero bytes, length u32 of what follows. `docs/orderbook.md` has
//! the bodies. No answer and no line of text begins like the other: texts are ASCII.

use crate::order::{
    Command, Fill, Kind, NewOrder, OrderId, Price, Quantity, Refusal, Report, Side, Symbol,
};

/// The first byte of every command and answer: the version, with bit 7 set.
pub const MARK: u8 = 0x81;
/// Bytes of a command before its body.
pub const COMMAND_HEAD: usize = 4;
/// Bytes of an answer before its body.
pub const ANSWER_HEAD: usize = 8;
/// The most bytes that follow a command's head; what says more is not a command of any version.
pub const MAX_COMMAND_BODY: usize = 256;

const ENTER: u8 = 1;
const CANCEL: u8 = 2;
const MODIFY: u8 = 3;
const TOP: u8 = 16;
const DEPTH: u8 = 17;
const STATUS: u8 = 18;
const DIGEST: u8 = 19;

const REPORT_BODY: usize = 44;
const FILL_BYTES: usize = 24;

/// A status of an answer that is not a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Answered {
    Report = 0,
    Top = 1,
    Depth = 2,
    Status = 3,
    Digest = 4,
}

/// What the front of some bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// A command, of this many bytes.
    Command(Command, usize),
    /// Nothing that makes sense, of this many bytes; what follows may.
    Nonsense(usize),
    /// The beginning of a command, of which at least so many bytes are missing.
    Short(usize),
    /// Nothing that makes sense, and no way to tell where it ends.
    Lost,
}

/// Looks for a command at the front of `input`.
#[inline]
pub fn front(input: &[u8]) -> Front {
    let Some(&[mark, kind, low, high]) = input.first_chunk::<COMMAND_HEAD>() else {
        return match input.first() {
            None | Some(&MARK) => Front::Short(COMMAND_HEAD - input.len()),
            Some(_) => Front::Lost,
        };
    };
    let length = usize::from(u16::from_le_bytes([low, high]));
    if mark != MARK || length > MAX_COMMAND_BODY {
        return Front::Lost;
    }
    let whole = COMMAND_HEAD + length;
    let Some(body) = input.get(COMMAND_HEAD..whole) else {
        return Front::Short(whole - input.len());
    };
    match command(kind, body) {
        Some(command) => Front::Command(command, whole),
        None => Front::Nonsense(whole),
    }
}

fn command(kind: u8, body: &[u8]) -> Option<Command> {
    let mut from = Fields(body);
    let command = match kind {
        ENTER => Command::Enter(NewOrder {
            symbol: from.symbol()?,
            side: Side::from_byte(from.array::<1>()?[0])?,
            kind: Kind::from_byte(from.array::<1>()?[0])?,
            quantity: Quantity(from.u64()?),
            price: Price(from.u64()?),
        }),
        CANCEL => Command::Cancel(OrderId(from.u64()?)),
        MODIFY => Command::Modify {
            order: OrderId(from.u64()?),
            quantity: Quantity(from.u64()?),
            price: Price(from.u64()?),
        },
        TOP => Command::Top(from.symbol()?),
        DEPTH => Command::Depth(from.symbol()?, u16::from_le_bytes(from.array()?)),
        STATUS => Command::Status(OrderId(from.u64()?)),
        DIGEST => Command::Digest,
        _ => return None,
    };
    from.0.is_empty().then_some(command)
}

/// Appends a command.
#[inline]
pub fn push_command(out: &mut Vec<u8>, command: &Command) {
    match *command {
        Command::Enter(NewOrder { symbol, side, kind, quantity, price }) => {
            head(out, ENTER, 26);
            out.extend_from_slice(&symbol.padded());
            out.extend_from_slice(&[side as u8, kind as u8]);
            push_numbers(out, [quantity.0, price.0]);
        }
        Command::Cancel(order) => {
            head(out, CANCEL, 8);
            push_numbers(out, [order.0]);
        }
        Command::Modify { order, quantity, price } => {
            head(out, MODIFY, 24);
            push_numbers(out, [order.0, quantity.0, price.0]);
        }
        Command::Top(symbol) => {
            head(out, TOP, 8);
            out.extend_from_slice(&symbol.padded());
        }
        Command::Depth(symbol, levels) => {
            head(out, DEPTH, 10);
            out.extend_from_slice(&symbol.padded());
            out.extend_from_slice(&levels.to_le_bytes());
        }
        Command::Status(order) => {
            head(out, STATUS, 8);
            push_numbers(out, [order.0]);
        }
        Command::Digest => head(out, DIGEST, 0),
    }
}

fn head(out: &mut Vec<u8>, kind: u8, length: u16) {
    let [low, high] = length.to_le_bytes();
    out.extend_from_slice(&[MARK, kind, low, high]);
}

#[inline]
pub(crate) fn push_numbers<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// Appends an answer whose body `write` appends.
#[inline]
pub(crate) fn push_answer(out: &mut Vec<u8>, status: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[MARK, status, 0, 0, 0, 0, 0, 0]);
    write(out);
    let length = (out.len() - start - ANSWER_HEAD) as u32;
    out[start + 4..start + ANSWER_HEAD].copy_from_slice(&length.to_le_bytes());
}

/// Appends a refusal.
pub fn push_refusal(out: &mut Vec<u8>, refusal: Refusal) {
    push_answer(out, refusal as u8, |_| {});
}

/// Appends the answer to a command that changes the state, which `run` executes. It hands each fill
/// to the function that it is given.
#[inline]
pub(crate) fn push_report(
    out: &mut Vec<u8>,
    run: impl FnOnce(&mut dyn FnMut(Fill)) -> Result<Report, Refusal>,
) {
    let start = out.len();
    let body = start + ANSWER_HEAD;
    out.extend_from_slice(&[MARK, Answered::Report as u8, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&[0; REPORT_BODY]);
    let result = run(&mut |fill| push_numbers(out, [fill.maker.0, fill.quantity.0, fill.price.0]));
    let report = match result {
        Ok(report) => report,
        Err(refusal) => {
            out.truncate(start);
            return push_refusal(out, refusal);
        }
    };
    let length = (out.len() - body) as u32;
    out[start + 4..body].copy_from_slice(&length.to_le_bytes());
    let Report { order, filled, resting, cancelled, trade } = report;
    let numbers = [order.0, filled.0, resting.0, cancelled.0, trade];
    for (place, number) in out[body..body + 40].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let fills = (length as usize - REPORT_BODY) / FILL_BYTES;
    out[body + 40..body + REPORT_BODY].copy_from_slice(&(fills as u32).to_le_bytes());
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What became of an order, with its trades.
    Report(Report, Vec<Fill>),
    /// The best prices of a symbol (bid, then ask) and what is to be had there: zeros where there
    /// is nothing.
    Top(Symbol, [(Price, u64); 2]),
    /// The best levels of both sides (bids, then asks).
    Depth(Symbol, [Vec<LevelView>; 2]),
    /// An order in the book.
    Status(OrderView),
    /// A digest of the state.
    Digest(DigestView),
    /// The command came to nothing.
    Refused(Refusal),
}

/// A price level as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelView {
    /// The price.
    pub price: Price,
    /// What remains of its orders together.
    pub quantity: u64,
    /// How many they are.
    pub orders: u32,
}

/// An order in the book as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderView {
    /// Its number.
    pub order: OrderId,
    /// What it trades.
    pub symbol: Symbol,
    /// Which way.
    pub side: Side,
    /// At which price.
    pub price: Price,
    /// What remains.
    pub remaining: Quantity,
    /// What was traded, since it was entered.
    pub filled: u64,
}

/// A digest of the state and some counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestView {
    /// Equal for equal states.
    pub digest: u64,
    /// Orders in the books.
    pub orders: u64,
    /// Symbols known.
    pub symbols: u64,
    /// Orders ever accepted.
    pub accepted: u64,
    /// Trades ever made.
    pub trades: u64,
}

/// The length of the answer at the front of `bytes`, its head included, if there is a whole one.
pub fn answer_length(bytes: &[u8]) -> Option<usize> {
    let &[_, _, _, _, length @ ..] = bytes.first_chunk::<ANSWER_HEAD>()?;
    let whole = ANSWER_HEAD + u32::from_le_bytes(length) as usize;
    (whole <= bytes.len()).then_some(whole)
}

/// The answers in an answer to several commands, each with its head.
pub fn answers(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (answer, behind) = rest.split_at(answer_length(rest)?);
        rest = behind;
        Some(answer)
    })
}

/// Reads an answer, just as it was cut off by [`answer_length`]; nothing if it makes no sense.
pub fn read_answer(bytes: &[u8]) -> Option<Answer> {
    let (&[mark, status, ..], body) = bytes.split_first_chunk::<ANSWER_HEAD>()?;
    if mark != MARK {
        return None;
    }
    let mut from = Fields(body);
    let answer = match status {
        0 => {
            let order = OrderId(from.u64()?);
            let [filled, resting, cancelled] =
                [from.u64()?, from.u64()?, from.u64()?].map(Quantity);
            let report = Report { order, filled, resting, cancelled, trade: from.u64()? };
            let count = from.u32()? as usize;
            if from.0.len() != count.checked_mul(FILL_BYTES)? {
                return None;
            }
            let fills = (0..count).map(|_| from.fill()).collect::<Option<_>>()?;
            Answer::Report(report, fills)
        }
        1 => {
            let symbol = from.symbol()?;
            let bid = (Price(from.u64()?), from.u64()?);
            Answer::Top(symbol, [bid, (Price(from.u64()?), from.u64()?)])
        }
        2 => {
            let symbol = from.symbol()?;
            Answer::Depth(symbol, [from.levels()?, from.levels()?])
        }
        3 => Answer::Status(OrderView {
            order: OrderId(from.u64()?),
            symbol: from.symbol()?,
            side: Side::from_byte(from.array::<1>()?[0])?,
            price: Price(from.u64()?),
            remaining: Quantity(from.u64()?),
            filled: from.u64()?,
        }),
        4 => {
            let (digest, orders, symbols) = (from.u64()?, from.u64()?, from.u64()?);
            let (accepted, trades) = (from.u64()?, from.u64()?);
            Answer::Digest(DigestView { digest, orders, symbols, accepted, trades })
        }
        code => Answer::Refused(Refusal::from_code(code)?),
    };
    from.0.is_empty().then_some(answer)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    #[inline]
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    #[inline]
    fn symbol(&mut self) -> Option<Symbol> {
        Symbol::from_padded(self.array()?)
    }

    fn fill(&mut self) -> Option<Fill> {
        let (maker, quantity) = (OrderId(self.u64()?), Quantity(self.u64()?));
        Some(Fill { maker, quantity, price: Price(self.u64()?) })
    }

    fn levels(&mut self) -> Option<Vec<LevelView>> {
        let count = u16::from_le_bytes(self.array()?);
        let mut level = || {
            let (price, quantity) = (Price(self.u64()?), self.u64()?);
            Some(LevelView { price, quantity, orders: self.u32()? })
        };
        (0..count).map(|_| level()).collect()
    }
}
