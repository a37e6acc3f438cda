//! Lines that memcached 1.6 takes or refuses, and any bytes cut anywhere.

use proptest::prelude::*;

use super::*;

const VALUE_LEN: usize = 100;

/// What a client's bytes, arriving in these pieces, mean: commands and refusals, as text.
pub(crate) fn read(pieces: &[&[u8]]) -> Vec<String> {
    let mut parser = Parser::new(VALUE_LEN);
    let (mut buffer, mut found) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let used = match parser.parse(&buffer) {
                Front::Command(command, used) => {
                    found.push(format!("{command:?}"));
                    used
                }
                Front::Refused(refusal, used) => {
                    found.push(format!("{refusal:?}"));
                    used
                }
                Front::Skipped(used) => used,
                Front::Short(missing) => {
                    assert!(missing > 0);
                    break;
                }
                Front::Http => return found,
                Front::Lost(text) => {
                    found.push(text.to_owned());
                    return found;
                }
            };
            assert!(0 < used && used <= buffer.len());
            buffer.drain(..used);
        }
    }
    found
}

fn one(line: &str) -> Command<'_> {
    match Parser::new(VALUE_LEN).parse(line.as_bytes()) {
        Front::Command(command, used) => {
            assert_eq!(used, line.len(), "{line:?}");
            command
        }
        other => panic!("{line:?}: {other:?}"),
    }
}

fn refusal(line: &str) -> &'static str {
    match Parser::new(VALUE_LEN).parse(line.as_bytes()) {
        Front::Refused(refusal, _) => refusal.text,
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn a_set_has_all_its_parts() {
    let Command::Store(store, reply) = one("cas  k 7 -3 5 42 noreply\r\na\r\nbc\r\n") else {
        panic!("not a store")
    };
    assert_eq!(
        (&store.key[..], store.mode, store.flags, store.exptime),
        (&b"k"[..], Mode::Set, 7, -3)
    );
    assert_eq!((store.compare, store.value, reply), (Some(42), &b"a\r\nbc"[..], Reply::Silent));
}

#[test]
fn keys_are_as_many_as_the_line_names() {
    let Command::Get { keys, cas: true, touch: Some(30) } = one("gats 30 a  bb c \n") else {
        panic!("not a get")
    };
    assert_eq!(keys.collect::<Vec<_>>(), [&b"a"[..], b"bb", b"c"]);
}

#[test]
fn lines_are_refused_as_memcached_does() {
    let long = "k".repeat(MAX_KEY_LEN + 1);
    let bad = "CLIENT_ERROR bad command line format";
    for (line, text) in [
        ("\r\n", "ERROR"),
        ("GET a\r\n", "ERROR"),
        ("get\r\n", "ERROR"),
        (&format!("get a {long}\r\n"), bad),
        ("set a 0 0\r\n", "ERROR"),
        ("set a x 0 1\r\n", bad),
        ("set a 0 0 -1\r\n", bad),
        ("set a 4294967296 0 1\r\n", bad),
        ("set a 0 0 2147483647\r\n", bad),
        ("cas a 0 0 1\r\n", "ERROR"),
        ("cas a 0 0 1 x\r\n", bad),
        ("set a 0 0 2\r\nabcd\r\n", "CLIENT_ERROR bad data chunk"),
        ("set a 0 0 101\r\n", "SERVER_ERROR object too large for cache"),
        ("incr a\r\n", "ERROR"),
        ("incr a -1\r\n", "CLIENT_ERROR invalid numeric delta argument"),
        ("incr a 18446744073709551616\r\n", "CLIENT_ERROR invalid numeric delta argument"),
        ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument"),
        ("delete a 1\r\n", "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"),
        ("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument"),
        ("mg\r\n", "ERROR"),
        ("mg a v v\r\n", "CLIENT_ERROR duplicate flag"),
        ("mg a z\r\n", "CLIENT_ERROR invalid flag"),
        ("mg a N\r\n", "CLIENT_ERROR bad token in command line format"),
        ("mg ? b\r\n", "CLIENT_ERROR error decoding key"),
        ("ms a x\r\n", bad),
        ("ms a 2 MZ\r\n", "CLIENT_ERROR invalid mode for ms M token"),
        ("ma a MEE\r\n", "CLIENT_ERROR incorrect length for M token"),
        (&format!("mg a O{}\r\n", "o".repeat(33)), "CLIENT_ERROR opaque token too long"),
    ] {
        assert_eq!(refusal(line), text, "{line:?}");
    }
    let found = read(&[b"delete a 10 noreply\r\nset a x 0 1 noreply\r\nset a noreply\r\n"]);
    let silent: Vec<bool> = found.iter().map(|text| text.contains("silent: true")).collect();
    assert_eq!(silent, [true, true, false]);
    assert!(refusal("mg a h\r\n").starts_with("CLIENT_ERROR invalid flag"));
    assert!(refusal("slabs reassign 1 2\r\n").starts_with("CLIENT_ERROR this command is not"));
}

#[test]
fn a_value_that_is_too_large_is_skipped_and_what_it_would_replace_goes() {
    let block = "x".repeat(101);
    let bytes = format!("set a 0 0 101\r\n{block}\r\nms b 101 T0 I q\r\n{block}\r\nmn\r\n");
    let found = read(&[bytes.as_bytes()]);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].contains("too large") && found[0].contains("remove: Some"));
    assert!(found[1].contains("too large") && found[1].contains("remove: Some"));
    assert_eq!(found[2], "NoOp");
}

