//! The controllers' commands and answers: a line of words each, for programs and people alike. The
//! same lines are requests, answers and checkpoints.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::net::{SocketAddr, SocketAddrV4};

use oum::{Life, Members, Session};
use smr::{GroupId, MAX_REPLICAS, ReplicaId};

use crate::config::Group;

/// The longest line of a command, in bytes.
pub const MAX_LINE: usize = 1024;

/// What may be asked of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `sequencer ADDRESS`: this sequencer may be chosen.
    Sequencer(SocketAddr),
    /// `forget ADDRESS`: it may no longer be chosen.
    Forget(SocketAddr),
    /// `group ID MEMBER,MEMBER,...[@MULTICAST]`: there is this group. One that exists stays as it
    /// is.
    Create(GroupId, Addresses),
    /// `alter ID MEMBER,MEMBER,...[@MULTICAST]`: the group's replicas have these addresses from its
    /// next session on, which begins now. Their number stays.
    Alter(GroupId, Addresses),
    /// `count ID REPLICA,REPLICA,...`: of the group's replicas these count from now on. Two
    /// sessions begin for that, the second one when the first has settled.
    Count(GroupId, Members),
    /// `settle ID PRESENT`: if the group's session is `PRESENT`, in which its members change, they
    /// have changed.
    Settle {
        /// The group.
        group: GroupId,
        /// Its session.
        present: Session,
    },
    /// `next ID PRESENT ADDRESS LIFE`: if the group's session is `PRESENT`, the next one belongs to
    /// this life of this sequencer.
    Next {
        /// The group.
        group: GroupId,
        /// Its session.
        present: Session,
        /// The next session's sequencer.
        sequencer: SocketAddr,
        /// Which life of it.
        life: Life,
    },
    /// `show`: everything.
    Show,
}

/// Where a group's replicas are reached: `MEMBER,MEMBER,...[@MULTICAST]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Their own sockets, by id.
    pub members: Vec<SocketAddr>,
    /// The multicast address that they hear, too, if they do.
    pub multicast: Option<SocketAddrV4>,
}

/// Why a line is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError(&'static str);

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ParseError {}

const USAGE: ParseError = ParseError(
    "expected one of: show | status | sequencer ADDRESS | forget ADDRESS | \
     group ID MEMBER,...[@MULTICAST] | alter ID MEMBER,...[@MULTICAST] | count ID REPLICA,... | \
     settle ID PRESENT | next ID PRESENT ADDRESS LIFE",
);
const BAD_ADDRESS: ParseError = ParseError("an address is IP:PORT, as 10.0.0.1:7700 or [::1]:7700");
const BAD_ID: ParseError = ParseError("a group's id is 1 to 16 hexadecimal digits, and not zero");
const BAD_MEMBERS: ParseError = ParseError(
    "a group has 1 to 9 members, different ones, separated by commas; a multicast address that \
     they hear, too, follows after an @",
);
const BAD_MULTICAST: ParseError = ParseError(
    "a multicast address is IP:PORT with an IP from 224.0.0.0 to 239.255.255.255, as \
     239.77.0.1:7650",
);
const MIXED: ParseError =
    ParseError("members with a multicast address, which is of IPv4, have addresses of IPv4");
const BAD_REPLICAS: ParseError =
    ParseError("who counts is a list of ids of replicas, 0 to 8, separated by commas");
const BAD_NUMBER: ParseError =
    ParseError("a session is a decimal number, a life up to 16 hexadecimal digits");

fn address(word: &str) -> Result<SocketAddr, ParseError> {
    word.parse().map_err(|_| BAD_ADDRESS)
}

/// Reads a group's id.
///
/// # Errors
/// If it is none.
pub fn group_id(word: &str) -> Result<GroupId, ParseError> {
    let id = u64::from_str_radix(word, 16).map_err(|_| BAD_ID)?;
    if id == 0 || word.starts_with('+') { Err(BAD_ID) } else { Ok(GroupId(id)) }
}

impl Addresses {
    /// Addresses as they may be.
    ///
    /// # Errors
    /// If there is no member, one is named twice or is a multicast address, or there are more than
    /// there may be; if `multicast` is no multicast address, or the members cannot hear it.
    pub fn new(
        members: Vec<SocketAddr>,
        multicast: Option<SocketAddr>,
    ) -> Result<Addresses, ParseError> {
        let different: BTreeSet<&SocketAddr> = members.iter().collect();
        let fits = (1..=usize::from(MAX_REPLICAS)).contains(&members.len());
        let is_own = members.iter().all(|member| !member.ip().is_multicast());
        if !fits || !is_own || different.len() < members.len() {
            return Err(BAD_MEMBERS);
        }
        let multicast = match multicast {
            None => None,
            Some(SocketAddr::V4(at)) if at.ip().is_multicast() && at.port() > 0 => Some(at),
            Some(_) => return Err(BAD_MULTICAST),
        };
        if multicast.is_some() && members.iter().any(SocketAddr::is_ipv6) {
            return Err(MIXED);
        }
        Ok(Addresses { members, multicast })
    }

