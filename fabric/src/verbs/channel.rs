//! A process's way to one exclusive region of a peer, or to all its open ones: a queue pair, what
//! is under way on it, and what waits.
//!
//! A reliable connection carries requests out in order and ends at the first that fails. The
//! channel then connects again. What was under way on a connection that had worked is held until
//! the peer's program has answered, which tells a grant that was revoked from a card that is out of
//! reach: reads are posted again, writes have failed. On a connection that never worked, everything
//! has failed.
//!
//! Invariant: a write under a grant is posted on a connection on which the holder word was read
//! and named the grant. So the connection was made, or its flags were set, for that grant.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use smr::ReplicaId;

use super::abi::status;
use super::block::{Block, Pool};
use super::card::{Completions, Domain};
use super::frame::{End, Hello, Message};
use super::link::Link;
use super::options::Options;
use super::queue::{Allowed, Queue, Request};
use crate::contract::{GrantNumber, RegionId, Status, VerbId};
use crate::holder::Holder;

/// How many requests of a batch share a completion at most: selective signalling.
const SIGNAL_EVERY: usize = 16;

/// A verb that has ended, with the words of a read and their count.
pub(crate) struct Done {
    pub(crate) id: VerbId,
    pub(crate) status: Status,
    pub(crate) grant: Option<GrantNumber>,
    pub(crate) read: Option<(Block, usize)>,
}

/// What every channel of a process uses.
pub(crate) struct Kit {
    pub(crate) me: ReplicaId,
    pub(crate) options: Options,
    /// Of the queue pairs that post, and of the memory that they post from.
    pub(crate) domain: Arc<Domain>,
    pub(crate) completions: Arc<Completions>,
    /// How many requests a queue pair has under way at most.
    pub(crate) depth: usize,
}

/// What a channel needs of its endpoint while it acts.
pub(crate) struct Around<'a> {
    pub(crate) kit: &'a Kit,
    pub(crate) pool: &'a mut Pool,
    pub(crate) done: &'a mut VecDeque<Done>,
    pub(crate) link: &'a mut Link,
    pub(crate) hello: &'a Hello,
}

pub(crate) enum Action {
    Write {
        /// None in open regions.
        under: Option<GrantNumber>,
        block: Block,
    },
    Read {
        block: Block,
    },
    /// A read of the holder word, of the channel's own.
    Verify {
        under: GrantNumber,
        block: Block,
    },
    Renounce,
}

pub(crate) struct Item {
    pub(crate) id: VerbId,
    pub(crate) region: RegionId,
    pub(crate) offset: u32,
    pub(crate) words: u32,
    pub(crate) action: Action,
}

impl Item {
    fn is_read(&self) -> bool {
        matches!(self.action, Action::Read { .. } | Action::Verify { .. })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// The peer has not been attached, or has ended.
    Ended,
    /// The peer has been asked to connect, or will be at `again`.
    Connecting {
        since: Instant,
        again: Option<Instant>,
    },
    Connected,
}

pub(crate) struct Channel {
    /// First, so that it is dropped before the memory of what is under way.
    queue: Option<Queue>,
    number: u8,
    slot: u16,
    state: State,
    /// The peer has not answered for so long that nothing waits for it any more.
    overdue: bool,
    generation: u32,
    own_sequence: u32,
    /// A request has succeeded on this connection.
    fruitful: bool,
    posted: u32,
    /// Posted, in order, numbered.
    flying: VecDeque<(u32, Item)>,
    /// Was under way on a connection that is over.
    held: Vec<Item>,
    waiting: VecDeque<Item>,
    /// The grant that the holder word named on this connection.
    verified: Option<GrantNumber>,
    is_verifying: bool,
    /// Writes under grants up to this one are refused: renounced, or one of them has failed.
    refused: GrantNumber,
    renouncing: Option<(VerbId, Instant)>,
    token: u32,
}

impl Channel {
    /// The channel of that number to a peer. Number 0 is that of the open regions. It takes the
    /// place of the channel to the peer's former process, whose completions may still come.
    pub(crate) fn new(peer: ReplicaId, number: u8, former: Option<&Channel>) -> Channel {
        Channel {
            queue: None,
            number,
            slot: u16::from(peer.0) << 8 | u16::from(number),
            state: State::Ended,
            overdue: false,
            generation: former.map_or(0, |former| former.generation),
            own_sequence: 0,
            fruitful: false,
            posted: 0,
            flying: VecDeque::new(),
            held: Vec::new(),
            waiting: VecDeque::new(),
            verified: None,
            is_verifying: false,
            refused: GrantNumber(0),
            renouncing: None,
            token: 0,
        }
    }

