//! Bytes that went over the loopback interface. They prove that a library which was told to use TCP
//! does so.

use crate::failure::{Failure, Result};
use std::fs;

const COUNTERS: &str = "/proc/net/dev";

/// Bytes received by the loopback interface since the machine started.
pub(crate) fn bytes() -> Result<u64> {
    let text = fs::read_to_string(COUNTERS)
        .map_err(|error| Failure::run(format!("cannot read {COUNTERS}: {error}")))?;
    received(&text).ok_or_else(|| Failure::run(format!("{COUNTERS} does not show lo")))
}

fn received(text: &str) -> Option<u64> {
    let counters = text.lines().find_map(|line| line.trim().strip_prefix("lo:"))?;
    counters.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_counter_is_bytes_received() {
        let text = "Inter-| Receive\n face |bytes packets\n  eth0: 7 8 9\n    lo:  1234 5 0 0\n";
        assert_eq!(received(text), Some(1234));
        assert_eq!(received("eth0: 7 8"), None);
    }
}
