//! The socket at which a member hears its group's multicast address, where the controllers have
//! named one: beside its own, through the same interface.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use crate::datagrams::Datagrams;
use crate::event::Event;
use crate::poll::{Interest, Poll, Token};

/// An address that could not be joined is tried again after this, in microseconds: the interface
/// may come up.
const RETRY: u64 = 1_000_000;

/// What has become of the address.
enum State {
    None,
    Hears(SocketAddrV4, Datagrams),
    /// It is tried again then, in [`smr::Now::micros`].
    Failed(SocketAddrV4, u64),
}

/// The socket, if there is one.
pub(crate) struct Joined {
    /// Of the interface; unspecified for one of the system's choice.
    interface: Ipv4Addr,
    state: State,
}

impl Joined {
    /// Hears nothing yet. `own` is the address of the member's own socket.
    pub fn new(own: Option<IpAddr>) -> Joined {
        let interface = match own {
            Some(IpAddr::V4(own)) => own,
            Some(IpAddr::V6(_)) | None => Ipv4Addr::UNSPECIFIED,
        };
        Joined { interface, state: State::None }
    }

    /// The socket.
    pub fn socket(&mut self) -> Option<&mut Datagrams> {
        match &mut self.state {
            State::Hears(_, socket) => Some(socket),
            State::None | State::Failed(..) => None,
        }
    }

    /// The address that is heard.
    pub fn address(&self) -> Option<SocketAddrV4> {
        match self.state {
            State::Hears(at, _) => Some(at),
            State::None | State::Failed(..) => None,
        }
    }

    /// Joins what is wanted and leaves what is not. Returns what operators should know.
    pub fn follow(&mut self, wanted: Option<SocketAddrV4>, now: u64, poll: &Poll) -> Option<Event> {
        let Some(multicast) = wanted else {
            self.state = State::None;
            return None;
        };
        let again = match self.state {
            State::Hears(at, _) if at == multicast => return None,
            State::Failed(at, due) if at == multicast && now < due => return None,
            State::Failed(at, _) => at == multicast,
            State::Hears(..) | State::None => false,
        };
        match self.join(multicast, poll) {
            Ok(socket) => {
                self.state = State::Hears(multicast, socket);
                Some(Event::Joined(multicast))
            }
            Err(error) => {
                self.state = State::Failed(multicast, now + RETRY);
                let (interface, why) = (self.interface, error.to_string());
                (!again).then_some(Event::NotJoined { multicast, interface, why })
            }
        }
    }

    fn join(&self, multicast: SocketAddrV4, poll: &Poll) -> io::Result<Datagrams> {
        let socket = Datagrams::join(multicast, self.interface)?;
        poll.add(&socket, Token::Multicast, Interest::READ)?;
        Ok(socket)
    }

    /// When [`Joined::follow`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        match self.state {
            State::Failed(_, due) => Some(due),
            State::None | State::Hears(..) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_joined_is_told_once_and_tried_again() {
        // For documentation: no interface here has it.
        let interface = Ipv4Addr::new(198, 51, 100, 77);
        let mut joined = Joined::new(Some(interface.into()));
        let poll = Poll::new().expect("a poll");
        let multicast = SocketAddrV4::new(Ipv4Addr::new(239, 77, 2, 1), 7_650);
        let told = joined.follow(Some(multicast), 5, &poll);
        let Some(Event::NotJoined { multicast: at, interface: through, .. }) = &told else {
            panic!("{told:?}")
        };
        assert_eq!((*at, *through), (multicast, interface));
        assert_eq!((joined.address(), joined.deadline()), (None, Some(5 + RETRY)));
        assert_eq!(joined.follow(Some(multicast), 6, &poll), None, "it is not time yet");
        assert_eq!(joined.deadline(), Some(5 + RETRY));
        assert_eq!(joined.follow(Some(multicast), 5 + RETRY, &poll), None, "it was told");
        assert_eq!(joined.deadline(), Some(5 + 2 * RETRY));
        let other = SocketAddrV4::new(*multicast.ip(), 7_651);
        assert!(joined.follow(Some(other), 6 + RETRY, &poll).is_some(), "another one");
        assert_eq!(joined.follow(None, 7 + RETRY, &poll), None);
        assert_eq!(joined.deadline(), None);
    }
}