    /// Whether something is under way that ends soon.
    pub(crate) fn is_busy(&self) -> bool {
        let connecting = matches!(self.state, State::Connecting { .. }) && !self.overdue;
        connecting
            || self.renouncing.is_some()
            || !(self.flying.is_empty() && self.waiting.is_empty() && self.held.is_empty())
    }

    /// Whether its peer's messages, or time, may change it soon.
    pub(crate) fn is_unsettled(&self) -> bool {
        matches!(self.state, State::Connecting { .. }) || self.renouncing.is_some()
    }

    /// Connects, for the first time or again.
    pub(crate) fn connect(&mut self, around: &mut Around<'_>) {
        let now = Instant::now();
        self.queue = None;
        self.generation += 1;
        self.fruitful = false;
        self.verified = None;
        self.is_verifying = false;
        let since = if let State::Connecting { since, .. } = self.state { since } else { now };
        let kit = around.kit;
        match Queue::new(&kit.domain, &kit.completions, kit.depth as u32) {
            Ok(queue) => {
                self.own_sequence = fresh_sequence();
                let end = End { number: queue.number(), sequence: self.own_sequence };
                let (channel, generation) = (self.number, self.generation);
                around.link.send(&Message::Connect { channel, generation, end });
                self.queue = Some(queue);
                self.state = State::Connecting { since, again: None };
            }
            // The card has no more of them now.
            Err(_) => self.postpone(since, now, around),
        }
    }

    fn postpone(&mut self, since: Instant, now: Instant, around: &Around<'_>) {
        let again = Some(now + around.kit.options.patience);
        self.state = State::Connecting { since, again };
    }

    /// Posts a verb, at once if none is under way, else with those that the next turn finds.
    pub(crate) fn post(&mut self, item: Item, around: &mut Around<'_>) {
        if self.state == State::Ended || self.overdue {
            return finish(item, Status::Gone, around);
        }
        self.waiting.push_back(item);
        if self.flying.is_empty() || self.waiting.len() >= SIGNAL_EVERY {
            self.flush(around);
        }
    }

    /// Hands what waits to the card, as far as it may go.
    pub(crate) fn flush(&mut self, around: &mut Around<'_>) {
        if self.state != State::Connected {
            return;
        }
        let start = self.flying.len();
        while self.flying.len() < around.kit.depth
            && self.renouncing.is_none()
            && !self.is_verifying
            && let Some(item) = self.waiting.pop_front()
        {
            match item.action {
                Action::Write { under: Some(under), .. } if under <= self.refused => {
                    finish(item, Status::Refused, around);
                }
                Action::Write { under: Some(under), .. } if self.verified != Some(under) => {
                    self.waiting.push_front(item);
                    self.verify(under, around);
                }
                Action::Renounce if !self.flying.is_empty() => {
                    self.waiting.push_front(item);
                    break;
                }
                Action::Renounce => self.renounce(item.id, around),
                _ => self.fly(item),
            }
        }
        if self.flying.len() > start {
            self.launch(start, around);
        }
    }

    fn fly(&mut self, item: Item) {
        self.posted = self.posted.wrapping_add(1);
        self.flying.push_back((self.posted, item));
    }

    fn verify(&mut self, under: GrantNumber, around: &mut Around<'_>) {
        self.is_verifying = true;
        let region = around.hello.geometry.exclusive(self.number);
        let region = region.expect("writes under a grant go to exclusive regions");
        let offset = around.hello.geometry.regions[region.index()].words;
        let action = Action::Verify { under, block: around.pool.take(1) };
        self.fly(Item { id: VerbId(0), region, offset, words: 1, action });
    }

    fn renounce(&mut self, id: VerbId, around: &mut Around<'_>) {
        self.token = self.token.wrapping_add(1);
        self.renouncing = Some((id, Instant::now()));
        around.link.send(&Message::Renounce { channel: self.number, token: self.token });
    }

