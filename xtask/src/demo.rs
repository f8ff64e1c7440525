//! Builds everything and runs the halo exchange of `gaspi/examples/halo.rs` under gaspi_run.

use std::process::Command;

use crate::{Result, build, process, unknown, workspace};

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut ranks = String::from("4");
    let mut program = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().cloned().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "-n" => ranks = value()?,
            "--points" | "--steps" => program.extend([argument.clone(), value()?]),
            _ => return Err(unknown(argument)),
        }
    }
    println!("building the library, the tools and the example (release)");
    build::release()?;
    let mut cargo = workspace::cargo();
    process::run(cargo.args(["build", "--release", "-p", "gaspi", "--example", "halo"]))?;
    let release = workspace::release();
    let mut job = Command::new(release.join("gaspi_run"));
    job.args(["-n", &ranks]).arg(release.join("examples/halo")).args(program);
    println!("\n$ {}\n", process::describe(&job));
    process::run(&mut job)
}
