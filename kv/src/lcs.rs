//! LCS: the longest common subsequence of two strings.

use resp::write;

use crate::call::ReadCall;
use crate::error::{Error, Outcome};
use crate::numbers::integer;
use crate::strings::bytes_of;

#[derive(Default)]
struct Options {
    length: bool,
    ranges: bool,
    with_lengths: bool,
    least: usize,
}

impl Options {
    fn parse(args: &[&[u8]]) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            match &option.to_ascii_uppercase()[..] {
                b"IDX" => options.ranges = true,
                b"LEN" => options.length = true,
                b"WITHMATCHLEN" => options.with_lengths = true,
                b"MINMATCHLEN" => {
                    let least = integer(args.next().ok_or(Error::Syntax)?)?;
                    options.least = usize::try_from(least).unwrap_or(0);
                }
                _ => return Err(Error::Syntax),
            }
        }
        if options.length && options.ranges {
            return Err(Error::Text(
                "ERR If you want both the length and indexes, please just use IDX.",
            ));
        }
        Ok(options)
    }
}

/// The lengths of the longest common subsequences of all pairs of prefixes.
struct Table {
    lengths: Vec<u32>,
    width: usize,
}

impl Table {
    fn new(a: &[u8], b: &[u8]) -> Table {
        let width = b.len() + 1;
        let mut lengths = vec![0; (a.len() + 1) * width];
        for i in 1..=a.len() {
            let (above, row) = lengths[(i - 1) * width..(i + 1) * width].split_at_mut(width);
            for j in 1..=b.len() {
                row[j] =
                    if a[i - 1] == b[j - 1] { above[j - 1] + 1 } else { above[j].max(row[j - 1]) };
            }
        }
        Table { lengths, width }
    }

    fn at(&self, i: usize, j: usize) -> u32 {
        self.lengths[i * self.width + j]
    }
}

/// A run of bytes that both strings have: where it starts in each, and its length.
#[derive(Clone, Copy)]
struct Match {
    a: usize,
    b: usize,
    len: usize,
}

/// The subsequence, and the runs that it consists of, the last first.
fn trace(table: &Table, a: &[u8], b: &[u8]) -> (Vec<u8>, Vec<Match>) {
    let (mut i, mut j) = (a.len(), b.len());
    let (mut text, mut runs) = (Vec::new(), Vec::new());
    let mut open: Option<Match> = None;
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            text.push(a[i - 1]);
            (i, j) = (i - 1, j - 1);
            open = match open {
                Some(run) if (run.a, run.b) == (i + 1, j + 1) => {
                    Some(Match { a: i, b: j, len: run.len + 1 })
                }
                // Runs are parted by a step that matches nothing, which closes them.
                _ => Some(Match { a: i, b: j, len: 1 }),
            };
        } else {
            runs.extend(open.take());
            if table.at(i - 1, j) > table.at(i, j - 1) {
                i -= 1;
            } else {
                j -= 1;
            }
        }
    }
    runs.extend(open);
    text.reverse();
    (text, runs)
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN n] [WITHMATCHLEN]`
pub(crate) fn lcs(call: &mut ReadCall<'_>, args: &[&[u8]]) -> Outcome {
    const NO_STRINGS: Error = Error::Text("ERR The specified keys must contain string values");
    let a = call.string(args[0]).map_err(|_| NO_STRINGS)?;
    let b = call.string(args[1]).map_err(|_| NO_STRINGS)?;
    let options = Options::parse(&args[2..])?;
    let (a, b) = (bytes_of(&a), bytes_of(&b));
    let cells = (a.len() as u64 + 1) * (b.len() as u64 + 1);
    if cells * size_of::<u32>() as u64 > call.store.limits.value_len as u64 {
        return Err(Error::Text(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
        ));
    }
    let table = Table::new(a, b);
    let length = i64::from(table.at(a.len(), b.len()));
    if options.length {
        write::integer(call.reply, length);
        return Ok(());
    }
    let (text, mut runs) = trace(&table, a, b);
    if !options.ranges {
        write::bulk(call.reply, &text);
        return Ok(());
    }
    runs.retain(|run| run.len >= options.least);
    write::map(call.reply, call.protocol, 2);
    write::bulk(call.reply, b"matches");
    write::array(call.reply, runs.len());
    for run in runs {
        write::array(call.reply, if options.with_lengths { 3 } else { 2 });
        for start in [run.a, run.b] {
            write::array(call.reply, 2);
            write::integer(call.reply, start as i64);
            write::integer(call.reply, (start + run.len - 1) as i64);
        }
        if options.with_lengths {
            write::integer(call.reply, run.len as i64);
        }
    }
    write::bulk(call.reply, b"len");
    write::integer(call.reply, length);
    Ok(())
}
