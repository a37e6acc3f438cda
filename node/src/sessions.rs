//! The clients' side of a turn: accepting, reading, taking commands, answering, sending.
//!
//! Invariant: nothing is executed for a connection that has seen what is lost and does not know it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use smr::{Now, StateMachine, Viewstamp};

use crate::attached::{self, Application, Attached, Link};
use crate::client::{Answers, Arrival, Client, Loss, Stall};
use crate::counted::{Counters, Share, Tally};
use crate::face::{ConnectionId, Desk, Face, Failure, Note, Order, Status, Step};
use crate::gateway::{End, Finished, Gateway, Lane, Lost, News, Route};
use crate::poll::{Door, Interest, Poll, Ready, Token, Waker};
use crate::slab::Slab;

/// Bytes read from one connection in one turn, unless a command needs more.
const READ_BYTES: usize = 64 << 10;

/// So long a connection that was told of a loss may take to hear it, in microseconds.
const DRAINING: u64 = 5_000_000;

/// Nobody says when an application has made room for its answers: looked at every so often, in
/// microseconds.
const NAP: u64 = 1_000;

/// All clients' connections.
pub(crate) struct Sessions<F: Face> {
    pub face: F,
    clients: Slab<Client<F::Session>>,
    /// Applications in this process, with their generations.
    attached: Vec<(u32, u32)>,
    /// By entrance.
    doors: Vec<Door>,
    max_clients: usize,
    output_hard: usize,
    last_id: u64,
    /// What all threads of the server have counted; none but of a server with several.
    tally: Tally,
    /// Which of them this is.
    thread: usize,
    shared: Vec<u8>,
    dirty: Vec<u32>,
    stalled: Vec<u32>,
    /// Those that drain, with their generations, and when they are closed, in [`Now::micros`].
    draining: VecDeque<(u32, u32, u64)>,
    /// Those that were closed with commands unanswered, with their generations.
    closed: Vec<(u32, u32)>,
    pub orders: Vec<Order>,
}

/// What taking commands needs beside the connection.
pub(crate) struct Around<'a, S> {
    pub gateway: &'a mut Gateway,
    pub status: &'a Status,
    pub service: &'a S,
    pub now: Now,
}

impl<F: Face> Sessions<F> {
    /// `listeners` are in the poll as [`Token::Clients`], by their places, and do not block.
    pub fn new(
        face: F,
        listeners: Vec<TcpListener>,
        max_clients: usize,
        output_hard: usize,
    ) -> Self {
        let doors = listeners.into_iter().zip(0..);
        let door = |(listener, entrance)| Door::new(listener, Token::Clients(entrance));
        Sessions {
            face,
            clients: Slab::default(),
            attached: Vec::new(),
            doors: doors.map(door).collect(),
            max_clients,
            output_hard,
            last_id: 0,
            tally: Tally::default(),
            thread: 0,
            shared: vec![0; READ_BYTES],
            dirty: Vec::new(),
            stalled: Vec::new(),
            draining: VecDeque::new(),
            closed: Vec::new(),
            orders: Vec::new(),
        }
    }

    /// This is one of the threads of a server: the ids of connections go round them.
    pub fn share(&mut self, tally: Tally, thread: usize) {
        (self.last_id, self.tally, self.thread) = (thread as u64, tally, thread);
    }

    /// What this thread has counted is there for the others.
    pub fn publish(&self, counters: Counters) {
        self.tally.publish(self.thread, Share { connections: self.clients.len(), counters });
    }

    pub fn connections(&self) -> usize {
        self.clients.len()
    }

    /// Takes no more connections.
    pub fn stop_accepting(&mut self) {
        self.doors.clear();
    }

    /// Clients that connect at an entrance.
    pub fn accept(&mut self, entrance: usize, poll: &Poll, gateway: &mut Gateway, now: Now) {
        while let Some((stream, from)) =
            self.doors.get_mut(entrance).and_then(|door| door.accept(poll))
        {
            self.admit(stream, from, entrance, poll, gateway, now);
        }
    }

    /// A client that has connected; its stream does not block.
    pub fn admit(
        &mut self,
        mut stream: TcpStream,
        from: SocketAddr,
        entrance: usize,
        poll: &Poll,
        gateway: &mut Gateway,
        now: Now,
    ) {
        if self.clients.len() >= self.max_clients {
            let mut text = Vec::new();
            self.face.reject(entrance, &mut text);
            // If it does not fit into an empty socket buffer, the client is gone.
            let _ = stream.write(&text);
            gateway.counters.rejected += 1;
            return;
        }
        gateway.counters.accepted += 1;
        let place = self.insert(Link::Socket(stream), &from.to_string(), entrance, now);
        let client = self.clients.get_mut(place).expect("just inserted");
        let socket = client.stream.socket().expect("it came over a socket");
        if poll.add(socket, Token::Client(place), Interest::READ).is_err() {
            self.close(place);
        }
    }

