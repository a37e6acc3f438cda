//! libibverbs, loaded when the first card is opened: the program runs where there is none.
//!
//! Proof: a function's type here is its type in `infiniband/verbs.h`, its symbol's default version
//! is the one that the header declares, and the library is never unloaded.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use super::abi::{Context, Cq, DeviceAttr, Mr, PortAttr, Qp, QpAttr, QpInitAttr};
use super::error::Error;

const NAME: &str = "libibverbs.so.1";

/// The functions in use.
pub(crate) struct Library {
    pub(crate) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void,
    pub(crate) free_device_list: unsafe extern "C" fn(*mut *mut c_void),
    pub(crate) get_device_name: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    pub(crate) open_device: unsafe extern "C" fn(*mut c_void) -> *mut Context,
    pub(crate) close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    pub(crate) query_device: unsafe extern "C" fn(*mut Context, *mut DeviceAttr) -> c_int,
    pub(crate) query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttr) -> c_int,
    pub(crate) query_gid: unsafe extern "C" fn(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int,
    pub(crate) alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut c_void,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(crate) reg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr,
    pub(crate) dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    pub(crate) create_cq:
        unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq,
    pub(crate) destroy_cq: unsafe extern "C" fn(*mut Cq) -> c_int,
    pub(crate) create_qp: unsafe extern "C" fn(*mut c_void, *mut QpInitAttr) -> *mut Qp,
    pub(crate) modify_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int) -> c_int,
    pub(crate) query_qp:
        unsafe extern "C" fn(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int,
    pub(crate) destroy_qp: unsafe extern "C" fn(*mut Qp) -> c_int,
}

impl Library {
    /// The library, if this machine has it.
    pub(crate) fn get() -> Result<&'static Library, Error> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| Library::load(NAME).map_err(reason));
        loaded.as_ref().map_err(|reason| Error::NoLibrary { reason: reason.clone() })
    }

    fn load(name: &str) -> Result<Library, libloading::Error> {
        // SAFETY: what libibverbs does when it is loaded is sound at any time.
        let library = unsafe { libloading::Library::new(name) }?;
        // Never unloaded, so that its functions stay.
        let library = Box::leak(Box::new(library));
        Library::resolve(library)
    }

    fn resolve(library: &'static libloading::Library) -> Result<Library, libloading::Error> {
        // SAFETY: see the module's proof; the fields' types are the functions' types.
        unsafe {
            Ok(Library {
                get_device_list: *library.get(b"ibv_get_device_list\0")?,
                free_device_list: *library.get(b"ibv_free_device_list\0")?,
                get_device_name: *library.get(b"ibv_get_device_name\0")?,
                open_device: *library.get(b"ibv_open_device\0")?,
                close_device: *library.get(b"ibv_close_device\0")?,
                query_device: *library.get(b"ibv_query_device\0")?,
                query_port: *library.get(b"ibv_query_port\0")?,
                query_gid: *library.get(b"ibv_query_gid\0")?,
                alloc_pd: *library.get(b"ibv_alloc_pd\0")?,
                dealloc_pd: *library.get(b"ibv_dealloc_pd\0")?,
                reg_mr: *library.get(b"ibv_reg_mr\0")?,
                dereg_mr: *library.get(b"ibv_dereg_mr\0")?,
                create_cq: *library.get(b"ibv_create_cq\0")?,
                destroy_cq: *library.get(b"ibv_destroy_cq\0")?,
                create_qp: *library.get(b"ibv_create_qp\0")?,
                modify_qp: *library.get(b"ibv_modify_qp\0")?,
                query_qp: *library.get(b"ibv_query_qp\0")?,
                destroy_qp: *library.get(b"ibv_destroy_qp\0")?,
            })
        }
    }
}

/// What the loader says, which stands behind the error.
fn reason(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_no_crash() {
        let error = Library::load("libibverbs-that-nobody-has.so.1").err().expect("not there");
        let reason = super::reason(error);
        assert!(reason.contains("libibverbs-that-nobody-has"), "{reason}");
        // Some other library: its lack of a function is an error as well.
        let error = Library::load("libc.so.6").err().expect("it is not libibverbs");
        let reason = super::reason(error);
        assert!(reason.contains("ibv_"), "{reason}");
    }
}
