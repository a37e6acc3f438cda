//! The control plane of `p4/sequencer.p4` on a switch of the model v1model: what a session means in
//! the switch's tables, said in the words of `simple_switch_CLI`.
//!
//! The switch has no addresses but those that it is told: each host behind it is named with its
//! port and its hardware address.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::{Command, Stdio};
use std::str::FromStr;

use oum::Session;
use smr::GroupId;

use crate::control_plane::{ControlPlane, Error, Plane};
use crate::{Counts, Event};

/// `ALL_PORTS` of the program.
const ALL_PORTS: u16 = 4095;
/// Of a session's place, the most members: their copies' numbers begin with 16 times the place.
const COPIES: usize = 16;
/// Before each command, and after the last answer.
const PROMPT: &[u8] = b"RuntimeCmd: ";

/// A host behind the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its address.
    pub address: Ipv4Addr,
    /// The switch's port, below 511.
    pub port: u16,
    /// Its hardware address.
    pub hardware: [u8; 6],
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Host, String> {
        let parts = text.split_once('=').and_then(|(address, rest)| {
            let (port, hardware) = rest.split_once(',')?;
            let port = port.parse().ok().filter(|&port: &u16| port < 511)?;
            let bytes = hardware.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
            let hardware = bytes.collect::<Option<Vec<u8>>>()?.try_into().ok()?;
            Some(Host { address: address.parse().ok()?, port, hardware })
        });
        parts.ok_or_else(|| format!("{text}: not IPv4=PORT,HARDWARE, 10.0.0.3=2,02:00:00:00:00:03"))
    }
}

/// Says a command to the switch, and returns what it answers.
pub type Ask = Box<dyn FnMut(&str) -> io::Result<String> + Send>;