    /// An application in this process, as if it had connected at the first entrance.
    pub fn attach(&mut self, waker: Waker, now: Now) -> Application {
        let (application, end) = attached::attach(waker);
        let place = self.insert(Link::Memory(Box::new(end)), "this process", 0, now);
        let client = self.clients.get_mut(place).expect("just inserted");
        self.attached.push((place, client.answers.generation));
        application
    }

    fn insert(&mut self, stream: Link, from: &str, entrance: usize, now: Now) -> u32 {
        self.last_id += self.tally.threads().max(1) as u64;
        let id = ConnectionId(self.last_id);
        let session = self.face.open(id, entrance, from, now);
        self.clients.insert(|place, generation| Client {
            stream,
            id,
            session,
            answers: Answers::new(place, generation),
            input: Vec::new(),
            missing: 0,
            closing: false,
            ended: false,
            listed: false,
            interest: Interest::READ,
            dirty: false,
            draining: false,
        })
    }

    /// Whether an application has something that can be taken.
    #[inline]
    pub fn is_called(&self) -> bool {
        self.links().any(|(client, link)| client.wanted().read && link.is_ready())
    }

    /// The loop is about to sleep. Returns for how many microseconds it may, at most.
    pub fn sleep(&self) -> u64 {
        let mut most = u64::MAX;
        for (client, link) in self.links() {
            if client.answers.sendable() {
                most = most.min(NAP);
            }
            if client.wanted().read && !link.sleep() {
                most = 0;
            }
        }
        most
    }

    /// The loop is awake.
    pub fn rise(&self) {
        self.links().for_each(|(_, link)| link.rise());
    }

    fn links(&self) -> impl Iterator<Item = (&Client<F::Session>, &Attached)> {
        self.attached.iter().filter_map(|&(place, _)| {
            let client = self.clients.get(place)?;
            let Link::Memory(link) = &client.stream else { return None };
            Some((client, &**link))
        })
    }

    /// Takes what applications have handed over.
    pub fn take_attached(&mut self, around: &mut Around<'_, F::Service>) {
        for index in (0..self.attached.len()).rev() {
            let (place, generation) = self.attached[index];
            let Some(client) = self.clients.get_exact(place, generation) else {
                self.attached.swap_remove(index);
                continue;
            };
            let Link::Memory(link) = &client.stream else { unreachable!("it is attached") };
            let read = client.wanted().read && link.is_ready();
            let write = client.answers.sendable();
            self.on_ready(Ready { token: Token::Client(place), read, write }, place, around);
        }
    }

    fn close(&mut self, place: u32) {
        if let Some(client) = self.clients.remove(place) {
            if client.answers.unanswered() > 0 {
                self.closed.push((place, client.answers.generation));
            }
            self.face.close(client.id, client.session);
        }
    }

    /// A connection is ready.
    pub fn on_ready(&mut self, ready: Ready, place: u32, around: &mut Around<'_, F::Service>) {
        let Some(client) = self.clients.get_mut(place) else { return };
        if ready.write {
            mark(&mut self.dirty, client);
        }
        if !ready.read {
            return;
        }
        if client.draining {
            client.forget_input();
            if matches!(client.read(&mut self.shared), Err(_) | Ok(Arrival::End)) {
                self.close(place);
            }
            return;
        }
        if client.closing || client.ended {
            // Only a broken connection is reported as readable now.
            return self.close(place);
        }
        match client.read(&mut self.shared) {
            Err(_) => return self.close(place),
            Ok(Arrival::Nothing) => return,
            // Answers that are owed are still sent, to clients that only close their sending half.
            Ok(Arrival::End) => client.ended = true,
            Ok(Arrival::Shared(count)) => {
                let shared = std::mem::take(&mut self.shared);
                let taken = self.take(place, &shared[..count], around);
                if let Some(client) = self.clients.get_mut(place) {
                    client.input.extend_from_slice(&shared[taken..count]);
                }
                self.shared = shared;
            }
            Ok(Arrival::Own) => self.take_own(place, around),
        }
        if let Some(client) = self.clients.get_mut(place) {
            mark(&mut self.dirty, client);
        }
    }

    /// Takes commands from a connection's own input.
    fn take_own(&mut self, place: u32, around: &mut Around<'_, F::Service>) {
        let Some(client) = self.clients.get_mut(place) else { return };
        let input = std::mem::take(&mut client.input);
        let taken = self.take(place, &input, around);
        if let Some(client) = self.clients.get_mut(place) {
            client.input = input;
            client.consume(taken);
        }
    }

