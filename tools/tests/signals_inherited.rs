//! What the real tools do with signals that whoever starts them has ignored.

mod harness;

use harness::far::Far;
use harness::{Run, gaspi_run};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Started as by a program that leaves its children to the kernel.
fn without_children(mut command: Command) -> Run {
    let ignore = || {
        // SAFETY: a disposition without a handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe { command.pre_exec(ignore) };
    Run::start(command)
}

#[test]
fn ends_of_ranks_are_heard_where_those_of_children_are_ignored() {
    let outcome = without_children(gaspi_run(&["-n", "2", "false"])).finish();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let far = Far::new();
    let line = ["--hosts", "240.0.0.1,127.0.0.1", "sh", "-c", "exit $((3 + GASPI_RANK))"];
    let outcome = without_children(far.gaspi_run(&line)).finish();
    assert!([Some(3), Some(4)].contains(&outcome.code), "{}", outcome.stderr);
}

#[test]
fn gaspi_cleanup_waits_for_ssh_where_children_are_ignored() {
    let far = Far::new();
    let ssh = far.path("ssh").to_string_lossy().into_owned();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_cleanup"));
    let job = format!("signals-test-{}", std::process::id());
    command.args(["--ssh", &ssh, "--hosts", "240.0.0.1", "--job", &job]).stdin(Stdio::null());
    without_children(command).finish().success();
}

/// As if it came while gaspi_run starts ranks: it is there before the first one.
#[test]
fn no_rank_is_started_behind_a_signal() {
    let directory = tempfile::tempdir().expect("directory");
    let started = directory.path().join("started");
    let text = format!("echo > '{}'", started.display());
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut command = gaspi_run(&["-n", "3", "sh", "-c", &text]);
        let send = move || {
            // SAFETY: all zeroes is an empty set.
            let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: the set is on this stack.
            unsafe { libc::sigaddset(&raw mut set, signal) };
            // SAFETY: on this stack; the signal stays blocked, and waits for the program.
            unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
            // SAFETY: integers.
            unsafe { libc::kill(libc::getpid(), signal) };
            Ok(())
        };
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe { command.pre_exec(send) };
        let outcome = Run::start(command).finish();
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        let words = "came while ranks were being started";
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
        assert!(!started.exists());
    }
}

/// As by nohup, and by a script that starts it in the background.
#[test]
fn signals_that_were_ignored_stay_so() {
    let far = Far::with("echo up > DIRECTORY/here; read line < DIRECTORY/gate");
    let (here, path) = (far.fifo("here"), far.fifo("gate"));
    // Both ends: nobody is waited for.
    let mut gate = fs::File::options().read(true).write(true).open(path).expect("gate");
    let ssh = far.path("ssh");
    let line = format!(
        "trap '' HUP INT QUIT; exec '{}' --ssh '{}' --hosts 240.0.0.1,127.0.0.1 \
         sh -c 'echo begun; read line < {}/gate'",
        env!("CARGO_BIN_EXE_gaspi_run"),
        ssh.display(),
        far.directory.path().display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stdin(Stdio::null());
    let mut run = Run::start(command);
    let all = |run: &Run| ["HUP", "INT", "QUIT"].into_iter().for_each(|name| run.signal(name));
    // While the other host is waited for.
    fs::read(here).expect("here");
    all(&run);
    writeln!(gate).expect("gate");
    // While ranks run.
    run.lines(2);
    all(&run);
    write!(gate, "\n\n").expect("gate");
    let outcome = run.finish().success();
    assert_eq!(outcome.stderr, "");
}
