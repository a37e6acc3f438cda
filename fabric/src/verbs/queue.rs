//! One queue pair of a reliable connection: either the one that posts, or the one that lets a
//! peer's requests in.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::abi::{
    self, AhAttr, Qp, QpAttr, QpCap, QpInitAttr, SendWr, Sge, access, mask, opcode, send, state,
};
use super::card::{Address, Completions, Domain};
use super::error::Error;
use super::frame::End;
use super::options::RETRIES;

/// What goes inline at most, in bytes, if the card can: [Mu] 7, "inline".
const INLINE: u32 = 256;

/// What a queue pair lets its peer do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Nothing,
    Reads,
    ReadsAndWrites,
}

impl Allowed {
    fn flags(self) -> u32 {
        let flags = match self {
            Allowed::Nothing => 0,
            Allowed::Reads => access::REMOTE_READ,
            Allowed::ReadsAndWrites => access::REMOTE_READ | access::REMOTE_WRITE,
        };
        flags as u32
    }
}

/// One work request.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) is_read: bool,
    /// It waits for the reads before it: cards let a write overtake a read's answer.
    pub(crate) fence: bool,
    pub(crate) signalled: bool,
    /// The memory here, its key, and its length in bytes.
    pub(crate) local: (u64, u32, u32),
    /// The memory there, and its key.
    pub(crate) remote: (u64, u32),
}

pub(crate) struct Queue {
    raw: NonNull<Qp>,
    domain: Arc<Domain>,
    /// Kept until the queue pair is gone.
    _completions: Arc<Completions>,
    inline: u32,
    /// Space for posting.
    sges: Vec<Sge>,
    requests: Vec<SendWr>,
}