    /// Takes commands from the front of `input`; returns how many bytes they had.
    fn take(&mut self, place: u32, input: &[u8], around: &mut Around<'_, F::Service>) -> usize {
        let connections = self.clients.len();
        let Some(client) = self.clients.get_mut(place) else { return 0 };
        client.answers.stall = None;
        client.missing = 0;
        if let Loss::Untold(after) = client.answers.loss {
            tell_loss(&mut self.face, client, after);
            return input.len();
        }
        let mut taken = 0;
        while taken < input.len() && client.open_for_commands() {
            let mut desk = Desk {
                gateway: &mut *around.gateway,
                answers: &mut client.answers,
                orders: &mut self.orders,
                status: around.status,
                service: around.service,
                now: around.now,
                tally: (&self.tally, self.thread),
                connections,
            };
            match self.face.take(&mut client.session, &input[taken..], &mut desk) {
                Step::Taken(count) => taken += count,
                Step::More(missing) => {
                    client.missing = missing;
                    break;
                }
                Step::Wait => {
                    client.answers.stall.get_or_insert(Stall::Face);
                    break;
                }
                Step::Close => client.closing = true,
            }
        }
        if client.answers.stall.is_some() && !client.listed {
            client.listed = true;
            self.stalled.push(place);
        }
        taken
    }

    /// Tries the connections again whose commands had to wait.
    pub fn resume(&mut self, around: &mut Around<'_, F::Service>) {
        let full = around.gateway.full();
        let stalled = std::mem::take(&mut self.stalled);
        for place in stalled {
            let Some(client) = self.clients.get_mut(place) else { continue };
            client.listed = false;
            if client.answers.stall.is_none() {
                continue;
            }
            if client.may_resume(full) {
                mark(&mut self.dirty, client);
                self.take_own(place, around);
            } else {
                client.listed = true;
                self.stalled.push(place);
            }
        }
    }

    /// Tells the connections what has become of their commands.
    pub fn hear(&mut self, news: News, gateway: &mut Gateway) {
        match news {
            News::Finished(finished) => self.finish(finished, gateway),
            News::Lost(lost) => self.lose(&lost, gateway),
        }
    }

    /// Tells the connections what became of a batch.
    pub fn finish(&mut self, finished: Finished, gateway: &mut Gateway) {
        let Finished { routes, whom, end } = finished;
        let (answer, position, failure) = match &end {
            End::Answered(position, answer) => (&answer[..], *position, Failure::Garbled),
            End::Failed(why) => (&[][..], Viewstamp::default(), *why),
            // It was executed and may yet be lost.
            End::Late(position) => (&[][..], *position, Failure::Unknown),
            End::Durable(_) => (&[][..], Viewstamp::default(), Failure::Garbled),
        };
        let Sessions { face, clients, dirty, .. } = self;
        // Only of the face's type: the items borrow the answer, not the face.
        let mut bodies = F::items(answer);
        for route in &routes {
            let body = bodies.next();
            if !whom.has(route) {
                continue;
            }
            let Some(client) = counted_off(clients, route) else { continue };
            if !matches!(end, End::Late(_)) {
                client.answers.seen = client.answers.seen.max(position.op);
            }
            if route.writes && position > client.answers.written {
                client.answers.written = position;
            }
            let session = &mut client.session;
            match (body, &end) {
                (Some(body), _) => client
                    .answers
                    .answer(route.number, |out| face.answer(session, route.note, body, out)),
                (None, End::Durable(reached)) => client
                    .answers
                    .answer(route.number, |out| face.durable(session, route.note, *reached, out)),
                (None, _) => {
                    gateway.counters.failures += 1;
                    client
                        .answers
                        .answer(route.number, |out| face.fail(session, route.note, failure, out));
                }
            }
            mark(dirty, client);
        }
        gateway.recycle(routes);
    }

