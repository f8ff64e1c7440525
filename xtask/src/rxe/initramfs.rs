//! The first and only file system of a guest: busybox, rdma-core, perftest, the modules, and the
//! libraries of all of them.

use std::path::{Path, PathBuf};

use super::archive::Archive;
use super::modules;
use super::packages::Packages;
use crate::{Result, process, workspace};

const INIT: &str = include_str!("guest/init.sh");

/// Programs of the packages, in the guest at the same places but for `ip` and `tc`: the shell of
/// busybox prefers its own ones to what it finds in the search path.
const PROGRAMS: [(&str, &str); 15] = [
    ("bin/ip", "usr/sbin/ip"),
    ("sbin/tc", "usr/sbin/tc"),
    ("usr/bin/rdma", "bin/rdma"),
    ("usr/bin/ibv_devinfo", "bin/ibv_devinfo"),
    ("usr/bin/ibv_rc_pingpong", "bin/ibv_rc_pingpong"),
    ("usr/bin/ibv_srq_pingpong", "bin/ibv_srq_pingpong"),
    ("usr/bin/ib_write_lat", "bin/ib_write_lat"),
    ("usr/bin/ib_write_bw", "bin/ib_write_bw"),
    ("usr/bin/ib_send_lat", "bin/ib_send_lat"),
    ("usr/bin/ib_send_bw", "bin/ib_send_bw"),
    ("usr/bin/ib_read_lat", "bin/ib_read_lat"),
    ("usr/bin/ib_read_bw", "bin/ib_read_bw"),
    ("usr/bin/ib_atomic_lat", "bin/ib_atomic_lat"),
    ("usr/bin/ssh", "bin/ssh"),
    ("usr/sbin/sshd", "usr/sbin/sshd"),
];

const SERVER: &str = "Port 22
HostKey /etc/ssh/host_key
AuthorizedKeysFile /etc/ssh/user_key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
MaxStartups 100
PidFile none
";

const CLIENT: &str = "Host *
User root
IdentityFile /etc/ssh/user_key
IdentitiesOnly yes
UserKnownHostsFile /etc/ssh/known_hosts
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
";

/// Puts in accounts, keys and configuration by which guests log in to each other. The keys are
/// made for this run, in `directory`.
fn add_ssh(archive: &mut Archive, packages: &Packages, directory: &Path) -> Result<()> {
    archive.add(
        "etc/passwd",
        b"root:x:0:0:root:/tmp:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n",
    );
    archive.add("etc/group", b"root:x:0:\nnogroup:x:65534:\n");
    archive.add("etc/nsswitch.conf", b"hosts: files\n");
    archive.add("etc/ssh/sshd_config", SERVER.as_bytes());
    archive.add("etc/ssh/ssh_config", CLIENT.as_bytes());
    for name in ["host_key", "user_key"] {
        let key = directory.join(name);
        let mut make = packages.program("usr/bin/ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(&key);
        process::output(make.stdin(std::process::Stdio::null()))?;
        archive.copy(&format!("etc/ssh/{name}"), &key)?;
        archive.copy(&format!("etc/ssh/{name}.pub"), &key.with_extension("pub"))?;
    }
    // One key for whatever name or address a guest is called by.
    let key = workspace::read(&directory.join("host_key.pub"))?;
    archive.add("etc/ssh/known_hosts", format!("* {key}").as_bytes());
    Ok(())
}

/// Makes the file system. `others` are programs and libraries that the guest gets to see by other
/// ways; the libraries that they load are put in.
pub(super) fn make(packages: &Packages, others: &[PathBuf], to: &Path) -> Result<()> {
    let mut archive = Archive::default();
    archive.add("init", INIT.as_bytes());
    archive.copy("bin/busybox", &packages.file("bin/busybox"))?;
    add_ssh(&mut archive, packages, to.parent().unwrap_or(to))?;
    let mut loaded = others.to_vec();
    for (from, name) in PROGRAMS {
        let program = packages.file(from);
        archive.copy(name, &program)?;
        loaded.push(program);
    }
    let drivers = packages.file("usr/lib/x86_64-linux-gnu/libibverbs");
    for driver in workspace::files(&drivers, "so")? {
        let name = driver.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("librxe-") {
            archive.copy(&format!("usr/lib/x86_64-linux-gnu/libibverbs/{name}"), &driver)?;
            loaded.push(driver);
        }
    }
    archive.add("etc/libibverbs.d/rxe.driver", b"driver rxe\n");
    // Programs of the release build load it by name.
    loaded.push(packages.file("usr/lib/x86_64-linux-gnu/libibverbs.so.1"));
    archive.copy("lib/libibverbs.so.1", &loaded[loaded.len() - 1])?;
    for program in &loaded {
        for library in packages.libraries_of(program)? {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let folder = if name.starts_with("ld-linux") { "lib64" } else { "lib" };
            archive.copy(&format!("{folder}/{name}"), &library)?;
        }
    }
    for (number, module) in modules::in_order(&packages.modules()?)?.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        archive.copy(&format!("modules/{number:02}-{name}"), module)?;
    }
    std::fs::write(to, archive.finish())
        .map_err(|error| format!("cannot write {}: {error}", to.display()))
}
