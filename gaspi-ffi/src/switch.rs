//! Variables of the environment that are on or off, read strictly.

use gaspi_core::Error;
use std::ffi::OsStr;

/// Whether the variable is 1. It is off where it is not set or 0.
///
/// # Errors
/// [`Error::Environment`] if it is anything else.
pub(crate) fn is_on(variable: &str) -> Result<bool, Error> {
    parse(variable, std::env::var_os(variable).as_deref())
}

fn parse(variable: &str, value: Option<&OsStr>) -> Result<bool, Error> {
    let Some(text) = value.map(OsStr::to_string_lossy) else { return Ok(false) };
    match text.trim() {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => {
            Err(Error::Environment { reason: format!("{variable} is {text:?}; it can be 0 or 1") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_on_and_words_are_refused() {
        let parsed = |text: &str| parse("SWITCH", Some(OsStr::new(text))).ok();
        assert_eq!(parse("SWITCH", None).ok(), Some(false));
        for (text, on) in [("0", false), ("1", true), (" 1 ", true)] {
            assert_eq!(parsed(text), Some(on), "{text:?}");
        }
        for wrong in ["", " ", "yes", "no", "-1", "2", "99999999999999999999"] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }
}
