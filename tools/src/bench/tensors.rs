//! The tensors of models, and those that a user names.

use crate::failure::{Failure, Result};

/// More than any model has.
const TENSORS_MAX: usize = 1 << 20;

/// Elements of the tensors of a model, in the order of its layers.
fn resnet50() -> Vec<usize> {
    let mut counts = Vec::new();
    let mut convolution = |size: usize, from: usize, to: usize| {
        counts.extend([size * size * from * to, to, to]);
    };
    convolution(7, 3, 64);
    let mut from = 64;
    for (blocks, width) in [(3, 64), (4, 128), (6, 256), (3, 512)] {
        for block in 0..blocks {
            convolution(1, from, width);
            convolution(3, width, width);
            convolution(1, width, 4 * width);
            if block == 0 {
                convolution(1, from, 4 * width);
            }
            from = 4 * width;
        }
    }
    counts.extend([2048 * 1000, 1000]);
    counts
}

/// The base model with twelve layers.
fn transformer() -> Vec<usize> {
    const WIDTH: usize = 768;
    let mut counts = vec![30_522 * WIDTH, 512 * WIDTH, 2 * WIDTH, WIDTH, WIDTH];
    for _ in 0..12 {
        counts.extend([WIDTH * WIDTH, WIDTH].repeat(4));
        counts.extend([WIDTH, WIDTH, 4 * WIDTH * WIDTH, 4 * WIDTH]);
        counts.extend([4 * WIDTH * WIDTH, WIDTH, WIDTH, WIDTH]);
    }
    counts
}

/// The tensors that `--tensors` names: a model, `N x ELEMENTS`, or a file of numbers of elements.
pub(crate) fn counts(name: &str) -> Result<Vec<usize>> {
    let counts = match name {
        "resnet50" => resnet50(),
        "lenet" => vec![150, 6, 2400, 16, 48_000, 120, 10_080, 84, 840, 10],
        "deep" => [4900, 70].repeat(41),
        "transformer" => transformer(),
        other => {
            match other.split_once('x').map(|(n, count)| (n.parse::<usize>(), count.parse())) {
                // None of them, if there are too many to be listed.
                Some((Ok(number), Ok(_))) if number > TENSORS_MAX => Vec::new(),
                Some((Ok(number), Ok(count))) => vec![count; number],
                _ => from_file(other)?,
            }
        }
    };
    let all = counts.iter().try_fold(0usize, |all, count| all.checked_add(*count));
    if all.is_none_or(|all| all == 0 || all > 1 << 32) || counts.contains(&0) {
        return Err(Failure::usage(format!(
            "--tensors {name}: up to {TENSORS_MAX} tensors have at least one element each, and all \
             together up to 2^32"
        )));
    }
    Ok(counts)
}

fn from_file(path: &str) -> Result<Vec<usize>> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "--tensors {path}: neither resnet50, lenet, deep or transformer, nor NxELEMENTS, nor a \
             file: {error}"
        ))
    })?;
    let number = |word: &str| {
        let reason = || format!("--tensors {path}: `{word}` is no number of elements");
        word.parse().map_err(|_| Failure::usage(reason()))
    };
    text.split_whitespace().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_all_memory_are_refused_before_they_are_listed() {
        assert_eq!(counts("3x70"), Ok(vec![70; 3]));
        for name in ["1000000000000x1", "1048577x1", "2x18446744073709551615", "0x5", "5x0"] {
            let failure = counts(name).expect_err(name);
            assert!(failure.message.contains("all together up to 2^32"), "{failure}");
        }
    }
}
