//! Builds that find the installed tree: CMake, make with pkg-config, and what GPI-2 programs say.

use std::path::{Path, PathBuf};
use std::process::Command;

use gaspi_tests::{Job, Result, c_compiler, root, run_compiler};

use crate::{HELLO, Verdict, fresh};

/// The examples, as they are installed, built by CMake and run by ctest, against a tree that was
/// moved to a directory with a space in its name.
pub(crate) fn cmake_examples(prefix: &Path, scratch: &Path) -> Verdict {
    let moved = fresh(&scratch.join("cmake moved"))?.join("tree");
    run_compiler(Command::new("cp").arg("-a").arg(prefix).arg(&moved))?;
    cmake(&moved, &scratch.join("cmake-examples"))?;
    Ok(())
}

/// Builds and runs the examples of the tree at `prefix`.
pub(crate) fn cmake(prefix: &Path, build: &Path) -> Result<()> {
    fresh(build)?;
    let examples = prefix.join("share/doc/gaspi/examples");
    let mut configure = plain("cmake");
    configure.arg("-S").arg(examples).arg("-B").arg(build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    // Nothing that the machine may have installed.
    configure.arg("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF").arg("-DCMAKE_BUILD_TYPE=Release");
    run_compiler(&mut configure)?;
    run_compiler(plain("cmake").arg("--build").arg(build))?;
    let ctest = Job::plain(Path::new("ctest")).directory(build).arg("--output-on-failure");
    let outcome = ctest.run()?.success()?;
    if !outcome.stdout.contains("100% tests passed, 0 tests failed out of 4") {
        return Err(outcome.failure("ctest did not run the four examples"));
    }
    let library = run_compiler(Command::new("readelf").arg("-d").arg(build.join("hello-cxx")))?;
    if !library.contains("[libgaspi.so.1]") {
        return Err(gaspi_tests::Failed(format!("hello-cxx does not need the soname:\n{library}")));
    }
    Ok(())
}

/// Versions, components and variables of `find_package`.
pub(crate) fn cmake_requests(prefix: &Path, scratch: &Path) -> Verdict {
    let build = fresh(&scratch.join("cmake-requests"))?;
    let mut configure = plain("cmake");
    configure.arg("-S").arg(root().join("tests/tests/installed/found")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    configure.arg(format!("-DROOT={}", prefix.display()));
    configure.arg(format!("-DNUMBERS={}", env!("CARGO_PKG_VERSION")));
    configure.arg("-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF");
    run_compiler(&mut configure)?;
    Ok(())
}

/// The same examples by their Makefile; the .pc files name another prefix than where the tree lies.
pub(crate) fn make_examples(prefix: &Path, scratch: &Path) -> Verdict {
    let build = fresh(&scratch.join("make"))?.join("examples");
    let examples = prefix.join("share/doc/gaspi/examples");
    run_compiler(Command::new("cp").arg("-a").arg(examples).arg(&build))?;
    let prefix_is = format!("PREFIX={}", prefix.display());
    run_compiler(plain("make").arg("-C").arg(&build).arg(prefix_is))?;
    for program in ["hello-c", "hello-static", "hello-cxx", "hello-fortran"] {
        hello(prefix, &build.join(program), "")?;
    }
    Ok(())
}

/// What Makefiles of GPI-2 programs say: headers and libraries below `$GPI2_ROOT`, the latter in
/// lib64, linked under the old name.
pub(crate) fn old_makefile(prefix: &Path, scratch: &Path) -> Verdict {
    let build = fresh(&scratch.join("old-makefile"))?;
    let makefile = "CFLAGS = -I$(GPI2_ROOT)/include\nLDFLAGS = -L$(GPI2_ROOT)/lib64\n\
                    LDLIBS = -lGPI2 -lpthread -lm\nall: hello\nhello: hello.c\n";
    std::fs::write(build.join("Makefile"), makefile)?;
    std::fs::copy(root().join(HELLO), build.join("hello.c"))?;
    let root_is = format!("GPI2_ROOT={}", prefix.display());
    run_compiler(plain("make").arg("-C").arg(&build).arg(root_is))?;
    hello(prefix, &build.join("hello"), "lib64")?;
    Ok(())
}

/// Compiles a program against the libraries in `libdir` of the tree, and runs it.
pub(crate) fn compile_and_run(prefix: &Path, libdir: &str, to: &Path) -> Result<()> {
    let mut command = c_compiler(false);
    command.arg("-I").arg(prefix.join("include")).arg(root().join(HELLO));
    command.arg("-L").arg(prefix.join(libdir)).arg("-lgaspi").arg("-o").arg(to);
    run_compiler(&mut command)?;
    hello(prefix, to, libdir)
}

/// Runs a greeting program on three ranks; in `libdir` of the tree it finds the library, unless it
/// knows that itself.
pub(crate) fn hello(prefix: &Path, program: &Path, libdir: &str) -> Result<()> {
    let mut job = Job::plain(&prefix.join("bin/gaspi_run")).args(["-n", "3"]).arg(program);
    if !libdir.is_empty() {
        job = job.env("LD_LIBRARY_PATH", prefix.join(libdir).into_os_string());
    }
    let outcome = job.run()?.success()?;
    for rank in 0..3 {
        let line = format!("rank {rank}: greetings from rank {}", (rank + 2) % 3);
        if !outcome.stdout.lines().any(|found| found == line) {
            return Err(outcome.failure(&format!("nobody says {line:?}")));
        }
    }
    Ok(())
}

/// The installed gaspi-bench finds the library and gaspi_run of its own tree.
pub(crate) fn bench(prefix: &Path) -> Verdict {
    let bench = Job::plain(&prefix.join("bin/gaspi-bench"));
    let outcome = bench.args(["barrier", "-n", "2", "--iterations", "10", "--json"]).run()?;
    let outcome = outcome.success()?;
    if !outcome.stdout.contains("\"test\":\"barrier\"") {
        return Err(outcome.failure("gaspi-bench tells no barrier").into());
    }
    Ok(())
}

/// A program without what cargo tells its tests about libraries.
fn plain(program: &str) -> Command {
    let mut command = Command::new(PathBuf::from(program));
    command.env_remove("LD_LIBRARY_PATH").env_remove("MAKEFLAGS").env_remove("MFLAGS");
    command
}
