//! One virtual machine in emulation: started, told to run scripts, switched off.
//!
//! The guest's console goes to a file. Its second serial line is QEMU's standard input and output;
//! `guest/init.sh` has the few lines that are spoken there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::packages::Packages;
use crate::{Result, workspace};

/// The directory of compiled programs, below the directory of the run.
pub(super) const PROGRAMS: &str = "programs";

/// How a script ended.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) output: String,
    /// None while it runs, and when the guest was switched off before its end.
    pub(super) status: Option<i32>,
}

/// What all guests of a run share.
pub(super) struct Place<'a> {
    pub(super) packages: &'a Packages,
    /// The initramfs.
    pub(super) initramfs: &'a Path,
    /// Where consoles, scripts and sockets are.
    pub(super) directory: &'a Path,
    /// How many guests run together.
    pub(super) guests: usize,
    /// After this the guest ends by itself.
    pub(super) limit: Duration,
}

/// A guest; it is switched off when this is dropped.
pub(super) struct Guest {
    number: usize,
    qemu: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    scripts: PathBuf,
    console: PathBuf,
    outcomes: BTreeMap<u32, Outcome>,
    ready: bool,
    /// What it wants to be switched off, by numbers of guests.
    wanted_off: Vec<usize>,
}

impl Guest {
    pub(super) fn start(place: &Place, number: usize) -> Result<Guest> {
        let scripts = place.directory.join(format!("scripts-{number}"));
        workspace::make_directory(&scripts)?;
        let console = place.directory.join(format!("console-{number}"));
        let mut command = command(place, number)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let errors = std::fs::File::create(place.directory.join(format!("qemu-{number}")))
            .map_err(|error| format!("cannot write what QEMU says: {error}"))?;
        let mut qemu = command
            .stderr(errors)
            .spawn()
            .map_err(|error| format!("cannot start setpriv and QEMU: {error}"))?;
        let (sender, lines) = channel();
        let input = qemu.stdin.take().ok_or("QEMU has no standard input")?;
        let output = qemu.stdout.take().ok_or("QEMU has no standard output")?;
        std::thread::spawn(move || pass_lines(BufReader::new(output), &sender));
        Ok(Guest {
            number,
            qemu,
            input,
            lines,
            scripts,
            console,
            outcomes: BTreeMap::new(),
            ready: false,
            wanted_off: Vec::new(),
        })
    }

    /// Waits until the guest takes scripts.
    pub(super) fn wait_until_up(&mut self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        while !self.ready {
            if !self.receive(end)? {
                let limit = limit.as_secs();
                return Err(format!("guest {} is not up after {limit} s", self.number));
            }
        }
        Ok(())
    }

    /// Starts a script, which the guest kills after `limit`.
    pub(super) fn begin(&mut self, number: u32, script: &str, limit: Duration) -> Result<()> {
        workspace::write(&self.scripts.join(format!("{number}.sh")), script)?;
        self.outcomes.insert(number, Outcome::default());
        writeln!(self.input, "{number} {}", limit.as_secs())
            .and_then(|()| self.input.flush())
            .map_err(|error| format!("guest {} takes no script: {error}", self.number))
    }

    /// Looks at what the guest said for at most `limit`. Returns how the script ended, or None as
    /// long as it runs.
    pub(super) fn poll(&mut self, number: u32, limit: Duration) -> Result<Option<&Outcome>> {
        let end = Instant::now() + limit;
        while self.outcomes.get(&number).is_some_and(|outcome| outcome.status.is_none()) {
            if !self.receive(end)? {
                return Ok(None);
            }
        }
        Ok(self.outcomes.get(&number))
    }

