//! Values that fit one pointer-sized slot of a border node ([Mao] 3.1.2, `link_or_value`).

use std::{ffi::c_void, ptr::NonNull, sync::Arc};

use triomphe::ThinArc;

/// A value that fits one pointer-sized slot: in practice a reference-counted pointer.
///
/// # Safety
/// - The pointer's address is even, and the same for `as_raw` and `into_raw`.
/// - `from_raw` of a pointer from `into_raw` gives the value back, on any thread.
/// - A bitwise copy made with `from_raw` that is never dropped may be borrowed, and cloned, by many
///   threads at once while the original is alive.
pub unsafe trait Slot: Send + Sync + Clone + 'static {
    /// Gives the value up for its pointer.
    fn into_raw(self) -> NonNull<()>;

    /// Takes a value back.
    ///
    /// # Safety
    /// The pointer came from `into_raw`, and of all values made from it at most one is dropped.
    unsafe fn from_raw(raw: NonNull<()>) -> Self;

    /// The pointer that `into_raw` would return: the value's identity in `compare_and_set`.
    fn as_raw(&self) -> NonNull<()>;
}

fn non_null<T>(pointer: *const T) -> NonNull<()> {
    NonNull::new(pointer.cast_mut().cast()).expect("a reference count's pointer is never null")
}

// SAFETY: the value lies behind two counters in the same allocation, so its address is a multiple
// of at least 2 (checked again when stored); the pointer is the allocation's own.
unsafe impl<T: Send + Sync + 'static> Slot for Arc<T> {
    fn into_raw(self) -> NonNull<()> {
        non_null(Arc::into_raw(self))
    }

    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        unsafe { Arc::from_raw(raw.as_ptr().cast_const().cast()) }
    }

    fn as_raw(&self) -> NonNull<()> {
        non_null(Arc::as_ptr(self))
    }
}

// SAFETY: as for the standard library's Arc, behind one counter.
unsafe impl<T: Send + Sync + 'static> Slot for triomphe::Arc<T> {
    fn into_raw(self) -> NonNull<()> {
        non_null(triomphe::Arc::into_raw(self))
    }

    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        unsafe { triomphe::Arc::from_raw(raw.as_ptr().cast_const().cast()) }
    }

    fn as_raw(&self) -> NonNull<()> {
        non_null(triomphe::Arc::as_ptr(self))
    }
}

// SAFETY: the pointer is that of the allocation, which starts with an aligned counter.
unsafe impl<H: Send + Sync + 'static> Slot for ThinArc<H, u8> {
    fn into_raw(self) -> NonNull<()> {
        non_null(ThinArc::into_raw(self))
    }

    unsafe fn from_raw(raw: NonNull<()>) -> Self {
        // SAFETY: by the caller's promise `raw` came from `into_raw` above.
        unsafe { ThinArc::from_raw(raw.as_ptr().cast_const().cast::<c_void>()) }
    }

    fn as_raw(&self) -> NonNull<()> {
        non_null(ThinArc::as_ptr(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<V: Slot>(value: V) {
        let identity = value.as_raw();
        let raw = value.into_raw();
        assert_eq!(raw, identity);
        assert_eq!(raw.addr().get() % 2, 0);
        // SAFETY: `raw` was just made by `into_raw` and is used once.
        drop(unsafe { V::from_raw(raw) });
    }

    #[test]
    fn slots_round_trip() {
        round_trip(Arc::new(7u8));
        round_trip(Arc::new(()));
        round_trip(Arc::new([0u64; 5]));
        round_trip(triomphe::Arc::new(7u8));
        round_trip(ThinArc::from_header_and_slice(3u16, b"bytes"));
        round_trip(ThinArc::from_header_and_slice((), b""));
    }
}
