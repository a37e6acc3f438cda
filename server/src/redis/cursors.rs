//! Cursors are numbers to clients and tokens to the service. The table lives in one process and is
//! bounded: a cursor that it does not know (from another replica, or too old) starts the scan over,
//! which the contract of SCAN allows: elements may be returned more than once.

use std::collections::{BTreeMap, VecDeque};

use resp::write;

const MOST: usize = 64 << 10;
const MOST_BYTES: usize = 16 << 20;
/// Numbers stay below 2^52, exact in clients that know only doubles.
const COUNT_BITS: u32 = 36;

/// The table.
pub(super) struct Cursors {
    /// In the upper bits of every number, so that those of other processes are not known here.
    prefix: u64,
    count: u64,
    tokens: BTreeMap<u64, Box<[u8]>>,
    order: VecDeque<u64>,
    bytes: usize,
}

impl Cursors {
    pub fn new(nonce: u64) -> Cursors {
        Cursors {
            prefix: (nonce % 0xffff + 1) << COUNT_BITS,
            count: 0,
            tokens: BTreeMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The token that a client's cursor stands for.
    pub fn token(&self, number: u64) -> &[u8] {
        self.tokens.get(&number).map_or(&[], |token| token)
    }

    fn number(&mut self, token: &[u8]) -> u64 {
        if token.is_empty() {
            return 0;
        }
        self.count += 1;
        let number = self.prefix | (self.count & ((1 << COUNT_BITS) - 1));
        self.bytes += token.len();
        self.tokens.insert(number, token.into());
        self.order.push_back(number);
        while self.order.len() > MOST || self.bytes > MOST_BYTES {
            let oldest = self.order.pop_front().expect("it is not empty");
            self.bytes -= self.tokens.remove(&oldest).map_or(0, |token| token.len());
        }
        number
    }

    /// Copies a scan's answer with its first bulk, the token, replaced by a number.
    pub fn replace(&mut self, item: &[u8], out: &mut Vec<u8>) {
        match split(item) {
            Some((head, token, rest)) => {
                out.extend_from_slice(head);
                let number = self.number(token);
                write::bulk(out, number.to_string().as_bytes());
                out.extend_from_slice(rest);
            }
            // An error.
            None => out.extend_from_slice(item),
        }
    }
}

/// `*2\r\n`, the bytes of the first bulk, and what follows it.
fn split(item: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = item.split_at_checked(4)?;
    let rest = rest.strip_prefix(b"$").filter(|_| head == b"*2\r\n")?;
    let end = rest.iter().position(|&byte| byte == b'\r')?;
    let length: usize = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    let token = rest.get(end + 2..end + 2 + length)?;
    Some((head, token, rest.get(end + 4 + length..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_becomes_a_number_and_back() {
        let mut cursors = Cursors::new(5);
        let mut out = Vec::new();
        cursors.replace(b"*2\r\n$3\r\nabc\r\n*0\r\n", &mut out);
        let number = cursors.prefix | 1;
        let text = number.to_string();
        assert_eq!(out, format!("*2\r\n${}\r\n{text}\r\n*0\r\n", text.len()).as_bytes());
        assert_eq!(cursors.token(number), b"abc");
        assert_eq!(cursors.token(number + 1), b"");
        out.clear();
        cursors.replace(b"*2\r\n$0\r\n\r\n*0\r\n", &mut out);
        assert_eq!(out, b"*2\r\n$1\r\n0\r\n*0\r\n");
        out.clear();
        cursors.replace(b"-ERR syntax error\r\n", &mut out);
        assert_eq!(out, b"-ERR syntax error\r\n");
    }
}
