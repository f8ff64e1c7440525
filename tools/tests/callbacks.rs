//! Agents that one srun starts on all hosts, or hosts one another, or a program like rsh each, and
//! that call gaspi_run back. The hosts are this machine behind a program in the place of these.

mod harness;

use harness::far::{Far, SRUN_EACH, not_installed};
use harness::{AWAIT, Outcome, Run, gaspi_run, gate};
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

/// Two hosts and this machine between them.
const MIXED: &str = "240.0.0.1:2,127.0.0.1,240.0.0.2";
const CALL_BACK: &str = "srun starts gaspi_run on 240.0.0.1, 240.0.0.2, to call back";

/// gaspi_run with this srun, which tells how it reaches hosts.
fn command(far: &Far, arguments: &[&str]) -> Command {
    let srun = far.path("srun").to_string_lossy().into_owned();
    let mut command = gaspi_run(&[&["--ssh", &srun], arguments].concat());
    command.env("GASPI_LOG", "info");
    command
}

fn run(far: &Far, arguments: &[&str]) -> Outcome {
    Run::start(command(far, arguments)).finish()
}

const PLACE: &str = "echo $GASPI_RANK of $GASPI_NRANKS on ${SSH_FAR-here}";

#[track_caller]
fn expect_places(outcome: &Outcome) {
    let expected =
        ["0 of 4 on 240.0.0.1", "1 of 4 on 240.0.0.1", "2 of 4 on here", "3 of 4 on 240.0.0.2"];
    assert_eq!(outcome.sorted(), expected, "{}", outcome.stderr);
}

#[test]
fn one_srun_starts_all_hosts_and_they_call_back() {
    let far = Far::srun("", SRUN_EACH);
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    assert!(outcome.stderr.contains(CALL_BACK), "{}", outcome.stderr);
    assert_eq!(far.calls().lines().count(), 1, "{}", far.calls());
    assert!(far.calls().contains("--nodelist=240.0.0.1,240.0.0.2"), "{}", far.calls());
    // Nothing secret stands on a command line: what is there are options, the script and its words.
    assert!(far.calls().trim_end().ends_with(" 0 --agent --call-back"), "{}", far.calls());
    // Ping and a single host go the same way.
    let outcome = run(&far, &["--hosts", MIXED, "-p"]).success();
    assert!(outcome.stderr.contains("240.0.0.2 answers"), "{}", outcome.stderr);
    let outcome = run(&far, &["--hosts", "240.0.0.2", "sh", "-c", PLACE]).success();
    assert_eq!(outcome.stdout, "0 of 1 on 240.0.0.2\n");
    assert_eq!(far.calls().lines().count(), 3, "{}", far.calls());
}

#[test]
fn what_ranks_read_write_and_end_with_goes_by_the_connections() {
    let far = Far::srun("", SRUN_EACH);
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let file = far.path("bytes");
    std::fs::write(&file, &bytes).expect("file");
    let mut command = command(&far, &["--hosts", MIXED, "sh", "-c"]);
    command.arg("if [ $GASPI_RANK = 0 ]; then cat; else exit $GASPI_RANK; fi");
    command.stdin(std::fs::File::open(&file).expect("file"));
    let run = Run::start(command);
    let mut got = Vec::new();
    while let Ok(part) = run.stdout.recv_timeout(harness::GUARD) {
        got.extend(part);
    }
    assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    let outcome = run.finish();
    assert!(outcome.code.is_some_and(|code| (1..=3).contains(&code)), "{outcome:?}");
}