    /// The guests that its scripts want to be switched off, each told once.
    pub(super) fn wanted_off(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.wanted_off)
    }

    /// Switches it off, as by pulling its plug.
    pub(super) fn switch_off(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    /// The last lines of its console.
    pub(super) fn console(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
    }

    /// Takes one line; false if none came until then.
    fn receive(&mut self, end: Instant) -> Result<bool> {
        match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                self.understand(line.trim_end_matches('\r'));
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                let errors = self.console.with_file_name(format!("qemu-{}", self.number));
                let errors = workspace::read(&errors).unwrap_or_default();
                Err(format!("guest {} has ended; QEMU said: {errors:?}", self.number))
            }
        }
    }

    fn understand(&mut self, line: &str) {
        if line == "ready" {
            self.ready = true;
        } else if let Some(number) = line.strip_prefix("off ") {
            self.wanted_off.extend(number.parse::<usize>());
        } else if let Some(end) = line.find(['|', ':'])
            && let Ok(number) = line[..end].parse()
            && let Some(outcome) = self.outcomes.get_mut(&number)
        {
            let rest = &line[end + 1..];
            if line[end..].starts_with('|') {
                outcome.output.push_str(rest);
                outcome.output.push('\n');
            } else {
                outcome.status = rest.parse().ok();
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.switch_off();
    }
}

/// Enough for a kernel's last words.
const CONSOLE_LINES: usize = 60;

fn pass_lines(mut from: impl BufRead, to: &Sender<String>) {
    let mut raw = Vec::new();
    while from.read_until(b'\n', &mut raw).is_ok_and(|length| length > 0) {
        if to.send(String::from_utf8_lossy(&raw).trim_end().to_owned()).is_err() {
            return;
        }
        raw.clear();
    }
}

/// Waits until the first guest listens at the socket that joins it to the other one. This QEMU
/// tries only once to connect.
pub(super) fn wait_for_wire(place: &Place) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    let socket = place.directory.join("wire");
    while !socket.exists() {
        if Instant::now() > end {
            let errors = workspace::read(&place.directory.join("qemu-0")).unwrap_or_default();
            return Err(format!("the first guest does not listen; QEMU said: {errors:?}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// QEMU's command line. Paths are relative to the directory of the run: those of Unix sockets are
/// short by nature.
fn command(place: &Place, number: usize) -> Result<Command> {
    let mut command = place.packages.qemu();
    command.current_dir(place.directory);
    // With `erms` the guest copies by `rep movsb`, which rxe was seen to place in pieces.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max,-erms", "-smp", "2", "-m", "1024"]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    command.arg("-kernel").arg(place.packages.kernel()?);
    command.arg("-initrd").arg(place.initramfs);
    // A program that polls was seen to keep the kernel from rxe's work until the end of a time
    // slice of 4 ms. With preemption and without groups of processes that happens less often.
    const KERNEL: &str =
        "console=ttyS0 loglevel=6 panic=-1 mitigations=off noautogroup preempt=full";
    let (guests, limit_s) = (place.guests, place.limit.as_secs());
    command.arg("-append");
    command.arg(format!("{KERNEL} guest={number} guests={guests} limit={limit_s}"));
    command.args(["-serial", &format!("file:console-{number}")]);
    command.args(["-chardev", "stdio,id=line,signal=off", "-serial", "chardev:line"]);
    let scripts = format!("scripts-{number}").into();
    let shown =
        [("release", workspace::release()), ("programs", PROGRAMS.into()), ("host", scripts)];
    for (name, shown) in shown {
        let path = shown.display().to_string().replace(',', ",,");
        let options = "security_model=none,readonly=on,multidevs=remap";
        command.args(["-fsdev", &format!("local,id={name},path={path},{options}")]);
        command.args(["-device", &format!("virtio-9p-pci,fsdev={name},mount_tag={name}")]);
    }
    if place.guests > 1 {
        let server = if number == 0 { "on" } else { "off" };
        let wire = format!("stream,id=wire,server={server},addr.type=unix,addr.path=wire");
        command.args(["-netdev", &wire]);
        let device = "virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:07:0";
        command.args(["-device", &format!("{device}{number}")]);
    }
    Ok(command)
}
