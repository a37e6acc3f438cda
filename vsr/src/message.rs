//! What the replicas of a group say to each other, and its bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;

use smr::codec::{Malformed, Reader, Writer};
use smr::{CheckpointChunk, Entry, Incarnation, MAX_REPLICAS, OpNumber, View, Viewstamp};

/// What the sender of a quorum message knows of everybody's lives, by replica id.
pub type Incarnations = Vec<Incarnation>;

/// How a replica answers one that recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads its view.
    Primary,
    /// It follows its view's primary.
    Backup,
    /// It is between views.
    ViewChange,
    /// It is recovering, too.
    Recovering,
}

/// A message between replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// PREPARE ([Mao] 4.2.3): the entry names its predecessor and carries commit and dp.
    Prepare {
        /// The operation.
        entry: Arc<Entry>,
        /// Every replica holds the log up to here (dpMin).
        all_have: OpNumber,
        /// The newest read confirmation round.
        round: u64,
    },
    /// PREPAREOK and ELECTACCEPTOK: the sender holds the log of this view up to `op` as its
    /// durability demands.
    PrepareOk {
        /// The view.
        view: View,
        /// The last operation acknowledged.
        op: OpNumber,
        /// The last operation on the sender's disk (diskOpMax).
        disk: Viewstamp,
        /// The newest read round heard.
        round: u64,
        /// Lives known to the sender.
        incarnations: Incarnations,
    },
    /// The primary is alive; also carries commitment and read rounds when there is nothing to
    /// prepare.
    Commit {
        /// The view.
        view: View,
        /// The primary's last operation.
        last: Viewstamp,
        /// Committed up to here.
        commit: OpNumber,
        /// dp.
        durable: Viewstamp,
        /// dpMin.
        all_have: OpNumber,
        /// The newest read round.
        round: u64,
    },
    /// A client waits until what was proposed is durable (durability `lazy`).
    Flush {
        /// The view.
        view: View,
    },
    /// Would you vote for me? Nobody's view changes by asking: a replica that hears nobody would
    /// depose every primary.
    PreVote {
        /// Distinguishes attempts.
        attempt: u64,
        /// The asker's opMax.
        last: Viewstamp,
    },
    /// Yes: I do not hear a primary, and your log is no worse than mine.
    PreVoteOk {
        /// Which attempt.
        attempt: u64,
        /// The highest view seen.
        view: View,
    },
    /// ELECTPREPARE ([Mao] 4.2.5, step 2).
    ElectPrepare {
        /// The new view.
        view: View,
        /// The candidate's opMax.
        last: Viewstamp,
    },
    /// ELECTPREPAREOK (step 3).
    ElectPrepareOk {
        /// The new view.
        view: View,
        /// The voter has restarted and may have forgotten what it acknowledged (durability `lazy`).
        forgetful: bool,
        /// Lives known to the voter.
        incarnations: Incarnations,
    },
    /// My log goes on where the candidate's ends: elected over me, it would drop operations that
    /// may be acknowledged (durability `lazy`; [Mao] 4.2.5 ignores the candidate).
    ElectRefuse {
        /// The candidate's view.
        view: View,
    },
    /// ELECTACCEPT (step 5): the view's first entry.
    ElectAccept {
        /// It; `entry.previous` is cOpMax.
        entry: Arc<Entry>,
    },
    /// Your view is over; I have promised this one.
    StaleView {
        /// The view promised.
        view: View,
    },
    /// CATCHUP ([Mao] 4.2.6, step 1).
    CatchUp {
        /// The view whose log is wanted.
        view: View,
        /// tailView.
        tails: Vec<Viewstamp>,
    },
    /// CATCHUPOK (step 2): entries above what the two logs share, oldest first, as far as they fit.
    CatchUpOk {
        /// The view whose log this is.
        view: View,
        /// Its last operation at the sender.
        last: Viewstamp,
        /// Committed up to here.
        commit: OpNumber,
        /// The entries.
        entries: Vec<Arc<Entry>>,
    },
    /// The log no longer reaches down to what the asker has: it needs a checkpoint.
    NeedState {
        /// The view.
        view: View,
    },
    /// Send a piece of a checkpoint.
    FetchState {
        /// Which checkpoint; the newest if none.
        position: Option<Viewstamp>,
        /// From which byte.
        offset: u64,
    },
    /// A piece of a checkpoint.
    StateChunk(CheckpointChunk),
    /// The checkpoint asked for is gone.
    StateGone,
    /// I restarted without my state, or may have forgotten some; my new life is in the frame.
    Recovery {
        /// Distinguishes attempts.
        attempt: u64,
    },
    /// I know your new life.
    RecoveryOk {
        /// Which attempt.
        attempt: u64,
        /// The sender's view.
        view: View,
        /// The sender's opMax.
        last: Viewstamp,
        /// What the sender is doing.
        standing: Standing,
        /// Lives known to the sender.
        incarnations: Incarnations,
    },
}

