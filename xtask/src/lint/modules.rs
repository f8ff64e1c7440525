//! The modules of a crate and what each file imports of the others.
//!
//! An import is a path that leads from code to a module of the same crate: in a `use`, or inline
//! (`crate::a::f()`, `a::f()` where `a` is a child or was imported). `mod child;` is none, nor is a
//! facade's `pub use child::Name`. A name that a facade passes on counts as an import of the file
//! that defines it. Code for tests is not looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, Tree};
use super::uses::{self, Module, Path};

/// The modules of one crate.
pub(super) struct Crate<'a> {
    pub(super) files: Vec<File<'a>>,
    /// The file of each module, also of those written inline.
    modules: BTreeMap<Module, usize>,
    /// What modules pass on: (module, name) -> absolute path.
    passed_on: BTreeMap<(Module, String), Module>,
}

/// A file that is a module.
pub(super) struct File<'a> {
    pub(super) source: &'a Source,
    pub(super) module: Module,
    pub(super) imports: Vec<Import>,
}

/// One import of a file by another.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    /// The file that is imported, as an index into `Crate::files`.
    pub(super) file: usize,
    /// The line of the path.
    pub(super) line: u32,
}

impl<'a> Crate<'a> {
    /// The crate whose root is the file at `root`; `None` if there is no such file.
    pub(super) fn read(tree: &'a Tree, root: &str) -> Option<Self> {
        let mut found =
            Self { files: Vec::new(), modules: BTreeMap::new(), passed_on: BTreeMap::new() };
        let source = tree.files.iter().find(|file| file.path == root)?;
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut paths = Vec::new();
        found.add(tree, source, Vec::new(), folder, &mut paths);
        for written in &paths {
            for path in written {
                found.pass_on(path);
            }
        }
        for (file, written) in paths.iter().enumerate() {
            found.files[file].imports = found.imports(file, written);
        }
        Some(found)
    }

    /// Adds `source` as `module`, and its children, whose files are in `folder`.
    fn add(
        &mut self,
        tree: &'a Tree,
        source: &'a Source,
        module: Module,
        folder: &str,
        paths: &mut Vec<Vec<Path>>,
    ) {
        let file = self.files.len();
        self.files.push(File { source, module: module.clone(), imports: Vec::new() });
        self.modules.insert(module.clone(), file);
        let seen = uses::read(source, &module);
        paths.push(seen.paths);
        for inline in seen.inline {
            self.modules.insert(inline, file);
        }
        for child in seen.children {
            let below: Vec<&str> =
                child.module[module.len()..].iter().map(String::as_str).collect();
            let stem = format!("{folder}/{}", below.join("/"));
            let beside = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let named = child.path.map(|path| format!("{beside}/{path}"));
            let places = [named.unwrap_or_else(|| format!("{stem}.rs")), format!("{stem}/mod.rs")];
            let place =
                places.iter().find_map(|place| tree.files.iter().find(|file| &file.path == place));
            if let Some(source) = place {
                self.add(tree, source, child.module, &stem, paths);
            }
        }
    }

    /// The path as it reads from the crate's root, if it begins at a module of this crate.
    fn absolute(&self, path: &Path) -> Option<Module> {
        let (first, rest) = path.names.split_first()?;
        let mut module = path.inside.clone();
        let mut rest = rest;
        match first.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => {
                module.pop()?;
                while let Some((name, others)) = rest.split_first()
                    && name == "super"
                {
                    module.pop()?;
                    rest = others;
                }
            }
            child => {
                module.push(child.to_owned());
                self.modules.get(&module)?;
            }
        }
        module.extend(rest.iter().cloned());
        Some(module)
    }

    fn pass_on(&mut self, path: &Path) {
        let Some(alias) = &path.alias else { return };
        if let Some(absolute) = self.absolute(path) {
            self.passed_on.insert((path.inside.clone(), alias.clone()), absolute);
        }
    }

    /// The file that defines what `path` leads to.
    fn definition(&self, path: &[String]) -> Option<usize> {
        let mut path = path.to_vec();
        // Facades pass on what facades pass on; a circle of them does not compile.
        for _ in 0..8 {
            let known = (0..=path.len())
                .rev()
                .find(|length| self.modules.contains_key(&path[..*length]))?;
            let Some(name) = path.get(known) else { return self.modules.get(&path).copied() };
            match self.passed_on.get(&(path[..known].to_vec(), name.clone())) {
                Some(target) => {
                    let rest = path[known + 1..].to_vec();
                    path = target.iter().cloned().chain(rest).collect();
                }
                None => return self.modules.get(&path[..known]).copied(),
            }
        }
        None
    }

    fn imports(&self, file: usize, written: &[Path]) -> Vec<Import> {
        let mut found = BTreeSet::new();
        let own = &self.files[file].module;
        for path in written {
            let absolute = self.absolute(path).or_else(|| self.through_import(path));
            let Some(absolute) = absolute else { continue };
            // A facade passes on what its descendants define.
            let passes_on = path.is_use && path.is_public && absolute.starts_with(own);
            let Some(target) = self.definition(&absolute) else { continue };
            if target != file && !passes_on {
                found.insert(Import { file: target, line: path.line });
            }
        }
        found.into_iter().collect()
    }

    /// An inline path whose first name was imported as a module.
    fn through_import(&self, path: &Path) -> Option<Module> {
        let (first, rest) = path.names.split_first()?;
        let imported = self.passed_on.get(&(path.inside.clone(), first.clone()))?;
        self.modules.get(imported)?;
        Some(imported.iter().chain(rest).cloned().collect())
    }
}

/// `a::b` for messages and tables; the root is `lib`.
pub(super) fn name(module: &[String]) -> String {
    if module.is_empty() { "lib".to_owned() } else { module.join("::") }
}

/// Whether `module` is `prefix` or below it.
pub(super) fn is_below(module: &str, prefix: &str) -> bool {
    module.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}
