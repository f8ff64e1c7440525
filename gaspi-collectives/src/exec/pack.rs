//! Packing of blocks that do not follow each other, and of the input of an all-to-all in place.
//!
//! Input is packed before the operation starts; the call that reports its end unpacks the output.
//! Algorithms and other members do not notice.

use gaspi_core::{Error, Result};

use crate::kernel::{self, Buffer, Source, Target};
use crate::request::Blocks;

/// A block in the program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// The blocks of a list; `None` where they follow each other. The displacement of a block without
/// elements does not count.
///
/// # Errors
/// [`Error::Number`] unless there is a displacement for each count, and all can be computed with.
pub(crate) fn pieces(blocks: &Blocks, element_bytes: u64) -> Result<Option<Vec<Piece>>> {
    let Blocks { counts, displacements } = blocks;
    if displacements.is_empty() {
        return Ok(None);
    }
    if displacements.len() != counts.len() {
        let number = displacements.len() as u64;
        let reason = format!("there has to be a displacement for each of {} blocks", counts.len());
        return Err(Error::Number { number, reason });
    }
    let piece = |(displacement, count): (&u64, &u64)| {
        // It may be anywhere, also behind all others.
        if *count == 0 {
            return Some(Piece { offset: 0, bytes: 0 });
        }
        let end = displacement.checked_add(*count).and_then(|end| end.checked_mul(element_bytes));
        end.filter(|end| i64::try_from(*end).is_ok()).map(|end| {
            let bytes = count * element_bytes;
            Piece { offset: end - bytes, bytes }
        })
    };
    let found: Option<Vec<Piece>> = displacements.iter().zip(counts).map(piece).collect();
    let found = found.ok_or_else(|| Error::Number {
        number: displacements.iter().copied().max().unwrap_or(0),
        reason: format!(
            "a block of elements of {element_bytes} bytes would end beyond what memory can be"
        ),
    })?;
    let mut end = 0;
    let follow = found.iter().all(|piece| {
        let follows = piece.bytes == 0 || piece.offset == end;
        end += piece.bytes;
        follows
    });
    Ok((!follow).then_some(found))
}

/// Where the last block ends.
pub(crate) fn end(pieces: &[Piece]) -> u64 {
    pieces.iter().filter(|piece| piece.bytes > 0).map(|p| p.offset + p.bytes).max().unwrap_or(0)
}

/// Errors if blocks that are written share memory.
///
/// # Errors
/// [`Error::Size`].
pub(crate) fn check_disjoint(pieces: &[Piece]) -> Result<()> {
    let mut sorted: Vec<Piece> = pieces.iter().copied().filter(|piece| piece.bytes > 0).collect();
    sorted.sort_by_key(|piece| piece.offset);
    match sorted.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        None => Ok(()),
        Some(pair) => Err(Error::Size {
            size: pair[0].bytes,
            reason: "a block that is received begins inside of another one".to_owned(),
        }),
    }
}

