//! Sizes as the command line takes them and tables print them, and whole lines of output.

use crate::failure::{Failure, Result};
use std::io::Write as _;

/// Bytes, as `8`, `1K`, `16MiB`.
pub(crate) fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        other => return Err(format!("{other:?} is no unit of a size; use K, M or G")),
    };
    let number: usize = digits.parse().map_err(|_| "a size is a number, then K, M or G")?;
    match number.checked_mul(unit) {
        Some(0) => Err("a size is at least 1 byte".into()),
        Some(bytes) if bytes <= 1 << 30 => Ok(bytes),
        _ => Err("a size is at most 1G".into()),
    }
}

/// Bytes in the largest unit that fits, as `--sizes` takes them.
pub(crate) fn size(bytes: usize) -> String {
    for (unit, letter) in [(1 << 30, 'G'), (1 << 20, 'M'), (1 << 10, 'K')] {
        if bytes.is_multiple_of(unit) {
            return format!("{}{letter}", bytes / unit);
        }
    }
    bytes.to_string()
}

/// Prints a line, which another program may be waiting for.
pub(crate) fn write_line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|error| Failure::run(format!("cannot write to standard output: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_as_they_are_given() {
        for (bytes, text) in
            [(8, "8"), (1 << 10, "1K"), (3 << 20, "3M"), (1 << 30, "1G"), (1500, "1500")]
        {
            assert_eq!(size(bytes), text);
            assert_eq!(parse_size(text), Ok(bytes));
        }
    }
}
