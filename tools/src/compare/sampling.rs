//! Bursts of all libraries in turn, and which libraries are left out of them.
//!
//! Invariant: a rival costs a bounded time, however slow it is, and whatever becomes of it the
//! other sides are measured. Only a failure of this library's own job is an error.

use super::jobs::{self, Burst, CALLS_MAX, Figures, Job};
use super::no_result::NoResult;
use super::operation::Shape;
use super::row::Lane;
use crate::failure::Result;
use crate::samples::Samples;
use std::time::{Duration, Instant};

/// How thoroughly a row is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds_min: u32,
    pub(crate) rounds_max: u32,
    /// What all bursts of a row may take, if the fewest rounds do not take longer.
    pub(crate) row: Duration,
    /// No call of a burst begins later, but for the first.
    pub(crate) burst: Duration,
    /// A rival gets no more bursts of a row when it has taken so long.
    pub(crate) rival: Duration,
    /// When bursts that showed a rival to be too slow have taken so long, it is not tried again in
    /// the other rows of an operation.
    pub(crate) trying: Duration,
    /// A rival that does not answer within this time is ended.
    pub(crate) answer: Duration,
}

pub(crate) const THOROUGH: Effort = Effort {
    rounds_min: 7,
    rounds_max: 60,
    row: Duration::from_secs(6),
    burst: Duration::from_secs(10),
    rival: Duration::from_secs(60),
    trying: Duration::from_secs(20),
    answer: Duration::from_secs(30),
};
pub(crate) const QUICK: Effort = Effort {
    rounds_min: 3,
    rounds_max: 20,
    row: Duration::from_millis(1200),
    burst: Duration::from_secs(2),
    rival: Duration::from_secs(8),
    trying: Duration::from_secs(2),
    answer: Duration::from_secs(10),
};

/// What a burst should take.
const BURST: Duration = Duration::from_millis(10);
const CALLS_MIN: u32 = 2;
/// One call has to do where two take longer than this.
const LONG: Duration = Duration::from_millis(800);
/// A rival that takes so many times as long as the best is not measured.
pub(crate) const TOO_SLOW: f64 = 50.0;
/// A burst that took longer is not repeated to be sure, of a rival that was too slow before.
/// Otherwise the fastest of some calls counts, for which there is twice this time: where ranks
/// share cores a call may wait for a time slice of another rank.
const DOUBT: Duration = Duration::from_millis(100);
const DOUBT_CALLS: u32 = 16;
/// A rival may take so many times as long to answer as the best did, if that is more than the
/// limit.
const ANSWER_TIMES: u32 = 20;

/// One side, and what has become of it.
#[derive(Debug)]
pub(crate) struct Entrant {
    /// The reason for a job that does not run.
    job: std::result::Result<Job, String>,
    is_ours: bool,
    /// The last size of this operation at which it was too slow, and how many times.
    slow: Option<(usize, f64)>,
    /// What such bursts have taken.
    tried: Duration,
}

/// What bursts of a side are to be.
#[derive(Debug, Clone, Copy)]
struct Plan {
    calls: u32,
    /// What such a burst takes, and a call of it: the fastest, and most.
    takes: Duration,
    fastest_us: f64,
    median_us: f64,
    /// How much was wrong until that was known.
    wrong: u64,
}

/// The best so far. Of the best most calls count, of a rival the fastest: what else the machine
/// does excludes no library.
#[derive(Debug, Clone, Copy)]
struct Pace {
    us: f64,
    takes: Duration,
}

impl Pace {
    fn excludes(self, us: f64) -> bool {
        us > TOO_SLOW * self.us
    }

    fn too_slow(self, us: f64, wrong: u64) -> Option<NoResult> {
        let times = us / self.us;
        self.excludes(us).then_some(NoResult::TooSlow { us, times, wrong })
    }
}

type Found<T> = std::result::Result<T, NoResult>;

impl Entrant {
    pub(crate) fn ours(job: Job) -> Entrant {
        Entrant { job: Ok(job), is_ours: true, slow: None, tried: Duration::ZERO }
    }

    /// A rival, or why it does not run.
    pub(crate) fn rival(job: Result<Job>) -> Entrant {
        let job = job.map_err(|failure| failure.message);
        Entrant { job, is_ours: false, slow: None, tried: Duration::ZERO }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.job.is_ok()
    }

