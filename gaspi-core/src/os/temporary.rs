//! Lists of a moment whose memory goes back to the system at once. An allocator keeps what is freed
//! below other allocations, for each rank of a host.

/// From so many bytes on a list has a mapping of its own.
const MAPPED_FROM: usize = 64 << 10;

/// Runs `run` with a list of at most `len` items.
pub(crate) fn with_pairs<T>(
    len: usize,
    items: impl Iterator<Item = [u64; 2]>,
    run: impl FnOnce(&mut [[u64; 2]]) -> T,
) -> T {
    let bytes = len * size_of::<[u64; 2]>();
    let mapped = if bytes < MAPPED_FROM {
        libc::MAP_FAILED
    } else {
        let (access, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice.
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) }
    };
    if mapped == libc::MAP_FAILED {
        return run(&mut items.take(len).collect::<Vec<_>>());
    }
    // SAFETY: mapped just now, with this size and zeroes, and known to nobody else; pages are
    // aligned for it.
    let list = unsafe { std::slice::from_raw_parts_mut(mapped.cast::<[u64; 2]>(), len) };
    let mut count = 0;
    for (place, item) in list.iter_mut().zip(items) {
        *place = item;
        count += 1;
    }
    let outcome = run(&mut list[..count]);
    // SAFETY: mapped above; what was borrowed of it ended with `run`.
    unsafe { libc::munmap(mapped, bytes) };
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_items_however_long_it_is() {
        for len in [0, 3, 100_000] {
            let items = (0..len as u64).map(|item| [item, 2 * item]);
            let sum = with_pairs(len, items, |list| {
                assert_eq!(list.len(), len);
                list.iter().map(|[_, twice]| twice).sum::<u64>()
            });
            assert_eq!(sum, (0..len as u64).map(|item| 2 * item).sum());
        }
        assert_eq!(with_pairs(100_000, [[1, 2]].into_iter(), |list| list.to_vec()), [[1, 2]]);
    }
}
