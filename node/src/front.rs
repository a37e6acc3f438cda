//! The clients' side of a server without a group: connections, batches, the order of answers and
//! back-pressure as a node has them, on one of several threads. Who runs it executes the batches.
//!
//! A turn: [`Front::wait`], then [`Front::take`] and [`Front::answer`] until nothing comes any
//! more, then [`Front::flush`]. Positions are the executor's timestamps: of the answers to a
//! connection that asks for `sync`, those above [`Front::durable`] are held back.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use bytes::Bytes;
use smr::client::Retry;
use smr::{
    ClientId, ClientMessage, Durability, Incarnation, Now, OpNumber, Outcome, ReplicaId, Reply,
    RequestNumber, View, Viewstamp,
};

use crate::clock;
use crate::counted::Tally;
use crate::face::{ConnectionId, Face, Order, Status};
use crate::gateway::{Bounds, Gateway};
use crate::machine::{Machine, Outgoing};
use crate::poll::{Poll, Ready, Token, Waker};
use crate::sessions::{Around, Sessions};

/// The one view that there ever is.
pub const ALONE: View = View(1 << 8);
/// Nothing that is sent gets lost on the way.
const NEVER_AGAIN: u64 = u64::MAX / 8;

/// What a front is told when it starts.
#[derive(Clone, Copy, Debug)]
pub struct FrontOptions {
    /// Which of the threads it is.
    pub thread: usize,
    /// What an answer means.
    pub durability: Durability,
    /// The most connections of this thread.
    pub max_clients: usize,
    /// A connection whose unsent answers exceed this many bytes is closed.
    pub output_bytes: usize,
    /// The longest batch, and the longest command, in bytes.
    pub longest_body: usize,
    /// When a command is given up that waits for the disk, in microseconds.
    pub patience: u64,
}

/// A batch of commands to be executed.
#[derive(Clone, Debug)]
pub struct Asked {
    number: RequestNumber,
    /// Whether nothing but reads is in it.
    pub read: bool,
    /// The commands; an empty batch asks when all before it is durable, and is answered then.
    pub body: Bytes,
}

/// The clients of one thread.
pub struct Front<F: Face> {
    poll: Poll,
    sessions: Sessions<F>,
    gateway: Gateway,
    client: ClientId,
    /// What faces see.
    pub status: Status,
    durable: u64,
    outgoing: Outgoing,
    ready: Vec<Ready>,
    now: Now,
}

impl<F: Face> std::fmt::Debug for Front<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Front").field("connections", &self.sessions.connections()).finish()
    }
}

/// Readable while somebody waits to be served, for who waits for several fronts at once.
impl<F: Face> AsFd for Front<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

