//! A fused buffer that is freed in the middle of a step: behind the free nothing is written to
//! what was its memory, or the program's, whatever the other ranks do.

use super::*;
use gaspi_collectives::algorithms::Algorithm;
use gaspi_core::{Rank, Result, Timeout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Small ones that share a bucket, and some of several messages.
const COUNTS: [usize; 6] = [700, 3, 90_000, 17, 9000, 30_000];
/// The step in which one of them is freed.
const LAST: usize = 2;
/// What nobody computes, and what is changed by whatever is added.
const PATTERN: f32 = 0.123;

/// A rank in the round of a seed, which rank `freer` is to free early.
struct Round<'a> {
    rt: &'a Runtime,
    seed: usize,
    freer: usize,
    /// Ranks meet here without the library.
    together: &'a ranks::Barrier,
    /// Rank `freer` has freed its fused buffer.
    is_freed: &'a AtomicBool,
}

/// Memory of a tensor: where it begins, and its elements.
type Piece = (*mut u8, usize);

fn fill(pieces: &[Piece]) {
    for (start, count) in pieces {
        for at in 0..*count {
            // SAFETY: memory of this rank that nobody else is allowed to use.
            unsafe { start.cast::<f32>().add(at).write_volatile(PATTERN) };
        }
    }
}

/// The first element that has changed, if one has.
fn changed(pieces: &[Piece]) -> Option<(usize, usize)> {
    let is_changed = |start: *mut u8, at: usize| {
        // SAFETY: memory of this rank.
        unsafe { start.cast::<f32>().add(at).read_volatile() != PATTERN }
    };
    let of_piece = |(nth, (start, count)): (usize, &Piece)| {
        (0..*count).find(|at| is_changed(*start, *at)).map(|at| (nth, at))
    };
    pieces.iter().enumerate().find_map(of_piece)
}

