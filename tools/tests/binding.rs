//! Which cores the ranks of the real gaspi_run find themselves on.

mod harness;

use harness::{Run, gaspi_run, run};
use std::collections::BTreeSet;
use std::fs;

/// What a rank says: its number, GASPI_BIND, and the cores that the kernel allows it.
const SHOW: &str = "while read name value; do \
                    if [ \"$name\" = Cpus_allowed_list: ]; then echo \"$GASPI_RANK $GASPI_BIND \
                    $value\"; fi; done < /proc/self/status";

/// The cores that this test may use, as a list and one by one.
fn own() -> (String, BTreeSet<usize>) {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let list = list.expect("list").trim().to_owned();
    let cores = numbers(&list);
    (list, cores)
}

fn numbers(list: &str) -> BTreeSet<usize> {
    let run = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().expect("number")..=last.parse::<usize>().expect("number")
    };
    list.split(',').flat_map(run).collect()
}

/// GASPI_BIND and the cores of each rank.
fn bound(arguments: &[&str], ranks: usize) -> Vec<(String, String)> {
    let ranks_text = ranks.to_string();
    let line = [&["-n", &ranks_text], arguments, &["sh", "-c", SHOW]].concat();
    let outcome = run(&line).success();
    let mut found: Vec<(usize, String, String)> = outcome
        .stdout
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[0].parse().expect("rank"), words[1].to_owned(), words[2].to_owned())
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found.len(), ranks, "{}", outcome.stdout);
    found.into_iter().map(|(_, bind, cores)| (bind, cores)).collect()
}

#[test]
fn each_rank_has_cores_of_its_own() {
    let (_, cores) = own();
    let found = bound(&["--bind", "core"], cores.len());
    let each: BTreeSet<usize> = found.iter().flat_map(|(_, list)| numbers(list)).collect();
    assert_eq!(each, cores, "{found:?}");
    for (bind, list) in &found {
        assert_eq!(numbers(list).len(), 1, "{found:?}");
        assert_eq!(*bind, format!("core:{list}"));
    }
}

#[test]
fn more_ranks_than_cores_share_them_in_turn() {
    let (_, cores) = own();
    let found = bound(&["--bind", "core"], 2 * cores.len());
    assert_eq!(found[..cores.len()], found[cores.len()..]);
    let used: BTreeSet<usize> = found.iter().flat_map(|(_, list)| numbers(list)).collect();
    assert_eq!(used, cores);
}

#[test]
fn without_the_option_ranks_are_bound_while_there_are_enough_cores() {
    let (list, cores) = own();
    assert_eq!(bound(&[], 1), [(format!("core:{list}"), list.clone())]);
    let found = bound(&[], cores.len() + 1);
    assert!(found.iter().all(|rank| *rank == ("none".to_owned(), list.clone())), "{found:?}");
}

#[test]
fn none_and_the_programs_own_binding_leave_the_ranks_alone() {
    let (list, _) = own();
    for option in [&["--bind", "none"][..], &["-N"]] {
        let found = bound(option, 2);
        assert!(found.iter().all(|rank| *rank == ("none".to_owned(), list.clone())), "{found:?}");
    }
    // Unless both are asked for.
    assert!(bound(&["-N", "--bind", "core"], 1)[0].0.starts_with("core:"));
}

#[test]
fn numa_gives_whole_nodes() {
    let (_, cores) = own();
    for (bind, list) in bound(&["--bind", "numa"], 3) {
        assert_eq!(bind, format!("numa:{list}"));
        assert!(numbers(&list).is_subset(&cores));
        // All of the test's cores that are in the node of the first.
        let first = numbers(&list).first().copied().expect("core");
        let node = |core: usize| {
            let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).expect("core");
            entries.filter_map(Result::ok).find_map(|entry| {
                entry.file_name().to_str()?.strip_prefix("node")?.parse::<usize>().ok()
            })
        };
        let expected = cores.iter().copied().filter(|core| node(*core) == node(first));
        assert_eq!(numbers(&list), expected.collect());
    }
}

#[test]
fn a_job_keeps_to_the_cores_that_gaspi_run_was_given() {
    let inner = env!("CARGO_BIN_EXE_gaspi_run");
    let line = ["-n", "2", "--bind", "core", inner, "-n", "1", "sh", "-c", SHOW];
    let mut lines: Vec<String> = run(&line).success().stdout.lines().map(str::to_owned).collect();
    let outer = bound(&["--bind", "core"], 2);
    let mut expected: Vec<String> =
        outer.iter().map(|(bind, list)| format!("0 {bind} {list}")).collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn labels_tell_process_and_cores() {
    let (list, cores) = own();
    let plural = if cores.len() == 1 { "core" } else { "cores" };
    for (option, place) in
        [("core", format!("on {plural} {list}")), ("none", "on any core".to_owned())]
    {
        let command = gaspi_run(&["-n", "1", "--label", "--bind", option, "sh", "-c", "echo $$"]);
        let outcome = Run::start(command).finish().success();
        let pid = outcome.stdout.trim().strip_prefix("[0] ").expect("pid");
        assert_eq!(outcome.stderr, format!("gaspi_run: rank 0 (pid {pid}) {place}\n"));
    }
}

#[test]
fn unknown_words_are_told() {
    let outcome = run(&["-n", "1", "--bind", "socket", "true"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("core, numa, numa-cyclic, none"), "{}", outcome.stderr);
}
