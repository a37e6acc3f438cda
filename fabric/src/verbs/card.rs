//! One card, opened: what it is, and its protection domains and completion queue. Everything made
//! from it keeps it open.

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{self, Context, Cq, DeviceAttr, PortAttr, Wc};
use super::error::Error;
use super::library::Library;
use super::options::Options;

/// Where a card's port is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) gid: [u8; 16],
    pub(crate) lid: u16,
    /// The largest packet, as `enum ibv_mtu` numbers it.
    pub(crate) mtu: u8,
    /// How many reads of a peer it answers at a time.
    pub(crate) reads: u8,
}

pub(crate) struct Card {
    pub(crate) library: &'static Library,
    context: NonNull<Context>,
    pub(crate) port: u8,
    pub(crate) address: Address,
    pub(crate) gid_index: u8,
    pub(crate) is_ethernet: bool,
    /// How many reads it has under way at a time.
    pub(crate) reads_out: u8,
    pub(crate) most_requests: u32,
    pub(crate) most_completions: u32,
    pub(crate) timeout: u8,
}

// SAFETY: libibverbs' objects belong to no thread, and its functions lock what they share.
unsafe impl Send for Card {}
// SAFETY: as above.
unsafe impl Sync for Card {}

impl Card {
    /// Opens the card that the options name.
    pub(crate) fn open(options: &Options) -> Result<Arc<Card>, Error> {
        let library = Library::get()?;
        let mut count = 0;
        // SAFETY: the library fills in the count.
        let list = unsafe { (library.get_device_list)(&mut count) };
        if list.is_null() {
            let reason = std::io::Error::last_os_error();
            return Err(Error::NoCard { what: format!("there is no RDMA here ({reason})") });
        }
        let mut seen = Vec::new();
        let mut found = Err(None);
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` devices, and lives until it is freed below.
            let device = unsafe { *list.add(index) };
            // SAFETY: a device's name is text that lives as long as the list.
            let name = unsafe { CStr::from_ptr((library.get_device_name)(device)) };
            let name = name.to_string_lossy().into_owned();
            let is_asked = options.card.as_ref().is_none_or(|asked| *asked == name);
            if is_asked && found.is_err() {
                found = Card::of(library, device, &name, options).map_err(Some);
            }
            seen.push(name);
        }
        // SAFETY: the list is the library's; open devices do not need it.
        unsafe { (library.free_device_list)(list) };
        found.map(Arc::new).map_err(|error| {
            let asked = options.card.as_deref().unwrap_or("of any name");
            let what = format!("there is no RDMA card {asked} (found: {})", seen.join(", "));
            error.unwrap_or(Error::NoCard { what })
        })
    }

    fn of(
        library: &'static Library,
        device: *mut c_void,
        name: &str,
        options: &Options,
    ) -> Result<Card, Error> {
        // SAFETY: the device is of a list that is not freed yet.
        let context = NonNull::new(unsafe { (library.open_device)(device) })
            .ok_or_else(|| Error::last("open the RDMA card"))?;
        let mut card = Card {
            library,
            context,
            port: options.port,
            address: Address { gid: [0; 16], lid: 0, mtu: 0, reads: 0 },
            gid_index: 0,
            is_ethernet: false,
            reads_out: 1,
            most_requests: 1,
            most_completions: 1,
            timeout: options.timeout_exponent(),
        };
        card.ask_limits()?;
        card.ask_port(name)?;
        Ok(card)
    }

    fn ask_limits(&mut self) -> Result<(), Error> {
        // SAFETY: all bits are numbers, and zero is one.
        let mut device: DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, and the answer has the library's layout.
        let result = unsafe { (self.library.query_device)(self.context.as_ptr(), &mut device) };
        Error::check(result, "ask the RDMA card for its limits")?;
        let most = |limit: i32| u32::try_from(limit).unwrap_or(0).max(1);
        let reads = |limit: i32| most(limit).min(16) as u8;
        self.address.reads = reads(device.max_qp_rd_atom);
        self.reads_out = reads(device.max_qp_init_rd_atom);
        self.most_requests = most(device.max_qp_wr);
        self.most_completions = most(device.max_cqe);
        Ok(())
    }

    fn ask_port(&mut self, name: &str) -> Result<(), Error> {
        let mut port = PortAttr::default();
        // SAFETY: the context is open; the library fills in the answer or its first fields.
        let result =
            unsafe { (self.library.query_port)(self.context.as_ptr(), self.port, &mut port) };
        Error::check(result, "ask the RDMA card for its port")?;
        if port.state != abi::PORT_ACTIVE {
            let what = format!("port {} of the RDMA card {name} is not active", self.port);
            return Err(Error::NoCard { what });
        }
        self.address.mtu = port.active_mtu as u8;
        self.address.lid = port.lid;
        self.is_ethernet = port.link_layer == abi::ETHERNET;
        let entries = u8::try_from(port.gid_tbl_len).unwrap_or(u8::MAX);
        let mut gids = (0..entries).filter_map(|index| Some((index, self.gid(index)?)));
        let chosen = if self.is_ethernet {
            let routable: Vec<_> =
                gids.filter(|&(index, _)| self.is_routable(name, index)).collect();
            let is_ipv4 = |gid: &[u8; 16]| gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255];
            let first = routable.first().copied();
            routable.into_iter().find(|(_, gid)| is_ipv4(gid)).or(first)
        } else {
            gids.next()
        };
        let Some((index, gid)) = chosen else {
            let what = format!("the RDMA card {name} has no address (give its interface an IP)");
            return Err(Error::NoCard { what });
        };
        (self.gid_index, self.address.gid) = (index, gid);
        Ok(())
    }

    /// An entry of the port's table of addresses, if there is one.
    fn gid(&self, index: u8) -> Option<[u8; 16]> {
        let mut gid = [0_u64; 2];
        let context = self.context.as_ptr();
        // SAFETY: the context is open, and an address has 16 bytes.
        let result =
            unsafe { (self.library.query_gid)(context, self.port, i32::from(index), &mut gid) };
        if result != 0 || gid == [0; 2] {
            return None;
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&gid[0].to_ne_bytes());
        bytes[8..].copy_from_slice(&gid[1].to_ne_bytes());
        Some(bytes)
    }

    /// Whether packets from this address are those of RoCE v2, as both sides must agree.
    fn is_routable(&self, name: &str, index: u8) -> bool {
        let port = self.port;
        let file = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
        std::fs::read_to_string(file).is_ok_and(|kind| kind.trim() == "RoCE v2")
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // SAFETY: whatever was made from it held it, and is gone.
        unsafe { (self.library.close_device)(self.context.as_ptr()) };
    }
}

/// Queue pairs reach memory of their own domain alone.
pub(crate) struct Domain {
    pub(crate) card: Arc<Card>,
    pub(crate) raw: NonNull<c_void>,
}

// SAFETY: as of `Card`.
unsafe impl Send for Domain {}
// SAFETY: as of `Card`.
unsafe impl Sync for Domain {}

impl Domain {
    pub(crate) fn new(card: &Arc<Card>) -> Result<Arc<Domain>, Error> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (card.library.alloc_pd)(card.context.as_ptr()) })
            .ok_or_else(|| Error::last("make a protection domain"))?;
        Ok(Arc::new(Domain { card: card.clone(), raw }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever was made from it held it, and is gone.
        unsafe { (self.card.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Where requests' ends appear.
pub(crate) struct Completions {
    card: Arc<Card>,
    pub(crate) raw: NonNull<Cq>,
}

// SAFETY: as of `Card`.
unsafe impl Send for Completions {}
// SAFETY: as of `Card`.
unsafe impl Sync for Completions {}

impl Completions {
    pub(crate) fn new(card: &Arc<Card>, entries: u32) -> Result<Arc<Completions>, Error> {
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        let context = card.context.as_ptr();
        // SAFETY: the context is open; without a channel there is nobody to wake.
        let raw = unsafe { (card.library.create_cq)(context, entries, null_mut(), null_mut(), 0) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("make a completion queue"))?;
        Ok(Arc::new(Completions { card: card.clone(), raw }))
    }

    /// Takes what has ended, as far as there is space for it.
    pub(crate) fn poll<'a>(&self, space: &'a mut [Wc]) -> &'a [Wc] {
        let most = i32::try_from(space.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue is open, and its operation writes at most `most` entries.
        let count = unsafe {
            let poll = (*(*self.raw.as_ptr()).context).poll_cq;
            poll(self.raw.as_ptr(), most, space.as_mut_ptr())
        };
        let count = usize::try_from(count).expect("the completion queue is sound");
        &space[..count]
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: the queue pairs that use it held it, and are gone.
        unsafe { (self.card.library.destroy_cq)(self.raw.as_ptr()) };
    }
}
