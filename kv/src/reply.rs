//! The bytes of an answer to a request: for each of its items, in order, a length (u32,
//! little-endian) and a body. A body is one RESP reply, in the protocol version that the item asked
//! for; of a versions item it is what [`versions`] takes, of a memcached command what
//! [`Answer`](crate::items::Answer) takes.

use crate::dispatch::Surroundings;

const MAX_BODY: usize = u32::MAX as usize;

/// The bodies of an answer, in the order of the request's items. Ends at the first byte that makes
/// no sense.
pub fn items(answer: &[u8]) -> Items<'_> {
    Items(answer)
}

/// See [`items`].
#[derive(Clone, Debug)]
pub struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(body)
    }
}

/// The versions in the body that answers a versions item, in the order of its keys. A key that is
/// absent has version 0; any change of a key gives it a version that no key had before.
pub fn versions(body: &[u8]) -> impl Iterator<Item = u64> {
    body.as_chunks::<8>().0.iter().map(|version| u64::from_le_bytes(*version))
}

/// Appends one body, written by `write`. A body that is too large for its length becomes an error.
#[inline]
pub(crate) fn push_item<R>(
    around: &mut Surroundings<'_>,
    write: impl FnOnce(&mut Surroundings<'_>) -> R,
) -> R {
    let start = around.reply.len();
    around.reply.extend_from_slice(&[0; 4]);
    let result = write(around);
    if around.reply.len() - start > MAX_BODY {
        around.reply.truncate(start + 4);
        resp::write::error(around.reply, "ERR the reply is too large");
    }
    let length = (around.reply.len() - start - 4) as u32;
    around.reply[start..start + 4].copy_from_slice(&length.to_le_bytes());
    result
}
