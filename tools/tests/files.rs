//! `--output-dir` of the real gaspi_run: what lies in the files, and what stays on the terminal.

mod harness;

use harness::far::Far;
use harness::{Run, gaspi_run, run};
use std::fs;
use std::path::Path;
use std::process::Command;

fn read(directory: &Path, name: &str) -> Vec<u8> {
    fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("directory").filter_map(Result::ok);
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

#[test]
fn each_rank_and_stream_has_a_file() {
    let directory = tempfile::tempdir().expect("directory");
    let made = directory.path().join("new/logs");
    let text =
        "echo out $GASPI_RANK; echo err $GASPI_RANK >&2; [ $GASPI_RANK = 3 ] && exit 4; exit 0";
    let outcome = run(&["-n", "11", "--output-dir", &made.to_string_lossy(), "sh", "-c", text]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(4), ""), "{}", outcome.stderr);
    // What gaspi_run has to say is not in the files.
    assert!(outcome.stderr.starts_with("gaspi_run: rank 3 (pid "), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    let expected: Vec<String> = (0..11)
        .flat_map(|rank| [format!("rank-{rank:02}.err"), format!("rank-{rank:02}.out")])
        .collect();
    assert_eq!(names(&made), expected);
    for rank in 0..11 {
        let out = read(&made, &format!("rank-{rank:02}.out"));
        let err = read(&made, &format!("rank-{rank:02}.err"));
        assert_eq!((out, err), (format!("out {rank}\n").into(), format!("err {rank}\n").into()));
    }
}

#[test]
fn bytes_are_not_changed_and_old_ones_are_gone() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    let bytes: Vec<u8> =
        (0..3_000_000u32).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    fs::write(path.join("input"), &bytes).expect("input");
    fs::write(path.join("rank-0.out"), vec![b'x'; 4_000_000]).expect("old");
    let mut command = gaspi_run(&["-n", "2", "--label", "--output-dir", ".", "cat", "input"]);
    command.current_dir(path);
    let outcome = Run::start(command).finish().success();
    assert_eq!(outcome.stdout, "");
    for name in ["rank-0.out", "rank-1.out"] {
        assert!(read(path, name) == bytes, "{name} differs");
    }
    assert_eq!(read(path, "rank-1.err"), b"");
}

#[test]
fn what_a_rank_leaves_behind_may_go_on_writing() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    for name in ["gate", "over"] {
        assert!(Command::new("mkfifo").arg(path.join(name)).status().expect("mkfifo").success());
    }
    // The child is let go after gaspi_run has ended.
    let text = "(read x < gate; echo late; echo done > over) & echo early";
    let mut command = gaspi_run(&["-n", "1", "--output-dir", "log", "sh", "-c", text]);
    command.current_dir(path);
    Run::start(command).finish().success();
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo go > gate; cat over"]).current_dir(path);
    assert_eq!(Run::start(shell).finish().success().stdout, "done\n");
    let text = String::from_utf8(read(&path.join("log"), "rank-0.out")).expect("text");
    assert_eq!(text, "early\nlate\n");
}

#[test]
fn files_that_cannot_be_written_are_told_before_anything_starts() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path();
    fs::write(path.join("file"), "text").expect("file");
    fs::create_dir_all(path.join("one/rank-1.err")).expect("directory");
    fs::create_dir(path.join("two")).expect("directory");
    let fifo = path.join("two/rank-0.out");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    for (name, word) in [("file", "file"), ("one", "rank-1.err"), ("two", "rank-0.out")] {
        let mut command =
            gaspi_run(&["-n", "2", "--output-dir", name, "sh", "-c", "echo x > started"]);
        command.current_dir(path);
        let outcome = Run::start(command).finish();
        assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("--output-dir"), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        assert!(!path.join("started").exists());
    }
    assert_eq!(read(path, "file"), b"text");
}

#[test]
fn many_ranks() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().to_string_lossy().into_owned();
    run(&["-n", "200", "--output-dir", &path, "sh", "-c", "echo $GASPI_RANK"]).success();
    assert_eq!(names(directory.path()).len(), 400);
    assert_eq!(read(directory.path(), "rank-199.out"), b"199\n");
    assert_eq!(read(directory.path(), "rank-007.out"), b"7\n");
}

#[test]
fn files_of_ranks_elsewhere_take_descriptors_here() {
    let far = Far::new();
    let line = format!(
        "ulimit -n 120; exec '{}' --ssh '{}' --hosts 240.0.0.1 --oversubscribe -n 100 \
         --output-dir '{}' sh -c 'echo $GASPI_RANK'",
        env!("CARGO_BIN_EXE_gaspi_run"),
        far.path("ssh").display(),
        far.path("logs").display()
    );
    let start = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(std::process::Stdio::null());
        Run::start(command).finish()
    };
    let outcome = start(&line);
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
    let words = "1 other hosts with 64 files (--output-dir) need 132 file descriptors in \
                 gaspi_run, but the hard limit is 120; raise it";
    assert!(outcome.stderr.contains(words), "{}", outcome.stderr);
    assert!(!far.path("logs").exists() && far.calls().is_empty());
    // What it asks for is enough here; there each rank takes more.
    let enough = line.replace("-n 120", "-n 500");
    start(&enough).success();
    assert_eq!(read(&far.path("logs"), "rank-99.out"), b"99\n");
}

#[test]
fn files_of_ranks_elsewhere_may_be_more_than_descriptors() {
    let far = Far::new();
    let hosts: Vec<String> = (1..=20).map(|number| format!("240.0.0.{number}")).collect();
    let line = format!(
        "ulimit -n 300; exec '{}' --ssh '{}' --hosts {} --oversubscribe -n 200 --output-dir '{}' \
         sh -c 'echo one; echo $GASPI_RANK >&2; read line; echo two'",
        env!("CARGO_BIN_EXE_gaspi_run"),
        far.path("ssh").display(),
        hosts.join(","),
        far.path("logs").display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).stdin(std::process::Stdio::null());
    Run::start(command).finish().success();
    for rank in 0..200 {
        let file = |stream| read(&far.path("logs"), &format!("rank-{rank:03}.{stream}"));
        assert_eq!(file("out"), b"one\ntwo\n", "{rank}");
        assert_eq!(file("err"), format!("{rank}\n").as_bytes());
    }
}
