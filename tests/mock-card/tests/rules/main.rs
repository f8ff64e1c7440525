//! The rules of the mock card, each driven through libibverbs's interface as a program would.

mod events;
mod faults;
mod limits;
mod order;
mod processes;
mod rig;
mod states;
