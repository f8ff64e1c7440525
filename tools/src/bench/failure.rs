//! Why a run ends early, and the status to exit with.

use std::fmt;

/// Wrong arguments (as clap exits).
const EXIT_USAGE: u8 = 2;
/// A measurement failed, or data was wrong.
const EXIT_FAILED: u8 = 1;

/// The text is what the person reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure { status: EXIT_USAGE, message: message.into() }
    }

    pub(crate) fn run(message: impl Into<String>) -> Failure {
        Failure { status: EXIT_FAILED, message: message.into() }
    }

    /// The same, where another rank prints it.
    pub(crate) fn silent(mut self) -> Failure {
        self.message.clear();
        self
    }

    /// Says in front where it happened.
    pub(crate) fn within(mut self, place: &str) -> Failure {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
