//! Why no job was started, or why it could not go on, and the exit statuses of gaspi_run's own.

/// gaspi_run itself could not do its work (as with `timeout` and `env`).
pub(crate) const EXIT_LAUNCHER: u8 = 125;
/// The job ran longer than --timeout allows (as with `timeout`).
pub(crate) const EXIT_TIMEOUT: u8 = 124;
/// A host could not be reached or was lost (as with ssh).
pub(crate) const EXIT_HOST: u8 = 255;

/// Why no job was started, or why it could not go on, and the status to exit with.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u8,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn usage(message: impl Into<String>) -> Refusal {
        Refusal { status: 2, message: message.into() }
    }

    pub(crate) fn launcher(message: impl Into<String>) -> Refusal {
        Refusal { status: EXIT_LAUNCHER, message: message.into() }
    }
}
