//! Running the real gaspi_run under a guard: a run that does not end is killed, and the test fails
//! with its output.

// Each test program uses its own part of this.
#![allow(dead_code)]

pub(crate) mod far;

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what anything here takes.
pub(crate) const GUARD: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn success(self) -> Outcome {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    pub(crate) fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

pub(crate) fn gaspi_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_run"));
    command.args(arguments).stdin(Stdio::null());
    for name in [
        "GASPI_RANK",
        "GASPI_NRANKS",
        "GASPI_SOCKET",
        "GASPI_MFILE",
        "GASPI_JOB_ID",
        "GASPI_MEETING",
    ] {
        command.env_remove(name);
    }
    command
}

/// A run that is under way, with its output being collected.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) child: Child,
    pub(crate) stdout: mpsc::Receiver<Vec<u8>>,
    pub(crate) stderr: mpsc::Receiver<Vec<u8>>,
    pub(crate) seen: Vec<u8>,
}

pub(crate) fn collect(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count) = pipe.read(&mut buffer) {
            if count == 0 || sender.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A shell that runs the tests in the background makes them ignore signals of the terminal.
fn obey_signals() -> std::io::Result<()> {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        // SAFETY: a disposition without a handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

impl Run {
    pub(crate) fn start(mut command: Command) -> Run {
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe { command.pre_exec(obey_signals) };
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("gaspi_run");
        let stdout = collect(child.stdout.take().expect("stdout"));
        let stderr = collect(child.stderr.take().expect("stderr"));
        Run { child, stdout, stderr, seen: Vec::new() }
    }

    /// Waits until `count` lines have come out.
    pub(crate) fn lines(&mut self, count: usize) -> Vec<String> {
        self.wait_for(|seen| seen.iter().filter(|byte| **byte == b'\n').count() >= count);
        String::from_utf8_lossy(&self.seen).lines().map(str::to_owned).collect()
    }

    /// Waits until `text` has come out.
    pub(crate) fn until(&mut self, text: &str) {
        self.until_times(text, 1);
    }

    /// Waits until `text` has come out so many times.
    pub(crate) fn until_times(&mut self, text: &str, times: usize) {
        let is_it = |part: &&[u8]| *part == text.as_bytes();
        self.wait_for(|seen| seen.windows(text.len()).filter(is_it).count() >= times);
    }

    /// Waits until standard error, which is added to `said`, has so many lines of a kind, `what` in
    /// words.
    pub(crate) fn until_said(
        &mut self,
        said: &mut String,
        what: &str,
        is_it: impl Fn(&str) -> bool,
        times: usize,
    ) {
        let deadline = Instant::now() + GUARD;
        loop {
            let whole = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            if whole.filter(|line| is_it(line)).count() >= times {
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stderr.recv_timeout(left) {
                Ok(bytes) => said.push_str(&String::from_utf8_lossy(&bytes)),
                Err(error) => panic!("{error}: {what:?} was not said {times} times: {said}"),
            }
        }
    }

    fn wait_for(&mut self, enough: impl Fn(&[u8]) -> bool) {
        let deadline = Instant::now() + GUARD;
        while !enough(&self.seen) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stdout.recv_timeout(left) {
                Ok(bytes) => self.seen.extend(bytes),
                Err(error) => {
                    let _ = self.child.kill();
                    let seen = String::from_utf8_lossy(&self.seen);
                    panic!("{error}: not enough came out: {seen}");
                }
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
        assert!(status.success());
    }

    pub(crate) fn finish(mut self) -> Outcome {
        let drain = |from: &mpsc::Receiver<Vec<u8>>, into: &mut Vec<u8>| {
            let deadline = Instant::now() + GUARD;
            loop {
                match from.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(bytes) => into.extend(bytes),
                    Err(mpsc::RecvTimeoutError::Disconnected) => return true,
                    Err(mpsc::RecvTimeoutError::Timeout) => return false,
                }
            }
        };
        let (mut stdout, mut stderr) = (std::mem::take(&mut self.seen), Vec::new());
        let ended = drain(&self.stdout, &mut stdout) && drain(&self.stderr, &mut stderr);
        if !ended {
            let _ = self.child.kill();
        }
        let status = self.child.wait().expect("wait");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (stdout, stderr) = (text(stdout), text(stderr));
        assert!(ended, "did not end\nstdout: {stdout}\nstderr: {stderr}");
        Outcome { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

/// A test that fails leaves nothing running.
impl Drop for Run {
    fn drop(&mut self) {
        // It has ended, mostly.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a process under the guard.
pub(crate) fn ended(mut child: Child) -> ExitStatus {
    let deadline = Instant::now() + GUARD;
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("did not end");
        }
        // Only how often is looked: nothing depends on it.
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs gaspi_run to its end.
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    Run::start(gaspi_run(arguments)).finish()
}

/// Runs a shell script on `ranks` ranks.
pub(crate) fn script(ranks: &str, text: &str) -> Outcome {
    run(&["-n", ranks, "sh", "-c", text])
}

/// A FIFO on which shell scripts wait for a line by [`AWAIT`].
pub(crate) fn gate(directory: &Path) -> PathBuf {
    let gate = directory.join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().expect("mkfifo").success());
    gate
}

/// Shell: waits for a line on descriptor 3, which is a gate opened by `exec 3<>gate`, and obeys
/// signals meanwhile. Without a child: while dash starts one, it loses signals that come.
pub(crate) const AWAIT: &str = "until read line <&3; do :; done";

/// Runs a shell command that ends in gaspi_run.
pub(crate) fn shell(line: &str) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdin(Stdio::null());
    Run::start(command).finish()
}

/// Makes an executable file, by a process of its own: had this one it open for writing while
/// another thread forks, nobody could execute it as long as that child lives ("Text file busy").
pub(crate) fn executable(path: &Path, text: &str) {
    let source = path.with_added_extension("text");
    std::fs::write(&source, text).expect("write");
    let mut install = Command::new("install");
    let made = install.args(["-m", "755"]).arg(&source).arg(path).status().expect("install");
    assert!(made.success(), "install: {made}");
    std::fs::remove_file(&source).expect("remove");
}
