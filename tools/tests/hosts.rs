//! Jobs over several hosts: what ranks there are given, what comes back, how it all ends. The hosts
//! are this machine behind a program in the place of ssh, so this runs everywhere.

mod harness;

use harness::far::{Far, not_installed};
use harness::{AWAIT, GUARD, Outcome, Run, gaspi_run, gate};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;

/// Two hosts and this machine between them.
const MIXED: &str = "240.0.0.1:2,127.0.0.1,240.0.0.2";

fn run(far: &Far, arguments: &[&str]) -> Outcome {
    Run::start(far.gaspi_run(arguments)).finish()
}

/// Becomes true when nobody has the FIFO open for writing any more.
fn closed(fifo: &Path) -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    let fifo = fifo.to_owned();
    thread::spawn(move || {
        let mut rest = Vec::new();
        fs::File::open(&fifo).and_then(|mut file| file.read_to_end(&mut rest)).expect("FIFO");
        // The test may have failed already.
        let _ = sender.send(());
    });
    receiver
}

#[test]
fn each_rank_learns_its_place_whatever_the_order_of_lines() {
    let far = Far::new();
    let file = far.path("machines");
    fs::write(&file, "240.0.0.1\n# here:\n127.0.0.1\n240.0.0.2\r\n240.0.0.1\n\n[100::7]")
        .expect("write");
    let name = file.to_string_lossy().into_owned();
    let text = "echo $GASPI_RANK $GASPI_NRANKS $GASPI_SOCKET $GASPI_HOSTS $GASPI_HOST \
                ${SSH_FAR-here} ${GASPI_MFILE##*/} ${GASPI_JOB_ID:+id}";
    let outcome = run(&far, &["-m", &name, "sh", "-c", text]).success();
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("name");
    let expected = [
        "0 5 0 4 240.0.0.1 240.0.0.1 machines id".to_owned(),
        format!("1 5 0 4 {} here machines id", own.trim()),
        "2 5 0 4 240.0.0.2 240.0.0.2 machines id".to_owned(),
        "3 5 1 4 240.0.0.1 240.0.0.1 machines id".to_owned(),
        "4 5 0 4 [100::7] 100::7 machines id".to_owned(),
    ];
    assert_eq!(outcome.sorted(), expected);
    assert_eq!(outcome.stderr, "");
    // One connection per host, and nothing of the job on a command line that others can read.
    assert_eq!(far.calls().lines().count(), 3, "{}", far.calls());
    // Fewer ranks than lines.
    let outcome = run(&far, &["-n", "2", "-m", &name, "sh", "-c", "echo $SSH_FAR"]).success();
    assert_eq!(outcome.sorted(), ["", "240.0.0.1"]);
    // What is installed there is used, not a copy.
    let outcome = run(&far, &["--hosts", "240.0.0.1", "sh", "-c", "readlink /proc/$PPID/exe"]);
    assert_eq!(outcome.success().stdout.trim(), env!("CARGO_BIN_EXE_gaspi_run"));
}

#[test]
fn the_same_meeting_on_a_host_and_another_on_each() {
    let far = Far::new();
    let text = "echo $GASPI_JOB_ID $GASPI_MEETING";
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", text]).success();
    let mut meetings: Vec<&str> = outcome.stdout.split_whitespace().skip(1).step_by(2).collect();
    let ids: Vec<&str> = outcome.stdout.split_whitespace().step_by(2).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{}", outcome.stdout);
    meetings.sort_unstable();
    meetings.dedup();
    assert_eq!(meetings.len(), 3, "{}", outcome.stdout);
}

