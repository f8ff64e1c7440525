//! Segments that members of a group learn of with the step that makes them.
//!
//! An arrival tells how large a segment is, which ranks of other nodes need to know, and which
//! memory file it is, by the number of the owner's descriptor. A peer of the node opens that by
//! /proc at first access, which the kernel allows to processes of the same user and pid namespace.
//! It makes no connection, and takes no descriptor once the memory is mapped. Where devices know
//! memory of members, a second step tells ranks of other nodes the keys.

use super::{Control, Data, FILE_NAME, Reach, Segment, Shape, Target};
use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::os::process;
use crate::wire::message::MemoryKey;
use std::os::fd::{AsRawFd, OwnedFd};

/// Words of an arrival that say where a segment is; all zero where none was made.
pub(crate) const PUBLISHED_WORDS: usize = 4;

/// In the lower half of the first of these words: a key follows with the next step. Numbers of
/// descriptors are smaller.
const KEY_FOLLOWS: u64 = 1 << 31;

/// Words that say by which key a device reaches a segment; all zero where there is none.
const KEY_WORDS: usize = 2;
/// In the first of them, whose lower half is the key, below the number of the device.
const HAS_KEY: u64 = 1 << 32;
const DEVICE_SHIFT: u32 = 33;

/// A key as words of an arrival.
pub(crate) fn words_of_key(key: Option<MemoryKey>) -> [u64; KEY_WORDS] {
    key.map_or([0; KEY_WORDS], |MemoryKey { device, key, address }| {
        [u64::from(device) << DEVICE_SHIFT | HAS_KEY | u64::from(key), address]
    })
}

/// A key from words of an arrival.
pub(crate) fn key_of_words([word, address]: [u64; KEY_WORDS]) -> Option<MemoryKey> {
    let (device, key) = ((word >> DEVICE_SHIFT) as u8, word as u32);
    (word & HAS_KEY != 0).then_some(MemoryKey { device, key, address })
}

/// Where the memory of a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) generation: u32,
    pub(crate) size: u64,
    /// The owner's descriptor of the memory file, for ranks of its node; none for memory of the
    /// program, which cannot be opened.
    file: Option<u32>,
    /// That of the reserved huge pages which hold the data, where there are such.
    huge: Option<u32>,
    /// The owner's, which the file holds too.
    nonce: u64,
    /// Whether the next step tells a key.
    pub(crate) key_follows: bool,
}

impl Published {
    /// As words of an arrival.
    pub(crate) fn words(&self) -> [u64; PUBLISHED_WORDS] {
        let [file, huge] =
            [self.file, self.huge].map(|number| number.map_or(0, |number| u64::from(number) + 1));
        let key_follows = if self.key_follows { KEY_FOLLOWS } else { 0 };
        [u64::from(self.generation) << 32 | key_follows | file, self.size, huge, self.nonce]
    }

    /// From words of an arrival.
    pub(crate) fn from_words(words: [u64; PUBLISHED_WORDS]) -> Option<Published> {
        let [word, size, huge, nonce] = words;
        let (generation, file) = ((word >> 32) as u32, word & (KEY_FOLLOWS - 1));
        let number = |word: u64| word.checked_sub(1).map(|number| number as u32);
        // Generations begin with 1.
        (generation != 0).then(|| Published {
            generation,
            size,
            file: number(file),
            huge: number(huge),
            nonce,
            key_follows: word & KEY_FOLLOWS != 0,
        })
    }

    /// Whether ranks of its node can map it by this.
    pub(crate) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Maps the segment of the process `pid`, for rank `me`. `None` if it has been deleted.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    pub(crate) fn map(
        &self,
        segment: SegmentId,
        pid: i32,
        shape: Shape,
        me: Rank,
    ) -> Result<Option<Target>> {
        let mut files: Vec<OwnedFd> = Vec::new();
        for number in [self.file, self.huge].into_iter().flatten() {
            match process::open_memory_of(pid, number, FILE_NAME) {
                Ok(Some(file)) => files.push(file),
                Ok(None) => return Ok(None),
                Err(error) => {
                    let call = format!("opening {segment} as /proc/{pid}/fd/{number}");
                    return Err(Error::os(call, &error));
                }
            }
        }
        let [file, huge @ ..] = files.as_slice() else { return Ok(None) };
        let control = Control::import(segment, file, shape)?;
        if !control.is(self.generation, self.nonce) {
            return Ok(None);
        }
        let (size, generation) = (self.size, self.generation);
        let data = match control.map_data(segment, file, huge.first(), size) {
            Ok(data) => data,
            Err(_) if !control.exists() => return Ok(None),
            Err(error) => return Err(error),
        };
        // The numbers were those of this segment all the while if it is there still: its owner ends
        // it before it closes its files.
        let exists = control.note_mapped(me);
        let target = Target::imported(control, Some(data), Reach::Mapped, size, generation);
        Ok(exists.then_some(target))
    }
}

