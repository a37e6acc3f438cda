//! Little-endian building blocks of every message and record. Fixed layouts, written by hand beside
//! the type they encode; nothing here allocates beyond the output.

use alloc::vec::Vec;
use bytes::Bytes;

use crate::ids::{
    ClientId, GroupId, Incarnation, OpNumber, ReplicaId, RequestNumber, View, Viewstamp,
};

/// The bytes are not what the format says. Peer nonsense: drop it and count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("malformed bytes")
    }
}

impl core::error::Error for Malformed {}

/// Appends values to a buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// A length of four bytes and the bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more.
    pub fn bytes(&mut self, value: &[u8]) {
        self.u32(u32::try_from(value.len()).expect("limits keep every field below 4 GiB"));
        self.out.extend_from_slice(value);
    }

    /// An operation's viewstamp.
    pub fn viewstamp(&mut self, value: Viewstamp) {
        self.u64(value.view.0);
        self.u64(value.op.0);
    }

    /// A client's id.
    pub fn client(&mut self, value: ClientId) {
        self.u32(value.gateway);
        self.u64(value.incarnation.0);
    }
}

/// Takes values from the front of a buffer without copying byte strings.
#[derive(Debug)]
pub struct Reader {
    rest: Bytes,
}

impl Reader {
    /// Reads from `bytes`.
    pub fn new(bytes: Bytes) -> Reader {
        Reader { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let head = self.rest.first_chunk::<N>().copied().ok_or(Malformed)?;
        bytes::Buf::advance(&mut self.rest, N);
        Ok(head)
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|b| b[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }

    /// A length of four bytes and that many bytes, sharing the buffer.
    pub fn bytes(&mut self) -> Result<Bytes, Malformed> {
        let len = self.u32()? as usize;
        if len > self.rest.len() {
            return Err(Malformed);
        }
        Ok(self.rest.split_to(len))
    }

    /// A count that is followed by at least `each` bytes an item, so that it can size a buffer.
    pub fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count.saturating_mul(each) > self.rest.len() {
            return Err(Malformed);
        }
        Ok(count)
    }

    /// A view.
    pub fn view(&mut self) -> Result<View, Malformed> {
        self.u64().map(View)
    }

    /// An operation number.
    pub fn op(&mut self) -> Result<OpNumber, Malformed> {
        self.u64().map(OpNumber)
    }

    /// An operation's viewstamp.
    pub fn viewstamp(&mut self) -> Result<Viewstamp, Malformed> {
        Ok(Viewstamp { view: self.view()?, op: self.op()? })
    }

    /// A client's id.
    pub fn client(&mut self) -> Result<ClientId, Malformed> {
        Ok(ClientId { gateway: self.u32()?, incarnation: Incarnation(self.u64()?) })
    }

    /// A request's number.
    pub fn request_number(&mut self) -> Result<RequestNumber, Malformed> {
        self.u64().map(RequestNumber)
    }

    /// A replica's id.
    pub fn replica(&mut self) -> Result<ReplicaId, Malformed> {
        self.u8().map(ReplicaId)
    }

    /// A group's id.
    pub fn group(&mut self) -> Result<GroupId, Malformed> {
        self.u64().map(GroupId)
    }

    /// Refuses what is left over.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