fn put_incarnations(out: &mut Writer<'_>, incarnations: &[Incarnation]) {
    out.u8(incarnations.len() as u8);
    for incarnation in incarnations {
        out.u64(incarnation.0);
    }
}

fn get_incarnations(from: &mut Reader) -> Result<Incarnations, Malformed> {
    let count = from.u8()?;
    if count > MAX_REPLICAS {
        return Err(Malformed);
    }
    (0..count).map(|_| from.u64().map(Incarnation)).collect()
}

impl Message {
    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer::new(out);
        match self {
            Message::Prepare { .. } | Message::PrepareOk { .. } | Message::Commit { .. } => {
                self.encode_normal(&mut out);
            }
            Message::CatchUp { .. }
            | Message::CatchUpOk { .. }
            | Message::NeedState { .. }
            | Message::FetchState { .. }
            | Message::StateChunk(_)
            | Message::StateGone => self.encode_resync(&mut out),
            _ => self.encode_election(&mut out),
        }
    }

    fn encode_normal(&self, out: &mut Writer<'_>) {
        match self {
            Message::Prepare { entry, all_have, round } => {
                out.u8(0);
                out.u64(all_have.0);
                out.u64(*round);
                entry.encode(out);
            }
            Message::PrepareOk { view, op, disk, round, incarnations } => {
                out.u8(1);
                out.u64(view.0);
                out.u64(op.0);
                out.viewstamp(*disk);
                out.u64(*round);
                put_incarnations(out, incarnations);
            }
            Message::Commit { view, last, commit, durable, all_have, round } => {
                out.u8(2);
                out.u64(view.0);
                out.viewstamp(*last);
                out.u64(commit.0);
                out.viewstamp(*durable);
                out.u64(all_have.0);
                out.u64(*round);
            }
            _ => unreachable!("encode dispatches by kind"),
        }
    }

    fn encode_election(&self, out: &mut Writer<'_>) {
        match self {
            Message::PreVote { attempt, last } => {
                out.u8(3);
                out.u64(*attempt);
                out.viewstamp(*last);
            }
            Message::PreVoteOk { attempt, view } => {
                out.u8(4);
                out.u64(*attempt);
                out.u64(view.0);
            }
            Message::ElectPrepare { view, last } => {
                out.u8(5);
                out.u64(view.0);
                out.viewstamp(*last);
            }
            Message::ElectPrepareOk { view, forgetful, incarnations } => {
                out.u8(6);
                out.u64(view.0);
                out.u8(u8::from(*forgetful));
                put_incarnations(out, incarnations);
            }
            Message::Flush { view } => {
                out.u8(18);
                out.u64(view.0);
            }
            Message::ElectRefuse { view } => {
                out.u8(17);
                out.u64(view.0);
            }
            Message::ElectAccept { entry } => {
                out.u8(7);
                entry.encode(out);
            }
            Message::StaleView { view } => {
                out.u8(8);
                out.u64(view.0);
            }
            Message::Recovery { attempt } => {
                out.u8(9);
                out.u64(*attempt);
            }
            Message::RecoveryOk { attempt, view, last, standing, incarnations } => {
                out.u8(10);
                out.u64(*attempt);
                out.u64(view.0);
                out.viewstamp(*last);
                out.u8(*standing as u8);
                put_incarnations(out, incarnations);
            }
            _ => unreachable!("encode dispatches by kind"),
        }
    }

    fn encode_resync(&self, out: &mut Writer<'_>) {
        match self {
            Message::CatchUp { view, tails } => {
                out.u8(11);
                out.u64(view.0);
                out.u32(tails.len() as u32);
                for tail in tails {
                    out.viewstamp(*tail);
                }
            }
            Message::CatchUpOk { view, last, commit, entries } => {
                out.u8(12);
                out.u64(view.0);
                out.viewstamp(*last);
                out.u64(commit.0);
                out.u32(entries.len() as u32);
                for entry in entries {
                    entry.encode(out);
                }
            }
            Message::NeedState { view } => {
                out.u8(13);
                out.u64(view.0);
            }
            Message::FetchState { position, offset } => {
                out.u8(14);
                out.u8(u8::from(position.is_some()));
                out.viewstamp(position.unwrap_or_default());
                out.u64(*offset);
            }
            Message::StateChunk(chunk) => {
                out.u8(15);
                out.viewstamp(chunk.position);
                out.u64(chunk.offset);
                out.u64(chunk.total);
                out.bytes(&chunk.bytes);
            }
            Message::StateGone => out.u8(16),
            _ => unreachable!("encode dispatches by kind"),
        }
    }

    /// Reads a whole message.
    ///
    /// # Errors
    /// If the bytes are not one.
    pub fn decode(bytes: Bytes) -> Result<Message, Malformed> {
        let mut from = Reader::new(bytes);
        let message = match from.u8()? {
            kind @ 0..=2 => Self::decode_normal(kind, &mut from)?,
            kind @ (3..=10 | 17..=18) => Self::decode_election(kind, &mut from)?,
            kind => Self::decode_resync(kind, &mut from)?,
        };
        from.finish()?;
        Ok(message)
    }

    fn decode_normal(kind: u8, from: &mut Reader) -> Result<Message, Malformed> {
        Ok(match kind {
            0 => {
                let (all_have, round) = (from.op()?, from.u64()?);
                Message::Prepare { entry: Arc::new(Entry::decode(from)?), all_have, round }
            }
            1 => Message::PrepareOk {
                view: from.view()?,
                op: from.op()?,
                disk: from.viewstamp()?,
                round: from.u64()?,
                incarnations: get_incarnations(from)?,
            },
            _ => Message::Commit {
                view: from.view()?,
                last: from.viewstamp()?,
                commit: from.op()?,
                durable: from.viewstamp()?,
                all_have: from.op()?,
                round: from.u64()?,
            },
        })
    }

    fn decode_election(kind: u8, from: &mut Reader) -> Result<Message, Malformed> {
        Ok(match kind {
            3 => Message::PreVote { attempt: from.u64()?, last: from.viewstamp()? },
            4 => Message::PreVoteOk { attempt: from.u64()?, view: from.view()? },
            5 => Message::ElectPrepare { view: from.view()?, last: from.viewstamp()? },
            6 => Message::ElectPrepareOk {
                view: from.view()?,
                forgetful: from.u8()? == 1,
                incarnations: get_incarnations(from)?,
            },
            17 => Message::ElectRefuse { view: from.view()? },
            18 => Message::Flush { view: from.view()? },
            7 => Message::ElectAccept { entry: Arc::new(Entry::decode(from)?) },
            8 => Message::StaleView { view: from.view()? },
            9 => Message::Recovery { attempt: from.u64()? },
            _ => Message::RecoveryOk {
                attempt: from.u64()?,
                view: from.view()?,
                last: from.viewstamp()?,
                standing: match from.u8()? {
                    0 => Standing::Primary,
                    1 => Standing::Backup,
                    2 => Standing::ViewChange,
                    3 => Standing::Recovering,
                    _ => return Err(Malformed),
                },
                incarnations: get_incarnations(from)?,
            },
        })
    }

    fn decode_resync(kind: u8, from: &mut Reader) -> Result<Message, Malformed> {
        Ok(match kind {
            11 => {
                let view = from.view()?;
                let count = from.count(16)?;
                let tails = (0..count).map(|_| from.viewstamp()).collect::<Result<_, _>>()?;
                Message::CatchUp { view, tails }
            }
            12 => {
                let (view, last, commit) = (from.view()?, from.viewstamp()?, from.op()?);
                let count = from.count(57)?;
                let entries = (0..count)
                    .map(|_| Entry::decode(from).map(Arc::new))
                    .collect::<Result<_, _>>()?;
                Message::CatchUpOk { view, last, commit, entries }
            }
            13 => Message::NeedState { view: from.view()? },
            14 => {
                let named = from.u8()? == 1;
                let position = from.viewstamp()?;
                Message::FetchState { position: named.then_some(position), offset: from.u64()? }
            }
            15 => Message::StateChunk(CheckpointChunk {
                position: from.viewstamp()?,
                offset: from.u64()?,
                total: from.u64()?,
                bytes: from.bytes()?,
            }),
            16 => Message::StateGone,
            _ => return Err(Malformed),
        })
    }
}
