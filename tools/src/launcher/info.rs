//! What users are told who want to know more: GASPI_LOG=info, as the library reads it.

use std::ffi::OsStr;

/// Levels that include it.
const LEVELS: [&str; 6] = ["3", "info", "4", "debug", "5", "trace"];

/// Whether this user wants to know more.
pub(crate) fn is_wanted() -> bool {
    std::env::var_os("GASPI_LOG").is_some_and(|level| includes(&level))
}

/// Says it, if this user wants to know.
pub(crate) fn tell(text: &str) {
    if is_wanted() {
        eprintln!("gaspi_run: {text}");
    }
}

fn includes(level: &OsStr) -> bool {
    let level = level.to_string_lossy().trim().to_ascii_lowercase();
    LEVELS.contains(&level.as_str())
}

#[cfg(test)]
mod tests {
    use super::includes;
    use std::ffi::OsStr;

    #[test]
    fn levels() {
        let told = |level| includes(OsStr::new(level));
        assert!(told("info") && told(" Debug ") && told("3") && told("trace"));
        assert!(!told("") && !told("warn") && !told("2") && !told("error"));
    }
}
