//! `cargo xtask install`: the tree that C, C++, Fortran and old GPI-2 builds link against.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, build, process, symbols, unknown, workspace};

/// The file behind all names of the shared library.
const LIBRARY: &str = "libgaspi.so.1.0.0";

/// Names under which programs find the library. All lead to the same file, so that a process which
/// meets several of them still maps one image.
const SHARED_LINKS: [(&str, &str); 8] = [
    ("libgaspi.so.1", LIBRARY),
    ("libgaspi.so", "libgaspi.so.1"),
    ("libGPI2.so.0", LIBRARY),
    ("libGPI2.so", "libGPI2.so.0"),
    ("libGPI2-dbg.so.0", LIBRARY),
    ("libGPI2-dbg.so", "libGPI2-dbg.so.0"),
    ("libGPI2-stats.so.0", LIBRARY),
    ("libGPI2-stats.so", "libGPI2-stats.so.0"),
];

const STATIC_LINKS: [&str; 3] = ["libGPI2.a", "libGPI2-dbg.a", "libGPI2-stats.a"];

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut prefix = None;
    let mut destdir = PathBuf::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a directory"));
        match argument.as_str() {
            "--prefix" => prefix = Some(PathBuf::from(value()?)),
            "--destdir" => destdir = PathBuf::from(value()?),
            _ => return Err(unknown(argument)),
        }
    }
    let prefix = prefix.ok_or("say where to: --prefix DIR, for instance --prefix /usr/local")?;
    if !prefix.is_absolute() {
        return Err(format!("the prefix has to be absolute, {} is not", prefix.display()));
    }
    build::release()?;
    let tree = install(&prefix, &destdir)?;
    println!("installed into {}", tree.display());
    Ok(())
}

/// Copies what the release build made to `destdir`/`prefix` and returns that directory.
pub(crate) fn install(prefix: &Path, destdir: &Path) -> Result<PathBuf> {
    let tree = if destdir.as_os_str().is_empty() {
        prefix.to_path_buf()
    } else {
        destdir.join(prefix.strip_prefix("/").unwrap_or(prefix))
    };
    let library = tree.join("lib");
    for directory in ["lib/pkgconfig", "include/fortran", "bin"] {
        let directory = tree.join(directory);
        fs::create_dir_all(&directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    }
    copy(&workspace::release().join("libgaspi.so"), &library.join(LIBRARY), 0o755)?;
    for (name, to) in SHARED_LINKS {
        build::link(to, &library.join(name))?;
    }
    static_library(&workspace::release().join("libgaspi.a"), &library.join("libgaspi.a"))?;
    for name in STATIC_LINKS {
        build::link("libgaspi.a", &library.join(name))?;
    }
    for (folder, extension) in [("include", "h"), ("include/fortran", "f90")] {
        for file in workspace::files(&workspace::root().join(folder), extension)? {
            let name = file.file_name().unwrap_or_default();
            copy(&file, &tree.join(folder).join(name), 0o644)?;
        }
    }
    for (name, description) in [
        ("gaspi", "One-sided communication between the processes of a parallel program (GASPI)"),
        ("GPI2", "GASPI under the name that GPI-2 programs ask for"),
    ] {
        let file = library.join("pkgconfig").join(format!("{name}.pc"));
        write(&file, &pkg_config(prefix, name, description))?;
    }
    for tool in build::TOOLS {
        let file = workspace::release().join(tool);
        if file.is_file() {
            copy(&file, &tree.join("bin").join(tool), 0o755)?;
        }
    }
    Ok(tree)
}

fn pkg_config(prefix: &Path, name: &str, description: &str) -> String {
    let library = if name == "gaspi" { "gaspi" } else { "GPI2" };
    format!(
        "prefix={}\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: {name}\n\
         Description: {description}\n\
         Version: {}\n\
         Libs: -L${{libdir}} -l{library}\n\
         Libs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc\n\
         Cflags: -I${{includedir}}\n",
        prefix.display(),
        version(name),
    )
}

/// GPI2.pc tells the version of the interface, because builds compare it.
fn version(name: &str) -> &'static str {
    if name == "gaspi" { env!("CARGO_PKG_VERSION") } else { "1.6.0" }
}

/// Turns cargo's archive into one object of which only the C names are seen, with weak `gaspi_*`,
/// so that a profiling tool that defines them can be linked in front and the Rust runtime inside
/// collides with nobody else's.
fn static_library(from: &Path, to: &Path) -> Result<()> {
    let directory = workspace::scratch("static");
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
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
    match fs::remove_file(to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot replace {}: {error}", to.display()));
        }
        _ => {}
    }
    process::run(Command::new("ar").arg("crs").arg(to).arg(&object))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    // A new inode: programs that run from the old file keep it.
    let _ = fs::remove_file(to);
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
        .map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), to.display()))
}

fn write(to: &Path, text: &str) -> Result<()> {
    fs::write(to, text).map_err(|error| format!("cannot write {}: {error}", to.display()))
}
