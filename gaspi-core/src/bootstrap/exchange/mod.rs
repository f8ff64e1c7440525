//! The out-of-band exchange: how the ranks of a job learn of each other before they can
//! communicate.
//!
//! The ranks of a job register with a *server*: gaspi_run under its own name, or, in a job started
//! by hand, the first rank to take a name that all ranks derive alike ([`embedded`]). Each rank is
//! a [`client`] that sends its [`Card`](super::Card). Once all have registered, the server makes
//! the shared area, a sealed memory file, and sends it with all cards as the
//! [`Table`](client::Table). Names of sockets are abstract (nothing to delete), and both sides
//! check that the kernel vouches for the same user.
//!
//! In a job over several machines there is a server on each. One of them is the *hub*, which
//! decides; the others are *relays*, which speak the [`relay_protocol`] with it. A relay of a job
//! by hand finds its hub by [`discovery`]; the hub lets relays in through a [`relay_listener`], and
//! leaves those that are slow to hear its last words to a thread ([`farewell`]).
//!
//! Processes that gaspi_run has started on other hosts may call it back ([`callback`]).
//!
//! Pure, without sockets and clocks: [`message`], [`encoding`], [`relay_protocol`],
//! [`start_status`], the state of the [`server`] and of the [`client`].

pub(super) mod callback;
pub(crate) mod client;
mod credential;
mod discovery;
mod embedded;
pub(super) mod encoding;
mod farewell;
mod hub_access;
mod hub_lookup;
mod local_connection;
pub(super) mod membership;
pub(crate) mod message;
mod relay_links;
mod relay_listener;
pub(crate) mod relay_protocol;
pub(super) mod server;
pub(super) mod start_status;
mod tcp_connection;
mod vouching;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod handover_tests;
#[cfg(test)]
pub(crate) mod tests;
