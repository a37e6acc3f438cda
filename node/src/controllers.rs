//! What a member of a multicast group says to the controllers, and hears from them ([NOPaxos] 3.2,
//! 4.3): which session there is, who its sequencer is, and that it cannot be heard. No socket, no
//! clock.
//!
//! All controllers are asked and told: the one that leads answers. While all is well nothing is
//! said.

use std::net::{SocketAddr, SocketAddrV4};

use oum::{Control, Header, Members, Session};
use smr::{GroupId, ReplicaId};

/// While it does not know the sequencer, a member asks this often, in microseconds.
const ASK_PAUSE: u64 = 20_000;
/// After so long without what should have come the controllers are asked whether there is another
/// session, and again this often. In microseconds.
const SILENCE: u64 = 30_000;
/// When so many messages should have come and not one has, the sequencer is complained of: fewer
/// may have been dropped by chance.
pub(crate) const FEW: u32 = 4;

/// A control message and where it goes.
pub(crate) type Letters = Vec<(SocketAddr, Control)>;

/// A member's knowledge of its sessions.
#[derive(Debug)]
pub(crate) struct Controllers {
    group: GroupId,
    me: ReplicaId,
    addresses: Vec<SocketAddr>,
    /// The highest session that is known, and its sequencer, if that is known.
    session: Session,
    sequencer: Option<SocketAddr>,
    /// The multicast address to be heard, if there is one.
    multicast: Option<SocketAddrV4>,
    /// Who counts in it, if that is known.
    members: Members,
    /// The session that its replica has for good.
    settled: Session,
    /// The session that has had too many leaders.
    worn: Session,
    /// When it asks, while it does not know the sequencer, or asks for another session.
    ask_at: u64,
    /// Since when something should have come, or when that was last asked about.
    waits_since: Option<u64>,
    /// How many messages should have come since one has.
    owed: u32,
}

impl Controllers {
    /// A member that knows nothing yet, and asks at once.
    pub fn new(group: GroupId, me: ReplicaId, addresses: Vec<SocketAddr>) -> Controllers {
        let (session, sequencer) = (Session(0), None);
        Controllers {
            group,
            me,
            addresses,
            session,
            sequencer,
            multicast: None,
            members: Members::default(),
            settled: Session(0),
            worn: Session(0),
            ask_at: 0,
            waits_since: None,
            owed: 0,
        }
    }

    /// The highest session that is known.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Who counts in it, if that is known.
    pub fn members(&self) -> Members {
        self.members
    }

    /// A quorum has a view of this session for good.
    pub fn settle(&mut self, session: Session) {
        self.settled = session;
    }

    /// Where requests go, if that is known.
    pub fn sequencer(&self) -> Option<SocketAddr> {
        self.sequencer
    }

    /// The multicast address to be heard beside the member's own, if there is one.
    pub fn multicast(&self) -> Option<SocketAddrV4> {
        self.multicast
    }

    /// A control message has come.
    pub fn on_control(&mut self, control: &Control, from: SocketAddr, out: &mut Letters) {
        let Control::Listen { group, session, members, sequencer, multicast } = *control else {
            return;
        };
        if group != self.group {
            return;
        }
        if session >= self.session {
            if session > self.session || self.owed < FEW {
                (self.waits_since, self.owed) = (None, 0);
            }
            (self.session, self.sequencer) = (session, Some(sequencer));
            (self.members, self.multicast) = (members, multicast);
        }
        let (session, me) = (self.session, self.me);
        let settled = self.settled == session;
        out.push((from, Control::Listening { group, session, from: me, settled }));
    }

    /// A message has come.
    pub fn heard(&mut self, header: &Header) {
        let Header { group, session, sequence, .. } = *header;
        if group != self.group || sequence == 0 {
            return;
        }
        if session > self.session {
            // It may come from anywhere: only a controller knows who the sequencer is.
            (self.session, self.sequencer) = (session, None);
            self.members = Members::default();
            self.ask_at = 0;
        }
        if session == self.session {
            (self.waits_since, self.owed) = (None, 0);
        }
    }