#[test]
fn environment_directory_umask_and_arguments_are_carried() {
    let far = Far::new();
    let odd = ["a b", "", "'\"$HOME`\\", "two\nlines", "-n", "--label", "*", "ä!"];
    let show = "for a; do printf '<%s>' \"$a\"; done; \
                echo \"|$MINE|$LD_LIBRARY_PATH|$PATH|$PWD|$(pwd)|$(umask)\"; \
                echo \"$HOME|$SSH_AUTH_SOCK|${DISPLAY-none}|${GASPI_KEPT}|${GASPI_MFILE-none}\"";
    let mut line = vec!["--hosts", "240.0.0.1", "sh", "-c", show, "name"];
    line.extend(odd);
    let directory = far.path("a directory");
    fs::create_dir(&directory).expect("directory");
    let mut command = Command::new("sh");
    command.args(["-c", "umask 027; exec \"$@\"", "sh"]);
    let run = far.gaspi_run(&line);
    command.arg(run.get_program()).args(run.get_args());
    command.current_dir(&directory).env("PWD", &directory);
    command.env("MINE", "a  b\nc=d").env("LD_LIBRARY_PATH", "/opt/lib").env("PATH", "/bin:/mine");
    command.env("HOME", "/here").env("SSH_AUTH_SOCK", "here").env("DISPLAY", ":7");
    command.env("GASPI_KEPT", "yes").env("GASPI_MFILE", "/stale").env("GASPI_RANK", "9");
    let outcome = Run::start(command).finish().success();
    let words: String = odd.iter().map(|word| format!("<{word}>")).collect();
    let (pwd, home) = (directory.display(), far.path("home"));
    let expected = format!(
        "{words}|a  b\nc=d|/opt/lib|/bin:/mine|{pwd}|{pwd}|0027\n\
         {}|of-the-far-side|none|yes|none\n",
        home.display()
    );
    assert_eq!(outcome.stdout, expected);
}

#[test]
fn standard_input_reaches_rank_0_elsewhere() {
    let far = Far::new();
    // More than all windows and pipes on the way hold.
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut command = far.gaspi_run(&["--hosts", "240.0.0.1,127.0.0.1,240.0.0.2", "cat"]);
    command.stdin(Stdio::piped());
    let mut run = Run::start(command);
    let mut stdin = run.child.stdin.take().expect("stdin");
    let sent = bytes.clone();
    let writer = thread::spawn(move || stdin.write_all(&sent).expect("write"));
    let mut got = Vec::new();
    while let Ok(part) = run.stdout.recv_timeout(GUARD) {
        got.extend(part);
    }
    writer.join().expect("writer");
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    assert_eq!(run.finish().code, Some(0));
    // A rank that does not read holds up nothing.
    let mut command = far.gaspi_run(&["--hosts", "240.0.0.1", "true"]);
    command.stdin(fs::File::open("/dev/zero").expect("zero"));
    Run::start(command).finish().success();
}

#[test]
fn output_comes_by_whole_lines_from_everywhere() {
    let far = Far::new();
    let text = "c=$(printf %b \\\\$(printf %o $((97 + GASPI_RANK)))); \
                long=$(head -c 5000 /dev/zero | tr '\\0' $c); \
                for i in 1 2 3 4 5 6 7 8 9 10; do \
                printf %s $long; printf '%s\\n' $long; done; echo e$GASPI_RANK >&2";
    let outcome = run(&far, &["--hosts", "240.0.0.1:3,127.0.0.1,240.0.0.2", "sh", "-c", text]);
    let outcome = outcome.success();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 5 * 10);
    for line in lines {
        let first = line.as_bytes()[0];
        assert!(line.len() == 10_000 && line.bytes().all(|byte| byte == first), "torn: {line}");
    }
    let mut errors: Vec<&str> = outcome.stderr.lines().collect();
    errors.sort_unstable();
    assert_eq!(errors, ["e0", "e1", "e2", "e3", "e4"]);
}

