//! Native clients on the replicas' port: processes that are no replica, number their requests
//! themselves and send them to the primary that they know.
//!
//! Invariants: what is kept for one is bounded. It is not read from while many answers wait to be
//! sent or large ones are to come; one that has more under way than the client machine ever has, or
//! lets answers pile up beyond all measure, is closed. Nothing here waits for one.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;

use smr::request::MAX_OUTSTANDING;
use smr::{ClientId, ClientMessage, Outcome, RequestNumber};
use wire::{Frame, Header, Kind, Outbox, encode_frame};

use crate::family::Told;
use crate::poll::{Interest, Poll, Token};

/// Answers that wait to be sent beyond this many bytes stop the reading of requests.
const OUTPUT_SOFT: usize = 1 << 20;
/// Beyond this many the connection is closed: [`FEW_READS`] answers of any size fit.
const OUTPUT_HARD: usize = (FEW_READS + 1) * wire::MAX_PAYLOAD;
/// Reads are taken while their answers will have about this many bytes together.
const READ_BYTES: usize = 8 << 20;
/// So many reads are always taken, however large the answers have been.
const FEW_READS: usize = 4;
/// What is expected of the first answers, in bytes.
const FIRST_ESTIMATE: usize = READ_BYTES / 8;
/// More is not taken while what is under way has this many bytes together.
const UNDER_WAY_BYTES: usize = 16 << 20;
/// Requests and reads under way; the client machine has at most half as many.
const MAX_UNDER_WAY: usize = 2 * MAX_OUTSTANDING as usize;
/// A request that a deposed primary has dropped is never answered: it is not counted any more after
/// this many microseconds, by when a primary has committed or lost its lead.
const FORGOTTEN: u64 = 5_000_000;

/// A request or read that is not answered.
#[derive(Clone, Copy)]
struct UnderWay {
    /// In [`smr::Now::micros`].
    since: u64,
    bytes: usize,
}

/// A native client's connection, beside its stream.
pub(crate) struct Guest {
    pub client: ClientId,
    output: Outbox,
    interest: Interest,
    /// What was handed to the host (whether it is a read, its number) and not answered.
    under_way: BTreeMap<(bool, RequestNumber), UnderWay>,
    reads: usize,
    /// Of all bodies under way.
    bytes: usize,
    /// About how many bytes the answer to a read has.
    estimate: usize,
    /// Frames may be waiting in the reader.
    pub paused: bool,
    /// It is in the list of connections to be flushed.
    pub listed: bool,
}

impl Guest {
    pub fn new(client: ClientId) -> Guest {
        Guest {
            client,
            output: Outbox::default(),
            interest: Interest::READ,
            under_way: BTreeMap::new(),
            reads: 0,
            bytes: 0,
            estimate: FIRST_ESTIMATE,
            paused: false,
            listed: false,
        }
    }

    /// Bytes of answers that are not sent.
    pub fn pending(&self) -> usize {
        self.output.pending()
    }

    /// Whether requests may be taken.
    pub fn is_open(&self) -> bool {
        let coming = self.reads * self.estimate;
        self.pending() <= OUTPUT_SOFT
            && self.bytes <= UNDER_WAY_BYTES
            && (self.reads < FEW_READS || coming <= READ_BYTES)
    }

