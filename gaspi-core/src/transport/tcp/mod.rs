//! Streams between the libraries of two ranks: TCP between nodes, Unix sockets within a node.
//!
//! [`connect`] makes connections and watches whether peers live, [`endpoint_table`] knows them all.
//! A request goes into the [`send_queue`] of its [`connection`]. [`receive`] reads frames and puts
//! payloads straight into segments; [`handlers`] do what peers ask for, and [`requests`] completes
//! what this rank has asked for. [`connection_epoch`] keeps what is late on a broken connection
//! from undoing anything.

pub(crate) mod connect;
pub(crate) mod connection;
mod connection_epoch;
mod connections;
mod corked;
mod dialing;
pub(crate) mod endpoint_table;
pub(crate) mod handlers;
pub(crate) mod payload;
mod pipes;
pub(crate) mod poll_sets;
mod polling;
pub(crate) mod receive;
pub(crate) mod requests;
pub(crate) mod send_queue;

use crate::transport::Upcalls;
use endpoint_table::EndpointTable;

/// The endpoints of a rank, and what they tell it.
#[derive(Clone, Copy)]
pub(crate) struct Tcp<'a> {
    pub(crate) table: &'a EndpointTable,
    pub(crate) up: &'a dyn Upcalls,
}
