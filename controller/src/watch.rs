//! The leader's watch ([NOPaxos] 4.3): what to probe, when a sequencer has failed, which one comes
//! next, whom to tell. Time and datagrams come in, datagrams and proposals go out.
//!
//! Of each group: its session is *committed*, then *opened* at its sequencer, then *listened to* by
//! its members. The session is given up when its sequencer is silent for `suspect`, has another
//! life, or so many members cannot hear it that there is no quorum without them. While members
//! change, the first session that needs both settles before the second one begins.
//!
//! Invariants: `Open` is sent only for what is committed, with the life that was committed; nobody
//! is told of a session that is not open. One that does not lead sends nothing but `Elsewhere`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use oum::{Control, Life, Session};
use smr::{GroupId, ReplicaId};

use crate::config::Group;
use crate::text::Addresses;

/// What sequencers are probed with, since one answer speaks for all groups: while it has the same
/// life, a sequencer has the sessions that it has opened. No group has this id.
const NO_GROUP: GroupId = GroupId(0);
/// A member's complaint counts for so long, in microseconds.
const COMPLAINT: u64 = 1_000_000;
/// A proposal without an answer is made again after this, in microseconds.
const PROPOSE_AGAIN: u64 = 200_000;
/// A member that does not answer is told less and less often, up to so many probes apart.
const MOST_GAP: u32 = 64;

/// How often, and how long, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Between two probes of a sequencer.
    pub probe: u64,
    /// A sequencer that does not answer the probes of so much time has failed; more than `probe`.
    pub suspect: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { probe: 5_000, suspect: 40_000 }
    }
}

impl Timing {
    /// So many probes without an answer are a silence of `suspect`.
    fn probes(&self) -> u64 {
        self.suspect.div_ceil(self.probe)
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Send this.
    Send(SocketAddr, Control),
    /// Have this committed; the answer comes to [`Watch::learn_group`].
    Propose {
        /// The group.
        group: GroupId,
        /// Only if this is its session.
        present: Session,
        /// The next session's sequencer.
        sequencer: SocketAddr,
        /// Which life of it.
        life: Life,
    },
    /// Have it committed that the members have changed; the answer comes there, too.
    Settle {
        /// The group.
        group: GroupId,
        /// Only if this is its session.
        present: Session,
    },
    /// An operator may want to know this.
    Tell(News),
}

/// Why a session is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The sequencer does not answer.
    Silent,
    /// It has been restarted.
    Restarted,
    /// So many members do not hear it that the others are no majority.
    Unheard,
    /// The session has had too many leaders.
    Worn,
}

/// What has happened to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Its session is given up for this reason.
    Failed(GroupId, Session, SocketAddr, Reason),
    /// It is to be given up, but no other sequencer answers.
    NoOther(GroupId, Session),
    /// Its session is open, so many microseconds after it was committed.
    Opened(GroupId, Session, SocketAddr, u64),
    /// All members know the session, so many microseconds after it was committed.
    Listening(GroupId, Session, u64),
}

/// A sequencer that is probed.
#[derive(Clone, Copy, Debug, Default)]
struct Probed {
    /// The life that it had when it answered last.
    life: Option<Life>,
    /// Probes sent since then. Probes are counted, not time, so that a controller that was stopped
    /// for a while does not take its own silence for the sequencer's.
    unanswered: u64,
}

/// A group whose session is watched.
#[derive(Debug)]
struct Watched {
    group: Group,
    /// When the session, or that this one leads, was learnt.
    since: u64,
    opened: bool,
    /// How often it was to be opened.
    tries: u64,
    /// The members that know the session, a bit each.
    listening: u16,
    /// The members are told again then, and so many probes later again.
    tell: u64,
    gap: u32,
    complaints: BTreeMap<ReplicaId, u64>,
    /// It has had too many leaders.
    worn: bool,
    /// When it was proposed that the members have changed.
    settling: Option<u64>,
    /// When the next session was proposed.
    proposed: Option<u64>,
    /// That no other sequencer answers has been told.
    stuck: bool,
    /// When the group left a sequencer.
    left: BTreeMap<SocketAddr, u64>,
}