#[test]
fn a_line_without_end_and_the_binary_protocol_end_the_connection() {
    let found = read(&[&b"a".repeat(MAX_LINE)]);
    assert_eq!(found, ["CLIENT_ERROR line too long"]);
    let found = read(&[b"get ", &b"a ".repeat(MAX_LINE), b"\r\n"]);
    assert!(found.len() == 1 && found[0].starts_with("Get"), "{found:?}");
    assert_eq!(read(&[b"version\r\nGET / HTTP/1.0\r\nversion\r\n"]), ["Version"]);
    assert!(read(&[b"version\r\n\x80\x0b\0\0"])[1].contains("binary"));
}

#[test]
fn an_answer_repeats_what_the_flags_ask_for() {
    let Command::Fetch(fetch, Reply::Meta(echo)) = one("mg aa== t k b Oxy f v s c q T30\r\n")
    else {
        panic!("not a meta get")
    };
    assert_eq!((&fetch.key[..], fetch.touch), (&b"i"[..], Some(30)));
    let packed = echo.pack();
    let echo = Echo::unpack(&packed).expect("it was packed");
    let item = write::Item {
        flags: 9,
        cas: 77,
        ttl: Some(30),
        size: 2,
        value: b"hi",
        won: false,
        stale: true,
        sent: true,
    };
    let mut out = Vec::new();
    write::meta(&mut out, &echo, write::Status::Done, Some(&item));
    assert_eq!(out, b"VA 2 t30 kaQ== b Oxy f9 s2 c77 Z X\r\nhi\r\n");
    out.clear();
    write::meta(&mut out, &echo, write::Status::NotFound, None);
    assert_eq!(out, b"");
}

/// Pieces of commands, so that random sequences of them often make sense.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "set a 0 0 3\r\n",
        "abc\r\n",
        "get a b\r\n",
        "ms a 2 T0 q\r\n",
        "ab\r\n",
        "mg a v O1 k\r\n",
        "mn\r\n",
        "ma a D2 N0\r\n",
        "md a I\r\n",
        "incr a 1\r\n",
        "set b 1 2 200 noreply\r\n",
        "delete a noreply\r\n",
        "me a\r\n",
        "stats items\r\n",
        "flush_all 3\r\n",
        "\r\n",
        "\n",
        " ",
    ];
    prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(|word| word.as_bytes().to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ]
}

proptest! {
    #[test]
    fn cuts_change_nothing(
        fragments in proptest::collection::vec(fragment(), 0..30),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..6),
    ) {
        let bytes = fragments.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            pieces.push(&bytes[from..cut]);
            from = cut;
        }
        prop_assert_eq!(read(&pieces), read(&[&bytes]));
    }

    #[test]
    fn numbers_are_written_as_decimals(number: u64) {
        let mut out = Vec::new();
        write::number(&mut out, number);
        prop_assert_eq!(out, number.to_string().into_bytes());
        prop_assert_eq!(line::unsigned(number.to_string().as_bytes()), Some(number));
    }

    #[test]
    fn signed_numbers_are_read_as_rust_does(number: i64) {
        prop_assert_eq!(line::signed(number.to_string().as_bytes()), Some(number));
    }

    #[test]
    fn what_is_echoed_survives_packing(
        key in "[a-z]{1,8}",
        flags in "( [kqtcvsb]| O[a-z]{1,4}){0,6}",
    ) {
        let line = format!("mg {key}{flags}\r\n");
        if let Front::Command(Command::Fetch(_, Reply::Meta(echo)), _) =
            Parser::new(VALUE_LEN).parse(line.as_bytes())
        {
            let packed = echo.pack();
            let again = Echo::unpack(&packed).expect("it was packed");
            prop_assert_eq!(again.code, echo.code);
            prop_assert_eq!(again.quiet, echo.quiet);
            prop_assert_eq!(again.key(), echo.key());
            prop_assert!(again.flags().eq(echo.flags()));
        }
    }
}
