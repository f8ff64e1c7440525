//! Where the release build lies that is tested.

use std::path::{Path, PathBuf};

use crate::{Failed, Result};

/// The root of the checkout.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The directory that holds libgaspi.so and the tools: `GASPI_TEST_BUILD`, or the release directory
/// beside the one from which this test runs.
///
/// # Errors
/// When nothing is built there.
pub fn build_directory() -> Result<PathBuf> {
    let directory = match std::env::var_os("GASPI_TEST_BUILD") {
        Some(directory) => PathBuf::from(directory),
        None => {
            let program = std::env::current_exe()?;
            let target = program.ancestors().nth(3).unwrap_or(Path::new("/"));
            target.join("release")
        }
    };
    if !directory.join("gaspi_run").is_file() || !directory.join("libgaspi.so").is_file() {
        let directory = directory.display();
        return Err(Failed(format!(
            "{directory} lacks gaspi_run or libgaspi.so; run `cargo xtask build` first"
        )));
    }
    Ok(directory)
}

/// The launcher.
///
/// # Errors
/// When it is not built.
pub fn gaspi_run() -> Result<PathBuf> {
    Ok(build_directory()?.join("gaspi_run"))
}

/// The directory that programs link with and load from.
///
/// # Errors
/// When nothing is built there.
pub fn library_directory() -> Result<PathBuf> {
    build_directory()
}

/// Whether the long tier was asked for.
pub fn is_full() -> bool {
    std::env::var_os("GASPI_TEST_FULL").is_some()
}

/// How ranks are spread whose data goes by devices that tests/mock-card plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceNodes {
    /// Each rank is a node of its own.
    Each,
    /// Two and two share memory.
    Pairs,
}

/// What GASPI_TEST_NODES says: `verbs` or `verbs-pairs`; none where data goes by no devices.
///
/// # Errors
/// When it has another value.
pub fn device_nodes() -> Result<Option<DeviceNodes>> {
    match std::env::var("GASPI_TEST_NODES") {
        Err(std::env::VarError::NotPresent) => Ok(None),
        Ok(nodes) if nodes == "verbs" => Ok(Some(DeviceNodes::Each)),
        Ok(nodes) if nodes == "verbs-pairs" => Ok(Some(DeviceNodes::Pairs)),
        other => Err(Failed(format!("GASPI_TEST_NODES is {other:?}; it takes verbs, verbs-pairs"))),
    }
}

/// Whether data is to go by such devices, for programs whose ranks cannot be spread otherwise than
/// by GASPI_TRANSPORT.
///
/// # Errors
/// When ranks are to be spread otherwise.
pub fn is_over_devices() -> Result<bool> {
    match device_nodes()? {
        Some(DeviceNodes::Pairs) => {
            Err(Failed("these programs take verbs only as GASPI_TEST_NODES".to_owned()))
        }
        nodes => Ok(nodes.is_some()),
    }
}
