//! Keys, each computed from its number, so that a run needs no memory for them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The longest key of any form, in bytes.
const LONGEST: usize = 64;

/// What the keys of a run look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Form {
    /// `key:` and twelve decimal digits, in the order of the numbers.
    Record,
    /// Random numbers below 2^31 in decimal, 1 to 10 bytes ([Mao] 3.3.1). Some occur twice.
    Decimal,
    /// The number itself as eight decimal digits.
    Sequential,
    /// Eight random bytes.
    Binary,
    /// So many bytes, 9 to 64, of which all but the last eight are the same ([Mao] figure 3-9).
    Prefixed(u8),
    /// 24 bytes, of which three keys share the first 16.
    Grouped,
}

impl Form {
    /// The forms that the index is measured with unless others are asked for.
    pub const USUAL: [Form; 4] =
        [Form::Decimal, Form::Sequential, Form::Binary, Form::Prefixed(40)];

    /// Whether every key has eight bytes.
    pub fn is_eight_bytes(self) -> bool {
        matches!(self, Form::Sequential | Form::Binary)
    }

    /// The bytes of the longest key.
    pub fn longest(self) -> u8 {
        match self {
            Form::Record => 16,
            Form::Decimal => 10,
            Form::Sequential | Form::Binary => 8,
            Form::Prefixed(length) => length,
            Form::Grouped => 24,
        }
    }

    /// Whether different numbers may have the same key.
    pub fn has_duplicates(self) -> bool {
        self == Form::Decimal
    }

    /// The key with number `number`.
    pub fn key(self, number: u64) -> Key {
        let mut key = Key { bytes: [b'^'; LONGEST], start: 0, end: LONGEST as u8 };
        match self {
            Form::Record => {
                decimal(&mut key, number, 12);
                key.start -= 4;
                let start = usize::from(key.start);
                key.bytes[start..start + 4].copy_from_slice(b"key:");
            }
            Form::Decimal => decimal(&mut key, scatter(number) >> 33, 1),
            Form::Sequential => decimal(&mut key, number, 8),
            Form::Binary => binary(&mut key, number, 8),
            Form::Prefixed(length) => binary(&mut key, number, length),
            Form::Grouped => {
                binary(&mut key, number, 24);
                key.bytes[..8].copy_from_slice(&scatter(number / 3).to_be_bytes());
            }
        }
        key
    }
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "record" => Ok(Form::Record),
            "decimal" => Ok(Form::Decimal),
            "sequential" => Ok(Form::Sequential),
            "binary8" => Ok(Form::Binary),
            "grouped" => Ok(Form::Grouped),
            _ => match text.strip_prefix("prefix").map(str::parse) {
                Some(Ok(length)) if (9..=LONGEST as u8).contains(&length) => {
                    Ok(Form::Prefixed(length))
                }
                _ => Err(
                    "expected record, decimal, sequential, binary8, grouped, or prefixN with N \
                          bytes, 9 to 64"
                        .to_string(),
                ),
            },
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Record => f.write_str("record"),
            Form::Decimal => f.write_str("decimal"),
            Form::Sequential => f.write_str("sequential"),
            Form::Binary => f.write_str("binary8"),
            Form::Prefixed(length) => write!(f, "prefix{length}"),
            Form::Grouped => f.write_str("grouped"),
        }
    }
}

impl From<Form> for String {
    fn from(form: Form) -> String {
        form.to_string()
    }
}

impl TryFrom<String> for Form {
    type Error = String;

    fn try_from(text: String) -> Result<Form, String> {
        text.parse()
    }
}

/// A key on the stack.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; LONGEST],
    start: u8,
    end: u8,
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..usize::from(self.end)]
    }
}

/// A key of a number in decimal.
pub fn decimal_key(number: u64) -> Key {
    let mut key = Key { bytes: [0; LONGEST], start: 0, end: LONGEST as u8 };
    decimal(&mut key, number, 1);
    key
}

/// A bijection that scatters consecutive numbers.
pub fn scatter(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0x7FB5_D329_728E_A185);
    let number = (number ^ (number >> 27)).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    number ^ (number >> 33)
}

fn decimal(key: &mut Key, mut number: u64, digits: u8) {
    key.start = key.end;
    while number > 0 || key.end - key.start < digits {
        key.start -= 1;
        key.bytes[usize::from(key.start)] = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn binary(key: &mut Key, number: u64, length: u8) {
    key.end = length;
    let end = usize::from(length);
    key.bytes[end - 8..end].copy_from_slice(&scatter(number).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_look_as_their_forms_say() {
        assert_eq!(Form::Record.key(1_234_567).as_ref(), b"key:000001234567");
        assert!(Form::Record.key(99).as_ref() < Form::Record.key(100).as_ref());
        assert_eq!(Form::Sequential.key(42).as_ref(), b"00000042");
        assert_eq!(Form::Binary.key(7).as_ref(), scatter(7).to_be_bytes());
        let prefixed = Form::Prefixed(12).key(7);
        assert_eq!(prefixed.as_ref()[..4], *b"^^^^");
        assert_eq!(prefixed.as_ref()[4..], scatter(7).to_be_bytes());
        let grouped = [6, 8, 9].map(|number| Form::Grouped.key(number));
        let shared = |i: usize| &grouped[i].as_ref()[..16];
        assert!(shared(0) == shared(1) && shared(1) != shared(2));
        assert_eq!(grouped[1].as_ref()[16..], scatter(8).to_be_bytes());
        let decimal = Form::Decimal.key(7);
        let text = std::str::from_utf8(decimal.as_ref()).expect("digits");
        assert_eq!(text.parse::<u64>(), Ok(scatter(7) >> 33));
        assert_eq!(decimal_key(0).as_ref(), b"0");
        assert_eq!(decimal_key(4_294_967_295).as_ref(), b"4294967295");
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for form in [Form::Record, Form::Grouped, Form::Prefixed(9)].into_iter().chain(Form::USUAL)
        {
            assert_eq!(form.to_string().parse(), Ok(form));
        }
        for text in ["", "prefix8", "prefix65", "prefix", "prefixx", "other"] {
            text.parse::<Form>().expect_err(text);
        }
    }
}
