//! The programs that run a command on another machine: ssh, what batch systems have in its place
//! within an allocation (srun of Slurm, blaunch of LSF, pbs_tmrsh of PBS, qrsh of Grid Engine), and
//! rsh.
//!
//! All connect standard input, output and errors of that command with pipes here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::remote_agent::{Absent, Tool};

/// How a program takes its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As ssh does: options, host, a line for the user's shell.
    Ssh,
    /// As srun of Slurm does: options, among them the host, and a command with its arguments.
    Srun,
    /// As rsh does: host, a line for a shell. It has no options of ssh.
    Rsh,
}

/// Programs that are called as rsh is.
const RSH_LIKE: [&str; 5] = ["rsh", "remsh", "blaunch", "pbs_tmrsh", QRSH];
/// Without this option it asks for a job of its own.
const QRSH: &str = "qrsh";
const QRSH_OPTION: &str = "-inherit";

impl Kind {
    /// By its name.
    fn of(program: &OsStr) -> Kind {
        let name = Path::new(program).file_name();
        if name == Some(OsStr::new("srun")) {
            Kind::Srun
        } else if RSH_LIKE.iter().any(|known| name == Some(OsStr::new(known))) {
            Kind::Rsh
        } else {
            Kind::Ssh
        }
    }
}

/// How other machines are reached.
#[derive(Debug, Clone)]
pub struct RemoteShell {
    program: OsString,
    options: Vec<OsString>,
    kind: Kind,
}

impl RemoteShell {
    /// By `program`, else by GASPI_SSH, else by `usual`: srun, one that is called as rsh is, or one
    /// that takes the arguments of ssh, perhaps with options behind it, separated by blanks.
    /// `options` follow as they are. A machine whose sshd says nothing for `silent` seconds counts
    /// as lost.
    ///
    /// # Errors
    /// There is no program in it.
    pub fn new(
        program: Option<&OsStr>,
        usual: &str,
        options: &[OsString],
        silent: u64,
    ) -> Result<RemoteShell, String> {
        let variable = std::env::var_os("GASPI_SSH");
        let line = program.map(OsStr::to_owned).or(variable).unwrap_or_else(|| usual.into());
        let words = line.as_bytes().split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut words = words.map(|word| OsStr::from_bytes(word).to_owned());
        let Some(program) = words.next() else {
            return Err("--ssh or GASPI_SSH names no program; unset, it is ssh, or what a batch \
                        system has for the hosts of an allocation"
                .to_owned());
        };
        let mut all: Vec<OsString> = words.collect();
        all.extend_from_slice(options);
        let kind = Kind::of(&program);
        let is_qrsh = Path::new(&program).file_name() == Some(OsStr::new(QRSH));
        match kind {
            Kind::Ssh => all.extend(ssh_options(silent)),
            Kind::Srun => all.extend(SRUN_OPTIONS.map(OsString::from)),
            Kind::Rsh if is_qrsh && !all.iter().any(|option| option == QRSH_OPTION) => {
                all.push(QRSH_OPTION.into());
            }
            Kind::Rsh => {}
        }
        Ok(RemoteShell { program, options: all, kind })
    }

    /// The program, for messages.
    pub fn program(&self) -> &OsStr {
        &self.program
    }

    /// The signal that ends the program, and what it runs on the other machine. srun leaves that
    /// running when it is killed.
    pub fn end_signal(&self) -> i32 {
        match self.kind {
            Kind::Ssh | Kind::Rsh => libc::SIGKILL,
            Kind::Srun => libc::SIGTERM,
        }
    }

    /// As words from which [`RemoteShell::of_words`] makes it again on another machine.
    pub fn to_words(&self) -> Vec<OsString> {
        std::iter::once(&self.program).chain(&self.options).cloned().collect()
    }

    /// Of a program and all of its options; `None` without a program.
    pub fn of_words(words: Vec<OsString>) -> Option<RemoteShell> {
        let mut words = words.into_iter();
        let program = words.next().filter(|program| !program.is_empty())?;
        let kind = Kind::of(&program);
        Some(RemoteShell { program, options: words.collect(), kind })
    }

    /// The command that runs `tool` with `arguments` on `host`.
    pub fn command(&self, host: &str, tool: &Tool, arguments: &[&OsStr]) -> Command {
        self.command_of(host, &tool.words(arguments, Absent::Carried))
    }

