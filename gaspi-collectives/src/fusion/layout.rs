//! Which tensors share a bucket, and where they lie in it: a pure function of the declaration, and
//! so the same on all ranks.

use gaspi_core::{Error, Result};

use super::{Options, Order, Tensor};
use crate::datatype::DataType;

/// What places of tensors are aligned to: a cache line, and every vector of the processor.
pub(super) const ALIGNMENT: u64 = 64;

/// Where a tensor lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) bucket: usize,
    /// Its number among the tensors of the bucket.
    pub(super) nth: usize,
    /// Its first element among those of the bucket, where padding counts.
    pub(super) first: u64,
    pub(super) count: u64,
}

/// The part of a bucket that is a tensor's, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Its number among the tensors of the bucket.
    pub(super) nth: usize,
    /// What travels: where it begins, and how much it is.
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// The same in the type of the tensor.
    pub(super) plain_at: u64,
    pub(super) plain_bytes: u64,
}

impl Place {
    /// The part of a tensor of a type that travels as another one.
    pub(super) fn part(&self, ty: DataType, wire: DataType) -> Part {
        let [ty, wire] = [ty, wire].map(|ty| u64::from(ty.bytes()));
        let Place { nth, first, count, .. } = *self;
        let (at, bytes, plain_at, plain_bytes) =
            (first * wire, count * wire, first * ty, count * ty);
        Part { nth, at, bytes, plain_at, plain_bytes }
    }
}

/// Tensors that are reduced together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BucketLayout {
    /// The type of its tensors, and the one in which it travels.
    pub(super) ty: DataType,
    pub(super) wire: DataType,
    /// With the padding between its tensors.
    pub(super) elements: u64,
    /// Where it begins in the memory of all buckets, by the type that travels.
    pub(super) at: u64,
    /// Its tensors, in the order in which they lie.
    pub(super) tensors: Vec<usize>,
}

impl BucketLayout {
    /// What lies between its tensors, in bytes that travel: places and lengths. `places` are those
    /// of the layout.
    pub(super) fn gaps(&self, places: &[Option<Place>]) -> Vec<(u64, u64)> {
        let bytes = u64::from(self.wire.bytes());
        let mut end = 0;
        let gap = |place: &Place| {
            let before = std::mem::replace(&mut end, place.first + place.count);
            (before * bytes, (place.first - before) * bytes)
        };
        let places = self.tensors.iter().filter_map(|tensor| places[*tensor].as_ref());
        places.map(gap).filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Bytes that travel.
    pub(super) fn bytes(&self) -> u64 {
        self.elements * u64::from(self.wire.bytes())
    }
}

/// All buckets of a declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) buckets: Vec<BucketLayout>,
    /// By tensor; none for those without elements.
    pub(super) places: Vec<Option<Place>>,
    /// Bytes of all buckets.
    pub(super) bytes: u64,
}

/// The type in which tensors of a type travel.
fn wire(ty: DataType, options: &Options) -> DataType {
    match (ty, options.wire) {
        (DataType::F32, Some(wire)) => wire,
        _ => ty,
    }
}

fn too_many(tensor: usize, count: u64) -> Error {
    let reason = format!("tensor {tensor} has so many elements: more than memory can be");
    Error::Number { number: count, reason }
}

