//! `cargo xtask tidy`: the rules of style and layering that neither rustfmt nor clippy knows.

mod layers;
mod source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use layers::Package;
use source::{MOST_FUNCTION_LINES, Source, words};

const MOST_COLUMNS: usize = 100;
const MOST_FILE_LINES: usize = 800;
const MOST_HEADER_LINES: usize = 15;

/// Marks of unfinished work, put together here so that this file does not contain them.
const MARKS: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
    concat!("HA", "CK"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("db", "g!"),
    concat!("#[ig", "nore"),
    concat!("macro_", "rules!"),
];

/// Places on somebody's machine.
const PLACES: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/tm", "p/"),
];

/// Ends of names that say nothing.
const EMPTY_NAMES: &[&str] = &["Manager", "Util", "Utils", "Helper"];

/// Files that are read.
const ENDINGS: &[&str] = &["rs", "toml", "md", "py", "js", "mjs", "go", "yml", "yaml", "sh"];

struct Tidy {
    root: PathBuf,
    violations: Vec<String>,
}

/// Checks the whole workspace.
pub fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has a parent")?;
    let mut tidy = Tidy { root: root.to_path_buf(), violations: Vec::new() };
    let files = tidy.files()?;
    for file in &files {
        tidy.check_file(file)?;
    }
    let packages = layers::packages(root)?;
    for package in &packages {
        tidy.check_package(package)?;
    }
    tidy.check_dead_files(&files, &packages)?;
    tidy.violations.sort();
    for violation in &tidy.violations {
        println!("{violation}");
    }
    match tidy.violations.len() {
        0 => {
            println!("{} files are tidy", files.len());
            Ok(())
        }
        count => bail!("{count} violations"),
    }
}

impl Tidy {
    fn add(&mut self, file: &Path, line: usize, text: impl std::fmt::Display) {
        let file = file.strip_prefix(&self.root).unwrap_or(file);
        self.violations.push(format!("{}:{line}: {text}", file.display()));
    }

    /// Every text file that Git knows or would not ignore.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let output = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
            .current_dir(&self.root)
            .output()
            .context("cannot run git")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        let is_text = |path: &PathBuf| {
            path.extension().is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
        };
        let paths: BTreeSet<PathBuf> = names
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(|name| self.root.join(name))
            .filter(|path| is_text(path) && path.is_file())
            .collect();
        Ok(paths.into_iter().collect())
    }

    fn check_file(&mut self, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        self.check_words(file, &text);
        if file.extension().is_some_and(|ending| ending == "rs") {
            self.check_rust(file, &Source::new(&text));
        }
        Ok(())
    }

    fn check_words(&mut self, file: &Path, text: &str) {
        for (number, line) in text.lines().enumerate() {
            for mark in MARKS {
                let found = if mark.starts_with('#') {
                    line.contains(mark)
                } else {
                    words(line, mark).next().is_some()
                };
                if found {
                    self.add(file, number + 1, format_args!("contains {mark}"));
                }
            }
            for place in PLACES {
                if line.contains(place) {
                    self.add(file, number + 1, format_args!("names {place}, an absolute path"));
                }
            }
        }
    }

    fn check_rust(&mut self, file: &Path, source: &Source) {
        for (number, line) in source.lines.iter().enumerate() {
            let columns = line.chars().count();
            if columns > MOST_COLUMNS {
                self.add(file, number + 1, format_args!("{columns} columns"));
            }
        }
        if source.lines.len() > MOST_FILE_LINES {
            self.add(file, 1, format_args!("{} lines in one file", source.lines.len()));
        }
        let header = source.lines.iter().take_while(|line| line.starts_with("//!")).count();
        if header == 0 {
            self.add(file, 1, "does not open with a comment that says what it is");
        }
        if header > MOST_HEADER_LINES {
            self.add(file, 1, format_args!("opens with {header} lines of comment"));
        }
        for function in source.functions() {
            let lines = function.last - function.first + 1;
            if lines > MOST_FUNCTION_LINES {
                let text = format!("the function {} has {lines} lines", function.name);
                self.add(file, function.first + 1, text);
            }
        }
        for (number, line) in source.code.iter().enumerate() {
            if source.is_unsafe(number) && !source.is_justified(number) {
                self.add(file, number + 1, "unsafe without a SAFETY comment");
            }
            for keyword in ["struct", "enum", "trait"] {
                let Some(start) = words(line, keyword).next() else { continue };
                let name = line[start + keyword.len()..].trim_start();
                let name = name.split(|letter: char| !letter.is_alphanumeric()).next();
                let name = name.unwrap_or_default();
                if EMPTY_NAMES.iter().any(|ending| name.ends_with(ending)) {
                    self.add(file, number + 1, format_args!("{name} is a name that says nothing"));
                }
            }
        }
    }

    fn check_package(&mut self, package: &Package) -> Result<()> {
        for violation in layers::check(package) {
            self.add(&package.manifest, 1, violation);
        }
        for root in &package.roots {
            let is_crate_root = root.ends_with("src/lib.rs") || root.ends_with("src/main.rs");
            if !is_crate_root {
                continue;
            }
            let source = Source::new(&std::fs::read_to_string(root)?);
            for attribute in layers::root_attributes(&package.name) {
                if !source.code.iter().any(|line| line.trim() == attribute) {
                    self.add(root, 1, format_args!("lacks {attribute}"));
                }
            }
        }
        Ok(())
    }

    /// Finds Rust files that no target and no module declaration reaches.
    fn check_dead_files(&mut self, files: &[PathBuf], packages: &[Package]) -> Result<()> {
        let mut reached = BTreeSet::new();
        let mut open: Vec<(PathBuf, bool)> = packages
            .iter()
            .flat_map(|package| package.roots.iter().map(|root| (root.clone(), true)))
            .collect();
        while let Some((file, is_root)) = open.pop() {
            if !reached.insert(file.clone()) || !file.is_file() {
                continue;
            }
            let source = Source::new(&std::fs::read_to_string(&file)?);
            for (name, path) in source.modules() {
                open.extend(candidates(&file, is_root, &name, path).map(|path| (path, false)));
            }
        }
        // What stands outside the workspace has manifests and targets of its own.
        let inside = |file: &Path| {
            packages.iter().filter_map(|p| p.manifest.parent()).any(|d| file.starts_with(d))
        };
        for file in files {
            let is_rust = file.extension().is_some_and(|ending| ending == "rs");
            if is_rust && inside(file) && !reached.contains(file) {
                self.add(file, 1, "no module declaration reaches this file");
            }
        }
        Ok(())
    }
}

