//! The file `identity`, 44 bytes, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic, `LSID` |
//! | 4 | 4 | version |
//! | 8 | 8 | group id |
//! | 16 | 1 | replica id |
//! | 17 | 1 | number of replicas |
//! | 18 | 1 | durability: 0 memory, 1 sync, 2 lazy |
//! | 19 | 1 | 1 if the disk may have lost something and the replica has not recovered |
//! | 20 | 8 | incarnation; 0 before the first start |
//! | 28 | 8 | the segment that the incarnation began with |
//! | 36 | 4 | how the group orders requests: 0 vsr, 1 mu, 2 nopaxos |
//! | 40 | 4 | crc32c of the bytes before |

use std::path::Path;

use smr::{Durability, GroupId, Identity, Incarnation, MAX_REPLICAS, OrderedBy, ReplicaId};

use crate::Error;
use crate::folder::Folder;

pub(crate) const FILE: &str = "identity";
const MAGIC: [u8; 4] = *b"LSID";
const VERSION: u32 = 2;
const BYTES: usize = 44;

/// Who the replica is, as its disk says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskIdentity {
    /// Its group.
    pub group: GroupId,
    /// Its place in the group.
    pub replica: ReplicaId,
    /// The size of the group, 1 to [`smr::MAX_REPLICAS`].
    pub replicas: u8,
    /// What its group's acknowledgements mean.
    pub durability: Durability,
    /// How its group orders requests: what is on the disk is that protocol's.
    pub ordered_by: OrderedBy,
    /// Which of its lives this is, from 1.
    pub incarnation: Incarnation,
    /// Whether the replica must recover from the others, and has not recorded that it has.
    pub lost: bool,
    pub(crate) first_segment: u64,
}

impl DiskIdentity {
    /// The part that protocols use.
    pub fn identity(&self) -> Identity {
        Identity { group: self.group, replica: self.replica, incarnation: self.incarnation }
    }

    pub(crate) fn store(&self, folder: &Folder) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.group.0.to_le_bytes());
        bytes.push(self.replica.0);
        bytes.push(self.replicas);
        bytes.push(self.durability as u8);
        bytes.push(u8::from(self.lost));
        bytes.extend_from_slice(&self.incarnation.0.to_le_bytes());
        bytes.extend_from_slice(&self.first_segment.to_le_bytes());
        bytes.extend_from_slice(&(self.ordered_by as u32).to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        folder.replace(FILE, &bytes).map_err(|error| {
            if error.is_no_space() {
                return Error::Full { path: folder.path().to_owned(), needed: 4096 };
            }
            error
        })
    }

    pub(crate) fn load(folder: &Folder) -> Result<DiskIdentity, Error> {
        let path = folder.path_of(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => parse(&bytes, &path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::NotFormatted(folder.path().to_owned()))
            }
            Err(e) => Err(Error::os("read", &path, e)),
        }
    }
}

fn parse(bytes: &[u8], path: &Path) -> Result<DiskIdentity, Error> {
    if !bytes.starts_with(&MAGIC) {
        return Err(Error::damaged(path, 0, "it does not begin as an identity"));
    }
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
    if bytes.len() >= 8 && u32_at(4) != VERSION {
        return Err(Error::Version { path: path.to_owned(), found: u32_at(4) });
    }
    if bytes.len() != BYTES {
        return Err(Error::damaged(path, bytes.len() as u64, "its length is wrong"));
    }
    if crc32c::crc32c(&bytes[..40]) != u32_at(40) {
        return Err(Error::damaged(path, 40, "its checksum is wrong"));
    }
    let Some(durability) = Durability::from_u8(bytes[18]) else {
        return Err(Error::damaged(path, 18, "the durability is unknown"));
    };
    let Some(ordered_by) = u8::try_from(u32_at(36)).ok().and_then(OrderedBy::from_u8) else {
        return Err(Error::damaged(path, 36, "the order is unknown"));
    };
    if bytes[17] == 0 || bytes[17] > MAX_REPLICAS || bytes[16] >= bytes[17] {
        return Err(Error::damaged(path, 16, "the replica is not one of the group"));
    }
    Ok(DiskIdentity {
        group: GroupId(u64_at(8)),
        replica: ReplicaId(bytes[16]),
        replicas: bytes[17],
        durability,
        ordered_by,
        incarnation: Incarnation(u64_at(20)),
        lost: bytes[19] != 0,
        first_segment: u64_at(28),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_noticed() {
        let path = std::env::temp_dir().join(format!("io-identity-{}", std::process::id()));
        let folder = Folder::create(&path, crate::Syncing::On).expect("temporary directory");
        let identity = DiskIdentity {
            group: GroupId(5),
            replica: ReplicaId(1),
            replicas: 3,
            durability: Durability::Sync,
            ordered_by: OrderedBy::Mu,
            incarnation: Incarnation(4),
            lost: true,
            first_segment: 9,
        };
        identity.store(&folder).expect("stored");
        assert_eq!(DiskIdentity::load(&folder).expect("loaded"), identity);
        let good = std::fs::read(folder.path_of(FILE)).expect("read");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            parse(&bad, &path).expect_err("a flipped bit must not pass");
        }
        parse(&good[..43], &path).expect_err("too short");
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