    /// What a frame says, taken at `now`, in [`smr::Now::micros`], if its body has at most
    /// `longest` bytes.
    pub fn take(
        &mut self,
        frame: Frame,
        longest: usize,
        now: u64,
    ) -> Result<ClientMessage, &'static str> {
        if frame.header.kind != Kind::Client {
            return Err("it sends what only replicas send");
        }
        let message = ClientMessage::decode(frame.payload).map_err(|_| "a request is malformed")?;
        if message.client() != self.client {
            return Err("it changes its name");
        }
        let (key, bytes) = key(&message);
        if bytes > longest {
            return Err("a request is too long");
        }
        self.end(key);
        self.under_way.insert(key, UnderWay { since: now, bytes });
        self.reads += usize::from(key.0);
        self.bytes += bytes;
        if self.under_way.len() > MAX_UNDER_WAY {
            self.forget(now);
            if self.under_way.len() > MAX_UNDER_WAY {
                return Err("it has too many requests under way");
            }
        }
        Ok(message)
    }

    /// A message that was taken goes no further: it is as if it had not come.
    pub fn drop_message(&mut self, message: &ClientMessage) {
        self.end(key(message).0);
    }

    /// What is under way for too long is not counted any more.
    pub fn forget(&mut self, now: u64) {
        self.under_way.retain(|_, under_way| under_way.since + FORGOTTEN > now);
        self.reads = self.under_way.keys().filter(|(read, _)| *read).count();
        self.bytes = self.under_way.values().map(|under_way| under_way.bytes).sum();
    }

    fn end(&mut self, key: (bool, RequestNumber)) {
        if let Some(UnderWay { bytes, .. }) = self.under_way.remove(&key) {
            self.reads -= usize::from(key.0);
            self.bytes -= bytes;
        }
    }

    /// Queues a reply. `false` if the client must be given up, since it does not fetch its answers.
    pub fn answer(&mut self, header: &Header, told: &impl Told) -> bool {
        let reply = told.reply();
        self.end((reply.read, reply.number));
        let output = self.output.buffer();
        let before = output.len();
        // It fits: the node takes out an answer that does not (`effects::fit`).
        if encode_frame(output, header, |out| told.encode(out)).is_err() {
            return false;
        }
        if let (true, Outcome::Done { .. }) = (reply.read, &reply.outcome) {
            // Upwards at once, downwards by and by.
            let bytes = output.len() - before;
            self.estimate = bytes.max(self.estimate - self.estimate / 16);
        }
        self.pending() <= OUTPUT_HARD
    }

    /// Queues something short that answers nothing.
    pub fn tell(&mut self, header: &Header, payload: impl FnOnce(&mut Vec<u8>)) {
        encode_frame(self.output.buffer(), header, payload).expect("it is short");
    }

    /// Sends what is queued, and sees to what is to be waited for.
    pub fn flush(&mut self, stream: &mut TcpStream, place: u32, poll: &Poll) -> io::Result<()> {
        self.output.flush(stream)?;
        let wanted = Interest { read: self.is_open(), write: self.pending() > 0 };
        if wanted != self.interest {
            poll.change(&*stream, Token::Inbound(place), wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }
}

/// What a message is known by while it is under way, and how long its body is.
fn key(message: &ClientMessage) -> ((bool, RequestNumber), usize) {
    match message {
        ClientMessage::Request { request, .. } => ((false, request.number), request.body.len()),
        ClientMessage::Read { request, .. } => ((true, request.number), request.body.len()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use smr::{GroupId, Incarnation, OpNumber, ReadRequest, ReplicaId, Reply, View, Viewstamp};

    use super::*;

    const CLIENT: ClientId = ClientId { gateway: wire::FIRST_CLIENT, incarnation: Incarnation(1) };

    fn header(kind: Kind) -> Header {
        let (group, from) = (GroupId(1), ReplicaId(0));
        Header { kind, group, from, incarnation: CLIENT.incarnation }
    }

    fn take(guest: &mut Guest, number: u64, bytes: usize, now: u64) -> Result<(), &'static str> {
        let body = Bytes::from(vec![0; bytes]);
        let request = ReadRequest { client: CLIENT, number: RequestNumber(number), body };
        let mut payload = Vec::new();
        ClientMessage::Read { expected: View(0), request }.encode(&mut payload);
        let frame = Frame { header: header(Kind::Client), payload: payload.into() };
        guest.take(frame, wire::LONGEST_BODY, now).map(|_| ())
    }

    #[test]
    fn what_is_under_way_is_bounded_in_bytes_and_never_for_ever() {
        let mut guest = Guest::new(CLIENT);
        take(&mut guest, 1, UNDER_WAY_BYTES, 0).expect("taken");
        assert!(guest.is_open());
        take(&mut guest, 2, 1, 1).expect("taken");
        take(&mut guest, 2, 1, 1).expect("sent again, counted once");
        assert!(!guest.is_open());
        let position = Viewstamp::new(View(1), OpNumber(1));
        let outcome = Outcome::Done { position, body: Bytes::new() };
        let (number, view) = (RequestNumber(2), View(1));
        let reply = Reply { client: CLIENT, number, read: true, view, durable: position, outcome };
        assert!(guest.answer(&header(Kind::Reply), &reply));
        assert!(guest.is_open() && guest.bytes == UNDER_WAY_BYTES);
        take(&mut guest, 3, 1, 2).expect("taken");
        guest.forget(FORGOTTEN);
        assert!(guest.is_open());
        assert_eq!((guest.bytes, guest.reads, guest.under_way.len()), (1, 1, 1));
        take(&mut guest, 4, wire::LONGEST_BODY, 3).expect("one of any size is taken");
        assert!(!guest.is_open());
        take(&mut guest, 5, wire::LONGEST_BODY + 1, 3)
            .expect_err("its entry would fit into no frame");
    }
}
