//! An installation on disk: puts files into it, remembers each, and removes them again.
//!
//! The list of what was put there lies in the tree itself, in [`MANIFEST`], relative to the prefix,
//! so that a tree that was moved can still be removed. Only what the list names is ever deleted,
//! and directories only if this program made them and they are empty.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::{Result, build};

/// Where the list of installed files lies below the prefix.
pub(crate) const MANIFEST: &str = "share/gaspi/installed.txt";

const MANIFEST_HEAD: &str =
    "# What `cargo xtask install` put here; `cargo xtask uninstall` removes it.\n";

/// An installation that is being made.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    files: BTreeSet<String>,
    /// Those that were not there before, `""` for the prefix itself.
    directories: BTreeSet<String>,
}

impl Tree {
    /// Begins an installation below `root`.
    pub(crate) fn new(root: &Path) -> Tree {
        Tree { root: root.to_path_buf(), files: BTreeSet::new(), directories: BTreeSet::new() }
    }

    /// The prefix as it lies on disk.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// What was put there so far, relative to the prefix.
    pub(crate) fn files(&self) -> &BTreeSet<String> {
        &self.files
    }

    /// Copies `from` to the name `to` below the prefix.
    pub(crate) fn copy(&mut self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let at = self.place(to)?;
        fs::copy(from, &at)
            .and_then(|_| fs::set_permissions(&at, fs::Permissions::from_mode(mode)))
            .map_err(|error| format!("cannot copy {} to {}: {error}", from.display(), at.display()))
    }

    /// Writes a text file.
    pub(crate) fn write(&mut self, to: &str, text: &str) -> Result<()> {
        write(&self.place(to)?, text)
    }

    /// Makes the symbolic link `at` that leads to `to`.
    pub(crate) fn link(&mut self, to: &str, at: &str) -> Result<()> {
        let place = self.place(at)?;
        build::link(to, &place)
    }

    /// Path of a file that is about to be made: its directory is there, and no older file. A new
    /// inode takes its place, so programs that run from the old one keep it.
    pub(crate) fn place(&mut self, to: &str) -> Result<PathBuf> {
        let at = self.root.join(to);
        self.make_directory(Path::new(to).parent().unwrap_or(Path::new("")))?;
        remove(&at)?;
        self.files.insert(to.to_owned());
        Ok(at)
    }

    fn make_directory(&mut self, relative: &Path) -> Result<()> {
        let at = self.root.join(relative);
        if at.is_dir() {
            return Ok(());
        }
        let cannot = |error| format!("cannot make {}: {error}", at.display());
        if relative.as_os_str().is_empty() {
            fs::create_dir_all(&at).map_err(cannot)?;
        } else {
            self.make_directory(relative.parent().unwrap_or(Path::new("")))?;
            fs::create_dir(&at).map_err(cannot)?;
        }
        // Whatever the umask of the person is: others have to get in.
        fs::set_permissions(&at, fs::Permissions::from_mode(0o755)).map_err(cannot)?;
        self.directories.insert(relative.display().to_string());
        Ok(())
    }

    /// Writes the list of what there is, also of an installation that failed on the way: it can be
    /// removed, then. The failure comes first.
    pub(crate) fn finish_after(self, filled: Result<()>) -> Result<()> {
        let finished = self.finish();
        filled.and(finished)
    }

    /// Writes the list of all that was put into the tree.
    pub(crate) fn finish(mut self) -> Result<()> {
        let at = self.place(MANIFEST)?;
        let mut text = String::from(MANIFEST_HEAD);
        for file in &self.files {
            text.push_str(&format!("{file}\n"));
        }
        for directory in &self.directories {
            text.push_str(&format!("{directory}/\n"));
        }
        write(&at, &text)
    }
}

/// Removes the installation below `root` if its list is there, and returns the number of files.
pub(crate) fn uninstall(root: &Path) -> Result<Option<usize>> {
    let manifest = root.join(MANIFEST);
    let text = match fs::read_to_string(&manifest) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| format!("cannot read {}: {error}", manifest.display()))?,
    };
    let names: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    // Before anything is removed.
    for name in names.iter().filter(|name| **name != "/") {
        if !is_inside(name) {
            let manifest = manifest.display();
            return Err(format!("{manifest} names {name:?}, which is outside; nothing is removed"));
        }
    }
    let files: Vec<&&str> = names.iter().filter(|name| !name.ends_with('/')).collect();
    for name in &files {
        remove(&root.join(name))?;
    }
    let directories: BTreeSet<&str> =
        names.iter().filter_map(|name| name.strip_suffix('/')).collect();
    // The reverse of the alphabet: what is in a directory comes before it.
    for directory in directories.iter().rev() {
        let at = root.join(directory);
        match fs::remove_dir(&at) {
            Err(error)
                if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) =>
            {
                return Err(format!("cannot remove {}: {error}", at.display()));
            }
            _ => {}
        }
    }
    Ok(Some(files.len()))
}

/// Writes a text file that everybody may read.
fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text)
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(0o644)))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// Whether a path leads to nothing but what is below the directory that it is joined to.
pub(crate) fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", file.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_an_installation_that_failed_can_be_removed() {
        let root = std::env::temp_dir().join(format!("gaspi-half-tree-{}", std::process::id()));
        let mut tree = Tree::new(&root);
        tree.write("a/file", "text").expect("written");
        let missing = root.join("missing");
        let filled = tree.copy(&missing, "b/file", 0o644);
        let reason = tree.finish_after(filled).expect_err("a failure");
        assert!(reason.contains("cannot copy"), "{reason}");
        assert_eq!(uninstall(&root), Ok(Some(3)));
        assert!(!root.exists());
    }

    #[test]
    fn a_list_that_leads_outside_removes_nothing() {
        let root = std::env::temp_dir().join(format!("gaspi-tree-{}", std::process::id()));
        for outside in ["../other", "/etc/passwd", "a/../../b"] {
            let mut tree = Tree::new(&root);
            tree.write("a/file", "text").expect("written");
            tree.finish().expect("finished");
            let manifest = root.join(MANIFEST);
            let list = fs::read_to_string(&manifest).expect("list");
            fs::write(&manifest, format!("{list}{outside}\n")).expect("written");
            let reason = uninstall(&root).expect_err("removed");
            assert!(reason.contains(outside), "{reason}");
            assert!(root.join("a/file").exists());
            fs::write(&manifest, list).expect("written");
            // The file and the list.
            assert_eq!(uninstall(&root), Ok(Some(2)));
            assert!(!root.exists());
        }
    }
}
