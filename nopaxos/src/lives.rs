//! Incarnation vectors (crash vectors; Michael, Ports, Sharma, Szekeres, DISC 2017): what is known
//! of everybody's lives. A vote or reply counts only while no later life of its sender is known, or
//! a quorum could rest on what a replica said before it crashed and forgot.

use smr::codec::{Malformed, Reader, Writer};
use smr::{Incarnation, MAX_REPLICAS, ReplicaId};

/// The highest incarnation known of each replica of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lives {
    replicas: u8,
    of: [Incarnation; MAX_REPLICAS as usize],
}

impl Lives {
    /// Nothing is known of so many replicas.
    ///
    /// # Panics
    /// If there are none, or more than [`MAX_REPLICAS`].
    pub fn new(replicas: u8) -> Lives {
        assert!((1..=MAX_REPLICAS).contains(&replicas), "1 to 9 replicas");
        Lives { replicas, of: [Incarnation(0); MAX_REPLICAS as usize] }
    }

    /// How many replicas there are.
    pub fn replicas(&self) -> u8 {
        self.replicas
    }

    /// The highest incarnation known of a replica.
    pub fn of(&self, id: ReplicaId) -> Incarnation {
        self.of[id.index()]
    }

    /// This incarnation of a replica is known.
    pub fn learn(&mut self, id: ReplicaId, incarnation: Incarnation) {
        let known = &mut self.of[id.index()];
        *known = incarnation.max(*known);
    }

    /// Everything that `other` knows is known.
    pub fn merge(&mut self, other: &Lives) {
        for (known, theirs) in self.of.iter_mut().zip(&other.of) {
            *known = *theirs.max(known);
        }
    }

    /// Appends the vector.
    pub fn encode(&self, out: &mut Writer<'_>) {
        out.u8(self.replicas);
        self.of[..usize::from(self.replicas)].iter().for_each(|life| out.u64(life.0));
    }

    /// Takes a vector from the front.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(from: &mut Reader) -> Result<Lives, Malformed> {
        let replicas = from.u8()?;
        if !(1..=MAX_REPLICAS).contains(&replicas) {
            return Err(Malformed);
        }
        let mut lives = Lives::new(replicas);
        for life in &mut lives.of[..usize::from(replicas)] {
            *life = Incarnation(from.u64()?);
        }
        Ok(lives)
    }
}