    /// Posts what flies from there on.
    fn launch(&mut self, start: usize, around: &mut Around<'_>) {
        let base = u64::from(self.slot) << 48 | u64::from(self.generation as u16) << 32;
        let hello = around.hello;
        let count = self.flying.len();
        let mut after_read = self.flying.range(..start).any(|(_, item)| item.is_read());
        let requests = self.flying.range(start..).enumerate().map(|(index, (sequence, item))| {
            let is_read = item.is_read();
            let fence = after_read && !is_read;
            after_read |= is_read;
            let block = match &item.action {
                Action::Write { block, .. }
                | Action::Read { block }
                | Action::Verify { block, .. } => block,
                Action::Renounce => unreachable!("it is not posted to the card"),
            };
            let remote = hello.regions[item.region.index()];
            let at = remote.address + u64::from(item.offset) * 8;
            Request {
                id: base | u64::from(*sequence),
                is_read,
                fence,
                signalled: start + index + 1 == count || (index + 1) % SIGNAL_EVERY == 0,
                local: (block.address(), block.local_key(), item.words * 8),
                remote: (at, remote.key),
            }
        });
        let queue = self.queue.as_mut().expect("it is connected");
        // SAFETY: the blocks are in `flying` until the request has ended or the queue is dropped:
        // `on_completed` takes what has ended, everything else drops the queue first.
        let posted = unsafe { queue.post(requests) };
        if posted.is_err() {
            self.lose(around);
        }
    }

    /// The request of that number has ended, and with it all before it.
    pub(crate) fn on_completed(&mut self, id: u64, ended: u32, around: &mut Around<'_>) {
        if self.generation as u16 != (id >> 32) as u16 || self.queue.is_none() {
            return; // of a former connection
        }
        let sequence = id as u32;
        if !self.flying.iter().any(|&(number, _)| number == sequence) {
            return;
        }
        while self.flying.front().is_some_and(|&(number, _)| number != sequence) {
            let (_, item) = self.flying.pop_front().expect("looked at");
            self.succeed(item, around);
        }
        match ended {
            status::SUCCESS => {
                let (_, item) = self.flying.pop_front().expect("looked at");
                self.succeed(item, around);
                self.flush(around);
            }
            status::REM_INV_REQ_ERR | status::REM_ACCESS_ERR => self.on_denied(around),
            // The card gave up, or the connection ended otherwise. (What is flushed comes behind
            // the failure, which is seen first.)
            _ => self.lose(around),
        }
    }

    /// The connection has failed.
    fn lose(&mut self, around: &mut Around<'_>) {
        if self.fruitful {
            return self.break_off(around);
        }
        self.queue = None;
        self.fail_all(around);
        self.connect(around);
    }

    fn succeed(&mut self, item: Item, around: &mut Around<'_>) {
        self.fruitful = true;
        let Action::Verify { under, block } = item.action else {
            return finish(item, Status::Ok, around);
        };
        let mut word = Vec::new();
        block.take(&mut word, 1);
        around.pool.give(block);
        self.is_verifying = false;
        if Holder::parse(word[0]) == Holder::new(under, around.kit.me.0) {
            self.verified = Some(under);
        } else if let Some(item) = self.waiting.pop_front() {
            // The write that it was read for.
            finish(item, Status::Refused, around);
        }
    }

    /// The peer's card has refused the first request under way.
    fn on_denied(&mut self, around: &mut Around<'_>) {
        self.queue = None;
        let (_, first) = self.flying.pop_front().expect("it has ended");
        match first.action {
            Action::Write { under: Some(under), .. } => {
                self.refused = self.refused.max(under);
                finish(first, Status::Refused, around);
            }
            Action::Verify { block, .. } => around.pool.give(block),
            _ => finish(first, Status::Gone, around),
        }
        for (_, item) in std::mem::take(&mut self.flying).into_iter().rev() {
            match item.action {
                Action::Write { under: Some(_), .. } => finish(item, Status::Refused, around),
                Action::Write { under: None, .. } => finish(item, Status::Gone, around),
                Action::Verify { block, .. } => around.pool.give(block),
                _ => self.waiting.push_front(item),
            }
        }
        self.connect(around);
    }

    /// The connection is over for an unknown reason: the peer's program will say.
    fn break_off(&mut self, around: &mut Around<'_>) {
        self.queue = None;
        self.held.extend(self.flying.drain(..).map(|(_, item)| item));
        self.connect(around);
    }

