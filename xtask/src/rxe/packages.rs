//! What a guest is made of: QEMU, a kernel with its modules, rdma-core and perftest, unpacked below
//! the target directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, debian, process, workspace};

/// Some 90 MB. QEMU's packages are named one by one: its plan has much that a guest without a
/// screen does not need.
const PACKAGES: [&str; 13] = [
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "libibverbs1",
    "linux-image-amd64",
    "openssh-client",
    "openssh-server",
    "perftest",
    "qemu-system-common",
    "qemu-system-data",
    "qemu-system-x86",
    "seabios",
];

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Where the packages lie unpacked.
pub(super) struct Packages {
    root: PathBuf,
    /// Their directories of libraries, as LD_LIBRARY_PATH.
    libraries: String,
}

impl Packages {
    pub(super) fn provide() -> Result<Packages> {
        if !cfg!(target_arch = "x86_64") {
            return Err("the guests are of x86-64, as this build has to be".into());
        }
        let root = debian::provide("rxe-packages", &PACKAGES)?;
        let directories = [LIBRARIES, "lib/x86_64-linux-gnu"];
        let libraries = directories.map(|name| root.join(name).display().to_string()).join(":");
        Ok(Packages { root, libraries })
    }

    /// A file of the packages.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// The only entry of a directory of the packages whose name begins so.
    fn named(&self, directory: &str, beginning: &str) -> Result<PathBuf> {
        let entries = workspace::entries(&self.file(directory))?;
        let found = entries.into_iter().find(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
        });
        found.ok_or_else(|| format!("no {directory}/{beginning}... among the packages"))
    }

    pub(super) fn kernel(&self) -> Result<PathBuf> {
        self.named("boot", "vmlinuz-")
    }

    /// The directory of all modules of that kernel.
    pub(super) fn modules(&self) -> Result<PathBuf> {
        self.named("lib/modules", "").map(|of_version| of_version.join("kernel"))
    }

    /// QEMU with its libraries, modules and firmware, at low priority. It ends when the thread
    /// ends that starts it, so no guest outlives a killed xtask.
    pub(super) fn qemu(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nice", "-n", "10"]);
        command.arg(self.file("usr/bin/qemu-system-x86_64"));
        for directory in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(self.file(directory));
        }
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command.env("QEMU_MODULE_DIR", self.file(LIBRARIES).join("qemu"));
        command
    }

    /// A program of the packages, to be run on this machine.
    pub(super) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.file(name));
        command.env("LD_LIBRARY_PATH", &self.libraries);
        command
    }

    /// The libraries that a program loads, the loader included.
    pub(super) fn libraries_of(&self, program: &Path) -> Result<Vec<PathBuf>> {
        let mut ldd = Command::new("ldd");
        ldd.arg(program).env("LD_LIBRARY_PATH", &self.libraries).env("LC_ALL", "C");
        libraries(&process::output(&mut ldd)?)
            .map_err(|name| format!("{} needs {name}, which is not there", program.display()))
    }
}

/// Reads what ldd prints: `NAME => FILE (ADDRESS)`, and `FILE (ADDRESS)` for the loader. The error
/// is the name of a library that was not found.
fn libraries(text: &str) -> std::result::Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for line in text.lines().map(str::trim) {
        let (name, file) = line.split_once(" => ").unwrap_or((line, line));
        if file.starts_with("not found") {
            return Err(name.to_owned());
        }
        if let Some(file) = file.split(' ').next().filter(|file| file.starts_with('/')) {
            files.push(file.into());
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::libraries;
    use std::path::PathBuf;

    #[test]
    fn libraries_are_read_from_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibibverbs.so.1 => /a/libibverbs.so.1 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let files = ["/a/libibverbs.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(libraries(text), Ok(files.to_vec()));
    }

    #[test]
    fn a_library_that_is_missing_is_named() {
        let text = "\tlibnl-3.so.200 => not found\n";
        assert_eq!(libraries(text), Err("libnl-3.so.200".into()));
    }
}
