//! Memory of other machines through RDMA cards: libibverbs, loaded at run time.
//!
//! A process posts reads and writes to its card, which carries them to the peer's card and to the
//! memory there, without the peer's processor. Each exclusive region has a queue pair per peer,
//! whose access flags, and else whose state, say who may write ([Mu] 5.2); each has a protection
//! domain, so that no other queue pair reaches it. TCP carries the exchange of connections and what
//! cards can't say. `docs/fabric.md` has the argument.
//!
//! Memory does not outlive its process here: the card lets go of it, and verbs end with
//! [`crate::Status::Gone`].
//!
//! Deliberately absent: compare-and-swap, `ibv_rereg_mr` (many cards lack it), completion events
//! (the caller spins), several cards.

mod abi;
mod block;
mod card;
mod channel;
mod endpoint;
mod error;
mod frame;
mod library;
mod link;
mod memory;
mod options;
mod owner;
mod peer;
mod queue;

pub use endpoint::Endpoint;
pub use error::Error;
pub use memory::Own;
pub use options::{Options, Revocation};