    /// The peer has connected its end.
    pub(crate) fn on_connected(
        &mut self,
        generation: u32,
        end: End,
        holder: u64,
        around: &mut Around<'_>,
    ) {
        let State::Connecting { since, .. } = self.state else { return };
        let Some(queue) = &self.queue else { return };
        if generation != self.generation {
            return;
        }
        let address = &around.hello.address;
        if queue.connect(address, end, self.own_sequence, Allowed::Nothing).is_err() {
            // There is no way to it now.
            return self.postpone(since, Instant::now(), around);
        }
        self.state = State::Connected;
        self.overdue = false;
        for item in std::mem::take(&mut self.held).into_iter().rev() {
            match item.action {
                Action::Write { under: Some(under), .. } => {
                    self.refused = self.refused.max(under);
                    let holds = Holder::parse(holder) == Holder::new(under, around.kit.me.0);
                    finish(item, if holds { Status::Gone } else { Status::Refused }, around);
                }
                Action::Write { under: None, .. } => finish(item, Status::Gone, around),
                Action::Verify { block, .. } => around.pool.give(block),
                _ => self.waiting.push_front(item),
            }
        }
        self.flush(around);
    }

    /// The peer has ended the connection, or could not make it.
    pub(crate) fn on_broken(&mut self, generation: u32, around: &mut Around<'_>) {
        if generation != self.generation {
            return;
        }
        match self.state {
            State::Connected => self.break_off(around),
            State::Connecting { since, again: None } => {
                self.postpone(since, Instant::now(), around);
            }
            _ => {}
        }
    }

    /// The peer has taken note.
    pub(crate) fn on_renounced(&mut self, token: u32, number: u64, around: &mut Around<'_>) {
        // True whenever it comes: the owner counts on it.
        self.refused = self.refused.max(GrantNumber(number));
        if token == self.token
            && let Some((id, _)) = self.renouncing.take()
        {
            around.done.push_back(Done { id, status: Status::Ok, grant: None, read: None });
            self.flush(around);
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant, around: &mut Around<'_>) {
        let patience = around.kit.options.patience;
        if let Some((id, since)) = self.renouncing
            && now - since > patience
        {
            self.renouncing = None;
            around.done.push_back(Done { id, status: Status::Gone, grant: None, read: None });
            self.flush(around);
        }
        if let State::Connecting { since, again } = self.state {
            if now - since > patience && !self.overdue {
                self.overdue = true;
                self.fail_all(around);
            }
            if again.is_some_and(|again| now >= again) {
                self.connect(around);
            }
        }
    }

    /// The peer has ended.
    pub(crate) fn end(&mut self, around: &mut Around<'_>) {
        self.queue = None;
        self.state = State::Ended;
        if let Some((id, _)) = self.renouncing.take() {
            around.done.push_back(Done { id, status: Status::Gone, grant: None, read: None });
        }
        self.fail_all(around);
    }

    /// Nothing is on a queue pair any more.
    fn fail_all(&mut self, around: &mut Around<'_>) {
        assert!(
            self.queue.is_none() || self.flying.is_empty(),
            "the card may still use the memory"
        );
        let flying = std::mem::take(&mut self.flying).into_iter().map(|(_, item)| item);
        let held = std::mem::take(&mut self.held);
        let waiting = std::mem::take(&mut self.waiting);
        for item in held.into_iter().chain(flying).chain(waiting) {
            if let Action::Write { under: Some(under), .. } = item.action {
                self.refused = self.refused.max(under);
            }
            finish(item, Status::Gone, around);
        }
    }
}

/// Tells the verb's end.
fn finish(item: Item, status: Status, around: &mut Around<'_>) {
    let mut read = None;
    match item.action {
        Action::Read { block } if status == Status::Ok => read = Some((block, item.words as usize)),
        Action::Read { block } => around.pool.give(block),
        Action::Write { block, .. } => around.pool.give(block),
        Action::Verify { block, .. } => return around.pool.give(block),
        Action::Renounce => {}
    }
    around.done.push_back(Done { id: item.id, status, grant: None, read });
}

/// A number for a connection's first packet that packets of a former one are unlikely to have.
pub(crate) fn fresh_sequence() -> u32 {
    RandomState::new().hash_one(0) as u32 & 0xff_ffff
}
