//! By which algorithms an operation is measured: what the library chooses, one by its name, or all
//! that serve it.

use crate::failure::{Failure, Result};
use crate::library::{Collectives, SUCCESS};
use std::ffi::{CStr, CString};

/// What `--algorithm` says for all that serve.
pub(crate) const EVERY: &str = "all";

/// The name of an algorithm; none where the library chooses.
pub(crate) type Algorithm = Option<CString>;

/// What the library logs, as a variable.
const LOG: &str = "GASPI_LOG";

/// Room for the names that the library tells.
const NAMES_BYTES: usize = 1024;

/// The algorithms that `wanted` stands for. `run` carries the operation out once, on all ranks
/// alike: of all algorithms those serve by which it succeeds.
pub(crate) fn of(
    procedures: &Collectives,
    operation: &str,
    wanted: Option<&str>,
    run: impl Fn(&Algorithm) -> Result<()>,
) -> Result<Vec<Algorithm>> {
    let Some(wanted) = wanted else { return Ok(vec![None]) };
    if wanted != EVERY {
        let name = CString::new(wanted)
            .map_err(|_| Failure::usage("--algorithm has a zero byte in its name"))?;
        return Ok(vec![Some(name)]);
    }
    let mut algorithms = vec![None];
    for name in known(procedures, operation)? {
        let algorithm = Some(name);
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

/// The name of an algorithm as tables show it.
pub(crate) fn name(algorithm: &Algorithm) -> Option<String> {
    algorithm.as_ref().map(|name| name.to_string_lossy().into_owned())
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
