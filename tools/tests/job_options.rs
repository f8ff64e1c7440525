//! What the real gaspi_run offers to other launchers on top of it: variables for ranks, memory of a
//! NUMA node, jobs that may lose ranks, last lines, labels, a copy of rank 0's output.

mod harness;

use harness::far::Far;
use harness::{GUARD, Outcome, Run, gaspi_run, run, script};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

fn text(path: &Path) -> String {
    fs::read_to_string(path).expect("file")
}

#[test]
fn variables_reach_all_ranks_as_they_are() {
    let show = "echo \"$GASPI_RANK <$A> <$HOME> <$GPU>\"";
    let line = ["-n", "3", "--env", "A=b=c  d,e", "--env=HOME=/x", "--local-env", "GPU=5,7"];
    let outcome = run(&[&line[..], &["sh", "-c", show]].concat()).success();
    let expected = ["0 <b=c  d,e> </x> <5>", "1 <b=c  d,e> </x> <7>", "2 <b=c  d,e> </x> <5>"];
    assert_eq!(outcome.sorted(), expected);
}

#[test]
fn variables_count_by_host_and_outdo_a_login() {
    let far = Far::new();
    let line = ["--hosts", "240.0.0.1:2,127.0.0.1:2", "--env", "HOME=/x"];
    let more = ["--local-env", "GPU=a,b", "sh", "-c", "echo $GASPI_RANK $GPU $HOME"];
    let command = far.gaspi_run(&[&line[..], &more].concat());
    let outcome = Run::start(command).finish().success();
    assert_eq!(outcome.sorted(), ["0 a /x", "1 b /x", "2 a /x", "3 b /x"]);
}

/// The policy of a rank's memory, as the kernel tells it for its stack.
const POLICY: &str = "echo $GASPI_RANK $(awk '/stack/ {print $2}' /proc/self/numa_maps)";

#[test]
fn memory_comes_from_a_node() {
    let plain = run(&["-n", "2", "sh", "-c", POLICY]).success();
    assert_eq!(plain.sorted(), ["0 default", "1 default"]);
    let bound = run(&["-n", "2", "--bind", "numa", "--bind-memory", "sh", "-c", POLICY]).success();
    for (rank, line) in bound.sorted().into_iter().enumerate() {
        assert!(line.starts_with(&format!("{rank} bind:")), "{line}");
    }
}

#[test]
fn nodes_in_turn_and_a_remark_where_there_is_one() {
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let show = "echo $GASPI_BIND";
    let outcome = run(&["-n", "2", "--bind", "numa-cyclic", "sh", "-c", show]).success();
    assert!(outcome.stdout.lines().all(|line| line.starts_with("numa:")), "{}", outcome.stdout);
    let one = nodes.trim() == "0";
    assert_eq!(outcome.stderr.matches("has one NUMA node").count(), usize::from(one));
}

#[test]
fn ranks_that_have_no_node_to_bind_themselves_to_are_counted() {
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let one = run(&["-n", "1", "-N", "true"]).success();
    assert_eq!(one.stderr, "");
    // Elsewhere there may be as many.
    if nodes.trim() == "0" {
        let far = Far::new();
        let line = ["--hosts", "127.0.0.1:3,240.0.0.1:2", "-N", "true"];
        let outcome = Run::start(far.gaspi_run(&line)).finish().success();
        for words in ["which 2 of 3 ranks do not find", "which 1 of 2 ranks do not find"] {
            assert_eq!(outcome.stderr.matches(words).count(), 1, "{}", outcome.stderr);
        }
    }
}

/// Four ranks of which one or two fail.
fn losing(arguments: &[&str], failing: &str) -> Outcome {
    let text = format!("case $GASPI_RANK in {failing}) exit 7;; esac; exit 0");
    run(&[&["-n", "4"], arguments, &["sh", "-c", &text]].concat())
}

#[test]
fn a_job_may_lose_ranks() {
    let outcome = losing(&["--min-ranks", "3"], "2").success();
    assert!(outcome.stderr.contains("rank 2 (pid "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("warning: 3 of 4 ranks ended"), "{}", outcome.stderr);
    assert_eq!(losing(&["--min-ranks", "3"], "1|2").code, Some(7));
    assert_eq!(losing(&[], "2").code, Some(7));
    let outcome = losing(&["--min-ranks", "4"], "9").success();
    assert_eq!(outcome.stderr, "");
    let outcome = losing(&["--min-ranks", "5"], "9");
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("more than the 4 ranks"), "{}", outcome.stderr);
}

