//! Operations of one arrival, which are carried out without walking their steps.

/// The source of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// There is none.
    Nothing,
    /// All members, combined.
    All,
    Member(usize),
}

/// An operation of one arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SinglePhase {
    /// Whether data is staged; otherwise it is inline in the line.
    pub(crate) staged: bool,
    pub(crate) from: Origin,
}
