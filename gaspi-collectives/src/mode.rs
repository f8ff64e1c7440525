//! Modes: what the bits of a result may depend on.
//!
//! A mode is a promise, not an algorithm. All ranks of a group name the same one in an operation.

use std::fmt;
use std::str::FromStr;

/// What the bits of the result of a reduction may depend on, besides the contributions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// On anything: the fastest way is taken. All ranks of a call get the same bits.
    #[default]
    Fast,
    /// On the operation, lengths, buckets, ranks, which of them share a host, and the version of
    /// the library: from run to run the bits are the same. Not on where memory lies, on cores, on
    /// who comes first, or on the form of the call.
    Stable,
}

impl Mode {
    /// All there are.
    pub const ALL: [Mode; 2] = [Mode::Fast, Mode::Stable];

    /// Its name, as in `GASPI_COLL_MODE`.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Fast => "fast",
            Mode::Stable => "stable",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no mode has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownMode(String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Mode::ALL.map(Mode::name).join(", ");
        write!(f, "no mode is called \"{}\"; there are {known}", self.0)
    }
}

impl std::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Mode, UnknownMode> {
        let known = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        known.ok_or_else(|| UnknownMode(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_others_are_told_what_there_is() {
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        let error = "Stable".parse::<Mode>().expect_err("names are in lower case");
        assert_eq!(error.to_string(), "no mode is called \"Stable\"; there are fast, stable");
    }
}
