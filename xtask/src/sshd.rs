//! An ssh server for the tests of several hosts. Where the machine has none, the Debian package is
//! downloaded and unpacked below the target directory: installing it would start a service.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, process, workspace};

const PACKAGE: &str = "openssh-server";
const SERVER: &str = "usr/sbin/sshd";

/// A directory that holds usr/sbin/sshd, and below usr/lib the libraries that the machine lacks.
/// None when the machine has a server of its own.
pub(crate) fn provide() -> Result<Option<PathBuf>> {
    if Path::new("/").join(SERVER).is_file() {
        return Ok(None);
    }
    let directory = workspace::scratch("sshd");
    if directory.join(SERVER).is_file() {
        return Ok(Some(directory));
    }
    // Under another name until it is complete.
    let unpacked = workspace::scratch_of_process("sshd")?;
    if download(&unpacked).is_err() {
        // The lists of packages may be missing, or older than what is offered now.
        process::run(apt().arg("update"))?;
        download(&unpacked)?;
    }
    for package in workspace::files(&unpacked, "deb")? {
        process::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&unpacked))?;
    }
    workspace::remove(&directory)?;
    workspace::rename(&unpacked, &directory)?;
    Ok(Some(directory))
}

fn download(to: &Path) -> Result<()> {
    println!("downloading {PACKAGE}, to be unpacked in {}", workspace::scratch("sshd").display());
    process::output(apt().arg("download").args(packages()?).current_dir(to)).map(drop)
}

/// The server, and the libraries that apt would install or renew with it.
fn packages() -> Result<Vec<String>> {
    let plan =
        process::output(apt().args(["--simulate", "--no-install-recommends", "install", PACKAGE]))?;
    Ok(chosen(&plan))
}

/// Reads apt's plan: `Inst NAME [OLD VERSION] (VERSION ...)`. The C library of the machine stays:
/// it belongs together with the machine's program loader.
fn chosen(plan: &str) -> Vec<String> {
    plan.lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next())
        .filter(|name| *name == PACKAGE || (name.starts_with("lib") && !name.starts_with("libc6")))
        .map(str::to_owned)
        .collect()
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    // Without it apt complains that its own user cannot write into the target directory.
    command.args(["-qq", "-o", "APT::Sandbox::User=root"]).env("LC_ALL", "C");
    command
}

#[cfg(test)]
mod tests {
    use super::chosen;

    #[test]
    fn the_server_and_new_libraries_are_chosen() {
        let plan = "Inst openssh-client [1:9.2] (1:9.3 Debian:12 [amd64])\n\
                    Inst runit-helper (2.15 Debian:12 [all])\n\
                    Inst libc6 [2.36] (2.37 Debian:12 [amd64])\n\
                    Inst libwrap0 (7.6 Debian:12 [amd64])\n\
                    Inst openssh-server (1:9.3 Debian:12 [amd64])\n\
                    Conf libwrap0 (7.6 Debian:12 [amd64])\n";
        assert_eq!(chosen(plan), ["libwrap0", "openssh-server"]);
    }
}
