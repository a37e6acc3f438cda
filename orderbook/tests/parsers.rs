//! Both protocols: what is written is read again, and nothing that comes in does harm.

mod support;

use orderbook::frame::{self, Front, MARK};
use orderbook::text::{self, Line};
use orderbook::{Command, Kind, NewOrder, OrderId, Price, Quantity, Side, Symbol};
use proptest::prelude::*;
use smr::rng::Rng;

fn lines(text: &str) -> Vec<Line> {
    text.lines().map(|line| text::read_line(line.as_bytes())).collect()
}

#[test]
fn lines_are_read() {
    let symbol = Symbol::new(b"AAPL").expect("a symbol");
    let (quantity, price) = (Quantity(100), Price(15025));
    let new = NewOrder { symbol, side: Side::Buy, kind: Kind::Limit, quantity, price };
    let order = OrderId(7);
    let text = "LIMIT AAPL BUY 100 15025\n limit  aapl Buy 100\t15025 \nMARKET AAPL BUY 100\n\
                ioc aapl buy 100 15025\nFOK AAPL BUY 100 15025\nCANCEL 7\nMODIFY 7 100 15025\n\
                TOP AAPL\nDEPTH AAPL\nDEPTH AAPL 3\nORDER 7\nDIGEST\nPING\nSTATUS\nQUIT\n\n# x";
    let enter = |kind| Line::Command(Command::Enter(NewOrder { kind, ..new }));
    let market = NewOrder { kind: Kind::Market, price: Price(0), ..new };
    let expected = [
        enter(Kind::Limit),
        enter(Kind::Limit),
        Line::Command(Command::Enter(market)),
        enter(Kind::Ioc),
        enter(Kind::Fok),
        Line::Command(Command::Cancel(order)),
        Line::Command(Command::Modify { order, quantity, price }),
        Line::Command(Command::Top(symbol)),
        Line::Command(Command::Depth(symbol, 10)),
        Line::Command(Command::Depth(symbol, 3)),
        Line::Command(Command::Status(order)),
        Line::Command(Command::Digest),
        Line::Ping,
        Line::Status,
        Line::Quit,
        Line::Empty,
        Line::Empty,
    ];
    assert_eq!(lines(text), expected);
}

#[test]
fn lines_that_make_no_sense_are_seen() {
    let text = "LIMIT\nLIMIT AAPL\nLIMIT AAPL BUY\nLIMIT AAPL BUY 100\nLIMIT AAPL HOLD 1 1\n\
                LIMIT AAPL BUY 1 1 1\nLIMIT AAPL BUY -1 1\nLIMIT AAPL BUY +1 1\n\
                LIMIT AAPL BUY 1.5 1\nLIMIT AAPL BUY 99999999999999999999 1\n\
                LIMIT TOOLONGNAME BUY 1 1\nLIMIT A_B BUY 1 1\nMARKET AAPL BUY 1 1\nCANCEL\n\
                CANCEL x\nMODIFY 1 2\nDEPTH AAPL 70000\nDIGEST 1\nGET / HTTP/1.1\nlimitlimit x\n\
                L\u{ef}MIT AAPL BUY 1 1";
    for (line, read) in text.lines().zip(lines(text)) {
        assert_eq!(read, Line::Nonsense, "{line}");
    }
}

#[test]
fn frames_that_make_no_sense_are_seen() {
    assert_eq!(frame::front(&[]), Front::Short(4));
    assert_eq!(frame::front(&[MARK, 2, 8]), Front::Short(1));
    assert_eq!(frame::front(&[MARK, 2, 8, 0, 1]), Front::Short(7));
    assert_eq!(frame::front(&[0x82]), Front::Lost);
    assert_eq!(frame::front(&[MARK, 2, 0, 0x80]), Front::Lost);
    // Of no kind, too short, too long, no side.
    assert_eq!(frame::front(&[MARK, 99, 0, 0, 7]), Front::Nonsense(4));
    assert_eq!(frame::front(&[MARK, 2, 2, 0, 1, 1]), Front::Nonsense(6));
    assert_eq!(frame::front(&[MARK, 19, 1, 0, 1]), Front::Nonsense(5));
    let mut bytes = Vec::new();
    let Line::Command(command) = text::read_line(b"LIMIT A BUY 1 1") else { panic!("a command") };
    frame::push_command(&mut bytes, &command);
    bytes[12] = 2;
    assert_eq!(frame::front(&bytes), Front::Nonsense(30));
}

proptest! {
    #[test]
    fn commands_survive_both_protocols(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        for _ in 0..20 {
            let mut command = support::command(&mut rng);
            let mut bytes = Vec::new();
            frame::push_command(&mut bytes, &command);
            prop_assert_eq!(frame::front(&bytes), Front::Command(command, bytes.len()));
            for length in 0..bytes.len() {
                let short = matches!(frame::front(&bytes[..length]), Front::Short(1..));
                prop_assert!(short);
            }
            // There are no words for the price of a market order.
            if let Command::Enter(NewOrder { kind: Kind::Market, price, .. }) = &mut command {
                *price = Price(0);
            }
            let mut line = Vec::new();
            text::push_command(&mut line, &command);
            prop_assert!(line.len() <= text::MAX_LINE);
            prop_assert_eq!(text::read_line(&line), Line::Command(command));
        }
    }

    #[test]
    fn any_bytes_can_be_parsed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = text::read_line(&bytes);
        let _ = frame::read_answer(&bytes);
        let mut out = Vec::new();
        text::push_answer(&mut out, &bytes);
        prop_assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 1);
        prop_assert!(frame::answers(&bytes).map(<[u8]>::len).sum::<usize>() <= bytes.len());
        match frame::front(&bytes) {
            Front::Command(command, length) => {
                let mut again = Vec::new();
                frame::push_command(&mut again, &command);
                prop_assert_eq!(&again[..], &bytes[..length]);
            }
            Front::Nonsense(length) => prop_assert!(length <= bytes.len()),
            Front::Short(missing) => prop_assert!(missing > 0),
            Front::Lost => {}
        }
    }

    #[test]
    fn almost_commands_can_be_parsed(seed: u64, place in 0_usize..40, byte: u8) {
        let command = support::command(&mut Rng::new(seed));
        let (mut bytes, mut line) = (Vec::new(), Vec::new());
        frame::push_command(&mut bytes, &command);
        text::push_command(&mut line, &command);
        let (first, second) = (place % bytes.len(), place % line.len());
        (bytes[first], line[second]) = (byte, byte);
        let _ = (frame::front(&bytes), text::read_line(&line));
        // Answers are damaged, too.
        let mut answer = vec![MARK, (byte & 7).min(4), 0, 0, 0, 0, 0, 0];
        answer.extend_from_slice(&bytes);
        let _ = frame::read_answer(&answer);
    }
}
