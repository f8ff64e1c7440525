//! The built library as a C program meets it: exported names, soname, argument checks.
//!
//! The programs are in C; this only builds and runs them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The directory with libgaspi.so, built from the present sources.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // <target>/<profile>/deps/<this test>
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let target = profile.parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        // Cargo builds a library for tests only if they can link it as Rust.
        cargo.args(["build", "--quiet", "--package", "gaspi-ffi", "--lib", "--target-dir"]);
        cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        succeed(cargo);
        profile.to_owned()
    })
}

/// Runs a command that has to succeed.
fn succeed(mut command: Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../include")
}

fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Builds a program of this directory as the README says; once, as tests run beside each other.
fn build(source: &str, extra: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let name = format!("{}{}", source.trim_end_matches(".c"), extra.len());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if built.contains(&name) {
        return program;
    }
    let mut cc = compiler();
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source))
        .arg("-I")
        .arg(include());
    if extra.is_empty() {
        cc.arg("-L").arg(library()).arg("-lgaspi");
    } else {
        cc.args(extra);
    }
    cc.arg("-pthread");
    succeed(cc);
    built.insert(name);
    program
}

/// A command for a program, without a job around it.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GASPI_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", library()).stdin(Stdio::null());
    command
}

/// The functions that the headers declare.
fn declared() -> BTreeSet<String> {
    let mut cc = compiler();
    for header in ["GASPI.h", "GASPI_Ext.h", "GASPI_Threads.h", "PGASPI.h", "gaspi_collectives.h"] {
        cc.arg("-include").arg(include().join(header));
    }
    let output = succeed({
        cc.args(["-E", "-P", "-x", "c", "/dev/null"]);
        cc
    });
    let text = String::from_utf8(output.stdout).unwrap();
    text.match_indices('(')
        .filter(|(at, _)| !text[at + 1..].starts_with('*'))
        .filter_map(|(at, _)| text[..at].trim_end().rsplit([' ', '*', '\n', '(']).next())
        .filter(|name| name.starts_with("gaspi_") || name.starts_with("pgaspi_"))
        // The name of a type of functions stands in parentheses of its own.
        .filter(|name| !name.ends_with(')'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn exported_is_what_the_headers_declare_and_nothing_else() {
    let mut nm = Command::new("nm");
    nm.args(["--dynamic", "--defined-only", "--format=posix"]).arg(library().join("libgaspi.so"));
    let output = succeed(nm);
    let exported: BTreeSet<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect();
    let declared = declared();
    assert!(declared.len() > 200, "the headers were not understood: {declared:?}");
    let differing: Vec<_> = exported.symmetric_difference(&declared).collect();
    assert!(differing.is_empty(), "only declared or only exported: {differing:?}");
}

#[test]
fn programs_record_the_versioned_name() {
    let program = build("arguments.c", &[]);
    let mut readelf = Command::new("readelf");
    readelf.arg("--dynamic").arg(program);
    let output = succeed(readelf);
    assert!(String::from_utf8_lossy(&output.stdout).contains("[libgaspi.so.1]"));
}

#[test]
fn arguments_are_checked_in_order() {
    let mut program = command(&build("arguments.c", &[]));
    program.env("GASPI_LOG", "0");
    succeed(program);
}

#[test]
fn the_static_library_does_the_same() {
    let library = library().join("libgaspi.a");
    let extra = [library.to_str().unwrap(), "-lm", "-ldl"];
    let mut program = command(&build("arguments.c", &extra));
    program.env("GASPI_LOG", "0");
    succeed(program);
}

#[test]
fn a_cause_is_logged_once_with_rank_host_and_call() {
    let output = succeed(command(&build("logging.c", &[])));
    let log = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 3, "{log}");
    assert!(lines[0].starts_with("[- "), "{log}");
    assert!(lines[0].contains("] gaspi_proc_rank: this process is not part of a job"), "{log}");
    assert!(lines[1].starts_with("[0 "), "{log}");
    assert!(lines[1].contains("] gaspi_proc_num: argument proc_num is NULL"), "{log}");
    assert!(lines[2].contains("] gaspi_printf_to: rank 7: "), "{log}");
    assert_eq!(output.stdout, b"before init 7\n");
}

#[test]
fn a_rank_that_leaves_tells_how_many_messages_were_held_back() {
    let output = succeed(command(&build("many.c", &[])));
    let log = String::from_utf8(output.stderr).unwrap();
    let last = log.lines().last().unwrap_or_default();
    assert!(last.starts_with("[0 "), "{log}");
    assert!(last.ends_with(" further messages were not printed"), "{log}");
}

/// What each of two ranks, started by hand, wrote to stdout and stderr at a level of the log.
fn logged_at(level: Option<&str>) -> Vec<(String, String)> {
    let program = build("levels.c", &[]);
    let job = format!("levels-{}-{}", level.unwrap_or("default"), std::process::id());
    let ranks: Vec<_> = ["0", "1"]
        .map(|rank| {
            let mut rank_of = command(&program);
            rank_of.env("GASPI_RANK", rank).env("GASPI_NRANKS", "2").env("GASPI_JOB_ID", &job);
            level.map(|level| rank_of.env("GASPI_LOG", level));
            rank_of.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .into_iter()
        .collect();
    let written = ranks.into_iter().map(|rank| {
        let output = rank.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
        (stdout, stderr)
    });
    written.collect()
}

/// The lines that hold `text`.
fn lines<'t>(log: &'t str, text: &str) -> Vec<&'t str> {
    log.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn variables_that_mean_nothing_are_an_error_of_init() {
    let program = build("logging.c", &[]);
    for (variable, values, possible) in [
        ("GASPI_LOG", &["", "foo", "-1", "99999999999999999999"][..], "none, error, warn, info"),
        ("GASPI_STATISTICS", &["foo", "-1", "99999999999999999999"], "0 or 1"),
        ("GASPI_SET_NUMA_SOCKET", &["foo", "-1", "99999999999999999999"], "0 or 1"),
        ("GASPI_TRANSPORT", &["foo", "-1"], "auto, shm, tcp or verbs"),
        ("GASPI_ATOMICS", &["foo", "-1"], "cpu or nic"),
    ] {
        for value in values {
            let output = command(&program).env(variable, value).output().unwrap();
            let log = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{variable}={value}: {log}");
            let told = format!("gaspi_proc_init: environment: {variable} is {value:?}; it can be ");
            assert!(log.contains(&told) && log.contains(possible), "{variable}={value}: {log}");
        }
    }
}

#[test]
fn net_info_prints_what_carries_the_data_whatever_the_level() {
    for (rank, (stdout, stderr)) in logged_at(Some("none")).into_iter().enumerate() {
        assert_eq!(stderr, "");
        assert!(stdout.starts_with(&format!("[{rank} ")), "{stdout}");
        assert!(stdout.ends_with("transport to the 2 ranks of this host: shared memory\n"));
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
    }
}

#[test]
fn info_introduces_the_rank_and_says_goodbye() {
    for (rank, (_, default)) in logged_at(None).into_iter().enumerate() {
        assert_eq!(default.lines().count(), 1, "{default}");
        assert!(default.contains("gaspi_proc_num: argument proc_num is NULL"), "{rank}: {default}");
    }
    for (rank, (_, log)) in logged_at(Some("info")).into_iter().enumerate() {
        let prefix = format!("[{rank} ");
        // How the rank was started, before it is one.
        let (started, rest) = log.split_once('\n').expect("lines");
        assert!(started.starts_with("[- ") && started.contains(": launcher "), "{log}");
        assert!(rest.lines().all(|line| line.starts_with(&prefix)), "{log}");
        let hello = lines(&log, "gaspi_proc_init: ");
        assert_eq!(hello.len(), 1, "{log}");
        for part in [
            &format!("rank {rank} of 2, gaspi {}; ", env!("CARGO_PKG_VERSION")),
            "2 of 2 ranks by shared memory",
            "a wait ",
            " runs on cores ",
            "not bound by gaspi_run",
        ] {
            assert!(hello[0].contains(part), "{part}: {log}");
        }
        assert_eq!(lines(&log, "gaspi_proc_term: has left the job").len(), 1, "{log}");
        assert_eq!(lines(&log, "gaspi_proc_num: argument").len(), 1, "{log}");
        assert!(lines(&log, "segment_alloc").is_empty(), "{log}");
    }
}

#[test]
fn debug_tells_what_became_of_segments_and_groups() {
    for (rank, (_, log)) in logged_at(Some("debug")).into_iter().enumerate() {
        let peer = 1 - rank;
        for (text, count) in [
            ("segment_alloc: segment 3 has 8 KiB in small pages", 1),
            ("segment_alloc: segment 4 has 4 MiB in ", 1),
            ("segment_bind: segment 5 is 12 KiB of the program's", 1),
            (&format!("segment_register: segment 3 of rank {peer} has 8 KiB and is mapped"), 1),
            (&format!("segment_register: segment 5 of rank {peer} has 12 KiB and is copied "), 1),
            ("group_commit: group 1 has ranks {0, 1}", 1),
            ("segment_delete: segment 5 has ended", 1),
            ("gaspi_proc_init: ", 1),
        ] {
            assert_eq!(lines(&log, text).len(), count, "{text}\n{log}");
        }
    }
}

#[test]
fn calls_work_after_main() {
    let output = succeed(command(&build("after_main.c", &[])));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "main ends\nleft\n");
}