    /// Rows of another operation follow.
    pub(crate) fn begin(&mut self) {
        (self.slow, self.tried) = (None, Duration::ZERO);
    }

    /// Ends it; of a rival only what it measured counts.
    pub(crate) fn stop(self) -> Result<()> {
        match self.job {
            Ok(job) if self.is_ours => job.stop(),
            Ok(job) => {
                let _ = job.stop();
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// One burst. A rival that fails is ended.
    fn burst(&mut self, burst: Burst, limit: Duration) -> Result<Found<Figures>> {
        let job = match &mut self.job {
            Ok(job) => job,
            Err(reason) => return Ok(Err(NoResult::Gone(reason.clone()))),
        };
        match job.burst(burst, if self.is_ours { jobs::LIMIT } else { limit }) {
            Ok(figures) => Ok(Ok(figures)),
            Err(failure) if self.is_ours => Err(failure),
            Err(failure) => {
                self.job = Err(failure.message.clone());
                Ok(Err(NoResult::Gone(failure.message)))
            }
        }
    }

    /// What its bursts are to be, unless it has none.
    fn plan(&mut self, shape: Shape, effort: Effort, best: Option<Pace>) -> Result<Found<Plan>> {
        if let Some((bytes, times)) = self.slow
            && self.tried > effort.trying
            && self.is_running()
        {
            return Ok(Err(NoResult::NotTried { times, bytes }));
        }
        self.try_out(shape, effort, best)
    }

    fn try_out(&mut self, shape: Shape, effort: Effort, best: Option<Pace>) -> Result<Found<Plan>> {
        let best = best.filter(|_| !self.is_ours);
        let limit = answer_limit(effort, best);
        let mut plan = Plan {
            calls: CALLS_MIN,
            takes: Duration::ZERO,
            fastest_us: 0.0,
            median_us: 0.0,
            wrong: 0,
        };
        let mut longest = effort.burst;
        // A few calls tell how many make a burst, and those tell it better. The first ones say
        // little: memory is made for them, and that of the row before given back.
        for turn in 0..3 {
            let begin = Instant::now();
            let burst = Burst { shape, calls: plan.calls, limit: longest };
            let Figures { us, wrong } = match self.burst(burst, limit)? {
                Ok(figures) => figures,
                Err(reason) => return Ok(Err(reason)),
            };
            let Some(us) = us else { return Ok(Err(NoResult::NotOffered)) };
            plan.takes = begin.elapsed();
            plan.wrong += wrong;
            let made = us.len() as u32;
            let samples = Samples::new(us);
            (plan.fastest_us, plan.median_us) = (samples.min(), samples.median());
            let too_slow = best.and_then(|best| best.too_slow(plan.fastest_us, plan.wrong));
            // Libraries make much at their first call of an operation.
            let is_sure = turn > 0 || (self.slow.is_some() && plan.takes > DOUBT);
            match too_slow {
                Some(reason) if is_sure => {
                    let times = best.map_or(1.0, |best| plan.fastest_us / best.us);
                    self.slow = Some((shape.bytes(), times));
                    self.tried += plan.takes;
                    return Ok(Err(reason));
                }
                Some(_) => {
                    (plan.calls, longest) = (DOUBT_CALLS, 2 * DOUBT);
                    continue;
                }
                None => longest = effort.burst,
            }
            plan.calls = fitting(made, plan.takes);
            if turn > 0 && plan.calls <= CALLS_MIN {
                break;
            }
        }
        Ok(Ok(plan))
    }
}

/// How long a rival may take to answer: big rows take long with every library.
fn answer_limit(effort: Effort, best: Option<Pace>) -> Duration {
    let by_best = best.map_or(Duration::ZERO, |best| best.takes * ANSWER_TIMES);
    effort.answer.max(by_best).min(jobs::LIMIT)
}

/// What a side has come to so far.
#[derive(Debug, Default)]
struct Progress {
    us: Vec<f64>,
    bursts: Vec<f64>,
    wrong: u64,
    spent: Duration,
}

/// Bursts of all sides in turn; ours is the first.
pub(crate) fn measure(
    sides: &mut [Entrant],
    shape: Shape,
    effort: Effort,
) -> Result<Vec<Found<Lane>>> {
    let (mut plans, best) = plans(sides, shape, effort)?;
    let limit = answer_limit(effort, best);
    let round_takes: Duration = plans.iter().flatten().map(|plan| plan.takes).sum();
    let affordable = effort.row.as_secs_f64() / round_takes.as_secs_f64().max(1e-6);
    let rounds = (affordable as u32).clamp(effort.rounds_min, effort.rounds_max) as usize;
    let mut progress: Vec<Progress> = sides.iter().map(|_| Progress::default()).collect();
    for round in 0..rounds {
        for turn in 0..sides.len() {
            // No library always follows the same other one.
            let at = (round + turn) % sides.len();
            let (side, done) = (&mut sides[at], &mut progress[at]);
            let Ok(plan) = &plans[at] else { continue };
            if !side.is_ours && done.spent > effort.rival {
                continue;
            }
            let begin = Instant::now();
            match side.burst(Burst { shape, calls: plan.calls, limit: effort.burst }, limit)? {
                Ok(Figures { us, wrong }) => {
                    let us = us.unwrap_or_default();
                    done.bursts.push(Samples::new(us.clone()).median());
                    done.us.extend(us);
                    done.wrong += wrong;
                    done.spent += begin.elapsed();
                }
                Err(reason) => plans[at] = Err(reason),
            }
        }
    }
    let lane = |(plan, progress): (Found<Plan>, Progress)| {
        plan.map(|plan| Lane {
            samples: Samples::new(progress.us),
            bursts: progress.bursts,
            wrong: plan.wrong + progress.wrong,
        })
    };
    Ok(plans.into_iter().zip(progress).map(lane).collect())
}

/// What bursts are to be, and the pace of the best.
fn plans(
    sides: &mut [Entrant],
    shape: Shape,
    effort: Effort,
) -> Result<(Vec<Found<Plan>>, Option<Pace>)> {
    let mut best: Option<Pace> = None;
    let mut plans = Vec::new();
    for side in sides.iter_mut() {
        let plan = side.plan(shape, effort, best)?;
        if let Ok(Plan { median_us: us, takes, .. }) = plan
            && us > 0.0
            && best.is_none_or(|best| us < best.us)
        {
            best = Some(Pace { us, takes });
        }
        plans.push(plan);
    }
    // The best may have come after one that is too slow beside it.
    for (side, plan) in sides.iter_mut().zip(&mut plans).filter(|(side, _)| !side.is_ours) {
        let is_too_slow = |plan: &Plan| best.is_some_and(|best| best.excludes(plan.fastest_us));
        if plan.as_ref().is_ok_and(is_too_slow) {
            *plan = side.plan(shape, effort, best)?;
        }
    }
    Ok((plans, best))
}

/// Calls that take as long as a burst should, where so many took so long.
fn fitting(calls: u32, took: Duration) -> u32 {
    let fitting = f64::from(calls) * BURST.as_secs_f64() / took.as_secs_f64().max(1e-9);
    let least = if took > LONG { 1 } else { CALLS_MIN };
    (fitting as u32).clamp(least, CALLS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_take_about_the_same_time_whatever_a_call_takes() {
        assert_eq!(fitting(10, Duration::from_millis(1)), 100);
        assert_eq!(fitting(2, Duration::from_micros(1)), CALLS_MAX);
        assert_eq!(fitting(4, Duration::from_millis(100)), CALLS_MIN);
        assert_eq!(fitting(2, Duration::from_secs(1)), 1);
        assert_eq!(fitting(2, Duration::ZERO), CALLS_MAX);
    }

    #[test]
    fn fifty_times_as_long_as_the_best_is_too_slow() {
        let best = Pace { us: 4.0, takes: Duration::from_millis(1) };
        assert_eq!(best.too_slow(200.0, 0), None);
        let expected = NoResult::TooSlow { us: 400.0, times: 100.0, wrong: 3 };
        assert_eq!(best.too_slow(400.0, 3), Some(expected));
    }

    #[test]
    fn where_the_best_takes_long_others_may() {
        let pace = |secs| Some(Pace { us: 1.0, takes: Duration::from_secs(secs) });
        assert_eq!(answer_limit(QUICK, None), QUICK.answer);
        assert_eq!(answer_limit(QUICK, pace(2)), Duration::from_secs(40));
        assert_eq!(answer_limit(QUICK, pace(60)), jobs::LIMIT);
    }
}
