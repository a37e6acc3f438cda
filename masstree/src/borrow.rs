//! Values lent by a tree.

use std::{fmt, marker::PhantomData, mem::ManuallyDrop, ops::Deref};

use crate::{field::RawValue, slot::Slot};

/// A value that the tree lends for as long as a guard lives, without counting a reference.
///
/// The value stays what it was when it was looked up, whatever becomes of its key meanwhile.
pub struct Borrowed<'a, V: Slot> {
    /// A bitwise copy of the tree's own, and never dropped.
    value: ManuallyDrop<V>,
    tree_and_guard: PhantomData<&'a V>,
}

impl<V: Slot> Borrowed<'_, V> {
    /// # Safety
    /// The tree's own reference to the value is not dropped during the borrow.
    pub(crate) unsafe fn new(raw: RawValue) -> Self {
        // SAFETY: slots hold what `into_raw` returned, and this copy is never dropped.
        let value = ManuallyDrop::new(unsafe { V::from_raw(raw) });
        Borrowed { value, tree_and_guard: PhantomData }
    }
}

impl<V: Slot> Deref for Borrowed<'_, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V: Slot + fmt::Debug> fmt::Debug for Borrowed<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
