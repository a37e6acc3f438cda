//! What the protocol wants done, and what comes of it: messages, the log, checkpoints.

use smr::executor::CheckpointStep;
use smr::{
    ClientMessage, Effect, Incarnation, Input, Outcome, ReplicaId, Reply, Role, To, Viewstamp,
};
use wire::{FIRST_CLIENT, Frame, Kind};

use crate::Error;
use crate::event::Event;
use crate::face::Face;
use crate::family::{EffectOf, Family, MessageOf, Told};
use crate::replica::Core;
use crate::snapshots::Done;

/// Bytes of a checkpoint that are made in one turn. Making them takes tens of microseconds.
const SNAPSHOT_BYTES: usize = 64 << 10;
/// When a checkpoint that found no space is tried again, in microseconds.
const SNAPSHOT_PAUSE: u64 = 1_000_000;

impl<F: Face, P: Family> Core<F, P> {
    pub(crate) fn perform(&mut self, effect: Effect<MessageOf<P>, EffectOf<P>>) {
        match effect {
            Effect::Send(to, message) => {
                self.send(to, Kind::Replica, |out| P::encode(&message, out));
            }
            Effect::Store(batch) => {
                self.issued = batch.number;
                self.disk.store(batch);
            }
            Effect::Flush => self.disk.hurry(),
            Effect::Reply(reply) => self.reply(reply),
            Effect::WriteCheckpoint(position) => self.begin_snapshot(position),
            Effect::ReadCheckpoint { to, position, offset } => {
                self.snapshots.read(to, position, offset);
            }
            Effect::SaveChunk(chunk) => self.snapshots.save(chunk),
            Effect::InstallState(position) => {
                self.snapshotting = false;
                self.snapshot_retry = None;
                self.installing = true;
                self.snapshots.install(position);
            }
            Effect::Protocol(effect) => {
                if let Some(reply) = self.family.perform(effect) {
                    self.send_reply(reply);
                }
            }
        }
    }

    pub(crate) fn send(&mut self, to: To, kind: Kind, payload: impl FnOnce(&mut Vec<u8>)) {
        match self.peers.send(to, kind, payload) {
            Ok(dropped) => self.gateway.counters.dropped_frames += dropped,
            // Requests are bounded well below a frame, and answers by `fit`.
            Err(_) => self.gateway.counters.dropped_frames += 1,
        }
    }

    /// Tells the client what the host answers.
    fn reply(&mut self, mut reply: Reply) {
        if reply.client.gateway != u32::from(self.options.replica.0) {
            fit(&mut reply);
        }
        self.send_reply(P::sign(self.host.protocol(), reply));
    }

    /// Sends a reply to the gateway or the native client that asked.
    fn send_reply(&mut self, reply: P::Reply) {
        let gateway = reply.reply().client.gateway;
        if gateway == u32::from(self.options.replica.0) {
            self.on_reply(reply);
        } else if gateway >= FIRST_CLIENT {
            self.gateway.counters.dropped_frames += u64::from(!self.peers.reply(&reply));
        } else {
            let to = To::One(ReplicaId(gateway as u8));
            self.send(to, Kind::Reply, |out| reply.encode(out));
        }
    }

    fn on_reply(&mut self, reply: P::Reply) {
        reply.reach(&mut self.gateway, self.now);
        self.tell();
    }

    /// A peer has said something.
    pub(crate) fn on_frame(&mut self, frame: Frame) {
        let Frame { header, payload } = frame;
        let (from, incarnation) = (header.from, header.incarnation);
        let sense = match header.kind {
            _ if header.group != self.status.identity.group => false,
            Kind::Replica => self.on_protocol_message(from, incarnation, payload),
            Kind::Client => match ClientMessage::decode(payload) {
                Ok(message) if message.client().gateway == u32::from(from.0) => {
                    self.family.note_asked(&message, self.now);
                    self.on_client_message(message);
                    true
                }
                _ => false,
            },
            Kind::Reply => match P::Reply::decode(payload) {
                Some(reply) => {
                    self.on_reply(reply);
                    true
                }
                None => false,
            },
            Kind::Hello | Kind::Sequencer | Kind::Condition => false,
        };
        self.gateway.counters.nonsense += u64::from(!sense);
    }

    fn on_protocol_message(
        &mut self,
        from: ReplicaId,
        incarnation: Incarnation,
        payload: bytes::Bytes,
    ) -> bool {
        let Some(message) = P::decode(payload) else { return false };
        let input = Input::Message { from, incarnation, message };
        self.host.step(self.now, input, &mut self.effects);
        true
    }

    /// The log's thread has something to say.
    pub(crate) fn on_disk(&mut self) -> Result<(), Error> {
        let progress = self.disk.progress()?;
        self.gateway.counters.stored = progress.batches;
        self.gateway.counters.syncs = progress.syncs;
        match (self.status.disk_full, progress.full) {
            (false, Some(why)) => {
                self.status.disk_full = true;
                (self.events)(&Event::DiskFull(why));
            }
            (true, None) => {
                self.status.disk_full = false;
                (self.events)(&Event::DiskFree);
            }
            _ => {}
        }
        if progress.stored > self.stored {
            self.stored = progress.stored;
            self.host.step(self.now, Input::Stored(progress.stored), &mut self.effects);
        }
        Ok(())
    }

