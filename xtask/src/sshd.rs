//! An ssh server for the tests of several hosts. Where the machine has none, the Debian package is
//! downloaded and unpacked below the target directory: installing it would start a service.

use std::path::{Path, PathBuf};

use crate::{Result, debian};

const SERVER: &str = "usr/sbin/sshd";

/// A directory that holds usr/sbin/sshd, and below usr/lib the libraries that the machine lacks.
/// None when the machine has a server of its own.
pub(crate) fn provide() -> Result<Option<PathBuf>> {
    if Path::new("/").join(SERVER).is_file() {
        return Ok(None);
    }
    debian::provide("sshd", &["openssh-server"]).map(Some)
}
