//! The bytes of a connection, encrypted so that nobody but its two ends can read them, nor change
//! them without being noticed: pure bytes and state, without sockets.
//!
//! ```text
//! record   length u32 | so many bytes, encrypted | tag 16 B
//! ```
//!
//! ChaCha20-Poly1305 (RFC 8439). Each direction has a key of its own, which serves one connection
//! only ([`super::handshake::Handshake::records`]). The nonce is the number of the record in its
//! direction, from 0 on, little-endian; the tag covers the length, too. So a record that was
//! changed, left out, repeated or moved is noticed with the next one that comes. That the
//! connection was cut is not: what it carries tells its own end.
//!
//! Invariant: nothing is handed on of a record before its tag was checked, and of a record that has
//! not come whole no more is kept than [`RECORD_MAX`] bytes and its frame.

use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit, Nonce, Tag};

/// Bytes of a key.
const KEY: usize = 32;
/// Bytes in front of what is encrypted.
const HEAD: usize = 4;
/// Bytes behind it.
const TAG: usize = 16;
/// Bytes that one record carries at most.
const RECORD_MAX: usize = 64 << 10;

/// What came is not what the other end has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tampered;

impl std::fmt::Display for Tampered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("what came was not encrypted with the key of this connection, or was changed")
    }
}

impl std::error::Error for Tampered {}

/// One direction.
struct Direction {
    cipher: ChaCha20Poly1305,
    /// Records so far.
    count: u64,
}

impl Direction {
    fn new(key: &[u8; KEY]) -> Direction {
        Direction { cipher: ChaCha20Poly1305::new(key.into()), count: 0 }
    }

    /// The nonce of the next record.
    fn next(&mut self) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&self.count.to_le_bytes());
        self.count += 1;
        nonce
    }
}

/// Both directions of a connection.
pub struct RecordLayer {
    sent: Direction,
    received: Direction,
    /// What has come of the next record.
    came: Vec<u8>,
    /// Nothing that comes is believed any more.
    is_broken: bool,
}

impl std::fmt::Debug for RecordLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the keys.
        let mut text = f.debug_struct("RecordLayer");
        text.field("sent", &self.sent.count).field("received", &self.received.count);
        text.field("came", &self.came.len()).finish_non_exhaustive()
    }
}

impl RecordLayer {
    /// Of a connection with these keys, which serve no other one: one for what is sealed here, one
    /// for what the other end has sealed.
    pub fn new(sent: &[u8; KEY], received: &[u8; KEY]) -> RecordLayer {
        let (sent, received) = (Direction::new(sent), Direction::new(received));
        RecordLayer { sent, received, came: Vec::new(), is_broken: false }
    }

    /// Appends to `to` the records that carry these bytes, in order.
    pub fn seal(&mut self, plain: &[u8], to: &mut Vec<u8>) {
        for plain in plain.chunks(RECORD_MAX) {
            let head = (plain.len() as u32).to_le_bytes();
            to.extend_from_slice(&head);
            let start = to.len();
            to.extend_from_slice(plain);
            let nonce = self.sent.next();
            let body = InOutBuf::from(&mut to[start..]);
            // Fails for more bytes than a record has only.
            if let Ok(tag) = self.sent.cipher.encrypt_inout_detached(&nonce, &head, body) {
                to.extend_from_slice(&tag);
            } else {
                to.truncate(start - HEAD);
            }
        }
    }

    /// Takes in bytes that have come, and appends to `to` what the records among them carry that
    /// have come whole.
    ///
    /// # Errors
    /// [`Tampered`], from then on for all that comes.
    pub fn open(&mut self, bytes: &[u8], to: &mut Vec<u8>) -> Result<(), Tampered> {
        if self.is_broken {
            return Err(Tampered);
        }
        self.came.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(len) = self.open_next(taken, to)? {
            taken += len;
        }
        self.came.drain(..taken);
        Ok(())
    }

    /// Opens the record that begins behind so many bytes; how many it has, if it is there whole.
    fn open_next(&mut self, start: usize, to: &mut Vec<u8>) -> Result<Option<usize>, Tampered> {
        let Some(head) = self.came[start..].first_chunk::<HEAD>() else { return Ok(None) };
        let (head, len) = (*head, u32::from_le_bytes(*head) as usize);
        if len > RECORD_MAX {
            return Err(self.give_up());
        }
        let Some(record) = self.came[start..].get(HEAD..HEAD + len + TAG) else { return Ok(None) };
        let (body, tag) = record.split_at(len);
        let before = to.len();
        to.extend_from_slice(body);
        let (nonce, tag) = (self.received.next(), Tag::try_from(tag).unwrap_or_default());
        let plain = InOutBuf::from(&mut to[before..]);
        let opened = self.received.cipher.decrypt_inout_detached(&nonce, &head, plain, &tag);
        if opened.is_err() {
            to.truncate(before);
            return Err(self.give_up());
        }
        Ok(Some(HEAD + len + TAG))
    }

