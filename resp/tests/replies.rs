//! Replies as servers send them.

use proptest::prelude::*;
use resp::{Protocol, ReplyParser, Value, write};

/// Writes a value in RESP3, which has a form for each.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    let protocol = Protocol::V3;
    match value {
        Value::Simple(text) => write::simple(out, std::str::from_utf8(text).unwrap()),
        Value::Error(text) => write::error(out, std::str::from_utf8(text).unwrap()),
        Value::Integer(number) => write::integer(out, *number),
        Value::Bulk(bytes) => write::bulk(out, bytes),
        Value::Null => write::null(out, protocol),
        Value::Array(values) => {
            write::array(out, values.len());
            values.iter().for_each(|value| write_value(out, value));
        }
        Value::Map(pairs) => {
            write::map(out, protocol, pairs.len());
            for (key, value) in pairs {
                write_value(out, key);
                write_value(out, value);
            }
        }
        Value::Set(values) => {
            write::set(out, protocol, values.len());
            values.iter().for_each(|value| write_value(out, value));
        }
        Value::Push(values) => {
            write::push(out, protocol, values.len());
            values.iter().for_each(|value| write_value(out, value));
        }
        Value::Double(number) => write::double(out, protocol, *number),
        Value::Boolean(truth) => write::boolean(out, protocol, *truth),
        Value::Verbatim { format, text } => write::verbatim(out, protocol, *format, text),
        Value::BigNumber(text) => {
            write::big_number(out, protocol, std::str::from_utf8(text).unwrap());
        }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let text = || "[a-zA-Z ]{0,10}".prop_map(String::into_bytes);
    let bytes = || prop::collection::vec(any::<u8>(), 0..20);
    let leaf = prop_oneof![
        text().prop_map(Value::Simple),
        text().prop_map(Value::Error),
        any::<i64>().prop_map(Value::Integer),
        bytes().prop_map(Value::Bulk),
        Just(Value::Null),
        any::<f64>()
            .prop_filter("equal to itself", |number| !number.is_nan())
            .prop_map(Value::Double),
        any::<bool>().prop_map(Value::Boolean),
        bytes().prop_map(|text| Value::Verbatim { format: *b"txt", text }),
        "-?[0-9]{1,40}".prop_map(|text| Value::BigNumber(text.into_bytes())),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Set),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Push),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

/// The lengths of all replies, handed over in pieces, and whether all was well.
fn lengths(bytes: &[u8], cuts: &[usize]) -> (Vec<usize>, bool) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    ends.sort_unstable();
    ends.push(bytes.len());
    let mut parser = ReplyParser::new();
    let (mut start, mut found) = (0, Vec::new());
    for end in ends {
        loop {
            match parser.parse(&bytes[start..end]) {
                Ok(None) => break,
                Ok(Some(shape)) => {
                    assert_eq!(shape.kind, bytes[start]);
                    found.push(shape.len);
                    start += shape.len;
                }
                Err(_) => return (found, false),
            }
        }
    }
    (found, true)
}

/// Bytes that replies are made of.
const PARTS: &[u8] = b"*$+-:%~>|_#,(=!0123\r\na-";

proptest! {
    #[test]
    fn values_come_back_however_they_are_cut(
        values in prop::collection::vec(value(), 0..5),
        cuts in prop::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for value in &values {
            let start = bytes.len();
            write_value(&mut bytes, value);
            expected.push(bytes.len() - start);
        }
        prop_assert_eq!(lengths(&bytes, &cuts), (expected, true));
        let mut rest = &bytes[..];
        for value in &values {
            let (parsed, length) = Value::parse(rest).unwrap();
            prop_assert_eq!(&parsed, value);
            prop_assert!(Value::parse(&rest[..length - 1]).is_err());
            rest = &rest[length..];
        }
    }

    #[test]
    fn any_bytes_are_survived(
        bytes in prop::collection::vec(prop::sample::select(PARTS), 0..80),
        cuts in prop::collection::vec(any::<usize>(), 0..10),
    ) {
        let (found, _) = lengths(&bytes, &cuts);
        prop_assert_eq!(&found, &lengths(&bytes, &[]).0);
        let mut start = 0;
        for length in found {
            // What has the outline of a reply may still not be one, but never reaches beyond.
            if let Ok((_, parsed)) = Value::parse(&bytes[start..]) {
                prop_assert_eq!(parsed, length);
            }
            start += length;
        }
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn resp2_gets_what_redis_sends_instead() {
    use Protocol::{V2, V3};
    assert_eq!(written(|out| write::null(out, V2)), "$-1\r\n");
    assert_eq!(written(|out| write::null_array(out, V2)), "*-1\r\n");
    assert_eq!(written(|out| write::null_array(out, V3)), "_\r\n");
    assert_eq!(written(|out| write::map(out, V2, 3)), "*6\r\n");
    assert_eq!(written(|out| write::set(out, V2, 3)), "*3\r\n");
    assert_eq!(written(|out| write::push(out, V2, 3)), "*3\r\n");
    assert_eq!(written(|out| write::boolean(out, V2, true)), ":1\r\n");
    assert_eq!(written(|out| write::double(out, V2, 1.5)), "$3\r\n1.5\r\n");
    assert_eq!(written(|out| write::double(out, V3, f64::INFINITY)), ",inf\r\n");
    assert_eq!(written(|out| write::double(out, V3, -f64::INFINITY)), ",-inf\r\n");
    assert_eq!(written(|out| write::double(out, V3, 1e300)), ",1e300\r\n");
    assert_eq!(written(|out| write::double(out, V3, 0.0)), ",0\r\n");
    assert_eq!(written(|out| write::double(out, V3, f64::NAN)), ",nan\r\n");
    assert_eq!(written(|out| write::verbatim(out, V2, *b"txt", b"a")), "$1\r\na\r\n");
    assert_eq!(written(|out| write::verbatim(out, V3, *b"txt", b"a")), "=5\r\ntxt:a\r\n");
    assert_eq!(written(|out| write::big_number(out, V2, "12")), "$2\r\n12\r\n");
    assert_eq!(written(|out| write::error(out, "ERR a\r\nb")), "-ERR a  b\r\n");
    assert_eq!(written(write::ok), "+OK\r\n");
}

#[test]
fn attributes_belong_to_the_reply_that_follows() {
    let bytes = b"|1\r\n+key\r\n:1\r\n*2\r\n|1\r\n+a\r\n+b\r\n:5\r\n:6\r\n+next\r\n";
    let (found, sound) = lengths(bytes, &[]);
    assert!(sound);
    assert_eq!(found.len(), 2);
    let (value, length) = Value::parse(bytes).unwrap();
    assert_eq!(value, Value::Array(vec![Value::Integer(5), Value::Integer(6)]));
    assert_eq!(length, found[0]);
}

#[test]
fn depth_has_a_limit() {
    let deep = [&b"*1\r\n".repeat(100_000)[..], b":1\r\n"].concat();
    assert_eq!(lengths(&deep, &[]), (vec![deep.len()], true));
    assert!(Value::parse(&deep).is_err());
    let nulls = b"*3\r\n$-1\r\n*-1\r\n_\r\n";
    assert_eq!(Value::parse(nulls).unwrap().0, Value::Array(vec![Value::Null; 3]));
    assert_eq!(Value::parse(b"$3\r\nabc\r\n").unwrap().0.as_bytes(), Some(&b"abc"[..]));
    assert!(Value::parse(b"*99999999999\r\n").is_err());
}
