//! Debian packages that are downloaded and unpacked below the target directory, not installed:
//! installing may start services, and changes the machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, process, workspace};

/// The directory `name` below that of xtask, with `packages` and the libraries that the machine
/// lacks for them unpacked in it. `proof` is a file that it then holds: where it is there already,
/// nothing is downloaded.
pub(crate) fn unpacked(name: &str, packages: &[&str], proof: &str) -> Result<PathBuf> {
    let directory = workspace::scratch(name);
    if directory.join(proof).exists() {
        return Ok(directory);
    }
    println!("downloading {}, to be unpacked in {}", packages.join(", "), directory.display());
    // Under another name until it is complete.
    let unpacked = workspace::scratch_of_process(name)?;
    if download(packages, &unpacked).is_err() {
        // The lists of packages may be missing, or older than what is offered now.
        process::run(apt().arg("update"))?;
        download(packages, &unpacked)?;
    }
    for package in workspace::files(&unpacked, "deb")? {
        process::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&unpacked))?;
    }
    if !unpacked.join(proof).exists() {
        return Err(format!("{}: {proof} is not in it", packages.join(", ")));
    }
    workspace::remove(&directory)?;
    workspace::rename(&unpacked, &directory)?;
    Ok(directory)
}

fn download(packages: &[&str], to: &Path) -> Result<()> {
    let mut plan = apt();
    plan.args(["--simulate", "--no-install-recommends", "install"]).args(packages);
    let chosen = chosen(packages, &process::output(&mut plan)?);
    process::output(apt().arg("download").args(chosen).current_dir(to)).map(drop)
}

/// The packages, and of apt's plan, `Inst NAME [OLD VERSION] (VERSION ...)`, the libraries. The C
/// library of the machine stays: it belongs together with the machine's program loader.
fn chosen(packages: &[&str], plan: &str) -> Vec<String> {
    let libraries = plan
        .lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next())
        .filter(|name| name.starts_with("lib") && !name.starts_with("libc6"))
        .filter(|name| !packages.contains(name));
    packages.iter().copied().chain(libraries).map(str::to_owned).collect()
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
    fn the_packages_and_new_libraries_are_chosen() {
        let plan = "Inst openssh-client [1:9.2] (1:9.3 Debian:12 [amd64])\n\
                    Inst runit-helper (2.15 Debian:12 [all])\n\
                    Inst libc6 [2.36] (2.37 Debian:12 [amd64])\n\
                    Inst libwrap0 (7.6 Debian:12 [amd64])\n\
                    Inst openssh-server (1:9.3 Debian:12 [amd64])\n\
                    Conf libwrap0 (7.6 Debian:12 [amd64])\n";
        assert_eq!(chosen(&["openssh-server"], plan), ["openssh-server", "libwrap0"]);
    }

    #[test]
    fn what_is_installed_already_is_downloaded_all_the_same() {
        assert_eq!(chosen(&["bindgen"], ""), ["bindgen"]);
    }
}