    fn read(word: &str) -> Result<Addresses, ParseError> {
        let (list, multicast) = match word.split_once('@') {
            Some((list, multicast)) => (list, Some(multicast)),
            None => (word, None),
        };
        let multicast =
            multicast.map(|word| word.parse().map_err(|_| BAD_MULTICAST)).transpose()?;
        Addresses::new(list.split(',').map(address).collect::<Result<_, _>>()?, multicast)
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.members))?;
        self.multicast.map_or(Ok(()), |at| write!(f, "@{at}"))
    }
}

/// Reads who counts.
fn counting(word: &str) -> Result<Members, ParseError> {
    let id = |word: &str| match word.parse() {
        Ok(id) if id < MAX_REPLICAS => Ok(ReplicaId(id)),
        _ => Err(BAD_REPLICAS),
    };
    Ok(Members::of(word.split(',').map(id).collect::<Result<Vec<_>, _>>()?))
}

/// Writes the ids of those that count, or will.
fn listed(members: Members) -> String {
    let ids: Vec<String> = members.ids().map(|id| id.0.to_string()).collect();
    ids.join(",")
}

fn session(word: &str) -> Result<Session, ParseError> {
    word.parse().map(Session).map_err(|_| BAD_NUMBER)
}

fn life(word: &str) -> Result<Life, ParseError> {
    u64::from_str_radix(word, 16).map(Life).map_err(|_| BAD_NUMBER)
}

impl Command {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// If it is no command.
    pub fn parse(line: &str) -> Result<Command, ParseError> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words[..] {
            ["show"] => Command::Show,
            ["sequencer", at] => Command::Sequencer(address(at)?),
            ["forget", at] => Command::Forget(address(at)?),
            ["group", id, list] => Command::Create(group_id(id)?, Addresses::read(list)?),
            ["alter", id, list] => Command::Alter(group_id(id)?, Addresses::read(list)?),
            ["count", id, list] => Command::Count(group_id(id)?, counting(list)?),
            ["settle", id, present] => {
                Command::Settle { group: group_id(id)?, present: session(present)? }
            }
            ["next", id, present, at, of] => Command::Next {
                group: group_id(id)?,
                present: session(present)?,
                sequencer: address(at)?,
                life: life(of)?,
            },
            _ => return Err(USAGE),
        })
    }

    /// Whether it changes nothing.
    pub fn reads(&self) -> bool {
        matches!(self, Command::Show)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Sequencer(at) => write!(f, "sequencer {at}"),
            Command::Forget(at) => write!(f, "forget {at}"),
            Command::Create(id, list) => write!(f, "group {:x} {list}", id.0),
            Command::Alter(id, list) => write!(f, "alter {:x} {list}", id.0),
            Command::Count(id, members) => write!(f, "count {:x} {}", id.0, listed(*members)),
            Command::Settle { group, present } => write!(f, "settle {:x} {}", group.0, present.0),
            Command::Next { group, present, sequencer, life } => {
                write!(f, "next {:x} {} {sequencer} {:x}", group.0, present.0, life.0)
            }
            Command::Show => f.write_str("show"),
        }
    }
}

fn joined(list: &[SocketAddr]) -> String {
    let mut text = String::new();
    for (place, at) in list.iter().enumerate() {
        let comma = if place > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{at}");
    }
    text
}

/// `ID SESSION SEQUENCER LIFE ADDRESSES`, the sequencer being `-` before the first session. If not
/// all of them count, those that do follow; while that changes, `BEFORE>AFTER`.
pub fn push_group(id: GroupId, group: &Group, out: &mut String) {
    let _ = match group.sequencer {
        Some((at, life)) => write!(out, "{:x} {} {at} {:x} ", id.0, group.session.0, life.0),
        None => write!(out, "{:x} {} - 0 ", id.0, group.session.0),
    };
    let _ = write!(out, "{}", group.addresses);
    let counting = group.counting;
    if counting.is_changing() {
        let _ = write!(out, " {}>{}", listed(counting.former()), listed(counting));
    } else if counting != Members::all(group.addresses.members.len() as u8) {
        let _ = write!(out, " {}", listed(counting));
    }
}

