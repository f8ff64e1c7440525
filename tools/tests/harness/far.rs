//! Pretended other machines: a program in place of ssh runs its command on this machine, in an
//! empty environment as a login would. Its hosts have addresses that no machine has: 240.0.0.0/4
//! and 100::/64.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{executable, gaspi_run};

/// A directory with a program that behaves like ssh.
#[derive(Debug)]
pub(crate) struct Far {
    pub(crate) directory: tempfile::TempDir,
}

/// Skips options as ssh does, keeps what it was called with, and runs the command with what a login
/// sets. Before that: what the test wants for the host. Each host is a machine of its own, unless
/// the test says with MACHINE which it is.
const SSH: &str = r#"#!/bin/sh
echo "$*" | head -n 1 >> DIRECTORY/calls
while [ $# -gt 0 ]; do
  case $1 in -o|-p|-i) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1; shift
PREPARE
env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="DIRECTORY/home" SSH_FAR="$host" \
  GASPI_MACHINE="${MACHINE-$host}" \
  SSH_AUTH_SOCK=of-the-far-side SHELL=/bin/sh sh -c "$*"
exit $?
"#;

/// A program of a batch system, called as rsh is: a host and words for a shell. Options of ssh are
/// none of its own; qrsh has `-inherit`, without which it would ask for another job. PREPARE may
/// act on `$host` first, or `damage` what comes in.
const RSH: &str = r#"#!/bin/sh
echo "PROGRAM $1 $2" >> DIRECTORY/calls
case PROGRAM in qrsh) [ "$1" = -inherit ] || exit 9; shift ;; esac
case $1 in -*) echo "PROGRAM: unknown option $1" >&2; exit 9 ;; esac
host=$1; shift
damage() {
  mkfifo DIRECTORY/damaged.$$
  exec 3<&0
  { head -c 40; printf damaged; head -c 7 > DIRECTORY/lost; cat; } <&3 > DIRECTORY/damaged.$$ &
  exec 3<&- < DIRECTORY/damaged.$$
}
PREPARE
env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="DIRECTORY/home" SSH_BY="PROGRAM $host" \
  GASPI_MACHINE="$host" SHELL=/bin/sh sh -c "$*"
exit $?
"#;

/// A program that behaves like srun. On one host it runs its command; on several, what it starts is
/// in MANY, and all get what came in. PREPARE may act on `$host` first: say that the tool is
/// `absent`, change the `name` by which Slurm calls the host, or `damage` what comes in.
const SRUN: &str = r#"#!/bin/sh
echo "$@" | tr '\n' ' ' >> DIRECTORY/calls; echo >> DIRECTORY/calls
many=
while [ $# -gt 0 ]; do
  case $1 in --nodelist=*) hosts=${1#*=} ;; --input=all) many=1 ;; -*) ;; *) break ;; esac
  shift
done
prepare() {
  name=$host
  PREPARE
}
damage() {
  { head -c 40 "$input"; printf 'damaged'; tail -c +48 "$input"; } > "$input.damaged"
  input=$input.damaged
}
run() {
  prepare
  if [ -n "$absent" ]; then
    script=$3; version=$6; count=$7; shift 7
    set -- sh -c "$script" gaspi /nonexistent/nothing-here "$version" "$count" "$@"
  fi
  [ -z "$many" ] || exec < "$input"
  exec $by env -i PATH=/usr/local/bin:/usr/bin:/bin HOME="DIRECTORY/home" SSH_FAR="$host" \
    GASPI_MACHINE="$host" SLURMD_NODENAME="$name" SHELL=/bin/sh "$@"
}
each() {
  for host in $(echo "$hosts" | tr , ' '); do
    (run "$@") &
    children="$children $!"
  done
}
if [ -z "$many" ]; then host=$hosts; run "$@"; fi
input=$(mktemp DIRECTORY/input.XXXXXX)
cat > "$input"
MANY
"#;

/// Starts an agent on each host and waits for all; ends them when it is told to end.
pub(crate) const SRUN_EACH: &str = "each \"$@\"; trap 'kill $children' TERM; wait";

impl Far {
    pub(crate) fn new() -> Far {
        Far::with("")
    }

    /// With lines of shell that may act on `$host` first.
    pub(crate) fn with(prepare: &str) -> Far {
        let directory = tempfile::tempdir().expect("directory");
        fs::create_dir(directory.path().join("home")).expect("home");
        let far = Far { directory };
        let text = SSH
            .replace("PREPARE", prepare)
            .replace("DIRECTORY", &far.directory.path().to_string_lossy());
        far.program("ssh", &text);
        far
    }

    /// A directory with a program that behaves like srun.
    pub(crate) fn srun(prepare: &str, many: &str) -> Far {
        let far = Far::new();
        far.write_srun(prepare, many);
        far
    }

    pub(crate) fn write_srun(&self, prepare: &str, many: &str) {
        let prepare = if prepare.is_empty() { ":" } else { prepare };
        let directory = self.directory.path().to_string_lossy();
        let text = SRUN.replace("PREPARE", prepare).replace("MANY", many);
        self.program("srun", &text.replace("DIRECTORY", &directory));
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes an executable file.
    pub(crate) fn program(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        executable(&path, text);
        path
    }

    /// Makes this program, which is called as rsh is, and returns where it is to be found.
    pub(crate) fn rsh_like(&self, program: &str) -> String {
        self.rsh_like_with(program, ":")
    }

    /// With lines of shell that may act on `$host` first.
    pub(crate) fn rsh_like_with(&self, program: &str, prepare: &str) -> String {
        let directory = self.directory.path().to_string_lossy().into_owned();
        let text = RSH.replace("PREPARE", prepare);
        let text = text.replace("PROGRAM", program).replace("DIRECTORY", &directory);
        self.program(program, &text);
        directory
    }

    pub(crate) fn fifo(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        path
    }

    /// gaspi_run with this ssh, and these arguments.
    pub(crate) fn gaspi_run(&self, arguments: &[&str]) -> Command {
        let ssh = self.path("ssh").to_string_lossy().into_owned();
        gaspi_run(&[&["--ssh", &ssh], arguments].concat())
    }

    /// What ssh was called with, a line for each call.
    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

/// The command in which the tool is found nowhere, so that it has to be carried over.
pub(crate) fn not_installed(tool: &str) -> String {
    let path = Path::new(tool);
    let (directory, name) = (path.parent().expect("directory"), path.file_name().expect("name"));
    format!(
        "set -- \"$(echo \"$*\" | sed 's,{}/{},/nonexistent/nothing-here,g')\"",
        directory.display(),
        name.to_string_lossy()
    )
}
