//! From the environment to a connected job: find out who this process is, exchange addresses with
//! the other ranks.
//!
//! [`launchers`] tells rank, size and the place of the server, for each way to start a job.
//! [`exchange`] is the out-of-band exchange: each rank registers its [`Card`] with a server, and
//! gets the [`Table`] of all [`Cards`] once all ranks have registered. [`auth`] makes the key that
//! protects the exchange between hosts. [`addresses`] chooses what to offer to peers and what to
//! try.
//!
//! Invariant: no wait here outlives its deadline, and the end of any rank before the table went
//! out ends the exchange for all ranks that take part in it.

pub(crate) mod addresses;
mod auth;
mod card;
pub(crate) mod cards;
mod environment;
pub(crate) mod exchange;
pub mod host_file;
pub(crate) mod job;
mod launchers;
pub mod node_list;
mod system;
pub mod this_machine;
mod variables;

pub use crate::wire::record_layer::{RecordLayer, Tampered};
pub use auth::KEY_BYTES;
pub use card::Card;
pub(crate) use card::listener;
pub use cards::{CardView, Cards};
pub use exchange::callback::{Callback, Callbacks, Encrypted, Invitation};
pub(crate) use exchange::client::report_unable;
pub use exchange::client::{Client, Table};
pub use exchange::membership::{LauncherEvent, Membership};
pub(crate) use exchange::message::ATOMICS_FIELD;
pub use exchange::server::{Presence, RelayId, Request, Server};
pub use exchange::start_status::StartStage;
pub use job::{Job, RANKS_MAX, TestMachine, TestProxy, Transport};
