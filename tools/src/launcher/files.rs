//! `--output-dir`: a file for each rank and stream, given to the rank as it is.
//!
//! The ranks of this machine write straight into them, so bytes of any kind stay as they are and a
//! full disk is an error of the rank that writes. gaspi_run writes the output of ranks on other
//! machines.

use crate::refusal::Refusal;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Standard output and error of one rank.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

/// The file of a rank's stream, "out" or "err".
pub(crate) fn path(directory: &Path, rank: usize, ranks: usize, stream: &str) -> PathBuf {
    let width = (ranks - 1).to_string().len();
    directory.join(format!("rank-{rank:0width$}.{stream}"))
}

/// Makes the directory and all files, empty, so that what cannot be written is told before a rank
/// is started. By rank, those that `stays_open` says.
pub(crate) fn create(
    directory: &Path,
    ranks: usize,
    stays_open: impl Fn(usize) -> bool,
) -> Result<Vec<Option<Files>>, Refusal> {
    let failed = |path: &Path, reason: String| {
        Refusal::launcher(format!("--output-dir: {}: {reason}", path.display()))
    };
    fs::create_dir_all(directory).map_err(|error| failed(directory, error.to_string()))?;
    let file = |rank: usize, stream: &str| {
        let path = path(directory, rank, ranks, stream);
        if fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
            // Opening a FIFO would wait for its reader.
            return Err(failed(&path, "there is something that is no regular file".to_owned()));
        }
        File::create(&path).map_err(|error| failed(&path, error.to_string()))
    };
    let both = |rank| {
        let files = Files { stdout: file(rank, "out")?, stderr: file(rank, "err")? };
        Ok(stays_open(rank).then_some(files))
    };
    (0..ranks).map(both).collect()
}