#[test]
fn labels_and_files_for_all_hosts() {
    let far = Far::new();
    let text = "printf 'out %s' $GASPI_RANK; printf 'a\\0b' >&2";
    let outcome = run(&far, &["--hosts", MIXED, "--label", "sh", "-c", text]).success();
    for rank in 0..4 {
        assert!(outcome.stdout.contains(&format!("[{rank}] out {rank}")), "{}", outcome.stdout);
    }
    assert!(outcome.stderr.contains("gaspi_run: rank 3 (pid "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(", host 240.0.0.2) on "), "{}", outcome.stderr);
    let log = far.path("log").to_string_lossy().into_owned();
    let outcome =
        run(&far, &["--hosts", MIXED, "--label", "--output-dir", &log, "sh", "-c", text]).success();
    assert_eq!(outcome.stdout, "");
    for rank in 0..4 {
        let read = |name: String| fs::read(far.path("log").join(name)).expect("file");
        assert_eq!(read(format!("rank-{rank}.out")), format!("out {rank}").as_bytes());
        assert_eq!(read(format!("rank-{rank}.err")), b"a\0b");
    }
}

#[test]
fn endings_name_the_host() {
    let far = Far::new();
    let text = "case $GASPI_RANK in 1) exit 3 ;; 3) kill -9 $$ ;; esac";
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", text]);
    assert!([Some(3), Some(137)].contains(&outcome.code), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", outcome.stderr);
    assert!(lines[0].starts_with("gaspi_run: rank 3 (pid "), "{}", lines[0]);
    assert!(lines[0].ends_with(", host 240.0.0.2) was killed by signal 9 (SIGKILL)"));
    assert!(lines[1].ends_with(", host 240.0.0.1) ended with exit status 3"), "{}", lines[1]);
}

#[test]
fn a_host_that_cannot_be_reached_is_named_with_the_words_of_ssh() {
    let refuse = "[ \"$host\" = 240.0.0.9 ] && { echo \"ssh: connect to host $host port 22: \
                  Connection refused\" >&2; exit 255; }";
    let far = Far::with(refuse);
    let hosts = "240.0.0.1,127.0.0.1,240.0.0.9,240.0.0.2";
    let started = far.path("started").to_string_lossy().into_owned();
    let outcome = run(&far, &["--hosts", hosts, "touch", &started]);
    assert_eq!(outcome.code, Some(255), "{}", outcome.stderr);
    let words = "host 240.0.0.9: ";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    let words = "exit status 255: ssh: connect to host 240.0.0.9 port 22: Connection refused";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(!Path::new(&started).exists(), "a rank was started");
    // A message of several lines stays one.
    let far = Far::with("[ \"$host\" = 240.0.0.9 ] && { echo one; echo two; } >&2 && exit 255");
    let outcome = run(&far, &["--hosts", hosts, "true"]);
    assert!(outcome.stderr.ends_with("exit status 255:\n  one\n  two\n"), "{}", outcome.stderr);
    // No such program as ssh.
    let outcome =
        Run::start(gaspi_run(&["--ssh", "/nonexistent/ssh", "--hosts", hosts, "true"])).finish();
    assert_eq!(outcome.code, Some(255));
    assert!(outcome.stderr.contains("starting /nonexistent/ssh"), "{}", outcome.stderr);
}

#[test]
fn what_is_missing_there_is_told_before_anything_starts() {
    // The other machine has another root for this.
    let far = Far::with("[ \"$host\" = 240.0.0.2 ] && rm -rf DIRECTORY/work");
    let work = far.path("work");
    fs::create_dir(&work).expect("directory");
    let mut command = far.gaspi_run(&["--hosts", "240.0.0.1,240.0.0.2,127.0.0.1", "touch", "mark"]);
    command.current_dir(&work).env("PWD", &work);
    let outcome = Run::start(command).finish();
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    let text = &outcome.stderr;
    assert!(text.contains("working directory") && text.contains("/work"), "{text}");
    assert!(text.starts_with("gaspi_run: host 240.0.0.") && text.lines().count() == 1, "{text}");
    for (program, code, word) in [
        ("/nonexistent/program", 127, "does not exist"),
        ("no-such-program-anywhere", 127, "not found in PATH"),
        ("/tmp", 126, "is a directory"),
    ] {
        let outcome = run(&far, &["--hosts", "240.0.0.1", program]);
        let text = &outcome.stderr;
        assert_eq!(outcome.code, Some(code), "{text}");
        assert!(text.contains("host 240.0.0.1: ") && text.contains(word), "{text}");
    }
}

#[test]
fn a_login_that_talks_does_not_disturb() {
    let far = Far::with("echo 'Welcome! @gaspi ru'; printf 'no newline'; echo noise >&2");
    let outcome = run(&far, &["--hosts", "240.0.0.1:2", "echo", "x"]).success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("x\nx\n", ""));
}

#[test]
fn options_are_handed_to_ssh() {
    let far = Far::new();
    let options = ["--ssh-option", "-p", "--ssh-option", "2222", "--ssh-option=-oUser=me"];
    let rest = ["--hosts", "240.0.0.1", "true"];
    run(&far, &[&options[..], &rest[..]].concat()).success();
    let calls = far.calls();
    assert!(calls.starts_with("-p 2222 -oUser=me -T -o BatchMode=yes"), "{calls}");
    assert!(calls.contains("ServerAliveInterval=1"), "{calls}");
    // By the environment, with options.
    let mut command = gaspi_run(&["--hosts", "[100::1]", "true"]);
    command.env("GASPI_SSH", format!("{} -i key", far.path("ssh").display()));
    Run::start(command).finish().success();
    assert!(far.calls().lines().last().is_some_and(|call| call.starts_with("-i key -T ")));
    assert!(far.calls().contains(" 100::1 exec 'sh' '-c' "), "{}", far.calls());
    for hosts in ["-oProxyCommand=x", "a,,b", "a:0"] {
        let outcome = run(&far, &[&format!("--hosts={hosts}"), "true"]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    }
}

#[test]
fn gaspi_run_is_carried_over_where_it_is_not_installed() {
    let far = Far::with(&not_installed(env!("CARGO_BIN_EXE_gaspi_run")));
    let temporary = far.path("temporary");
    fs::create_dir(&temporary).expect("directory");
    // The script looks there first.
    let ssh = fs::read_to_string(far.path("ssh")).expect("script");
    let set = format!("env -i TMPDIR={} ", temporary.display());
    far.program("ssh", &ssh.replace("env -i ", &set));
    let text = "echo $GASPI_RANK; cat; ls $TMPDIR | wc -l; \
                readlink /proc/$PPID/exe | grep -c 'temporary/gaspi.*deleted'";
    let mut command = far.gaspi_run(&["--hosts", "240.0.0.1:2", "sh", "-c", text]);
    command.env("TMPDIR", &temporary).stdin(Stdio::piped());
    let mut run = Run::start(command);
    let mut stdin = run.child.stdin.take().expect("stdin");
    stdin.write_all(b"input\n").expect("write");
    drop(stdin);
    let outcome = run.finish().success();
    // The program was gone from there before it started anything.
    assert_eq!(outcome.sorted(), ["0", "0", "0", "1", "1", "1", "input"]);
    assert_eq!(fs::read_dir(&temporary).expect("directory").count(), 0);
}

#[test]
fn everything_ends_when_gaspi_run_is_killed() {
    let far = Far::new();
    let fifo = far.fifo("alive");
    let gone = closed(&fifo);
    let text =
        format!("exec 3>{}; echo ready; trap '' TERM INT HUP; exec sleep 1000", fifo.display());
    let mut run = Run::start(far.gaspi_run(&["--hosts", MIXED, "sh", "-c", &text]));
    run.lines(4);
    run.signal("KILL");
    gone.recv_timeout(GUARD).expect("ranks are left");
    assert_eq!(run.finish().signal, Some(9));
}

#[test]
fn grandchildren_elsewhere_end_with_the_connection() {
    let far = Far::new();
    let fifo = far.fifo("alive");
    let gone = closed(&fifo);
    let text = format!(
        "exec 3>{}; (trap '' TERM INT HUP; exec sleep 1000) & echo ready; exec sleep 1000",
        fifo.display()
    );
    let mut run = Run::start(far.gaspi_run(&["--hosts", "240.0.0.1,240.0.0.2", "sh", "-c", &text]));
    run.lines(2);
    run.signal("KILL");
    gone.recv_timeout(GUARD).expect("a process of the job is left");
    assert_eq!(run.finish().signal, Some(9));
}

#[test]
fn a_host_that_is_lost_is_named_and_its_ranks_are_dead() {
    // Its ssh says who it is and can be killed.
    let far = Far::with("echo $$ > DIRECTORY/pid-$host");
    let gate = far.fifo("gate");
    let fifo = far.fifo("alive");
    let gone = closed(&fifo);
    let text = format!(
        "if [ $GASPI_RANK = 1 ]; then exec 3>{}; echo ready; exec sleep 1000; fi; \
         echo ready; read x < {}; echo survived",
        fifo.display(),
        gate.display()
    );
    let mut run = Run::start(far.gaspi_run(&["--hosts", "240.0.0.1,240.0.0.2", "sh", "-c", &text]));
    run.lines(2);
    // It ends without a word; its agent sees that only by the connection.
    let pid = fs::read_to_string(far.path("pid-240.0.0.2")).expect("pid");
    assert!(Command::new("kill").args(["-9", pid.trim()]).status().expect("kill").success());
    gone.recv_timeout(GUARD).expect("a rank outlives its connection");
    fs::write(&gate, "go\n").expect("gate");
    let outcome = run.finish();
    assert!(outcome.stdout.ends_with("survived\n"), "{}", outcome.stdout);
    assert_eq!(outcome.code, Some(255), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("host 240.0.0.2 was lost: "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("killed by signal 9"), "{}", outcome.stderr);
    let end = ", host 240.0.0.2) was lost with its host";
    assert!(outcome.stderr.contains(end), "{}", outcome.stderr);
}

#[test]
fn kill_on_failure_ends_all_hosts_and_leaves_nothing() {
    let far = Far::new();
    let fifo = far.fifo("alive");
    let gone = closed(&fifo);
    let text = format!(
        "exec 3>{}; (trap '' TERM; exec sleep 1000) & [ $GASPI_RANK = 3 ] && exit 5; \
         exec sleep 1000",
        fifo.display()
    );
    let outcome = run(&far, &["--hosts", MIXED, "--kill-on-failure", "sh", "-c", &text]);
    assert_eq!(outcome.code, Some(5), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("rank 3 failed: ending the job"), "{}", outcome.stderr);
    gone.recv_timeout(GUARD).expect("a process of the job is left");
}

#[test]
fn signals_reach_all_hosts() {
    let far = Far::new();
    let gate = gate(far.directory.path());
    for name in ["TERM", "USR2"] {
        let text = format!(
            "exec 3<>{}; trap 'echo got {name}; exit 0' {name}; echo ready; {AWAIT}",
            gate.display()
        );
        let mut run = Run::start(far.gaspi_run(&["--hosts", MIXED, "sh", "-c", &text]));
        run.lines(4);
        run.signal(name);
        let outcome = run.finish();
        let got = format!("got {name}");
        assert_eq!(outcome.stdout.lines().filter(|line| *line == got).count(), 4);
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    }
    // The second interrupt kills.
    let text = format!("exec 3<>{}; trap 'echo first' INT; echo ready; {AWAIT}", gate.display());
    let mut run = Run::start(far.gaspi_run(&["--label", "--hosts", MIXED, "sh", "-c", &text]));
    run.lines(4);
    run.signal("INT");
    run.lines(8);
    run.signal("INT");
    assert_eq!(run.finish().code, Some(137));
}

#[test]
fn kill_on_failure_ends_ranks_elsewhere_that_ignore_an_interrupt() {
    let far = Far::new();
    let text = "[ $GASPI_RANK = 1 ] && trap '' INT; echo ready; exec sleep 1000";
    let hosts = ["--hosts", "127.0.0.1,240.0.0.1", "--kill-on-failure"];
    let mut run = Run::start(far.gaspi_run(&[&hosts[..], &["sh", "-c", text]].concat()));
    run.lines(2);
    run.signal("INT");
    let outcome = run.finish();
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("1 rank was ended by gaspi_run"), "{}", outcome.stderr);
}

/// Runs gaspi_run on a terminal: what comes out of it, and the keyboard.
fn on_a_terminal(command: &Command) -> (Run, ChildStdin) {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted = |word: &OsStr| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''"));
    let line: Vec<String> = words.map(quoted).collect();
    // A terminal belongs to a shell, whose job gaspi_run is; which shell is not to matter.
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &format!("exec {}", line.join(" ")), "/dev/null"]);
    terminal.env("SHELL", "/bin/sh").stdin(Stdio::piped());
    let mut run = Run::start(terminal);
    let keyboard = run.child.stdin.take().expect("stdin");
    (run, keyboard)
}

