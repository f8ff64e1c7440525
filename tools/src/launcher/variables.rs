//! Variables that the command line sets in the environment of the ranks.

use crate::environment::OF_THE_JOB;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// A variable with a value for each rank of a machine, in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: OsString,
    /// At least one.
    pub(crate) values: Vec<OsString>,
}

impl Variable {
    /// The value of the rank with this number on its machine.
    pub(crate) fn value(&self, local: usize) -> &OsStr {
        &self.values[local % self.values.len()]
    }
}

/// NAME=VALUE, the value of any bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParserOfOne;

/// NAME=VALUE,VALUE,...
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParserOfList;

impl TypedValueParser for ParserOfOne {
    type Value = Variable;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        text: &OsStr,
    ) -> Result<Variable, Error> {
        let (name, value) = split(text).map_err(|reason| refuse(command, &reason))?;
        Ok(Variable { name, values: vec![value] })
    }
}

impl TypedValueParser for ParserOfList {
    type Value = Variable;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        text: &OsStr,
    ) -> Result<Variable, Error> {
        let (name, value) = split(text).map_err(|reason| refuse(command, &reason))?;
        let values = value.as_bytes().split(|byte| *byte == b',');
        Ok(Variable { name, values: values.map(|part| OsStr::from_bytes(part).into()).collect() })
    }
}

fn refuse(command: &Command, reason: &str) -> Error {
    Error::raw(ErrorKind::ValueValidation, format!("{reason}\n")).with_cmd(command)
}

fn split(text: &OsStr) -> Result<(OsString, OsString), String> {
    let bytes = text.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        None | Some(0) => {
            Err(format!("{:?} is no variable: NAME=VALUE is wanted", text.to_string_lossy()))
        }
        Some(end) => {
            let (name, value) = (OsStr::from_bytes(&bytes[..end]), &bytes[end + 1..]);
            if OF_THE_JOB.iter().any(|taken| name == *taken) {
                return Err(format!("{} is set by gaspi_run itself", name.display()));
            }
            Ok((name.to_owned(), OsString::from_vec(value.to_vec())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_at_the_first_equals_sign() {
        let parts = |text: &str| split(OsStr::new(text)).ok();
        assert_eq!(parts("A=b=c"), Some(("A".into(), "b=c".into())));
        assert_eq!(parts("A="), Some(("A".into(), "".into())));
        assert_eq!((parts("A"), parts("=b"), parts("GASPI_RANK=1")), (None, None, None));
    }

    #[test]
    fn values_go_round() {
        let two = Variable { name: "A".into(), values: vec!["x".into(), "y".into()] };
        assert_eq!([0, 1, 2].map(|local| two.value(local)), ["x", "y", "x"]);
    }
}
