//! What rank and server say to each other: the messages and their limits.

use crate::bootstrap::{Card, KEY_BYTES};
use crate::error::Error;
use crate::ids::Rank;

/// The version of this protocol; a [`Join`] of another version is refused in words.
pub(crate) const VERSION: u16 = 11;
/// Bytes of the largest frame, its length included.
pub(crate) const FRAME_MAX: usize = 64 * 1024;
/// Bytes of a string; longer ones are cut when they are sent.
pub(crate) const TEXT_MAX: usize = 1024;
/// Words of an affinity mask.
pub(crate) const CPU_WORDS_MAX: usize = 1024;
/// Fields that must agree.
pub(crate) const AGREED_MAX: usize = 64;
/// The field that says who executes atomic operations.
pub(crate) const ATOMICS_FIELD: &str = "GASPI_ATOMICS";
/// Ranks that are named as missing.
pub(crate) const MISSING_MAX: usize = 8;

/// A rank registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Join {
    /// The job that it believes to belong to.
    pub(crate) job: String,
    /// Ranks of the job.
    pub(crate) size: u32,
    /// What must be equal on all ranks, by name.
    pub(crate) agreed: Vec<(String, u64)>,
    /// What the others need to know about it.
    pub(crate) card: Card,
}

impl Join {
    /// The field `group_max` of what must be equal.
    pub(crate) fn group_max(&self) -> u32 {
        let field = self.agreed.iter().find(|(name, _)| name == "group_max");
        field.map_or(0, |(_, value)| *value as u32)
    }
}

/// Why an exchange, or the part of one rank in it, failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Two ranks differ in what must agree.
    Mismatch { field: String, left: Rank, left_value: String, right: Rank, right_value: String },
    /// The environment of this one rank makes no sense.
    Environment(String),
    /// Some rank ended, or the server cannot go on.
    Meeting(String),
    /// There is no memory for the shared area.
    Memory { needed: u64, available: u64, reason: String },
    /// The operating system refused the shared area.
    System { call: String, reason: String },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Mismatch { field, left, left_value, right, right_value } => {
                Error::ConfigMismatch { field, left, left_value, right, right_value }
            }
            Failure::Environment(reason) => Error::Environment { reason },
            Failure::Meeting(reason) => Error::Meeting { reason },
            Failure::Memory { needed, available, reason } => {
                Error::Memory { needed, available, reason }
            }
            Failure::System { call, reason } => Error::System { call, reason },
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Memory { needed, available, reason } => {
                Failure::Memory { needed, available, reason }
            }
            Error::System { call, reason } => Failure::System { call, reason },
            other => Failure::Meeting(other.to_string()),
        }
    }
}

/// Everything that is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// Rank to server: the first word.
    Join(Join),
    /// Rank to server: end that rank.
    Kill(Rank),
    /// Rank to server: it leaves the job, so that the end of its process is no death.
    Leave,
    /// Server to rank: so many are missing, the first of them by number; where the job spans hosts
    /// also in words, with hosts and how far each has come.
    Missing { count: u32, first: Vec<Rank>, words: String },
    /// Server to rank: the table; the shared area and the cards come along as descriptors.
    Table { token: [u8; 16], key: [u8; KEY_BYTES] },
    /// Server to rank: it ends here.
    Failed(Failure),
    /// Server to rank: this exchange is over, look for the next one.
    Over,
    /// Rank to server, instead of a join: it cannot take part in its next exchange.
    Unable { job: String, rank: Rank, reason: String },
    /// Server to rank, after the table: that rank's process has ended without leaving.
    Died { rank: Rank, how: String },
}
