//! What CI runs and a person can run: `cargo xtask NAME`. Without a name it lists the commands.
//!
//! Only the standard library is used, so that the first command of a fresh checkout starts at once.
//! Everything else is done by the programs that a developer would call by hand: cargo, cc, nm,
//! objcopy, valgrind.

mod bindings;
mod build;
mod debian;
mod delays;
mod demo;
mod excerpt;
mod finding;
mod fuzzed;
mod headers;
mod install;
mod lint;
mod machine;
mod man;
mod names;
mod package;
mod process;
mod python;
mod result;
mod rxe;
mod sshd;
mod stages;
mod suite;
mod symbols;
mod test;
mod training;
mod tree;
mod wheel;
mod workspace;

use result::{Result, unknown};
use std::process::ExitCode;

/// One command of `cargo xtask`.
struct Task {
    name: &'static str,
    arguments: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<()>,
}

const TASKS: [Task; 11] = [
    Task {
        name: "demo",
        arguments: "[-n RANKS] [--points N]",
        about: "build everything and run a checked halo exchange on 4 ranks, with a table of times",
        run: demo::run,
    },
    Task {
        name: "test",
        arguments: "[--full] [--install] [--skip-missing] [--within MINUTES] [--only STAGE,...] \
                    [--list] [-- FILTER...]",
        about: "run the tests in stages and print a table of them; --within leaves stages\n\
                \x20     out where the machine is too slow for all\n\
                \x20     FILTER: a part of the names of tests of the stage; in the stage training\n\
                \x20     [ENVIRONMENT/][RANKS/]NAME, such as tf-2.12/4/job_data or tf-2.12/",
        run: test::run,
    },
    Task {
        name: "build",
        arguments: "",
        about: "release build: libgaspi.so, libgaspi.a and the tools in target/release",
        run: build::run,
    },
    Task {
        name: "install",
        arguments: "--prefix DIR [--destdir DIR] [--libdir DIR]",
        about: "libraries, headers, Fortran sources, pkg-config and CMake files, tools, man pages",
        run: install::run,
    },
    Task {
        name: "uninstall",
        arguments: "--prefix DIR [--destdir DIR]",
        about: "remove what install put there, and nothing else",
        run: install::remove,
    },
    Task {
        name: "package",
        arguments: "[--to DIR]",
        about: "the installation as a Debian package, in target/debian or DIR",
        run: package::run,
    },
    Task {
        name: "wheel",
        arguments: "[--to DIR] [--glibc 2.28]",
        about: "the Python package with library and tools as a wheel, in target/wheel or DIR\n\
                \x20     --glibc: for that version of the C library, by ziglang of PyPI",
        run: wheel::run,
    },
    Task {
        name: "rxe",
        arguments: "[--device CARD] [--full] [--list] [CHECK...]",
        about: "verbs without a card: perftest and the release build in guests with soft-RoCE\n\
                \x20     --device: the checks that can do so, with a card of this machine\n\
                \x20     --full: also those of the full tier",
        run: rxe::run,
    },
    Task {
        name: "lint",
        arguments: "[--root DIR | --accepted DIR]",
        about: "formatting, clippy, house rules, licences; warnings are errors when CI=true\n\
                \x20     --root: the rules for sources alone, of the checkout DIR\n\
                \x20     --accepted: the lists of xtask/src/lint/accepted.rs as DIR needs them",
        run: lint::run,
    },
    Task {
        name: "bindings",
        arguments: "[--write]",
        about: "compare libibverbs-sys with rdma-core's header; --write makes its bindings anew",
        run: bindings::run,
    },
    Task { name: "fmt", arguments: "", about: "format all Rust code", run: lint::format },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    };
    if matches!(name.as_str(), "-h" | "--help" | "help") {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprintln!("xtask: there is no command {name:?}\n\n{}", usage());
        return ExitCode::from(2);
    };
    match (task.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            // Empty when the command has said everything itself.
            if !reason.is_empty() {
                eprintln!("xtask {name}: {reason}");
            }
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from("cargo xtask COMMAND\n");
    for task in &TASKS {
        text.push_str(&format!("\n  {} {}\n      {}", task.name, task.arguments, task.about));
    }
    text
}