    /// A crash of the group has taken back what was acknowledged. Who has seen it is told so for
    /// every command that is unanswered, or for the next, and goes. Nobody else notices, but that a
    /// command which was not executed must be sent again.
    fn lose(&mut self, lost: &Lost, gateway: &mut Gateway) {
        let Sessions { face, clients, dirty, .. } = self;
        let after = lost.after;
        for client in clients.iter_mut().filter(|client| client.answers.seen > after.op) {
            if client.answers.loss == Loss::None {
                client.answers.loss = Loss::Untold(after);
                let session = &mut client.session;
                let why = Failure::Lost { after, executed: true };
                client.answers.retract_early(|out| face.fail(session, Note::default(), why, out));
            }
        }
        let dropped = lost.dropped.iter().map(|route| (route, false));
        for (route, executed) in dropped.chain(lost.rest.iter().map(|route| (route, true))) {
            let saw = |client: &mut Client<_>| client.answers.loss != Loss::None;
            let found = clients.get_exact(route.place, route.generation);
            let why = match found.is_some_and(saw) {
                true => Failure::Lost { after, executed },
                false if executed => continue,
                false => Failure::Interrupted,
            };
            let Some(client) = counted_off(clients, route) else { continue };
            gateway.counters.failures += 1;
            let session = &mut client.session;
            client.answers.answer(route.number, |out| face.fail(session, route.note, why, out));
            client.closing |= matches!(why, Failure::Lost { .. });
            mark(dirty, client);
        }
        for client in clients.iter_mut() {
            if client.answers.loss == Loss::Untold(after) {
                if client.closing {
                    client.answers.loss = Loss::Told;
                } else if !client.input.is_empty() {
                    tell_loss(face, client, after);
                    mark(dirty, client);
                }
            }
        }
    }

    /// Sends answers, closes what is done, and waits for what is to be waited for.
    pub fn flush(&mut self, poll: &Poll, now: Now) {
        for door in &mut self.doors {
            door.reopen(poll);
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for place in dirty.drain(..) {
            let Some(client) = self.clients.get_mut(place) else { continue };
            client.dirty = false;
            let alive = client.flush() && client.answers.pending() <= self.output_hard;
            let drained = client.draining;
            if !alive || client.finished() && !client.drain() {
                self.close(place);
                continue;
            }
            if client.draining && !drained {
                let due = now.micros + DRAINING;
                self.draining.push_back((place, client.answers.generation, due));
            }
            let wanted = client.wanted();
            if wanted != client.interest {
                client.interest = wanted;
                let Some(socket) = client.stream.socket() else { continue };
                if poll.change(socket, Token::Client(place), wanted).is_err() {
                    self.close(place);
                }
            }
        }
        self.dirty = dirty;
        while self.draining.front().is_some_and(|&(_, _, due)| due <= now.micros) {
            let (place, generation, _) = self.draining.pop_front().expect("just seen");
            if self.clients.get_exact(place, generation).is_some() {
                self.close(place);
            }
        }
    }

    /// Nobody waits any more for what closed connections have asked.
    pub fn forget_closed(&mut self, gateway: &mut Gateway) {
        for (place, generation) in self.closed.drain(..) {
            gateway.forget(place, generation);
        }
    }

    /// Whether a connection has commands that could be taken at once.
    pub fn resumable(&self, gateway: &Gateway) -> bool {
        let full = gateway.full();
        let mut stalled = self.stalled.iter().filter_map(|&place| self.clients.get(place));
        stalled.any(|client| client.may_resume(full))
    }

    /// Closes a connection without further words. Returns whether there was one.
    pub fn kill(&mut self, id: ConnectionId) -> bool {
        let found = self.clients.iter().find(|(_, client)| client.id == id);
        let place = found.map(|(place, _)| place);
        if let Some(place) = place {
            self.close(place);
        }
        place.is_some()
    }

    /// Whether something is still to be sent.
    pub fn owes(&self) -> bool {
        self.clients.iter().any(|(_, client)| client.answers.sendable())
    }
}

/// The connection whose command has ended, unless it has been told already.
#[inline]
fn counted_off<'a, S>(
    clients: &'a mut Slab<Client<S>>,
    route: &Route,
) -> Option<&'a mut Client<S>> {
    let client = clients.get_exact(route.place, route.generation)?;
    if client.answers.loss == Loss::Told {
        return None;
    }
    match route.lane {
        Lane::Write => client.answers.unanswered_writes -= 1,
        Lane::Read => client.answers.unanswered_reads -= 1,
    }
    Some(client)
}

/// Answers the next command of a connection that has seen what is lost, and ends it.
fn tell_loss<F: Face>(face: &mut F, client: &mut Client<F::Session>, after: Viewstamp) {
    let (session, why) = (&mut client.session, Failure::Lost { after, executed: false });
    client.answers.answer_now(|out| face.fail(session, Note::default(), why, out));
    client.answers.loss = Loss::Told;
    client.closing = true;
}

fn mark<S>(dirty: &mut Vec<u32>, client: &mut Client<S>) {
    if !client.dirty {
        client.dirty = true;
        dirty.push(client.answers.place);
    }
}

impl<S: StateMachine> std::fmt::Debug for Desk<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("unanswered", &self.unanswered()).finish()
    }
}
