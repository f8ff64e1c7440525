//! gaspi_run in an allocation of a batch system, and machine files with slots: by recorded
//! variables and files, on hosts that all mean this machine.

#[path = "harness/mod.rs"]
mod harness;

use harness::far::Far;
use harness::{Outcome, Run, gaspi_run};
use std::fs;
use std::path::PathBuf;

/// Names of this machine: an allocation of two hosts.
const HERE: [&str; 2] = ["localhost", "127.0.0.1"];

fn with(arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let mut command = gaspi_run(arguments);
    command.envs(variables.iter().copied());
    Run::start(command).finish()
}

/// A directory with one file.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("hosts");
    fs::write(&path, text).expect("file");
    (directory, path)
}

const SHOW: [&str; 3] = ["sh", "-c", "echo $GASPI_RANK of $GASPI_NRANKS"];

fn shown(ranks: usize) -> Vec<String> {
    (0..ranks).map(|rank| format!("{rank} of {ranks}")).collect()
}

#[test]
fn an_allocation_says_how_many_ranks_run_where() {
    let slurm = [("SLURM_JOB_NODELIST", "localhost"), ("SLURM_TASKS_PER_NODE", "3")];
    assert_eq!(with(&SHOW, &slurm).success().sorted(), shown(3));
    let (_directory, path) = file(&format!("{}\n{}\n", HERE[0], HERE[1]));
    let pbs = [("PBS_NODEFILE", path.to_str().expect("path"))];
    assert_eq!(with(&SHOW, &pbs).success().sorted(), shown(2));
    let fewer = [&["-n", "1"], &SHOW[..]].concat();
    assert_eq!(with(&fewer, &pbs).success().sorted(), shown(1));
}

