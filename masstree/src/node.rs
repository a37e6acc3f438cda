//! What border and interior nodes have in common, and locked nodes ([Mao] 3.1.5).
//!
//! Lock order, which excludes deadlock: a border before the border to its left, a node before its
//! parent, a border of a layer before the nodes of the layers below it. A new node is locked by
//! its maker before anyone can reach it, which waits for nobody.
//!
//! Who protects what: a node's lock protects its contents, the `parent` of its children, and of a
//! border the `prev` of the border to its right.

use std::ops::Deref;

use crate::{
    border::Border,
    field::{Link, Ref},
    guard::Guard,
    interior::Interior,
    slab::{self, Size},
    version::{Version, VersionWord},
};

/// The head of every node.
#[repr(C)]
pub(crate) struct Node {
    pub(crate) version: VersionWord,
    /// None for a layer's root.
    pub(crate) parent: Link<Interior>,
}

impl Node {
    pub(crate) fn new_locked(border: bool, root: bool) -> Self {
        Node { version: VersionWord::new_locked(border, root), parent: Link::none() }
    }
}

/// # Safety
/// The type begins with a `Node` (`repr(C)`, first field).
pub(crate) unsafe trait HasNode {}

// SAFETY: it is one.
unsafe impl HasNode for Node {}
// SAFETY: `repr(C)`, and `node` is the first field.
unsafe impl HasNode for Border {}
// SAFETY: `repr(C)`, and `node` is the first field.
unsafe impl HasNode for Interior {}

impl<'g, T: HasNode> Ref<'g, T> {
    /// The same node, without its kind.
    pub(crate) fn node(self) -> Ref<'g, Node> {
        // SAFETY: by `HasNode` a node's head is at the same address and lives as long.
        unsafe { Ref::new(self.as_non_null().cast()) }
    }

    /// Waits for the node's lock.
    pub(crate) fn lock(self) -> Locked<'g, T> {
        self.node().get().version.lock();
        Locked(self)
    }

    /// The node's current version, once no writer has marked it.
    pub(crate) fn stable(self) -> Version {
        self.node().get().version.stable()
    }

    /// Whether the node changed since `seen`.
    pub(crate) fn changed(self, seen: Version) -> bool {
        self.node().get().version.changed(seen)
    }

    /// Fetches the first cache lines of a node together ([Mao] 3.1.2). Without, random decimals are
    /// put and looked up at two thirds of the rate.
    pub(crate) fn prefetch(self, lines: usize) {
        for line in 0..lines {
            prefetch(self.as_non_null().as_ptr().cast::<u8>().wrapping_add(64 * line));
        }
    }
}

/// Fetches a cache line. Any address will do.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect on memory, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Fetches a cache line to be written to, away from where others read it. Any address will do.
#[inline(always)]
pub(crate) fn prefetch_for_write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect on memory, whatever the address; processors that do not know
    // this one pass over it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    prefetch(address);
}

impl<'g> Ref<'g, Node> {
    /// The node as the border node that its version says it is.
    pub(crate) fn border(self) -> Ref<'g, Border> {
        debug_assert!(self.get().version.is_border());
        // SAFETY: only a `Border` is made with the border bit, and the bit never changes.
        unsafe { Ref::new(self.as_non_null().cast()) }
    }

    /// The node as the interior node that its version says it is.
    pub(crate) fn interior(self) -> Ref<'g, Interior> {
        // SAFETY: only an `Interior` is made without the border bit, and the bit never changes.
        unsafe { Ref::new(self.as_non_null().cast()) }
    }

    /// # Safety
    /// Nobody uses the node any more. `border` says which kind it is.
    pub(crate) unsafe fn free(self, border: bool) {
        let node = self.as_non_null();
        let size = if border {
            // SAFETY: the node was made as a `Border`, and this is its last use.
            unsafe { node.cast::<Border>().drop_in_place() };
            Size::Border
        } else {
            // SAFETY: the node was made as an `Interior`, and this is its last use.
            unsafe { node.cast::<Interior>().drop_in_place() };
            Size::Interior
        };
        // SAFETY: `Locked::new_node` took the memory with this size, and nobody uses it any more.
        unsafe { slab::give(node.cast(), size) };
    }

    /// Frees a deleted node, and its suffixes, when no guard can reach it any more. The last link
    /// to the node was removed before.
    pub(crate) fn retire(self, guard: &Guard) {
        let version = self.get().version.stable();
        assert!(version.is_deleted(), "only deleted nodes are retired");
        let (node, border) = (self.as_non_null(), version.is_border());
        // SAFETY: the node is unlinked, so only threads that are pinned now can hold it, and they
        // are gone when this runs. Nodes have no ties to a thread.
        unsafe { guard.retire(move || Ref::new(node).free(border)) };
    }
}

/// A node whose lock we hold; dropping it unlocks.
pub(crate) struct Locked<'g, T: HasNode>(Ref<'g, T>);

impl<'g, T: HasNode> Locked<'g, T> {
    /// Takes charge of a node that was made locked.
    pub(crate) fn new_node(node: T, size: Size) -> Self {
        let memory = slab::take(size).cast::<T>();
        // SAFETY: the memory is new, and of the size and alignment of the type.
        unsafe { memory.write(node) };
        // SAFETY: the node is freed by `Ref::free` only, when no guard can reach it any more.
        let node: Ref<'g, T> = unsafe { Ref::new(memory) };
        node.node().get().version.held_version();
        Locked(node)
    }

    pub(crate) fn as_ref(&self) -> Ref<'g, T> {
        self.0
    }

    /// The same locked node, without its kind.
    pub(crate) fn into_node(self) -> Locked<'g, Node> {
        let node = self.0.node();
        std::mem::forget(self);
        Locked(node)
    }

    pub(crate) fn word(&self) -> &'g VersionWord {
        &self.0.node().get().version
    }

    /// Fetches what an insert into the parent writes to, if it comes at its end.
    pub(crate) fn expect_parent_insert(&self, guard: &'g Guard) {
        if let Some(parent) = self.0.node().get().parent.load(guard) {
            parent.get().prefetch_end();
        }
    }

    /// The node's parent, locked (`lockedparent`), or none for a root.
    pub(crate) fn lock_parent(&self, guard: &'g Guard) -> Option<Locked<'g, Interior>> {
        lock_parent(self.0.node(), guard)
    }
}

/// `lockedparent` of a node that has a parent as long as the caller cares.
pub(crate) fn lock_parent<'g>(
    node: Ref<'g, Node>,
    guard: &'g Guard,
) -> Option<Locked<'g, Interior>> {
    loop {
        let parent = node.get().parent.load(guard)?;
        let locked = parent.lock();
        // The parent's lock protects this field: unchanged now means unchanged until unlock.
        if node.get().parent.load(guard) == Some(parent) {
            return Some(locked);
        }
    }
}

impl<T: HasNode> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.get()
    }
}

impl<T: HasNode> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        self.word().unlock();
    }
}
