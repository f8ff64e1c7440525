//! One machine under several names is recognised as one, and its ranks have the limits that
//! gaspi_run has. What is wrong in a machine file is told with its line.

mod harness;

use harness::far::Far;
use harness::{Outcome, Run, run};
use std::fs;
use std::process::{Command, Stdio};

/// Runs gaspi_run behind shell commands that change what it inherits.
fn run_behind(commands: &str, far: &Far, arguments: &[&str]) -> Outcome {
    let plain = far.gaspi_run(arguments);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{commands}; exec \"$@\""), "sh"]);
    command.arg(plain.get_program()).args(plain.get_args());
    Run::start(command).finish()
}

const PLACE: &str = "echo $GASPI_RANK $GASPI_SOCKET ${GASPI_HOSTS-alone} ${GASPI_HOST-alone}";

#[test]
fn a_machine_with_two_names_is_one_host() {
    let far = Far::with("case $host in 240.0.0.[12]) MACHINE=same ;; esac");
    let list = "240.0.0.1,240.0.0.3,240.0.0.2:2,240.0.0.1";
    let text = format!("{PLACE} $GASPI_MEETING");
    let outcome = Run::start(far.gaspi_run(&["--hosts", list, "sh", "-c", &text])).finish();
    let outcome = outcome.success();
    let lines = outcome.sorted();
    let places: Vec<&str> =
        lines.iter().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let expected = [
        "0 0 2 240.0.0.1",
        "1 0 2 240.0.0.3",
        "2 1 2 240.0.0.1",
        "3 2 2 240.0.0.1",
        "4 3 2 240.0.0.1",
    ];
    assert_eq!(places, expected);
    let meeting = |rank: usize| lines[rank].rsplit(' ').next().map(str::to_owned);
    assert_eq!(meeting(0), meeting(2));
    assert_ne!(meeting(0), meeting(1));
}

#[test]
fn this_machine_under_a_name_that_only_ssh_knows_is_this_machine() {
    let far = Far::with("[ $host = 240.0.0.1 ] && MACHINE=here");
    let directory = far.path("output").to_string_lossy().into_owned();
    let text = format!("{PLACE} ${{SSH_FAR-here}}; [ $GASPI_RANK != 0 ] || cat");
    let arguments = ["--hosts", "240.0.0.1,240.0.0.2,127.0.0.1", "sh", "-c", &text];
    let outcome = run_behind("export GASPI_MACHINE=here", &far, &arguments).success();
    let sorted = outcome.sorted();
    let own = |line: &str| line.ends_with(" here");
    assert!(sorted[0].starts_with("0 0 2 ") && own(sorted[0]), "{sorted:?}");
    assert_eq!(sorted[1], "1 0 2 240.0.0.2 240.0.0.2");
    assert!(sorted[2].starts_with("2 1 2 ") && own(sorted[2]), "{sorted:?}");
    // Alone, with standard input and files.
    let arguments =
        ["--output-dir", &directory, "--hosts", "240.0.0.1,127.0.0.1", "sh", "-c", &text];
    let mut command = far.gaspi_run(&arguments);
    command.env("GASPI_MACHINE", "here").stdin(Stdio::piped());
    let mut run = Run::start(command);
    let mut stdin = run.child.stdin.take().expect("stdin");
    std::io::Write::write_all(&mut stdin, b"said to rank 0\n").expect("write");
    drop(stdin);
    run.finish().success();
    let read = |name: &str| std::fs::read_to_string(far.path("output").join(name)).expect("file");
    assert_eq!(read("rank-0.out"), "0 0 alone alone here\nsaid to rank 0\n");
    assert_eq!(read("rank-1.out"), "1 1 alone alone here\n");
}

#[test]
fn limits_are_carried_over() {
    let far = Far::with("ulimit -Sn 300; ulimit -Sc 100");
    let text = "echo $(ulimit -Sn) $(ulimit -Sc)";
    let limits = "ulimit -Sn 500 && ulimit -Sc 0";
    let outcome = run_behind(limits, &far, &["--hosts", "240.0.0.1", "sh", "-c", text]);
    let outcome = outcome.success();
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("500 0\n", ""));
    // What a machine gives anyway is not lowered.
    let limits = "ulimit -Sn 200";
    let outcome = run_behind(limits, &far, &["--hosts", "240.0.0.1", "sh", "-c", text]);
    assert!(outcome.success().stdout.starts_with("300 "));
}

#[test]
fn a_lower_hard_limit_is_told_with_the_host() {
    // Root may raise it, unless that right is taken away.
    let far = Far::with(
        "ulimit -n 300; weak=; [ $(id -u) = 0 ] && \
         weak='setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource'; \
         exec $weak env -i PATH=/usr/bin:/bin GASPI_MACHINE=$host sh -c \"$*\"",
    );
    let arguments = ["--hosts", "240.0.0.1:2", "sh", "-c", "ulimit -Sn"];
    let outcome = run_behind("ulimit -Sn 500", &far, &arguments).success();
    assert_eq!(outcome.stdout, "300\n300\n");
    let told =
        "gaspi_run: host 240.0.0.1: the limit of open files is 300, not 500 as for gaspi_run";
    assert!(outcome.stderr.starts_with(told), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

/// What gaspi_run says of a machine file of these bytes, behind its name.
fn refused_file(bytes: &[u8]) -> String {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("machines");
    fs::write(&path, bytes).expect("write");
    let path = path.to_str().expect("path");
    let refused = run(&["-m", path, "--dry-run"]);
    assert_eq!((refused.code, &*refused.stdout), (Some(2), ""), "{}", refused.stderr);
    let begin = format!("gaspi_run: machine file {path}:");
    let rest = refused.stderr.strip_prefix(&begin);
    rest.unwrap_or_else(|| panic!("{}", refused.stderr)).to_owned()
}

#[test]
fn errors_of_machine_files_name_file_and_line() {
    let wrong = refused_file(b"# hosts\n127.0.0.1\n127.0.0.1 slots=none\n");
    assert!(wrong.starts_with("3: \"127.0.0.1 slots=none\": the number of slots"), "{wrong}");
    let option = refused_file(b"127.0.0.1\n\n-oProxyCommand=x\n");
    assert!(option.starts_with("3: \"-oProxyCommand=x\" cannot be the name"), "{option}");
    let latin = refused_file(b"127.0.0.1\nb\xe4r\n");
    assert_eq!(latin, "2: \"b\\xe4r\" is no UTF-8\n");
}
