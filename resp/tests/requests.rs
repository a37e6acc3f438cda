//! Commands as clients send them.

use proptest::prelude::*;
use resp::{Limits, MAX_ARGUMENTS, MAX_INLINE, Parser, write};

/// All commands in the bytes, handed over in pieces cut at `cuts`, and the error that ended it.
fn parse_in_pieces(bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    let mut parser = Parser::default();
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.sort_unstable();
    ends.push(bytes.len());
    let (mut start, mut commands) = (0, Vec::new());
    for end in ends {
        loop {
            match parser.parse(&bytes[start..end]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    let command = parser.command(&bytes[start..end]);
                    commands.push(command.iter().map(<[u8]>::to_vec).collect());
                    start += length;
                }
                Err(error) => return (commands, Some(error.to_string())),
            }
        }
    }
    (commands, None)
}

fn parse_whole(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Option<String>) {
    parse_in_pieces(bytes, &[])
}

fn error_with(bytes: &[u8], limits: Limits) -> String {
    let mut parser = Parser::new(limits);
    parser.parse(bytes).unwrap_err().to_string()
}

#[test]
fn commands_are_found() {
    let (commands, error) =
        parse_whole(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n*0\r\n\r\n*-1\r\nset a \"b c\"\n");
    assert_eq!(error, None);
    let expected: [&[&[u8]]; 6] =
        [&[b"GET", b"a"], &[b"PING"], &[], &[], &[], &[b"set", b"a", b"b c"]];
    assert_eq!(commands, expected);
}

#[test]
fn every_error_has_redis_text() {
    let long = vec![b'1'; MAX_INLINE + 10];
    for (bytes, expected) in [
        (&b"*abc\r\n"[..], "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*3000000000\r\n", "invalid multibulk length"),
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*1\r\n$abc\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$2000000000\r\n", "invalid bulk length"),
        (b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfoo\r\n", "expected '$', got 'f'"),
        (b"GET \"a\r\n", "unbalanced quotes in request"),
        (b"GET 'a'b\r\n", "unbalanced quotes in request"),
        (&long[..], "too big inline request"),
        (&[b"*", &long[..]].concat(), "too big mbulk count string"),
        (&[b"*1\r\n$", &long[..]].concat(), "too big bulk count string"),
    ] {
        let error = error_with(bytes, Limits::default());
        assert_eq!(error, format!("Protocol error: {expected}"));
    }
}

#[test]
fn limits_are_kept() {
    let small = Limits { bulk_len: 10, authenticated: true };
    assert!(Parser::new(small).parse(b"*1\r\n$10\r\n").unwrap().is_none());
    assert_eq!(error_with(b"*1\r\n$11\r\n", small), "Protocol error: invalid bulk length");
    let stranger = Limits { authenticated: false, ..Limits::default() };
    let text = error_with(b"*11\r\n", stranger);
    assert_eq!(text, "Protocol error: unauthenticated multibulk length");
    let text = error_with(b"*10\r\n$16385\r\n", stranger);
    assert_eq!(text, "Protocol error: unauthenticated bulk length");
    assert!(Parser::new(stranger).parse(b"*10\r\n$16384\r\n").unwrap().is_none());
    let mut many = format!("*{MAX_ARGUMENTS}\r\n").into_bytes();
    many.extend(b"$0\r\n\r\n".repeat(MAX_ARGUMENTS));
    let (commands, error) = parse_whole(&many);
    assert_eq!((commands[0].len(), error), (MAX_ARGUMENTS, None));
}

#[test]
fn the_parser_says_how_much_is_missing() {
    let mut parser = Parser::default();
    let start = b"*2\r\n$3\r\nGET\r\n$1000\r\nabc";
    assert_eq!(parser.parse(start).unwrap(), None);
    assert_eq!(parser.needs(start.len()), 1000 - 3 + 2);
    assert_eq!(Parser::default().needs(0), 0);
}

#[test]
fn slices_are_handed_over_as_one() {
    for count in [0, 1, 15, 16, 17, 40] {
        let args: Vec<String> = (0..count).map(|number| number.to_string()).collect();
        let argv: Vec<&[u8]> = args.iter().map(|arg| arg.as_bytes()).collect();
        let mut bytes = Vec::new();
        write::command(&mut bytes, &argv);
        let mut parser = Parser::default();
        assert_eq!(parser.parse(&bytes).unwrap(), Some(bytes.len()));
        let command = parser.command(&bytes);
        command.with_slices(|slices| assert_eq!(slices, argv));
        assert_eq!(command.len(), count);
        assert_eq!(command.is_empty(), count == 0);
        assert_eq!(command.get(count), None);
    }
}

#[test]
fn a_large_argument_in_small_pieces_is_not_parsed_again_and_again() {
    let mut bytes = Vec::new();
    write::command(&mut bytes, &[b"SET", b"a", &vec![b'\n'; 4 << 20]]);
    let mut parser = Parser::default();
    for end in (0..bytes.len()).step_by(16) {
        assert_eq!(parser.parse(&bytes[..end]).unwrap(), None);
    }
    assert_eq!(parser.parse(&bytes).unwrap(), Some(bytes.len()));
    let mut parser = Parser::default();
    let inline = [&vec![b'a'; MAX_INLINE][..], b"\r\n"].concat();
    for end in 0..MAX_INLINE {
        assert_eq!(parser.parse(&inline[..end]).unwrap(), None);
    }
}

fn pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(any::<usize>(), 0..20)
}

proptest! {
    #[test]
    fn commands_come_back_however_they_are_cut(
        commands in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..6), 0..6),
        cuts in pieces(),
    ) {
        let mut bytes = Vec::new();
        for command in &commands {
            let argv: Vec<&[u8]> = command.iter().map(|arg| &arg[..]).collect();
            write::command(&mut bytes, &argv);
        }
        prop_assert_eq!(parse_in_pieces(&bytes, &cuts), (commands, None));
    }

    #[test]
    fn cuts_do_not_matter(bytes in mostly_protocol(), cuts in pieces()) {
        prop_assert_eq!(parse_in_pieces(&bytes, &cuts), parse_whole(&bytes));
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        cuts in pieces(),
    ) {
        prop_assert_eq!(parse_in_pieces(&bytes, &cuts), parse_whole(&bytes));
    }
}

/// Bytes that get past the first line often enough.
fn mostly_protocol() -> impl Strategy<Value = Vec<u8>> {
    const PARTS: &[&str] = &[
        "*1\r\n",
        "*2\r\n",
        "*3\r\n",
        "*-1\r\n",
        "*x\r\n",
        "$0\r\n\r\n",
        "$1\r\na\r\n",
        "$3\r\nGET\r\n",
        "$5\r\n",
        "\r",
        "\n",
        "\r\n",
        "PING\r\n",
        "GET \"a b\"\r\n",
        "'",
        "*",
        "$",
        "12",
        "abc",
    ];
    prop::collection::vec(prop::sample::select(PARTS), 0..12)
        .prop_map(|parts| parts.concat().into_bytes())
}
