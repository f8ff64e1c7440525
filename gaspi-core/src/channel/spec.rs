//! How large a channel is.

use super::layout::LINE;
use crate::error::{Error, Result};
use crate::wire::hash::hash;

/// Limits of a channel, which fit into a signature.
const SLOTS_MAX: u64 = (1 << 16) - 1;
const MESSAGE_BYTES_MAX: u64 = (1 << 30) - LINE;
const STAGE_BYTES_MAX: u64 = (1 << 26) - LINE;
/// Bits of the largest number of lines of a message, and of staging.
const MESSAGE_BITS: u32 = 24;
const STAGE_BITS: u32 = 20;
/// Bits of the number of channels that are opened together, and of the hash of their sizes.
const MANY_BITS: u32 = 24;
const HASH_BITS: u32 = 36;

/// How large a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Messages between two members that the receiver has not taken, 1..=65535.
    pub slots: u32,
    /// Bytes of a message behind its header of 64 bytes; below 1 GiB.
    pub message_bytes: u64,
    /// Bytes of staging that go with an arrival; below 64 MiB.
    pub stage_bytes: u64,
}

impl ChannelSpec {
    /// Bytes of a slot.
    #[inline]
    pub(super) fn slot_bytes(&self) -> u64 {
        super::HEAD_BYTES as u64 + self.message_bytes
    }

    /// In whole cache lines, and checked.
    pub(super) fn rounded(self) -> Result<ChannelSpec> {
        for (what, number, min, max) in [
            ("slots", self.slots.into(), 1, SLOTS_MAX),
            ("message_bytes", self.message_bytes, 0, MESSAGE_BYTES_MAX),
            ("stage_bytes", self.stage_bytes, 0, STAGE_BYTES_MAX),
        ] {
            if !(min..=max).contains(&number) {
                let reason = format!("{what} of a channel are {min} to {max}");
                return Err(Error::Number { number, reason });
            }
        }
        Ok(ChannelSpec {
            slots: self.slots,
            message_bytes: self.message_bytes.next_multiple_of(LINE),
            stage_bytes: self.stage_bytes.next_multiple_of(LINE),
        })
    }

    /// What has to be the same on all members.
    pub(super) fn details(self) -> u64 {
        let (message, stage) = (self.message_bytes / LINE, self.stage_bytes / LINE);
        (u64::from(self.slots) << (MESSAGE_BITS + STAGE_BITS)) | (message << STAGE_BITS) | stage
    }

    fn of_details(details: u64) -> ChannelSpec {
        let field = |from: u32, bits: u32| details >> from & ((1 << bits) - 1);
        ChannelSpec {
            slots: (details >> (MESSAGE_BITS + STAGE_BITS)) as u32,
            message_bytes: field(STAGE_BITS, MESSAGE_BITS) * LINE,
            stage_bytes: field(0, STAGE_BITS) * LINE,
        }
    }
}

/// Memory that comes with channels that are opened together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataSpec {
    /// Bytes for data, of undefined contents at first.
    pub bytes: u64,
    /// Words by which a member tells the others how far it is; 0 at first.
    pub status_words: u32,
}

impl DataSpec {
    /// Bytes of the status words.
    pub(super) fn status_bytes(self) -> u64 {
        u64::from(self.status_words) * 4
    }
}

/// What has to be the same on all members that open many channels: their number, and a hash.
pub(super) fn digest(specs: &[ChannelSpec], data: DataSpec) -> u64 {
    let words =
        specs.iter().map(|spec| spec.details()).chain([data.bytes, data.status_words.into()]);
    let hash = hash(words);
    let number = (specs.len() as u64) & ((1 << MANY_BITS) - 1);
    number << HASH_BITS | hash >> (u64::BITS - HASH_BITS)
}

/// Many channels in words, from the details of the signature.
pub(crate) fn describe_many(details: u64) -> String {
    let (number, hash) = (details >> HASH_BITS, details & ((1 << HASH_BITS) - 1));
    format!("channels_open of {number} channels of sizes {hash:x}")
}

/// A call in words, from the details of its signature.
pub(crate) fn describe(details: u64) -> String {
    let ChannelSpec { slots, message_bytes, stage_bytes } = ChannelSpec::of_details(details);
    format!("channel_open with {slots} slots of {message_bytes} bytes, staging of {stage_bytes}")
}