/// Reads what [`push_group`] has written.
pub fn read_group(text: &str) -> Result<(GroupId, Group), ParseError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [id, number, at, of, list, ref rest @ ..] = words[..] else { return Err(USAGE) };
    let sequencer = match at {
        "-" => None,
        at => Some((address(at)?, life(of)?)),
    };
    let addresses = Addresses::read(list)?;
    let counting = match *rest {
        [] => Members::all(addresses.members.len() as u8),
        [list] => match list.split_once('>') {
            Some((before, after)) => counting(before)?.change_to(counting(after)?),
            None => counting(list)?,
        },
        _ => return Err(USAGE),
    };
    Ok((group_id(id)?, Group { session: session(number)?, sequencer, addresses, counting }))
}

/// Everything that is known, as `show` answers it: `SEQUENCER,...;GROUP;GROUP...`.
pub fn push_all<'a>(
    sequencers: &[SocketAddr],
    groups: impl Iterator<Item = (&'a GroupId, &'a Group)>,
    out: &mut String,
) {
    out.push_str(&joined(sequencers));
    for (&id, group) in groups {
        out.push(';');
        push_group(id, group, out);
    }
}

/// What `show` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The sequencers that may be chosen.
    pub sequencers: Vec<SocketAddr>,
    /// The groups.
    pub groups: Vec<(GroupId, Group)>,
}

/// Reads what [`push_all`] has written.
pub fn read_all(text: &str) -> Result<Shown, ParseError> {
    let mut parts = text.split(';');
    let list = parts.next().unwrap_or_default().trim();
    let words = list.split(',').filter(|word| !word.is_empty());
    let sequencers = words.map(address).collect::<Result<_, _>>()?;
    Ok(Shown { sequencers, groups: parts.map(read_group).collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_they_are_written() {
        let (a, b) = ("10.0.0.1:1".parse().unwrap(), "[fe80::2]:65535".parse().unwrap());
        let multicast = "239.255.0.1:65535".parse().unwrap();
        let group = GroupId(0xfeed);
        let next = Command::Next { group, present: Session(4), sequencer: b, life: Life(u64::MAX) };
        for command in [
            Command::Sequencer(a),
            Command::Forget(b),
            Command::Create(group, Addresses::new(vec![a, b], None).unwrap()),
            Command::Alter(GroupId(u64::MAX), Addresses::new(vec![b], None).unwrap()),
            Command::Alter(group, Addresses::new(vec![a], Some(multicast)).unwrap()),
            Command::Count(group, Members::of([0, 8].map(ReplicaId))),
            Command::Settle { group, present: Session(3) },
            next,
            Command::Show,
        ] {
            assert_eq!(Command::parse(&command.to_string()), Ok(command));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, error) in [
            ("", USAGE),
            ("show all", USAGE),
            ("sequencer", USAGE),
            ("sequencer localhost:1", BAD_ADDRESS),
            ("group 0 10.0.0.1:1", BAD_ID),
            ("group +1 10.0.0.1:1", BAD_ID),
            ("group 1 10.0.0.1:1,10.0.0.1:1", BAD_MEMBERS),
            ("group 1 239.0.0.1:1", BAD_MEMBERS),
            ("group 1 ,", BAD_ADDRESS),
            ("group 1 @239.0.0.1:1", BAD_ADDRESS),
            ("group 1 10.0.0.1:1@", BAD_MULTICAST),
            ("group 1 10.0.0.1:1@239.0.0.1", BAD_MULTICAST),
            ("group 1 10.0.0.1:1@239.0.0.1:0", BAD_MULTICAST),
            ("group 1 10.0.0.1:1@10.0.0.2:1", BAD_MULTICAST),
            ("alter 1 10.0.0.1:1@[ff05::1]:1", BAD_MULTICAST),
            ("alter 1 10.0.0.1:1@239.0.0.1:1@239.0.0.2:1", BAD_MULTICAST),
            ("alter 1 10.0.0.1:1,[::1]:1@239.0.0.1:1", MIXED),
            ("count 1 0,9", BAD_REPLICAS),
            ("count 1 ,", BAD_REPLICAS),
            ("settle 1 x", BAD_NUMBER),
            ("next 1 x 10.0.0.1:1 1", BAD_NUMBER),
            ("next 1 1 10.0.0.1:1 g", BAD_NUMBER),
        ] {
            assert_eq!(Command::parse(line), Err(error), "{line}");
        }
        let ten: Vec<String> = (0..10).map(|n| format!("10.0.0.1:{}", n + 1)).collect();
        assert_eq!(Command::parse(&format!("group 1 {}", ten.join(","))), Err(BAD_MEMBERS));
    }
}