    fn give_up(&mut self) -> Tampered {
        self.is_broken = true;
        self.came = Vec::new();
        Tampered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzed::Seed;

    /// Both ends of a connection.
    fn ends() -> (RecordLayer, RecordLayer) {
        let (one, two) = ([1; KEY], [2; KEY]);
        (RecordLayer::new(&one, &two), RecordLayer::new(&two, &one))
    }

    #[test]
    fn what_is_sealed_is_opened_however_it_is_cut() {
        let (mut one, mut two) = ends();
        let mut seed = Seed::of(7);
        let plain: Vec<u8> = (0..3 * RECORD_MAX + 5).map(|n| (n % 251) as u8).collect();
        let mut sealed = Vec::new();
        for piece in plain.chunks(RECORD_MAX + 1) {
            one.seal(piece, &mut sealed);
        }
        one.seal(&[], &mut sealed);
        assert!(!sealed.windows(16).any(|window| window == &plain[..16]), "in clear");
        let (mut opened, mut rest) = (Vec::new(), &sealed[..]);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(1 + seed.below(40_000) as usize));
            two.open(piece, &mut opened).expect("opened");
            assert!(two.came.len() <= HEAD + RECORD_MAX + TAG);
            rest = behind;
        }
        assert!(opened == plain, "{} of {} bytes", opened.len(), plain.len());
        // And back, with another key.
        let mut back = Vec::new();
        two.seal(&plain[..100], &mut back);
        assert_ne!(back, sealed[..back.len()]);
        let mut opened = Vec::new();
        one.open(&back, &mut opened).expect("opened");
        assert_eq!(opened, plain[..100]);
    }

    /// Three records, each of four bytes.
    fn three() -> (Vec<Vec<u8>>, RecordLayer) {
        let (mut one, two) = ends();
        let seal = |text: &[u8]| {
            let mut sealed = Vec::new();
            one.seal(text, &mut sealed);
            sealed
        };
        ([&b"abcd"[..], b"efgh", b"ijkl"].map(seal).to_vec(), two)
    }

    #[test]
    fn what_was_changed_left_out_repeated_or_moved_is_noticed() {
        let whole = three().0;
        let (first, second) = (&whole[0], &whole[1]);
        let cases: [(&str, Vec<&Vec<u8>>); 4] = [
            ("repeated", vec![first, first]),
            ("left out", vec![first, &whole[2]]),
            ("moved", vec![second, first]),
            ("after an error", vec![second, second, first]),
        ];
        for (what, records) in cases {
            let (mut opened, mut two) = (Vec::new(), three().1);
            let ends: Vec<_> = records.iter().map(|r| two.open(r, &mut opened)).collect();
            assert_eq!(ends.last(), Some(&Err(Tampered)), "{what}");
            assert!(opened.is_empty() || opened == b"abcd", "{what}");
        }
        // Each bit counts, also those of the length and of the tag.
        for bit in 0..first.len() * 8 {
            let mut changed = first.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            // A length that grew waits for what is to come.
            changed.extend_from_slice(&[0; RECORD_MAX]);
            let (mut opened, mut two) = (Vec::new(), three().1);
            assert_eq!(two.open(&changed, &mut opened), Err(Tampered), "bit {bit}");
            assert_eq!(opened, b"", "bit {bit}");
        }
        // An end of its own sends what the other end is to open, not what it opens itself.
        let (mut one, _) = ends();
        let mut reflected = Vec::new();
        one.seal(b"abcd", &mut reflected);
        assert_eq!(one.open(&reflected, &mut Vec::new()), Err(Tampered));
    }

    #[test]
    fn mutated_records_are_opened_as_they_were_sealed_or_not_at_all() {
        let whole = three().0.concat();
        crate::fuzzed::run("records", 64 << 10, |seed| {
            let mut bytes = whole.clone();
            seed.mutate(&mut bytes);
            let (mut opened, mut two) = (Vec::new(), ends().1);
            let _ = two.open(&bytes, &mut opened);
            assert!(b"abcdefghijkl".starts_with(&opened), "{opened:?}");
            assert!(opened.len() % 4 == 0 && two.came.len() <= HEAD + RECORD_MAX + TAG);
        });
    }
}
