//! Slots that are used again, last freed first.
//!
//! Invariant: what was done in reverse order was undone exactly: a slot that is taken back after
//! [`Slab::free`] is always the next one that [`Slab::insert`] would have given.

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

/// The slots. What a free one holds means nothing.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// How many slots there are, free ones among them.
    pub fn slots(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn used(&self) -> u32 {
        (self.entries.len() - self.free.len()) as u32
    }

    /// The slot that the next [`Slab::insert`] will give.
    #[inline]
    pub fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.entries.len() as u32)
    }

    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.entries[slot as usize] = value;
            return slot;
        }
        self.entries.push(value);
        (self.entries.len() - 1) as u32
    }

    /// Frees a slot, or takes back the last [`Slab::insert`] that stands.
    #[inline]
    pub fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Takes back a [`Slab::free`], the last that stands.
    pub fn unfree(&mut self, slot: u32, value: T) {
        assert_eq!(self.insert(value), slot, "undo is the reverse of what was done");
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: u32) -> &T {
        &self.entries[slot as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.entries[slot as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undoing_gives_slots_back_in_reverse() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        slab.free(a);
        slab.free(b);
        let again = slab.insert('c');
        let first = slab.insert('d');
        let grown = slab.insert('e');
        assert_eq!((again, first, grown), (b, a, 2));
        slab.free(grown);
        slab.free(first);
        slab.free(again);
        slab.unfree(b, 'b');
        slab.unfree(a, 'a');
        assert_eq!((slab[a], slab[b], slab.used()), ('a', 'b', 2));
        assert_eq!(slab.next(), 2);
    }
}
