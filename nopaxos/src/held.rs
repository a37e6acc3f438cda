//! Messages that came while no view had started that could take them: the next one may have room.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use oum::Session;
use smr::Request;

use crate::config::Limits;
use crate::event::{Content, Ordered};

/// The messages, by session and number.
#[derive(Debug, Default)]
pub(crate) struct Held {
    messages: BTreeMap<(Session, u64), Arc<Ordered>>,
    bytes: usize,
}

fn size(ordered: &Ordered) -> usize {
    let (Content::Whole(request) | Content::Digest(request, _)) = &ordered.content;
    Request::OVERHEAD + request.body.len()
}

impl Held {
    /// Keeps a message; false if there is no room for it.
    pub(crate) fn keep(&mut self, at: (Session, u64), ordered: Arc<Ordered>, of: &Limits) -> bool {
        let has_room = self.messages.len() < of.ahead && self.bytes < of.unstable_bytes;
        if has_room {
            self.bytes += size(&ordered);
            if let Some(before) = self.messages.insert(at, ordered) {
                self.bytes -= size(&before);
            }
        }
        has_room
    }

    pub(crate) fn into_messages(self) -> BTreeMap<(Session, u64), Arc<Ordered>> {
        self.messages
    }
}
