//! How Slurm writes many hosts and their numbers of tasks: `ant,bee[1-3,07-09]x` and `2(x3),1`.

/// Hosts of the longest list.
const HOSTS_MAX: usize = 65535;
/// Digits of the longest number in a range.
const DIGITS_MAX: usize = 9;
/// Bytes of the longest list that is read.
const TEXT_MAX: usize = 4 << 20;

/// The hosts of a list, in its order.
///
/// # Errors
/// What is wrong with it, in words.
pub fn hosts(text: &str) -> Result<Vec<String>, String> {
    if text.len() > TEXT_MAX {
        return Err(format!("{} bytes cannot be a list of hosts", text.len()));
    }
    let mut hosts = Vec::new();
    for entry in entries(text)? {
        expand(entry, &mut hosts)?;
    }
    if hosts.is_empty() { Err("it names no host".to_owned()) } else { Ok(hosts) }
}

/// The first host of a list; the others are not looked at.
///
/// # Errors
/// What is wrong with it, in words.
pub fn first_host(text: &str) -> Result<String, String> {
    let mut hosts = Vec::new();
    let entry = entries(text)?.into_iter().next().unwrap_or_default();
    expand(entry, &mut hosts)?;
    hosts.into_iter().next().ok_or_else(|| "it names no host".to_owned())
}

/// The parts between those commas that are in no bracket.
fn entries(text: &str) -> Result<Vec<&str>, String> {
    let mut entries = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' if inside => return Err("a bracket is opened within another".to_owned()),
            ']' if !inside => return Err("a bracket is closed that is not open".to_owned()),
            '[' | ']' => inside = letter == '[',
            ',' if !inside => {
                entries.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a bracket is not closed".to_owned());
    }
    entries.push(&text[start..]);
    Ok(entries)
}

/// Appends the hosts of one entry, such as `rack[0-1]node[3,5]`.
fn expand(entry: &str, hosts: &mut Vec<String>) -> Result<(), String> {
    let mut made = vec![String::new()];
    let mut rest = entry.trim();
    while let Some((before, behind)) = rest.split_once('[') {
        let (ranges, behind) = behind.split_once(']').unwrap_or((behind, ""));
        let numbers = numbers(ranges)?;
        if made.len().saturating_mul(numbers.len()) > HOSTS_MAX - hosts.len().min(HOSTS_MAX) {
            return Err(too_many());
        }
        let longer = |name: &String| -> Vec<String> {
            numbers.iter().map(|number| format!("{name}{before}{number}")).collect()
        };
        made = made.iter().flat_map(longer).collect();
        rest = behind;
    }
    made.iter_mut().for_each(|name| name.push_str(rest));
    for name in made {
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(format!("{name:?} cannot be the name of a host"));
        }
        if hosts.len() >= HOSTS_MAX {
            return Err(too_many());
        }
        hosts.push(name);
    }
    Ok(())
}

fn too_many() -> String {
    format!("it names more than {HOSTS_MAX} hosts")
}

/// `1-3,07-09` as written: numbers keep the width of the first of their range.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number)
                if text.len() <= DIGITS_MAX && text.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                Ok(number)
            }
            _ => Err(format!("{range:?} is no range of numbers")),
        };
        let (first, last) = (number(low)?, number(high)?);
        if last < first {
            return Err(format!("{range:?} is no range of numbers"));
        }
        if (last - first) as usize >= HOSTS_MAX - found.len().min(HOSTS_MAX) {
            return Err(too_many());
        }
        found.extend((first..=last).map(|number| format!("{number:0width$}", width = low.len())));
    }
    Ok(found)
}

/// Tasks by host, as SLURM_TASKS_PER_NODE says it: `2(x3),1` is 2, 2, 2, 1.
///
/// # Errors
/// What is wrong with it, in words.
pub fn tasks(text: &str) -> Result<Vec<u32>, String> {
    let mut tasks = Vec::new();
    for entry in text.split(',') {
        let (count, times) = match entry.trim().split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').unwrap_or("")),
            None => (entry.trim(), "1"),
        };
        match (count.parse::<u32>(), times.parse::<usize>()) {
            (Ok(count), Ok(times)) if times <= HOSTS_MAX - tasks.len() => {
                tasks.extend(std::iter::repeat_n(count, times));
            }
            _ => return Err(format!("{entry:?} is no number of tasks such as 2 or 2(x3)")),
        }
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str) -> String {
        hosts(text).expect(text).join(" ")
    }

    #[test]
    fn lists_are_expanded() {
        for (text, expected) in [
            ("ant", "ant"),
            ("ant,bee", "ant bee"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[08-10,12],login", "n08 n09 n10 n12 login"),
            ("r[0-1]n[1,3]x", "r0n1x r0n3x r1n1x r1n3x"),
            ("a-b[1].example.org", "a-b1.example.org"),
        ] {
            assert_eq!(listed(text), expected, "{text}");
            let first = expected.split(' ').next();
            assert_eq!(first_host(text).ok().as_deref(), first, "{text}");
        }
        assert_eq!(hosts("n[00001-65535]").expect("as many as ranks").len(), 65535);
    }

    #[test]
    fn lists_that_are_none() {
        for (text, why) in [
            ("", "cannot be the name"),
            ("a,,b", "cannot be the name"),
            ("a[1-", "not closed"),
            ("a]", "not open"),
            ("a[[1]]", "within another"),
            ("a[3-1]", "no range"),
            ("a[]", "no range"),
            ("a[x]", "no range"),
            ("a[-1]", "no range"),
            ("a[+1-2]", "no range"),
            ("a[001-100000000]", "more than 65535"),
            ("a[1-60000],b[1-60000]", "more than 65535"),
            ("a[1-300]b[1-300]", "more than 65535"),
            ("a[1-99999999999999999999]", "no range"),
            ("a b", "cannot be the name"),
        ] {
            let error = hosts(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        // What is behind the first host is not expanded.
        assert_eq!(first_host("a,b[1-").expect_err("taken"), "a bracket is not closed");
    }

    #[test]
    fn numbers_of_tasks() {
        assert_eq!(tasks("2(x3),1"), Ok(vec![2, 2, 2, 1]));
        assert_eq!(tasks("16"), Ok(vec![16]));
        for text in ["", "x", "2(x", "2(x)", "2(x3", "2x3", "-1", "1(x65536)", "1(x65535),1"] {
            assert!(tasks(text).is_err(), "{text}");
        }
    }

    #[test]
    fn mutated_lists_end_in_a_list_or_an_error() {
        let samples = ["ant,bee[1-3,07-09]x", "r[0-1]n[1,3],login", "2(x3),1"];
        crate::fuzzed::run("list of hosts", 4 << 20, |seed| {
            let mut bytes = samples[seed.below(3) as usize].as_bytes().to_vec();
            seed.mutate(&mut bytes);
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(found) = hosts(&text) {
                assert!(!found.is_empty() && found.len() <= HOSTS_MAX);
                assert_eq!(first_host(&text).as_ref(), Ok(&found[0]));
            }
            if let Ok(found) = tasks(&text) {
                assert!(found.len() <= HOSTS_MAX);
            }
        });
    }
}
