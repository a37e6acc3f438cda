//! NOPaxos in a process: the sockets for the group's messages, the receiver that orders them, and
//! what the controllers are told ([NOPaxos] 3.2, 5). Replies, and what replicas say to each other,
//! travel over the connections that all orders have.

use std::collections::VecDeque;
use std::net::{SocketAddr, ToSocketAddrs};

use bytes::Bytes;
use nopaxos::{Effect as Own, Event as Input, Replica, Reply as Vote, Status as Doing, ViewId};
use oum::{CONTROL_MAGIC, Control, Delivery, Header, Members, Receiver, Sender, Session};
use smr::{
    ClientId, ClientMessage, Host, Identity, Now, OrderedBy, Reply, RequestNumber, StateMachine,
    View,
};

use crate::Error;
use crate::controllers::{Controllers, FEW, Letters};
use crate::datagrams::Datagrams;
use crate::event::Event;
use crate::face::{MulticastStatus, Status};
use crate::family::Family;
use crate::joined::Joined;
use crate::options::Multicast;
use crate::poll::{Interest, Poll, Token};
use crate::replica::Effects;

/// How long a missing message is waited for: packets overtake each other. In microseconds.
const PATIENCE: u64 = 200;
/// So many messages wait for a missing one; with more, it is waited for no longer.
const WINDOW: usize = 4_096;
/// Batches of datagrams that are taken in one turn.
const BATCHES_A_TURN: usize = 8;
/// A replica is told again this often of a session that it has not taken up, in microseconds.
const REMINDER: u64 = 50_000;

/// So many requests that came directly are remembered.
const FEW_ASKED: usize = 32;
/// A session with so many leaders should be followed by another.
const MANY_VIEWS: usize = 1_024;

/// A member of the group.
pub(crate) struct Member {
    socket: Datagrams,
    joined: Joined,
    sender: Sender,
    receiver: Receiver,
    controllers: Controllers,
    letters: Letters,
    /// A socket has something to say.
    stirred: bool,
    /// The session of which the replica was told, and when, in [`Now::micros`].
    told: (Session, u64),
    /// The replica must be told.
    news: Option<(Session, Members)>,
    /// The last requests that came directly.
    asked: VecDeque<(ClientId, RequestNumber)>,
    /// The replica has taken part in so many views.
    views: u64,
    /// So many requests that were dropped on the way here have been found at others.
    found: u64,
    /// The session and the sequencer of which operators were told.
    reported: (Session, Option<SocketAddr>),
    /// Datagrams that made no sense.
    unreadable: u64,
    /// Requests that the system did not send.
    unsent: u64,
    /// The time of this turn, in [`Now::micros`].
    now: u64,
    datagram: Vec<u8>,
    reports: Vec<Event>,
}

impl Member {
    /// Opens the socket; the controllers are asked in the first turn.
    pub fn join(
        identity: Identity,
        options: &Multicast,
        poll: &Poll,
        now: Now,
    ) -> Result<Member, Error> {
        let listen = |source| Error::Listen {
            address: options.address.clone(),
            purpose: "ordered messages (UDP)",
            source,
        };
        let socket = Datagrams::bind(&options.address).map_err(listen)?;
        poll.add(&socket, Token::Multicast, Interest::READ).map_err(listen)?;
        let joined = Joined::new(socket.address().map(|own| own.ip()));
        let addresses = options.controllers.iter().map(|name| resolve(name));
        let addresses = addresses.collect::<Result<_, _>>()?;
        Ok(Member {
            socket,
            joined,
            sender: Sender::new(identity.group),
            receiver: Receiver::new(identity.group, PATIENCE, WINDOW),
            controllers: Controllers::new(identity.group, identity.replica, addresses),
            letters: Letters::new(),
            stirred: true,
            told: (Session(0), 0),
            news: None,
            asked: VecDeque::new(),
            views: 0,
            found: 0,
            reported: (Session(0), None),
            unreadable: 0,
            unsent: 0,
            now: now.micros,
            datagram: Vec::new(),
            reports: Vec::new(),
        })
    }

    /// Takes what has arrived.
    fn receive(&mut self) {
        let Member { socket, joined, receiver, controllers, letters, now, unreadable, .. } = self;
        let mut take = |datagram: Bytes, from| {
            if datagram.first() == Some(&CONTROL_MAGIC) {
                match Control::decode(&datagram) {
                    Ok(control) => controllers.on_control(&control, from, letters),
                    Err(_) => *unreadable += 1,
                }
                return;
            }
            match Header::decode(&datagram) {
                Ok((header, payload)) => {
                    controllers.heard(&header);
                    receiver.receive(*now, &header, payload);
                }
                Err(_) => *unreadable += 1,
            }
        };
        // What is left makes the next turn come at once.
        self.stirred = false;
        for socket in [Some(socket), joined.socket()].into_iter().flatten() {
            for _ in 0..BATCHES_A_TURN {
                if !socket.receive(&mut take) {
                    break;
                }
            }
        }
    }

    fn post(&mut self) {
        for (to, control) in self.letters.drain(..) {
            self.datagram.clear();
            control.encode(&mut self.datagram);
            // What is lost is asked or said again.
            self.socket.send(&self.datagram, to);
        }
    }

