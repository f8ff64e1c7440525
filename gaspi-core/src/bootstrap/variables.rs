//! The environment variables of a process, read strictly.

use super::this_machine::ThisMachine;
use crate::error::{Error, Result};
use std::ffi::OsString;

/// Bytes of the longest text.
const TEXT_MAX: usize = 255;

/// Where the variables come from, and the machine that they speak of.
pub(super) struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<OsString>,
    machine: &'a dyn Fn() -> ThisMachine,
}

impl<'a> Variables<'a> {
    pub(super) fn new(
        get: &'a dyn Fn(&str) -> Option<OsString>,
        machine: &'a dyn Fn() -> ThisMachine,
    ) -> Variables<'a> {
        Variables { get, machine }
    }

    /// What this machine is called. Looks at its interfaces.
    pub(super) fn machine(&self) -> ThisMachine {
        (self.machine)()
    }

    /// A variable as it is.
    pub(super) fn raw(&self, name: &str) -> Option<OsString> {
        (self.get)(name)
    }

    /// Those of `names` that are set, empty ones too.
    pub(super) fn set<'n>(&self, names: &[&'n str]) -> Vec<&'n str> {
        names.iter().copied().filter(|name| self.raw(name).is_some()).collect()
    }

    /// A variable that has to be a decimal number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        let text = value.to_string_lossy();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(Some(number)),
            _ => wrong(format!("{name} is {text:?}, which is not a number")),
        }
    }

    /// A variable that has to be a text, of whatever length.
    pub(super) fn long_text(&self, name: &str) -> Result<Option<String>> {
        match self.raw(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text)),
            Some(Err(_)) => wrong(format!("{name} has to be a text")),
        }
    }

    /// A variable whose words the caller knows, and refuses others, an empty one too.
    pub(super) fn word(&self, name: &str) -> Option<String> {
        self.raw(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// A variable that has to be a short text.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        match value.to_str() {
            Some(text) if !text.is_empty() && text.len() <= TEXT_MAX => Ok(Some(text.to_owned())),
            _ => wrong(format!("{name} has to be a text of 1 to {TEXT_MAX} bytes")),
        }
    }
}

/// The environment makes no sense, for this reason.
pub(super) fn wrong<T>(reason: String) -> Result<T> {
    Err(Error::Environment { reason })
}
