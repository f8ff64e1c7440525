//! The names that this machine goes by.

use crate::os::interfaces;
use crate::os::process;
use crate::sync::Mutex;
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Names that the resolver is asked for at the same time.
const RESOLVERS_MAX: usize = 64;
/// Of a thread that asks it.
const STACK_BYTES: usize = 256 << 10;

/// What this machine is called, looked up once.
#[derive(Debug, Clone)]
pub struct ThisMachine {
    name: String,
    addresses: Vec<IpAddr>,
}

impl ThisMachine {
    /// Asks the kernel for the machine's name and its interfaces' addresses.
    pub fn look_up() -> ThisMachine {
        let addresses = interfaces::list().into_iter().map(|interface| interface.address).collect();
        ThisMachine { name: process::host_name(), addresses }
    }

    /// One that is made up.
    #[cfg(test)]
    pub(crate) fn called(name: &str, addresses: &[IpAddr]) -> ThisMachine {
        ThisMachine { name: name.to_owned(), addresses: addresses.to_vec() }
    }

    /// The machine's own name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether `spelling` means this machine: its name with or without domain, localhost, an
    /// address of any interface, or whatever the resolver maps to one.
    pub fn is(&self, spelling: &str) -> bool {
        self.is_plainly(spelling).unwrap_or_else(|| {
            match (spelling.trim_end_matches('.'), 0).to_socket_addrs() {
                Ok(found) => found.map(|address| address.ip()).any(|address| self.has(address)),
                Err(_) => self.has_first_label(spelling),
            }
        })
    }

    /// The same for many names, which the resolver is asked for side by side. A name that it has
    /// not answered after `limit` does not mean this machine, as far as is known.
    pub fn are(&self, spellings: &[&str], limit: Duration) -> Vec<bool> {
        let resolve = |name: &str| {
            let found = (name, 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        };
        self.are_by(spellings, limit, resolve)
    }

    fn are_by(
        &self,
        spellings: &[&str],
        limit: Duration,
        resolve: impl Fn(&str) -> std::io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Vec<bool> {
        let plainly = spellings.iter().map(|spelling| self.is_plainly(spelling));
        let mut found: Vec<Option<bool>> = plainly.collect();
        let asked = found.iter().enumerate().filter(|(_, known)| known.is_none());
        let asked: Vec<(usize, String)> =
            asked.map(|(at, _)| (at, spellings[at].trim_end_matches('.').to_owned())).collect();
        let mut left = asked.len();
        let deadline = Instant::now() + limit;
        let (tell, answers) = mpsc::channel();
        let questions = Arc::new((Mutex::new(asked), resolve));
        for _ in 0..left.min(RESOLVERS_MAX) {
            let (questions, tell) = (questions.clone(), tell.clone());
            let work = move || {
                loop {
                    let next = questions.0.lock().pop();
                    let Some((at, name)) = next else { break };
                    // Nobody listens any more once the limit has passed.
                    if tell.send((at, (questions.1)(&name))).is_err() {
                        break;
                    }
                }
            };
            let name = "gaspi-resolver".to_owned();
            // Without a thread, those that there are do more; without any, nothing is known.
            let _ = process::with_signals_blocked(|| {
                std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(work)
            });
        }
        drop(tell);
        while left > 0 {
            let rest = deadline.saturating_duration_since(Instant::now());
            let Ok((at, answer)) = answers.recv_timeout(rest) else { break };
            found[at] = Some(match answer {
                Ok(addresses) => addresses.into_iter().any(|address| self.has(address)),
                Err(_) => self.has_first_label(spellings[at]),
            });
            left -= 1;
        }
        found.into_iter().map(|known| known.unwrap_or(false)).collect()
    }

    /// Not known to the resolver: a name whose first part is ours is believed.
    fn has_first_label(&self, spelling: &str) -> bool {
        !self.name.contains('.') && first_label(spelling, &self.name)
    }

    /// The same as far as it can be told without asking the resolver, which takes its time.
    pub(crate) fn is_plainly(&self, spelling: &str) -> Option<bool> {
        let spelling = spelling.trim_end_matches('.');
        let unbracketed = spelling.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
        let address = unbracketed.unwrap_or(spelling);
        // A link-local address may carry its interface.
        let address = address.split('%').next().unwrap_or(address);
        if let Ok(address) = address.parse::<IpAddr>() {
            return Some(self.has(address));
        }
        self.is_name(spelling).then_some(true)
    }

    fn is_name(&self, spelling: &str) -> bool {
        let own = self.name.trim_end_matches('.');
        is_loopback_name(spelling)
            || own.eq_ignore_ascii_case(spelling)
            || (!spelling.contains('.') && first_label(own, spelling))
    }

    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || self.addresses.iter().any(|own| own.to_canonical() == address)
    }
}

/// The same for all processes of one kernel in one network namespace, and for no others.
pub(crate) fn identity() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::metadata("/proc/self/ns/net").map_or(0, |about| about.ino());
    let text = format!("{} {namespace}", boot.trim());
    // FNV-1a.
    let next = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, next)
}