impl<F: Face> Front<F> {
    /// A front without connections, of one of the threads that `tally` is for.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(
        face: F,
        status: Status,
        tally: Tally,
        options: FrontOptions,
    ) -> std::io::Result<Front<F>> {
        let bounds = Bounds {
            depth: 8,
            flying_bytes: 64 << 20,
            longest_body: options.longest_body,
            patience: options.patience,
            durability: options.durability,
        };
        let client = ClientId { gateway: 0, incarnation: Incarnation(1) };
        let retry = Retry { silence: NEVER_AGAIN, refusal: NEVER_AGAIN };
        let mut sessions =
            Sessions::new(face, Vec::new(), options.max_clients, options.output_bytes);
        sessions.share(tally, options.thread);
        Ok(Front {
            poll: Poll::new()?,
            sessions,
            gateway: Gateway::new(Machine::asking(client, 1, retry), bounds),
            client,
            status,
            durable: 0,
            outgoing: Outgoing::default(),
            ready: Vec::new(),
            now: clock::now(),
        })
    }

    /// Ends [`Front::wait`] from any thread.
    pub fn waker(&self) -> Waker {
        self.poll.waker()
    }

    /// The time at which the turn began.
    pub fn now(&self) -> Now {
        self.now
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.sessions.connections()
    }

    /// Takes a connection that was accepted at an entrance.
    pub fn admit(&mut self, stream: TcpStream, from: SocketAddr, entrance: usize) {
        let ready = stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        // One that is broken already concerns nobody.
        if ready.is_ok() {
            let (poll, gateway) = (&self.poll, &mut self.gateway);
            self.sessions.admit(stream, from, entrance, poll, gateway, self.now);
        }
    }

    /// For how many microseconds after the turn's beginning nothing is due.
    pub fn pause(&self) -> u64 {
        let due = self.gateway.deadline().map(|due| due.saturating_sub(self.now.micros));
        let eager = self.sessions.resumable(&self.gateway);
        if eager { 0 } else { due.unwrap_or(u64::MAX) }
    }

    /// Begins a turn: waits for up to `micros` and takes what has come in. Returns whether there is
    /// anything to do.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait(&mut self, micros: u64, service: &F::Service) -> std::io::Result<bool> {
        let sleep = micros.min(self.pause());
        self.ready.clear();
        self.poll.wait(Some(sleep), &mut self.ready)?;
        self.now = clock::now();
        if self.ready.is_empty() && self.pause() > 0 {
            return Ok(false);
        }
        self.gateway.counters.turns += 1;
        let Front { sessions, gateway, status, ready, now, .. } = self;
        let mut around = Around { gateway, status, service, now: *now };
        for &ready in ready.iter() {
            if let Token::Client(place) = ready.token {
                sessions.on_ready(ready, place, &mut around);
            }
        }
        if gateway.deadline().is_some_and(|due| due <= now.micros) {
            while let Some(late) = gateway.expire(*now) {
                sessions.finish(late, gateway);
            }
        }
        Ok(true)
    }

    /// So many batches of this thread's log were written, with so many forced writes.
    pub fn logged(&mut self, batches: u64, syncs: u64) {
        let counters = &mut self.gateway.counters;
        (counters.stored, counters.syncs) = (batches, syncs);
    }

    /// Takes the batches that are to be executed, in this order.
    pub fn take(&mut self, service: &F::Service, out: &mut Vec<Asked>) {
        while let Some(news) = self.gateway.next_news() {
            self.sessions.hear(news, &mut self.gateway);
        }
        let Front { sessions, gateway, status, outgoing, now, .. } = self;
        let mut around = Around { gateway, status, service, now: *now };
        sessions.resume(&mut around);
        gateway.send(*now);
        gateway.take_outgoing(outgoing);
        out.extend(outgoing.replicas.drain(..).map(|(_, message)| match message {
            ClientMessage::Request { request, .. } => {
                Asked { number: request.number, read: false, body: request.body }
            }
            ClientMessage::Read { request, .. } => {
                Asked { number: request.number, read: true, body: request.body }
            }
        }));
    }

    /// Answers a batch that was executed: everything that it tells of happened up to `position`.
    pub fn answer(&mut self, asked: &Asked, position: u64, body: Bytes) {
        let at = |op| Viewstamp::new(ALONE, OpNumber(op));
        self.gateway.on_reply(
            self.now,
            Reply {
                client: self.client,
                number: asked.number,
                read: asked.read,
                view: ALONE,
                durable: at(self.durable),
                outcome: Outcome::Done { position: at(position), body },
            },
        );
    }

    /// Everything up to here is on disk.
    pub fn durable(&mut self, through: u64) {
        self.durable = through;
        self.gateway.on_durable(ALONE, Viewstamp::new(ALONE, OpNumber(through)));
    }

    /// Ends a turn: sends the answers. Returns what faces have ordered, but the ends of connections
    /// of this thread, which are done.
    pub fn flush(&mut self) -> Vec<Order> {
        while let Some(news) = self.gateway.next_news() {
            self.sessions.hear(news, &mut self.gateway);
        }
        let mut orders = std::mem::take(&mut self.sessions.orders);
        orders.retain(|order| match order {
            Order::Kill(id) => !self.sessions.kill(*id),
            _ => true,
        });
        // First, so that whoever has an answer finds it counted.
        self.sessions.publish(self.gateway.counters);
        self.sessions.flush(&self.poll, self.now);
        self.sessions.forget_closed(&mut self.gateway);
        orders
    }

    /// Closes a connection, if it is one of this thread's.
    pub fn kill(&mut self, id: ConnectionId) {
        self.sessions.kill(id);
    }

    /// Whether nothing is under way and nothing is to be sent.
    pub fn is_idle(&self) -> bool {
        self.gateway.idle() && !self.sessions.owes()
    }
}

/// Who a server without a group is, in the words of the status.
pub fn alone(durability: Durability, incarnation: Incarnation, clients: String) -> Status {
    let identity = smr::Identity { group: smr::GroupId(1), replica: ReplicaId(0), incarnation };
    let now = clock::now();
    let nothing = Viewstamp::new(ALONE, OpNumber(0));
    Status {
        identity,
        replicas: 1,
        ordered_by: smr::OrderedBy::Vsr,
        report: smr::Report {
            role: smr::Role::Primary,
            durability,
            view: ALONE,
            op: nothing,
            commit: OpNumber(0),
            disk: nothing,
            durable: nothing,
            checkpoint: nothing,
            lag_bytes: 0,
            lag_since: 0,
            forgetful: false,
            rolled_back: 0,
            risky_elections: 0,
            view_changed_at: now.micros,
            dropped: 0,
        },
        view_number: 1,
        memory: None,
        multicast: None,
        started_at: now.micros,
        disk_full: false,
        loading: false,
        clients,
        peers: Vec::new(),
    }
}
