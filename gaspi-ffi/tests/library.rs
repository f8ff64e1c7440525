//! The built library as a C program meets it: exported names, soname, argument checks.
//!
//! The programs are in C; this only builds and runs them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

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

/// Builds a program of this directory as the README says.
fn build(source: &str, extra: &[&str]) -> PathBuf {
    let name = format!("{}{}", source.trim_end_matches(".c"), extra.len());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
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
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].starts_with("[- "), "{log}");
    assert!(lines[0].contains("] gaspi_proc_rank: this process is not part of a job"), "{log}");
    assert!(lines[1].starts_with("[0 "), "{log}");
    assert!(lines[1].contains("] gaspi_proc_num: argument proc_num is NULL"), "{log}");
    assert_eq!(output.stdout, b"before init 7\n");
}

#[test]
fn calls_work_after_main() {
    let output = succeed(command(&build("after_main.c", &[])));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "main ends\nleft\n");
}
