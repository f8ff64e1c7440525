//! Instructions of the fast paths, which are exact where time is not: counted by callgrind,
//! compared with the committed figures, and shown in docs/performance.md.
//!
//! A rise fails; its commit renews the figures and gives the reason.

mod figures;
mod profile;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use figures::{Figure, Figures, Verdict};
use gaspi_tests::{Failed, Job, Linkage, Outcome, Result};
use profile::Profile;

const LIBRARY: &str = "libgaspi.so";
/// The program of the Rust interface, which has the library in it.
const RUST: &str = "submits";
/// Functions that copy, scale, convert or add elements: what they do depends on the data, and does
/// not count where a tensor is submitted, as the copy of the C library does not.
const KERNEL: &str = "gaspi_collectives::kernel::";
/// Where the table of the document begins and ends.
const BEGIN: &str = "<!-- begin of the counts -->\n";
const END: &str = "<!-- end of the counts -->\n";

/// How the peer is reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Memory,
    /// By the device that tests/mock-card plays, up to its functions.
    Device,
    /// Not at all: one rank, which uses the Rust interface.
    Rust,
}

fn folder() -> PathBuf {
    gaspi_tests::root().join("tests/tests/instructions")
}

fn document() -> PathBuf {
    gaspi_tests::root().join("docs/performance.md")
}

fn is_renewing() -> bool {
    std::env::var_os("GASPI_TEST_RENEW").is_some()
}

/// Compiles the program; its calls go straight into the library, without stubs of the linker. That
/// of the Rust interface lies in the release build.
fn program(directory: &Path, way: Way) -> Result<PathBuf> {
    if way == Way::Rust {
        let program = gaspi_tests::library_directory()?.join(RUST);
        let built = program.is_file().then_some(program);
        return built.ok_or_else(|| Failed(format!("{RUST} is missing: {BUILD_RUST}")));
    }
    let to = directory.join("paths");
    let source = folder().join("paths.c");
    let mut compiler = gaspi_tests::c_compiler(false);
    compiler.arg("-fno-plt").arg("-I").arg(gaspi_tests::root().join("include"));
    compiler.arg("-I").arg(gaspi_tests::root().join("tests/c")).arg(source);
    if way == Way::Device {
        compiler.arg("-DBY_DEVICE");
    }
    gaspi_tests::link(&mut compiler, &to, Linkage::Shared)?;
    Ok(to)
}

const BUILD_RUST: &str = "run cargo build --release -p gaspi-ffi -p gaspi-tools \
                          --features gaspi-tools/submits --bin submits";

/// Runs rank 0 under callgrind and rank 1, if there is one, beside it; the parts of the profile
/// lie in `directory`.
fn run(directory: &Path, way: Way) -> Result<Outcome> {
    let program = program(directory, way)?;
    let job = format!("instructions-{}-{}", std::process::id(), gaspi_tests::monotonic_us());
    let rank = |job_of: Job, rank: &str| -> Result<Job> {
        let of = job_of.env("GASPI_RANK", rank).env("GASPI_NRANKS", "2").env("GASPI_JOB_ID", &job);
        match way {
            Way::Memory | Way::Rust => Ok(of),
            // A request has ended when it is waited for, so that a wait costs one look.
            Way::Device => Ok(of
                .over_devices_in(directory)?
                .env("GASPI_MOCK_OPTIONS", "time_scale=1,await_answers=1")),
        }
    };
    let peer = (way != Way::Rust).then(|| rank(Job::plain(&program), "1")?.start()).transpose()?;
    let counted = Job::plain(Path::new("/usr/bin/valgrind"))
        .args(["--quiet", "--tool=callgrind", "--compress-strings=no", "--compress-pos=no"])
        .args(["--toggle-collect=path_*", "--dump-after=run_*"])
        .arg(format!("--callgrind-out-file={}", directory.join("profile").display()))
        .arg(&program);
    let counted = rank(counted, "0")?.run()?.success()?;
    if let Some(peer) = peer {
        peer.wait()?.success()?;
    }
    Ok(counted)
}

/// The compiler that made the library, as it says itself.
fn compiler() -> Result<String> {
    let path = gaspi_tests::library_directory()?.join(LIBRARY);
    let bytes = fs::read(&path)?;
    let mark = b"rustc version ";
    let found = bytes.windows(mark.len()).position(|window| window == mark).map(|at| &bytes[at..]);
    let found = found.and_then(|rest| rest.split(|byte| *byte == 0).next());
    let lost = || Failed(format!("{} does not say which rustc made it", path.display()));
    Ok(String::from_utf8_lossy(found.ok_or_else(lost)?).into_owned())
}

