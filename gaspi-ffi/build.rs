//! Compiles the variadic part, names the library, and puts `libgaspi.so.1` beside `libgaspi.so`.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() {
    println!("cargo:rerun-if-changed=src/printf.c");
    cc::Build::new()
        .file("src/printf.c")
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        // Called from Rust only: a name that no program can meet.
        .flag("-fvisibility=hidden")
        .compile("gaspi_printf");

    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgaspi.so.1");
    // Threads and fork handlers live in it, so dlclose must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // <profile>/build/gaspi-ffi-<hash>/out
    let profile = out.ancestors().nth(3).expect("OUT_DIR lies inside the target directory");
    if let Err(error) = link(profile) {
        println!("cargo:warning=no libgaspi.so.1 in {}: {error}", profile.display());
    }
}

/// Programs look for the soname at run time, also when they run from the target directory.
fn link(profile: &Path) -> io::Result<()> {
    let link = profile.join("libgaspi.so.1");
    match fs::read_link(&link) {
        Ok(target) if target == Path::new("libgaspi.so") => return Ok(()),
        Ok(_) => fs::remove_file(&link)?,
        Err(_) => {}
    }
    match std::os::unix::fs::symlink("libgaspi.so", &link) {
        // Another build of the same tree was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