#[test]
fn a_job_ends_when_too_few_ranks_are_left() {
    let text = "case $GASPI_RANK in 1) exit 5;; 2) kill -9 $$;; esac; exec sleep 1000";
    let outcome = run(&["-n", "4", "--min-ranks", "3", "sh", "-c", text]);
    assert!([Some(5), Some(137)].contains(&outcome.code), "{outcome:?}");
    assert!(outcome.stderr.contains("ending the job (--min-ranks 3)"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("2 ranks were ended by gaspi_run"), "{}", outcome.stderr);
}

#[test]
fn the_last_lines_of_the_first_failure_are_repeated() {
    let text = "[ $GASPI_RANK = 1 ] || exec sleep 1000; for i in 1 2 3 4; do echo line $i >&2; \
                done; echo out; exit 3";
    let line = ["-n", "2", "--kill-on-failure", "--last-lines", "2", "sh", "-c", text];
    let outcome = run(&line);
    assert_eq!(outcome.code, Some(3));
    let end = "s after the start; its last 2 lines on standard error:\n  | line 3\n  | line 4\n";
    assert!(outcome.stderr.ends_with(end), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("gaspi_run: rank 1 failed first, 0."), "{}", outcome.stderr);
    // Nothing on standard error: what it said on standard output; from files, too.
    let directory = tempfile::tempdir().expect("directory");
    let name = directory.path().display().to_string();
    for more in [&[][..], &["--output-dir", &name], &["--output-dir", &name, "--tee"]] {
        let line = [&["-n", "1", "--last-lines", "20"], more, &["sh", "-c", "echo a; exit 9"]];
        let outcome = run(&line.concat());
        assert_eq!(outcome.code, Some(9));
        let end = "its last line on standard output:\n  | a\n";
        assert!(outcome.stderr.ends_with(end), "{more:?}: {}", outcome.stderr);
    }
    assert!(!script("1", "exit 3").stderr.contains("failed first"));
}

#[test]
fn labels_in_two_styles() {
    let plain = run(&["-n", "2", "--label=rank", "echo", "x"]).success();
    assert_eq!(plain.sorted(), ["[rank 0] x", "[rank 1] x"]);
    assert_eq!(plain.stderr, "");
    let number = run(&["-n", "2", "--label", "echo", "x"]).success();
    assert_eq!(number.sorted(), ["[0] x", "[1] x"]);
    assert!(number.stderr.contains("gaspi_run: rank 1 (pid "), "{}", number.stderr);
}

#[test]
fn rank_0_is_seen_here_and_in_its_file() {
    for hosts in [&["-n", "2"][..], &["--hosts", "240.0.0.1,127.0.0.1"]] {
        let directory = tempfile::tempdir().expect("directory");
        let name = directory.path().display().to_string();
        let text = "echo out $GASPI_RANK; echo err $GASPI_RANK >&2";
        let line = [hosts, &["--output-dir", &name, "--tee", "sh", "-c", text]].concat();
        let outcome = Run::start(Far::new().gaspi_run(&line)).finish().success();
        assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("out 0\n", "err 0\n"));
        for rank in 0..2 {
            let file = |stream: &str| text_of(directory.path(), rank, stream);
            assert_eq!(file("out"), format!("out {rank}\n"), "{hosts:?}");
            assert_eq!(file("err"), format!("err {rank}\n"), "{hosts:?}");
        }
    }
}

fn text_of(directory: &Path, rank: usize, stream: &str) -> String {
    text(&directory.join(format!("rank-{rank}.{stream}")))
}

#[test]
fn wrong_variables_are_told() {
    for (line, words) in [
        (&["--env", "=x"][..], "NAME=VALUE is wanted"),
        (&["--local-env", "A"], "NAME=VALUE is wanted"),
        (&["--env", "GASPI_RANK=3"], "GASPI_RANK is set by gaspi_run itself"),
    ] {
        let outcome = Run::start(gaspi_run(&[line, &["-n", "1", "true"]].concat())).finish();
        assert_eq!(outcome.code, Some(2), "{line:?}");
        assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    }
}

#[test]
fn of_ranks_that_end_while_gaspi_run_is_stopped_the_first_is_told_first() {
    let text = "echo $GASPI_RANK $$; exec sleep 1000";
    let mut run = Run::start(gaspi_run(&["-n", "4", "sh", "-c", text]));
    let lines = run.lines(4);
    let pid_of = |rank: &str| {
        let words = lines.iter().filter_map(|line| line.split_once(' '));
        words.filter(|(of, _)| *of == rank).map(|(_, pid)| pid).next().expect("its line")
    };
    run.signal("STOP");
    for rank in ["2", "0", "3", "1"] {
        kill(pid_of(rank));
    }
    run.signal("CONT");
    let outcome = run.finish();
    let told: Vec<&str> =
        outcome.stderr.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(told, ["2", "0", "3", "1"], "{}", outcome.stderr);
}

/// Kills a process, and waits until it has ended.
fn kill(pid: &str) {
    let status = Command::new("kill").args(["-9", pid]).status().expect("kill");
    assert!(status.success());
    let deadline = Instant::now() + GUARD;
    // Its parent is stopped, and leaves it as it is.
    while !text(Path::new(&format!("/proc/{pid}/stat"))).contains(") Z ") {
        assert!(Instant::now() < deadline, "{pid} has not ended");
        std::thread::yield_now();
    }
}