// SAFETY: as of `Card`; the raw pointers in `sges` and `requests` are used within `post` alone.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue pair that has up to `depth` requests under way.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        completions: &Arc<Completions>,
        depth: u32,
    ) -> Result<Queue, Error> {
        let create = |inline| {
            let cap = QpCap {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            };
            let mut attributes = QpInitAttr {
                qp_context: null_mut(),
                send_cq: completions.raw.as_ptr(),
                recv_cq: completions.raw.as_ptr(),
                srq: null_mut(),
                cap,
                qp_type: abi::RC,
                sq_sig_all: 0,
            };
            // SAFETY: the domain and the completion queue are open, and are kept.
            let raw =
                unsafe { (domain.card.library.create_qp)(domain.raw.as_ptr(), &mut attributes) };
            NonNull::new(raw).map(|raw| (raw, attributes.cap.max_inline_data))
        };
        let made = create(INLINE).or_else(|| create(0));
        let (raw, inline) = made.ok_or_else(|| Error::last("make a queue pair"))?;
        Ok(Queue {
            raw,
            domain: domain.clone(),
            _completions: completions.clone(),
            inline: inline.min(INLINE),
            sges: Vec::new(),
            requests: Vec::new(),
        })
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is there.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn modify(&self, mut attributes: QpAttr, mask: i32, action: &'static str) -> Result<(), Error> {
        let library = self.domain.card.library;
        // SAFETY: the queue pair is there, and the attributes have the library's layout.
        let result = unsafe { (library.modify_qp)(self.raw.as_ptr(), &mut attributes, mask) };
        Error::check(result, action)
    }

    /// Connects it, fresh or reset, with the peer's, whose packets begin with that number.
    pub(crate) fn connect(
        &self,
        address: &Address,
        peer: End,
        own_sequence: u32,
        allowed: Allowed,
    ) -> Result<(), Error> {
        let card = &self.domain.card;
        let init = QpAttr {
            qp_state: state::INIT,
            port_num: card.port,
            qp_access_flags: allowed.flags(),
            ..QpAttr::default()
        };
        let fields = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        self.modify(init, fields, "prepare a queue pair")?;
        let [high, low] = [&address.gid[..8], &address.gid[8..]]
            .map(|half| u64::from_ne_bytes(half.try_into().expect("8 bytes")));
        let route = AhAttr {
            dgid: [high, low],
            sgid_index: card.gid_index,
            hop_limit: 64,
            dlid: address.lid,
            is_global: u8::from(card.is_ethernet),
            port_num: card.port,
            ..AhAttr::default()
        };
        let receive = QpAttr {
            qp_state: state::RTR,
            ah_attr: route,
            path_mtu: u32::from(card.address.mtu.min(address.mtu)),
            dest_qp_num: peer.number,
            rq_psn: peer.sequence,
            max_dest_rd_atomic: card.address.reads,
            min_rnr_timer: 12,
            ..QpAttr::default()
        };
        let fields = mask::STATE | mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let fields = fields | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
        self.modify(receive, fields, "connect a queue pair")?;
        let send = QpAttr {
            qp_state: state::RTS,
            timeout: card.timeout,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            sq_psn: own_sequence,
            max_rd_atomic: card.reads_out.min(address.reads),
            ..QpAttr::default()
        };
        let fields = mask::STATE | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
        let fields = fields | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC;
        // Also of a queue pair that posts nothing: only then may its flags change.
        self.modify(send, fields, "start a queue pair")
    }

    /// Changes what the peer may do, and asks the card whether it is so.
    pub(crate) fn allow(&self, allowed: Allowed) -> Result<(), Error> {
        const ACTION: &str = "change what a queue pair lets in";
        let change = QpAttr { qp_access_flags: allowed.flags(), ..QpAttr::default() };
        self.modify(change, mask::ACCESS_FLAGS, ACTION)?;
        let mut now = QpAttr::default();
        let mut initial = QpInitAttr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap: QpCap::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let fields = mask::STATE | mask::ACCESS_FLAGS;
        let library = self.domain.card.library;
        // SAFETY: the queue pair is there, and the answers have the library's layout.
        let result =
            unsafe { (library.query_qp)(self.raw.as_ptr(), &mut now, fields, &mut initial) };
        Error::check(result, ACTION)?;
        let remote = Allowed::ReadsAndWrites.flags();
        if now.qp_state == state::RTS && now.qp_access_flags & remote == allowed.flags() {
            Ok(())
        } else {
            Err(Error::os(ACTION, std::io::Error::other("the card shows other flags")))
        }
    }

    /// Lets nothing in any more: when it returns, all that was let in is there.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        let reset = QpAttr { qp_state: state::RESET, ..QpAttr::default() };
        self.modify(reset, mask::STATE, "reset a queue pair")
    }

    /// Hands requests to the card, in order.
    ///
    /// # Safety
    /// The local memory of each stays registered, in the queue's domain, until the request has
    /// ended (its completion was polled, or that of a later one) or the queue is dropped.
    pub(crate) unsafe fn post(
        &mut self,
        requests: impl Iterator<Item = Request>,
    ) -> Result<(), Error> {
        self.sges.clear();
        self.requests.clear();
        for request in requests {
            let (addr, lkey, length) = request.local;
            self.sges.push(Sge { addr, length, lkey });
            let inline = !request.is_read && length <= self.inline;
            let flags = [
                (request.fence, send::FENCE),
                (request.signalled, send::SIGNALED),
                (inline, send::INLINE),
            ];
            self.requests.push(SendWr {
                wr_id: request.id,
                next: null_mut(),
                sg_list: null_mut(),
                num_sge: 1,
                opcode: if request.is_read { opcode::RDMA_READ } else { opcode::RDMA_WRITE },
                send_flags: flags.iter().map(|&(on, flag)| if on { flag } else { 0 }).sum(),
                imm_data: 0,
                remote_addr: request.remote.0,
                rkey: request.remote.1,
                rest: [0; 9],
            });
        }
        let count = self.requests.len();
        let (first, sges) = (self.requests.as_mut_ptr(), self.sges.as_mut_ptr());
        for index in 0..count {
            // SAFETY: both vectors have `count` elements and do not move any more.
            unsafe {
                let request = first.add(index);
                (*request).sg_list = sges.add(index);
                let next = if index + 1 < count { first.add(index + 1) } else { null_mut() };
                (*request).next = next;
            }
        }
        let mut refused = null_mut();
        // SAFETY: the queue pair is there; the list is complete and is copied by the call; the
        // memory that it names lives long enough by this function's contract.
        let result = unsafe {
            let post = (*self.raw.as_ref().context).post_send;
            post(self.raw.as_ptr(), first, &mut refused)
        };
        Error::check(result, "post to a queue pair")
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nobody uses the queue pair any more. When the call returns the card neither
        // reads nor writes memory for it.
        let result = unsafe { (self.domain.card.library.destroy_qp)(self.raw.as_ptr()) };
        assert_eq!(result, 0, "a queue pair that cannot be destroyed may still let writes in");
    }
}
