//! Submits that take a copy at most: what programs do most, in a few instructions.
//!
//! Whatever needs more, a scale, another type, a further contribution, an error, is left to
//! [`Fused::try_submit`] and [`Fused::submit`] before anything has been changed.

use super::fused::Fused;
use super::layout::Layout;
use crate::kernel::{Source, copy};

/// A tensor, for those who copy it only.
#[derive(Debug)]
pub(super) struct Direct {
    /// Bytes; 0 if a copy does not serve.
    bytes: usize,
    bucket: usize,
    nth: usize,
    /// Where it lies in the memories of its bucket.
    at: u64,
    /// The address of its place in the fused buffer.
    place: usize,
}

/// All tensors of a layout whose memory begins at this address.
pub(super) fn all(layout: &Layout, start: usize) -> Box<[Direct]> {
    let direct = |place: &Option<super::layout::Place>| {
        let place = place.as_ref().map(|place| (place, &layout.buckets[place.bucket]));
        match place.filter(|(_, bucket)| bucket.ty == bucket.wire) {
            None => Direct { bytes: 0, bucket: 0, nth: 0, at: 0, place: 0 },
            Some((place, bucket)) => {
                let bytes = u64::from(bucket.ty.bytes());
                let at = place.first * bytes;
                Direct {
                    bytes: (place.count * bytes) as usize,
                    bucket: place.bucket,
                    nth: place.nth,
                    at,
                    place: start + (bucket.at + at) as usize,
                }
            }
        }
    };
    layout.places.iter().map(direct).collect()
}

impl Fused {
    /// Hands a tensor over if that takes a copy at most, else `None`, and nothing has happened.
    /// Gives the bucket of which it was the last contribution, whose all-reduce is to be
    /// [started](Fused::start).
    ///
    /// # Safety
    /// `data` is readable for the bytes of the tensor.
    #[inline(always)]
    pub(super) unsafe fn submit_directly(
        &self,
        tensor: usize,
        data: *const u8,
        scale: f64,
    ) -> Option<Option<usize>> {
        let direct = self.direct.get(tensor)?;
        let (bytes, address) = (direct.bytes, data.addr());
        let is_apart = address >= self.own.end || address.saturating_add(bytes) <= self.own.start;
        let is_allowed = is_apart || address == direct.place;
        if bytes == 0 || scale != 1.0 || data.is_null() || !is_allowed || self.ends.has_failed() {
            return None;
        }
        let bucket = self.buckets.get(direct.bucket)?;
        let claim = bucket.countdown.claim(direct.nth).ok()?;
        if !claim.is_first || !bucket.memory.has_for_step(claim.step) {
            bucket.countdown.renounce(direct.nth, claim);
            return None;
        }
        // SAFETY: the caller's promise.
        let source = unsafe { Source::new(data, bytes) };
        let place = bucket.memory.of_step(claim.step).part(direct.at, bytes as u64);
        if !source.is_at(place) {
            copy(place, source);
        }
        if bucket.countdown.completes_tensor(claim) {
            self.note_submitted(tensor, claim.step);
        }
        Some(bucket.countdown.finish(direct.nth, claim).then_some(direct.bucket))
    }
}