/// The parts of the profile by the path that they are of.
fn parts(directory: &Path) -> Result<Vec<Profile>> {
    let mut parts = Vec::new();
    for entry in fs::read_dir(directory)?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("profile.") {
            parts.push(Profile::read(&fs::read_to_string(entry.path())?));
        }
    }
    Ok(parts)
}

/// How often paths to a device are counted. A wait now and then looks once more, as the other rank
/// runs beside it.
const TRIES: usize = 5;

/// Counts all paths, in the order of the program.
fn count() -> Result<Figures> {
    let mut paths = count_by(Way::Memory)?;
    paths.extend(count_by(Way::Rust)?);
    let mut by_device = count_by(Way::Device)?;
    for _ in 1..TRIES {
        for (least, again) in by_device.iter_mut().zip(count_by(Way::Device)?) {
            if again.instructions < least.instructions {
                *least = again;
            }
        }
    }
    paths.extend(by_device);
    Ok(Figures { compiler: compiler()?, paths })
}

fn count_by(way: Way) -> Result<Vec<Figure>> {
    let directory = tempfile::tempdir()?;
    let outcome = run(directory.path(), way)?;
    let parts = parts(directory.path())?;
    let mut paths = Vec::new();
    for line in outcome.stdout.lines().filter_map(|line| line.strip_prefix("path ")) {
        let (path, words) = line.split_once(' ').unwrap_or((line, ""));
        let part = parts.iter().find(|part| part.after == format!("run_{path}"));
        let part = part.ok_or_else(|| outcome.failure(&format!("{path} has no profile")))?;
        let calls = part.calls_by("path_");
        let object = if way == Way::Rust { RUST } else { LIBRARY };
        let (instructions, outside) =
            part.of_object(object, path.contains("submit").then_some(KERNEL));
        if calls == 0 || instructions == 0 {
            return Err(outcome.failure(&format!("nothing was counted for {path}")));
        }
        paths.push(Figure {
            path: path.to_owned(),
            instructions: instructions.div_ceil(calls),
            // Callgrind counts calls always, also the few of the warm-up.
            calls: outside / calls,
            words: words.to_owned(),
        });
    }
    Ok(paths)
}

fn committed() -> Result<Figures> {
    let path = folder().join("figures.txt");
    let text = fs::read_to_string(&path)?;
    Figures::read(&text).map_err(|reason| Failed(format!("{}: {reason}", path.display())))
}

/// The document before its table, the table, and what follows.
fn split(text: &str) -> Result<[&str; 3]> {
    let around = text.split_once(BEGIN);
    let parts = around.and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
    let (before, (table, after)) =
        parts.ok_or_else(|| Failed(format!("docs/performance.md lacks {BEGIN}{END}")))?;
    Ok([before, table, after])
}

fn renew(figures: &Figures) -> Result<()> {
    fs::write(folder().join("figures.txt"), figures.written())?;
    let text = fs::read_to_string(document())?;
    let [before, _, after] = split(&text)?;
    let table = figures.as_markdown();
    fs::write(document(), format!("{before}{BEGIN}{table}{END}{after}"))?;
    Ok(())
}

/// Tells also if the test passes, whose output is not shown.
fn tell(text: &str) {
    // Nothing depends on it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

const REMEDY: &str = "GASPI_TEST_RENEW=1 cargo xtask test --only instructions";

#[test]
fn paths_cost_what_is_committed() -> Result<()> {
    let is = count()?;
    if is_renewing() {
        return renew(&is);
    }
    let (verdict, table) = committed()?.compare(&is);
    match verdict {
        Verdict::Same => Ok(()),
        Verdict::Renew => {
            tell(&format!("{table}renew the figures: {REMEDY}\n"));
            Ok(())
        }
        Verdict::Fails => Err(Failed(format!(
            "fast paths cost more, or are others, than committed:\n{table}\
             if that has to be, renew the figures with\n    {REMEDY}\n\
             and give the reason in the commit"
        ))),
    }
}

#[test]
fn the_document_shows_the_committed_figures() -> Result<()> {
    // The other test is writing it.
    if is_renewing() {
        return Ok(());
    }
    let text = fs::read_to_string(document())?;
    assert_eq!(split(&text)?[1], committed()?.as_markdown(), "docs/performance.md: {REMEDY}");
    Ok(())
}
