//! What ranks on other machines inherit from gaspi_run: its environment, working directory, umask
//! and limits. Variables of the machine or the login session are left out.

use crate::assignment::Environment;
use crate::limits;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Variables that belong to a machine, an account or a session: each rank finds those of its own
/// machine.
const OF_THE_SESSION: [&str; 33] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "MAIL",
    "HOST",
    "HOSTNAME",
    "HOSTTYPE",
    "MACHTYPE",
    "OSTYPE",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "WINDOWID",
    "SESSION_MANAGER",
    "DESKTOP_SESSION",
    "KRB5CCNAME",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "TTY",
    "TMUX",
    "TMUX_PANE",
    "STY",
    "WINDOW",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "SHLVL",
    "OLDPWD",
    "_",
];
/// The same for all names that begin so.
const OF_THE_SESSION_BEGIN: [&str; 3] = ["SSH_", "XDG_", "DBUS_"];
/// Those of the XDG variables that say where things lie, not in which session.
const CARRIED: [&str; 2] = ["XDG_DATA_DIRS", "XDG_CONFIG_DIRS"];
/// They tell a rank its place and are set anew for each.
pub(crate) const OF_THE_JOB: [&str; 10] = [
    "GASPI_LAUNCHER",
    "GASPI_RANK",
    "GASPI_NRANKS",
    "GASPI_SOCKET",
    "GASPI_MFILE",
    "GASPI_JOB_ID",
    "GASPI_MEETING",
    "GASPI_BIND",
    "GASPI_HOSTS",
    "GASPI_HOST",
];

/// They tell MPI and others the place of a process in a job of another launcher, which is not that
/// of a rank.
const OF_AN_OUTER_LAUNCHER_BEGIN: [&str; 6] =
    ["PMI_", "PMI2_", "PMIX_", "HYDI_", "MPI_LOCAL", "OMPI_COMM_WORLD_"];
/// What begins so is a setting of the user.
const SETTING_BEGIN: &str = "PMIX_MCA_";

/// Whether ranks must not inherit it, here and elsewhere.
pub(crate) fn is_of_an_outer_launcher(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let begins = |start: &&str| name.starts_with(start.as_bytes());
    OF_AN_OUTER_LAUNCHER_BEGIN.iter().any(begins) && !name.starts_with(SETTING_BEGIN.as_bytes())
}

fn is_of_the_session(name: &OsStr) -> bool {
    let begins = |start: &&str| name.as_bytes().starts_with(start.as_bytes());
    let is = |list: &[&str]| list.iter().any(|entry| name == *entry);
    is(&OF_THE_SESSION) || (OF_THE_SESSION_BEGIN.iter().any(begins) && !is(&CARRIED))
}

fn is_of_the_job(name: &OsStr) -> bool {
    OF_THE_JOB.iter().any(|entry| name == *entry)
}

/// What is carried of an environment.
fn carried(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let is_carried = |(name, _): &(OsString, OsString)| {
        !is_of_the_session(name) && !is_of_the_job(name) && !is_of_an_outer_launcher(name)
    };
    environment.into_iter().filter(is_carried).collect()
}

/// What arrived, with what this machine has to add: the variables of its own session.
pub(crate) fn completed(
    arrived: Vec<(OsString, OsString)>,
    own: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let mut all = carried(arrived);
    all.extend(own.into_iter().filter(|(name, _)| is_of_the_session(name)));
    all
}

/// What this process has to hand on.
///
/// # Errors
/// Its working directory does not exist any more.
pub(crate) fn look_up() -> std::io::Result<Environment> {
    Ok(Environment {
        variables: carried(std::env::vars_os()),
        directory: directory()?,
        umask: umask(),
        limits: limits::look_up(),
    })
}

/// The working directory as the user's shell calls it: behind a link or an automounter the other
/// name may not exist elsewhere.
fn directory() -> std::io::Result<PathBuf> {
    let real = std::env::current_dir()?;
    let place = |path: &PathBuf| std::fs::metadata(path).map(|about| (about.dev(), about.ino()));
    if let Some(logical) = std::env::var_os("PWD").map(PathBuf::from)
        && logical.is_absolute()
        && place(&logical).ok() == Some(place(&real)?)
    {
        return Ok(logical);
    }
    Ok(real)
}

/// The kernel tells it by setting another one only; this process has one thread so far.
fn umask() -> u32 {
    // SAFETY: takes an integer and cannot fail.
    let mask = unsafe { libc::umask(0o077) };
    // SAFETY: takes an integer, the mask that the kernel has just told, and cannot fail.
    unsafe { libc::umask(mask) };
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn each_machine_keeps_what_is_its_own() {
        let here = pairs(&[
            ("PATH", "/opt/bin:/bin"),
            ("LD_LIBRARY_PATH", "/opt/lib"),
            ("MINE", "a b"),
            ("HOME", "/home/here"),
            ("SSH_AUTH_SOCK", "/tmp/agent"),
            ("DISPLAY", ":0"),
            ("XDG_RUNTIME_DIR", "/run/user/7"),
            ("XDG_DATA_DIRS", "/usr/share"),
            ("GASPI_RANK", "3"),
            ("GASPI_LOG", "info"),
            ("PMI_FD", "7"),
            ("PMIX_RANK", "0"),
            ("PMIX_MCA_gds", "hash"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ]);
        let there = pairs(&[("HOME", "/root"), ("PATH", "/bin"), ("SSH_CONNECTION", "x")]);
        let mut found = completed(carried(here), there);
        found.sort();
        let expected = pairs(&[
            ("GASPI_LOG", "info"),
            ("HOME", "/root"),
            ("LD_LIBRARY_PATH", "/opt/lib"),
            ("MINE", "a b"),
            ("PATH", "/opt/bin:/bin"),
            ("PMIX_MCA_gds", "hash"),
            ("SSH_CONNECTION", "x"),
            ("XDG_DATA_DIRS", "/usr/share"),
        ]);
        assert_eq!(found, expected);
    }
}
