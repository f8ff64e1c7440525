//! Debian packages that are downloaded and unpacked below the target directory. Nothing is
//! installed, so no root is needed, and nothing is left outside of the checkout.

use std::path::PathBuf;
use std::process::Command;

use crate::{Result, process, workspace};

/// Lists what an unpacked directory was made of; it is written last.
const LIST: &str = "packages";

/// A directory below the target directory that holds `wanted` and the libraries that the machine
/// lacks, unpacked. It is kept for the next run.
pub(crate) fn provide(name: &str, wanted: &[&str]) -> Result<PathBuf> {
    let directory = workspace::scratch(name);
    let list = wanted.join("\n");
    if std::fs::read_to_string(directory.join(LIST)).is_ok_and(|found| found == list) {
        return Ok(directory);
    }
    // Under another name until it is complete.
    let unpacked = workspace::scratch_of_process(name)?;
    println!("downloading {}, to be unpacked in {}", wanted.join(" "), directory.display());
    if download(wanted, &unpacked).is_err() {
        // The lists of packages may be missing, or older than what is offered now. As another user
        // than root this fails, and the second try tells the reason.
        let _ = process::output(apt().arg("update"));
        download(wanted, &unpacked).map_err(|reason| {
            let _ = workspace::remove(&unpacked);
            let names = wanted.join(" ");
            format!(
                "cannot download all of: {names}\n{reason}\n\
                 They come from the machine's package sources. If its lists are old, run \
                 `apt-get update` as root."
            )
        })?;
    }
    for package in workspace::files(&unpacked, "deb")? {
        process::run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&unpacked))?;
        std::fs::remove_file(&package)
            .map_err(|error| format!("cannot remove {}: {error}", package.display()))?;
    }
    workspace::write(&unpacked.join(LIST), &list)?;
    workspace::remove(&directory)?;
    workspace::rename(&unpacked, &directory)?;
    Ok(directory)
}

fn download(wanted: &[&str], to: &std::path::Path) -> Result<()> {
    let mut install = apt();
    install.args(["--simulate", "--no-install-recommends", "install"]).args(wanted);
    let plan = process::output(&mut install)?;
    let mut names = chosen(&plan, wanted);
    for name in wanted {
        names.extend(behind(name)?);
    }
    names.sort();
    names.dedup();
    process::output(apt().arg("download").args(names).current_dir(to)).map(drop)
}

/// What to download for `wanted`, by apt's plan: `Inst NAME [OLD VERSION] (VERSION ...)`. That is
/// the packages themselves, installed or not, and libraries that apt would install or renew with
/// them. The C library of the machine stays: it belongs together with its program loader.
fn chosen(plan: &str, wanted: &[&str]) -> Vec<String> {
    let planned = plan.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    let libraries = planned.filter(|name| name.starts_with("lib") && !name.starts_with("libc6"));
    let mut names: Vec<String> = libraries.chain(wanted.iter().copied()).map(Into::into).collect();
    names.sort();
    names.dedup();
    names
}

/// The package of the newest kernel, which another package only names.
fn behind(package: &str) -> Result<Option<String>> {
    if !package.starts_with("linux-image-") {
        return Ok(None);
    }
    let mut ask = Command::new("apt-cache");
    ask.env("LC_ALL", "C").args(["depends", "--important", package]);
    Ok(dependency(&process::output(&mut ask)?, "linux-image-"))
}

/// The first dependency with this beginning, by what `apt-cache depends` prints.
fn dependency(text: &str, beginning: &str) -> Option<String> {
    let mut names = text.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with(beginning)).map(str::to_owned)
}

fn apt() -> Command {
    let mut command = Command::new("apt-get");
    // Without it apt complains that its own user cannot write into the target directory.
    command.args(["-qq", "-o", "APT::Sandbox::User=root"]).env("LC_ALL", "C");
    command
}

#[cfg(test)]
mod tests {
    use super::{chosen, dependency};

    #[test]
    fn the_package_and_new_libraries_are_chosen() {
        let plan = "Inst openssh-client [1:9.2] (1:9.3 Debian:12 [amd64])\n\
                    Inst runit-helper (2.15 Debian:12 [all])\n\
                    Inst libc6 [2.36] (2.37 Debian:12 [amd64])\n\
                    Inst libwrap0 (7.6 Debian:12 [amd64])\n\
                    Inst openssh-server (1:9.3 Debian:12 [amd64])\n\
                    Conf libwrap0 (7.6 Debian:12 [amd64])\n";
        assert_eq!(chosen(plan, &["openssh-server"]), ["libwrap0", "openssh-server"]);
    }

    #[test]
    fn a_package_that_is_installed_already_is_downloaded_too() {
        assert_eq!(chosen("", &["perftest"]), ["perftest"]);
    }

    #[test]
    fn the_kernel_behind_its_package_is_found() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        let found = dependency(text, "linux-image-");
        assert_eq!(found.as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(dependency("perftest\n  Depends: libc6\n", "linux-image-"), None);
    }
}