    /// Something should come from the sequencer: a request was sent to it, or others have got one.
    pub fn expects(&mut self, now: u64) {
        self.waits_since.get_or_insert(now);
        self.owed = self.owed.saturating_add(1);
    }

    /// This session has had too many leaders.
    pub fn wear(&mut self, session: Session) {
        self.worn = session;
    }

    /// Asks and complains, if it is time.
    pub fn on_time(&mut self, now: u64, out: &mut Letters) {
        let (group, session, from) = (self.group, self.session, self.me);
        if self.is_worn() && now >= self.ask_at {
            self.ask_at = now + SILENCE;
            out.extend(self.addresses.iter().map(|&to| (to, Control::Worn { group, session })));
        }
        if self.sequencer.is_none() {
            if now >= self.ask_at {
                self.ask_at = now + ASK_PAUSE;
                out.extend(self.addresses.iter().map(|&to| (to, Control::Ask { group })));
            }
            return;
        }
        if self.waits_since.is_some_and(|since| now >= since + SILENCE) {
            self.waits_since = Some(now);
            for &to in &self.addresses {
                if self.owed >= FEW {
                    out.push((to, Control::Unheard { group, session, from }));
                }
                out.push((to, Control::Ask { group }));
            }
        }
    }

    fn is_worn(&self) -> bool {
        self.sequencer.is_some() && self.worn == self.session
    }

