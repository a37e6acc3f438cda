//! An order-matching engine, and how a user replicates an engine of their own.
//!
//! [`Engine`] holds limit order books by symbol, with price-time priority. It is a
//! [`smr::StateMachine`]: deterministic, undoable, able to write itself out while it goes on. It
//! knows nothing of replication. [`face::Exchange`] and the program's `serve` are all that it takes
//! to replicate it.
//!
//! Clients speak a [binary](frame) or a [text](text) protocol. [`feed`] makes streams of commands
//! that look like an exchange's, [`tape`] keeps them in files.
//!
//! Deliberately absent: accounts and who may cancel what, prevention of trades with oneself,
//! auctions, orders that show only a part, and prices or quantities that are not integers.

#![forbid(unsafe_code)]

mod book;
mod checkpoint;
mod engine;
pub mod face;
pub mod feed;
pub mod frame;
mod machine;
mod matching;
mod order;
mod slab;
pub mod tape;
pub mod text;

pub use engine::{Engine, Limits, Undo};
pub use order::{
    Command, Fill, Kind, MAX_DEPTH, MAX_PRICE, MAX_QUANTITY, NewOrder, OrderId, Price, Quantity,
    Refusal, Report, Side, Symbol,
};