/// The watch of one controller.
#[derive(Debug)]
pub struct Watch {
    timing: Timing,
    leads: bool,
    leader: Option<SocketAddr>,
    sequencers: Vec<SocketAddr>,
    /// The sequencers that may be chosen, and those that serve though they may not.
    probed: BTreeMap<SocketAddr, Probed>,
    groups: BTreeMap<GroupId, Watched>,
    next_probe: u64,
}

impl Watch {
    /// The watch of a controller that does not lead.
    pub fn new(timing: Timing) -> Watch {
        Watch {
            timing,
            leads: false,
            leader: None,
            sequencers: Vec::new(),
            probed: BTreeMap::new(),
            groups: BTreeMap::new(),
            next_probe: 0,
        }
    }

    /// This controller leads from now on, or no longer. What is committed must be learnt after it.
    pub fn lead(&mut self, leads: bool) {
        if leads != self.leads {
            self.leads = leads;
            self.groups.clear();
            self.probed.clear();
            self.next_probe = 0;
        }
    }

    /// Whether this controller leads.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Where the leader is, as far as is known.
    pub fn follow(&mut self, leader: Option<SocketAddr>) {
        self.leader = leader;
    }

    /// These sequencers may be chosen.
    pub fn learn_sequencers(&mut self, sequencers: &[SocketAddr]) {
        self.sequencers = sequencers.to_vec();
    }

    /// This is committed.
    pub fn learn_group(&mut self, now: u64, id: GroupId, group: &Group, out: &mut Vec<Act>) {
        if !self.leads {
            return;
        }
        let fresh = Watched {
            group: group.clone(),
            since: now,
            opened: false,
            tries: 0,
            listening: 0,
            tell: now,
            gap: 1,
            complaints: BTreeMap::new(),
            worn: false,
            settling: None,
            proposed: None,
            stuck: false,
            left: BTreeMap::new(),
        };
        match self.groups.get_mut(&id) {
            None => {
                self.groups.insert(id, fresh);
            }
            // What was learnt late.
            Some(known) if group.session < known.group.session => return,
            Some(known) if *group == known.group => return,
            Some(known) => {
                let mut left = std::mem::take(&mut known.left);
                if let Some((at, _)) = known.group.sequencer {
                    left.insert(at, now);
                }
                *known = Watched { left, ..fresh };
            }
        }
        self.serve(now, id, out);
    }

