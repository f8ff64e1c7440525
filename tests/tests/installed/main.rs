//! The installed tree as users and old programs see it. `cargo xtask test` installs it first, makes
//! the package, and sets `GASPI_TEST_TREE` (the prefix on disk), `GASPI_TEST_DESTDIR`,
//! `GASPI_TEST_PACKAGE` and `GASPI_TEST_XTASK` (the installer).

mod builds;
mod layouts;
mod manual;
mod package;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, OnceLock};

use gaspi_tests::{Job, Program, Result, c_compiler, root, run_compiler, run_trials};
use libtest_mimic::{Arguments, Failed, Trial};

/// Valid C and C++.
const HELLO: &str = "packaging/examples/hello.c";

/// How a test ends.
type Verdict = std::result::Result<(), Failed>;

fn main() -> ExitCode {
    run_trials(Arguments::from_args(), trials())
}

/// The installed tree.
#[derive(Clone, Debug)]
struct Tree {
    prefix: PathBuf,
    destdir: PathBuf,
    scratch: PathBuf,
}

impl Tree {
    fn library(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    fn include(&self) -> PathBuf {
        self.prefix.join("include")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Runs a program under the installed gaspi_run with the installed libraries.
    fn run(&self, ranks: u32, program: &Path) -> Result<()> {
        self.job(ranks, program).run()?.success().map(drop)
    }

    fn job(&self, ranks: u32, program: &Path) -> Job {
        Job::plain(&self.prefix.join("bin/gaspi_run"))
            .arg("-n")
            .arg(ranks.to_string())
            .arg(program)
            .env("LD_LIBRARY_PATH", self.library().into_os_string())
    }
}

fn trials() -> Result<Vec<Trial>> {
    let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("installed");
    std::fs::create_dir_all(&scratch)?;
    let (prefix, destdir) = (variable("GASPI_TEST_TREE")?, variable("GASPI_TEST_DESTDIR")?);
    let tree = Tree { prefix: prefix.into(), destdir: destdir.into(), scratch };
    let mut trials = Vec::new();
    let mut add = |name: &str, test: fn(&Tree) -> Verdict| {
        let tree = tree.clone();
        trials.push(Trial::test(name, move || test(&tree)));
    };
    add("pkg-config/c", |tree| by_pkg_config(tree, "gaspi", false));
    add("pkg-config/c++", |tree| by_pkg_config(tree, "gaspi", true));
    add("pkg-config/gpi2", |tree| by_pkg_config(tree, "GPI2", false));
    add("pkg-config/static", statically);
    add("names", names);
    add("one-image", one_image);
    add("static-symbols", static_symbols);
    add("cmake/examples", |tree| builds::cmake_examples(&tree.prefix, &tree.scratch));
    add("cmake/requests", |tree| builds::cmake_requests(&tree.prefix, &tree.scratch));
    add("make/examples", |tree| builds::make_examples(&tree.prefix, &tree.scratch));
    add("make/old", |tree| builds::old_makefile(&tree.prefix, &tree.scratch));
    add("bench", |tree| builds::bench(&tree.prefix));
    add("layout/uninstall", |tree| layouts::uninstall(&tree.scratch));
    add("layout/replaced", |tree| layouts::replaced(&tree.scratch));
    add("layout/foreign-lib64", |tree| layouts::foreign_lib64(&tree.scratch));
    add("layout/mistakes", |tree| layouts::mistakes(&tree.scratch));
    add("package/examples", |tree| package::examples(&tree.scratch));
    add("package/control", |tree| package::control(&tree.scratch));
    add("package/manual", |tree| package::manual(&tree.scratch));
    add("package/reproducible", |tree| package::reproducible(&tree.scratch));
    add("man/procedures", |tree| manual::procedures(&tree.prefix));
    add("man/tools", |tree| manual::tools(&tree.prefix));
    add("man/requests", |tree| manual::requests(&tree.prefix));
    for program in Program::all("tests/c", &["c"])? {
        let program = Arc::new(program);
        for link in program.links.clone() {
            for ranks in program.ranks.clone() {
                let (tree, program, link) = (tree.clone(), Arc::clone(&program), link.clone());
                let name = format!("{link}/{}/{ranks}", program.name);
                trials.push(Trial::test(name, move || linked(&tree, &program, &link, ranks)));
            }
        }
    }
    Ok(trials)
}

/// What the stage of `cargo xtask test` tells.
fn variable(name: &str) -> Result<OsString> {
    let why = format!("{name} is not set; `cargo xtask test --only installed` sets it");
    std::env::var_os(name).ok_or(gaspi_tests::Failed(why))
}

/// An empty directory, whatever a former run left there.
fn fresh(directory: &Path) -> Result<PathBuf> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    std::fs::create_dir_all(directory)?;
    Ok(directory.to_path_buf())
}

fn compiler(tree: &Tree, is_cxx: bool) -> Command {
    let mut command = c_compiler(is_cxx);
    command.arg("-I").arg(tree.include());
    command
}

/// What pkg-config says about a package of the tree.
fn pkg_config(tree: &Tree, arguments: &[&str]) -> Result<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", tree.library().join("pkgconfig"));
    command.env("PKG_CONFIG_SYSROOT_DIR", &tree.destdir).args(arguments);
    let words = run_compiler(&mut command)?;
    Ok(words.split_whitespace().map(str::to_owned).collect())
}

