//! The kernel's modules that a guest loads, in the order in which they can be loaded.
//!
//! Debian lists dependencies between modules only once a kernel is installed. So they are read from
//! the modules themselves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{Result, workspace};

/// What a guest uses. rdma_rxe needs crc32_generic without saying so: `rdma link add` fails with
/// ENOENT, and the kernel says "failed to init crc32 algorithm".
const WANTED: [&str; 10] = [
    "virtio_pci",
    "virtio_net",
    "9pnet_virtio",
    "9p",
    "veth",
    "sch_netem",
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_rxe",
];

/// The files of all modules, dependencies first.
pub(super) fn in_order(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    workspace::files_below(directory, &["ko"], &mut files);
    if files.is_empty() {
        let directory = directory.display();
        return Err(format!("no uncompressed modules (*.ko) in {directory}"));
    }
    let by_name: BTreeMap<String, PathBuf> =
        files.into_iter().filter_map(|file| Some((name_of(&file)?, file))).collect();
    let mut order = Vec::new();
    for name in WANTED {
        let file = by_name.get(name);
        let file = file.ok_or_else(|| format!("the kernel has no module {name}"))?;
        add(file, &by_name, &mut order)?;
    }
    Ok(order)
}

fn add(file: &Path, all: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<()> {
    if order.iter().any(|known| known == file) {
        return Ok(());
    }
    let module =
        std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    // A dependency without a file is built into the kernel.
    for needed in dependencies(&module).iter().filter_map(|name| all.get(name)) {
        add(needed, all, order)?;
    }
    order.push(file.to_owned());
    Ok(())
}

/// The name of a module; in the names of files `-` stands for `_` at times.
fn name_of(file: &Path) -> Option<String> {
    Some(file.file_stem()?.to_str()?.replace('-', "_"))
}

/// What a module says about itself: strings that end in a zero byte, one of which is
/// `depends=NAME,NAME`.
fn dependencies(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let list = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(list);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::dependencies;

    #[test]
    fn dependencies_are_read_from_the_module() {
        let module = b"\x7fELF..\0license=GPL\0depends=ib_core,udp-tunnel\0name=rdma_rxe\0";
        assert_eq!(dependencies(module), ["ib_core", "udp_tunnel"]);
        assert!(dependencies(b"\0depends=\0name=x\0").is_empty());
    }
}
