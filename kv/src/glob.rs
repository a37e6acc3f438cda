//! Redis's patterns: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before a byte that stands for itself.

/// Whether all of `text` matches. Takes time in proportion to the product of the lengths at most.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    // Where to go on after a mismatch: behind the last `*`, with one byte more given to it.
    let mut retry = None;
    while from < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            retry = Some((at, from));
        } else if let Some(used) = match_one(&pattern[at..], text[from]) {
            at += used;
            from += 1;
        } else if let Some((behind, given)) = retry {
            at = behind;
            from = given + 1;
            retry = Some((behind, from));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

/// Whether the pattern's first element, which is no `*`, matches the byte: its length if so.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', class @ ..] => match_class(class, byte).map(|used| used + 1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
    }
}

/// The same for what follows a `[`. A class that is not closed ends with the pattern.
fn match_class(class: &[u8], byte: u8) -> Option<usize> {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match &class[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                found |= *escaped == byte;
                at += 2;
            }
            [a, b'-', b, ..] => {
                found |= (*a.min(b)..=*a.max(b)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

/// What every text that matches starts with.
pub(crate) fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let special = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    &pattern[..special.unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_redis_does() {
        let cases: &[(&str, &str, bool)] = &[
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h*llo", "hllo!", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            (r"h\*llo", "h*llo", true),
            (r"h\*llo", "hxllo", false),
            (r"[\]]", "]", true),
            ("[ab", "a", true),
            ("[ab", "c", false),
            ("[", "a", false),
            ("[^", "a", true),
            (r"a\", r"a\", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("*foo*", "xfoo", true),
            ("a*", "a", true),
            ("a**", "a", true),
            ("[]]", "]", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), *expected, "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = b"a*".repeat(500);
        let text = b"a".repeat(400);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text));
    }

    #[test]
    fn prefixes_end_at_what_is_special() {
        assert_eq!(literal_prefix(b"user:*"), b"user:");
        assert_eq!(literal_prefix(b"user"), b"user");
        assert_eq!(literal_prefix(b"[a]b"), b"");
        assert_eq!(literal_prefix(br"a\*"), b"a");
    }
}
