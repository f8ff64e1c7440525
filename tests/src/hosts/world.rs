//! The world in which the hosts of a test program live: namespaces that end with the program.
//!
//! The program starts itself again, in four roles. As the user started it, it becomes `unshare`,
//! which makes network, mounts and process numbers anew and dies together with what it started.
//! The first process of the world prepares it and adopts orphans. The second one is the program
//! proper. The first processes of hosts only keep these alive.
//!
//! Invariant: all that is made lies in namespaces, or on a file system that is mounted in them; so
//! whichever of these processes is killed, the kernel removes all of it.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use super::namespaces;
use crate::{Failed, Result};

/// Names the role.
pub(super) const ROLE: &str = "GASPI_TEST_ROLE";
pub(super) const FIRST_OF_HOST: &str = "first-of-host";
const FIRST_OF_WORLD: &str = "first-of-world";
const PROPER: &str = "proper";

/// Where the world has a file system of its own, in memory.
pub(super) const PRIVATE: &str = "/run";

/// Names of variables by which the first process of a host learns what to show there.
pub(super) const HOST_NAME: &str = "GASPI_TEST_HOST_NAME";
pub(super) const HOST_FILES: &str = "GASPI_TEST_HOST_FILES";

/// The files of /etc that hosts have of their own.
pub(super) const ETC: [&str; 4] = ["hosts", "passwd", "group", "shadow"];

/// Takes the calling program into a world of its own; to be called first in `main`. It returns in
/// the process that is the program proper. There $HOME and the place of temporary files are empty
/// and private to the world, and there is no network but that of hosts.
pub fn enter_world() {
    let outcome = match std::env::var(ROLE).as_deref() {
        Ok(PROPER) => return,
        Ok(FIRST_OF_WORLD) => first_of_world(),
        Ok(FIRST_OF_HOST) => first_of_host(),
        _ => make_world(),
    };
    match outcome {
        Ok(status) => std::process::exit(status),
        Err(reason) => {
            eprintln!("cannot make a world for hosts: {reason}");
            std::process::exit(1);
        }
    }
}

/// Whether root started the program. Otherwise root's rights hold in the world only, which has one
/// user id: sshd, which becomes another user, cannot run there.
pub fn is_root() -> bool {
    std::env::var_os(OWNED).is_none()
}

/// Set where that is so.
const OWNED: &str = "GASPI_TEST_OWNED";

/// A command that runs this program in a world of its own, whatever the caller's role is.
///
/// # Errors
/// When the program cannot tell where it lies.
pub fn world_of_its_own() -> Result<Command> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--uts", "--ipc", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc"]);
    // SAFETY: no memory is passed.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user"]).env(OWNED, "1");
    }
    command.arg("--").arg(std::env::current_exe()?).env(ROLE, FIRST_OF_WORLD);
    Ok(command)
}

fn make_world() -> Result<i32> {
    let error = world_of_its_own()?.args(std::env::args_os().skip(1)).exec();
    Err(Failed(format!("unshare: {error}")))
}

fn first_of_world() -> Result<i32> {
    namespaces::mount("tmpfs", Path::new(PRIVATE))?;
    let (home, temporary) = (home(), Path::new(PRIVATE).join("tmp"));
    std::fs::create_dir(&home)?;
    std::fs::create_dir(&temporary)?;
    let program = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(ROLE, PROPER)
        .env("HOME", home)
        .env("TMPDIR", temporary)
        .spawn()?;
    loop {
        let (pid, status) = namespaces::wait_for_any()?;
        if u32::try_from(pid) == Ok(program.id()) {
            let status = ExitStatus::from_raw(status);
            return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        }
    }
}

/// The home directory of the world's user.
pub(super) fn home() -> PathBuf {
    Path::new(PRIVATE).join("home")
}

fn first_of_host() -> Result<i32> {
    let of = |name: &str| std::env::var(name).map_err(|error| Failed(format!("{name}: {error}")));
    namespaces::set_host_name(&of(HOST_NAME)?)?;
    namespaces::mount("proc", Path::new("/proc"))?;
    namespaces::mount("sysfs", Path::new("/sys"))?;
    let files = PathBuf::from(of(HOST_FILES)?);
    for name in ETC {
        let file = files.join(name);
        if file.exists() {
            namespaces::bind(&file, &Path::new("/etc").join(name))?;
        }
    }
    println!("up");
    namespaces::rest()
}