/// The packed input and output of an operation.
#[derive(Debug, Default)]
pub(crate) struct PackBuffers {
    input: Option<(Buffer, Vec<Source<'static>>)>,
    output: Option<(Buffer, Vec<Target<'static>>)>,
    /// Whether the result has still to be unpacked.
    is_pending: bool,
}

impl PackBuffers {
    /// Packs the input from these parts.
    pub(crate) fn take_input(&mut self, parts: Vec<Source<'static>>) -> Source<'static> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let (own, _) = self.input.insert((Buffer::new(bytes as u64), parts));
        // SAFETY: the memory is on the heap and lives as long as the operation, which owns it.
        unsafe { Source::new(own.target(bytes as u64).source().start(), bytes) }
    }

    /// Unpacks the output to these parts.
    pub(crate) fn take_output(&mut self, parts: Vec<Target<'static>>) -> Target<'static> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let (own, _) = self.output.insert((Buffer::new(bytes as u64), parts));
        let start = own.target(bytes as u64).source().start().cast_mut();
        // SAFETY: the memory is on the heap, lives as long as the operation and may be written.
        unsafe { Target::new(start, bytes) }
    }

    /// Leaks the memory, because other members may still access it.
    #[cold]
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }

    /// Packs the input, before the operation starts.
    pub(crate) fn pack(&mut self) {
        self.is_pending = self.has_output();
        let Some((own, parts)) = &self.input else { return };
        let mut at = 0;
        for part in parts {
            kernel::copy(own.target(own.len()).part(at, part.len() as u64), *part);
            at += part.len() as u64;
        }
    }

    /// Whether there is an output to unpack.
    pub(crate) fn has_output(&self) -> bool {
        self.output.is_some()
    }

    /// Unpacks the output, after the operation has ended.
    pub(crate) fn unpack(&mut self) {
        let Some((own, parts)) = &self.output else { return };
        if !std::mem::take(&mut self.is_pending) {
            return;
        }
        let own = own.target(own.len()).source();
        let mut at = 0;
        for part in parts {
            kernel::copy(*part, own.part(at, part.len() as u64));
            at += part.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(counts: &[u64], displacements: &[u64]) -> Blocks {
        Blocks { counts: counts.to_vec(), displacements: displacements.to_vec() }
    }

    #[test]
    fn blocks_that_follow_each_other_need_nothing() {
        assert_eq!(pieces(&blocks(&[3, 2], &[]), 4).unwrap(), None);
        assert_eq!(pieces(&blocks(&[3, 0, 2], &[0, 77, 3]), 4).unwrap(), None);
        let found = pieces(&blocks(&[3, 2], &[2, 0]), 4).unwrap().unwrap();
        assert_eq!(found, [Piece { offset: 8, bytes: 12 }, Piece { offset: 0, bytes: 8 }]);
        assert_eq!(end(&found), 20);
    }

    #[test]
    fn an_empty_block_may_be_anywhere() {
        let found = pieces(&blocks(&[0, 2, 1, 0], &[100, 1, 0, u64::MAX]), 4).unwrap().unwrap();
        assert_eq!(end(&found), 12);
        let mut memory = [0; 12];
        let output = Target::of(&mut memory);
        let lens = found.iter().map(|piece| output.part(piece.offset, piece.bytes).len());
        assert_eq!(lens.collect::<Vec<_>>(), [0, 8, 4, 0]);
    }

    #[test]
    fn blocks_that_cannot_be_are_refused() {
        assert!(pieces(&blocks(&[3, 2], &[0]), 4).is_err());
        assert!(pieces(&blocks(&[3], &[u64::MAX - 1]), 1).is_err());
        assert!(pieces(&blocks(&[3], &[1 << 61]), 4).is_err());
        let overlap = pieces(&blocks(&[3, 2], &[1, 3]), 4).unwrap().unwrap();
        assert!(matches!(check_disjoint(&overlap), Err(Error::Size { .. })));
        let touching = pieces(&blocks(&[3, 2, 0], &[2, 0, 3]), 4).unwrap().unwrap();
        assert!(check_disjoint(&touching).is_ok());
    }

    #[test]
    fn what_was_packed_is_unpacked() {
        let from: &'static [u8] = b"abcdefgh";
        let to: &'static mut [u8] = Box::leak(Box::new([b'.'; 8]));
        let seen = to.as_ptr();
        let mut packed = PackBuffers::default();
        let input = Source::of(from);
        let own = packed.take_input(vec![input.part(5, 3), input.part(0, 2)]);
        let output = Target::of(to);
        let result = packed.take_output(vec![output.part(6, 1), output.part(1, 4)]);
        assert_eq!((own.len(), result.len()), (5, 5));
        packed.pack();
        kernel::copy(result, own);
        packed.unpack();
        // SAFETY: eight bytes that were leaked and are not written by others.
        let seen = unsafe { std::slice::from_raw_parts(seen, 8) };
        assert_eq!(seen, b".ghab.f.");
    }
}
