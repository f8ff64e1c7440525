//! `cargo xtask package`: the installation as one Debian package.
//!
//! The same sources, compiler and checkout directory give the same package, byte by byte: times are
//! those of the last commit, or `SOURCE_DATE_EPOCH`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::install::{self, Place};
use crate::tree::Tree;
use crate::{Result, build, names, process, unknown, workspace};

/// The revision of the packaging of one version.
const REVISION: &str = "1";

/// Libraries by the start of their soname, the Debian package that has each, and the prefix of the
/// symbol versions that tell which version of it is needed.
const PACKAGES: [(&str, &str, &str); 8] = [
    ("libc.", "libc6", "GLIBC_"),
    ("libm.", "libc6", "GLIBC_"),
    ("ld-linux", "libc6", "GLIBC_"),
    ("libpthread.", "libc6", "GLIBC_"),
    ("libdl.", "libc6", "GLIBC_"),
    ("librt.", "libc6", "GLIBC_"),
    ("libutil.", "libc6", "GLIBC_"),
    ("libgcc_s.", "libgcc-s1", "GCC_"),
];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let directory = match arguments {
        [] => workspace::target().join("debian"),
        [option, directory] if option == "--to" => PathBuf::from(directory),
        [option] if option == "--to" => return Err("--to needs a directory".into()),
        [argument, ..] => return Err(unknown(argument)),
    };
    build::release()?;
    let file = package(&directory)?;
    let size = fs::metadata(&file).map_or(0, |file| file.len() / 1024);
    println!("{} ({size} KiB); apt install {0} installs it", file.display());
    Ok(())
}

/// Packs what the release build made into a file in `directory`, and returns its path.
pub(crate) fn package(directory: &Path) -> Result<PathBuf> {
    let architecture = ask("dpkg", &["--print-architecture"]).map_err(|reason| {
        format!(
            "{reason}; packages are made on Debian and its kin (apt-get install dpkg), elsewhere \
             `cargo xtask install` makes the same tree"
        )
    })?;
    let triplet = ask("cc", &["-print-multiarch"])?;
    if triplet.is_empty() {
        return Err("cc -print-multiarch is silent: a compiler of Debian would say where \
                    libraries go"
            .into());
    }
    workspace::make_directory(directory)?;
    let stage = workspace::scratch_of_process("package")?;
    let time = time();
    let place = Place {
        prefix: PathBuf::from("/usr"),
        destdir: stage.clone(),
        libdir: Some(format!("lib/{triplet}")),
    };
    let mut tree = Tree::new(&stage.join("usr"));
    install::fill(&mut tree, &place)?;
    documents(&mut tree, &time)?;
    strip(&tree)?;
    compress(&mut tree)?;
    describe(&stage, &tree, &architecture)?;
    modes(&stage)?;
    let version = version();
    let file = directory.join(format!("gaspi_{version}_{architecture}.deb"));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.env("SOURCE_DATE_EPOCH", &time);
    dpkg.args(["--root-owner-group", "--build"]).arg(&stage).arg(&file);
    process::output(&mut dpkg)?;
    workspace::remove(&stage)?;
    Ok(file)
}

fn version() -> String {
    format!("{}-{REVISION}", names::VERSION)
}

/// Seconds since 1970: when the sources were last changed.
fn time() -> String {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return time;
    }
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["log", "-1", "--format=%ct"]);
    match process::output(&mut git) {
        Ok(time) if !time.trim().is_empty() => time.trim().to_owned(),
        // An unpacked archive of the sources.
        _ => "0".to_owned(),
    }
}

/// Name and address as Debian's own tools take them.
fn maintainer() -> String {
    let variable =
        |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let name = variable("DEBFULLNAME", "The gaspi developers");
    format!("{name} <{}>", variable("DEBEMAIL", "gaspi@localhost"))
}