/// `simple_switch_CLI`, which speaks to the switch at a port of this machine.
///
/// # Errors
/// If it cannot be run, or the switch is not there.
pub fn command_line(thrift_port: u16) -> io::Result<Ask> {
    let mut program = Command::new("simple_switch_CLI")
        .args(["--thrift-port", &thrift_port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = program.stdin.take().expect("piped");
    let mut output = program.stdout.take().expect("piped");
    until_prompt(&mut output)?;
    Ok(Box::new(move |command| {
        writeln!(input, "{command}")?;
        until_prompt(&mut output)
    }))
}

/// What comes before the next prompt.
fn until_prompt(output: &mut impl Read) -> io::Result<String> {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(PROMPT) {
        if output.read(&mut byte)? == 0 {
            let said = String::from_utf8_lossy(&text).trim().to_owned();
            return Err(io::Error::other(format!("simple_switch_CLI has ended: {said}")));
        }
        text.push(byte[0]);
    }
    text.truncate(text.len() - PROMPT.len());
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What a session occupies.
#[derive(Debug, Default)]
struct Occupied {
    place: usize,
    /// Handles of the entries of `members`, and of the nodes that replicate.
    entries: Vec<u64>,
    nodes: Vec<u64>,
}

/// A group's entry.
#[derive(Debug)]
struct Entry {
    handle: u64,
    session: Occupied,
}

/// A switch that runs the program.
pub struct Switch {
    ask: Ask,
    hosts: Vec<Host>,
    groups: BTreeMap<GroupId, Entry>,
}

impl Switch {
    /// Empties the switch's tables and begins anew: senders, and the controller through `socket`,
    /// reach the sequencer at `listen`, which is one of `hosts`.
    ///
    /// # Errors
    /// If the switch does not do as it is told.
    pub fn open(
        ask: Ask,
        listen: SocketAddrV4,
        hosts: Vec<Host>,
        socket: UdpSocket,
        events: Box<dyn FnMut(&Event) + Send>,
    ) -> Result<ControlPlane<Switch>, Error> {
        let mut switch = Switch { ask, hosts, groups: BTreeMap::new() };
        switch.host(listen).map_err(|why| Error::Member(listen.into(), why))?;
        switch.tell("reset_state")?;
        let mut ports: Vec<u16> = switch.hosts.iter().map(|host| host.port).collect();
        ports.sort_unstable();
        ports.dedup();
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        switch.tell(&format!("mc_mgrp_create {ALL_PORTS}"))?;
        let node = switch.make(&format!("mc_node_create 0 {}", ports.join(" ")))?;
        switch.tell(&format!("mc_node_associate {ALL_PORTS} {node}"))?;
        for Host { port, hardware, .. } in switch.hosts.clone() {
            switch.make(&format!(
                "table_add SequencerIngress.forwarding SequencerIngress.forward {} => {port}",
                number(&hardware)
            ))?;
        }
        switch.make(&format!(
            "table_add SequencerIngress.entrances SequencerIngress.enter {} {} =>",
            number(&listen.ip().octets()),
            listen.port()
        ))?;
        ControlPlane::new(switch, socket, events)
    }

    fn host(&self, member: SocketAddrV4) -> Result<Host, String> {
        let host = self.hosts.iter().find(|host| host.address == *member.ip());
        host.copied().ok_or_else(|| "it is not one of the named hosts behind the switch".to_owned())
    }

    /// Says a command; returns the answer, unless it is a refusal.
    fn tell(&mut self, command: &str) -> Result<String, Error> {
        let answer = (self.ask)(command).map_err(|error| Error::Plane(error.to_string()))?;
        let refused = |line: &&str| {
            ["Error", "Invalid", "***", "Traceback"].iter().any(|start| line.starts_with(start))
        };
        match answer.lines().find(refused) {
            Some(line) => Err(Error::Plane(format!("{command}: {line}"))),
            None => Ok(answer),
        }
    }

    /// Says a command that makes something; returns its handle.
    fn make(&mut self, command: &str) -> Result<u64, Error> {
        let answer = self.tell(command)?;
        let after = |line: &str| line.split_once("with handle ")?.1.trim().parse().ok();
        let handle = answer.lines().find_map(after);
        handle
            .ok_or_else(|| Error::Plane(format!("{command}: answered without a handle: {answer}")))
    }

    /// Asks for a number: the last one of the answer that follows an equals sign.
    fn read(&mut self, command: &str, end: &str) -> Result<u64, Error> {
        let answer = self.tell(command)?;
        let value = answer.rsplit_once('=').and_then(|(_, value)| {
            let value = value.trim().strip_suffix(end)?;
            value.rsplit(' ').next()?.parse().ok()
        });
        value.ok_or_else(|| Error::Plane(format!("{command}: answered without a number: {answer}")))
    }

    /// Prepares a place and its multicast group for these members.
    fn occupy(&mut self, place: usize, members: &[(Host, u16)]) -> Result<Occupied, Error> {
        let mut session = Occupied { place, ..Occupied::default() };
        let multicast = place + 1;
        self.tell(&format!("register_write SequencerIngress.counters {place} 0"))?;
        self.tell(&format!("mc_mgrp_create {multicast}"))?;
        for (index, (host, udp_port)) in members.iter().enumerate() {
            let copy = COPIES * multicast + index;
            let node = self.make(&format!("mc_node_create {copy} {}", host.port))?;
            self.tell(&format!("mc_node_associate {multicast} {node}"))?;
            session.nodes.push(node);
            session.entries.push(self.make(&format!(
                "table_add SequencerEgress.members SequencerEgress.address {copy} => \
                 {} {} {udp_port}",
                number(&host.hardware),
                number(&host.address.octets())
            ))?);
        }
        Ok(session)
    }

    /// Gives up what a session has occupied.
    fn vacate(&mut self, session: &Occupied) -> Result<(), Error> {
        let multicast = session.place + 1;
        for entry in &session.entries {
            self.tell(&format!("table_delete SequencerEgress.members {entry}"))?;
        }
        for node in &session.nodes {
            self.tell(&format!("mc_node_dissociate {multicast} {node}"))?;
            self.tell(&format!("mc_node_destroy {node}"))?;
        }
        self.tell(&format!("mc_mgrp_destroy {multicast}"))?;
        Ok(())
    }
}

impl Plane for Switch {
    /// The program's table `groups`, and half of its `PLACES`.
    const GROUPS: usize = 256;

    fn begin(
        &mut self,
        group: GroupId,
        session: Session,
        members: &[SocketAddrV4],
    ) -> Result<(), Error> {
        assert!(members.len() <= COPIES, "a control message names no more");
        let host = |&member: &SocketAddrV4| {
            let host = self.host(member).map_err(|why| Error::Member(member.into(), why))?;
            Ok((host, member.port()))
        };
        let members = members.iter().map(host).collect::<Result<Vec<_>, Error>>()?;
        let before = self.groups.remove(&group);
        // Each group has two places in turn.
        let place = match &before {
            Some(entry) => entry.session.place ^ 1,
            None => 2 * self.groups.len(),
        };
        let occupied = self.occupy(place, &members)?;
        let (stamp, data) = ("SequencerIngress.stamp", [session.0 as usize, place, place + 1]);
        let data = data.map(|word| word.to_string()).join(" ");
        // The one change that messages see.
        let handle = match &before {
            Some(Entry { handle, .. }) => {
                self.tell(&format!(
                    "table_modify SequencerIngress.groups {stamp} {handle} {data}"
                ))?;
                *handle
            }
            None => self.make(&format!(
                "table_add SequencerIngress.groups {stamp} {} => {data}",
                number(&group.0.to_be_bytes())
            ))?,
        };
        if let Some(before) = before {
            self.vacate(&before.session)?;
        }
        self.groups.insert(group, Entry { handle, session: occupied });
        Ok(())
    }

    fn stamped(&mut self, group: GroupId) -> Result<u64, Error> {
        let Some(place) = self.groups.get(&group).map(|entry| entry.session.place) else {
            return Ok(0);
        };
        self.read(&format!("register_read SequencerIngress.counters {place}"), "")
    }

    fn counts(&mut self) -> Result<Counts, Error> {
        let mut count = |place: usize| {
            self.read(&format!("counter_read SequencerIngress.counts {place}"), " packets)")
        };
        Ok(Counts {
            stamped: count(0)?,
            unreadable: count(1)?,
            restamped: count(2)?,
            unknown_group: count(3)?,
            ..Counts::default()
        })
    }
}

/// A number of several bytes, as the command line wants it.
fn number(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_with_the_next_prompt() {
        let mut said =
            &b"Obtaining JSON from switch...\nDone\nRuntimeCmd: counters[3]= 17\nRuntimeCmd: "[..];
        assert_eq!(
            until_prompt(&mut said).expect("there"),
            "Obtaining JSON from switch...\nDone\n"
        );
        assert_eq!(until_prompt(&mut said).expect("there"), "counters[3]= 17\n");
        let ended = until_prompt(&mut &b"Could not connect to thrift client\n"[..]);
        let ended = ended.expect_err("it has ended").to_string();
        assert!(ended.contains("Could not connect"), "{ended}");
    }

    #[test]
    fn hosts_are_named_in_full() {
        let host =
            Host { address: Ipv4Addr::new(10, 0, 0, 3), port: 2, hardware: [2, 0, 0, 0, 0, 3] };
        assert_eq!("10.0.0.3=2,02:00:00:00:00:03".parse(), Ok(host));
        for wrong in [
            "10.0.0.3",
            "10.0.0.3=2",
            "10.0.0.3=511,02:00:00:00:00:03",
            "a=2,02:0:0:0:0:3",
            "10.0.0.3=2,02:00:00:00:00",
        ] {
            wrong.parse::<Host>().expect_err(wrong);
        }
    }
}
