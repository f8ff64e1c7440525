//! Times on the command line.

use std::time::Duration;

/// A time such as "90", "0.5s", "1h30m".
///
/// # Errors
/// It is none, zero, or too long to be counted; in words.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || {
        "a time is a number of seconds, or numbers with the units s, m and h as in 1h30m".to_owned()
    };
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let (number, unit) = rest.split_at(end.unwrap_or(rest.len()));
        let factor = match unit.chars().next() {
            None if number == text => 1.0,
            Some('s') => 1.0,
            Some('m') => 60.0,
            Some('h') => 3600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let part = Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = unit.get(1..).unwrap_or("");
    }
    if total.is_zero() { Err(wrong()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let seconds = |text| parse(text).map(|time| time.as_secs_f64());
        for (text, expected) in [
            ("90", 90.0),
            ("0.5", 0.5),
            ("2s", 2.0),
            ("3m", 180.0),
            ("1h30m", 5400.0),
            ("1h1m1s", 3661.0),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "0s", "-1", "s", "1d", "1h30", "1..5", "1m m", "ä", "1e400", "9e99h"]
        {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
