//! Who waits for the sockets of a rank.

/// Who looks after the sockets while no caller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum PollOwner {
    /// The progress thread sleeps until something comes.
    Thread = 0,
    /// Callers come back all the time: the progress thread only looks whether they still do.
    Timer = 1,
    /// A caller sleeps on the sockets itself. When it stops waiting, the progress thread listens
    /// again.
    Caller = 2,
}

impl PollOwner {
    /// The owner with this number.
    pub(crate) fn of_number(number: u32) -> PollOwner {
        match number {
            0 => PollOwner::Thread,
            1 => PollOwner::Timer,
            _ => PollOwner::Caller,
        }
    }
}
