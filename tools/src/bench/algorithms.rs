//! By which algorithms an operation is measured, and in which modes: what the library chooses, one
//! by its name, or all that serve it.

use crate::arguments::Modes;
use crate::failure::{Failure, Result};
use crate::library::{Collectives, SUCCESS};
use std::ffi::{CStr, CString, c_uint};

/// What `--algorithm` says for all that serve.
pub(crate) const EVERY: &str = "all";

/// The numbers of modes in the options of an operation.
const DEFAULT: c_uint = 0;
const FAST: c_uint = 1;
const STABLE: c_uint = 2;

/// How an operation is carried out.
#[derive(Debug, Clone)]
pub(crate) struct Algorithm {
    /// None where the library chooses.
    pub(crate) name: Option<CString>,
    pub(crate) mode: c_uint,
}

/// What the library logs, as a variable.
const LOG: &str = "GASPI_LOG";

/// Room for the names that the library tells.
const NAMES_BYTES: usize = 1024;

/// The algorithms that `wanted` stands for. `run` carries the operation out once, on all ranks
/// alike: of all algorithms those serve by which it succeeds.
pub(crate) fn of(
    procedures: &Collectives,
    operation: &str,
    (wanted, modes): (Option<&str>, Option<Modes>),
    run: impl Fn(&Algorithm) -> Result<()>,
) -> Result<Vec<Algorithm>> {
    let mode = match modes {
        None => DEFAULT,
        Some(Modes::Fast) => FAST,
        Some(Modes::Stable | Modes::Both) => STABLE,
    };
    let mut name = None;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != EVERY) {
        let given = CString::new(wanted)
            .map_err(|_| Failure::usage("--algorithm has a zero byte in its name"))?;
        name = Some(given);
    }
    let mut algorithms = vec![Algorithm { name: name.clone(), mode }];
    if modes == Some(Modes::Both) {
        algorithms.push(Algorithm { name, mode: FAST });
    }
    if wanted != Some(EVERY) {
        return Ok(algorithms);
    }
    for name in known(procedures, operation)? {
        let algorithm = Algorithm { name: Some(name), mode };
        // Every rank is refused for the same reason, before anything has moved.
        if run(&algorithm).is_ok() {
            algorithms.push(algorithm);
        }
    }
    Ok(algorithms)
}

/// Keeps the library, which has not been loaded yet, from writing why an algorithm does not serve:
/// what fails beside that, gaspi-bench says itself.
pub(crate) fn refuse_quietly() {
    if std::env::var_os(LOG).is_none() {
        // SAFETY: this process has no other thread yet.
        unsafe { std::env::set_var(LOG, "off") };
    }
}

/// The name of an algorithm as tables show it, with the mode that was asked for.
pub(crate) fn name(algorithm: &Algorithm) -> Option<String> {
    let mode = [None, Some("fast"), Some("stable")][algorithm.mode as usize];
    let name = algorithm.name.as_ref().map(|name| name.to_string_lossy());
    let both: Vec<&str> = name.as_deref().into_iter().chain(mode).collect();
    (!both.is_empty()).then(|| both.join(", "))
}

/// The algorithms that the library knows for an operation.
fn known(procedures: &Collectives, operation: &str) -> Result<Vec<CString>> {
    let unknown = || Failure::run(format!("the library tells no algorithms of {operation}"));
    let called = CString::new(operation.replace('-', "_")).map_err(|_| unknown())?;
    let mut names = [0u8; NAMES_BYTES];
    // SAFETY: a string that a zero byte ends; writes at most the given number of bytes.
    let status = unsafe {
        (procedures.algorithms)(called.as_ptr(), names.as_mut_ptr().cast(), NAMES_BYTES as u64)
    };
    if status != SUCCESS {
        return Err(unknown());
    }
    let names = CStr::from_bytes_until_nul(&names).map_err(|_| unknown())?;
    let names = names.to_string_lossy();
    names.split(',').map(|name| CString::new(name.trim()).map_err(|_| unknown())).collect()
}
