//! What is kept for a connection.

use memcached::{Echo, Parser};

/// So many places are kept while no command is under way.
const KEEP: usize = 64;

/// A connection.
pub struct Session {
    pub(super) parser: Parser,
    /// What the answers to meta commands under way repeat.
    echoes: Vec<Vec<u8>>,
    /// Places of the list that are not taken.
    free: Vec<u32>,
}

impl Session {
    pub(super) fn new(value_len: usize) -> Session {
        Session { parser: Parser::new(value_len), echoes: Vec::new(), free: Vec::new() }
    }

    /// Keeps an echo; returns its place, below 2^24, since far fewer commands can be under way.
    pub(super) fn keep(&mut self, echo: &Echo<'_>) -> u32 {
        let packed = echo.pack();
        if let Some(place) = self.free.pop() {
            self.echoes[place as usize] = packed;
            return place;
        }
        self.echoes.push(packed);
        let place = self.echoes.len() as u32 - 1;
        assert!(place < 1 << 24, "the unanswered commands of a connection are bounded");
        place
    }

    /// Takes an echo out.
    pub(super) fn take_echo(&mut self, place: u32) -> Vec<u8> {
        let packed = std::mem::take(&mut self.echoes[place as usize]);
        self.free.push(place);
        if self.free.len() == self.echoes.len() {
            // Nothing is under way: what a deep pipeline needed is given back.
            self.free.clear();
            self.free.shrink_to(KEEP);
            self.echoes.clear();
            self.echoes.shrink_to(KEEP);
        }
        packed
    }

    pub(super) fn drop_echo(&mut self, place: u32) {
        self.take_echo(place);
    }
}
