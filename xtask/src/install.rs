//! `cargo xtask install` and `uninstall`: the tree that C, C++, Fortran and old GPI-2 builds link
//! against.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::names::{DOCUMENTATION, LIBRARY, SONAME};
use crate::tree::{self, Tree};
use crate::{Result, build, finding, man, process, symbols, unknown, workspace};

/// Names under which programs find the library. All lead to the same file, so that a process which
/// meets several of them still maps one image.
const SHARED_LINKS: [(&str, &str); 8] = [
    (SONAME, LIBRARY),
    ("libgaspi.so", SONAME),
    ("libGPI2.so.0", LIBRARY),
    ("libGPI2.so", "libGPI2.so.0"),
    ("libGPI2-dbg.so.0", LIBRARY),
    ("libGPI2-dbg.so", "libGPI2-dbg.so.0"),
    ("libGPI2-stats.so.0", LIBRARY),
    ("libGPI2-stats.so", "libGPI2-stats.so.0"),
];

const STATIC_LINKS: [&str; 3] = ["libGPI2.a", "libGPI2-dbg.a", "libGPI2-stats.a"];

/// Folders and extensions of the documents, and of the pictures that these show.
const DOCUMENTS: [(&str, &str); 3] =
    [("docs", "md"), ("docs/internals", "md"), ("docs/training", "svg")];

/// Prefixes that other software shares: no link is made there that would concern it.
const SHARED_PREFIXES: [&str; 2] = ["/usr", "/usr/local"];

/// Where to install.
pub(crate) struct Place {
    /// Where the tree will lie when it is used.
    pub(crate) prefix: PathBuf,
    /// What stands in front of it until then; empty if nothing.
    pub(crate) destdir: PathBuf,
    /// The directory of the libraries below the prefix, if the person chose one.
    pub(crate) libdir: Option<String>,
}

impl Place {
    fn new(arguments: &[String]) -> Result<Place> {
        let mut prefix = None;
        let mut destdir = PathBuf::new();
        let mut libdir = None;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or(format!("{argument} needs a directory"));
            match argument.as_str() {
                "--prefix" => prefix = Some(PathBuf::from(value()?)),
                "--destdir" => destdir = PathBuf::from(value()?),
                "--libdir" => libdir = Some(value()?.trim_end_matches('/').to_owned()),
                _ => return Err(unknown(argument)),
            }
        }
        let prefix = prefix.ok_or("say where: --prefix DIR, for instance --prefix /usr/local")?;
        if !prefix.is_absolute() {
            return Err(format!("the prefix has to be absolute, {} is not", prefix.display()));
        }
        if let Some(libdir) = &libdir
            && (libdir.is_empty() || !tree::is_inside(libdir))
        {
            return Err(format!(
                "--libdir is a directory below the prefix, such as lib64; {libdir:?} is not"
            ));
        }
        Ok(Place { prefix, destdir, libdir })
    }

    /// The prefix as it lies on disk.
    fn root(&self) -> PathBuf {
        if self.destdir.as_os_str().is_empty() {
            self.prefix.clone()
        } else {
            self.destdir.join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix))
        }
    }
}

/// `cargo xtask install`.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let place = Place::new(arguments)?;
    build::release()?;
    let root = install(&place)?;
    println!("installed into {}", root.display());
    if place.destdir.as_os_str().is_empty()
        && SHARED_PREFIXES.iter().any(|shared| place.prefix == Path::new(shared))
    {
        println!("`ldconfig`, as root, lets programs find the library there");
    }
    Ok(())
}

/// `cargo xtask uninstall`.
pub(crate) fn remove(arguments: &[String]) -> Result<()> {
    let root = Place::new(arguments)?.root();
    match tree::uninstall(&root)? {
        Some(files) => {
            println!("removed {files} files from {}", root.display());
            Ok(())
        }
        None => Err(format!(
            "nothing is known to be installed in {}: {} is not there",
            root.display(),
            tree::MANIFEST
        )),
    }
}

/// Installs what the release build made, in place of an older installation, and returns where it
/// lies on disk.
pub(crate) fn install(place: &Place) -> Result<PathBuf> {
    let root = place.root();
    // First of all: its directories may be laid out otherwise.
    tree::uninstall(&root)?;
    let mut tree = Tree::new(&root);
    let filled = fill(&mut tree, place);
    tree.finish_after(filled)?;
    Ok(root)
}

