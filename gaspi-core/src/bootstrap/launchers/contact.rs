//! What rank 0 tells the others through the process manager: the addresses of its machine, how
//! ranks recognise that machine, and a random key for the job.
//!
//! A text without blanks and without `=`, since PMI-1 is lines of `name=value`.

use crate::bootstrap::auth::{KEY_BYTES, Key};
use std::net::IpAddr;

/// The first word: another version of the library may write something else.
const VERSION: &str = "gaspi1";

/// Where the hub of a job is, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contact {
    pub(super) key: Key,
    /// See [`crate::bootstrap::this_machine::identity`].
    pub(super) machine: u64,
    pub(super) addresses: Vec<IpAddr>,
}

impl Contact {
    /// The text, with as many addresses as `bytes_max` has room for.
    pub(super) fn encode(&self, bytes_max: usize) -> String {
        let key: String = self.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut text = format!("{VERSION},{key},{:016x}", self.machine);
        for address in &self.addresses {
            let address = format!(",{address}");
            if text.len() + address.len() > bytes_max {
                break;
            }
            text += &address;
        }
        text
    }

    /// # Errors
    /// In words.
    pub(super) fn decode(text: &str) -> Result<Contact, String> {
        let mut parts = text.split(',');
        let version = parts.next().unwrap_or_default();
        if version != VERSION {
            let shown: String = version.chars().take(20).collect();
            return Err(format!(
                "rank 0 speaks {shown:?}, this rank {VERSION:?}; use one version of the library on \
                 all hosts"
            ));
        }
        let (key, machine) = (parts.next().and_then(key), parts.next().and_then(machine));
        let addresses: Option<Vec<IpAddr>> = parts.map(|part| part.parse().ok()).collect();
        match (key, machine, addresses) {
            (Some(key), Some(machine), Some(addresses)) => Ok(Contact { key, machine, addresses }),
            _ => Err("what rank 0 published arrived damaged".to_owned()),
        }
    }
}

fn key(text: &str) -> Option<Key> {
    if text.len() != 2 * KEY_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(Key(key))
}

fn machine(text: &str) -> Option<u64> {
    let plain = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contact() -> Contact {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("an address"));
        Contact { key: Key([0xa5; 32]), machine: 7, addresses: addresses.to_vec() }
    }

    #[test]
    fn what_is_told_arrives() {
        let text = contact().encode(1024);
        assert_eq!(
            text,
            format!("gaspi1,{},0000000000000007,192.0.2.1,2001:db8::1", "a5".repeat(32))
        );
        assert_eq!(Contact::decode(&text), Ok(contact()));
        assert!(!format!("{:?}", contact()).contains("a5"), "the key is not shown");
        // As much as there is room for.
        let short = Contact::decode(&contact().encode(text.len() - 1)).expect("whole");
        assert_eq!(short.addresses, contact().addresses[..1]);
    }

    #[test]
    fn what_is_none_is_refused() {
        let text = contact().encode(1024);
        let other = Contact::decode(&text.replace("gaspi1", "gaspi2")).expect_err("another");
        assert!(other.contains("\"gaspi2\"") && other.contains("one version"), "{other}");
        for wrong in ["gaspi1", "gaspi1,a5,0", &text[..60], &format!("{text},x"), &text[..70]] {
            assert!(Contact::decode(wrong).expect_err(wrong).contains("damaged"), "{wrong}");
        }
    }

    #[test]
    fn mutated_contacts_end_in_a_contact_or_an_error() {
        let sample = contact().encode(1024).into_bytes();
        crate::fuzzed::run("contact", 64 << 10, |seed| {
            let mut bytes = sample.clone();
            seed.mutate(&mut bytes);
            if let Ok(found) = Contact::decode(&String::from_utf8_lossy(&bytes)) {
                assert_eq!(Contact::decode(&found.encode(usize::MAX)), Ok(found));
            }
        });
    }
}