fn is_loopback_name(spelling: &str) -> bool {
    ["localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"]
        .iter()
        .any(|name| name.eq_ignore_ascii_case(spelling))
}

/// Whether every machine takes `spelling` for itself.
pub(crate) fn is_loopback(spelling: &str) -> bool {
    let unbracketed = spelling.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
    let address = unbracketed.unwrap_or(spelling).parse::<IpAddr>();
    is_loopback_name(spelling.trim_end_matches('.'))
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether the part of `name` before its first dot is `label`.
fn first_label(name: &str, label: &str) -> bool {
    name.split('.').next().is_some_and(|first| first.eq_ignore_ascii_case(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_in_any_spelling() {
        let machine = ThisMachine {
            name: "Node7.example.org".to_owned(),
            addresses: vec!["192.0.2.2".parse().expect("v4"), "fd00::2".parse().expect("v6")],
        };
        for ours in [
            "node7.example.org",
            "NODE7",
            "node7",
            "Node7.Example.Org.",
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "[::1]",
            "192.0.2.2",
            "fd00::2",
            "FD00:0::2",
            "::ffff:192.0.2.2",
            "fd00::2%eth0",
        ] {
            assert!(machine.is(ours), "{ours}");
        }
        for other in ["192.0.2.3", "fd00::3", "node70", "node8.example.org", ""] {
            assert!(!machine.is(other), "{other}");
        }
        for own in ["localhost", "LocalHost.", "127.0.0.1", "::1", "[::1]", "::ffff:127.9.9.9"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["192.0.2.2", "node7", "::2", ""] {
            assert!(!is_loopback(other), "{other}");
        }
        let real = ThisMachine::look_up();
        assert!(real.is(real.name()) && real.is(&real.name().to_uppercase()));
    }

    /// Each lost answer of the resolver takes its time, and all together no more than the limit.
    #[test]
    fn names_are_resolved_side_by_side_and_not_for_ever() {
        let machine = ThisMachine::called("ant", &["192.0.2.2".parse().expect("address")]);
        let asked = Arc::new(std::sync::Barrier::new(8));
        let together = asked.clone();
        let resolve = move |name: &str| {
            // One after the other they would wait for ever.
            together.wait();
            let address = if name == "own" { "192.0.2.2" } else { "192.0.2.9" };
            Ok(vec![address.parse().expect("address")])
        };
        let names = ["a", "b", "own", "192.0.2.2", "d", "e", "ant", "f", "g", "h.example."];
        let found = machine.are_by(&names, Duration::from_secs(60), resolve);
        let here = [false, false, true, true, false, false, true, false, false, false];
        assert_eq!(found, here);
        // A resolver that never answers, until the test is over.
        let (over, until) = mpsc::channel::<()>();
        let until = Mutex::new(until);
        let start = Instant::now();
        let silent = move |_: &str| {
            let _ = until.lock().recv();
            Err(std::io::ErrorKind::TimedOut.into())
        };
        let names = vec!["other"; 300];
        let found = machine.are_by(&names, Duration::from_millis(100), silent);
        drop(over);
        assert!(start.elapsed() < Duration::from_secs(10) && !found.contains(&true));
        // What the resolver does not know.
        let unknown = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        let found = machine.are_by(&["ant.example", "bee"], Duration::from_secs(60), unknown);
        assert_eq!(found, [true, false]);
    }
}
