//! Both protocols on one store: Redis at the main entrance, memcached at the side entrance.

use kv::Store;
use node::{ConnectionId, Desk, Face, Failure, Note, Step};
use smr::Now;

use crate::memcached::{self, Memcached};
use crate::redis::{self, Redis};

/// The faces.
pub struct Faces {
    /// At [`node::Options::clients`].
    pub redis: Redis,
    /// At the side entrances.
    pub memcached: Memcached,
}

/// What one of them keeps for a connection.
pub enum Session {
    Redis(redis::Session),
    Memcached(memcached::Session),
}

impl Face for Faces {
    type Service = Store;
    type Session = Session;

    fn open(&mut self, id: ConnectionId, entrance: usize, from: &str, now: Now) -> Session {
        match entrance {
            0 => Session::Redis(self.redis.open(id, from, now)),
            _ => Session::Memcached(Memcached::open()),
        }
    }

    #[inline]
    fn take(&mut self, session: &mut Session, input: &[u8], desk: &mut Desk<'_, Store>) -> Step {
        match session {
            Session::Redis(session) => self.redis.take(session, input, desk),
            Session::Memcached(session) => self.memcached.take(session, input, desk),
        }
    }

    fn items(answer: &[u8]) -> impl Iterator<Item = &[u8]> {
        kv::reply::items(answer)
    }

    #[inline]
    fn answer(&mut self, session: &mut Session, note: Note, item: &[u8], out: &mut Vec<u8>) {
        match session {
            Session::Redis(session) => self.redis.answer(session, note, item, out),
            Session::Memcached(session) => self.memcached.answer(session, note, item, out),
        }
    }

    fn durable(&mut self, session: &mut Session, note: Note, reached: bool, out: &mut Vec<u8>) {
        match session {
            Session::Redis(_) => self.redis.durable(note, reached, out),
            Session::Memcached(_) => unreachable!("it has not asked"),
        }
    }

    fn fail(&mut self, session: &mut Session, note: Note, why: Failure, out: &mut Vec<u8>) {
        match session {
            Session::Redis(session) => self.redis.fail(session, note, why, out),
            Session::Memcached(session) => self.memcached.fail(session, note, why, out),
        }
    }

    fn reject(&mut self, entrance: usize, out: &mut Vec<u8>) {
        match entrance {
            0 => Redis::reject(out),
            _ => Memcached::reject(out),
        }
    }

    fn close(&mut self, id: ConnectionId, session: Session) {
        if let Session::Redis(_) = session {
            self.redis.close(id);
        }
    }
}
