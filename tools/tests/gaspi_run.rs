//! The real gaspi_run on shell scripts: what ranks are given, what comes out, how it ends.

mod harness;

use harness::{AWAIT, GUARD, Run, collect, ended, executable, gaspi_run, gate, run, script, shell};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

const RUN: &str = env!("CARGO_BIN_EXE_gaspi_run");

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
    assert!(ended(command.spawn().expect("gaspi_run")).success());
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
    let directory = tempfile::tempdir().expect("directory");
    let gate = gate(directory.path());
    for name in ["TERM", "INT", "USR2", "HUP", "QUIT"] {
        let text = format!(
            "exec 3<>{}; trap 'echo got {name}; exit 0' {name}; echo ready; {AWAIT}",
            gate.display()
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
    let directory = tempfile::tempdir().expect("directory");
    let gate = gate(directory.path());
    let text = format!("exec 3<>{}; trap 'echo first' INT; echo ready; {AWAIT}", gate.display());
    let mut run = Run::start(gaspi_run(&["-n", "2", "sh", "-c", &text]));
    run.lines(2);
    run.signal("INT");
    run.lines(4);
    run.signal("INT");
    let outcome = run.finish();
    assert_eq!(outcome.code, Some(137), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("second interrupt"), "{}", outcome.stderr);
}

#[test]
fn a_rank_that_fails_by_an_interrupt_ends_those_that_ignore_it() {
    let text = "[ $GASPI_RANK = 1 ] && trap '' INT; echo ready; exec sleep 1000";
    for option in ["--kill-on-failure", "--min-ranks=2"] {
        let mut run = Run::start(gaspi_run(&["-n", "2", option, "sh", "-c", text]));
        run.lines(2);
        run.signal("INT");
        let outcome = run.finish();
        assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
        let named = option.replace('=', " ");
        let why = format!("gaspi_run: rank 0 failed: ending the job ({named})\n");
        assert!(outcome.stderr.contains(&why), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("1 rank was ended by gaspi_run"), "{}", outcome.stderr);
    }
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
    // The child keeps both pipes open.
    let mut run = Run::start(gaspi_run(&["-n", "1", "sh", "-c", "sleep 1000 & echo $!"]));
    let pid = run.lines(1)[0].clone();
    run.finish().success();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill").success());
    // One that writes without end does not hold it up either, and ends by its closed pipe.
    let outcome = script("1", "yes & echo done").success();
    assert!(outcome.stdout.contains("done\n"));
}

#[test]
fn closed_output_does_not_hang() {
    script("2", "exec >&- 2>&-; exit 0").success();
    // A reader that goes away.
    let mut command = gaspi_run(&["-n", "2", "sh", "-c", "yes | head -c 1000000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("gaspi_run");
    drop(child.stdout.take());
    assert_eq!(ended(child).code(), Some(0));
    let outcome = shell(&format!("{RUN} -n 2 seq 100000 | head -n 1")).success();
    let line = "gaspi_run: standard output: its reader has gone; what ranks still write there is \
                lost\n";
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("1\n", line));
}

#[test]
fn output_that_a_full_disk_does_not_take_is_an_error() {
    let full = "standard output: No space left on device (os error 28); what ranks still write";
    let outcome = shell(&format!("{RUN} -n 2 echo text > /dev/full"));
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches(full).count(), 1, "{}", outcome.stderr);
    // The failure of a rank counts more.
    let outcome = shell(&format!("{RUN} -n 2 sh -c 'echo text; exit 3' > /dev/full"));
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(full), "{}", outcome.stderr);
    // Nothing is left to say it by.
    let outcome = shell(&format!("{RUN} -n 2 sh -c 'echo text >&2' 2> /dev/full"));
    assert_eq!(outcome.code, Some(125));
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
    let range = "1 to 65535";
    for (ranks, word) in [("0", range), ("100000", range), ("many", range), ("p", "-np")] {
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
    let line = format!("ulimit -n 200; exec {RUN} -n 100 echo started");
    let outcome = shell(&line);
    let text = &outcome.stderr;
    assert_eq!(outcome.code, Some(125), "{text}");
    assert!(text.contains("file descriptors") && text.lines().count() == 1, "{text}");
    assert!(outcome.stdout.is_empty());
}

#[test]
fn the_limit_of_descriptors_is_raised_for_gaspi_run_only() {
    let line = format!("ulimit -Sn 40; exec {RUN} -n 30 sh -c 'ulimit -Sn'");
    assert_eq!(shell(&line).success().stdout, "40\n".repeat(30));
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
    let line = format!("trap '' HUP; exec {RUN} -n 1 grep -E 'SigIgn|SigBlk' /proc/self/status");
    let text = shell(&line).success().stdout;
    assert!(text.contains("SigBlk:\t0000000000000000"), "{text}");
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("line");
    let ignored = u64::from_str_radix(ignored, 16).expect("mask");
    let bit = |signal: u32| ignored >> (signal - 1) & 1;
    // SIGHUP as told; SIGPIPE, which gaspi_run ignores for itself, is back at its default.
    assert_eq!((bit(1), bit(13)), (1, 0), "{text}");
}

#[test]
fn many_ranks() {
    let outcome = script("200", "echo $GASPI_RANK").success();
    assert_eq!(outcome.stdout.lines().count(), 200);
}

/// Starts gaspi_run on a terminal of its own, whose keyboard is the pipe.
fn on_a_terminal(arguments: &str) -> (Run, std::process::ChildStdin) {
    // A shell that stayed between would be interrupted too, and its status would be seen.
    let line = format!("exec {} {arguments}", RUN);
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped());
    let mut run = Run::start(command);
    let keyboard = run.child.stdin.take().expect("stdin");
    (run, keyboard)
}

