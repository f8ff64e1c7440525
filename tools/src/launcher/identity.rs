//! Identities of machines, whatever names they go by. Ranks can share memory where these are
//! equal.

use std::fs;
use std::os::unix::ffi::OsStrExt;

/// Names the machine in the place of its kernel, for one whose ranks shall not share memory with
/// those of another spelling.
const VARIABLE: &str = "GASPI_MACHINE";
/// The parts of the machine that its processes may see, of which there may be several.
const NAMESPACES: [&str; 3] = ["pid", "net", "mnt"];

/// Equal in all processes of one account that see the same part of the same running kernel; `None`
/// if it cannot be told.
pub(crate) fn look_up() -> Option<String> {
    if let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        return Some(String::from_utf8_lossy(name.as_bytes()).into_owned());
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // SAFETY: no arguments, and it cannot fail.
    let account = unsafe { libc::geteuid() };
    let mut text = format!("{} {account}", boot.trim());
    for name in NAMESPACES {
        let link = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        text.push(' ');
        text.push_str(&link.to_string_lossy());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::look_up;

    #[test]
    fn a_process_and_its_child_are_on_one_machine() {
        let own = look_up().expect("identity");
        assert_eq!(look_up(), Some(own.clone()));
        assert!(own.contains("net:["), "{own}");
    }
}
