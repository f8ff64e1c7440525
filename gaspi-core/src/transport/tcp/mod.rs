//! Streams between the libraries of two ranks: TCP between nodes, Unix sockets within a node.
//!
//! [`endpoint_table`] holds all that a rank has, in parts: [`poll_sets`] is what it sleeps on,
//! [`polling`] who polls and when, [`connections`] the connections that there are, [`dialing`]
//! those that are to be made, [`corked`] where something is held back, [`requests`] what peers have
//! not answered. [`connect`] makes connections and watches whether peers live.
//!
//! A request goes into the [`send_queue`] of its [`connection`]. [`receive`] reads frames and puts
//! payloads straight into segments; [`handlers`] do what peers ask for. [`connection_epoch`] keeps
//! what is late on a broken connection from undoing anything.

pub(crate) mod byte_carrier;
pub(crate) mod connect;
pub(crate) mod connection;
mod connection_epoch;
pub(crate) mod connections;
mod corked;
mod dialing;
pub(crate) mod endpoint_table;
pub(crate) mod handlers;
mod pipes;
pub(crate) mod poll_sets;
mod polling;
pub(crate) mod receive;
pub(crate) mod send_queue;

use crate::transport::Upcalls;
use endpoint_table::EndpointTable;

/// The endpoints of a rank, and what they tell it.
#[derive(Clone, Copy)]
pub(crate) struct Tcp<'a> {
    pub(crate) table: &'a EndpointTable,
    pub(crate) up: &'a dyn Upcalls,
}
