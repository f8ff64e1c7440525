//! One line of a table: what was measured, and what it is compared with.

use crate::samples::Samples;

/// How a figure is compared with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Time in terms of the limit's.
    Time,
    /// Share of the limit's speed.
    Share,
}

/// What a figure is compared with.
#[derive(Debug, Clone)]
pub(crate) struct Limit {
    pub(crate) name: String,
    pub(crate) us: f64,
}

/// One line of a table.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) test: &'static str,
    pub(crate) variant: &'static str,
    pub(crate) size: Option<usize>,
    pub(crate) samples: Samples,
    /// Operations that run at once: bandwidth and rate are those of all of them.
    pub(crate) at_once: usize,
    /// Memory instead of a time.
    pub(crate) resident: Option<u64>,
    pub(crate) limit: Option<Limit>,
    /// The limit is what is wanted, not what the hardware gives.
    pub(crate) limit_is_goal: bool,
    pub(crate) judged: Judged,
    /// What a collective operation moved.
    pub(crate) moved: Option<Moved>,
    pub(crate) carried: Option<Carried>,
    pub(crate) errors: u64,
}

/// What an operation came to on the rank that did most, as the library counts it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Carried {
    /// Messages and arrivals.
    pub(crate) messages: f64,
    /// Bytes that were copied, for each byte of the operation.
    pub(crate) copies: f64,
}

/// What a collective operation moved, and how.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    pub(crate) variant: String,
    /// Elements, as the procedure counts them.
    pub(crate) count: usize,
    pub(crate) ty: &'static str,
    /// None where nothing is combined.
    pub(crate) op: Option<&'static str>,
    /// None where the library chose.
    pub(crate) algorithm: Option<String>,
    pub(crate) in_place: bool,
    pub(crate) memory: &'static str,
    /// busbw in terms of algbw.
    pub(crate) bus_factor: f64,
    pub(crate) comparison: Option<Comparison>,
}

/// What a collective operation is measured beside, if anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// What the library chooses beside every algorithm that serves.
    Algorithms,
    /// The stable mode beside the fast one.
    Modes,
    /// Writes from each rank to the next.
    Writes,
}

impl Row {
    pub(crate) fn new(test: &'static str, variant: &'static str, samples: Samples) -> Row {
        Row {
            test,
            variant,
            size: None,
            samples,
            at_once: 1,
            resident: None,
            limit: None,
            limit_is_goal: false,
            judged: Judged::Time,
            moved: None,
            carried: None,
            errors: 0,
        }
    }

    pub(crate) fn size(mut self, size: usize) -> Row {
        self.size = Some(size);
        self
    }

    pub(crate) fn limit(mut self, name: impl Into<String>, us: f64) -> Row {
        self.limit = Some(Limit { name: name.into(), us });
        self
    }

    pub(crate) fn share(mut self) -> Row {
        self.judged = Judged::Share;
        self
    }

    pub(crate) fn errors(mut self, errors: u64) -> Row {
        self.errors = errors;
        self
    }

    pub(crate) fn moved(mut self, moved: Moved) -> Row {
        self.moved = Some(moved);
        self
    }

    pub(crate) fn carried(mut self, carried: Option<Carried>) -> Row {
        self.carried = carried;
        self
    }

    pub(crate) fn variant(&self) -> &str {
        self.moved.as_ref().map_or(self.variant, |moved| &moved.variant)
    }

    /// GB/s of what each rank has to send or receive.
    pub(crate) fn bus_gb_s(&self) -> Option<f64> {
        Some(self.gb_s(self.samples.median())? * self.moved.as_ref()?.bus_factor)
    }

    pub(crate) fn at_once(mut self, count: usize) -> Row {
        self.at_once = count;
        self
    }

    /// GB/s for a time of one operation.
    pub(crate) fn gb_s(&self, us: f64) -> Option<f64> {
        let bytes = self.size? as f64 * self.at_once as f64;
        (us > 0.0).then(|| bytes / us / 1e3)
    }

    /// Millions of operations in a second.
    pub(crate) fn rate(&self) -> Option<f64> {
        let us = self.samples.median();
        (us > 0.0).then(|| self.at_once as f64 / us)
    }

    pub(crate) fn of_limit(&self) -> Option<f64> {
        let limit = self.limit.as_ref()?.us;
        let figure = self.resident.map_or(self.samples.median(), |bytes| bytes as f64);
        let (above, below) = match self.judged {
            Judged::Time => (figure, limit),
            Judged::Share => (limit, figure),
        };
        (below > 0.0).then(|| above / below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row::new("write-bw", "write", Samples::new(vec![2.0])).size(4000).limit("memcpy", 1.0)
    }

    #[test]
    fn shares_and_times_are_ratios_the_other_way_round() {
        assert_eq!(row().of_limit(), Some(2.0));
        assert_eq!(row().share().of_limit(), Some(0.5));
        assert_eq!(row().gb_s(2.0), Some(2.0));
        assert_eq!(row().at_once(3).gb_s(2.0), Some(6.0));
        assert_eq!(Row::new("x", "y", Samples::default()).limit("z", 0.0).of_limit(), None);
        assert_eq!(row().rate(), Some(0.5));
    }
}