    /// Records that the replica has recovered what its disk had lost, once that is on its disk.
    pub(crate) fn mark_recovered(&mut self) {
        if !self.lost {
            return;
        }
        if matches!(self.status.report.role, Role::Recovering | Role::StateLost) {
            self.recovered_at = None;
        } else if self.stored >= *self.recovered_at.get_or_insert(self.issued) {
            self.lost = false;
            self.snapshots.mark_recovered();
        }
    }

    /// The checkpoints' thread has something to say.
    pub(crate) fn on_snapshots(&mut self) -> Result<(), Error> {
        while let Some(done) = self.snapshots.next() {
            match done {
                Done::Written { position, bytes } => {
                    (self.events)(&Event::Checkpoint(position));
                    let input = Input::CheckpointWritten { position, bytes };
                    self.host.step(self.now, input, &mut self.effects);
                }
                Done::Piece { to, chunk } => {
                    let input = Input::CheckpointChunk { to, chunk };
                    self.host.step(self.now, input, &mut self.effects);
                }
                Done::Restore { number, chunk } => {
                    // Only now: until the fetched checkpoint is verified the old state stands.
                    if number == 0 {
                        self.host.restore().restore_begin();
                    }
                    let restored = self.host.restore().restore_chunk(number, &chunk);
                    restored.map_err(|_| Error::BadCheckpoint)?;
                }
                Done::Installed(position) => {
                    self.installing = false;
                    if let Some(position) = position {
                        (self.events)(&Event::Installed(position));
                    }
                    let input = Input::StateInstalled(position);
                    self.host.step(self.now, input, &mut self.effects);
                }
                Done::NoRoomToSave(why) => (self.events)(&Event::DiskFull(why)),
                // One that an installation has overtaken is not missed.
                Done::Full(why) if self.installing => (self.events)(&Event::DiskFull(why)),
                Done::Full(why) => {
                    (self.events)(&Event::DiskFull(why));
                    self.host.restore().checkpoint_abort();
                    self.snapshotting = false;
                    self.snapshot_retry = Some(self.now.micros + SNAPSHOT_PAUSE);
                }
                Done::Failed(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes the next piece of the checkpoint, if one is being made and its writer keeps up.
    pub(crate) fn pump_snapshot(&mut self) {
        if !self.snapshotting || !self.snapshots.has_room() {
            return;
        }
        match self.host.checkpoint_next(SNAPSHOT_BYTES) {
            CheckpointStep::Chunk(chunk) => self.snapshots.chunk(chunk),
            CheckpointStep::Done(_) => {
                self.snapshotting = false;
                self.snapshots.finish();
            }
        }
    }

    /// While the disk is nearly full, what clients delete frees its space with the next checkpoint,
    /// for which the protocol would wait until the log has grown, which it may not.
    pub(crate) fn relieve(&mut self) {
        let busy = self.snapshotting || self.installing || self.snapshot_retry.is_some();
        let stable = self.host.executor().stable();
        let settled = matches!(self.status.report.role, Role::Primary | Role::Backup);
        let due = self.now.micros >= self.relief_at && stable > self.relieved;
        if self.status.disk_full && settled && due && !busy {
            self.relief_at = self.now.micros + SNAPSHOT_PAUSE;
            self.relieved = stable;
            self.snapshot_again();
        }
    }

    fn begin_snapshot(&mut self, position: Viewstamp) {
        self.snapshots.begin(position);
        self.snapshotting = true;
        self.snapshot_retry = None;
    }

    /// Makes the checkpoint that found no space anew, of the state as it is now.
    pub(crate) fn snapshot_again(&mut self) {
        let position = self.host.restore().checkpoint_begin();
        self.begin_snapshot(position);
    }
}

/// The longest answer that fits into a frame with all that goes around it, in bytes.
const LONGEST_ANSWER: usize = wire::MAX_PAYLOAD - Reply::OVERHEAD - nopaxos::Reply::OVERHEAD;

/// Takes an answer out of its reply that fits into no frame. Without its bytes the gateway reports
/// that they are missing; without any reply it would ask for ever.
fn fit(reply: &mut Reply) {
    if let Outcome::Done { body, .. } = &mut reply.outcome
        && body.len() > LONGEST_ANSWER
    {
        body.clear();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use smr::{ClientId, GroupId, OpNumber, RequestNumber, View};
    use wire::{Header, encode_frame};

    use super::*;

    #[test]
    fn the_longest_answer_fits_and_a_longer_one_is_taken_out() {
        for (length, left) in [(LONGEST_ANSWER, LONGEST_ANSWER), (LONGEST_ANSWER + 1, 0)] {
            let position = Viewstamp::new(View(1), OpNumber(1));
            let mut reply = Reply {
                client: ClientId { gateway: 1, incarnation: Incarnation(1) },
                number: RequestNumber(1),
                read: true,
                view: View(1),
                durable: position,
                outcome: Outcome::Done { position, body: Bytes::from(vec![0; length]) },
            };
            fit(&mut reply);
            let Outcome::Done { body, .. } = &reply.outcome else { unreachable!() };
            assert_eq!(body.len(), left);
            let (kind, group, from) = (Kind::Reply, GroupId(1), ReplicaId(0));
            let header = Header { kind, group, from, incarnation: Incarnation(1) };
            encode_frame(&mut Vec::new(), &header, |out| reply.encode(out)).expect("it fits");
        }
    }
}
