//! Tests that look inside the store.

mod collections;
mod commands;
mod items;
mod ours;
mod properties;
mod shared;
mod time;

use std::ops::Bound;

use resp::Protocol;
use smr::{Context, OpNumber, ReadOutcome, StateMachine};

use crate::store::{Space, Store, Undo};
use crate::{reply, request, table};

/// A time to run commands at.
pub(crate) const NOW: u64 = 1_700_000_000_000;

/// A store and the log position that it is at.
pub(crate) struct Bench {
    pub store: Store,
    pub position: u64,
    pub unix_ms: u64,
    pub protocol: Protocol,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench { store: Store::default(), position: 0, unix_ms: NOW, protocol: Protocol::V2 }
    }

    /// Applies a request at the next position.
    pub(crate) fn apply(&mut self, request: &[u8]) -> (Vec<u8>, Undo) {
        self.position += 1;
        let position = OpNumber(self.position);
        let context = Context { position, index: 0, unix_ms: self.unix_ms };
        let mut answer = Vec::new();
        let undo = self.store.apply(context, request, &mut answer);
        (answer, undo)
    }

    /// The reply to a command, written as an inline one, in the log.
    pub(crate) fn run(&mut self, line: &str) -> Vec<u8> {
        let request = command(self.protocol, line);
        only(&self.apply(&request).0)
    }

    /// The reply to a command beside the log.
    pub(crate) fn read(&self, line: &str) -> Option<Vec<u8>> {
        let mut answer = Vec::new();
        match self.store.read(self.unix_ms, &command(self.protocol, line), &mut answer) {
            ReadOutcome::Done => Some(only(&answer)),
            ReadOutcome::MustLog => None,
        }
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, line: &str, expected: &str) {
        let reply = self.run(line);
        assert_eq!(
            String::from_utf8_lossy(&reply),
            expected.replace(' ', "\r\n") + "\r\n",
            "{line}"
        );
    }
}

/// The only body of an answer.
pub(crate) fn only(answer: &[u8]) -> Vec<u8> {
    let mut items = reply::items(answer);
    let body = items.next().expect("a body").to_vec();
    assert!(items.next().is_none());
    body
}

pub(crate) fn words(line: &str) -> Vec<Vec<u8>> {
    let (mut text, mut spans) = (Vec::new(), Vec::new());
    resp::split_arguments(line.as_bytes(), &mut text, &mut spans).expect("balanced quotes");
    spans.iter().map(|&(start, end)| text[start..end].to_vec()).collect()
}

/// A request of one command.
pub(crate) fn command(protocol: Protocol, line: &str) -> Vec<u8> {
    let words = words(line);
    let argv: Vec<&[u8]> = words.iter().map(|word| &word[..]).collect();
    let spec = table::lookup(argv[0]).expect("a known command");
    let mut request = Vec::new();
    request::push_command(&mut request, protocol, spec, &argv);
    request
}

/// A key of a tree, and its value's stamp, time and bytes.
type Entry = (Space, Vec<u8>, u64, u64, Vec<u8>);

/// All of the state, in an order of its own.
#[derive(Debug, PartialEq)]
pub(crate) struct Dump {
    pub entries: Vec<Entry>,
    totals: crate::store::Totals,
    pub sizes: crate::store::Sizes,
}

pub(crate) fn dump(store: &Store) -> Dump {
    let guard = masstree::pin();
    let mut entries = Vec::new();
    for space in [Space::Keys, Space::Fields, Space::Expiry] {
        store.trees.of(space).scan(Bound::Unbounded, &guard, |key, value| {
            let header = value.header.header;
            let bytes = value.slice.to_vec();
            entries.push((space, key.to_vec(), header.stamp(), header.expire_ms, bytes));
            true
        });
    }
    Dump { entries, totals: store.totals, sizes: store.sizes() }
}

#[test]
fn a_store_may_be_read_from_many_threads() {
    fn check<T: Send + Sync>(_: &T) {}
    check(&Store::default());
}
