//! The real gaspi_run on shell scripts: what ranks are given, what comes out, how it ends.
//!
//! Every run has a guard: one that does not end is killed, and the test fails with its output.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what anything here takes.
const GUARD: Duration = Duration::from_secs(60);

struct Outcome {
    code: Option<i32>,
    signal: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    #[track_caller]
    fn success(self) -> Outcome {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.stdout.lines().collect();
        lines.sort_unstable();
        lines
    }
}

fn gaspi_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_run"));
    command.args(arguments).stdin(Stdio::null());
    for name in ["GASPI_RANK", "GASPI_NRANKS", "GASPI_SOCKET", "GASPI_MFILE", "GASPI_JOB_ID"] {
        command.env_remove(name);
    }
    command
}

/// A run that is under way, with its output being collected.
struct Run {
    child: Child,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: mpsc::Receiver<Vec<u8>>,
    seen: Vec<u8>,
}

fn collect(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
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

impl Run {
    fn start(mut command: Command) -> Run {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("gaspi_run");
        let stdout = collect(child.stdout.take().expect("stdout"));
        let stderr = collect(child.stderr.take().expect("stderr"));
        Run { child, stdout, stderr, seen: Vec::new() }
    }

    /// Waits until `count` lines have come out.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let deadline = Instant::now() + GUARD;
        while self.seen.iter().filter(|byte| **byte == b'\n').count() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stdout.recv_timeout(left) {
                Ok(bytes) => self.seen.extend(bytes),
                Err(error) => {
                    let _ = self.child.kill();
                    let seen = String::from_utf8_lossy(&self.seen);
                    panic!("{error} before {count} lines came: {seen}");
                }
            }
        }
        String::from_utf8_lossy(&self.seen).lines().map(str::to_owned).collect()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
        assert!(status.success());
    }

    fn finish(mut self) -> Outcome {
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

fn run(arguments: &[&str]) -> Outcome {
    Run::start(gaspi_run(arguments)).finish()
}

/// Runs a shell script on `ranks` ranks.
fn script(ranks: &str, text: &str) -> Outcome {
    run(&["-n", ranks, "sh", "-c", text])
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

#[test]
fn arguments_arrive_as_they_are() {
    let odd = ["a b", "", "'\"$HOME`\\", "two\nlines", "-n", "--label", "*", "ä"];
    let show = "for a; do printf '<%s>' \"$a\"; done; echo";
    let mut line = vec!["-n", "2", "sh", "-c", show, "name"];
    line.extend(odd);
    let expected: String = odd.iter().map(|word| format!("<{word}>")).collect::<String>() + "\n";
    let outcome = run(&line).success();
    // The second rank's output may come between the two lines of the first.
    assert_eq!(outcome.stdout.len(), 2 * expected.len());
    let single = run(&[&["-n", "1"], &line[2..]].concat()).success();
    assert_eq!(single.stdout, expected);
}

#[test]
fn ranks_learn_their_place_and_inherit_the_rest() {
    let directory = tempfile::tempdir().expect("directory");
    let mut command = gaspi_run(&[
        "-n",
        "3",
        "sh",
        "-c",
        "echo $GASPI_RANK $GASPI_NRANKS $GASPI_SOCKET [${GASPI_MFILE-none}] \"$MINE\" $PWD \
         ${GASPI_JOB_ID:+id} ${GASPI_MEETING:+meeting}",
    ]);
    command.current_dir(directory.path()).env("MINE", "a  b").env("GASPI_MFILE", "/stale");
    let outcome = Run::start(command).finish().success();
    let pwd = fs::canonicalize(directory.path()).expect("path");
    let expected: Vec<String> =
        (0..3).map(|r| format!("{r} 3 {r} [none] a  b {} id meeting", pwd.display())).collect();
    assert_eq!(outcome.sorted(), expected);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn jobs_have_different_ids() {
    let id = || script("1", "echo $GASPI_JOB_ID $GASPI_MEETING").success().stdout;
    assert_ne!(id(), id());
}

#[test]
fn standard_input_goes_to_rank_0() {
    let mut command = gaspi_run(&["-n", "3", "--label", "cat"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gaspi_run");
    let mut stdin = child.stdin.take().expect("stdin");
    stdin.write_all(b"one\ntwo\nunfinished").expect("write");
    drop(stdin);
    let stdout = collect(child.stdout.take().expect("stdout"));
    let stderr = collect(child.stderr.take().expect("stderr"));
    let outcome = Run { child, stdout, stderr, seen: Vec::new() }.finish().success();
    assert_eq!(outcome.stdout, "[0] one\n[0] two\n[0] unfinished");
}

#[test]
fn output_goes_where_it_was_meant() {
    let outcome = script("2", "echo out; echo err >&2").success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out\nout\n", "err\nerr\n"));
}

#[test]
fn lines_are_never_torn() {
    // Each rank writes long lines in two pieces; what arrives is whole lines of one letter.
    let text = "c=$(printf %b \\\\$(printf %o $((97 + GASPI_RANK)))); \
                long=$(head -c 5000 /dev/zero | tr '\\0' $c); \
                for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do \
                printf %s $long; printf '%s\\n' $long; done";
    let outcome = script("8", text).success();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 8 * 20);
    for line in lines {
        let first = line.as_bytes()[0];
        assert_eq!(line.len(), 10_000);
        assert!(line.bytes().all(|byte| byte == first), "torn: {line}");
    }
}

#[test]
fn standard_output_and_error_in_one_pipe_are_not_torn_either() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("log");
    let log = fs::File::create(&path).expect("file");
    let mut command = gaspi_run(&[
        "-n",
        "4",
        "sh",
        "-c",
        "a=$(head -c 7000 /dev/zero | tr '\\0' a); b=$(head -c 7000 /dev/zero | tr '\\0' b); \
         for i in 1 2 3 4 5 6 7 8 9; do echo $a; echo $b >&2; done",
    ]);
    command.stdout(log.try_clone().expect("clone")).stderr(log);
    assert!(command.status().expect("gaspi_run").success());
    let text = fs::read_to_string(&path).expect("log");
    assert_eq!(text.lines().count(), 4 * 18);
    assert!(
        text.lines().all(|line| line.len() == 7000 && !(line.contains('a') && line.contains('b')))
    );
}

#[test]
fn a_single_ranks_bytes_are_not_changed() {
    // Long beyond every buffer, without any newline, all byte values.
    let outcome = script("1", "head -c 3000000 /dev/zero; printf end").success();
    assert_eq!(outcome.stdout.len(), 3_000_003);
    assert!(outcome.stdout.ends_with("\0end"));
}

#[test]
fn labels_name_the_rank() {
    let outcome = run(&["-n", "11", "--label", "sh", "-c", "echo r$GASPI_RANK; echo e >&2"]);
    let outcome = outcome.success();
    let mut expected: Vec<String> = (0..11).map(|rank| format!("[{rank:>2}] r{rank}")).collect();
    expected.sort_unstable();
    assert_eq!(outcome.sorted(), expected);
    assert_eq!(outcome.stderr.lines().filter(|line| line.ends_with("] e")).count(), 11);
}

#[test]
fn the_status_is_that_of_the_first_rank_that_failed() {
    for (text, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("[ $GASPI_RANK = 2 ] && exit 3; exit 0", 3),
        ("[ $GASPI_RANK = 1 ] && kill -9 $$; exit 0", 137),
        ("[ $GASPI_RANK = 0 ] && exec kill -s ABRT $$; exit 0", 0),
    ] {
        let outcome = script("3", text);
        if text.contains("ABRT") {
            // kill itself was hit: the rank is that process.
            assert!([Some(134), Some(0)].contains(&outcome.code), "{}", outcome.stderr);
            continue;
        }
        assert_eq!(outcome.code, Some(code), "{text}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.is_empty(), code == 0, "{}", outcome.stderr);
    }
}

#[test]
fn the_summary_names_who_was_killed_first() {
    // Rank 0 fails first, but rank 1's signal is the news.
    let directory = tempfile::tempdir().expect("directory");
    let gate = directory.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().expect("mkfifo").success());
    let text = format!(
        "if [ $GASPI_RANK = 0 ]; then exec 3>{g}; exit 4; fi; \
         if [ $GASPI_RANK = 1 ]; then echo pid $$; cat {g}; kill -9 $$; fi",
        g = gate.display()
    );
    let outcome = script("3", &text);
    let pid = outcome.stdout.trim().strip_prefix("pid ").expect("pid").to_owned();
    assert!([Some(4), Some(137)].contains(&outcome.code), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", outcome.stderr);
    let start = format!("gaspi_run: rank 1 (pid {pid}, host ");
    assert!(lines[0].starts_with(&start), "{}", outcome.stderr);
    assert!(lines[0].ends_with("was killed by signal 9 (SIGKILL)"), "{}", outcome.stderr);
    assert!(lines[1].starts_with("gaspi_run: rank 0 (pid "), "{}", outcome.stderr);
    assert!(lines[1].ends_with("ended with exit status 4"), "{}", outcome.stderr);
}

#[test]
fn a_rank_that_dies_leaves_the_others_running() {
    let directory = tempfile::tempdir().expect("directory");
    let gate = directory.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().expect("mkfifo").success());
    let text = format!(
        "if [ $GASPI_RANK = 0 ]; then echo dying; kill -9 $$; fi; read x < {}; echo survived",
        gate.display()
    );
    let mut run = Run::start(gaspi_run(&["-n", "2", "sh", "-c", &text]));
    run.lines(1);
    fs::write(&gate, "go\n").expect("gate");
    let outcome = run.finish();
    assert_eq!(outcome.stdout, "dying\nsurvived\n");
    assert_eq!(outcome.code, Some(137));
}

#[test]
fn kill_on_failure_ends_the_job() {
    let started = Instant::now();
    let text = "[ $GASPI_RANK = 1 ] && exit 5; exec sleep 1000";
    let outcome = run(&["-n", "4", "--kill-on-failure", "sh", "-c", text]);
    assert_eq!(outcome.code, Some(5));
    assert!(started.elapsed() < GUARD);
    assert!(outcome.stderr.contains("rank 1 failed: ending the job"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ranks were ended by gaspi_run"), "{}", outcome.stderr);
}

#[test]
fn kill_on_failure_does_not_wait_for_the_deaf_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let fifo = directory.path().join("alive");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    // Rank 0 ignores SIGTERM and its child holds the FIFO open for as long as it lives.
    let text = format!(
        "if [ $GASPI_RANK = 1 ]; then read x < {f}; exit 5; fi; \
         trap '' TERM; exec 3>{f}; echo x >&3; sleep 1000; sleep 1000",
        f = fifo.display()
    );
    let outcome = run(&["-n", "2", "--kill-on-failure", "sh", "-c", &text]);
    assert_eq!(outcome.code, Some(5), "{}", outcome.stderr);
    // Its end comes only when no process holds it any more.
    let (sender, receiver) = mpsc::channel();
    let reader = fifo.clone();
    thread::spawn(move || {
        let keep = fs::OpenOptions::new().read(true).write(true).open(&reader);
        let mut end = fs::File::open(&reader).expect("fifo");
        drop(keep);
        let mut rest = Vec::new();
        let _ = end.read_to_end(&mut rest);
        sender.send(()).expect("send");
    });
    receiver.recv_timeout(GUARD).expect("a process of the job is left");
}

#[test]
fn signals_are_forwarded() {
    for name in ["TERM", "INT", "USR1", "USR2", "HUP", "QUIT"] {
        let text = format!(
            "trap 'echo got {name}; exit 0' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut run = Run::start(gaspi_run(&["-n", "2", "sh", "-c", &text]));
        run.lines(2);
        run.signal(name);
        let outcome = run.finish();
        let got = format!("got {name}");
        assert_eq!(outcome.stdout.lines().filter(|line| *line == got).count(), 2);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    }
}

#[test]
fn a_signal_that_kills_the_ranks_is_the_status() {
    let mut run = Run::start(gaspi_run(&["-n", "2", "sh", "-c", "echo ready; exec sleep 1000"]));
    run.lines(2);
    run.signal("TERM");
    let outcome = run.finish();
    assert_eq!((outcome.code, outcome.signal), (Some(143), None));
    assert!(outcome.stderr.contains("signal 15 (SIGTERM)"), "{}", outcome.stderr);
}

#[test]
fn a_second_interrupt_kills() {
    let text = "trap 'echo first' INT; echo ready; while :; do sleep 0.05; done";
    let mut run = Run::start(gaspi_run(&["-n", "2", "sh", "-c", text]));
    run.lines(2);
    run.signal("INT");
    run.lines(4);
    run.signal("INT");
    let outcome = run.finish();
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("second interrupt"), "{}", outcome.stderr);
}

#[test]
fn ranks_end_with_gaspi_run() {
    let directory = tempfile::tempdir().expect("directory");
    let fifo = directory.path().join("alive");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let text =
        format!("exec 3>{}; echo ready; trap '' TERM INT HUP; exec sleep 1000", fifo.display());
    let mut run = Run::start(gaspi_run(&["-n", "4", "sh", "-c", &text]));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut rest = Vec::new();
        let end = fs::File::open(&fifo).and_then(|mut file| file.read_to_end(&mut rest));
        sender.send(end.is_ok()).expect("send");
    });
    run.lines(4);
    run.signal("KILL");
    assert!(receiver.recv_timeout(GUARD).expect("ranks are left"));
    assert_eq!(run.finish().signal, Some(9));
}

#[test]
fn a_process_left_behind_does_not_hold_up_the_end() {
    let started = Instant::now();
    // The child keeps both pipes open.
    let outcome = script("2", "sleep 30 & echo done").success();
    assert_eq!(outcome.stdout, "done\ndone\n");
    // One that writes without end does not either.
    let outcome = script("1", "(timeout 20 yes & ) ; echo done").success();
    assert!(outcome.stdout.contains("done\n"));
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn closed_output_does_not_hang() {
    script("2", "exec >&- 2>&-; exit 0").success();
    // A reader that goes away.
    let mut command = gaspi_run(&["-n", "2", "sh", "-c", "yes | head -c 1000000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("gaspi_run");
    drop(child.stdout.take());
    let outcome = child.wait().expect("wait");
    assert_eq!(outcome.code(), Some(0));
}

#[test]
fn programs_that_are_none() {
    let directory = tempfile::tempdir().expect("directory");
    let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    fs::write(path("plain"), "text").expect("write");
    executable(Path::new(&path("no-interpreter")), "#!/nonexistent/interpreter\n");
    let cases = [
        (path("missing"), 127, "does not exist"),
        ("no-such-program-anywhere".to_owned(), 127, "not found in PATH"),
        (path("plain"), 126, "not executable"),
        (path(""), 126, "is a directory"),
        (path("no-interpreter"), 127, "interpreter"),
    ];
    for (program, code, word) in cases {
        let outcome = run(&["-n", "2", &program]);
        assert_eq!(outcome.code, Some(code), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(&program), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
}

#[test]
fn numbers_of_ranks_that_are_none() {
    for (ranks, word) in [("0", "1 to 65535"), ("100000", "1 to 65535"), ("many", "1 to 65535")] {
        let outcome = run(&["-n", ranks, "true"]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
    }
    let outcome = run(&["true"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("-n N"), "{}", outcome.stderr);
}

#[test]
fn descriptors_that_run_out_are_told_before_anything_starts() {
    let run = env!("CARGO_BIN_EXE_gaspi_run");
    let line = format!("ulimit -n 200; exec {run} -n 100 echo started");
    let outcome = Command::new("sh").args(["-c", &line]).output().expect("sh");
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(125), "{text}");
    assert!(text.contains("file descriptors") && text.lines().count() == 1, "{text}");
    assert!(outcome.stdout.is_empty());
}

#[test]
fn the_limit_of_descriptors_is_raised_for_gaspi_run_only() {
    let run = env!("CARGO_BIN_EXE_gaspi_run");
    let line = format!("ulimit -Sn 40; exec {run} -n 30 sh -c 'ulimit -Sn'");
    let outcome = Command::new("sh").args(["-c", &line]).output().expect("sh");
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&outcome.stderr));
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "40\n".repeat(30));
}

#[test]
fn machine_files() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("hosts");
    let file = path.to_string_lossy().into_owned();
    let name = fs::read_to_string("/proc/sys/kernel/hostname").expect("name").trim().to_owned();
    fs::write(&path, format!("# all\r\nlocalhost\r\n\r\n127.0.0.1\r\n{name}\r\n::1"))
        .expect("write");
    let show = "echo $GASPI_RANK of $GASPI_NRANKS $GASPI_MFILE";
    let outcome = run(&["-m", &file, "sh", "-c", show]).success();
    let expected: Vec<String> = (0..4).map(|rank| format!("{rank} of 4 {file}")).collect();
    assert_eq!(outcome.sorted(), expected);
    // Fewer ranks than lines, and a relative name.
    let mut command = gaspi_run(&["-m", "hosts", "-n", "1", "sh", "-c", show]);
    command.current_dir(directory.path());
    let outcome = Run::start(command).finish().success();
    assert_eq!(outcome.stdout.trim(), format!("0 of 1 {file}"));
    let outcome = run(&["-m", &file, "-n", "5", "true"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("too few for 5 ranks"), "{}", outcome.stderr);

    fs::write(&path, "localhost\n192.0.2.199\n").expect("write");
    let outcome = run(&["-m", &file, "true"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("rank 1 is to run on \"192.0.2.199\""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("not available in this version"), "{}", outcome.stderr);
    fs::write(&path, "\n# none\n").expect("write");
    let outcome = run(&["-m", &file, "true"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("names no host"), "{}", outcome.stderr);
    let outcome = run(&["-m", "/nonexistent/hosts", "true"]);
    assert!(outcome.stderr.contains("/nonexistent/hosts"), "{}", outcome.stderr);
}

#[test]
fn another_program_for_rank_0() {
    let directory = tempfile::tempdir().expect("directory");
    let (zero, others) = (directory.path().join("zero"), directory.path().join("others"));
    executable(&zero, "#!/bin/sh\necho zero $GASPI_RANK $1\n");
    executable(&others, "#!/bin/sh\necho other $GASPI_RANK $1\n");
    let (zero, others) = (zero.to_string_lossy(), others.to_string_lossy());
    let outcome = run(&["-n", "3", "-b", &zero, &others, "x"]).success();
    assert_eq!(outcome.sorted(), ["other 1 x", "other 2 x", "zero 0 x"]);
}

#[test]
fn numa_binding_is_asked_for_by_the_environment() {
    let show = "echo ${GASPI_SET_NUMA_SOCKET-unset}";
    assert_eq!(script("1", show).success().stdout, "unset\n");
    assert_eq!(run(&["-n", "1", "-N", "sh", "-c", show]).success().stdout, "1\n");
}

#[test]
fn help_teaches() {
    let outcome = run(&["--help"]).success();
    for word in ["--kill-on-failure", "GASPI_RANK", "Examples:", "exit status"] {
        assert!(outcome.stdout.contains(word), "{word}: {}", outcome.stdout);
    }
    let outcome = run(&["-n", "1", "-p", "true"]).success();
    assert!(outcome.stderr.contains("is this machine"), "{}", outcome.stderr);
}

#[test]
fn signals_ignored_before_stay_ignored() {
    let run = env!("CARGO_BIN_EXE_gaspi_run");
    let line = format!("trap '' HUP; exec {run} -n 1 grep -E 'SigIgn|SigBlk' /proc/self/status");
    let outcome = Command::new("sh").args(["-c", &line]).output().expect("sh");
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
    assert!(text.contains("SigIgn:\t0000000000000001"), "{text}");
}

#[test]
fn many_ranks() {
    let outcome = script("200", "echo $GASPI_RANK").success();
    assert_eq!(outcome.stdout.lines().count(), 200);
}