impl Layout {
    /// The buckets of these tensors.
    ///
    /// # Errors
    /// [`Error::Number`] where sizes cannot be computed with.
    pub(super) fn new(tensors: &[Tensor], options: &Options) -> Result<Layout> {
        let mut places = vec![None; tensors.len()];
        let mut buckets: Vec<BucketLayout> = Vec::new();
        // Bytes of the tensors of the last bucket, without padding, while it is open.
        let mut filled = None;
        let forward: Box<dyn Iterator<Item = usize>> = match options.order {
            Order::Declared => Box::new(0..tensors.len()),
            Order::Reverse => Box::new((0..tensors.len()).rev()),
        };
        for tensor in forward.filter(|tensor| tensors[*tensor].count > 0) {
            let Tensor { count, ty } = tensors[tensor];
            let fits = |bytes: &u64| i64::try_from(*bytes).is_ok();
            let bytes = count.checked_mul(ty.bytes().into()).filter(fits);
            let bytes = bytes.ok_or_else(|| too_many(tensor, count))?;
            let with_it = |filled: u64| filled.checked_add(bytes).filter(fits);
            let joins = filled.and_then(with_it).filter(|both| {
                buckets.last().is_some_and(|bucket| bucket.ty == ty)
                    && options.limit.is_none_or(|limit| *both <= limit)
            });
            if joins.is_none() {
                let (wire, tensors) = (wire(ty, options), Vec::new());
                buckets.push(BucketLayout { ty, wire, elements: 0, at: 0, tensors });
            }
            let now = joins.unwrap_or(bytes);
            filled = (now < options.threshold).then_some(now);
            let index = buckets.len() - 1;
            let bucket = &mut buckets[index];
            let unit = ALIGNMENT / u64::from(bucket.wire.bytes().min(ty.bytes()));
            let first = bucket.elements.next_multiple_of(unit);
            let end = first.checked_add(count).ok_or_else(|| too_many(tensor, count))?;
            bucket.elements = end;
            let nth = bucket.tensors.len();
            bucket.tensors.push(tensor);
            places[tensor] = Some(Place { bucket: index, nth, first, count });
        }
        let mut bytes = 0u64;
        for bucket in &mut buckets {
            bucket.at = bytes;
            let end = bytes.checked_add(bucket.bytes()).and_then(|end| {
                end.checked_next_multiple_of(ALIGNMENT).filter(|end| i64::try_from(*end).is_ok())
            });
            bytes = end.ok_or_else(|| too_many(bucket.tensors[0], bucket.elements))?;
        }
        Ok(Layout { buckets, places, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn floats(counts: &[u64]) -> Vec<Tensor> {
        counts.iter().map(|count| Tensor { count: *count, ty: DataType::F32 }).collect()
    }

    fn buckets(tensors: &[Tensor], options: &Options) -> Vec<Vec<usize>> {
        let layout = Layout::new(tensors, options).expect("a layout");
        layout.buckets.into_iter().map(|bucket| bucket.tensors).collect()
    }

    #[test]
    fn the_threshold_is_a_minimum() {
        let tensors = floats(&[94, 17, 2, 81]);
        for (floats, expected) in [
            (2, vec![vec![0], vec![1], vec![2], vec![3]]),
            (10, vec![vec![0], vec![1], vec![2, 3]]),
            (100, vec![vec![0, 1], vec![2, 3]]),
            (112, vec![vec![0, 1, 2], vec![3]]),
            (200, vec![vec![0, 1, 2, 3]]),
            (0, vec![vec![0], vec![1], vec![2], vec![3]]),
        ] {
            let options = Options { threshold: floats * 4, ..Options::default() };
            assert_eq!(buckets(&tensors, &options), expected, "threshold of {floats} floats");
        }
    }

    #[test]
    fn the_limit_is_a_maximum_and_a_longer_tensor_stands_alone() {
        let tensors = floats(&[10, 10, 10, 50, 10, 10]);
        let options = Options { threshold: 1 << 20, limit: Some(100), ..Options::default() };
        let expected = vec![vec![0, 1], vec![2], vec![3], vec![4, 5]];
        assert_eq!(buckets(&tensors, &options), expected);
    }

    #[test]
    fn types_do_not_mix_and_the_order_may_be_reversed() {
        let mut tensors = floats(&[10, 10, 10]);
        tensors[1].ty = DataType::F64;
        assert_eq!(buckets(&tensors, &Options::default()), [[0], [1], [2]]);
        let reverse = Options { order: Order::Reverse, ..Options::default() };
        assert_eq!(buckets(&tensors, &reverse), [[2], [1], [0]]);
        assert_eq!(buckets(&floats(&[1, 2, 3]), &reverse), [[2, 1, 0]]);
    }

    #[test]
    fn what_cannot_be_computed_with_is_refused() {
        for counts in [&[1, u64::MAX / 2][..], &[1, u64::MAX], &[i64::MAX as u64 / 4; 4]] {
            let error = Layout::new(&floats(counts), &Options::default());
            assert!(matches!(error, Err(Error::Number { .. })), "{counts:?}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn places_are_apart_and_aligned(
            counts in prop::collection::vec(0..3000u64, 0..60),
            threshold in 0..40_000u64,
            limit in prop::option::of(1..50_000u64),
            wire in prop::option::of(prop::sample::select(vec![DataType::F16, DataType::Bf16])),
            reverse in any::<bool>(),
            types in prop::collection::vec(0..3usize, 60),
        ) {
            let ty = |i: usize| [DataType::F32, DataType::F32, DataType::I8][types[i]];
            let tensors: Vec<Tensor> =
                counts.iter().enumerate().map(|(i, c)| Tensor { count: *c, ty: ty(i) }).collect();
            let order = if reverse { Order::Reverse } else { Order::Declared };
            let options = Options { threshold, limit, wire, order, ..Options::default() };
            let layout = Layout::new(&tensors, &options).expect("small");
            let mut end = 0;
            for bucket in &layout.buckets {
                prop_assert!(bucket.at >= end && bucket.at % ALIGNMENT == 0);
                end = bucket.at + bucket.bytes();
                let mut free = 0;
                for (nth, tensor) in bucket.tensors.iter().enumerate() {
                    let place = layout.places[*tensor].expect("it has elements");
                    prop_assert_eq!(place.nth, nth);
                    prop_assert_eq!(tensors[*tensor].ty, bucket.ty);
                    prop_assert!(place.first >= free);
                    prop_assert_eq!(place.first * u64::from(bucket.ty.bytes()) % ALIGNMENT, 0);
                    prop_assert_eq!(place.first * u64::from(bucket.wire.bytes()) % ALIGNMENT, 0);
                    free = place.first + place.count;
                }
                prop_assert_eq!(free, bucket.elements);
                let gaps = bucket.gaps(&layout.places);
                let in_gaps: u64 = gaps.iter().map(|(_, bytes)| bytes).sum();
                let of_tensors: u64 = bucket.tensors.iter().map(|tensor| counts[*tensor]).sum();
                let wire = u64::from(bucket.wire.bytes());
                prop_assert_eq!(in_gaps + of_tensors * wire, bucket.bytes());
                for (at, bytes) in gaps {
                    let overlaps = |tensor: &usize| {
                        let place = layout.places[*tensor].expect("it has elements");
                        let (start, end) = (place.first * wire, (place.first + place.count) * wire);
                        start < at + bytes && at < end
                    };
                    prop_assert!(!bucket.tensors.iter().any(overlaps));
                }
            }
            prop_assert!(end <= layout.bytes);
            let placed = layout.places.iter().flatten().count();
            prop_assert_eq!(placed, counts.iter().filter(|count| **count > 0).count());
        }
    }
}
