//! Reading and writing numbers the way Redis does.
//!
//! Redis adds floats as 80-bit long doubles and prints 17 decimals without trailing zeros. Here
//! numbers of ordinary size are added as decimals with 17 digits after the point, which is exact,
//! so that 0.1 + 0.2 is 0.3 on every machine; the others as f64.

pub(crate) use resp::parse_i64;

use crate::error::Error;

/// An integer argument.
pub(crate) fn integer(text: &[u8]) -> Result<i64, Error> {
    parse_i64(text).ok_or(Error::NotInteger)
}

/// Digits after the point.
const DECIMALS: usize = 17;
const ONE: i128 = 100_000_000_000_000_000;

/// Digits before the point of a decimal: two such numbers can be added up in 128 bits.
const WHOLE_DIGITS: i64 = 20;

/// What a long double holds goes to about 10 to the power of this, both ways.
const LARGEST_EXPONENT: i64 = 4932;

/// A number for INCRBYFLOAT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    /// In units of 10^-17.
    Decimal(i128),
    /// Anything larger; perhaps infinite.
    Float(f64),
}

impl Number {
    pub(crate) const ZERO: Number = Number::Decimal(0);

    /// Reads a number: digits with an optional sign, point and exponent, or an infinity.
    pub(crate) fn parse(text: &[u8]) -> Option<Number> {
        let unsigned = match text {
            [b'+' | b'-', rest @ ..] => rest,
            rest => rest,
        };
        if unsigned.is_empty() || text.len() > 5 * 1024 {
            return None;
        }
        let decimal = unsigned[0].is_ascii_digit() || unsigned[0] == b'.';
        if decimal && exponent_of(unsigned) < -LARGEST_EXPONENT {
            return None;
        }
        if decimal && let Some(magnitude) = parse_decimal(unsigned) {
            return Some(Number::Decimal(if text[0] == b'-' { -magnitude } else { magnitude }));
        }
        let float: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
        let out_of_range = decimal && exponent_of(unsigned) > LARGEST_EXPONENT;
        (!float.is_nan() && !out_of_range).then_some(Number::Float(float))
    }

    pub(crate) fn is_infinite(self) -> bool {
        matches!(self, Number::Float(float) if float.is_infinite())
    }

    fn to_f64(self) -> f64 {
        match self {
            Number::Decimal(units) => units as f64 / ONE as f64,
            Number::Float(float) => float,
        }
    }

    /// The sum; `None` if it is infinite or no number.
    pub(crate) fn add(self, other: Number) -> Option<Number> {
        if let (Number::Decimal(a), Number::Decimal(b)) = (self, other) {
            return Some(match a.checked_add(b) {
                Some(sum) if sum.abs() < 10i128.pow(WHOLE_DIGITS as u32) * ONE => {
                    Number::Decimal(sum)
                }
                _ => Number::Float(self.to_f64() + other.to_f64()),
            });
        }
        let sum = self.to_f64() + other.to_f64();
        sum.is_finite().then_some(Number::Float(sum))
    }

    /// The number with up to 17 digits after the point, without trailing zeros.
    pub(crate) fn print(self) -> String {
        let text = match self {
            Number::Decimal(units) => {
                let sign = if units < 0 { "-" } else { "" };
                let units = units.unsigned_abs();
                let one = ONE.unsigned_abs();
                format!("{sign}{}.{:017}", units / one, units % one)
            }
            Number::Float(float) => format!("{float:.0$}", DECIMALS),
        };
        let text = text.trim_end_matches('0').trim_end_matches('.');
        if text == "-0" { "0".to_owned() } else { text.to_owned() }
    }
}

/// Reads an unsigned decimal in units of 10^-17, rounded half to even. `None` if it is something
/// else or too large.
fn parse_decimal(text: &[u8]) -> Option<i128> {
    let exponent_at = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let (digits, exponent) = match exponent_at {
        Some(at) => (&text[..at], parse_exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let point = digits.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match point {
        Some(at) => (&digits[..at], &digits[at + 1..]),
        None => (digits, &[][..]),
    };
    let all_digits = || whole.iter().chain(fraction).copied();
    if whole.len() + fraction.len() == 0 || !all_digits().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // The digit at `place` counts for 10^(units - 1 - place) units of 10^-17.
    let units = whole.len() as i64 + exponent + DECIMALS as i64;
    let mut number: i128 = 0;
    let mut significant = 0;
    let (mut rounding, mut beyond) = (0, false);
    for (place, byte) in all_digits().enumerate() {
        let digit = i128::from(byte - b'0');
        match (place as i64).cmp(&units) {
            std::cmp::Ordering::Less => {
                significant += i64::from(significant > 0 || digit > 0);
                if significant > WHOLE_DIGITS + DECIMALS as i64 {
                    return None;
                }
                number = number * 10 + digit;
            }
            std::cmp::Ordering::Equal => rounding = digit,
            std::cmp::Ordering::Greater => beyond |= digit > 0,
        }
    }
    let missing = units - (whole.len() + fraction.len()) as i64;
    if missing > 0 && number > 0 {
        if significant + missing > WHOLE_DIGITS + DECIMALS as i64 {
            return None;
        }
        number *= 10i128.pow(missing as u32);
    }
    let up = rounding > 5 || rounding == 5 && (beyond || number % 2 == 1);
    Some(number + i128::from(up))
}

/// The exponent that is written in the number; 0 if there is none.
fn exponent_of(text: &[u8]) -> i64 {
    let at = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
    at.and_then(|at| parse_exponent(&text[at + 1..])).unwrap_or(0)
}

/// Reads the digits after `e`. Enormous exponents are cut down to ones that are as good.
fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let size = digits
        .iter()
        .fold(0, |size: i64, digit| (size * 10 + i64::from(digit - b'0')).min(1_000_000));
    Some(if negative { -size } else { size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(a: &str, b: &str) -> String {
        let (a, b) = (Number::parse(a.as_bytes()).unwrap(), Number::parse(b.as_bytes()).unwrap());
        a.add(b).map_or("none".to_owned(), Number::print)
    }

    #[test]
    fn sums_are_decimal() {
        for (a, b, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "200", "5200"),
            ("1", "-1.1", "-0.1"),
            ("-0", "0", "0"),
            ("1e-17", "0", "0.00000000000000001"),
            ("1e-18", "0", "0"),
            ("0.000000000000000015", "0", "0.00000000000000002"),
            ("0.0243902439024390243", "-0.0243902439024390243", "0"),
            ("17179869184", "17179869184", "34359738368"),
            ("99999999999999999999", "1", "100000000000000000000"),
            ("1e20", "1e20", "200000000000000000000"),
            ("1e300", "inf", "none"),
            ("-inf", "inf", "none"),
            ("1.7e308", "1.7e308", "none"),
            (".5", "5.", "5.5"),
            ("+1", "1E+2", "101"),
            ("1e-4000", "3", "3"),
        ] {
            assert_eq!(sum(a, b), expected, "{a} + {b}");
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "", " 1", "1 ", "a", "1a", "nan", "-", "+", ".", "e5", "1e", "1e+", "0x10", "1.1.1",
            "1e5000", "1e-5000",
        ] {
            assert_eq!(Number::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Number::parse(b"1\0"), None);
    }
}
