//! Decimal integers, as Redis reads and writes them.

/// Reads a decimal integer the way Redis does: an optional `-`, then digits without a leading zero,
/// and nothing else. `None` if the text is anything else or does not fit.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    if digits.len() > 19 {
        return None;
    }
    let mut magnitude: u64 = 0; // 19 digits fit
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Appends a number in decimal.
#[inline]
pub(crate) fn push_u64(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a number in decimal.
#[inline]
pub(crate) fn push_i64(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    push_u64(out, number.unsigned_abs());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_strict() {
        for good in [0, 1, -1, 10, 19, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            let mut text = Vec::new();
            push_i64(&mut text, good);
            assert_eq!(text, good.to_string().as_bytes());
            assert_eq!(parse_i64(&text), Some(good));
        }
        for bad in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            "-01",
            "00",
            " 1",
            "1 ",
            "1.0",
            "a",
            "1a",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "18446744073709551616",
        ] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad}");
        }
    }
}