#[test]
fn a_terminal_reaches_all_hosts_once() {
    // What is behind a real ssh has no part in the terminal here.
    let far =
        Far::with("exec setsid -w env -i PATH=/usr/bin:/bin GASPI_MACHINE=$host sh -c \"$*\"");
    let gate = gate(far.directory.path());
    let text = format!(
        "exec 3<>{}; trap 'echo got INT' INT; echo ready; \
         [ $GASPI_RANK = 0 ] && read n && echo hello $n; {AWAIT}; echo end",
        gate.display()
    );
    let mut go = fs::OpenOptions::new().read(true).write(true).open(&gate).expect("gate");
    let hosts = "240.0.0.1,127.0.0.1,240.0.0.2";
    let (mut run, mut keyboard) =
        on_a_terminal(&far.gaspi_run(&["--hosts", hosts, "sh", "-c", &text]));
    run.until_times("ready", 3);
    keyboard.write_all(b"ada\n").expect("write");
    run.until("hello ada");
    keyboard.write_all(&[3]).expect("write");
    run.until_times("got INT", 3);
    go.write_all(b"\n\n\n").expect("gate");
    let outcome = run.finish().success();
    assert_eq!(outcome.stdout.matches("got INT").count(), 3, "{}", outcome.stdout);
    assert_eq!(outcome.stdout.matches("end").count(), 3, "{}", outcome.stdout);
}