    fn command_of(&self, host: &str, words: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.options);
        match self.kind {
            Kind::Ssh | Kind::Rsh => {
                let mut line = b"exec".to_vec();
                for word in words {
                    line.push(b' ');
                    line.extend(quoted(word.as_bytes()));
                }
                command.arg(address(host)).arg(OsStr::from_bytes(&line));
            }
            Kind::Srun => {
                command.args(SRUN_ONE).arg(format!("--nodelist={host}")).args(words);
            }
        }
        command
    }

    /// Whether it is ssh itself, which asks a silent machine whether it is there, and whose
    /// connection can be looked at.
    pub fn is_ssh(&self) -> bool {
        Path::new(&self.program).file_name() == Some(OsStr::new("ssh"))
    }

    /// Whether one process of the program starts a tool on many hosts, as srun does.
    pub fn starts_many(&self) -> bool {
        self.kind == Kind::Srun
    }

    /// The command that runs `tool` with `arguments` on all of `hosts`, or on the only one, if the
    /// program does not [start many](RemoteShell::starts_many). Each gets the bytes of its standard
    /// input, and what they write comes out by lines. A tool that is not there is not carried over:
    /// a line says so, see [`absent`](crate::remote_agent::absent).
    pub fn command_for_many(&self, hosts: &[&str], tool: &Tool, arguments: &[&OsStr]) -> Command {
        let words = tool.words(arguments, Absent::Told);
        if let ([host], false) = (hosts, self.starts_many()) {
            return self.command_of(host, &words);
        }
        let mut command = Command::new(&self.program);
        let count = hosts.len();
        command.args(&self.options).args(SRUN_MANY);
        command.arg(format!("--nodes={count}")).arg(format!("--ntasks={count}"));
        command.arg(format!("--nodelist={}", hosts.join(",")));
        command.args(words);
        command
    }
}

/// Options of ssh behind the user's, since it takes the first value that it meets. It asks each
/// second, and gives up when one more question than the count was not answered.
fn ssh_options(silent: u64) -> Vec<OsString> {
    let count = silent.saturating_sub(2).max(3);
    let own = [
        // A question to the terminal would hold up everything, unseen.
        "BatchMode=yes".to_owned(),
        "ConnectTimeout=10".to_owned(),
        "ServerAliveInterval=1".to_owned(),
        format!("ServerAliveCountMax={count}"),
    ];
    let mut all: Vec<OsString> = vec!["-T".into()];
    for option in own {
        all.extend(["-o".into(), option.into()]);
    }
    all
}

/// All of a node's cores may be used, beside other steps.
const SRUN_OPTIONS: [&str; 5] =
    ["--overlap", "--cpu-bind=none", "--mpi=none", "--quiet", "--export=ALL"];

/// One process on one node. Without `--unbuffered` srun passes on whole lines only, and frames have
/// none.
const SRUN_ONE: [&str; 3] = ["--nodes=1", "--ntasks=1", "--unbuffered"];

