//! Where things are: the checkout, the target directory, what the release build makes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The target directory that cargo uses for this checkout.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// Where the release build puts libraries and tools.
pub(crate) fn release() -> PathBuf {
    target().join("release")
}

/// A directory of xtask's own below the target directory.
pub(crate) fn scratch(name: &str) -> PathBuf {
    target().join("xtask").join(name)
}

/// The same for this process alone, empty: others may run beside it.
pub(crate) fn scratch_of_process(name: &str) -> crate::Result<PathBuf> {
    let directory = scratch(&format!("{name}-{}", std::process::id()));
    remove(&directory)?;
    make_directory(&directory)?;
    Ok(directory)
}

/// Makes a directory, and those above it that are missing.
pub(crate) fn make_directory(directory: &Path) -> crate::Result<()> {
    std::fs::create_dir_all(directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

/// Puts a finished file or directory into its place.
pub(crate) fn rename(from: &Path, to: &Path) -> crate::Result<()> {
    std::fs::rename(from, to).map_err(|error| format!("cannot make {}: {error}", to.display()))
}

/// Makes or replaces a text file.
pub(crate) fn write(file: &Path, text: &str) -> crate::Result<()> {
    std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// The text of a file.
pub(crate) fn read(file: &Path) -> crate::Result<String> {
    std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// The text of a file of the checkout.
pub(crate) fn source(name: &str) -> crate::Result<String> {
    read(&root().join(name))
}

/// Removes a directory with all that is in it, if it is there.
pub(crate) fn remove(directory: &Path) -> crate::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

/// The cargo that runs this program, started in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // `cargo run` describes xtask in these; a nested cargo would rebuild crates that look at them.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_")) {
            command.env_remove(name);
        }
    }
    command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    command
}

/// Whether warnings are errors and missing programs are installed.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// What is directly in `directory`, sorted.
pub(crate) fn entries(directory: &Path) -> crate::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Files directly in `directory` whose names end in `.extension`, sorted.
pub(crate) fn files(directory: &Path, extension: &str) -> crate::Result<Vec<PathBuf>> {
    let mut files = entries(directory)?;
    files.retain(|path| path.is_file() && has_extension(path, extension));
    Ok(files)
}

/// The names of a package's integration tests: files, and folders that hold a `main.rs`.
pub(crate) fn test_programs(package: &str) -> crate::Result<Vec<String>> {
    let programs = entries(&root().join(package).join("tests"))?
        .into_iter()
        .filter(|path| path.join("main.rs").is_file() || has_extension(path, "rs"));
    Ok(programs.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into())).collect())
}

/// A file of the checkout with `@NAME@` replaced by its value, for each of `values`.
pub(crate) fn filled(name: &str, values: &[(&str, &str)]) -> crate::Result<String> {
    let mut text = source(name)?;
    for (name, value) in values {
        text = text.replace(&format!("@{name}@"), value);
    }
    Ok(text)
}

/// Adds all files below `directory` whose names end in one of `extensions`.
pub(crate) fn files_below(directory: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            // A package that is built on its own has a target directory of its own.
            if !path.ends_with("target") {
                files_below(&path, extensions, found);
            }
        } else if extensions.iter().any(|extension| has_extension(&path, extension)) {
            found.push(path);
        }
    }
}
