//! The card as a model: objects, requests, memory and time, without the C interface, threads or
//! clocks. All random choices come from one seed.

pub(crate) mod card;
pub(crate) mod codes;
pub(crate) mod completion;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod pair;
mod progress;
mod random;
mod region;
pub(crate) mod remote;
mod table;
pub(crate) mod transfer;
