//! Values that fit one pointer-sized slot of a border node ([Mao] 3.1.2, `link_or_value`).

use std::{ffi::c_void, sync::Arc};

use triomphe::ThinArc;

/// A value that fits one pointer-sized slot: a reference-counted pointer, or a number that is kept
/// in the slot itself.
///
/// # Safety
/// - `as_raw` and `into_raw` give the same bits.
/// - `from_raw` of what came from `into_raw` gives the value back, on any thread.
/// - A bitwise copy made with `from_raw` that is never dropped may be borrowed, and cloned, by many
///   threads at once while the original is alive.
/// - Values that need no drop may be made from the same bits any number of times.
pub unsafe trait Slot: Send + Sync + Clone + 'static {
    /// Gives the value up for its bits.
    fn into_raw(self) -> *mut ();

    /// Takes a value back.
    ///
    /// # Safety
    /// The bits came from `into_raw`. If values of the type need a drop, then of all values made
    /// from the same call's result at most one is dropped.
    unsafe fn from_raw(raw: *mut ()) -> Self;

    /// The bits that `into_raw` would return: the value's identity in `compare_and_set`.
    fn as_raw(&self) -> *mut ();
}

// SAFETY: the bits are the number.
#[cfg(target_pointer_width = "64")]
unsafe impl Slot for u64 {
    fn into_raw(self) -> *mut () {
        std::ptr::without_provenance_mut(self as usize)
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        raw.addr() as u64
    }

    fn as_raw(&self) -> *mut () {
        self.into_raw()
    }
}

// SAFETY: the bits are the number.
unsafe impl Slot for usize {
    fn into_raw(self) -> *mut () {
        std::ptr::without_provenance_mut(self)
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        raw.addr()
    }

    fn as_raw(&self) -> *mut () {
        self.into_raw()
    }
}

// SAFETY: there is one value only, whatever the bits.
unsafe impl Slot for () {
    fn into_raw(self) -> *mut () {
        std::ptr::null_mut()
    }

    unsafe fn from_raw(_: *mut ()) -> Self {}

    fn as_raw(&self) -> *mut () {
        std::ptr::null_mut()
    }
}

// SAFETY: the pointer is the allocation's own; to be borrowed and cloned by many is what an Arc is
// for.
unsafe impl<T: Send + Sync + 'static> Slot for Arc<T> {
    fn into_raw(self) -> *mut () {
        Arc::into_raw(self).cast_mut().cast()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        unsafe { Arc::from_raw(raw.cast_const().cast()) }
    }

    fn as_raw(&self) -> *mut () {
        Arc::as_ptr(self).cast_mut().cast()
    }
}

// SAFETY: as for the standard library's Arc.
unsafe impl<T: Send + Sync + 'static> Slot for triomphe::Arc<T> {
    fn into_raw(self) -> *mut () {
        triomphe::Arc::into_raw(self).cast_mut().cast()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        unsafe { triomphe::Arc::from_raw(raw.cast_const().cast()) }
    }

    fn as_raw(&self) -> *mut () {
        triomphe::Arc::as_ptr(self).cast_mut().cast()
    }
}

// SAFETY: as for the standard library's Arc.
unsafe impl<H: Send + Sync + 'static> Slot for ThinArc<H, u8> {
    fn into_raw(self) -> *mut () {
        ThinArc::into_raw(self).cast_mut().cast()
    }

    unsafe fn from_raw(raw: *mut ()) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        unsafe { ThinArc::from_raw(raw.cast_const().cast::<c_void>()) }
    }

    fn as_raw(&self) -> *mut () {
        ThinArc::as_ptr(self).cast_mut().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<V: Slot>(value: V) {
        let identity = value.as_raw();
        let raw = value.into_raw();
        assert_eq!(raw, identity);
        // SAFETY: `raw` was just made by `into_raw` and is used once.
        drop(unsafe { V::from_raw(raw) });
    }

    #[test]
    fn slots_round_trip() {
        round_trip(u64::MAX);
        round_trip(0usize);
        round_trip(());
        round_trip(Arc::new(7u8));
        round_trip(Arc::new(()));
        round_trip(Arc::new([0u64; 5]));
        round_trip(triomphe::Arc::new(7u8));
        round_trip(ThinArc::from_header_and_slice(3u16, b"bytes"));
        round_trip(ThinArc::from_header_and_slice((), b""));
    }
}
