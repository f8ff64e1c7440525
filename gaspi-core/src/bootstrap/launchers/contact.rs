//! What rank 0 tells the others through the process manager: the addresses of its machine, how
//! ranks recognise that machine, and a random key for the job; or why it cannot.
//!
//! A text without blanks and without `=`, since PMI-1 is lines of `name=value`.

use crate::bootstrap::auth::{KEY_BYTES, Key};
use std::net::IpAddr;

/// The first word: another version of the library may write something else.
const VERSION: &str = "gaspi1";
/// The first word where rank 0 cannot be met.
const FAILURE: &str = "gaspi1-failed";

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
        if let Some(reason) = text.strip_prefix(FAILURE).and_then(|rest| rest.strip_prefix(',')) {
            return Err(format!("rank 0 cannot be met: {}", decode_reason(reason)));
        }
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

/// The text of a rank 0 that cannot be met, with as much of the reason as `bytes_max` has room for.
pub(super) fn encode_failure(reason: &str, bytes_max: usize) -> String {
    let mut text = format!("{FAILURE},");
    for character in reason.chars() {
        let mut bytes = [0; 4];
        let encoded = match character {
            ' ' => "+".to_owned(),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | ',' | ':' | '/' | '-' | '_' => {
                character.to_string()
            }
            other => {
                let bytes = other.encode_utf8(&mut bytes).bytes();
                bytes.map(|byte| format!("%{byte:02x}")).collect()
            }
        };
        if text.len() + encoded.len() > bytes_max {
            break;
        }
        text += &encoded;
    }
    text
}

/// What is no text comes as U+FFFD.
fn decode_reason(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, behind @ ..] = rest {
        rest = behind;
        let hex = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match (first, hex.and_then(|digits| u8::from_str_radix(digits, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &behind[2..];
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
    }
    let shown = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    String::from_utf8_lossy(&bytes).chars().map(shown).collect()
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
    fn the_reason_of_a_rank_0_that_cannot_be_met_arrives() {
        let reason =
            "GASPI_IFACE=eth9: \u{201e}no\u{201c} interface, 100 % of them are down + gone";
        let text = encode_failure(reason, 1024);
        assert!(!text.contains([' ', '=']), "{text}");
        let heard = Contact::decode(&text).expect_err("no contact");
        assert_eq!(heard, format!("rank 0 cannot be met: {reason}"));
        // As much as there is room for, of whole characters.
        for room in 14..text.len() {
            let heard = Contact::decode(&encode_failure(reason, room)).expect_err("no contact");
            let part = heard.strip_prefix("rank 0 cannot be met: ").expect("it says so");
            assert!(reason.starts_with(part), "{room}: {part}");
        }
        let odd = Contact::decode("gaspi1-failed,a%0ab%c3%zz%").expect_err("no contact");
        assert!(odd.ends_with("a\u{fffd}b\u{fffd}%zz%"), "{odd}");
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
