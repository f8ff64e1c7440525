//! Machine files and lists of hosts.

#![no_main]

use gaspi_core::bootstrap::host_file;
use gaspi_tools::hosts;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for host in host_file::parse(bytes).unwrap_or_default() {
        assert!(!host.is_empty() && host.trim() == host, "{host:?}");
        assert!(!host.contains(['\n', '\r', '#']), "{host:?}");
        hosts::is_loopback(&host);
    }
    let text = String::from_utf8_lossy(bytes);
    if let Ok(hosts) = hosts::list(&text) {
        // Nothing that ssh would take for an option, or its shell for two words.
        assert!(!hosts.is_empty());
        for host in hosts {
            assert!(!host.is_empty() && !host.starts_with('-'), "{host:?}");
            assert!(!host.contains(char::is_whitespace), "{host:?}");
        }
    }
});
