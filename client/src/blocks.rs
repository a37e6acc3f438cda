//! Where requests' bodies lie: side by side in blocks that are used again when all in them are
//! gone. In durability `lazy` a body is kept for milliseconds: by then an allocator has given its
//! place to others, and finds its own notes on it in no cache.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Bytes of a block.
const BLOCK: usize = 16 << 10;
/// Longer bodies have memory of their own.
const LONGEST: usize = BLOCK / 4;
/// So many full blocks are remembered, to be used again.
const REMEMBERED: usize = 64;

/// The memory of requests' bodies.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// The free end of the present block.
    block: BytesMut,
    /// The ends of full ones, the oldest first.
    full: VecDeque<BytesMut>,
}

impl Blocks {
    /// A copy of `body`.
    pub fn copy(&mut self, body: &[u8]) -> Bytes {
        if body.len() > LONGEST {
            return Bytes::copy_from_slice(body);
        }
        if self.block.capacity() < body.len() {
            self.advance();
        }
        self.block.extend_from_slice(body);
        self.block.split().freeze()
    }

    fn advance(&mut self) {
        let oldest = self.full.front_mut().is_some_and(|oldest| oldest.try_reclaim(BLOCK));
        let next = if oldest { self.full.pop_front() } else { None };
        let next = next.unwrap_or_else(|| BytesMut::with_capacity(BLOCK));
        let full = std::mem::replace(&mut self.block, next);
        // Without a byte that is left, an end does not lead back to its block.
        if full.capacity() > 0 {
            self.full.push_back(full);
        }
        if self.full.len() > REMEMBERED {
            self.full.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_keep_their_bytes_and_blocks_are_used_again() {
        let mut blocks = Blocks::default();
        let mut kept = VecDeque::new();
        for number in 0..4_000_u32 {
            let body = vec![number as u8; number as usize * 7 % 5_000];
            kept.push_back((blocks.copy(&body), body));
            if kept.len() > 100 {
                let (copy, body) = kept.pop_front().expect("there are some");
                assert_eq!(copy, body);
            }
        }
        assert!(kept.iter().all(|(copy, body)| copy == body));
        // 100 bodies of 2 KiB or so; were none used again, all that are remembered would be here.
        assert!(blocks.full.len() < REMEMBERED / 2, "{} blocks are full", blocks.full.len());
    }
}
