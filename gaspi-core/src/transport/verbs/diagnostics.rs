//! Rows of `gaspi-bench info` about RDMA devices: one for each port, with the reason why it is used
//! or not. No rank is needed.

use super::opened::{Wishes, inspect};
use super::select::{NoDevice, Place};
use crate::config::DeviceChoice;
use crate::diagnostics::{Check, CheckState};
use crate::os::affinity;

const CORRECT: &str = "correct the variable, or unset it";

/// What a process with this environment finds of RDMA devices, as the first rank of its node.
#[doc(hidden)]
pub fn rdma_checks() -> Vec<Check> {
    match DeviceChoice::from_environment() {
        Ok(choice) => checks(choice),
        Err(error) => vec![unusable("a variable is wrong", error.to_string()).remedy(CORRECT)],
    }
}

fn check(state: CheckState, value: impl Into<String>) -> Check {
    Check::new("transports", "verbs", state, value)
}

fn unusable(value: &str, reason: String) -> Check {
    check(CheckState::Unusable, value).because(reason)
}

fn checks(choice: DeviceChoice) -> Vec<Check> {
    const REMEDY: &str = "none is needed: ranks of other hosts are reached by TCP";
    let place = Place { cores: affinity::mask(), nth: 0 };
    let wishes = Wishes { choice, place, ..Wishes::default() };
    let (chosen, rows) = match inspect(&wishes) {
        Ok(found) => found,
        Err(reason) => return vec![unusable("no library", reason).remedy(REMEDY)],
    };
    let mut found: Vec<Check> = Vec::new();
    for row in rows {
        let state = if row.usable { CheckState::Usable } else { CheckState::Unusable };
        let colon = if row.state.is_empty() { "" } else { ": " };
        let used = if row.used { "used: " } else { "not used: " };
        let value = format!("{}{colon}{}", row.name, row.state);
        let remedy = if row.usable { "" } else { "docs/rdma.md, if it is to be used" };
        let check = check(state, value).because(format!("{used}{}", row.reason));
        found.push(check.remedy(remedy));
    }
    match chosen {
        Err(NoDevice::Wrong(reason)) => {
            found.push(unusable("a variable is wrong", reason).remedy(CORRECT));
        }
        Err(NoDevice::Missing(reason)) if found.is_empty() => {
            found.push(unusable("no device", reason).remedy(REMEDY));
        }
        _ => {}
    }
    found
}
