//! What two processes say over TCP: who they are, how their queue pairs connect, and what a card
//! cannot say (that a grant is renounced). Little-endian.
//!
//! A frame: length of the body (4 bytes, up to 8,192), CRC-32C of the body (4), the body: kind (1),
//! its fields. A hello begins with a magic word that names the version.

use smr::ReplicaId;

use super::card::Address;
use super::error::Error;
use crate::contract::{Access, Geometry, RegionSpec};

const MAGIC: u64 = u64::from_le_bytes(*b"LSVERB01");
pub(crate) const HEADER: usize = 8;
const LONGEST: usize = 8_192;

/// One end of a connection of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The queue pair's number.
    pub(crate) number: u32,
    /// The number of its first packet.
    pub(crate) sequence: u32,
}

/// Where a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) process: ReplicaId,
    pub(crate) geometry: Geometry,
    pub(crate) address: Address,
    /// By region.
    pub(crate) regions: Vec<Remote>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Hello(Hello),
    /// The other's hello is one of this fabric's.
    Agreed,
    /// Connect this channel of yours with a queue pair of mine. Generations count a channel's
    /// connections.
    Connect {
        channel: u8,
        generation: u32,
        end: End,
    },
    /// Done. The holder word is as it was then; zero for the open regions' channel.
    Connected {
        channel: u8,
        generation: u32,
        end: End,
        holder: u64,
    },
    /// That connection is over, or could not be made.
    Broken {
        channel: u8,
        generation: u32,
    },
    /// No write under a grant of this channel's region, until now, is to come.
    Renounce {
        channel: u8,
        token: u32,
    },
    /// Noted: all grants up to this number.
    Renounced {
        channel: u8,
        token: u32,
        number: u64,
    },
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) -> &mut Writer {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Writer {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn end(&mut self, end: End) -> &mut Writer {
        self.u32(end.number).u32(end.sequence)
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn end(&mut self) -> Option<End> {
        Some(End { number: self.u32()?, sequence: self.u32()? })
    }
}

impl Message {
    /// Appends the message's frame.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut body = Writer(Vec::new());
        match self {
            Message::Hello(hello) => hello.encode(body.u8(1)),
            Message::Agreed => _ = body.u8(2),
            Message::Connect { channel, generation, end } => {
                body.u8(3).u8(*channel).u32(*generation).end(*end);
            }
            Message::Connected { channel, generation, end, holder } => {
                body.u8(4).u8(*channel).u32(*generation).end(*end).u64(*holder);
            }
            Message::Broken { channel, generation } => {
                body.u8(5).u8(*channel).u32(*generation);
            }
            Message::Renounce { channel, token } => {
                body.u8(6).u8(*channel).u32(*token);
            }
            Message::Renounced { channel, token, number } => {
                body.u8(7).u8(*channel).u32(*token).u64(*number);
            }
        }
        assert!(body.0.len() <= LONGEST, "255 regions fit");
        out.extend_from_slice(&(body.0.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&body.0).to_le_bytes());
        out.extend_from_slice(&body.0);
    }

    /// The length of the body that this header announces.
    pub(crate) fn length(header: &[u8; HEADER]) -> Result<usize, Error> {
        let [length, _] = Self::halves(header);
        let length = length as usize;
        let is_sane = (1..=LONGEST).contains(&length);
        if is_sane { Ok(length) } else { Err(Error::NotAPeer { what: "it speaks otherwise" }) }
    }

    fn halves(header: &[u8; HEADER]) -> [u32; 2] {
        let mut reader = Reader(header);
        [(); 2].map(|()| reader.u32().expect("8 bytes"))
    }

    /// The message of a whole frame.
    pub(crate) fn decode(header: &[u8; HEADER], body: &[u8]) -> Result<Message, Error> {
        let [_, sum] = Self::halves(header);
        if crc32c::crc32c(body) != sum {
            return Err(Error::NotAPeer { what: "its checksum is wrong" });
        }
        let mut reader = Reader(body);
        match Self::parse(&mut reader) {
            Some(message) if reader.0.is_empty() => Ok(message),
            _ => Err(Error::NotAPeer { what: "its message makes no sense" }),
        }
    }

    fn parse(body: &mut Reader<'_>) -> Option<Message> {
        let kind = body.u8()?;
        if kind == 1 {
            return Hello::parse(body).map(Message::Hello);
        }
        if kind == 2 {
            return Some(Message::Agreed);
        }
        let (channel, second) = (body.u8()?, body.u32()?);
        let (generation, token) = (second, second);
        Some(match kind {
            3 => Message::Connect { channel, generation, end: body.end()? },
            4 => {
                let (end, holder) = (body.end()?, body.u64()?);
                Message::Connected { channel, generation, end, holder }
            }
            5 => Message::Broken { channel, generation },
            6 => Message::Renounce { channel, token },
            7 => Message::Renounced { channel, token, number: body.u64()? },
            _ => return None,
        })
    }
}

impl Hello {
    fn encode(&self, body: &mut Writer) {
        body.u64(MAGIC).u8(self.process.0).u8(self.geometry.processes);
        body.0.extend_from_slice(&self.address.gid);
        body.u32(u32::from(self.address.lid)).u8(self.address.mtu).u8(self.address.reads);
        body.u8(self.regions.len() as u8);
        for (spec, remote) in self.geometry.regions.iter().zip(&self.regions) {
            body.u8(u8::from(spec.access == Access::Exclusive)).u32(spec.words);
            body.u64(remote.address).u32(remote.key);
        }
    }

    fn parse(body: &mut Reader<'_>) -> Option<Hello> {
        if body.u64()? != MAGIC {
            return None;
        }
        let (process, processes) = (ReplicaId(body.u8()?), body.u8()?);
        let (gid, lid) = (body.bytes()?, u16::try_from(body.u32()?).ok()?);
        let (mtu, reads) = (body.u8()?, body.u8()?);
        let address = Address { gid, lid, mtu, reads };
        let mut specs = Vec::new();
        let mut regions = Vec::new();
        for _ in 0..body.u8()? {
            let access = if body.u8()? == 1 { Access::Exclusive } else { Access::Open };
            specs.push(RegionSpec { access, words: body.u32()? });
            regions.push(Remote { address: body.u64()?, key: body.u32()? });
        }
        let geometry = Geometry { processes, regions: specs };
        Some(Hello { process, geometry, address, regions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(regions: usize) -> Message {
        let spec = RegionSpec { access: Access::Exclusive, words: u32::MAX };
        let geometry = Geometry { processes: 9, regions: vec![spec; regions] };
        let address = Address { gid: [7; 16], lid: 65_000, mtu: 5, reads: 16 };
        let remote = Remote { address: u64::MAX - 7, key: 12 };
        let process = ReplicaId(8);
        Message::Hello(Hello { process, geometry, address, regions: vec![remote; regions] })
    }

    fn all() -> Vec<Message> {
        let end = End { number: 17, sequence: 0xff_ffff };
        let (channel, generation, token) = (255, u32::MAX, 3);
        vec![
            hello(2),
            Message::Agreed,
            Message::Connect { channel, generation, end },
            Message::Connected { channel, generation, end, holder: u64::MAX },
            Message::Broken { channel, generation },
            Message::Renounce { channel, token },
            Message::Renounced { channel, token, number: 9 },
        ]
    }

    fn split(frame: &[u8]) -> (&[u8; HEADER], &[u8]) {
        frame.split_first_chunk().expect("a header")
    }

    #[test]
    fn messages_survive_their_frames() {
        for message in all().into_iter().chain([hello(255)]) {
            let mut frame = Vec::new();
            message.encode(&mut frame);
            let (header, body) = split(&frame);
            assert_eq!(Message::length(header).expect("sane"), body.len());
            assert_eq!(Message::decode(header, body).expect("whole"), message);
        }
    }

    #[test]
    fn nothing_damaged_is_taken() {
        for message in all() {
            let mut frame = Vec::new();
            message.encode(&mut frame);
            for bit in 32..frame.len() * 8 {
                let mut damaged = frame.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let (header, body) = split(&damaged);
                assert!(Message::decode(header, body).is_err(), "bit {bit} of {message:?}");
            }
            // Too short or too long, though its checksum is right.
            for len in (1..frame.len() - HEADER).chain([frame.len() - HEADER + 1]) {
                let mut body = frame[HEADER..].to_vec();
                body.resize(len, 0);
                let mut header = [0; HEADER];
                header[4..].copy_from_slice(&crc32c::crc32c(&body).to_le_bytes());
                assert!(Message::decode(&header, &body).is_err(), "{len} bytes of {message:?}");
            }
        }
        assert!(Message::length(&[0; HEADER]).is_err());
        assert!(Message::length(b"GET / HT").is_err());
    }
}
