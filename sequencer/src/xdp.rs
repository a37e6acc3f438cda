//! The XDP sequencer's loader: puts `xdp/sequencer.bpf.c` on the interfaces where messages come in,
//! answers the controller, and opens sessions in the program's maps. Messages never reach it.
//!
//! A copy leaves through each interface behind which the group has a member: two members of a group
//! cannot be behind the same one. IPv4 only; what does not fit one Ethernet frame is not forwarded.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use aya::maps::xdp::DevMapHash;
use aya::maps::{Array, HashMap, MapError, PerCpuArray};
use aya::programs::{ProgramError, Xdp as Program, XdpMode};
use aya::{Ebpf, EbpfError};
use oum::Session;
use smr::GroupId;

use crate::control_plane::{ControlPlane, Error, Plane};
use crate::{Counts, Event, MAX_GROUPS};

/// How long a neighbour may take to say its hardware address.
const NEIGHBOUR: Duration = Duration::from_secs(1);
/// Discards what it is sent; a datagram to it makes the system look for the neighbour.
const DISCARD: u16 = 9;

impl From<EbpfError> for Error {
    fn from(error: EbpfError) -> Error {
        Error::Plane(error.to_string())
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error::Plane(error.to_string())
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Error {
        Error::Plane(error.to_string())
    }
}

/// What runs where messages come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamping {
    /// The sequencer.
    On,
    /// The same without numbers: what sequencing is compared with.
    Off,
}

/// How a member is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    interface: u32,
    to: [u8; 6],
    from: [u8; 6],
}

/// The loaded program, attached as long as this lives.
pub struct Xdp {
    ebpf: Ebpf,
    /// Makes the system look for neighbours.
    outside: UdpSocket,
    /// How members are reached: learnt once, since a controller does not wait for slow sequencers.
    ways: BTreeMap<SocketAddrV4, Way>,
    /// The interfaces of each group's members.
    interfaces: BTreeMap<GroupId, Vec<u32>>,
}

impl Xdp {
    /// Loads the program from `object`, as clang has made it, and attaches it to `interfaces`. The
    /// controller and senders reach it at `listen`, an address of this machine.
    ///
    /// # Errors
    /// Without the privileges, or if the address or an interface cannot be had.
    pub fn open(
        object: &Path,
        listen: SocketAddrV4,
        interfaces: &[&str],
        stamping: Stamping,
        events: Box<dyn FnMut(&Event) + Send>,
    ) -> Result<ControlPlane<Xdp>, Error> {
        let socket = UdpSocket::bind(listen)?;
        let mut ebpf = Ebpf::load_file(object)?;
        let mut port: Array<_, u32> = Array::try_from(ebpf.map_mut("port").expect("declared"))?;
        port.set(0, u32::from(listen.port().to_be()), 0)?;
        program(&mut ebpf, "fan_out")?.load()?;
        let entrance = if stamping == Stamping::On { "stamp" } else { "unsequenced" };
        let entrance = program(&mut ebpf, entrance)?;
        entrance.load()?;
        for interface in interfaces {
            // Where the driver cannot, the kernel does it later, and slower.
            if entrance.attach(interface, XdpMode::Driver).is_err() {
                entrance.attach(interface, XdpMode::Skb)?;
            }
        }
        let outside = socket.try_clone()?;
        let xdp = Xdp { ebpf, outside, ways: BTreeMap::new(), interfaces: BTreeMap::new() };
        ControlPlane::new(xdp, socket, events)
    }
}

impl Plane for Xdp {
    const GROUPS: usize = MAX_GROUPS;

    fn begin(
        &mut self,
        group: GroupId,
        session: Session,
        members: &[SocketAddrV4],
    ) -> Result<(), Error> {
        let mut ways: Vec<(SocketAddrV4, Way)> = Vec::new();
        for &member in members {
            let way = self.way(member).map_err(|why| Error::Member(member.into(), why))?;
            if ways.iter().any(|(_, known)| known.interface == way.interface) {
                let why = "another member of the group is behind the same interface";
                return Err(Error::Member(member.into(), why.to_owned()));
            }
            ways.push((member, way));
        }
        self.set_members(group, &ways)?;
        // Replaced as a whole: numbers begin with 1 in the same instant.
        let counter = [&[0; 8][..], &session.0.to_ne_bytes(), &[0; 4]].concat();
        let mut counters: HashMap<_, [u8; 8], [u8; 16]> =
            HashMap::try_from(self.ebpf.map_mut("counters").expect("declared"))?;
        counters.insert(group.0.to_be_bytes(), <[u8; 16]>::try_from(counter).expect("16"), 0)?;
        self.interfaces.insert(group, ways.iter().map(|(_, way)| way.interface).collect());
        Ok(())
    }