#[test]
fn an_interrupt_from_the_terminal_arrives_once() {
    let directory = tempfile::tempdir().expect("directory");
    let gate = gate(directory.path());
    let text = format!(
        "exec 3<>{}; trap \"echo got INT\" INT; echo ready; {AWAIT}; echo end",
        gate.display()
    );
    // Held open, so that the lines are there for ranks that come late.
    let mut go = fs::OpenOptions::new().read(true).write(true).open(&gate).expect("gate");
    let (mut run, mut keyboard) = on_a_terminal(&format!("-n 2 sh -c '{text}'"));
    run.lines(2);
    keyboard.write_all(&[3]).expect("write");
    run.until_times("got INT", 2);
    // A second one would come before the end.
    go.write_all(b"\n\n").expect("gate");
    let outcome = run.finish().success();
    assert_eq!(outcome.stdout.matches("got INT").count(), 2, "{}", outcome.stdout);
    assert_eq!(outcome.stdout.matches("end").count(), 2, "{}", outcome.stdout);
}

#[test]
fn a_terminal_that_goes_ends_the_ranks() {
    let (mut run, _keyboard) = on_a_terminal("-n 2 sh -c 'echo $PPID $$; exec sleep 1000'");
    let lines = run.lines(2).join(" ");
    let (pids, begin): (Vec<&str>, _) = (lines.split_whitespace().collect(), Instant::now());
    assert_eq!(pids.len(), 4, "{lines}");
    run.child.kill().expect("kill");
    while let Some(pid) = pids.iter().find(|pid| Path::new("/proc").join(pid).exists()) {
        assert!(begin.elapsed() < GUARD, "process {pid} lives on");
        thread::yield_now();
    }
}

#[test]
fn a_prompt_is_shown_before_its_line_is_finished() {
    let text = "if [ $GASPI_RANK = 0 ]; then printf \"name? \"; read n; echo hello $n; fi";
    let (mut run, mut keyboard) = on_a_terminal(&format!("-n 2 sh -c '{text}'"));
    run.until("name? ");
    keyboard.write_all(b"ada\n").expect("write");
    let outcome = run.finish().success();
    assert!(outcome.stdout.contains("hello ada"), "{}", outcome.stdout);
}

#[test]
fn a_progress_bar_is_shown_while_it_grows() {
    for (option, shown) in [("", "\r10%\r20%"), ("--label", "[1] \r[1] 10%\r[1] 20%")] {
        let directory = tempfile::tempdir().expect("directory");
        let gate = gate(directory.path());
        // Open for reading, too, so that the rank opens it without waiting.
        let mut go = fs::OpenOptions::new().read(true).write(true).open(&gate).expect("gate");
        let text = format!(
            "exec 3<>{}; if [ $GASPI_RANK = 1 ]; then printf '\\r10%%\\r20%%'; fi; {AWAIT}",
            gate.display()
        );
        let mut line = vec!["-n", "2"];
        line.extend(Some(option).filter(|option| !option.is_empty()));
        line.extend(["sh", "-c", &text]);
        let mut run = Run::start(gaspi_run(&line));
        // The rank waits: its line has not ended.
        run.until(shown);
        go.write_all(b"\n\n").expect("gate");
        run.finish().success();
    }
}

#[test]
fn rank_0_under_a_debugger() {
    let mut command = gaspi_run(&["-n", "2", "-d", "echo", "two words", "x"]);
    command.stdin(Stdio::piped());
    let mut run = Run::start(command);
    let mut keyboard = run.child.stdin.take().expect("stdin");
    keyboard.write_all(b"set confirm off\nshow args\nquit 0\n").expect("write");
    drop(keyboard);
    let outcome = run.finish();
    if outcome.code == Some(127) {
        assert!(outcome.stderr.contains("-d needs gdb"), "{}", outcome.stderr);
        return;
    }
    assert!(outcome.stdout.contains("two\\ words x"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("two words x\n"), "rank 1: {}", outcome.stdout);
}

#[test]
fn a_reader_that_does_not_read_holds_up_neither_signals_nor_memory() {
    let mut command = gaspi_run(&["-n", "2", "yes"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("gaspi_run");
    let pid = child.id().to_string();
    // Not read until the end.
    let mut stdout = child.stdout.take().expect("stdout");
    let mut first = [0; 1];
    stdout.read_exact(&mut first).expect("first byte");
    let deadline = Instant::now() + GUARD;
    // The first signal ends the ranks, a further one the waiting for the reader.
    while child.try_wait().expect("wait").is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("signals are held up");
        }
        let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
        thread::sleep(std::time::Duration::from_millis(20));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
        assert!(kilobytes.unwrap_or(0u64) < 100_000, "{status}");
    }
    assert_eq!(child.wait().expect("wait").code(), Some(143));
}
