//! Who counts ([NOPaxos] 5.2.5): each session has its members, whom the controllers name. A replica
//! counts with those of its view's session; before it knows them it counts nobody.
//!
//! A replica that is no member does all that members do, and is not counted: what joins has caught
//! up before it counts, and what has left keeps up until it is stopped.

use oum::{Members, Session};
use smr::Now;

use crate::bug::Bug;
use crate::replica::{Out, Replica, Status};
use crate::view_id::{MAX_SESSION, ViewId};

/// The members of the latest sessions that are known, oldest first. Those of one that is over are
/// needed while the replica is in it.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    of: [(Session, Members); 2],
}

impl Roster {
    /// These count in this session.
    pub(crate) fn learn(&mut self, session: Session, members: Members) {
        let [_, (latest, known)] = self.of;
        if members.is_known() && (session > latest || !known.is_known()) {
            self.of = [self.of[1], (session, members)];
        }
    }

    fn of(&self, session: Session) -> Members {
        let found = self.of.iter().find(|(of, members)| *of == session && members.is_known());
        found.map_or_else(Members::default, |(_, members)| *members)
    }

    fn latest(&self) -> (Session, Members) {
        self.of[1]
    }
}

impl Replica {
    /// Who counts in the present view, if it knows.
    pub fn members(&self) -> Members {
        self.roster.of(self.view.session)
    }

    /// Who counts in the latest session that is known.
    pub(crate) fn latest_members(&self) -> Members {
        self.roster.latest().1
    }

    pub(crate) fn latest_session(&self) -> Session {
        self.roster.latest().0
    }

    /// Whether it knows who counts in its session, and this session or a later one.
    pub fn knows(&self, session: Session) -> bool {
        self.members().is_known() && self.roster.latest().0 >= session
    }

    /// The session of its view, if a quorum has a view of it for good: no later view can be of an
    /// earlier session's members.
    pub fn settled(&self) -> Option<Session> {
        let session = self.view.session;
        let of_session = |view: smr::View| ViewId::from_view(view).session == session;
        let mut views = self.lineage.views().iter().filter(|(view, _)| of_session(*view));
        let &(_, first) = views.next()?;
        let is_stable = self.floor() >= first || self.bug(Bug::SettlesAtOnce);
        (self.status == Status::Normal && is_stable).then_some(session)
    }

    /// How many views its log has of its session. With as many as a lineage keeps (4,096) the place
    /// of the first one is forgotten, and with it the numbers of the session's messages.
    pub fn views_of_session(&self) -> usize {
        let of_session = |view: smr::View| ViewId::from_view(view).session == self.view.session;
        self.lineage.views().iter().rev().take_while(|(view, _)| of_session(*view)).count()
    }

    /// Whose votes and promises a leader counts.
    pub(crate) fn counting(&self) -> Members {
        let members = self.members();
        if self.bug(Bug::CountsStrangers) {
            return Members::all(self.config.replicas);
        }
        if self.bug(Bug::CountsTheNewAlone) {
            return members.changed();
        }
        members
    }

    /// The controllers' word.
    pub(crate) fn on_session(
        &mut self,
        now: Now,
        session: Session,
        members: Members,
        out: &mut Out,
    ) {
        if session.0 > MAX_SESSION || !members.is_known() {
            self.tally.nonsense += 1;
            return;
        }
        self.roster.learn(session, members);
        if session > self.view.session && self.status != Status::Recovering {
            self.start_view_change(now, ViewId { session, ..self.view }, out);
        }
    }

    /// The first view from this one on whose leader may lead, as far as is known.
    pub(crate) fn led(&self, mut view: ViewId) -> ViewId {
        let members = self.roster.of(view.session);
        while members.is_known() && !members.may_lead(view.leader(self.config.replicas)) {
            view = view.next_leader();
        }
        view
    }
}