impl Round<'_> {
    fn me(&self) -> usize {
        self.rt.rank().index()
    }

    fn ranks(&self) -> usize {
        self.rt.size() as usize
    }

    /// Hands a tensor over, from memory that is used for something else at once. An error says that
    /// the fused buffer has failed.
    fn submit(&self, fusion: &Fusion<'_>, tensor: usize, step: usize) -> Result<()> {
        let mut data = contribution(self.me(), tensor, step, COUNTS[tensor]);
        // SAFETY: as many elements as the tensor has.
        let submitted = unsafe { fusion.submit(tensor, data.as_ptr().cast(), 1.0) };
        fill(&[(data.as_mut_ptr().cast(), data.len())]);
        std::hint::black_box(&data);
        submitted
    }

    /// A step of all ranks, whose results are lent.
    fn whole_step(&self, fusion: &Fusion<'_>, step: usize) -> Vec<Piece> {
        (0..COUNTS.len()).for_each(|tensor| self.submit(fusion, tensor, step).expect("submitted"));
        let of_tensor = |(tensor, count)| {
            assert_eq!(wait(fusion, tensor, count), sum(self.ranks(), tensor, step, count));
            (fusion.result(tensor, LIMIT).expect("a result").cast_mut(), count)
        };
        COUNTS.into_iter().enumerate().map(of_tensor).collect()
    }

    /// Steps of all ranks. Results of the first one stay lent if that `lends`, so that the next
    /// one works in other memory. Returns that of both.
    fn whole_steps(&self, fusion: &Fusion<'_>, lends: bool) -> Vec<Piece> {
        let release = |lent: &[Piece]| {
            for (tensor, (lent, _)) in lent.iter().enumerate() {
                fusion.release(tensor, lent.cast_const()).expect("it was lent");
            }
        };
        let first = self.whole_step(fusion, 0);
        if !lends {
            release(&first);
            return first;
        }
        let other = self.whole_step(fusion, 1);
        assert!(first.iter().zip(&other).all(|(first, other)| first != other));
        release(&other);
        [first, other].concat()
    }

    /// Submits some tensors of a step, and frees. What was its memory is for this rank to use, as
    /// long as the others have not freed theirs.
    fn free_early(&self, fusion: Fusion<'_>, memory: &[Piece], some: &[usize]) {
        some.iter().for_each(|tensor| self.submit(&fusion, *tensor, LAST).expect("submitted"));
        drop(fusion);
        fill(memory);
        self.is_freed.store(true, Ordering::Release);
    }

    /// The others: they look for sums, and submit the rest once the other one is freed. What ends,
    /// ends well, or fails.
    fn go_on(&self, fusion: &Fusion<'_>, mut submitted: Result<()>, after: &[usize]) {
        while !self.is_freed.load(Ordering::Acquire) {
            // An error is looked at below; this is to drive what is under way.
            drop(fusion.next(Timeout::Millis(1)));
            std::thread::yield_now();
        }
        if submitted.is_ok() {
            submitted = after.iter().try_for_each(|tensor| self.submit(fusion, *tensor, LAST));
        }
        let mut outcomes = vec![submitted];
        for (tensor, count) in COUNTS.into_iter().enumerate() {
            let mut found = vec![f32::NAN; count];
            // SAFETY: as many elements as the tensor has.
            let waited = unsafe { fusion.wait(tensor, found.as_mut_ptr().cast(), LIMIT) };
            let is_right = |step| found == sum(self.ranks(), tensor, step, count);
            let is_right = [LAST, 1, 0].into_iter().any(is_right);
            let of_round = format!("GASPI_TEST_SEED={}, tensor {tensor}", self.seed);
            // A tensor that could not be submitted has the sum of the step before.
            assert!(waited.is_err() || is_right, "{of_round}: a wrong sum");
            outcomes.push(waited);
        }
        for error in outcomes.into_iter().filter_map(Result::err) {
            assert!(!error.is_timeout(), "GASPI_TEST_SEED={}: {error}", self.seed);
        }
    }

    fn run(&self) {
        let mut own = Random((self.seed * 64 + self.me()) as u64);
        let mut common = Random(self.seed as u64);
        // Whether the others are in the step already, and results are lent.
        let (is_begun, lends) = (common.below(2) == 0, common.below(2) == 0);
        let threshold = [0, 1 << 12, 32 << 10][common.below(3)];
        // The ring says ahead where data goes.
        let algorithm = [None, Some(Algorithm::Ring)][common.below(2)];
        let background = own.below(2) == 0;
        let options = Options { threshold, algorithm, background, ..Options::default() };
        let group = self.rt.group_create().expect("a group");
        (0..self.ranks()).for_each(|rank| {
            self.rt.group_add(group, Rank(rank as u16)).expect("a member");
        });
        self.rt.group_commit(group, LIMIT).expect("committed");
        let made = Fusion::create(self.rt, &floats(&COUNTS), group, &options, LIMIT);
        let fusion = made.expect("a fused buffer");
        let memory = self.whole_steps(&fusion, lends);
        let order = own.order(COUNTS.len());
        let is_freer = self.me() == self.freer;
        // Often that rank has submitted all, and the others have not: all is under way there.
        let some = match common.below(3) {
            0 => own.below(COUNTS.len() + 1),
            _ if is_freer => COUNTS.len(),
            _ => own.below(3),
        };
        let (before, after) = order.split_at(some);
        self.together.wait();
        let mut kept = None;
        if is_freer {
            if is_begun {
                self.together.wait();
            }
            self.free_early(fusion, &memory, before);
        } else {
            let submitted = before.iter().try_for_each(|t| self.submit(&fusion, *t, LAST));
            if is_begun {
                self.together.wait();
            }
            self.go_on(&fusion, submitted, after);
            kept = Some(fusion);
        }
        self.rt.barrier(ALL, LIMIT).expect("barrier");
        let found = if is_freer { changed(&memory) } else { None };
        assert!(
            found.is_none(),
            "GASPI_TEST_SEED={}: piece and element {found:?} were written behind the free; \
             submitted before: {before:?}, results lent: {lends}, others begun: {is_begun}",
            self.seed
        );
        self.together.wait();
        self.use_memory_again();
        drop(kept);
        self.rt.barrier(ALL, LIMIT).expect("barrier");
        self.rt.group_delete(group).expect("deleted");
    }

    /// Another fused buffer, while the others still hold the former one.
    fn use_memory_again(&self) {
        let other = create(self.rt, &floats(&COUNTS), &Options::default());
        for step in 0..2 {
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                submit(&other, tensor, &contribution(self.me(), tensor, step, count));
            }
            for (tensor, count) in COUNTS.into_iter().enumerate() {
                let found = wait(&other, tensor, count);
                let is_right = found == sum(self.ranks(), tensor, step, count);
                assert!(is_right, "GASPI_TEST_SEED={}: a wrong sum in used memory", self.seed);
            }
        }
    }
}

fn nothing_is_written_behind_a_free() {
    let first = std::env::var("GASPI_TEST_SEED").map_or(1, |text| text.parse().expect("a number"));
    let full = std::env::var_os("GASPI_TEST_FULL").is_some();
    for n in ranks::sizes(&[2, 4]) {
        let together = ranks::Barrier::new(n as usize);
        let seeds: std::ops::Range<usize> = first..first + if full { 40 } else { 3 };
        let is_freed: Vec<AtomicBool> = seeds.clone().map(|_| AtomicBool::new(false)).collect();
        ranks::run(n, |rt| {
            for (seed, is_freed) in seeds.clone().zip(&is_freed) {
                let freer = seed % n as usize;
                Round { rt, seed, freer, together: &together, is_freed }.run();
            }
        });
    }
}

tests! {
    DEVICES:
        nothing_is_written_behind_a_free;
    SEVERAL:
        nothing_is_written_behind_a_free;
}
