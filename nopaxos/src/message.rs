//! What the replicas of a group say to each other, and its bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

use oum::{Members, Session};
use smr::codec::{Malformed, Reader, Writer};
use smr::{CheckpointChunk, Entry, OpNumber, Viewstamp};

use crate::lives::Lives;
use crate::view_id::{MAX_SESSION, ViewId};

/// Entries of a log: the viewstamp just below them, and they.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suffix {
    /// The viewstamp of the slot before the first entry.
    pub after: Viewstamp,
    /// In the order of their slots, without gaps.
    pub entries: Vec<Arc<Entry>>,
}

impl Suffix {
    /// The viewstamp of the last entry, or `after`.
    pub fn last(&self) -> Viewstamp {
        self.entries.last().map_or(self.after, |entry| entry.viewstamp)
    }
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// SYNC-PREPARE ([NOPaxos] 5.2.4), which also shows that the leader lives. In the place of the
    /// log it says where there are NO-OPs: the requests are the same everywhere.
    SyncPrepare {
        /// What follows tells the slots above this one.
        base: OpNumber,
        /// The leader's log reaches so far.
        through: OpNumber,
        /// The slots above `base` and up to `through` with a NO-OP.
        no_ops: Vec<OpNumber>,
        /// The leader's sync-point.
        sync_point: OpNumber,
        /// f + 1 disks hold the log up to here.
        durable: OpNumber,
    },
    /// The sender needs SYNC-PREPARE from a lower slot on.
    SyncAsk {
        /// Up to here it holds what the leader holds.
        from: OpNumber,
    },
    /// SYNC-REPLY: the sender holds what the leader holds.
    SyncReply {
        /// Up to here.
        through: OpNumber,
        /// Up to here on disk.
        disk: OpNumber,
    },
    /// SYNC-COMMIT.
    SyncCommit {
        /// The leader's sync-point.
        sync_point: OpNumber,
        /// f + 1 disks hold the log up to here.
        durable: OpNumber,
    },
    /// What is in these slots? From a follower to the leader; from the leader, which looks for what
    /// it has not received, to all.
    GapRequest {
        /// The slots.
        slots: Vec<OpNumber>,
    },
    /// This is.
    GapReply {
        /// Slots up to this one are in checkpoints only.
        base: OpNumber,
        /// Slots that the sender holds.
        entries: Vec<Arc<Entry>>,
        /// Slots that were dropped on the way to the sender as well.
        missing: Vec<OpNumber>,
    },
    /// GAP-COMMIT ([NOPaxos] 5.2.2): the leader has a NO-OP in these slots.
    GapCommit {
        /// The slots.
        slots: Vec<OpNumber>,
    },
    /// GAP-COMMIT-REP: so has the sender, and all slots before them are filled.
    GapCommitRep {
        /// The slots.
        slots: Vec<OpNumber>,
    },
    /// The sender does not hear the leader of this view. A view is left when f + 1 say so.
    Suspect,
    /// VIEW-CHANGE-REQ ([NOPaxos] 5.2.3).
    ViewChangeReq,
    /// VIEW-CHANGE: a vote for the view, with the log above the sender's sync-point. The last
    /// entry's view is the last in which the sender was in status Normal.
    ViewChange(Suffix),
    /// START-VIEW: the leader's log above its sync-point, as it is now.
    StartView(Suffix),
    /// The sender needs START-VIEW.
    AskView,
    /// The sender has restarted and forgotten; its present life is in the vector.
    Recover,
    /// The answer, from one that knows that life.
    RecoverReply {
        /// Whether it is in status Normal.
        normal: bool,
        /// Whether it is recovering, too.
        recovering: bool,
    },
    /// The sender lacks what is stable above `after`.
    Fetch {
        /// Its own sync-point.
        after: OpNumber,
        /// The checkpoint that it has pieces of.
        position: Option<Viewstamp>,
        /// The next byte of it.
        offset: u64,
    },
    /// A stretch of what is stable.
    Stable(Suffix),
    /// A piece of a checkpoint.
    StateChunk(CheckpointChunk),
    /// Neither can be had here now.
    StateGone,
}

/// A message between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The sender's view.
    pub view: ViewId,
    /// Who counts in its session, if the sender knows.
    pub members: Members,
    /// The lives that it knows.
    pub lives: Lives,
    /// What it says.
    pub body: Body,
}

/// The least an entry takes.
const ENTRY_BYTES: usize = 57;

fn encode_slots(slots: &[OpNumber], out: &mut Writer<'_>) {
    out.u32(slots.len() as u32);
    slots.iter().for_each(|slot| out.u64(slot.0));
}

fn decode_slots(from: &mut Reader) -> Result<Vec<OpNumber>, Malformed> {
    (0..from.count(8)?).map(|_| from.op()).collect()
}

fn encode_two(first: OpNumber, second: OpNumber, out: &mut Writer<'_>) {
    out.u64(first.0);
    out.u64(second.0);
}

fn encode_piece(position: Option<Viewstamp>, offset: u64, out: &mut Writer<'_>) {
    out.u8(u8::from(position.is_some()));
    out.viewstamp(position.unwrap_or_default());
    out.u64(offset);
}

fn encode_chunk(chunk: &CheckpointChunk, out: &mut Writer<'_>) {
    out.viewstamp(chunk.position);
    out.u64(chunk.offset);
    out.u64(chunk.total);
    out.bytes(&chunk.bytes);
}

fn encode_entries(entries: &[Arc<Entry>], out: &mut Writer<'_>) {
    out.u32(entries.len() as u32);
    entries.iter().for_each(|entry| entry.encode(out));
}

