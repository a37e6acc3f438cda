//! Bytes from the network: whatever they are, they are read or refused.

use std::sync::Arc;

use bytes::Bytes;
use nopaxos::{Body, Content, Lives, Message, Ordered, Reply, Suffix, ViewId};
use oum::{Members, Session};
use smr::{
    CheckpointChunk, ClientId, Entry, OpNumber, Outcome, ReplicaId, Request, View, Viewstamp,
};

fn request(body: &'static [u8]) -> Request {
    let (client, number) = (ClientId::default(), smr::RequestNumber(7));
    Request { client, number, oldest_unanswered: number, body: Bytes::from_static(body) }
}

fn messages() -> Vec<Message> {
    let previous = Viewstamp::new(View(3), OpNumber(8));
    let content = smr::Content::Batch { unix_ms: 5, requests: vec![request(b"x")] };
    let viewstamp = Viewstamp::new(View(3), OpNumber(9));
    let (commit, durable) = (OpNumber(0), Viewstamp::default());
    let entry = Arc::new(Entry { viewstamp, previous, commit, durable, content });
    let suffix = Suffix { after: previous, entries: vec![entry.clone()] };
    let (one, slots) = (OpNumber(1), vec![OpNumber(4), OpNumber(5)]);
    let (position, bytes) = (previous, Bytes::from_static(b"state"));
    let no_ops = slots.clone();
    let bodies = [
        Body::SyncPrepare { base: one, through: one, no_ops, sync_point: one, durable: one },
        Body::SyncAsk { from: one },
        Body::SyncReply { through: one, disk: one },
        Body::SyncCommit { sync_point: one, durable: one },
        Body::GapRequest { slots: slots.clone() },
        Body::GapReply { base: one, entries: vec![entry], missing: slots.clone() },
        Body::GapCommit { slots: slots.clone() },
        Body::GapCommitRep { slots },
        Body::Suspect,
        Body::ViewChangeReq,
        Body::ViewChange(suffix.clone()),
        Body::StartView(suffix.clone()),
        Body::AskView,
        Body::Recover,
        Body::RecoverReply { normal: true, recovering: false },
        Body::Fetch { after: one, position: Some(position), offset: 6 },
        Body::Fetch { after: one, position: None, offset: 0 },
        Body::Stable(suffix),
        Body::StateChunk(CheckpointChunk { position, offset: 1, total: 9, bytes }),
        Body::StateGone,
    ];
    let view = ViewId { leader_number: 4, session: Session(2) };
    let members = Members::all(3);
    let message = |body| Message { view, members, lives: Lives::new(3), body };
    bodies.into_iter().map(message).collect()
}

/// Reads the bytes cut short, and with each byte changed.
fn spoil<T>(bytes: &[u8], decode: impl Fn(Bytes) -> Option<T>) {
    for cut in 0..bytes.len() {
        assert!(decode(Bytes::copy_from_slice(&bytes[..cut])).is_none(), "cut at {cut}");
    }
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = bytes.to_vec();
            bytes[at] ^= flip;
            let _ = decode(Bytes::from(bytes));
        }
    }
}

#[test]
fn messages_survive_their_bytes() {
    for message in messages() {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        assert_eq!(Message::decode(Bytes::copy_from_slice(&bytes)), Ok(message));
        spoil(&bytes, |bytes| Message::decode(bytes).ok());
    }
}

#[test]
fn payloads_and_replies_survive_their_bytes() {
    let contents = [Content::Whole(request(b"set")), Content::Digest(request(b""), [3; 32])];
    for content in contents {
        let ordered = Ordered { unix_ms: 12, expected: View(5), durable: true, content };
        let mut bytes = Vec::new();
        ordered.encode(&mut bytes);
        assert_eq!(Ordered::decode(Bytes::copy_from_slice(&bytes)), Ok(ordered));
        spoil(&bytes, |bytes| Ordered::decode(bytes).ok());
    }
    let Request { client, number, body, .. } = request(b"done");
    let (view, position) = (View(4), Viewstamp::new(View(4), OpNumber(2)));
    let outcome = Outcome::Done { position, body };
    let durable = Viewstamp::default();
    let reply = smr::Reply { client, number, read: false, view, durable, outcome };
    let (members, lives) = (Members::all(4).change_to(Members::all(3)), Lives::new(3));
    let reply = Reply { from: ReplicaId(2), members, lives, reply };
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    assert_eq!(Reply::decode(Bytes::copy_from_slice(&bytes)), Ok(reply));
    spoil(&bytes, |bytes| Reply::decode(bytes).ok());
}
