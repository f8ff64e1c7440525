//! A hash by which ranks compare what would be long to send: the same in each build of the library.

/// FNV-1a over words.
pub(crate) fn hash(words: impl Iterator<Item = u64>) -> u64 {
    words.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}