fn by_pkg_config(tree: &Tree, package: &str, is_cxx: bool) -> Verdict {
    let to = tree.program(&format!("hello-{package}-{is_cxx}"));
    let mut command = c_compiler(is_cxx);
    command.args(["-x", if is_cxx { "c++" } else { "c" }]).arg(root().join(HELLO));
    command.args(["-x", "none"]).args(pkg_config(tree, &["--cflags", "--libs", package])?);
    run_compiler(command.arg("-o").arg(&to))?;
    tree.run(3, &to)?;
    Ok(())
}

fn statically(tree: &Tree) -> Verdict {
    let to = tree.program("hello-static");
    let mut command = c_compiler(false);
    command.arg(root().join(HELLO)).args(pkg_config(tree, &["--cflags", "gaspi"])?);
    command.arg(tree.library().join("libgaspi.a"));
    let libraries = pkg_config(tree, &["--static", "--libs-only-l", "gaspi"])?;
    command.args(libraries.iter().filter(|word| *word != "-lgaspi"));
    run_compiler(command.arg("-o").arg(&to))?;
    let needed = run_compiler(Command::new("readelf").arg("-d").arg(&to))?;
    if needed.contains("libgaspi") {
        return Err("the static program still needs libgaspi.so".into());
    }
    tree.run(3, &to)?;
    Ok(())
}

/// All names lead to one file, and it carries the right soname.
fn names(tree: &Tree) -> Verdict {
    let real = tree.library().join("libgaspi.so").canonicalize()?;
    for name in
        ["libgaspi.so.1", "libGPI2.so", "libGPI2.so.0", "libGPI2-dbg.so.0", "libGPI2-stats.so.0"]
    {
        let found = tree.library().join(name).canonicalize()?;
        if found != real {
            return Err(format!("{name} leads to {}", found.display()).into());
        }
    }
    for name in ["libGPI2.a", "libGPI2-dbg.a", "libGPI2-stats.a"] {
        tree.library().join(name).canonicalize()?;
    }
    let dynamic = run_compiler(Command::new("readelf").arg("-d").arg(&real))?;
    if !dynamic.contains("[libgaspi.so.1]") {
        return Err(format!("soname is not libgaspi.so.1:\n{dynamic}").into());
    }
    Ok(())
}

/// A process that needs the old and the new name maps the library once.
fn one_image(tree: &Tree) -> Verdict {
    let to = tree.program("both-names");
    let old = old_library(tree)?;
    let mut command = compiler(tree, false);
    command.arg(root().join("tests/tests/installed/one_image.c")).arg("-Wl,--no-as-needed");
    command.arg("-L").arg(old).arg("-lGPI2");
    command.arg("-L").arg(tree.library()).arg("-lgaspi");
    run_compiler(command.arg("-o").arg(&to))?;
    tree.run(1, &to)?;
    Ok(())
}

/// A library with the soname that old programs recorded. Its procedures do nothing and fail; the
/// linker needs them, the loader never sees them.
fn old_library(tree: &Tree) -> Result<PathBuf> {
    static OLD: OnceLock<Result<PathBuf>> = OnceLock::new();
    let build = || {
        let directory = tree.program("old");
        std::fs::create_dir_all(&directory)?;
        let table = std::fs::read_to_string(root().join("docs/conformance.md"))?;
        let source: String = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `gaspi_")?.split('`').next())
            .map(|name| format!("int gaspi_{name}(void) {{ return -1; }}\n"))
            .collect();
        let file = directory.join("old.c");
        std::fs::write(&file, source)?;
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-Wl,-soname,libGPI2.so.0"]).arg(file);
        run_compiler(command.arg("-o").arg(directory.join("libGPI2.so")))?;
        Ok(directory)
    };
    OLD.get_or_init(build).clone()
}

/// libgaspi.a shows nothing but the C names, the profiled ones weak.
fn static_symbols(tree: &Tree) -> Verdict {
    let archive = tree.library().join("libgaspi.a");
    let table =
        run_compiler(Command::new("nm").args(["--defined-only", "--extern-only"]).arg(&archive))?;
    let mut symbols = 0;
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, name] = words.as_slice() else { continue };
        symbols += 1;
        let right = match *kind {
            "W" | "V" => name.starts_with("gaspi_"),
            _ => name.starts_with("pgaspi_"),
        };
        if !right {
            return Err(format!("libgaspi.a shows {name} as {kind}").into());
        }
    }
    if symbols < 100 {
        return Err(format!("libgaspi.a shows only {symbols} symbols:\n{table}").into());
    }
    Ok(())
}

/// The programs of `tests/c` whose comment asks for a way to link.
fn linked(tree: &Tree, program: &Program, link: &str, ranks: u32) -> Verdict {
    let to = tree.program(&format!("{}-{link}-{ranks}", program.name));
    let mut command = compiler(tree, false);
    command.arg(&program.source);
    match link {
        "shared" => {
            command.arg("-L").arg(tree.library()).arg("-lgaspi");
        }
        "static" => {
            command.arg(tree.library().join("libgaspi.a"));
            let libraries = pkg_config(tree, &["--static", "--libs-only-l", "gaspi"])?;
            command.args(libraries.iter().filter(|word| *word != "-lgaspi"));
        }
        "legacy" => {
            command.arg("-Wl,--no-as-needed").arg("-L").arg(old_library(tree)?);
            command.arg("-lGPI2");
        }
        _ => return Err(format!("there is no way to link {link:?}").into()),
    }
    run_compiler(command.arg("-o").arg(&to))?;
    let outcome = tree.job(ranks, &to).args(&program.arguments).run()?.success()?;
    if let Some(expected) = &program.expected {
        let found = outcome.stdout.lines().filter(|line| *line == expected).count();
        if found != ranks as usize {
            return Err(outcome.failure(&format!("{found} of {ranks} print {expected:?}")).into());
        }
    }
    Ok(())
}
