//! The hosts that a command line names, and which of them are this machine.

use gaspi_core::bootstrap::host_file;
use gaspi_core::bootstrap::this_machine::ThisMachine;
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// How long the resolver may take for all names together. Whether a name that it has not answered
/// means this machine is found out by asking that host itself.
const RESOLVER_LIMIT: Duration = Duration::from_secs(2);
/// Ranks that one entry of a list may have.
const RANKS_MAX: u64 = 65535;

/// The hosts of a machine file, by rank.
///
/// # Errors
/// It cannot be read, is empty, or names something that cannot be a host.
pub fn read(file: &Path) -> Result<Vec<String>, String> {
    host_file::read_checked(file, &check).map_err(|error| {
        // The library speaks of the environment; here the file came from the command line.
        let text = error.to_string();
        text.strip_prefix("environment: ").unwrap_or(&text).to_owned()
    })
}

/// The hosts of a list such as "a:2,b" or "[fd00::1]:2,10.0.0.1", by rank: each as often as the
/// number behind it says.
///
/// # Errors
/// What is wrong with it.
pub fn list(text: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let (host, count) =
            host_file::split(entry).map_err(|reason| format!("{entry:?}: {reason}"))?;
        check(host)?;
        let count = match count.map(str::parse::<u64>) {
            None => 1,
            Some(Ok(count)) if (1..=RANKS_MAX).contains(&count) => count,
            Some(_) => {
                return Err(format!(
                    "{entry:?}: behind the colon comes the number of ranks on that host, 1 to \
                     {RANKS_MAX}"
                ));
            }
        };
        if hosts.len() as u64 + count > RANKS_MAX {
            return Err(format!("more than {RANKS_MAX} ranks"));
        }
        hosts.extend(std::iter::repeat_n(host.to_owned(), count as usize));
    }
    Ok(hosts)
}

/// Whether it can be handed to ssh.
///
/// # Errors
/// Why not.
pub fn check(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("there is an empty name among the hosts".to_owned());
    }
    if host.starts_with('-') || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(format!("{host:?} cannot be the name of a host"));
    }
    Ok(())
}

/// One machine of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// As it was written first.
    pub name: String,
    /// It is this one.
    pub here: bool,
    /// The lines that name it, ascending.
    pub lines: Vec<usize>,
}

/// The machines that these names mean, in the order in which they come up. All names of this
/// machine mean one; others are the same if they are spelled alike but for case, or are the same
/// address.
pub fn machines(hosts: &[String], this: &ThisMachine) -> Vec<Machine> {
    let mut first: HashMap<String, usize> = HashMap::new();
    let mut keys = Vec::new();
    for host in hosts {
        let next = keys.len();
        if *first.entry(key(host)).or_insert(next) == next {
            keys.push(host);
        }
    }
    // ssh alone knows where USER@HOST leads.
    let asked: Vec<&str> =
        keys.iter().filter(|host| !host.contains('@')).map(|host| host.as_str()).collect();
    let mut answers = this.are(&asked, RESOLVER_LIMIT).into_iter();
    let here: Vec<bool> =
        keys.iter().map(|host| !host.contains('@') && answers.next().unwrap_or(false)).collect();
    let (mut machines, mut own): (Vec<Machine>, Option<usize>) = (Vec::new(), None);
    // By the number of a key.
    let mut known: Vec<Option<usize>> = vec![None; keys.len()];
    for (line, host) in hosts.iter().enumerate() {
        let number = first[&key(host)];
        let index = *known[number].get_or_insert_with(|| match own {
            Some(own) if here[number] => own,
            _ => {
                let (name, here) = (host.clone(), here[number]);
                machines.push(Machine { name, here, lines: Vec::new() });
                let index = machines.len() - 1;
                own = own.or(here.then_some(index));
                index
            }
        });
        machines[index].lines.push(line);
    }
    machines
}

/// Whether the name means another machine on every machine.
pub fn is_loopback(host: &str) -> bool {
    match key(host).parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.split('.').next().is_some_and(|name| {
            ["localhost", "ip6-localhost", "ip6-loopback"].contains(&&*name.to_ascii_lowercase())
        }),
    }
}

/// Equal for spellings of one host.
fn key(host: &str) -> String {
    let plain = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match plain.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().to_string(),
        Err(_) => plain.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let hosts = |text| list(text).map(|hosts| hosts.join(" "));
        for (text, expected) in [
            ("a", "a"),
            ("a,b", "a b"),
            ("a:2, b:1", "a a b"),
            ("a:1,b:1,a:2", "a b a a"),
            ("[fd77::1]:2,10.0.0.1:1", "[fd77::1] [fd77::1] 10.0.0.1"),
            ("[fd77::1]", "[fd77::1]"),
            ("fd77::1,me@b:2", "fd77::1 me@b me@b"),
        ] {
            assert_eq!(hosts(text), Ok(expected.to_owned()), "{text}");
        }
        for text in ["", "a,", "a:0", "a:x", "a:", "a:-1", "[::1]x", "a:99999", "-v:2", "a b", ":2"]
        {
            assert!(hosts(text).is_err(), "{text}");
        }
        assert!(list("a:40000,b:40000").is_err());
    }

    #[test]
    fn spellings_of_one_machine() {
        let hosts = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let found = machines(&names, &ThisMachine::look_up());
            found.into_iter().map(|m| (m.name, m.here, m.lines)).collect::<Vec<_>>()
        };
        let found =
            hosts(&["192.0.2.1", "127.0.0.1", "[2001:db8::1]", "localhost", "2001:DB8:0::1"]);
        assert_eq!(
            found,
            [
                ("192.0.2.1".to_owned(), false, vec![0]),
                ("127.0.0.1".to_owned(), true, vec![1, 3]),
                ("[2001:db8::1]".to_owned(), false, vec![2, 4]),
            ]
        );
        let found = hosts(&["192.0.2.1", "::ffff:192.0.2.1", "me@localhost"]);
        assert_eq!(found.len(), 2);
        assert!(!found[1].1);
    }
}
