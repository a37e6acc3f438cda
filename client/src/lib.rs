//! The native client: many requests under way over one connection per replica, each executed at
//! most once, without an async runtime and without a thread of its own.
//!
//! - [`Client`] speaks the key space's commands, one at a time or in a [`Batch`];
//! - [`Session`] below it speaks bytes, for a service of one's own;
//! - [`load`] drives many clients in a closed loop.
//!
//! `docs/client.md` is the guide. The protocol is the client machine's: [`smr::client::Client`]
//! finds the primary, sends again, and in `lazy` keeps what may have to be replayed ([Mao] 4.2.3);
//! [`nopaxos::Client`] counts the replies of a group whose requests a sequencer numbers.

#![forbid(unsafe_code)]

mod batch;
mod blocks;
mod client;
mod clock;
mod error;
mod flights;
mod identity;
mod link;
pub mod load;
mod machine;
mod options;
mod search;
mod session;

pub use batch::{Batch, Replies};
pub use client::{Client, Pair, Swap};
pub use error::{Error, Outcome};
pub use options::{OnLoss, Options, Terms};
pub use resp::Value;
pub use session::{Answer, Done, Loss, Session, Ticket};
pub use smr::{Durability, GroupId, OpNumber, View, Viewstamp};
pub use wire::MAX_NATIVE_CLIENTS;

#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
struct Guide;