    /// When [`Controllers::on_time`] has something to do.
    pub fn deadline(&self) -> Option<u64> {
        match self.sequencer {
            Some(_) if self.is_worn() => Some(self.ask_at),
            None => Some(self.ask_at),
            Some(_) => self.waits_since.map(|since| since + SILENCE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId(7);
    const ME: ReplicaId = ReplicaId(2);

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn member() -> Controllers {
        Controllers::new(GROUP, ME, vec![at(1), at(2)])
    }

    fn listen(session: u32, sequencer: u16) -> Control {
        let (members, session) = (Members::all(3), Session(session));
        let (sequencer, multicast) = (at(sequencer), None);
        Control::Listen { group: GROUP, session, members, sequencer, multicast }
    }

    fn listening(session: u32, settled: bool) -> Control {
        Control::Listening { group: GROUP, session: Session(session), from: ME, settled }
    }

    fn message(session: u32) -> Header {
        let (session, sequence) = (Session(session), 1);
        Header { group: GROUP, session, sequence, payload_crc: 0, length: 0 }
    }

    fn said(member: &mut Controllers, now: u64) -> Vec<Control> {
        let mut out = Letters::new();
        member.on_time(now, &mut out);
        out.into_iter().map(|(_, control)| control).collect()
    }

    #[test]
    fn it_asks_until_it_is_told_and_is_silent_then() {
        let (mut member, ask) = (member(), Control::Ask { group: GROUP });
        assert_eq!(said(&mut member, 5), [ask.clone(), ask.clone()]);
        assert_eq!(said(&mut member, 6), []);
        let due = member.deadline().unwrap();
        assert_eq!(said(&mut member, due).len(), 2);
        let mut out = Letters::new();
        member.on_control(&listen(3, 9), at(1), &mut out);
        assert_eq!(out, [(at(1), listening(3, false))]);
        member.settle(Session(3));
        member.on_control(&listen(3, 9), at(1), &mut out);
        assert_eq!(out[1], (at(1), listening(3, true)));
        assert_eq!(member.members(), Members::all(3));
        assert_eq!((member.session(), member.sequencer()), (Session(3), Some(at(9))));
        assert_eq!(member.deadline(), None);
        assert_eq!(said(&mut member, 1 << 40), []);
    }

    #[test]
    fn what_is_older_or_of_others_changes_nothing_and_older_news_are_answered() {
        let (mut member, mut out) = (member(), Letters::new());
        member.on_control(&listen(3, 9), at(1), &mut out);
        member.on_control(&listen(2, 8), at(2), &mut out);
        assert_eq!(out[1], (at(2), listening(3, false)));
        let (group, members) = (GroupId(8), Members::all(1));
        let (session, sequencer) = (Session(9), at(4));
        let other = Control::Listen { group, session, members, sequencer, multicast: None };
        member.on_control(&other, at(1), &mut out);
        member.on_control(&Control::Probe { group: GROUP }, at(1), &mut out);
        assert_eq!((out.len(), member.sequencer()), (2, Some(at(9))));
    }

    #[test]
    fn the_multicast_address_is_that_of_the_highest_session_that_was_told() {
        let (mut member, mut out) = (member(), Letters::new());
        let told = |session: u32, multicast: Option<&str>| {
            let (members, sequencer) = (Members::all(3), at(9));
            let multicast = multicast.map(|text| text.parse().expect("an address"));
            let session = Session(session);
            Control::Listen { group: GROUP, session, members, sequencer, multicast }
        };
        let first = Some("239.0.0.1:7");
        for (session, multicast, heard) in [
            (3, first, first),
            (2, Some("239.0.0.2:7"), first),
            (4, Some("239.0.0.3:7"), Some("239.0.0.3:7")),
            (5, None, None),
        ] {
            member.on_control(&told(session, multicast), at(1), &mut out);
            assert_eq!(member.multicast().map(|at| at.to_string()).as_deref(), heard);
        }
    }

    #[test]
    fn a_sequencer_that_gives_nothing_back_is_complained_of() {
        let (mut member, mut out) = (member(), Letters::new());
        member.on_control(&listen(3, 9), at(1), &mut out);
        member.expects(1_000);
        member.expects(2_000);
        assert_eq!(member.deadline(), Some(1_000 + SILENCE));
        member.heard(&message(3));
        assert_eq!(member.deadline(), None, "it has given something back");
        member.expects(50_000);
        let unheard = Control::Unheard { group: GROUP, session: Session(3), from: ME };
        let ask = Control::Ask { group: GROUP };
        assert_eq!(said(&mut member, 50_000 + SILENCE), [ask.clone(), ask.clone()]);
        member.on_control(&listen(3, 9), at(1), &mut out);
        assert_eq!(member.deadline(), None, "one may have been dropped by chance");
        (0..FEW).for_each(|_| member.expects(50_000));
        let all = [unheard.clone(), ask.clone(), unheard, ask];
        assert_eq!(said(&mut member, 50_000 + SILENCE), all);
        assert_eq!(said(&mut member, 50_001 + SILENCE), []);
        member.on_control(&listen(3, 9), at(1), &mut out);
        assert_eq!(said(&mut member, 50_000 + 2 * SILENCE), all);
        member.on_control(&listen(4, 10), at(1), &mut out);
        assert_eq!(member.deadline(), None, "the next one has its time");
    }

    #[test]
    fn a_session_that_is_worn_is_complained_of_until_there_is_another() {
        let (mut member, mut out) = (member(), Letters::new());
        member.on_control(&listen(3, 9), at(1), &mut out);
        member.wear(Session(3));
        let worn = Control::Worn { group: GROUP, session: Session(3) };
        assert_eq!(said(&mut member, 50_000), [worn.clone(), worn.clone()]);
        assert_eq!(said(&mut member, 50_001), []);
        let due = member.deadline().expect("again");
        assert_eq!(said(&mut member, due), [worn.clone(), worn]);
        member.on_control(&listen(4, 9), at(1), &mut out);
        assert_eq!(said(&mut member, 1 << 40), []);
    }

    #[test]
    fn a_later_session_has_another_sequencer() {
        let (mut member, mut out) = (member(), Letters::new());
        member.on_control(&listen(3, 9), at(1), &mut out);
        member.heard(&message(5));
        assert_eq!((member.session(), member.sequencer()), (Session(5), None));
        assert_eq!(said(&mut member, 0).len(), 2);
        member.on_control(&listen(3, 9), at(1), &mut out);
        assert_eq!(member.sequencer(), None);
        member.on_control(&listen(5, 6), at(1), &mut out);
        assert_eq!(member.sequencer(), Some(at(6)));
    }
}
