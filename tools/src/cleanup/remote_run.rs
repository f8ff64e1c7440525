//! One run of gaspi_cleanup on another machine through ssh, for a limited time.
//!
//! Invariant: **nothing waits for a pipe to be closed**. A process that ssh has started, such as a
//! proxy or a master connection, may keep it open.

use gaspi_core::os::process;
use gaspi_tools::remote_agent::{Opened, Opening, Tool};
use gaspi_tools::remote_shell::RemoteShell;
use gaspi_tools::system::{self, Watch};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes read at a time.
const READ: usize = 64 << 10;
/// How long ssh may take to end by a signal.
const GRACE: Duration = Duration::from_secs(3);

/// How it went.
#[derive(Debug)]
pub(crate) struct Ran {
    /// How ssh ended; `None` if it was ended, since the time was over.
    pub(crate) status: Option<ExitStatus>,
    /// What gaspi_cleanup wrote there; `None` if it never ran.
    pub(crate) output: Option<Vec<u8>>,
    /// What ssh, and gaspi_cleanup there, wrote to standard error.
    pub(crate) words: Vec<u8>,
}

/// Runs `tool` with `arguments` on `host`, for at most `limit` and what ssh takes to end then.
///
/// # Errors
/// ssh cannot be started or looked after, or the tool cannot be read.
pub(crate) fn run(
    ssh: &RemoteShell,
    tool: &Tool,
    arguments: &[OsString],
    host: &str,
    limit: Duration,
) -> io::Result<Ran> {
    let arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
    let mut command = ssh.command(host, tool, &arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A time that the clock cannot say never comes.
    let deadline = Instant::now().checked_add(limit);
    let mut remote = Remote::new(command.spawn()?)?;
    while !process::has_ended(&remote.process) {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            remote.end(ssh.end_signal());
            return Ok(remote.ran(None));
        }
        remote.wait(left);
        if let Err(error) = remote.serve(tool) {
            remote.end(ssh.end_signal());
            return Err(error);
        }
    }
    remote.drain(tool)?;
    let status = remote.child.wait()?;
    Ok(remote.ran(Some(status)))
}

/// ssh, while it runs.
struct Remote {
    child: Child,
    /// Readable when it has ended.
    process: OwnedFd,
    to: Option<ChildStdin>,
    from: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    opening: Opening,
    /// Bytes of the tool, if it is carried over, and how many of them were written.
    carried: Vec<u8>,
    written: usize,
    output: Option<Vec<u8>>,
    words: Vec<u8>,
}

impl Remote {
    fn new(mut child: Child) -> io::Result<Remote> {
        let process = match Remote::watch(&child) {
            Ok(process) => process,
            Err(error) => {
                // Nobody could say when it ends.
                child.kill()?;
                child.wait()?;
                return Err(error);
            }
        };
        Ok(Remote {
            process,
            to: child.stdin.take(),
            from: child.stdout.take(),
            errors: child.stderr.take(),
            child,
            opening: Opening::default(),
            carried: Vec::new(),
            written: 0,
            output: None,
            words: Vec::new(),
        })
    }

    /// What tells the end of a child. From here on its pipes make nobody wait.
    fn watch(child: &Child) -> io::Result<OwnedFd> {
        let pipes = [
            child.stdin.as_ref().map(AsFd::as_fd),
            child.stdout.as_ref().map(AsFd::as_fd),
            child.stderr.as_ref().map(AsFd::as_fd),
        ];
        pipes.into_iter().flatten().try_for_each(system::set_nonblocking)?;
        let process = process::open(child.id() as i32, 0).map_err(io::Error::other)?;
        process.ok_or_else(|| io::Error::other("it has ended, and nobody has waited for it"))
    }

    /// Sleeps until there may be something to do.
    fn wait(&self, left: Option<Duration>) {
        let mut watches = vec![Watch::input(self.process.as_fd())];
        watches.extend(self.from.as_ref().map(|from| Watch::input(from.as_fd())));
        watches.extend(self.errors.as_ref().map(|errors| Watch::input(errors.as_fd())));
        let to = self.to.as_ref().filter(|_| self.written < self.carried.len());
        watches.extend(to.map(|to| Watch::room(to.as_fd())));
        system::wait(&watches, left);
    }

    /// Does what can be done without waiting; how much was read.
    fn serve(&mut self, tool: &Tool) -> io::Result<usize> {
        let mut buffer = [0; READ];
        let said = read(&mut self.errors, &mut buffer);
        self.words.extend_from_slice(&buffer[..said]);
        let came = read(&mut self.from, &mut buffer);
        self.hear(&buffer[..came], tool)?;
        self.carry();
        Ok(said + came)
    }

    fn hear(&mut self, bytes: &[u8], tool: &Tool) -> io::Result<()> {
        if let Some(output) = &mut self.output {
            output.extend_from_slice(bytes);
            return Ok(());
        }
        match self.opening.feed(bytes) {
            Opened::NotYet => {}
            Opened::Carry => self.carried = tool.read()?,
            Opened::Runs(output) => {
                self.output = Some(output);
                self.to = None;
            }
            // ssh may wait for more, or for a reader.
            Opened::Noise => (self.to, self.from) = (None, None),
        }
        Ok(())
    }

    /// Writes what there is room for.
    fn carry(&mut self) {
        let left = &self.carried[self.written..];
        let Some(to) = self.to.as_mut().filter(|_| !left.is_empty()) else { return };
        match to.write(left) {
            Ok(count) => self.written += count,
            Err(error) if is_early(&error) => {}
            // It has ended before it has read everything, and says why.
            Err(_) => self.written = self.carried.len(),
        }
    }

    /// Reads what ssh has written before it ended: what does not fit into a pipe now came later,
    /// from another process.
    fn drain(&mut self, tool: &Tool) -> io::Result<()> {
        let size = |pipe: Option<usize>| pipe.unwrap_or_default();
        let mut left = size(self.from.as_ref().map(|from| system::pipe_size(from.as_fd())))
            + size(self.errors.as_ref().map(|errors| system::pipe_size(errors.as_fd())));
        while left > 0 {
            match self.serve(tool)? {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
        Ok(())
    }

    /// Ends ssh by this signal, or else by SIGKILL.
    fn end(&mut self, signal: i32) {
        for signal in [signal, libc::SIGKILL] {
            process::signal(&self.process, signal);
            if system::wait(&[Watch::input(self.process.as_fd())], Some(GRACE))[0] {
                // It has ended, so this does not wait.
                let _ = self.child.wait();
                return;
            }
        }
    }

    fn ran(self, status: Option<ExitStatus>) -> Ran {
        Ran { status, output: self.output, words: self.words }
    }
}

/// Reads once, if something has come; a pipe that has ended is closed.
fn read(pipe: &mut Option<impl Read>, buffer: &mut [u8]) -> usize {
    match pipe.as_mut().map(|pipe| pipe.read(buffer)) {
        Some(Ok(count @ 1..)) => count,
        Some(Err(error)) if is_early(&error) => 0,
        _ => {
            *pipe = None;
            0
        }
    }
}

/// Whether nothing can be read or written yet.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