/// Where a module that is declared in this file may be.
fn candidates(
    file: &Path,
    is_root: bool,
    name: &str,
    path: Option<String>,
) -> impl Iterator<Item = PathBuf> {
    let beside = file.parent().unwrap_or(Path::new("")).to_path_buf();
    let owns_directory = is_root || file.ends_with("mod.rs");
    let below = if owns_directory { beside.clone() } else { file.with_extension("") };
    let found = match path {
        Some(path) => vec![beside.join(path)],
        None => vec![below.join(format!("{name}.rs")), below.join(name).join("mod.rs")],
    };
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(text: &str) -> Vec<String> {
        let mut tidy = Tidy { root: PathBuf::new(), violations: Vec::new() };
        tidy.check_words(Path::new("a.rs"), text);
        tidy.check_rust(Path::new("a.rs"), &Source::new(text));
        tidy.violations
    }

    #[test]
    fn tidy_code_passes() {
        assert!(violations("//! What it is.\n\nfn f() {}\n").is_empty());
        assert!(violations("//! x\nstruct S { f: unsafe extern \"C\" fn(u8) }").is_empty());
    }

    #[test]
    fn each_rule_is_enforced() {
        let expect = |text: &str, expected: &str| {
            let found = violations(&format!("//! x\n{text}"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(expected), "{found:?}");
        };
        expect(&format!("// {}", "y".repeat(98)), "a.rs:2: 101 columns");
        expect(&format!("fn f() {{\n{}}}", "    g();\n".repeat(69)), "a.rs:2: the function f");
        expect(&format!("// {}: later", MARKS[0]), "a.rs:2: contains");
        expect(&format!("fn f() {{ {}() }}", MARKS[4]), "a.rs:2: contains");
        expect(&format!("{}]\nfn f() {{}}", MARKS[7]), "a.rs:2: contains");
        expect(&format!("const P: &str = \"{}x\";", PLACES[1]), "absolute path");
        expect("fn f() { unsafe { g() } }", "a.rs:2: unsafe without");
        expect("unsafe extern \"C\" fn f() {}", "a.rs:2: unsafe without");
        expect("struct ConnectionManager {", "says nothing");
        expect(&"//! more\n".repeat(15), "opens with 16 lines");
        expect(&"\n".repeat(800), "801 lines");
        assert!(violations("fn f() {}")[0].contains("does not open"));
    }

    #[test]
    fn modules_are_looked_for_where_rust_does() {
        let places = |file: &str, is_root| -> Vec<String> {
            candidates(Path::new(file), is_root, "b", None)
                .map(|path| path.display().to_string())
                .collect()
        };
        assert_eq!(places("src/lib.rs", true), ["src/b.rs", "src/b/mod.rs"]);
        assert_eq!(places("src/a.rs", false), ["src/a/b.rs", "src/a/b/mod.rs"]);
        assert_eq!(places("src/a/mod.rs", false), ["src/a/b.rs", "src/a/b/mod.rs"]);
        let path = candidates(Path::new("src/a.rs"), false, "b", Some("c.rs".to_string()));
        assert_eq!(path.collect::<Vec<_>>(), [PathBuf::from("src/c.rs")]);
    }
}