    /// Compares what the replica has with what it should have.
    fn attend(&mut self, poll: &Poll, replica: &Replica) {
        let heard = self.joined.follow(self.controllers.multicast(), self.now, poll);
        self.reports.extend(heard);
        let known = self.controllers.session();
        let (told, at) = self.told;
        let members = self.controllers.members();
        if self.lags(replica) && (known > told || self.now >= at + REMINDER) {
            self.told = (known, self.now);
            self.news = Some((known, members));
        }
        self.controllers.settle(replica.settled().unwrap_or_default());
        let views = replica.tally().views;
        if std::mem::replace(&mut self.views, views) != views
            && replica.views_of_session() >= MANY_VIEWS
        {
            self.controllers.wear(replica.view_id().session);
        }
        let found = replica.tally().found;
        if found > std::mem::replace(&mut self.found, found) {
            self.controllers.expects(self.now);
        }
        let sequencer = self.controllers.sequencer();
        if let Some(sequencer) = sequencer
            && self.reported != (known, Some(sequencer))
        {
            self.reported = (known, Some(sequencer));
            self.reports.push(Event::Session { session: known.0, sequencer });
        }
    }
}

impl Member {
    /// Whether the replica does not know what the controllers have told.
    fn lags(&self, replica: &Replica) -> bool {
        let known = self.controllers.session();
        let behind = replica.view_id().session < known && replica.status() != Doing::Recovering;
        self.controllers.members().is_known() && (behind || !replica.knows(known))
    }
}

fn resolve(name: &str) -> Result<SocketAddr, Error> {
    let unknown = |source| Error::Controller { name: name.to_owned(), source };
    let mut found = name.to_socket_addrs().map_err(unknown)?;
    found.next().ok_or_else(|| unknown(std::io::ErrorKind::NotFound.into()))
}

impl Family for Member {
    type Replica = Replica;
    type Reply = Vote;

    const ORDERED_BY: OrderedBy = OrderedBy::Nopaxos;
    const IS_ASKED: bool = false;

    fn encode(message: &nopaxos::Message, out: &mut Vec<u8>) {
        message.encode(out);
    }

    fn decode(payload: Bytes) -> Option<nopaxos::Message> {
        nopaxos::Message::decode(payload).ok()
    }

    fn sign(replica: &Replica, reply: Reply) -> Vote {
        replica.sign(reply)
    }

    /// Clients send to replicas only the bodies that are too long for a datagram.
    fn ask<S: StateMachine>(
        host: &mut Host<Replica, S>,
        now: Now,
        messages: impl Iterator<Item = ClientMessage>,
        effects: &mut Effects<Member>,
    ) {
        for message in messages {
            if let ClientMessage::Request { request, .. } = message {
                host.step(now, smr::Input::Event(Input::Body(request)), effects);
            }
        }
    }

    /// Leaders and sessions counted together.
    fn view_number(view: View) -> u64 {
        let ViewId { leader_number, session } = ViewId::from_view(view);
        u64::from(leader_number) + u64::from(session.0)
    }

    fn perform(&mut self, effect: Own) -> Option<Vote> {
        match effect {
            Own::Listen { session, sequence } => {
                self.receiver.listen(session, sequence);
                None
            }
            Own::Reply(vote) => Some(vote),
        }
    }

    /// What was sent to replicas directly should come from the sequencer, too.
    fn note_asked(&mut self, message: &ClientMessage, now: Now) {
        let ClientMessage::Request { request, .. } = message else { return };
        let key = (request.client, request.number);
        // One that comes again has been sent to the sequencer in vain, and more than once.
        let times = if self.asked.contains(&key) { FEW } else { 1 };
        (0..times).for_each(|_| self.controllers.expects(now.micros));
        self.asked.truncate(FEW_ASKED - 1);
        self.asked.push_front(key);
    }

    fn cast(&mut self, payload: &Bytes, now: Now) {
        // Without a sequencer it is lost, and sent again.
        let Some(sequencer) = self.controllers.sequencer() else { return };
        self.datagram.clear();
        self.sender.message(payload, &mut self.datagram);
        self.unsent += u64::from(!self.socket.send(&self.datagram, sequencer));
        self.controllers.expects(now.micros);
    }

    fn next_event(&mut self) -> Option<Input> {
        if let Some((session, members)) = self.news.take() {
            return Some(Input::Session { session, members });
        }
        loop {
            match self.receiver.poll(self.now)? {
                Delivery::Terminated { .. } => {} // the controllers say who counts in the next one
                delivery => return Some(Input::Delivery(delivery)),
            }
        }
    }

    fn stir(&mut self) {
        self.stirred = true;
    }

    fn change(&mut self, _: mu::Change) {}

    fn begin_turn(&mut self, poll: &Poll, replica: &Replica, now: Now) -> bool {
        self.now = now.micros;
        if self.stirred {
            self.receive();
        }
        self.attend(poll, replica);
        self.controllers.on_time(self.now, &mut self.letters);
        self.post();
        false
    }

    fn next_turn(&self, replica: &Replica, _: Now) -> Option<u64> {
        let reminder = self.lags(replica).then_some(self.told.1 + REMINDER);
        let (next, said) = (self.receiver.deadline(), self.controllers.deadline());
        [next, said, self.joined.deadline(), reminder].into_iter().flatten().min()
    }

    fn take_reports(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.reports);
    }

    fn describe(&self, replica: &Replica, status: &mut Status) {
        let (next, _, open_gaps) = replica.waiting();
        let (tally, counts) = (replica.tally(), self.receiver.counts());
        status.multicast = Some(MulticastStatus {
            address: self.socket.address(),
            joined: self.joined.address(),
            session: replica.view_id().session.0,
            members: replica.members().ids().collect(),
            changing: replica.members().is_changing(),
            sequencer: self.controllers.sequencer(),
            next,
            open_gaps,
            missing: tally.missing,
            found: tally.found,
            no_ops: tally.no_ops,
            views: tally.views,
            ignored: counts.stale + counts.foreign + counts.overflow + self.unreadable,
            unsent: self.unsent,
        });
    }
}