/// Puts everything into `tree`.
pub(crate) fn fill(tree: &mut Tree, place: &Place) -> Result<()> {
    let libdir = place.libdir.as_deref().unwrap_or("lib");
    libraries(tree, libdir)?;
    if place.libdir.is_none() {
        other_layout(tree, place)?;
    }
    for (folder, extension) in [("include", "h"), ("include/fortran", "f90")] {
        copy_all(tree, folder, extension, folder)?;
    }
    finding::describe(tree, &place.prefix, libdir)?;
    for tool in build::tools() {
        tree.copy(&workspace::release().join(tool), &format!("bin/{tool}"), 0o755)?;
    }
    man::pages(tree)?;
    copy_all(tree, "", "md", DOCUMENTATION)?;
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let to = format!("{DOCUMENTATION}/{name}");
        tree.copy(&workspace::root().join(name), &to, 0o644)?;
    }
    for (folder, extension) in DOCUMENTS {
        copy_all(tree, folder, extension, &format!("{DOCUMENTATION}/{folder}"))?;
    }
    let examples = format!("{DOCUMENTATION}/examples");
    for extension in ["c", "cc", "f90", "txt"] {
        copy_all(tree, "packaging/examples", extension, &examples)?;
    }
    let makefile = workspace::root().join("packaging/examples/Makefile");
    tree.copy(&makefile, &format!("{examples}/Makefile"), 0o644)
}

fn libraries(tree: &mut Tree, libdir: &str) -> Result<()> {
    let release = workspace::release();
    tree.copy(&release.join("libgaspi.so"), &format!("{libdir}/{LIBRARY}"), 0o755)?;
    for (name, to) in SHARED_LINKS {
        tree.link(to, &format!("{libdir}/{name}"))?;
    }
    let archive = tree.place(&format!("{libdir}/libgaspi.a"))?;
    static_library(&release.join("libgaspi.a"), &archive)?;
    for name in STATIC_LINKS {
        tree.link("libgaspi.a", &format!("{libdir}/{name}"))?;
    }
    Ok(())
}

/// Builds of GPI-2 programs look below lib64, so that leads to lib.
fn other_layout(tree: &mut Tree, place: &Place) -> Result<()> {
    if SHARED_PREFIXES.iter().any(|shared| place.prefix == Path::new(shared)) {
        return Ok(());
    }
    let at = tree.root().join("lib64");
    if fs::symlink_metadata(&at).is_err() {
        return tree.link("lib", "lib64");
    }
    if fs::canonicalize(&at).ok() != fs::canonicalize(tree.root().join("lib")).ok() {
        println!("{} is there already; for builds that look there: --libdir lib64", at.display());
    }
    Ok(())
}

fn copy_all(tree: &mut Tree, from: &str, extension: &str, to: &str) -> Result<()> {
    for file in workspace::files(&workspace::root().join(from), extension)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        tree.copy(&file, &format!("{to}/{name}"), 0o644)?;
    }
    Ok(())
}

/// Turns cargo's archive into one object of which only the C names are seen, with weak `gaspi_*`,
/// so that a profiling tool that defines them can be linked in front and the Rust runtime inside
/// collides with nobody else's.
fn static_library(from: &Path, to: &Path) -> Result<()> {
    let directory = workspace::scratch_of_process("static")?;
    let object = directory.join("gaspi.o");
    let mut link = Command::new("ld");
    // Section groups are resolved here: a local symbol must not stay the key of one.
    link.args(["-r", "--force-group-allocation", "--gc-sections"]);
    for name in symbols::exported(from)? {
        link.arg("-u").arg(name);
    }
    link.arg("-o").arg(&object).arg(from);
    process::run(&mut link)?;
    process::run(
        Command::new("objcopy")
            .arg("--wildcard")
            .args(["--keep-global-symbol=gaspi_*", "--keep-global-symbol=pgaspi_*"])
            .arg("--weaken-symbol=gaspi_*")
            // LLVM bitcode of the Rust runtime: binutils with an LLVM plugin of another version
            // would take the object for one that it cannot read.
            .args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"])
            .arg(&object),
    )?;
    process::run(Command::new("ar").arg("crs").arg(to).arg(&object))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o644))
        .map_err(|error| format!("cannot open {} to all: {error}", to.display()))?;
    workspace::remove(&directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pictures that the documents of a folder show, from the root of the checkout.
    fn pictures(folder: &str) -> Vec<String> {
        let mut found = Vec::new();
        for file in workspace::files(&workspace::root().join(folder), "md").unwrap() {
            let text = fs::read_to_string(file).unwrap();
            let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            let of_folder = links.filter(|(link, _)| link.ends_with(".svg"));
            found.extend(of_folder.map(|(link, _)| format!("{folder}/{link}")));
        }
        found
    }

    #[test]
    fn pictures_of_documents_are_installed_with_them() {
        let shown: Vec<String> =
            ["docs", "docs/internals"].into_iter().flat_map(pictures).collect();
        assert!(!shown.is_empty());
        for picture in shown {
            assert!(workspace::root().join(&picture).is_file(), "{picture}");
            let (folder, _) = picture.rsplit_once('/').unwrap();
            assert!(DOCUMENTS.contains(&(folder, "svg")), "{picture}");
        }
    }
}