fn decode_entries(from: &mut Reader) -> Result<Vec<Arc<Entry>>, Malformed> {
    // What its sender knew to be stable is not known of this replica's log (`slots::note_stable`).
    let entry = |from: &mut Reader| Entry::decode(from).map(|e| Entry { commit: OpNumber(0), ..e });
    (0..from.count(ENTRY_BYTES)?).map(|_| entry(from).map(Arc::new)).collect()
}

impl Suffix {
    fn encode(&self, out: &mut Writer<'_>) {
        out.viewstamp(self.after);
        encode_entries(&self.entries, out);
    }

    fn decode(from: &mut Reader) -> Result<Suffix, Malformed> {
        let suffix = Suffix { after: from.viewstamp()?, entries: decode_entries(from)? };
        let mut last = suffix.after;
        for entry in &suffix.entries {
            if entry.previous != last {
                return Err(Malformed);
            }
            last = entry.viewstamp;
        }
        Ok(suffix)
    }
}

impl Body {
    fn encode(&self, out: &mut Writer<'_>) {
        match self {
            Body::SyncPrepare { base, through, no_ops, sync_point, durable } => {
                out.u8(0);
                [base, through, sync_point, durable].iter().for_each(|op| out.u64(op.0));
                encode_slots(no_ops, out);
            }
            Body::SyncAsk { from } => {
                out.u8(1);
                out.u64(from.0);
            }
            Body::SyncReply { through, disk } => {
                out.u8(2);
                encode_two(*through, *disk, out);
            }
            Body::SyncCommit { sync_point, durable } => {
                out.u8(3);
                encode_two(*sync_point, *durable, out);
            }
            Body::GapRequest { slots } => {
                out.u8(4);
                encode_slots(slots, out);
            }
            Body::GapReply { base, entries, missing } => {
                out.u8(5);
                out.u64(base.0);
                encode_entries(entries, out);
                encode_slots(missing, out);
            }
            Body::GapCommit { slots } => {
                out.u8(6);
                encode_slots(slots, out);
            }
            Body::GapCommitRep { slots } => {
                out.u8(7);
                encode_slots(slots, out);
            }
            Body::Suspect => out.u8(8),
            Body::ViewChangeReq => out.u8(9),
            Body::ViewChange(suffix) => {
                out.u8(10);
                suffix.encode(out);
            }
            Body::StartView(suffix) => {
                out.u8(11);
                suffix.encode(out);
            }
            Body::AskView => out.u8(12),
            Body::Recover => out.u8(13),
            Body::RecoverReply { normal, recovering } => {
                out.u8(14);
                out.u8(u8::from(*normal));
                out.u8(u8::from(*recovering));
            }
            Body::Fetch { after, position, offset } => {
                out.u8(15);
                out.u64(after.0);
                encode_piece(*position, *offset, out);
            }
            Body::Stable(suffix) => {
                out.u8(16);
                suffix.encode(out);
            }
            Body::StateChunk(chunk) => {
                out.u8(17);
                encode_chunk(chunk, out);
            }
            Body::StateGone => out.u8(18),
        }
    }

    fn decode(from: &mut Reader) -> Result<Body, Malformed> {
        Ok(match from.u8()? {
            0 => {
                let (base, through) = (from.op()?, from.op()?);
                let (sync_point, durable) = (from.op()?, from.op()?);
                let no_ops = decode_slots(from)?;
                Body::SyncPrepare { base, through, no_ops, sync_point, durable }
            }
            1 => Body::SyncAsk { from: from.op()? },
            2 => Body::SyncReply { through: from.op()?, disk: from.op()? },
            3 => Body::SyncCommit { sync_point: from.op()?, durable: from.op()? },
            4 => Body::GapRequest { slots: decode_slots(from)? },
            5 => {
                let (base, entries) = (from.op()?, decode_entries(from)?);
                Body::GapReply { base, entries, missing: decode_slots(from)? }
            }
            6 => Body::GapCommit { slots: decode_slots(from)? },
            7 => Body::GapCommitRep { slots: decode_slots(from)? },
            8 => Body::Suspect,
            9 => Body::ViewChangeReq,
            10 => Body::ViewChange(Suffix::decode(from)?),
            11 => Body::StartView(Suffix::decode(from)?),
            12 => Body::AskView,
            13 => Body::Recover,
            14 => Body::RecoverReply { normal: from.u8()? == 1, recovering: from.u8()? == 1 },
            15 => {
                let (after, some) = (from.op()?, from.u8()? == 1);
                let position = Some(from.viewstamp()?).filter(|_| some);
                Body::Fetch { after, position, offset: from.u64()? }
            }
            16 => Body::Stable(Suffix::decode(from)?),
            17 => Body::StateChunk(CheckpointChunk {
                position: from.viewstamp()?,
                offset: from.u64()?,
                total: from.u64()?,
                bytes: from.bytes()?,
            }),
            18 => Body::StateGone,
            _ => return Err(Malformed),
        })
    }
}

impl Message {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        out.u32(self.view.leader_number);
        out.u32(self.view.session.0);
        self.members.encode(&mut out);
        self.lives.encode(&mut out);
        self.body.encode(&mut out);
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// If the bytes are none.
    pub fn decode(bytes: Bytes) -> Result<Message, Malformed> {
        let mut from = Reader::new(bytes);
        let view = ViewId { leader_number: from.u32()?, session: Session(from.u32()?) };
        if view.session.0 > MAX_SESSION {
            return Err(Malformed);
        }
        let (members, lives) = (Members::decode(&mut from)?, Lives::decode(&mut from)?);
        let body = Body::decode(&mut from)?;
        from.finish()?;
        Ok(Message { view, members, lives, body })
    }
}
