//! How ranks are to reach each other: what the command line asks for.

use clap::ValueEnum;

/// The variable that the library reads.
pub(crate) const VARIABLE: &str = "GASPI_TRANSPORT";
/// A choice for `--transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Choice {
    /// Shared memory within a host, TCP between hosts
    Auto,
    /// Shared memory only
    Shm,
    /// TCP, also between ranks of one host
    Tcp,
    /// InfiniBand or RoCE, also between ranks of one host; TCP for what devices do not carry
    Verbs,
}

impl Choice {
    /// As the command line and the library spell it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Choice::Auto => "auto",
            Choice::Shm => "shm",
            Choice::Tcp => "tcp",
            Choice::Verbs => "verbs",
        }
    }

    /// Tells the library, which has not been loaded yet.
    pub(crate) fn tell(self) {
        // SAFETY: this process has no other thread yet.
        unsafe { std::env::set_var(VARIABLE, self.name()) };
    }
}

/// Names of transports, as rows have them.
pub(crate) const NAMES: [&str; 7] =
    ["shm", "tcp", "shm+tcp", "verbs", "shm+verbs", "tcp+verbs", "shm+tcp+verbs"];

/// The transport of a row that another process printed.
pub(crate) fn of_row(name: Option<&str>) -> &'static str {
    NAMES.into_iter().find(|known| Some(*known) == name).unwrap_or(NAMES[0])
}
