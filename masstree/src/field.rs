//! Fields that readers race on, with one ordering rule for all of them.
//!
//! Loads acquire and stores release. Two things follow. Whatever a reader sees in one field, it
//! also sees everything the writer stored before it: the contents of a slot before the permutation
//! that names it, a new node before the link to it, a value before its pointer. And a reader that
//! saw a store made under a mark of the version word cannot miss the mark when it validates
//! (version.rs). On x86-64 both are plain moves.
//!
//! Invariant: a `Link` in a node that is still in the tree leads to a node that is still in the
//! tree, or is just being taken out; nodes and suffix blocks are retired only after the last link
//! to them is gone. A thread that pinned before it followed a link may thus use the target for as
//! long as it stays pinned, even if source and target are deleted meanwhile: a deleted node's links
//! are never stored to again, and lead to nodes that were in the tree when it was deleted.

use std::{marker::PhantomData, ops::Deref, ptr, ptr::NonNull};

use crate::{
    bucket::Bucket,
    guard::Guard,
    node::Node,
    sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

/// A 64-bit field.
#[derive(Debug, Default)]
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new(value: u64) -> Self {
        Word(AtomicU64::new(value))
    }

    /// Acquire, see the module's rule.
    pub(crate) fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Release, see the module's rule.
    pub(crate) fn store(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }
}

/// An 8-bit field.
#[derive(Debug, Default)]
pub(crate) struct Byte(AtomicU8);

impl Byte {
    /// Acquire, see the module's rule.
    pub(crate) fn load(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }

    /// Release, see the module's rule.
    pub(crate) fn store(&self, value: u8) {
        self.0.store(value, Ordering::Release);
    }
}

/// A 32-bit field.
#[derive(Debug, Default)]
pub(crate) struct Half(AtomicU32);

impl Half {
    /// Acquire, see the module's rule.
    pub(crate) fn load(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Release, see the module's rule.
    pub(crate) fn store(&self, value: u32) {
        self.0.store(value, Ordering::Release);
    }
}

/// A pointer to something that cannot be freed during `'g`: the life of a guard, or of exclusive
/// access to the tree. It keeps the provenance of the allocation, which a reference would narrow.
#[derive(Debug)]
pub(crate) struct Ref<'g, T>(NonNull<T>, PhantomData<&'g T>);

impl<T> Clone for Ref<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ref<'_, T> {}

impl<T> PartialEq for Ref<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<'g, T> Ref<'g, T> {
    /// # Safety
    /// The target stays allocated, and is not borrowed mutably, during `'g`.
    pub(crate) unsafe fn new(target: NonNull<T>) -> Self {
        Ref(target, PhantomData)
    }

    pub(crate) fn as_non_null(self) -> NonNull<T> {
        self.0
    }

    /// The target, borrowed for all of `'g` rather than for the life of this copy.
    pub(crate) fn get(self) -> &'g T {
        // SAFETY: by construction the target stays allocated and unborrowed mutably during 'g.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.get()
    }
}

/// A link to another part of the tree, or none.
#[derive(Debug)]
pub(crate) struct Link<T>(AtomicPtr<T>);

impl<T> Link<T> {
    pub(crate) fn none() -> Self {
        Link(AtomicPtr::new(ptr::null_mut()))
    }

    /// Acquire, see the module's rule.
    pub(crate) fn load<'g>(&self, _guard: &'g Guard) -> Option<Ref<'g, T>> {
        let target = NonNull::new(self.0.load(Ordering::Acquire))?;
        // SAFETY: the caller is pinned for 'g and came to this link from a node it may use; by the
        // module's invariant the target is then not freed during 'g. Nobody borrows nodes mutably
        // before they are freed.
        Some(unsafe { Ref::new(target) })
    }

    pub(crate) fn to(target: Ref<'_, T>) -> Self {
        Link(AtomicPtr::new(target.as_non_null().as_ptr()))
    }

    /// Replaces one target by another, unless the link has changed since. The old target is
    /// protected by a guard, so that its address has not been taken anew.
    pub(crate) fn replace(&self, old: Ref<'_, T>, new: Ref<'_, T>) {
        let (old, new) = (old.as_non_null().as_ptr(), new.as_non_null().as_ptr());
        // Release: readers enter the new node through this store (partner: `load`).
        // Relaxed on failure: the outcome is not used, a later writer tries again.
        let _ = self.0.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed);
    }

    /// The target, for the only user of the field.
    pub(crate) fn exclusive(&mut self) -> Option<NonNull<T>> {
        // Relaxed: exclusive access was obtained in some way that synchronizes.
        NonNull::new(self.0.load(Ordering::Relaxed))
    }

    /// Whether there is no target. Acquire, see the module's rule.
    pub(crate) fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }

    /// Release, see the module's rule.
    pub(crate) fn store(&self, target: Option<Ref<'_, T>>) {
        let target = target.map_or(ptr::null_mut(), |t| t.as_non_null().as_ptr());
        self.0.store(target, Ordering::Release);
    }
}

/// A value as the tree holds it: what `Slot::into_raw` returned.
pub(crate) type RawValue = *mut ();

/// What a slot leads to.
#[derive(Clone, Copy)]
pub(crate) enum LinkOrValue<'g> {
    /// A value, owned by the tree.
    Value(RawValue),
    /// The root of the next layer, or a node that was its root once (see layer.rs).
    Layer(Ref<'g, Node>),
    /// A few keys with their values, in place of a layer.
    Bucket(Ref<'g, Bucket>),
}

/// The `link_or_value` union of [Mao] figure 3-2. The slot's kind says which of them it is
/// (border.rs), so that values may use all of its bits.
#[derive(Debug)]
pub(crate) struct LinkOrValueCell(AtomicPtr<()>);

impl LinkOrValueCell {
    pub(crate) fn none() -> Self {
        LinkOrValueCell(AtomicPtr::new(ptr::null_mut()))
    }

    /// Acquire, see the module's rule.
    pub(crate) fn load(&self) -> *mut () {
        self.0.load(Ordering::Acquire)
    }

    /// Release, see the module's rule.
    pub(crate) fn store(&self, target: LinkOrValue<'_>) {
        let word = match target {
            LinkOrValue::Value(raw) => raw,
            LinkOrValue::Layer(node) => node.as_non_null().as_ptr().cast(),
            LinkOrValue::Bucket(bucket) => bucket.as_non_null().as_ptr().cast(),
        };
        self.0.store(word, Ordering::Release);
    }
}