#[test]
fn the_table_of_all_hosts_changes_nothing() {
    let far = Far::new();
    let gate = far.path("gate");
    let text = format!(
        "echo ready $GASPI_RANK; [ $GASPI_RANK = 2 ] && kill -s STOP $$; \
         while [ ! -e {} ]; do sleep 0.05; done",
        gate.display()
    );
    let mut run = Run::start(far.gaspi_run(&["--hosts", MIXED, "sh", "-c", &text]));
    run.lines(4);
    let mut rows = Vec::new();
    while !rows.iter().any(|row: &String| row.contains("stopped")) {
        run.signal("USR1");
        let mut seen = Vec::new();
        let is_whole = |seen: &[u8]| {
            String::from_utf8_lossy(seen).contains("     3  240.0.0.2") && seen.ends_with(b"\n")
        };
        while !is_whole(&seen) {
            seen.extend(run.stderr.recv_timeout(GUARD).expect("table"));
        }
        rows = String::from_utf8_lossy(&seen).lines().map(str::to_owned).collect();
    }
    let row = |rank: usize| rows.iter().find(|row| row.starts_with(&format!("     {rank}  ")));
    for rank in 0..4 {
        let row = row(rank).expect("row");
        assert!(row.contains("has not called proc_init"), "{row}");
    }
    fs::write(&gate, "").expect("gate");
    run.signal("CONT");
    run.finish().success();
}