    fn stamped(&mut self, group: GroupId) -> Result<u64, Error> {
        let counters: HashMap<_, [u8; 8], [u8; 16]> =
            HashMap::try_from(self.ebpf.map("counters").expect("declared"))?;
        match counters.get(&group.0.to_be_bytes(), 0) {
            Ok(counter) => Ok(u64::from_ne_bytes(*counter.first_chunk().expect("16 bytes"))),
            Err(MapError::KeyNotFound) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn counts(&mut self) -> Result<Counts, Error> {
        let counts: PerCpuArray<_, u64> =
            PerCpuArray::try_from(self.ebpf.map("counts").expect("declared"))?;
        let count = |place| counts.get(&place, 0).map(|cpus| cpus.iter().sum::<u64>());
        Ok(Counts {
            stamped: count(0)?,
            unreadable: count(1)?,
            restamped: count(2)?,
            unknown_group: count(3)?,
            ..Counts::default()
        })
    }
}

impl Xdp {
    fn set_members(&mut self, group: GroupId, ways: &[(SocketAddrV4, Way)]) -> Result<(), Error> {
        let fan_out = program(&mut self.ebpf, "fan_out")?.fd()?.try_clone()?;
        let mut interfaces: DevMapHash<_> =
            DevMapHash::try_from(self.ebpf.map_mut("interfaces").expect("declared"))?;
        for (_, way) in ways {
            interfaces
                .insert(way.interface, way.interface, Some(&fan_out), 0)
                .map_err(|error| Error::Plane(error.to_string()))?;
        }
        let mut places: HashMap<_, [u8; 16], [u8; 20]> =
            HashMap::try_from(self.ebpf.map_mut("members").expect("declared"))?;
        let place = |interface: u32| {
            let mut place = [0; 16];
            place[..8].copy_from_slice(&group.0.to_be_bytes());
            place[8..12].copy_from_slice(&interface.to_ne_bytes());
            place
        };
        for &interface in self.interfaces.get(&group).into_iter().flatten() {
            if ways.iter().all(|(_, way)| way.interface != interface) {
                places.remove(&place(interface))?;
            }
        }
        for (member, way) in ways {
            let mut value = [0; 20];
            value[..6].copy_from_slice(&way.to);
            value[6..12].copy_from_slice(&way.from);
            value[12..16].copy_from_slice(&member.ip().octets());
            value[16..18].copy_from_slice(&member.port().to_be_bytes());
            places.insert(place(way.interface), value, 0)?;
        }
        Ok(())
    }

    /// Through which interface a member is reached, and at which hardware address.
    fn way(&mut self, member: SocketAddrV4) -> Result<Way, String> {
        if let Some(&way) = self.ways.get(&member) {
            return Ok(way);
        }
        let way = self.route(member)?;
        self.ways.insert(member, way);
        Ok(way)
    }

    fn route(&self, member: SocketAddrV4) -> Result<Way, String> {
        let route = ip(&["-4", "-o", "route", "get", &member.ip().to_string()])?;
        let device = word_after(&route, "dev").ok_or("no route")?.to_owned();
        let hop = word_after(&route, "via").and_then(|hop| hop.parse().ok());
        let hop: Ipv4Addr = hop.unwrap_or(*member.ip());
        let link = ip(&["-o", "link", "show", "dev", &device])?;
        let interface = link.split(':').next().and_then(|number| number.trim().parse().ok());
        let interface = interface.ok_or("its interface has no number")?;
        let from = word_after(&link, "link/ether").and_then(hardware);
        let from = from.ok_or_else(|| format!("{device} is no Ethernet"))?;
        let end = Instant::now() + NEIGHBOUR;
        loop {
            let text = ip(&["-4", "-o", "neigh", "show", &hop.to_string(), "dev", &device])?;
            if let Some(to) = word_after(&text, "lladdr").and_then(hardware) {
                return Ok(Way { interface, to, from });
            }
            if Instant::now() >= end {
                return Err(format!("{hop} does not answer on {device}"));
            }
            // Only to make the system ask for the neighbour.
            let _ = self.outside.send_to(&[], (hop, DISCARD));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, Error> {
    let program = ebpf.program_mut(name);
    let program = program.ok_or_else(|| Error::Plane(format!("the object has no {name}")))?;
    Ok(program.try_into()?)
}

/// Asks iproute2.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("cannot run ip (iproute2): {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn word_after<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let mut words = text.split_whitespace();
    words.find(|&found| found == word)?;
    words.next()
}

fn hardware(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes?.try_into().ok()
}