#[test]
fn a_host_that_cannot_call_back_is_reached_by_itself() {
    // Not installed on the one, so that it is carried over; for the other the key arrives damaged,
    // as if another program listened there.
    let damage = "[ $host != 240.0.0.2 ] || [ -z \"$many\" ] || damage";
    let absent = "[ $host != 240.0.0.1 ] || absent=1";
    let far = Far::srun(&format!("{damage}; {absent}"), SRUN_EACH);
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    assert_eq!(far.calls().lines().count(), 3, "{}", far.calls());
    for words in [
        "host 240.0.0.1: it is not installed there; it is tried by itself",
        "a connection from ",
        "did not prove to know the key of this job",
        "does not know the key of this job; it is tried by itself",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
}

#[test]
fn hosts_of_an_srun_that_fails_are_reached_by_themselves() {
    let fails = "echo \"srun: error: no such option\" >&2; exit 1";
    let far = Far::srun("", fails);
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    let words = "ended with exit status 1: srun: error: no such option; it is tried by itself";
    assert!(outcome.stderr.contains(&format!("host 240.0.0.1: {}", srun(&far, words))));
    assert!(outcome.stderr.contains(&format!("host 240.0.0.2: {}", srun(&far, words))));
}

/// What srun has done, as messages call it.
fn srun(far: &Far, words: &str) -> String {
    format!("{} {words}", far.path("srun").display())
}

#[test]
fn an_srun_that_ends_while_its_agents_start_holds_up_nobody() {
    let far = Far::new();
    // The one agent calls back before, meanwhile or too late; the other is never started.
    far.write_srun("", "by=setsid; host=240.0.0.1; (run \"$@\") & exit 3");
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    let words = "host 240.0.0.2: ";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ended with exit status 3; it is tried by itself"));
}

#[test]
fn a_host_that_says_nothing_is_reached_by_itself_after_a_while() {
    // Its name means another host there, for which nobody has asked.
    let far = Far::srun("[ $host = 240.0.0.1 ] || name=other", SRUN_EACH);
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    let words = "host 240.0.0.2: it has not called back for 15 s; it is tried by itself";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert_eq!(far.calls().lines().count(), 2, "{}", far.calls());
}

#[test]
fn a_second_agent_of_a_host_is_sent_away() {
    let far = Far::new();
    let fifo = far.fifo("ended");
    let twice = format!(
        "host=240.0.0.1; ((run \"$@\"); echo done > {0}) & \
         ((run \"$@\"); echo done > {0}) & \
         read line < {0}; host=240.0.0.2; (run \"$@\") & wait",
        fifo.display()
    );
    far.write_srun("", &twice);
    // Nobody has to wait for somebody at its other end.
    let _holder = OpenOptions::new().read(true).write(true).open(&fifo).expect("FIFO");
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    let words = "was sent away: host 240.0.0.1 has an agent already";
    assert_eq!(outcome.stderr.matches(words).count(), 1, "{}", outcome.stderr);
}

#[test]
fn an_agent_with_a_number_that_nobody_has_is_sent_away() {
    let far = Far::new();
    // In front of the name of the last host of an invitation is its length, and before that its
    // number.
    let renumbered = "\
        size=$(wc -c < \"$input\"); host=240.0.0.2; whole=$input; input=$whole.renumbered; \
        { head -c $((size - 15)) \"$whole\"; printf '\\011\\000\\000\\000'; \
          tail -c 11 \"$whole\"; } > \"$input\"; \
        (run \"$@\"); input=$whole; (run \"$@\") & host=240.0.0.1; (run \"$@\") & wait";
    far.write_srun("", renumbered);
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", PLACE]).success();
    expect_places(&outcome);
    let words = "an agent that has called was sent away: there is no host with the number 9";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    // The agents with the right numbers are let in all the same.
    assert!(!outcome.stderr.contains("tried by itself"), "{}", outcome.stderr);
}

#[test]
fn an_agent_that_is_gone_is_its_host_lost() {
    let far = Far::srun("", SRUN_EACH);
    let gate = gate(far.directory.path());
    let text = format!(
        "exec 3<> {}; [ $GASPI_RANK = 3 ] && kill -KILL $PPID && exec sleep 1000; {PLACE}; {AWAIT}",
        gate.display()
    );
    let mut run = Run::start(command(&far, &["--hosts", MIXED, "sh", "-c", &text]));
    run.lines(3);
    OpenOptions::new()
        .write(true)
        .open(&gate)
        .and_then(|mut gate| gate.write_all(b"1\n2\n3\n"))
        .expect("gate");
    let outcome = run.finish();
    assert_eq!(outcome.code, Some(255), "{}", outcome.stderr);
    let words = "host 240.0.0.2 was lost: its agent has closed the connection";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    // The others ran to their end.
    let mut seen: Vec<&str> = outcome.stdout.lines().collect();
    seen.retain(|line| !line.starts_with("3 "));
    assert_eq!(seen.len(), 3, "{}", outcome.stdout);
}

#[test]
fn agents_outlive_the_srun_that_has_started_them() {
    let far = Far::new();
    let (started, ended) = (far.fifo("started"), far.fifo("ended"));
    let leaves = format!(
        "exec 3<>{} 4<>{}; by=setsid; each \"$@\" 3>&- 4>&-; \
         for rank in 0 1 2 3; do read line <&3; done; exit 0",
        started.display(),
        ended.display()
    );
    far.write_srun("", &leaves);
    // Each rank waits for the end of srun, which has the FIFO open for writing while it runs.
    let text =
        format!("exec 5< {}; echo > {}; cat <&5; {PLACE}", ended.display(), started.display());
    let outcome = run(&far, &["--hosts", MIXED, "sh", "-c", &text]).success();
    expect_places(&outcome);
    assert_eq!(far.calls().lines().count(), 1, "{}", far.calls());
}

#[test]
fn everything_ends_with_a_gaspi_run_that_is_killed() {
    // This srun would let them live.
    let far = Far::srun("", "trap '' TERM; each \"$@\"; wait");
    let held = far.fifo("held");
    let text = format!("exec 4> {}; echo started; exec sleep 1000", held.display());
    let reader = {
        let held = held.clone();
        std::thread::spawn(move || std::fs::read(held).expect("FIFO"))
    };
    let mut run = Run::start(command(&far, &["--hosts", MIXED, "sh", "-c", &text]));
    run.lines(4);
    run.child.kill().expect("kill");
    // Nobody has it open for writing any more.
    assert_eq!(reader.join().expect("reader"), b"");
    assert_eq!(run.finish().signal, Some(libc::SIGKILL));
}

/// A directory with blaunch, which may act on `$host` first.
fn blaunch(prepare: &str) -> Far {
    let far = Far::new();
    far.rsh_like_with("blaunch", prepare);
    far
}

/// gaspi_run with that blaunch.
fn by_blaunch(far: &Far, arguments: &[&str]) -> Command {
    let blaunch = far.path("blaunch").to_string_lossy().into_owned();
    let mut command = gaspi_run(&[&["--ssh", &blaunch], arguments].concat());
    command.env("GASPI_LOG", "info");
    command
}

/// The host as [`blaunch`] tells.
const BY_BLAUNCH: &str = "echo $GASPI_RANK of $GASPI_NRANKS on ${SSH_BY-here}";

#[track_caller]
fn expect_by_blaunch(outcome: &Outcome) {
    let expected = [
        "0 of 4 on blaunch 240.0.0.1",
        "1 of 4 on blaunch 240.0.0.1",
        "2 of 4 on here",
        "3 of 4 on blaunch 240.0.0.2",
    ];
    assert_eq!(outcome.sorted(), expected, "{}", outcome.stderr);
}

#[test]
fn agents_of_a_program_like_rsh_call_back_and_outlive_it() {
    let far = blaunch(":");
    // The parent of the agent, which is that of a rank, is blaunch.
    let kills = "set -- $(cat /proc/$PPID/stat); \
                 [ -z \"$SSH_BY\" ] || { kill -KILL $4; while kill -0 $4 2>&-; do :; done; }";
    let text = format!("{kills}; {BY_BLAUNCH}");
    let arguments = ["--hosts", "240.0.0.1,127.0.0.1,240.0.0.2", "sh", "-c", &text];
    let outcome = Run::start(by_blaunch(&far, &arguments)).finish().success();
    let expected = ["0 of 3 on blaunch 240.0.0.1", "1 of 3 on here", "2 of 3 on blaunch 240.0.0.2"];
    assert_eq!(outcome.sorted(), expected, "{}", outcome.stderr);
    for host in ["240.0.0.1", "240.0.0.2"] {
        let words = format!("host {host}: its agent has called back");
        assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    }
    // One for each host, with nothing secret on its command line.
    assert_eq!(far.calls().lines().count(), 2, "{}", far.calls());
    let ends = |call: &str| call.ends_with(" '--agent' '--may-call-back'");
    assert!(far.calls().lines().all(ends), "{}", far.calls());
    // Ssh itself has to stay, and needs no such connection.
    let mut command = Far::new().gaspi_run(&["--hosts", MIXED, "-p"]);
    command.env("GASPI_LOG", "info");
    let outcome = Run::start(command).finish();
    assert!(!outcome.stderr.contains("called back"), "{}", outcome.stderr);
}

#[test]
fn an_agent_that_was_carried_over_calls_back_too() {
    let far = blaunch(&not_installed(env!("CARGO_BIN_EXE_gaspi_run")));
    let arguments = ["--hosts", MIXED, "sh", "-c", BY_BLAUNCH];
    let outcome = Run::start(by_blaunch(&far, &arguments)).finish().success();
    expect_by_blaunch(&outcome);
    assert_eq!(outcome.stderr.matches("its agent has called back").count(), 2);
}

#[test]
fn an_agent_of_a_program_like_rsh_that_cannot_call_speaks_by_its_pipes() {
    // For the one the key arrives damaged, as if another program listened there.
    let far = blaunch("[ $host != 240.0.0.2 ] || damage");
    let arguments = ["--hosts", MIXED, "sh", "-c", BY_BLAUNCH];
    let outcome = Run::start(by_blaunch(&far, &arguments)).finish().success();
    expect_by_blaunch(&outcome);
    for words in [
        "host 240.0.0.1: its agent has called back",
        "host 240.0.0.2: its agent cannot call back: ",
        "does not know the key of this job",
        "did not prove to know the key of this job",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert_eq!(far.calls().lines().count(), 2, "{}", far.calls());
    // Where there is nothing to listen on nobody is asked to call.
    let far = blaunch(":");
    let mut command = by_blaunch(&far, &["--hosts", MIXED, "sh", "-c", BY_BLAUNCH]);
    command.env("GASPI_SUBNET", "198.51.100.0/24");
    let outcome = Run::start(command).finish().success();
    expect_by_blaunch(&outcome);
    assert!(outcome.stderr.contains("other hosts cannot call back: "), "{}", outcome.stderr);
    assert!(far.calls().lines().all(|call| call.ends_with(" '--agent'")), "{}", far.calls());
}

/// Four hosts beside this machine.
const FIVE: &str = "240.0.0.1,127.0.0.1,240.0.0.2,240.0.0.3,240.0.0.4";

/// A tree of ssh: each host that was started starts one more.
fn tree(far: &Far, script: &str) -> Outcome {
    let arguments = ["--tree=1", "--hosts", FIVE, "sh", "-c", script];
    let mut command = far.gaspi_run(&arguments);
    command.env("GASPI_LOG", "info");
    Run::start(command).finish()
}

#[track_caller]
fn expect_five(outcome: &Outcome) {
    let expected = [
        "0 of 5 on 240.0.0.1",
        "1 of 5 on here",
        "2 of 5 on 240.0.0.2",
        "3 of 5 on 240.0.0.3",
        "4 of 5 on 240.0.0.4",
    ];
    assert_eq!(outcome.sorted(), expected, "{}", outcome.stderr);
}

#[test]
fn hosts_that_were_started_start_further_ones() {
    let far = Far::new();
    let outcome = tree(&far, PLACE).success();
    expect_five(&outcome);
    for words in [
        "ssh starts gaspi_run on 240.0.0.1, to call back",
        "host 240.0.0.1 starts gaspi_run on 240.0.0.2, to call back",
        "host 240.0.0.2 starts gaspi_run on 240.0.0.3, to call back",
        "host 240.0.0.3 starts gaspi_run on 240.0.0.4, to call back",
    ] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert_eq!(far.calls().lines().count(), 4, "{}", far.calls());
    // Not more hosts than the width: as ever.
    let few = ["--tree", "--hosts", MIXED, "sh", "-c", PLACE];
    let mut command = far.gaspi_run(&few);
    command.env("GASPI_LOG", "info");
    let outcome = Run::start(command).finish().success();
    assert!(!outcome.stderr.contains("to call back"), "{}", outcome.stderr);
}

#[test]
fn a_host_that_its_parent_does_not_reach_is_tried_by_itself() {
    // The one cannot be reached from others, the other one from nowhere the first time.
    let far = Far::with(
        "[ $host != 240.0.0.2 ] || case \"$*\" in *call-back*) \
         echo \"no route to $host\" >&2; exit 255 ;; esac",
    );
    let outcome = tree(&far, PLACE).success();
    expect_five(&outcome);
    let words = "host 240.0.0.2: from host 240.0.0.1: ";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ended with exit status 255: no route to 240.0.0.2; it is"));
    // A host that nobody reaches is named with the words of ssh.
    let far = Far::with("[ $host != 240.0.0.2 ] || { echo \"no route to $host\" >&2; exit 255; }");
    let outcome = tree(&far, PLACE);
    assert_eq!(outcome.code, Some(255));
    let words = "host 240.0.0.2: ";
    assert!(outcome.stderr.contains(words) && outcome.stderr.contains(": no route to 240.0.0.2"));
    assert_eq!(outcome.stdout, "");
}

#[test]
fn hosts_whose_parent_is_gone_are_tried_by_themselves() {
    // The parent is killed by what it starts, before that has called back.
    let far = Far::with(
        "[ $host != 240.0.0.2 ] || case \"$*\" in *call-back*) kill -KILL $PPID; exit 1 ;; esac",
    );
    let outcome = tree(&far, PLACE);
    // The start fails, since a host is gone, and says which.
    assert_eq!(outcome.code, Some(255), "{}", outcome.stderr);
    let words = "host 240.0.0.1: its agent has closed the connection";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
    // Who is only asked whether hosts answer hears of all others.
    let arguments = ["--tree=1", "--hosts", FIVE, "-p"];
    let outcome = Run::start(far.gaspi_run(&arguments)).finish();
    assert_eq!(outcome.code, Some(255), "{}", outcome.stderr);
    for words in ["240.0.0.2 answers", "240.0.0.3 answers", "240.0.0.4 answers"] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert!(outcome.stderr.contains("240.0.0.1 does not answer"), "{}", outcome.stderr);
}
