//! Running programs: plainly, for their output, or under a time limit with their lines looked at.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::Result;
use crate::excerpt::Excerpt;

/// How a guarded command ended.
pub(crate) enum End {
    /// With status 0.
    Success,
    /// With this status or signal, in words.
    Failure(String),
}

/// The command line as a person would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    if let Some(name) = text.rsplit('/').next() {
        text = name.to_owned();
    }
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Runs `command` with this terminal and demands success.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{} ended with {status}", describe(command)))
    }
}

/// Runs `command`, demands success and returns what it wrote to stdout.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().map_err(|error| cannot_start(command, &error))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stdout = String::from_utf8_lossy(&output.stdout);
        Err(format!("{} ended with {}\n{stdout}{stderr}", describe(command), output.status))
    }
}

/// What a command prints.
enum Printed {
    Stdout(String),
    Stderr(String),
    /// Its stdout has ended.
    End,
}

/// How long lines on stderr may be under way once a command has ended. What it has left running
/// may keep stderr open.
const GRACE: Duration = Duration::from_secs(1);

/// Runs `command` for at most `limit`, passes its output on and shows each line of its stdout to
/// `line`. On expiry the command and all its descendants are killed and the call fails. What says
/// why a command failed is kept for [`crate::excerpt::take`].
pub(crate) fn guarded(
    command: &mut Command,
    limit: Duration,
    mut line: impl FnMut(&str),
) -> Result<End> {
    let mut end = Instant::now() + limit;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take().ok_or("stdout of a child is not there")?;
    let stderr = child.stderr.take().ok_or("stderr of a child is not there")?;
    let of_stderr = sender.clone();
    std::thread::spawn(move || each_line(stderr, |text| of_stderr.send(Printed::Stderr(text))));
    std::thread::spawn(move || {
        each_line(stdout, |text| sender.send(Printed::Stdout(text)));
        let _ = sender.send(Printed::End);
    });
    let mut excerpt = Excerpt::default();
    let mut has_ended = false;
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Printed::Stdout(text)) => {
                println!("{text}");
                excerpt.line(&text);
                line(&text);
            }
            Ok(Printed::Stderr(text)) => {
                eprintln!("{text}");
                excerpt.line(&text);
            }
            Ok(Printed::End) => {
                has_ended = true;
                end = Instant::now() + GRACE;
            }
            Err(mpsc::RecvTimeoutError::Timeout) if !has_ended => {
                kill_tree(&mut child);
                excerpt.failed();
                let seconds = limit.as_secs();
                return Err(format!("{} ran for {seconds} s and was killed", describe(command)));
            }
            Err(_) => break,
        }
    }
    let status = child.wait().map_err(|error| format!("{}: {error}", describe(command)))?;
    if status.success() {
        return Ok(End::Success);
    }
    excerpt.failed();
    Ok(End::Failure(format!("{} ended with {status}", describe(command))))
}

/// Hands out the lines of a stream until it ends or nobody takes them.
fn each_line<E>(from: impl Read, mut take: impl FnMut(String) -> std::result::Result<(), E>) {
    let mut reader = BufReader::new(from);
    let mut raw = Vec::new();
    while reader.read_until(b'\n', &mut raw).is_ok_and(|length| length > 0) {
        if take(String::from_utf8_lossy(&raw).trim_end().to_owned()).is_err() {
            return;
        }
        raw.clear();
    }
}

/// Kills `child` and everything below it. The tests have watchdogs of their own that show stacks
/// long before; this is for a compiler or a watchdog that hangs.
fn kill_tree(child: &mut Child) {
    let mut victims = vec![child.id()];
    let parents = parents();
    let mut next = 0;
    while next < victims.len() {
        let parent = victims[next];
        victims.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    let mut kill = Command::new("kill");
    kill.arg("-9").args(victims.iter().map(u32::to_string));
    let _ = kill.stderr(Stdio::null()).status();
    let _ = child.wait();
}

/// All processes with their parents.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name in brackets may contain anything; the state and the parent follow it.
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            found.push((pid, parent));
        }
    }
    found
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", describe(command))
}
