//! Command lines: tokens between spaces, and numbers.

/// The words of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tokens<'a>(&'a [u8]);

impl<'a> Tokens<'a> {
    pub(crate) fn new(line: &'a [u8]) -> Tokens<'a> {
        Tokens(line)
    }

    /// What is left of the line, without the spaces before it.
    pub(crate) fn rest(self) -> &'a [u8] {
        let start = self.0.iter().position(|&byte| byte != b' ').unwrap_or(self.0.len());
        &self.0[start..]
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (token, rest) = rest.split_at(end);
        self.0 = rest;
        (!token.is_empty()).then_some(token)
    }
}

/// A decimal number without a sign, or with a plus.
#[inline]
pub(crate) fn unsigned(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The length of a data block that can be skipped if it cannot be taken, in bytes.
pub(crate) fn data_length(text: &[u8]) -> Option<usize> {
    let length = unsigned(text)?;
    if length > i32::MAX as u64 - 2 { None } else { Some(length as usize) }
}

/// A decimal number with or without a sign.
pub(crate) fn signed(text: &[u8]) -> Option<i64> {
    match text.strip_prefix(b"-") {
        Some(digits) if !digits.starts_with(b"+") => 0_i64.checked_sub_unsigned(unsigned(digits)?),
        Some(_) => None,
        None => i64::try_from(unsigned(text)?).ok(),
    }
}
