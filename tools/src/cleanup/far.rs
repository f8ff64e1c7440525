//! The same on other machines: gaspi_cleanup is run there through ssh, on some of them at a time,
//! by a thread each.

use crate::arguments::Arguments;
use crate::remote_run::{self, Ran};
use gaspi_tools::remote_agent::{self, Tool};
use gaspi_tools::remote_shell::RemoteShell;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::vec::IntoIter;

/// Seconds for which a silent machine is waited for.
const DEAD_AFTER: u64 = 5;

/// Machines that are cleaned up at the same time.
const TOGETHER: usize = 64;

/// What is to be done on other machines.
#[derive(Debug)]
struct Work {
    ssh: RemoteShell,
    tool: Tool,
    words: Vec<OsString>,
    limit: Duration,
    /// Those that nobody has begun with.
    hosts: Mutex<IntoIter<String>>,
}

impl Work {
    /// Cleans up one machine after the other; true if all of them are clean.
    fn run(&self) -> bool {
        let mut all_clean = true;
        while let Some(host) = self.next() {
            all_clean &= clean(&self.ssh, &self.tool, &self.words, &host, self.limit);
        }
        all_clean
    }

    fn next(&self) -> Option<String> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).next()
    }
}

/// What is under way on other machines.
#[derive(Debug)]
pub(crate) struct Far {
    work: Arc<Work>,
    /// Each says whether its machines are clean.
    threads: Vec<JoinHandle<bool>>,
}

impl Far {
    /// Begins on these hosts.
    pub(crate) fn start(arguments: &Arguments, hosts: Vec<String>) -> Result<Far, String> {
        let (program, options) = (arguments.ssh.as_deref(), &arguments.ssh_options);
        let ssh = RemoteShell::new(program, "ssh", options, DEAD_AFTER)?;
        let tool = Tool::own("gaspi_cleanup").map_err(|error| format!("its own file: {error}"))?;
        let (words, limit, count) = (words(arguments), arguments.timeout, hosts.len());
        let hosts = Mutex::new(hosts.into_iter());
        let work = Arc::new(Work { ssh, tool, words, limit, hosts });
        let start = || {
            let work = work.clone();
            thread::Builder::new().spawn(move || work.run()).ok()
        };
        // Where there are fewer threads, the others take longer.
        let threads = (0..count.min(TOGETHER)).map_while(|_| start()).collect();
        Ok(Far { work, threads })
    }

    /// Waits for all of them; true if nothing is left that was to be ended.
    pub(crate) fn finish(self) -> bool {
        // Threads leave nothing to be begun with.
        let mut all_clean = !self.threads.is_empty() || self.work.run();
        for thread in self.threads {
            all_clean &= thread.join().unwrap_or(false);
        }
        all_clean
    }
}

/// What gaspi_cleanup is called with there.
fn words(arguments: &Arguments) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    words.extend(arguments.check.then(|| "--check".into()));
    words.extend(arguments.all.then(|| "--all".into()));
    words.extend(arguments.kill.then(|| "--kill".into()));
    for variable in &arguments.variables {
        words.extend(["--with".into(), variable.clone()]);
    }
    words.extend(arguments.job.as_ref().map(|job| format!("--job={job}").into()));
    words
}

/// Cleans up on one machine and says what came of it.
fn clean(ssh: &RemoteShell, tool: &Tool, words: &[OsString], host: &str, limit: Duration) -> bool {
    let (out, err, clean) = match remote_run::run(ssh, tool, words, host, limit) {
        Ok(ran) => report(ssh, host, &ran, limit),
        Err(error) => {
            let program = ssh.program().display();
            (String::new(), format!("gaspi_cleanup: {host}: {program}: {error}\n"), false)
        }
    };
    // In one piece, so that hosts do not mix; a missing reader ends nothing.
    let _ = io::stdout().lock().write_all(out.as_bytes());
    let _ = io::stderr().lock().write_all(err.as_bytes());
    clean
}

/// What there is to say on standard output and on standard error, and whether the machine is clean.
fn report(ssh: &RemoteShell, host: &str, ran: &Ran, limit: Duration) -> (String, String, bool) {
    let (mut out, mut err) = (String::new(), String::new());
    let code = ran.status.map(|status| status.code());
    let is_done = matches!(code, Some(Some(0 | 1))) && ran.output.is_some();
    if is_done || ran.status.is_none() {
        let output = ran.output.as_deref().unwrap_or_default();
        for line in String::from_utf8_lossy(output).lines() {
            out.push_str(&format!("{host}: {line}\n"));
        }
    }
    if is_done {
        for line in String::from_utf8_lossy(&ran.words).lines() {
            let line = line.strip_prefix("gaspi_cleanup: ").unwrap_or(line);
            err.push_str(&format!("gaspi_cleanup: {host}: {line}\n"));
        }
    } else {
        let how = match ran.status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => format!("ended with exit status {code}"),
            Some((None, signal)) => format!("was killed by signal {}", signal.unwrap_or(0)),
            None => format!("has not ended after {} s (--timeout)", limit.as_secs_f64()),
        };
        let farewell = remote_agent::farewell(ssh.program(), &how, &ran.words);
        err = format!("gaspi_cleanup: {host}: {farewell}\n");
    }
    (out, err, is_done && code == Some(Some(0)))
}
