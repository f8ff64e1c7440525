//! Finding a program before anything is started, so that a missing program is one clear message.

use crate::refusal::Refusal;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The file that a shell would find for `program` in the directories of `path`.
pub(crate) fn which(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let executable = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    std::env::split_paths(path).map(|directory| directory.join(program)).find(executable)
}

/// Whether the program is there and may be executed.
pub(crate) fn check(program: &OsStr, path: Option<&OsStr>) -> Result<(), Refusal> {
    let name = program.display();
    let Some(path) = which(program, path) else {
        let near = Path::new(program).is_file();
        let hint = if near {
            format!("; for the one in this directory write ./{name}")
        } else {
            String::new()
        };
        let message = format!("program {name} was not found in PATH{hint}");
        return Err(Refusal { status: 127, message });
    };
    let about = match std::fs::metadata(&path) {
        Ok(about) => about,
        Err(error) => {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let status = if missing { 127 } else { 126 };
            let reason = if missing {
                "does not exist".to_owned()
            } else {
                format!("is not accessible: {error}")
            };
            return Err(Refusal { status, message: format!("program {name} {reason}") });
        }
    };
    let reason = if about.is_dir() {
        "is a directory".to_owned()
    } else if about.permissions().mode() & 0o111 == 0 {
        format!("is not executable; chmod +x {name}")
    } else {
        return Ok(());
    };
    Err(Refusal { status: 126, message: format!("program {name} {reason}") })
}