#[test]
fn the_time_limit_shows_all_ranks_and_ends_them() {
    let far = Far::new();
    let text = "[ $GASPI_RANK = 1 ] && exit 0; exec sleep 1000";
    let outcome = run(&far, &["--hosts", MIXED, "--timeout", "1", "sh", "-c", text]);
    assert_eq!(outcome.code, Some(124), "{}", outcome.stderr);
    let text = &outcome.stderr;
    assert!(text.contains("  rank  host"), "{text}");
    let rows = text.lines().filter(|line| line.contains("has not called proc_init")).count();
    assert_eq!(rows, 3, "{text}");
    assert!(text.contains("240.0.0.1") && text.contains("exit status 0"), "{text}");
    let said = "ranks 0,2-3 still running after 1.0 s (--timeout): ending the job";
    assert!(text.contains(said), "{text}");
}

#[test]
fn an_incomplete_start_says_what_is_missing() {
    let far = Far::with("[ \"$host\" = 240.0.0.2 ] && exec sleep 1000");
    let arguments = ["--hosts", "240.0.0.1,240.0.0.2:2", "--timeout", "6", "echo", "x"];
    let outcome = run(&far, &arguments);
    assert_eq!(outcome.code, Some(124), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let missing = "ranks 1-2 on host 240.0.0.2: the agent is being started";
    assert_eq!(
        lines,
        [
            format!("gaspi_run: waiting for {missing}"),
            format!("gaspi_run: waited 6.0 s (--timeout) for {missing}"),
        ]
    );
    assert_eq!(outcome.stdout, "");
    // An interrupt gives up.
    let fifo = far.fifo("started");
    let prepare = format!("echo started > {}; exec sleep 1000", fifo.display());
    let far = Far::with(&prepare);
    let run = Run::start(far.gaspi_run(&["--hosts", "240.0.0.2", "echo", "x"]));
    fs::read(&fifo).expect("FIFO");
    run.signal("INT");
    let outcome = run.finish();
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
}

#[test]
fn ping_asks_every_host() {
    let far = Far::with("[ \"$host\" = 240.0.0.9 ] && { echo refused >&2; exit 255; }");
    let outcome = run(&far, &["--hosts", "240.0.0.1,240.0.0.9,127.0.0.1", "-p"]);
    assert_eq!(outcome.code, Some(255), "{}", outcome.stderr);
    let mut lines: Vec<&str> = outcome.stderr.lines().collect();
    lines.sort_unstable();
    let ssh = far.path("ssh");
    assert_eq!(
        lines,
        [
            "gaspi_run: 1 of 3 hosts do not answer".to_owned(),
            "gaspi_run: 127.0.0.1 is this machine".to_owned(),
            "gaspi_run: 240.0.0.1 answers".to_owned(),
            format!(
                "gaspi_run: 240.0.0.9 does not answer: {} ended with exit status 255: refused",
                ssh.display()
            ),
        ]
    );
    let outcome = run(&far, &["--hosts", "240.0.0.1,240.0.0.2", "-p"]).success();
    assert_eq!(outcome.stderr.matches(" answers\n").count(), 2, "{}", outcome.stderr);
    let outcome = run(&far, &["--hosts", "240.0.0.1", "-p", "echo", "ran"]).success();
    assert_eq!(outcome.stdout, "ran\n");
}

#[test]
fn a_reader_that_does_not_read_holds_up_neither_signals_nor_memory() {
    let far = Far::new();
    let mut command = far.gaspi_run(&["--hosts", "240.0.0.1,240.0.0.2", "yes"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("gaspi_run");
    let pid = child.id().to_string();
    let mut stdout = child.stdout.take().expect("stdout");
    stdout.read_exact(&mut [0; 1]).expect("first byte");
    let deadline = std::time::Instant::now() + GUARD;
    // The first signal ends the ranks, a further one the waiting for the reader.
    while child.try_wait().expect("wait").is_none() {
        if std::time::Instant::now() > deadline {
            let _ = child.kill();
            panic!("signals are held up");
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = rss.and_then(|rss| rss.split_whitespace().next()?.parse::<u64>().ok());
        assert!(kib.is_none_or(|kib| kib < 100_000), "gaspi_run takes {kib:?} KiB");
        let _ = Command::new("kill").args(["-TERM", &pid]).stderr(Stdio::null()).status();
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The first rank tells the agent to end, which is its parent.
#[test]
fn an_agent_that_is_told_to_end_starts_no_further_ranks() {
    const RANKS: usize = 400;
    let far = Far::new();
    let started = far.path("started");
    let text = format!("echo x >>'{}'; kill -TERM $PPID; exec sleep 60", started.display());
    let count = RANKS.to_string();
    let line = ["--hosts", "240.0.0.1", "--oversubscribe", "-n", count.as_str(), "sh", "-c", &text];
    let outcome = run(&far, &line);
    assert_ne!(outcome.code, Some(0), "{}", outcome.stderr);
    let begun = fs::read_to_string(started).expect("the first one").lines().count();
    assert!(begun < RANKS / 2, "{begun} were started");
}
