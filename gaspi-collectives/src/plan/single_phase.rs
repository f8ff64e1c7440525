//! Operations of one arrival, which are carried out without walking their steps.

/// Where the result comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// There is none.
    Nothing,
    /// All members, combined.
    All,
    Member(usize),
}

/// An operation of one arrival, in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SinglePhase {
    /// Whether data is staged, or else rides in the line.
    pub(crate) staged: bool,
    pub(crate) from: Origin,
}
