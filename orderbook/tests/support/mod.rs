//! An engine at hand, random commands for it, and its state taken apart.

#![allow(dead_code, missing_docs)] // each test file uses a part

use orderbook::frame::{self, Answer, LevelView, OrderView};
use orderbook::text::{self, Line};
use orderbook::{
    Command, Engine, Kind, Limits, NewOrder, OrderId, Price, Quantity, Side, Symbol, Undo,
};
use smr::rng::Rng;
use smr::{Context, OpNumber, ReadOutcome, StateMachine};

/// So small that all limits are met.
pub const TINY: Limits = Limits { orders: 12, symbols: 2, fills: 3 };

const CONTEXT: Context = Context { position: OpNumber(1), index: 0, unix_ms: 0 };

/// Executes a request of these commands.
pub fn apply(engine: &mut Engine, commands: &[Command]) -> (Vec<Answer>, Undo) {
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    commands.iter().for_each(|command| frame::push_command(&mut request, command));
    let undo = engine.apply(CONTEXT, &request, &mut reply);
    let answers = frame::answers(&reply);
    let read = |answer| frame::read_answer(answer).expect("the engine's answers make sense");
    let answers: Vec<Answer> = answers.map(read).collect();
    assert_eq!(answers.len(), commands.len());
    (answers, undo)
}

pub fn apply_one(engine: &mut Engine, command: Command) -> Answer {
    apply(engine, &[command]).0.remove(0)
}

pub fn read_one(engine: &Engine, command: Command) -> Answer {
    let (mut request, mut reply) = (Vec::new(), Vec::new());
    frame::push_command(&mut request, &command);
    assert_eq!(engine.read(0, &request, &mut reply), ReadOutcome::Done);
    frame::read_answer(&reply).expect("the engine's answers make sense")
}

/// Executes lines of the text protocol; the answers, in lines.
pub fn run(engine: &mut Engine, lines: &str) -> Vec<String> {
    let mut answers = Vec::new();
    for line in lines.lines() {
        let Line::Command(command) = text::read_line(line.trim().as_bytes()) else {
            panic!("{line} is no command");
        };
        let (mut request, mut reply, mut out) = (Vec::new(), Vec::new(), Vec::new());
        frame::push_command(&mut request, &command);
        engine.apply(CONTEXT, &request, &mut reply);
        text::push_answer(&mut out, &reply);
        engine.check();
        answers.push(String::from_utf8(out).expect("ASCII").trim_end().to_owned());
    }
    answers
}

/// Executes a script: lines of the text protocol, each followed by the answer that is expected,
/// behind `=> `.
pub fn script(limits: Limits, lines: &str) {
    let mut engine = Engine::new(limits);
    let mut answer = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("=> ") {
            Some(expected) => assert_eq!(answer, expected, "in {lines}"),
            None => answer = run(&mut engine, line).remove(0),
        }
    }
}

pub fn symbol(number: u64) -> Symbol {
    Symbol::new(format!("S{number}").as_bytes()).expect("letters and digits")
}

/// A command of all sorts, sensible ones and others, on few prices and symbols.
pub fn command(rng: &mut Rng) -> Command {
    let price = Price(if rng.chance(1, 60) { rng.next_u64() } else { 95 + rng.below(10) });
    let quantity = Quantity(if rng.chance(1, 60) { rng.next_u64() } else { rng.below(12) });
    let order = OrderId(rng.below(80));
    match rng.below(20) {
        0..3 => Command::Cancel(order),
        3..6 => Command::Modify { order, quantity, price },
        6 => [Command::Digest, Command::Status(order), Command::Top(symbol(rng.below(3)))]
            [rng.below(3) as usize],
        _ => {
            let symbols = if rng.chance(1, 20) { 4 } else { 2 };
            let symbol = symbol(rng.below(symbols));
            let side = if rng.chance(1, 2) { Side::Buy } else { Side::Sell };
            let kind = [Kind::Limit, Kind::Limit, Kind::Limit, Kind::Market, Kind::Ioc, Kind::Fok]
                [rng.below(6) as usize];
            let market = kind == Kind::Market && !rng.chance(1, 30);
            let price = if market { Price(0) } else { price };
            Command::Enter(NewOrder { symbol, side, kind, quantity, price })
        }
    }
}

/// Like [`command`], but numbers of orders are those around `next`.
pub fn recent(rng: &mut Rng, next: u64) -> Command {
    let shift = |order: OrderId| OrderId((next + 4).saturating_sub(order.0 % 40));
    match command(rng) {
        Command::Cancel(order) => Command::Cancel(shift(order)),
        Command::Status(order) => Command::Status(shift(order)),
        Command::Modify { order, quantity, price } => {
            Command::Modify { order: shift(order), quantity, price }
        }
        other => other,
    }
}

pub fn accepted(engine: &Engine) -> u64 {
    match read_one(engine, Command::Digest) {
        Answer::Digest(view) => view.accepted,
        other => panic!("{other:?}"),
    }
}

/// All that clients can see of a state, and its digest.
#[derive(Debug, PartialEq, Eq)]
pub struct Seen {
    digest: Answer,
    depths: Vec<Answer>,
    orders: Vec<Option<OrderView>>,
}

pub fn seen(engine: &Engine) -> Seen {
    engine.check();
    let view = |number| match read_one(engine, Command::Status(OrderId(number))) {
        Answer::Status(view) => Some(view),
        _ => None,
    };
    Seen {
        digest: read_one(engine, Command::Digest),
        depths: (0..3).map(|n| read_one(engine, Command::Depth(symbol(n), 256))).collect(),
        orders: (1..=accepted(engine)).map(view).collect(),
    }
}

/// Writes a checkpoint out, `budget` bytes at a time; `between` is called between chunks.
pub fn write_out(
    engine: &mut Engine,
    budget: usize,
    mut between: impl FnMut(&mut Engine),
) -> Vec<Vec<u8>> {
    engine.checkpoint_begin();
    let mut chunks = Vec::new();
    loop {
        between(engine);
        let mut chunk = Vec::new();
        let last = engine.checkpoint_next(budget, &mut chunk);
        chunks.push(chunk);
        if last {
            return chunks;
        }
    }
}

pub fn read_back(limits: Limits, chunks: &[Vec<u8>]) -> Engine {
    let mut engine = Engine::new(limits);
    engine.restore_begin();
    for chunk in chunks {
        engine.restore_chunk(chunk).expect("the engine's own chunk");
    }
    engine
}

pub fn levels_of(view: &[(u64, u64, u32)]) -> Vec<LevelView> {
    let level = |&(price, quantity, orders)| LevelView { price: Price(price), quantity, orders };
    view.iter().map(level).collect()
}
