//! Splitting an inline command into its arguments, by the rules of Redis's `sdssplitargs`.

/// A quote is not closed, or is followed by something other than a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unbalanced;

/// Splits a line at spaces. Text in `"` may hold `\n \r \t \b \a`, `\xHH` and other escaped bytes;
/// text in `'` only `\'`. A zero byte ends the line. The arguments' bytes are appended to `text`,
/// and where each starts and ends there to `spans`.
///
/// # Errors
/// If quotes are unbalanced; `text` and `spans` then hold a part.
pub fn split_arguments(
    line: &[u8],
    text: &mut Vec<u8>,
    spans: &mut Vec<(usize, usize)>,
) -> Result<(), Unbalanced> {
    let end = line.iter().position(|&byte| byte == 0).unwrap_or(line.len());
    let mut rest = &line[..end];
    loop {
        rest = rest.trim_ascii_start();
        while let [0x0b, after @ ..] = rest {
            rest = after.trim_ascii_start(); // a vertical tab is a space for C alone
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = text.len();
        rest = argument(rest, text)?;
        spans.push((start, text.len()));
    }
}

/// Takes one argument, up to the space that ends it, and returns what follows.
fn argument<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        match rest {
            [b' ' | b'\n' | b'\r' | b'\t', ..] | [] => return Ok(rest),
            [b'"', after @ ..] => return closed(double_quoted(after, text)?),
            [b'\'', after @ ..] => return closed(single_quoted(after, text)?),
            [byte, after @ ..] => {
                text.push(*byte);
                rest = after;
            }
        }
    }
}

/// After a closing quote there must be a space or the end.
fn closed(rest: &[u8]) -> Result<&[u8], Unbalanced> {
    match rest {
        [] | [b' ' | b'\n' | b'\r' | b'\t' | 0x0b | 0x0c, ..] => Ok(rest),
        _ => Err(Unbalanced),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        rest = match rest {
            [] => return Err(Unbalanced),
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'x', high, low, after @ ..] if let Some(byte) = hex(*high, *low) => {
                text.push(byte);
                after
            }
            [b'\\', escaped, after @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                text.push(*byte);
                after
            }
        };
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], Unbalanced> {
    loop {
        rest = match rest {
            [] => return Err(Unbalanced),
            [b'\'', after @ ..] => return Ok(after),
            [b'\\', b'\'', after @ ..] => {
                text.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                text.push(*byte);
                after
            }
        };
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let high = char::from(high).to_digit(16)?;
    let low = char::from(low).to_digit(16)?;
    Some((high * 16 + low) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Result<Vec<Vec<u8>>, Unbalanced> {
        let (mut text, mut spans) = (Vec::new(), Vec::new());
        split_arguments(line.as_bytes(), &mut text, &mut spans)?;
        Ok(spans.iter().map(|&(start, end)| text[start..end].to_vec()).collect())
    }

    #[test]
    fn splits_as_redis_does() {
        let cases: &[(&str, &[&[u8]])] = &[
            ("", &[]),
            ("   \t ", &[]),
            ("PING", &[b"PING"]),
            ("  set  a\tb \r", &[b"set", b"a", b"b"]),
            ("set a \"hello world\"", &[b"set", b"a", b"hello world"]),
            (r#"x "\x41\xff\xzz\n\r\t\b\a\"\\""#, &[b"x", b"A\xffxzz\n\r\t\x08\x07\"\\"]),
            (r"x 'it\'s \n'", &[b"x", br"it's \n"]),
            ("x ''", &[b"x", b""]),
            ("x \"\"", &[b"x", b""]),
            ("x a\"b\"", &[b"x", b"ab"]),
            ("x\0y", &[b"x"]),
        ];
        for (line, expected) in cases {
            assert_eq!(split(line).unwrap(), *expected, "{line:?}");
        }
        for line in ["\"", "'", "x \"a", "x 'a", "x \"a\"b", "x 'a'b", "x \"a\\\"", "'a\\'"] {
            assert_eq!(split(line), Err(Unbalanced), "{line:?}");
        }
    }
}
