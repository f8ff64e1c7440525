//! The same on other machines: gaspi_cleanup is run there through ssh, one thread for each.

use crate::arguments::Arguments;
use gaspi_tools::remote_agent::{self, Opened, Opening, Tool};
use gaspi_tools::remote_shell::RemoteShell;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Seconds for which a silent machine is waited for.
const DEAD_AFTER: u64 = 5;

/// What is under way on other machines.
#[derive(Debug)]
pub(crate) struct Far {
    /// Each says whether its machine is clean.
    threads: Vec<JoinHandle<bool>>,
}

impl Far {
    /// Begins on all of these hosts.
    pub(crate) fn start(arguments: &Arguments, hosts: Vec<String>) -> Result<Far, String> {
        let (program, options) = (arguments.ssh.as_deref(), &arguments.ssh_options);
        let ssh = RemoteShell::new(program, "ssh", options, DEAD_AFTER)?;
        let tool = Tool::own("gaspi_cleanup").map_err(|error| format!("its own file: {error}"))?;
        let words = Arc::new(words(arguments));
        let (ssh, tool) = (Arc::new(ssh), Arc::new(tool));
        let start = |host: String| {
            let (ssh, tool, words) = (ssh.clone(), tool.clone(), words.clone());
            thread::spawn(move || clean(&ssh, &tool, &words, &host))
        };
        Ok(Far { threads: hosts.into_iter().map(start).collect() })
    }

    /// Waits for all of them; true if nothing is left that was to be ended.
    pub(crate) fn finish(self) -> bool {
        // Each has to be waited for.
        let ends: Vec<bool> =
            self.threads.into_iter().map(|thread| thread.join().unwrap_or(false)).collect();
        ends.into_iter().all(|clean| clean)
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
fn clean(ssh: &RemoteShell, tool: &Tool, words: &[OsString], host: &str) -> bool {
    let ran = run(ssh, tool, words, host);
    let (mut out, mut err) = (String::new(), String::new());
    let clean = match ran {
        Err(error) => {
            err = format!("gaspi_cleanup: {host}: {}: {error}\n", ssh.program().display());
            false
        }
        // It ran; these are its words.
        Ok(Ran { status, output: Some(output), words }) if matches!(status.code(), Some(0 | 1)) => {
            for line in String::from_utf8_lossy(&output).lines() {
                out.push_str(&format!("{host}: {line}\n"));
            }
            for line in String::from_utf8_lossy(&words).lines() {
                let line = line.strip_prefix("gaspi_cleanup: ").unwrap_or(line);
                err.push_str(&format!("gaspi_cleanup: {host}: {line}\n"));
            }
            status.success()
        }
        Ok(Ran { status, words, .. }) => {
            let how = match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with exit status {code}"),
                (None, signal) => format!("was killed by signal {}", signal.unwrap_or(0)),
            };
            let farewell = remote_agent::farewell(ssh.program(), &how, &words);
            err = format!("gaspi_cleanup: {host}: {farewell}\n");
            false
        }
    };
    // In one piece, so that hosts do not mix; a missing reader ends nothing.
    let _ = io::stdout().lock().write_all(out.as_bytes());
    let _ = io::stderr().lock().write_all(err.as_bytes());
    clean
}

/// How ssh ended.
struct Ran {
    status: ExitStatus,
    /// What gaspi_cleanup wrote; `None` if it never ran.
    output: Option<Vec<u8>>,
    /// Standard error.
    words: Vec<u8>,
}

fn run(ssh: &RemoteShell, tool: &Tool, words: &[OsString], host: &str) -> io::Result<Ran> {
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let mut command = ssh.command(host, tool, &words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let errors = child.stderr.take();
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        // What was read until an error is what there is.
        let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
        text
    });
    let output = listen(&mut child, tool);
    // ssh may wait for more.
    drop(child.stdin.take());
    drop(child.stdout.take());
    let status = child.wait()?;
    let words = errors.join().unwrap_or_default();
    Ok(Ran { status, output: output?, words })
}

/// What gaspi_cleanup writes there, carried over if need be.
fn listen(child: &mut Child, tool: &Tool) -> io::Result<Option<Vec<u8>>> {
    let Some(mut stdout) = child.stdout.take() else { return Ok(None) };
    let (mut opening, mut buffer) = (Opening::default(), vec![0; 64 << 10]);
    let mut count = 0;
    loop {
        match opening.feed(&buffer[..count]) {
            Opened::NotYet => {}
            Opened::Runs(mut output) => {
                drop(child.stdin.take());
                stdout.read_to_end(&mut output)?;
                return Ok(Some(output));
            }
            Opened::Carry => {
                let bytes = tool.read()?;
                // If it ends before it has read everything, it says why.
                let _ = child.stdin.as_mut().map(|stdin| stdin.write_all(&bytes));
            }
            Opened::Noise => return Ok(None),
        }
        count = stdout.read(&mut buffer)?;
        if count == 0 {
            return Ok(None);
        }
    }
}