/// A process on each of several nodes, which all read what comes in. The end of one of them, or of
/// a node, ends no other.
const SRUN_MANY: [&str; 5] =
    ["--ntasks-per-node=1", "--input=all", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"];

/// A word between single quotes, as all shells read it.
fn quoted(word: &[u8]) -> Vec<u8> {
    let mut text = vec![b'\''];
    for byte in word {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    text
}

/// As ssh wants it: an IPv6 address without brackets.
fn address(host: &str) -> String {
    let (user, host) = match host.rsplit_once('@') {
        Some((user, host)) => (format!("{user}@"), host),
        None => (String::new(), host),
    };
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    format!("{user}{plain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str, options: &[OsString]) -> Result<RemoteShell, String> {
        RemoteShell::new(Some(OsStr::new(line)), "ssh", options, 5)
    }

    #[test]
    fn words_survive_the_shell() {
        for word in ["plain", "two words", "it's", "$HOME `x` \"y\" \\", "*", "a\nb", "''"] {
            let mut line = b"printf %s ".to_vec();
            line.extend(quoted(word.as_bytes()));
            let output = Command::new("sh").arg("-c").arg(OsStr::from_bytes(&line)).output();
            assert_eq!(output.expect("sh").stdout, word.as_bytes());
        }
    }

    #[test]
    fn the_users_options_come_first() {
        let options = [OsString::from("-oBatchMode=no"), "-p".into(), "2222".into()];
        let ssh = shell("  my-ssh  -v ", &options).expect("ssh");
        assert_eq!(ssh.program(), "my-ssh");
        let start = ["-v", "-oBatchMode=no", "-p", "2222", "-T", "-o", "BatchMode=yes"];
        assert_eq!(ssh.options[..start.len()], start.map(OsString::from));
        assert_eq!(ssh.options.last(), Some(&"ServerAliveCountMax=3".into()));
        assert!(shell(" ", &[]).is_err());
    }

    #[test]
    fn addresses() {
        for (host, expected) in [
            ("a", "a"),
            ("[fd77::1]", "fd77::1"),
            ("fd77::1", "fd77::1"),
            ("me@[::2]", "me@::2"),
            ("me@a", "me@a"),
        ] {
            assert_eq!(address(host), expected);
        }
    }

    #[test]
    fn srun_gets_words_and_its_own_options() {
        let srun = shell("/opt/slurm/bin/srun --mem=0", &["--quit-on-interrupt".into()]);
        let srun = srun.expect("srun");
        assert_eq!(srun.end_signal(), libc::SIGTERM);
        let tool = Tool::own("gaspi_run").expect("tool");
        let command = srun.command("n07", &tool, &[OsStr::new("--agent")]);
        let words: Vec<&OsStr> = command.get_args().collect();
        assert_eq!(words[..3], ["--mem=0", "--quit-on-interrupt", "--overlap"]);
        assert!(words.contains(&OsStr::new("--nodes=1")) && srun.starts_many());
        let at = words.iter().position(|word| *word == "--nodelist=n07").expect("the host");
        assert_eq!(words[at + 1..at + 3], ["sh", "-c"]);
        assert_eq!(words.last(), Some(&OsStr::new("--agent")));
        assert!(!words.contains(&OsStr::new("-T")), "an option of ssh");
    }

    #[test]
    fn one_srun_starts_all() {
        let tool = Tool::own("gaspi_run").expect("tool");
        let srun = shell("srun", &[]).expect("srun");
        let command = srun.command_for_many(&["n07", "n09"], &tool, &[OsStr::new("--agent")]);
        let words: Vec<&OsStr> = command.get_args().collect();
        for word in ["--nodes=2", "--ntasks=2", "--nodelist=n07,n09", "--no-kill"] {
            assert!(words.contains(&OsStr::new(word)), "{word}: {words:?}");
        }
        assert!(!words.contains(&OsStr::new("--nodes=1")), "{words:?}");
        let ssh = shell("ssh -v", &[]).expect("ssh");
        assert!(!ssh.starts_many());
        let is_ssh = |line: &str| shell(line, &[]).expect("a program").is_ssh();
        assert!(ssh.is_ssh() && is_ssh("/usr/bin/ssh") && !is_ssh("my-ssh") && !is_ssh("rsh ssh"));
        // As another machine makes it again.
        for shell in [srun, ssh] {
            let again = RemoteShell::of_words(shell.to_words()).expect("a program");
            let command = |shell: &RemoteShell| shell.command_for_many(&["n07"], &tool, &[]);
            assert!(command(&again).get_args().eq(command(&shell).get_args()));
        }
        assert!(RemoteShell::of_words(Vec::new()).is_none());
    }

    #[test]
    fn programs_like_rsh_get_the_host_and_a_line() {
        let tool = Tool::own("gaspi_run").expect("tool");
        for (line, before) in [
            ("blaunch", &[][..]),
            ("/opt/pbs/bin/pbs_tmrsh", &[]),
            ("rsh -l me", &["-l", "me"]),
            ("qrsh", &["-inherit"]),
            ("/opt/sge/qrsh -inherit -v A=1", &["-inherit", "-v", "A=1"]),
        ] {
            let rsh = shell(line, &[]).expect("rsh");
            let command = rsh.command("n07", &tool, &[OsStr::new("--agent")]);
            let words: Vec<&OsStr> = command.get_args().collect();
            let (last, first) = words.split_last().expect("words");
            assert_eq!(first, [before, &["n07"]].concat(), "{line}");
            let last = last.to_string_lossy();
            assert!(last.starts_with("exec 'sh' '-c' ") && last.ends_with("'--agent'"), "{last}");
        }
    }
}