#[test]
fn more_ranks_than_slots_are_an_error_unless_they_are_wanted() {
    let slurm = [("SLURM_JOB_NODELIST", "localhost"), ("SLURM_TASKS_PER_NODE", "2")];
    let five = [&["-n", "5"], &SHOW[..]].concat();
    let refused = with(&five, &slurm);
    assert_eq!(refused.code, Some(2));
    for words in ["SLURM_JOB_NODELIST", "2 slots", "5 ranks", "--oversubscribe"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    let wanted = [&["--oversubscribe"], &five[..]].concat();
    assert_eq!(with(&wanted, &slurm).success().sorted(), shown(5));
    let (_directory, path) = file("localhost slots=2\n");
    let file = ["-m", path.to_str().expect("path")];
    let refused = with(&[&file, &five[..]].concat(), &[]);
    assert!(refused.stderr.contains("machine file has 2 slots"), "{}", refused.stderr);
    assert_eq!(with(&[&file, &wanted[..]].concat(), &[]).success().sorted(), shown(5));
}

#[test]
fn a_machine_file_of_a_million_lines_is_read_and_answered() {
    let addresses: String = (0..1_000_000u32)
        .map(|number| format!("240.{}.{}.{}\n", number >> 16, number >> 8 & 255, number & 255))
        .collect();
    for text in ["localhost\n".repeat(1_000_000), addresses] {
        let (_directory, path) = file(&text);
        let file = ["-m", path.to_str().expect("path")];
        // What is wanted is taken from its beginning.
        let few = with(&[&file[..], &["-n", "3", "--dry-run"], &SHOW].concat(), &[]).success();
        assert_eq!(few.stdout.lines().count(), 3, "{}", few.stdout);
        let all = with(&[&file, &SHOW[..]].concat(), &[]);
        let error = "gaspi_run: the machine file has 1000000 slots for ranks, but a job has 1 to \
                     65535 ranks; use -n\n";
        assert_eq!((all.code, all.stderr.as_str()), (Some(2), error));
    }
    // More lines than any job could have, by their slots.
    let (_directory, path) = file(&"localhost:2\n".repeat(1_000_000));
    let file = ["-m", path.to_str().expect("path"), "-n", "3"];
    let refused = with(&[&file, &SHOW[..]].concat(), &[]);
    let ends = |words: &str| refused.stderr.ends_with(words);
    assert!(refused.code == Some(2) && ends(": it has more than 1048576 slots\n"), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
}

#[test]
fn the_command_line_counts_before_the_allocation() {
    // Nobody could be reached there.
    let slurm = [("SLURM_JOB_NODELIST", "198.51.100.[1-2]"), ("SLURM_TASKS_PER_NODE", "2(x2)")];
    let here = [&["--here", "-n", "2"], &SHOW[..]].concat();
    assert_eq!(with(&here, &slurm).success().sorted(), shown(2));
    let list = [&["--hosts", "localhost:3"], &SHOW[..]].concat();
    assert_eq!(with(&list, &slurm).success().sorted(), shown(3));
    let (_directory, path) = file("localhost:1\n127.0.0.1 slots=3 # all\n");
    let file = [&["-m", path.to_str().expect("path")], &SHOW[..]].concat();
    assert_eq!(with(&file, &slurm).success().sorted(), shown(4));
}

#[test]
fn a_dry_run_says_where_ranks_would_run_and_starts_nothing() {
    let slurm = [("SLURM_JOB_NODELIST", "198.51.100.[1-2]"), ("SLURM_TASKS_PER_NODE", "2,1")];
    let outcome = with(&["--dry-run", "/nonexistent"], &slurm).success();
    assert_eq!(
        outcome.stdout,
        "rank 0  198.51.100.1  on cores that its host chooses\n\
         rank 1  198.51.100.1  on cores that its host chooses\n\
         rank 2  198.51.100.2  on cores that its host chooses\n"
    );
    let outcome = with(&["--dry-run", "--bind", "none", "-n", "2"], &[]).success();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with("rank 1  "), "{}", outcome.stdout);
    assert!(lines.iter().all(|line| line.ends_with("  on any core")), "{}", outcome.stdout);
}

/// Batch systems by the variable that names their hosts, the words of a host in the file, and the
/// program that reaches hosts.
const SYSTEMS: [(&str, &str, &str); 3] = [
    ("LSB_DJOB_HOSTFILE", "", "blaunch"),
    ("PBS_NODEFILE", "", "pbs_tmrsh"),
    ("PE_HOSTFILE", " 1 all.q <NULL>", "qrsh"),
];
const TWO: [&str; 2] = ["240.0.0.1", "240.0.0.2"];

#[test]
fn batch_systems_reach_their_hosts_by_their_own_program() {
    for (variable, words, program) in SYSTEMS {
        let far = Far::new();
        let found = far.rsh_like(program);
        let path = format!("{found}:{}", std::env::var("PATH").expect("PATH"));
        let (_directory, hosts) = file(&TWO.map(|host| format!("{host}{words}\n")).concat());
        let hosts = hosts.to_str().expect("path");
        let environment = [(variable, hosts), ("PATH", &path)];
        let show = ["sh", "-c", "echo $GASPI_RANK $SSH_BY; read line; echo $line"];
        let outcome = with(&show, &environment).success();
        let expected = [
            String::new(),
            String::new(),
            format!("0 {program} {}", TWO[0]),
            format!("1 {program} {}", TWO[1]),
        ];
        assert_eq!(outcome.sorted(), expected, "{}", outcome.stderr);
        // It has no options of ssh, and is started once for each host.
        assert_eq!(far.calls().lines().count(), 2, "{}", far.calls());
        let begin = match program {
            "qrsh" => format!("qrsh -inherit {}", TWO[0]),
            _ => format!("{program} {} exec ", TWO[0]),
        };
        assert!(far.calls().lines().any(|call| call.starts_with(&begin)), "{}", far.calls());
        // What the user names counts before it.
        let ssh = far.path("ssh").to_string_lossy().into_owned();
        let by_ssh = ["sh", "-c", "echo $GASPI_RANK $SSH_FAR"];
        let named = with(&[&["--ssh", &ssh], &by_ssh[..]].concat(), &environment).success();
        assert_eq!(named.sorted(), [format!("0 {}", TWO[0]), format!("1 {}", TWO[1])]);
        let variables = [environment[0], environment[1], ("GASPI_SSH", &ssh)];
        let named = with(&by_ssh, &variables).success();
        assert_eq!(named.sorted(), [format!("0 {}", TWO[0]), format!("1 {}", TWO[1])]);
    }
}

#[test]
fn a_host_that_a_batch_system_does_not_reach_is_named_with_its_words() {
    let far = Far::new();
    far.program("blaunch", "#!/bin/sh\necho \"$1: not of this job\" >&2\nexit 3\n");
    let path = format!("{}:/usr/bin:/bin", far.directory.path().display());
    let (_directory, hosts) = file("240.0.0.1\n");
    let environment = [("LSB_DJOB_HOSTFILE", hosts.to_str().expect("path")), ("PATH", &path)];
    let outcome = with(&SHOW, &environment);
    assert_eq!(outcome.code, Some(255));
    let said = "host 240.0.0.1: blaunch ended with exit status 3: 240.0.0.1: not of this job";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
}

#[test]
fn how_hosts_are_reached_is_told_to_those_who_ask() {
    for (variable, words, program) in SYSTEMS {
        let far = Far::new();
        let (_directory, hosts) = file(&format!("240.0.0.1{words}\n"));
        let hosts = hosts.to_str().expect("path");
        // Without the program it is ssh.
        let dry = with(&["--dry-run"], &[(variable, hosts), ("PATH", "/usr/bin:/bin")]).success();
        let said = format!("other hosts are reached by ssh: {program}, by which ");
        assert!(dry.stderr.contains(&said), "{}", dry.stderr);
        let path = format!("{}:/usr/bin:/bin", far.rsh_like(program));
        let environment = [(variable, hosts), ("PATH", &path), ("GASPI_LOG", "info")];
        let told = with(&["true"], &environment).success();
        let said = format!("other hosts are reached by {program}: the hosts are those of an ");
        assert!(told.stderr.contains(&said), "{}", told.stderr);
        let named = with(&["--dry-run", "--ssh", "my-ssh"], &environment).success();
        let said = "other hosts are reached by my-ssh: --ssh names it";
        assert!(named.stderr.contains(said), "{}", named.stderr);
    }
}

#[test]
fn allocations_that_are_none_are_told() {
    for (variable, value, why) in [
        ("SLURM_JOB_NODELIST", "a[1-", "a bracket is not closed"),
        ("PBS_NODEFILE", "/nonexistent", "No such file"),
        ("PE_HOSTFILE", "/dev/null", "no list of hosts"),
    ] {
        let refused = with(&SHOW, &[(variable, value)]);
        assert_eq!(refused.code, Some(2), "{variable}");
        for words in [variable, why, "--here"] {
            assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
        }
    }
    let (_directory, path) = file("localhost slots=0\n");
    let refused = with(&["-m", path.to_str().expect("path"), "true"], &[]);
    assert!(refused.stderr.contains("the number of slots of a host is 1 to"), "{}", refused.stderr);
}

#[test]
fn ranks_get_no_variables_of_an_outer_launcher() {
    let outer = [
        ("PMI_RANK", "0"),
        ("PMI_FD", "9"),
        ("PMIX_RANK", "1"),
        ("PMIX_NAMESPACE", "x"),
        ("PMIX_MCA_gds", "hash"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("GASPI_LAUNCHER", "pmix"),
    ];
    let show = "env | grep -E '^(PMI|OMPI|GASPI_LAUNCHER)' | sort";
    let outcome = with(&["-n", "1", "sh", "-c", show], &outer).success();
    assert_eq!(outcome.stdout, "PMIX_MCA_gds=hash\n");
}
