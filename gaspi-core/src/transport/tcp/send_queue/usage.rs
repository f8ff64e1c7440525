//! Whether a connection is used: from the first request to its end.
//!
//! Invariants: an end does not become another one, except that a goodbye is said; a connection that
//! is forgotten is broken.

/// Whether more may be sent.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Ending {
    #[default]
    No,
    /// Neither side uses the connection any more.
    LetGo,
    /// This rank leaves the job: its goodbye goes behind all that waits.
    Goodbye,
    /// The goodbye is on the wire.
    Said,
}

/// How far a connection is used, by this rank.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Usage {
    ending: Ending,
    /// This rank has asked for something on it.
    asked: bool,
    /// This rank asks for nothing more.
    released: bool,
    /// Nothing can be sent any more.
    broken: bool,
    /// Nobody looks after it any more.
    forgotten: bool,
}

impl Usage {
    /// This rank asks for something.
    #[inline]
    pub(in crate::transport::tcp) fn note_asked(&mut self) {
        self.asked = true;
    }

    /// Whether this rank has asked for something.
    pub(in crate::transport::tcp) fn has_asked(&self) -> bool {
        self.asked
    }

    /// This rank asks for nothing more.
    pub(in crate::transport::tcp) fn release(&mut self) {
        self.released = true;
    }

    /// Neither side uses it any more.
    pub(in crate::transport::tcp) fn let_go(&mut self) {
        self.ending = Ending::LetGo;
    }

    /// Whether requests have to go by another connection.
    #[inline]
    pub(in crate::transport::tcp) fn is_let_go(&self) -> bool {
        self.released || self.ending == Ending::LetGo
    }

    /// This rank leaves the job.
    pub(in crate::transport::tcp) fn begin_goodbye(&mut self) {
        self.ending = Ending::Goodbye;
    }

    /// Whether the goodbye is still to be said.
    #[inline]
    pub(super) fn is_goodbye_due(&self) -> bool {
        self.ending == Ending::Goodbye
    }

    /// The goodbye goes on the wire.
    pub(super) fn note_goodbye(&mut self) {
        self.ending = Ending::Said;
    }

    /// Whether nothing more may be queued.
    #[inline]
    pub(in crate::transport::tcp) fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Whether what is on the wire is the last that is sent.
    #[inline]
    pub(in crate::transport::tcp) fn is_last(&self) -> bool {
        matches!(self.ending, Ending::LetGo | Ending::Said)
    }

    /// Whether one of both sides has done with it, so that its end is no surprise.
    pub(in crate::transport::tcp) fn is_over(&self) -> bool {
        self.released || self.is_ending()
    }

    /// Nothing can be sent any more.
    pub(in crate::transport::tcp) fn note_broken(&mut self) {
        self.broken = true;
    }

    #[inline]
    pub(in crate::transport::tcp) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Its end has been dealt with.
    pub(in crate::transport::tcp) fn forget(&mut self) {
        self.broken = true;
        self.forgotten = true;
    }

    #[inline]
    pub(in crate::transport::tcp) fn is_forgotten(&self) -> bool {
        self.forgotten
    }
}
