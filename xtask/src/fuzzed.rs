//! The targets of cargo-fuzz in `fuzz/`, each run for a while. cargo-fuzz builds them with what
//! tells a fuzzer which ways a case takes; `-s none` does without a sanitizer, for which a nightly
//! compiler would be needed.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::{End, guarded, output, run};
use crate::suite::{Context, Count};
use crate::{Result, workspace};

/// How long each target is run.
const SECONDS: u64 = 60;
/// Seconds after which a single case hangs.
const CASE_SECONDS: u64 = 10;
const INSTALL: &str = "cargo install cargo-fuzz --locked";

/// Builds all targets and runs each.
pub(crate) fn targets(context: &Context) -> Result<Count> {
    provide(context.install)?;
    let target_directory = workspace::scratch("fuzz");
    let mut build = fuzz();
    build.args(["build", "--sanitizer", "none", "--target-dir"]).arg(&target_directory);
    run(&mut build)?;
    let names = output(fuzz().arg("list"))?;
    let mut count = Count::default();
    for name in names.split_whitespace() {
        match run_one(context, name) {
            Ok(()) => count.passed += 1,
            Err(reason) => {
                println!("{name}: {reason}");
                count.failed += 1;
            }
        }
    }
    if count.passed + count.failed == 0 { Err("no target ran".into()) } else { Ok(count) }
}

fn fuzz() -> Command {
    let mut cargo = workspace::cargo();
    cargo.arg("fuzz");
    cargo
}

fn provide(install: bool) -> Result<()> {
    if output(fuzz().arg("--version")).is_ok() {
        return Ok(());
    }
    if !install {
        return Err(format!("cargo-fuzz is missing; install it (or use --install): {INSTALL}"));
    }
    println!("installing: {INSTALL}");
    run(workspace::cargo().args(INSTALL.split(' ').skip(1)))
}

/// The program that cargo-fuzz has built; it is run without that, which would write into the
/// sources.
fn run_one(context: &Context, name: &str) -> Result<()> {
    let scratch = workspace::scratch("fuzz");
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let program: PathBuf = scratch.join(triple).join("release").join(name);
    // What earlier runs have found is where this one begins.
    let corpus = scratch.join("corpus").join(name);
    workspace::make_directory(&corpus)?;
    let mut command = Command::new(program);
    command.arg(&corpus).arg(format!("-max_total_time={SECONDS}"));
    command.arg(format!("-timeout={CASE_SECONDS}")).args(["-print_final_stats=1", "-verbosity=0"]);
    command.arg(format!("-artifact_prefix={}/failed-{name}-", scratch.display()));
    let limit = context.limit.min(Duration::from_secs(10 * SECONDS));
    match guarded(&mut command, limit, |_| ())? {
        End::Success => Ok(()),
        End::Failure(reason) => Err(reason),
    }
}