    /// A datagram has come.
    pub fn receive(&mut self, now: u64, from: SocketAddr, control: &Control, out: &mut Vec<Act>) {
        match *control {
            Control::Ask { group } => self.on_ask(from, group, out),
            _ if !self.leads => {}
            Control::Opened { group, session, life, .. } => {
                self.on_opened(now, from, group, session, life, out);
            }
            Control::Listening { group, session, from, settled } => {
                self.on_listening(now, group, session, from, settled, out);
            }
            Control::Unheard { group, session, from } => {
                self.on_unheard(now, group, session, from, out);
            }
            Control::Worn { group, session } => {
                if let Some(watched) = self.groups.get_mut(&group)
                    && session == watched.group.session
                {
                    watched.worn = true;
                    self.judge(now, group, out);
                }
            }
            Control::Open { .. }
            | Control::Probe { .. }
            | Control::Listen { .. }
            | Control::Elsewhere { .. } => {}
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: u64, out: &mut Vec<Act>) {
        if !self.leads {
            return;
        }
        if now >= self.next_probe {
            self.next_probe = now + self.timing.probe;
            self.probe(out);
        }
        let ids: Vec<GroupId> = self.groups.keys().copied().collect();
        for id in ids {
            self.judge(now, id, out);
            self.tell_members(now, id, out);
        }
    }

    /// When [`Watch::tick`] has something to do, in microseconds; it need not be earlier.
    pub fn deadline(&self) -> Option<u64> {
        self.leads.then_some(self.next_probe)
    }

    /// Sequencers are probed, and what is not open is opened.
    fn probe(&mut self, out: &mut Vec<Act>) {
        let serving = self.groups.values().filter_map(|watched| watched.group.sequencer);
        let known = self.sequencers.iter().copied();
        let all: BTreeSet<SocketAddr> = known.chain(serving.map(|(at, _)| at)).collect();
        self.probed.retain(|at, _| all.contains(at));
        for at in all {
            self.probed.entry(at).or_default().unanswered += 1;
            out.push(Act::Send(at, Control::Probe { group: NO_GROUP }));
        }
        for (&id, watched) in &mut self.groups {
            out.extend(watched.open(id));
            watched.tries += 1;
        }
    }

    /// Goes on with a group as soon as its session is known.
    fn serve(&mut self, now: u64, id: GroupId, out: &mut Vec<Act>) {
        out.extend(self.groups[&id].open(id));
        self.judge(now, id, out);
    }

    fn on_ask(&self, from: SocketAddr, group: GroupId, out: &mut Vec<Act>) {
        if self.leads {
            let listen = self.groups.get(&group).and_then(|watched| watched.listen(group));
            out.extend(listen.map(|listen| Act::Send(from, listen)));
        } else if let Some(controller) = self.leader {
            out.push(Act::Send(from, Control::Elsewhere { group, controller }));
        }
    }

    fn on_opened(
        &mut self,
        now: u64,
        from: SocketAddr,
        id: GroupId,
        session: Session,
        life: Life,
        out: &mut Vec<Act>,
    ) {
        let Some(probed) = self.probed.get_mut(&from) else { return };
        probed.unanswered = 0;
        if probed.life.replace(life) != Some(life) {
            // Somebody may have waited for it, or have lost it.
            let ids: Vec<GroupId> = self.groups.keys().copied().collect();
            ids.into_iter().for_each(|id| self.judge(now, id, out));
        }
        let Some(watched) = self.groups.get_mut(&id) else { return };
        let is_it = watched.group.sequencer == Some((from, life));
        if is_it && session == watched.group.session && !watched.opened {
            watched.opened = true;
            out.push(Act::Tell(News::Opened(id, session, from, now - watched.since)));
            self.tell_members(now, id, out);
        }
    }

    fn on_listening(
        &mut self,
        now: u64,
        id: GroupId,
        session: Session,
        member: ReplicaId,
        settled: bool,
        out: &mut Vec<Act>,
    ) {
        let Some(watched) = self.groups.get_mut(&id) else { return };
        if session != watched.group.session || !watched.has(member) {
            return;
        }
        let waits = watched.settling.is_none_or(|at| now >= at + PROPOSE_AGAIN);
        if settled && watched.group.counting.is_changing() && waits {
            watched.settling = Some(now);
            out.push(Act::Settle { group: id, present: session });
        }
        let before = watched.all_listen();
        watched.listening |= 1 << member.0;
        if watched.all_listen() && !before {
            out.push(Act::Tell(News::Listening(id, session, now - watched.since)));
        }
    }

    fn on_unheard(
        &mut self,
        now: u64,
        id: GroupId,
        session: Session,
        member: ReplicaId,
        out: &mut Vec<Act>,
    ) {
        let Some(watched) = self.groups.get_mut(&id) else { return };
        if session == watched.group.session && watched.opened && watched.has(member) {
            watched.complaints.insert(member, now);
            self.judge(now, id, out);
        }
    }

    /// Gives the group's session up if it must be, and begins the first one.
    fn judge(&mut self, now: u64, id: GroupId, out: &mut Vec<Act>) {
        let reason = self.fault(now, id);
        let Some(watched) = self.groups.get_mut(&id) else { return };
        if reason.is_none() && watched.group.sequencer.is_some() {
            (watched.stuck, watched.proposed) = (false, None);
            return;
        }
        if watched.proposed.is_some_and(|at| now < at + PROPOSE_AGAIN) {
            return;
        }
        let present = watched.group.session;
        // A life that is over cannot be chosen, and one that is not heard should not be.
        let stays = matches!(reason, Some(Reason::Restarted | Reason::Worn));
        let shun = watched.group.sequencer.filter(|_| !stays);
        let choice = self.choose(id, shun.map(|(at, _)| at));
        let watched = self.groups.get_mut(&id).expect("just seen");
        let Some((sequencer, life)) = choice else {
            // After a start the answers are on their way.
            let waited = now >= watched.since + self.timing.suspect;
            if waited && !std::mem::replace(&mut watched.stuck, true) {
                out.push(Act::Tell(News::NoOther(id, present)));
            }
            return;
        };
        let is_first = watched.proposed.replace(now).is_none();
        if let (Some(reason), Some((at, _)), true) = (reason, watched.group.sequencer, is_first) {
            out.push(Act::Tell(News::Failed(id, present, at, reason)));
        }
        out.push(Act::Propose { group: id, present, sequencer, life });
    }

    /// Why the group's session must be given up, if it must.
    fn fault(&mut self, now: u64, id: GroupId) -> Option<Reason> {
        let watched = self.groups.get_mut(&id)?;
        let (at, life) = watched.group.sequencer?;
        let probed = self.probed.get(&at).copied().unwrap_or_default();
        if probed.life.is_some_and(|known| known != life) {
            return Some(Reason::Restarted);
        }
        let unanswered = if watched.opened { probed.unanswered } else { watched.tries };
        if unanswered > self.timing.probes() {
            return Some(Reason::Silent);
        }
        watched.complaints.retain(|_, &mut at| now < at + COMPLAINT);
        // Without them there is no quorum.
        let (counting, complaints) = (watched.group.counting, &watched.complaints);
        let enough = counting.meets_quorums(|id| complaints.contains_key(&id));
        enough.then_some(Reason::Unheard).or(watched.worn.then_some(Reason::Worn))
    }

    /// A sequencer that answers: one that the group has not left, or left longest ago; of several,
    /// different groups take different ones.
    fn choose(&self, id: GroupId, shun: Option<SocketAddr>) -> Option<(SocketAddr, Life)> {
        let count = self.sequencers.len().max(1) as u64;
        let left = &self.groups[&id].left;
        let known = self.sequencers.iter().enumerate();
        let answering = known.filter_map(|(place, &at)| {
            let probed = self.probed.get(&at)?;
            let fit = probed.unanswered <= self.timing.probes() && Some(at) != shun;
            let turn = (place as u64 + id.0 % count) % count;
            let rank = (left.get(&at).copied().unwrap_or(0), turn);
            fit.then_some((rank, at, probed.life?))
        });
        let (_, at, life) = answering.min_by_key(|&(rank, ..)| rank)?;
        Some((at, life))
    }

    /// Tells the members of an open session that have not said that they know it; while members
    /// change, all of them, since their answers say when that is done.
    fn tell_members(&mut self, now: u64, id: GroupId, out: &mut Vec<Act>) {
        let probe = self.timing.probe;
        let watched = self.groups.get_mut(&id).expect("a group that is watched");
        let Some(listen) = watched.listen(id) else { return };
        let is_changing = watched.group.counting.is_changing();
        if now < watched.tell || (watched.all_listen() && !is_changing) {
            return;
        }
        for (place, &member) in watched.group.addresses.members.iter().enumerate() {
            if is_changing || watched.listening & (1 << place) == 0 {
                out.push(Act::Send(member, listen.clone()));
            }
        }
        watched.tell = now + u64::from(watched.gap) * probe;
        // The first few may be lost; later ones are for a member that is not there.
        let told_long = now > watched.since + 16 * probe;
        watched.gap = if told_long && !is_changing { (watched.gap * 2).min(MOST_GAP) } else { 1 };
    }
}

impl Watched {
    /// What is to be sent if the session is not open.
    fn open(&self, id: GroupId) -> Option<Act> {
        let (at, life) = self.group.sequencer.filter(|_| !self.opened)?;
        let Group { session, addresses: Addresses { members, multicast }, .. } = self.group.clone();
        Some(Act::Send(at, Control::Open { group: id, session, life, members, multicast }))
    }

    /// What members and those who ask are told, once the session is open.
    fn listen(&self, group: GroupId) -> Option<Control> {
        let (sequencer, _) = self.group.sequencer.filter(|_| self.opened)?;
        let (session, members) = (self.group.session, self.group.counting);
        let multicast = self.group.addresses.multicast;
        Some(Control::Listen { group, session, members, sequencer, multicast })
    }

    fn has(&self, member: ReplicaId) -> bool {
        usize::from(member.0) < self.group.addresses.members.len()
    }

    /// Whether all know the session that count in it: others may not be there.
    fn all_listen(&self) -> bool {
        self.group.counting.counting().all(|id| self.listening & 1 << id.0 != 0)
    }
}
