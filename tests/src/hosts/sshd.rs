//! A real ssh server on each host, with keys that are made for this run.
//!
//! The server is the one of the machine, or one that lies unpacked somewhere; it is run, never
//! installed. Accounts are files of the hosts' own: root, whose home is private to the world, and
//! the one that the server's unprivileged part runs as.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{OnceLock, PoisonError};
use std::time::Instant;

use super::{GUARD, Host, Options, world};
use crate::{Failed, Result, run_compiler};

/// The directory of an unpacked server: it holds usr/sbin/sshd, and the libraries that the machine
/// lacks below usr/lib.
const UNPACKED: &str = "GASPI_TEST_SSHD";

const SERVER: &str = "
Port 22
HostKey @DIR@/host_key
AuthorizedKeysFile @DIR@/user_key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
# All ranks of a job may log in at once.
MaxStartups 100
PidFile none
LogLevel VERBOSE
";

const CLIENT: &str = "
Host *
User root
IdentityFile @DIR@/user_key
IdentitiesOnly yes
UserKnownHostsFile @DIR@/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
LogLevel ERROR
";

/// Writes the files of /etc that list the users.
pub(super) fn write_accounts(etc: &Path) -> Result<()> {
    let home = world::home();
    let passwd = format!(
        "root:x:0:0:root:{}:/bin/sh\n\
         sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        home.display()
    );
    std::fs::write(etc.join("passwd"), passwd)?;
    std::fs::write(etc.join("group"), "root:x:0:\nnogroup:x:65534:\n")?;
    std::fs::write(etc.join("shadow"), "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n")?;
    Ok(())
}

/// The configuration for `ssh -F`. On hosts, ssh finds it without being told.
///
/// # Errors
/// When keys cannot be made.
pub fn ssh_config() -> Result<PathBuf> {
    directory().map(|directory| directory.join("config"))
}

/// Keys and configuration, once for the world: all hosts share them, as they do home directories.
fn directory() -> Result<PathBuf> {
    static DIRECTORY: OnceLock<Result<PathBuf>> = OnceLock::new();
    DIRECTORY.get_or_init(prepare).clone()
}

fn prepare() -> Result<PathBuf> {
    if !world::is_root() {
        return Err(Failed("sshd needs root: it becomes other users".into()));
    }
    let directory = world::home().join(".ssh");
    std::fs::create_dir(&directory)?;
    for name in ["host_key", "user_key"] {
        let mut make = Command::new("ssh-keygen");
        make.args(["-q", "-t", "ed25519", "-N", "", "-C", "test", "-f"]).arg(directory.join(name));
        run_compiler(make.stdin(Stdio::null()))?;
    }
    let place = directory.display().to_string();
    std::fs::write(directory.join("config"), CLIENT.replace("@DIR@", &place))?;
    std::fs::write(directory.join("sshd_config"), SERVER.replace("@DIR@", &place))?;
    // One key for whatever name or address a host is called by.
    let key = std::fs::read_to_string(directory.join("host_key.pub"))?;
    std::fs::write(directory.join("known_hosts"), format!("* {key}"))?;
    // Where the server's unprivileged part is locked in.
    let empty = Path::new(world::PRIVATE).join("sshd");
    std::fs::create_dir(&empty)?;
    std::fs::set_permissions(&empty, std::fs::Permissions::from_mode(0o755))?;
    Ok(directory)
}

/// The server, and where libraries lie that it needs beside those of the machine.
fn server() -> Result<(PathBuf, Option<PathBuf>)> {
    if let Some(unpacked) = std::env::var_os(UNPACKED).map(PathBuf::from) {
        let libraries = unpacked.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        return Ok((unpacked.join("usr/sbin/sshd"), Some(libraries)));
    }
    let installed = PathBuf::from("/usr/sbin/sshd");
    if installed.is_file() {
        return Ok((installed, None));
    }
    Err(Failed("there is no sshd here; `cargo xtask test --only hosts` provides one".into()))
}

fn log(host: &Host) -> Result<PathBuf> {
    Ok(directory()?.join(format!("log-{}-{}", host.name, host.place.first.pid)))
}

pub(super) fn start(host: &Host) -> Result<()> {
    let directory = directory()?;
    let (program, libraries) = server()?;
    let mut command = Command::new(&program);
    command.args(["-D", "-E"]).arg(log(host)?).arg("-f").arg(directory.join("sshd_config"));
    // What a session starts has to have its environment from its client, not from this test.
    command.env_clear();
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let sshd = host
        .spawn(&mut command)
        .map_err(|error| Failed(format!("cannot start {}: {error}", program.display())))?;
    *host.sshd.lock().unwrap_or_else(PoisonError::into_inner) = Some(sshd);
    Ok(())
}

/// Waits until the server takes connections.
pub(super) fn await_answer(host: &Host, options: Options) -> Result<()> {
    let [ipv4, ipv6] = host.addresses();
    let address = if options.ipv4 { ipv4 } else { ipv6 };
    let end = Instant::now() + GUARD;
    loop {
        let answer = host.inside(|| std::net::TcpStream::connect((address, 22)))?;
        let Err(error) = answer else { return Ok(()) };
        let mut sshd = host.sshd.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = sshd.as_mut().and_then(|sshd| sshd.try_wait().ok()).flatten();
        if ended.is_some() || Instant::now() > end {
            let said = std::fs::read_to_string(log(host)?).unwrap_or_default();
            let name = host.name;
            return Err(Failed(format!(
                "sshd on {name} does not answer ({error}), {ended:?}\n{said}"
            )));
        }
        std::thread::yield_now();
    }
}
