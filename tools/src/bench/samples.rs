//! Times of batches, and what is told of them: the median, other quantiles, how much they differ.

/// Parts of a row, one after another, whose medians tell how much those of rows differ.
const PARTS: usize = 5;
/// Batches that a median needs.
const PART_MIN: usize = 4;

/// Times of batches, sorted, in microseconds for an operation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    sorted: Vec<f64>,
    /// From the least to the greatest median of a part, in terms of the median of all.
    noise: Option<f64>,
}

impl Samples {
    /// Of batches in the order in which they were made.
    pub(crate) fn new(mut samples: Vec<f64>) -> Samples {
        let part = samples.len().div_ceil(PARTS).max(1);
        let medians: Vec<f64> = samples.chunks_mut(part).map(median_of).collect();
        samples.sort_by(f64::total_cmp);
        let mut samples = Samples { sorted: samples, noise: None };
        if samples.count() >= PARTS * PART_MIN && samples.median() > 0.0 {
            let least = medians.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = medians.iter().copied().fold(0.0, f64::max);
            samples.noise = Some((greatest - least) / samples.median());
        }
        samples
    }

    /// By how much medians of a fifth of the batches differ, in terms of the median; none of too
    /// few.
    pub(crate) fn noise(&self) -> Option<f64> {
        self.noise
    }

    /// The sample that `share` of all are not above; 0 if there is none.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        quantile(&self.sorted, share)
    }

    pub(crate) fn count(&self) -> usize {
        self.sorted.len()
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn min(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(0.0)
    }
}

/// The value that `share` of all are not above; 0 if there is none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let index = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(index.max(1) - 1).or(sorted.last()).copied().unwrap_or(0.0)
}

fn median_of(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    quantile(samples, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let samples = Samples::new((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            (samples.min(), samples.median(), samples.quantile(0.99), samples.quantile(0.999)),
            (1.0, 50.0, 99.0, 100.0)
        );
        assert_eq!(Samples::new(vec![3.0]).quantile(0.99), 3.0);
        assert_eq!(Samples::default().median(), 0.0);
    }

    #[test]
    fn noise_is_what_medians_of_parts_differ_by() {
        let drifting = (0..100).map(|i| 10.0 + f64::from(i / 20)).collect();
        assert_eq!(Samples::new(drifting).noise(), Some(4.0 / 12.0));
        let outliers = (0..100).map(|i| if i % 10 == 0 { 90.0 } else { 10.0 }).collect();
        assert_eq!(Samples::new(outliers).noise(), Some(0.0));
        assert_eq!(Samples::new(vec![1.0; 19]).noise(), None);
    }
}
