//! How gaspi_run reaches many hosts, which are this machine behind a program in the place of ssh:
//! few of these at once, and from 64 hosts on along a tree.

mod harness;

use harness::far::{Far, not_installed};
use harness::{AWAIT, GUARD, Outcome, Run, gaspi_run};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::sync::mpsc;
use std::thread;

/// So many pretended hosts, as `--hosts` takes them.
fn hosts(count: usize) -> String {
    let names: Vec<String> = (1..=count).map(|number| format!("240.0.0.{number}")).collect();
    names.join(",")
}

/// Asks whether they answer, and says how they are reached.
fn ask(far: &Far, count: usize, options: &[&str]) -> Run {
    let hosts = hosts(count);
    let mut command = far.gaspi_run(&[options, &["--hosts", &hosts, "-p"]].concat());
    command.env("GASPI_LOG", "info");
    Run::start(command)
}

/// How often lines with this in them were said.
fn said(outcome: &Outcome, text: &str) -> usize {
    outcome.stderr.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn no_more_than_64_hosts_are_reached_at_once() {
    const COUNT: usize = 70;
    let fifos = Far::new();
    let (came, gate) = (fifos.fifo("came"), fifos.fifo("gate"));
    // Each says that it has come, and goes on when it may.
    let waits = format!("exec 3<>{} 4<>{}; echo >&4; {AWAIT}", gate.display(), came.display());
    let far = Far::with(&waits);
    let mut run = ask(&far, COUNT, &["--tree=0"]);
    let mut came = BufReader::new(File::open(&came).expect("FIFO")).lines();
    for _ in 0..64 {
        came.next().expect("one more").expect("line");
    }
    // All 64 wait, and none of them has reached its host.
    run.signal("USR1");
    let (mut stderr, last) = (String::new(), "rank 69 on host 240.0.0.70: it waits for its turn");
    run.until_said(&mut stderr, last, |line| line.contains(last), 1);
    assert!(stderr.contains("rank 63 on host 240.0.0.64: the agent is being started"), "{stderr}");
    assert_eq!(far.calls().lines().count(), 64, "{}", far.calls());
    // One that has reached its host makes room for the next.
    let mut gate = OpenOptions::new().read(true).write(true).open(&gate).expect("FIFO");
    for number in 64..COUNT {
        gate.write_all(b"\n").expect("gate");
        came.next().expect("one more").expect("line");
        assert_eq!(far.calls().lines().count(), number + 1, "{}", far.calls());
    }
    gate.write_all(&[b'\n'; 64]).expect("gate");
    let outcome = run.finish().success();
    stderr.push_str(&outcome.stderr);
    assert_eq!(stderr.matches(" answers\n").count(), COUNT, "{stderr}");
}

#[test]
fn from_64_hosts_on_they_start_one_another() {
    let far = Far::new();
    // 32 are started from here, and one of them starts the rest.
    for (count, options, calls) in [(64, &[][..], 33), (63, &[], 0), (64, &["--tree=0"], 0)] {
        let outcome = ask(&far, count, options).finish().success();
        assert_eq!(said(&outcome, " answers"), count, "{}", outcome.stderr);
        assert_eq!(said(&outcome, "to call back"), calls, "{count}: {}", outcome.stderr);
    }
}

#[test]
fn hosts_that_do_not_reach_one_another_are_reached_from_here() {
    // As where only the login host may log in.
    let far = Far::with("[ -z \"$SSH_FAR\" ] || { echo \"Permission denied\" >&2; exit 255; }");
    let outcome = ask(&far, 7, &["--tree=2"]).finish().success();
    assert_eq!(said(&outcome, " answers"), 7, "{}", outcome.stderr);
    assert!(said(&outcome, ": Permission denied; it is tried by itself") > 0, "{}", outcome.stderr);
    // Hosts without a parent wait for no further one.
    let alone = "has reached none of the hosts that it was to start; it is tried by itself";
    assert!(said(&outcome, alone) > 0, "{}", outcome.stderr);
    assert_eq!(said(&outcome, "it is tried by itself"), 5, "{}", outcome.stderr);
}

#[test]
fn once_one_agent_cannot_call_back_no_further_one_tries() {
    const COUNT: usize = 70;
    let far = Far::new();
    // As if another program listened where gaspi_run says that it does.
    far.rsh_like_with("blaunch", "damage");
    let (blaunch, hosts) = (far.path("blaunch").to_string_lossy().into_owned(), hosts(COUNT));
    let mut command = gaspi_run(&["--ssh", &blaunch, "--tree=0", "--hosts", &hosts, "-p"]);
    command.env("GASPI_LOG", "info");
    let outcome = Run::start(command).finish().success();
    assert_eq!(said(&outcome, " answers"), COUNT, "{}", outcome.stderr);
    // All that were under way at once.
    assert_eq!(said(&outcome, "its agent cannot call back: "), 64, "{}", outcome.stderr);
    let calls = far.calls();
    let asked = calls.lines().filter(|call| call.ends_with(" '--may-call-back'")).count();
    assert_eq!((asked, calls.lines().count()), (64, COUNT), "{calls}");
}

/// The host of 64 that is unlike the others: another one is to start it.
const ODD: &str = "240.0.0.50";

/// Starts a job on 64 hosts, of which [`ODD`] does this first. Returns how it ended, once nothing
/// of it runs any more.
fn job_of_64(odd: &str) -> Outcome {
    let fifos = Far::new();
    let held = fifos.fifo("held");
    // All that is started on a host holds it open.
    let far =
        Far::with(&format!("exec 4>{}; if [ $host = {ODD} ]; then {odd}; fi", held.display()));
    let (done, gone) = mpsc::channel();
    let read = held.clone();
    thread::spawn(move || done.send(std::fs::read(read).is_ok()));
    let holder = OpenOptions::new().write(true).open(&held).expect("FIFO");
    let hosts = hosts(64);
    let arguments = ["--hosts", &hosts, "sh", "-c", "echo on $SSH_FAR"];
    let outcome = Run::start(far.gaspi_run(&arguments)).finish();
    drop(holder);
    let all_gone = gone.recv_timeout(GUARD);
    assert_eq!(all_gone, Ok(true), "something is left: {}", outcome.stderr);
    outcome
}

/// One error that names the host, with these words, and no rank.
#[track_caller]
fn expect_refused(outcome: &Outcome, words: &[&str]) {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(255), ""), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    // Who waits for long is told so.
    let errors: Vec<&&str> = lines.iter().filter(|line| !line.contains("waiting for")).collect();
    let [error] = errors[..] else { panic!("{}", outcome.stderr) };
    assert!(error.starts_with(&format!("gaspi_run: host {ODD}: ")), "{error}");
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn one_host_of_64_that_does_not_answer_is_one_error() {
    let odd = "echo \"ssh: connect to host $host port 22: Connection timed out\" >&2; exit 255";
    let words = ["ended with exit status 255", "port 22: Connection timed out"];
    expect_refused(&job_of_64(odd), &words);
}

#[test]
fn one_host_of_64_without_room_on_its_disk_is_one_error() {
    // Nothing can be written there.
    let odd =
        format!("{}; trap '' XFSZ; ulimit -f 0", not_installed(env!("CARGO_BIN_EXE_gaspi_run")));
    let words = [
        "nothing-here is not installed there, and no directory for temporary files takes it",
        "File too large",
        "set TMPDIR",
    ];
    expect_refused(&job_of_64(&odd), &words);
}

#[test]
fn one_host_of_64_with_another_version_gets_this_one() {
    // What is installed there says that it is older.
    let fifos = Far::new();
    let other = fifos.program("gaspi_run", "#!/bin/sh\necho gaspi_run 0.0.9\n");
    let tool = env!("CARGO_BIN_EXE_gaspi_run");
    let replaced = format!("set -- \"$(echo \"$*\" | sed 's,{tool},{},')\"", other.display());
    let outcome = job_of_64(&replaced).success();
    assert_eq!(outcome.stdout.lines().count(), 64, "{}", outcome.stdout);
    assert!(outcome.stdout.contains(&format!("on {ODD}\n")), "{}", outcome.stdout);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn one_host_of_64_that_speaks_otherwise_is_one_error() {
    // It says that it is the same program, but greets with version 999 of the protocol.
    let hello = "printf '\\004\\000\\000\\000\\001\\347\\003\\000'";
    let odd = format!(
        "case \"$*\" in *call-back*) echo '@gaspi absent@  no' ;; \
         *) echo '@gaspi run@'; {hello}; cat > /dev/null ;; esac; exit 1"
    );
    let words = ["speaks version 999 of the protocol", "install one version on all hosts"];
    expect_refused(&job_of_64(&odd), &words);
}
