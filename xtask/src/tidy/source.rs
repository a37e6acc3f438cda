//! A Rust file, with its comments and texts told apart from its code.

/// Functions may have as many lines, signature and closing brace included.
pub const MOST_FUNCTION_LINES: usize = 70;

/// A source file, line by line.
pub struct Source {
    /// Every line as it is.
    pub lines: Vec<String>,
    /// Every line with comments, texts and character literals blanked out.
    pub code: Vec<String>,
}

/// A function with its place, counted from zero.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub first: usize,
    pub last: usize,
}

impl Source {
    pub fn new(text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_string).collect();
        let code = blank(text).lines().map(str::to_string).collect();
        Self { lines, code }
    }

    /// Every function with a body.
    pub fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (first, line) in self.code.iter().enumerate() {
            for column in words(line, "fn") {
                let name: String = line[column + 2..]
                    .trim_start()
                    .chars()
                    .take_while(|&letter| is_word(letter))
                    .collect();
                // Without a name it is a type.
                if name.is_empty() {
                    continue;
                }
                if let Some(last) = self.end_of_body(first, column) {
                    functions.push(Function { name, first, last });
                }
            }
        }
        functions
    }

    /// The line of the brace that closes the body; nothing where there is no body.
    fn end_of_body(&self, first: usize, column: usize) -> Option<usize> {
        let mut braces = 0;
        let mut brackets = 0;
        for (number, line) in self.code.iter().enumerate().skip(first) {
            let start = if number == first { column } else { 0 };
            for letter in line[start..].chars() {
                match letter {
                    '(' | '[' => brackets += 1,
                    ')' | ']' => brackets -= 1,
                    '{' => braces += 1,
                    '}' => {
                        braces -= 1;
                        if braces == 0 {
                            return Some(number);
                        }
                    }
                    ';' if braces == 0 && brackets == 0 => return None,
                    _ => {}
                }
            }
        }
        None
    }

    /// The names of modules that are declared without a body, with `#[path]` where given.
    pub fn modules(&self) -> Vec<(String, Option<String>)> {
        let mut modules = Vec::new();
        for (number, line) in self.code.iter().enumerate() {
            let Some(start) = words(line, "mod").next() else { continue };
            let Some(name) = line[start + 3..].trim().strip_suffix(';') else { continue };
            let path = (number.saturating_sub(3)..number)
                .filter_map(|above| self.lines[above].trim().strip_prefix("#[path = \""))
                .filter_map(|rest| rest.split('"').next())
                .next_back();
            modules.push((name.trim().to_string(), path.map(str::to_string)));
        }
        modules
    }

    /// Whether this line has an `unsafe` that somebody must explain. A function that is not public
    /// may have its contract from a trait, or from those who call it, beside it. The type of a
    /// foreign function needs no proof: its calls do.
    pub fn is_unsafe(&self, number: usize) -> bool {
        let line = &self.code[number];
        words(line, "unsafe").any(|start| {
            let behind = line[start + "unsafe".len()..].trim_start();
            let is_type = behind.starts_with("extern") && behind.contains("fn(");
            let declares = behind.starts_with("fn");
            !is_type && (!declares || line.trim_start().starts_with("pub "))
        })
    }

    /// Whether a comment that explains why it is sound stands with the `unsafe` of this line.
    pub fn is_justified(&self, number: usize) -> bool {
        let explains = |line: &str| line.contains("SAFETY") || line.contains("# Safety");
        if explains(&self.lines[number]) {
            return true;
        }
        for above in (0..number).rev() {
            if explains(&self.lines[above]) {
                return true;
            }
            let code = self.code[above].trim();
            let is_attribute = code.starts_with("#[");
            // A statement may have begun further up; the one before it ends with one of these.
            if !is_attribute && code.ends_with([';', '{', '}', ',']) {
                return false;
            }
        }
        false
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Where a word stands by itself in a line, in bytes.
pub fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    line.match_indices(word).map(|(start, _)| start).filter(move |&start| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Replaces comments and the insides of literals with spaces. Lines stay lines.
fn blank(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < letters.len() {
        let end = literal_end(&letters, at);
        if end == at {
            out.push(letters[at]);
            at += 1;
        } else {
            out.extend(letters[at..end].iter().map(|&l| if l == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// The end of the comment or literal that starts here; the place itself where none does.
fn literal_end(letters: &[char], at: usize) -> usize {
    let get = |index: usize| letters.get(index).copied().unwrap_or('\0');
    let in_word = at > 0 && is_word(letters[at - 1]);
    match letters[at] {
        '/' if get(at + 1) == '/' => find(letters, at, |index| get(index) == '\n'),
        '/' if get(at + 1) == '*' => block_comment_end(letters, at),
        '"' => quoted_end(letters, at + 1, '"'),
        '\'' => {
            let is_literal = get(at + 1) == '\\' || get(at + 2) == '\'';
            if is_literal { quoted_end(letters, at + 1, '\'') } else { at }
        }
        'r' | 'b' | 'c' if !in_word => {
            let mut start = at;
            while matches!(get(start), 'b' | 'c') && start < at + 1 {
                start += 1;
            }
            if get(start) == 'r' { raw_end(letters, start + 1).unwrap_or(at) } else { at }
        }
        _ => at,
    }
}

fn find(letters: &[char], from: usize, matches: impl Fn(usize) -> bool) -> usize {
    (from..letters.len()).find(|&index| matches(index)).unwrap_or(letters.len())
}

fn block_comment_end(letters: &[char], at: usize) -> usize {
    let mut depth = 0;
    let mut index = at;
    while index + 1 < letters.len() {
        match (letters[index], letters[index + 1]) {
            ('/', '*') => {
                depth += 1;
                index += 2;
            }
            ('*', '/') => {
                depth -= 1;
                index += 2;
                if depth == 0 {
                    return index;
                }
            }
            _ => index += 1,
        }
    }
    letters.len()
}

fn quoted_end(letters: &[char], from: usize, quote: char) -> usize {
    let mut index = from;
    while index < letters.len() {
        match letters[index] {
            '\\' => index += 2,
            letter if letter == quote => return index + 1,
            _ => index += 1,
        }
    }
    letters.len()
}

/// The end of a raw text whose hashes start here.
fn raw_end(letters: &[char], from: usize) -> Option<usize> {
    let hashes = letters[from..].iter().take_while(|&&letter| letter == '#').count();
    if letters.get(from + hashes) != Some(&'"') {
        return None;
    }
    let closes = |index: usize| {
        letters[index] == '"'
            && letters[index + 1..].iter().take(hashes).filter(|&&l| l == '#').count() == hashes
    };
    let quote = find(letters, from + hashes + 1, closes);
    Some((quote + 1 + hashes).min(letters.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Source::new(text).code.join("\n")
    }

    #[test]
    fn comments_and_texts_are_blanked() {
        assert_eq!(code("a // b"), "a     ");
        assert_eq!(code("a /* b /* c */ d */ e").trim_end().replace(' ', ""), "ae");
        assert_eq!(code(r#"f("{ \" }", x)"#).replace(' ', ""), "f(,x)");
        assert_eq!(code("f(r#\"{ \" }\"#, x)").replace(' ', ""), "f(,x)");
        assert_eq!(code("f(br\"{\", b\"}\", b'{')").replace(' ', ""), "f(,b,b)");
        assert_eq!(code("m('{', '\\'', 'a)").replace(' ', ""), "m(,,'a)");
        assert_eq!(code("for x in r {}"), "for x in r {}");
        assert_eq!(code("\"a\nb\" c"), "  \n   c");
    }

    #[test]
    fn functions_are_found_with_their_ends() {
        let text = "trait T {\n    fn none(&self);\n    fn short(&self) {}\n}\n\
                    fn long(x: [u8; 4])\nwhere\n    u8: Copy,\n{\n    let c = |f: fn()| {};\n}\n";
        let functions = Source::new(text).functions();
        let found: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.first, f.last)).collect();
        assert_eq!(found, [("short", 2, 2), ("long", 4, 9)]);
    }

    #[test]
    fn modules_are_found() {
        let text = "mod a;\npub(crate) mod b;\n#[path = \"x.rs\"]\nmod c;\nmod d {}\n// mod e;\n";
        let modules = Source::new(text).modules();
        let names: Vec<_> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(modules[2].1.as_deref(), Some("x.rs"));
    }

    #[test]
    fn functions_of_traits_need_no_justification() {
        let source = Source::new("    unsafe fn f();\n    pub unsafe fn g() {}\n    unsafe { x }");
        let found: Vec<bool> = (0..3).map(|number| source.is_unsafe(number)).collect();
        assert_eq!(found, [false, true, true]);
    }

    #[test]
    fn justifications_are_found() {
        let justified = |text: &str| {
            let source = Source::new(text);
            let number = source.code.iter().position(|line| line.contains("unsafe")).unwrap();
            source.is_justified(number)
        };
        assert!(justified("a;\n// SAFETY: b\nunsafe { c }\n"));
        assert!(justified("// SAFETY: b\nlet x =\n    unsafe { c };\n"));
        assert!(justified("/// # Safety\n/// x\n#[inline]\nunsafe fn f() {}\n"));
        assert!(!justified("// SAFETY: b\na;\nunsafe { c }\n"));
        assert!(!justified("unsafe { c }\n"));
    }
}