impl Segment {
    /// Where it is, for members of the group that makes it, and whether they are told the key of
    /// this rank's device next. `nonce` is this rank's.
    pub(crate) fn publish(&self, nonce: u64, key_follows: bool) -> Published {
        self.control.identify(self.generation, nonce);
        let number = |file: &OwnedFd| file.as_raw_fd().cast_unsigned();
        let (file, huge) = match &self.data {
            Data::Mapped { file: huge, .. } => {
                (Some(number(&self.file)), huge.as_ref().map(number))
            }
            _ => (None, None),
        };
        Published { generation: self.generation, size: self.size, file, huge, nonce, key_follows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Init;

    const SHAPE: Shape = Shape { ranks: 2, notifications: 16 };
    const NONCE: u64 = 0x1234_5678_9abc_def0;

    fn segment(generation: u32) -> Segment {
        Segment::new(SegmentId(3), generation, 4096, Init::Zeroed, SHAPE).unwrap()
    }

    fn map(published: &Published) -> Result<Option<Target>> {
        published.map(SegmentId(3), std::process::id().cast_signed(), SHAPE, Rank(1))
    }

    #[test]
    fn words_say_which_file_it_is() {
        let published = segment(7).publish(NONCE, false);
        assert_eq!(Published::from_words(published.words()), Some(published));
        let huge = Published { huge: Some(0), ..published };
        assert_eq!(Published::from_words(huge.words()), Some(huge));
        let with_key = Published { key_follows: true, ..huge };
        assert_eq!(Published::from_words(with_key.words()), Some(with_key));
        assert_eq!(Published::from_words([0; PUBLISHED_WORDS]), None);
    }

    #[test]
    fn keys_are_what_they_were_behind_their_words() {
        for key in [
            MemoryKey { device: 0, key: 0, address: 0 },
            MemoryKey { device: u8::MAX, key: u32::MAX, address: u64::MAX },
        ] {
            assert_eq!(key_of_words(words_of_key(Some(key))), Some(key));
        }
        assert_eq!(key_of_words(words_of_key(None)), None);
    }

    #[test]
    fn whoever_maps_it_is_known_to_its_owner() {
        let segment = segment(7);
        let published = segment.publish(NONCE, false);
        assert!(!segment.is_mapped_by(Rank(1)));
        let target = map(&published).unwrap().expect("it is there");
        assert!(segment.is_mapped_by(Rank(1)) && !segment.is_mapped_by(Rank(0)));
        assert!(target.alive() && target.mapped() == 4096);
        segment.end();
        assert!(!target.alive());
    }

    #[test]
    fn a_deleted_segment_is_not_mapped() {
        let segment = segment(7);
        let published = segment.publish(NONCE, false);
        segment.end();
        assert!(map(&published).unwrap().is_none());
    }

    #[test]
    fn another_file_under_the_same_number_is_not_taken_for_it() {
        let later = segment(8);
        let published = Published { generation: 7, ..later.publish(NONCE, false) };
        assert!(map(&published).unwrap().is_none());
        let stranger = Published { generation: 8, nonce: NONCE + 1, ..published };
        assert!(map(&stranger).unwrap().is_none());
        assert!(!later.is_mapped_by(Rank(1)));
    }

    #[test]
    fn a_number_that_is_no_memory_file_is_not_taken_for_it() {
        let segment = segment(7);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for file in [1 << 20, one.as_raw_fd().cast_unsigned()] {
            let published = Published { file: Some(file), ..segment.publish(NONCE, false) };
            assert!(map(&published).unwrap().is_none());
        }
    }

    #[test]
    fn a_process_that_has_ended_has_no_segment() {
        let published = segment(7).publish(NONCE, false);
        // No process has this number.
        assert!(published.map(SegmentId(3), 0, SHAPE, Rank(1)).unwrap().is_none());
    }
}