/// What Debian wants below `share/doc`.
fn documents(tree: &mut Tree, time: &str) -> Result<()> {
    let date = ask("date", &["-u", "-R", "-d", &format!("@{time}")])?;
    let changelog = format!(
        "gaspi ({}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {}  {date}\n",
        version(),
        maintainer(),
    );
    tree.write(&format!("{}/changelog.Debian", names::DOCUMENTATION), &changelog)?;
    let copyright = workspace::filled("packaging/debian/copyright.in", &[("CRATES", &crates()?)])?;
    tree.write(&format!("{}/copyright", names::DOCUMENTATION), &copyright)
}

/// The crates that are linked into the library and the tools, with their licences.
fn crates() -> Result<String> {
    let mut cargo = workspace::cargo();
    cargo.args(["tree", "-e", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe"]);
    cargo.args(["--format", "{p} ({l})", "-p", "gaspi-ffi", "-p", "gaspi-tools"]);
    let lines: BTreeSet<String> = process::output(&mut cargo)?
        .lines()
        // Those of the workspace show their directory.
        .filter(|line| !line.is_empty() && !line.contains("(/"))
        .map(|line| format!("   {line}"))
        .collect();
    Ok(lines.into_iter().collect::<Vec<_>>().join("\n"))
}

/// Takes out what only a debugger reads.
fn strip(tree: &Tree) -> Result<()> {
    for name in tree.files() {
        let file = tree.root().join(name);
        if file.is_symlink() {
            continue;
        }
        let mut strip = Command::new("strip");
        if name.starts_with("bin/") {
            strip.arg("--strip-all");
        } else if name.ends_with(".a") {
            strip.args(["--strip-debug", "--enable-deterministic-archives"]);
        } else if name.ends_with(names::LIBRARY) {
            strip.arg("--strip-unneeded");
        } else {
            continue;
        }
        process::output(strip.arg(&file))?;
    }
    Ok(())
}

/// Compresses manual pages and the changelog, without names and times.
fn compress(tree: &mut Tree) -> Result<()> {
    let names: Vec<PathBuf> = tree
        .files()
        .iter()
        .filter(|name| name.starts_with("share/man/") || name.ends_with("/changelog.Debian"))
        .map(|name| tree.root().join(name))
        .collect();
    process::output(Command::new("gzip").arg("-9n").args(names)).map(drop)
}

/// Writes what dpkg reads: control, md5sums, shlibs, triggers.
fn describe(stage: &Path, tree: &Tree, architecture: &str) -> Result<()> {
    let mut files = Vec::new();
    walk(stage, stage, &mut files)?;
    // As dpkg counts: links and directories take one KiB.
    let size: u64 =
        files.iter().map(|(_, bytes)| bytes.map_or(1, |bytes| bytes.div_ceil(1024))).sum();
    let plain: Vec<&PathBuf> =
        files.iter().filter(|(_, bytes)| bytes.is_some()).map(|(path, _)| path).collect();
    let md5sums = process::output(Command::new("md5sum").current_dir(stage).args(plain))?;
    let values = [
        ("VERSION", version()),
        ("ARCHITECTURE", architecture.to_owned()),
        ("MAINTAINER", maintainer()),
        ("SIZE", size.to_string()),
        ("DEPENDS", depends(tree)?),
    ];
    let values: Vec<(&str, &str)> =
        values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut debian = Tree::new(&stage.join("DEBIAN"));
    debian.write("control", &workspace::filled("packaging/debian/control.in", &values)?)?;
    debian.write("md5sums", &md5sums)?;
    debian.write("shlibs", "libgaspi 1 gaspi\nlibGPI2 0 gaspi\n")?;
    debian.write("triggers", "activate-noawait ldconfig\n")
}

/// All that lies below `directory`, relative to `stage`, sorted, with the sizes of plain files.
fn walk(stage: &Path, directory: &Path, found: &mut Vec<(PathBuf, Option<u64>)>) -> Result<()> {
    for path in workspace::entries(directory)? {
        let about = fs::symlink_metadata(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let relative = path.strip_prefix(stage).unwrap_or(&path).to_path_buf();
        found.push((relative, about.is_file().then_some(about.len())));
        if about.is_dir() {
            walk(stage, &path, found)?;
        }
    }
    Ok(())
}

/// The packages that the library and the tools need, from the versions of the symbols they use.
fn depends(tree: &Tree) -> Result<String> {
    let mut needs = BTreeMap::new();
    for name in tree.files() {
        let file = tree.root().join(name);
        if (name.starts_with("bin/") || name.ends_with(names::LIBRARY)) && !file.is_symlink() {
            add_needs(&process::output(Command::new("objdump").arg("-p").arg(&file))?, &mut needs)
                .map_err(|reason| format!("{name}: {reason}"))?;
        }
    }
    let list: Vec<String> = needs
        .into_iter()
        .map(|(package, version)| {
            let numbers: Vec<String> = version.iter().map(u32::to_string).collect();
            if numbers.is_empty() {
                package.to_owned()
            } else {
                format!("{package} (>= {})", numbers.join("."))
            }
        })
        .collect();
    Ok(list.join(", "))
}

/// Reads what `objdump -p` says: `NEEDED libc.so.6`, `required from libc.so.6:`, and below that
/// lines which end in `GLIBC_2.34`.
fn add_needs(dump: &str, needs: &mut BTreeMap<&'static str, Vec<u32>>) -> Result<()> {
    let package = |library: &str| {
        PACKAGES
            .iter()
            .find(|(start, ..)| library.starts_with(start))
            .ok_or(format!("needs {library}, and no Debian package is known to have that"))
    };
    let mut from = None;
    for line in dump.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["NEEDED", library] => _ = needs.entry(package(library)?.1).or_default(),
            ["required", "from", library] => from = Some(package(library.trim_end_matches(':'))?),
            [.., symbol] if from.is_some() && words.len() == 4 => {
                let Some((_, package, start)) = from else { continue };
                let Some(version) = symbol.strip_prefix(start) else { continue };
                let numbers: Option<Vec<u32>> =
                    version.split('.').map(|number| number.parse().ok()).collect();
                let numbers = match (numbers, version) {
                    (Some(numbers), _) => numbers,
                    // Relative relocations in their packed form.
                    (None, "ABI_DT_RELR") => vec![2, 36],
                    (None, _) => return Err(format!("needs {symbol}, which is no version")),
                };
                let most = needs.entry(package).or_default();
                if numbers > *most {
                    *most = numbers;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Directories are made by several hands; all of them are for everybody.
fn modes(stage: &Path) -> Result<()> {
    let mut files = Vec::new();
    walk(stage, stage, &mut files)?;
    let all = files.into_iter().map(|(path, _)| stage.join(path)).chain([stage.to_path_buf()]);
    for path in all.filter(|path| path.is_dir() && !path.is_symlink()) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .map_err(|error| format!("cannot open {} to all: {error}", path.display()))?;
    }
    Ok(())
}

fn ask(program: &str, arguments: &[&str]) -> Result<String> {
    Ok(process::output(Command::new(program).args(arguments))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "Dynamic Section:\n  NEEDED               libgcc_s.so.1\n  \
        NEEDED               \
        libc.so.6\n  SONAME               libgaspi.so.1\n\nVersion References:\n  required from \
        libc.so.6:\n    0x09691a75 0x00 02 GLIBC_2.9\n    0x069691b4 0x00 06 GLIBC_2.34\n  \
        required \
        from libgcc_s.so.1:\n    0x0b792650 0x00 04 GCC_3.0\n    0x09276060 0x00 20 GCC_4.2.0\n";

    #[test]
    fn needs_are_the_highest_versions() {
        let mut needs = BTreeMap::new();
        add_needs(DUMP, &mut needs).expect("needs");
        assert_eq!(needs["libc6"], [2, 34]);
        assert_eq!(needs["libgcc-s1"], [4, 2, 0]);
    }

    #[test]
    fn a_library_of_no_known_package_is_an_error() {
        let reason = add_needs("  NEEDED   libibverbs.so.1\n", &mut BTreeMap::new());
        assert!(reason.is_err_and(|reason| reason.contains("libibverbs.so.1")));
    }
}
