//! Lists of pieces (gaspi_coll_broadcast_list): the weights of a model, from the first rank to all,
//! beside one broadcast of as many bytes. Both are in private memory, as weights are.

use super::{FLOAT, GROUP_ALL, TYPE_F32, carried, schedule, without};
use crate::arguments::Pieces;
use crate::failure::Result;
use crate::job::{Job, LIMIT_MS};
use crate::library::{Collectives, Lists, Options, Piece};
use crate::measure::{Lane, interleave, timed};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::tensors;
use std::cell::RefCell;
use std::ffi::c_void;

const ROOT: u16 = 0;

/// The weights of this rank.
struct Weights<'a> {
    job: &'a Job,
    one: Collectives,
    list: Lists,
    /// A piece for each tensor, and all of them in one.
    pieces: RefCell<Vec<Vec<f32>>>,
    whole: RefCell<Vec<f32>>,
}

/// Whole numbers that differ by piece and place.
fn value(piece: usize, index: usize) -> f32 {
    ((piece * 31 + index) % 1009 + 1) as f32
}

impl Weights<'_> {
    /// All pieces in one call.
    fn broadcast_pieces(&self) -> Result<()> {
        let mut pieces = self.pieces.borrow_mut();
        let list: Vec<Piece> = pieces.iter_mut().map(|piece| Piece::of(piece, TYPE_F32)).collect();
        let (num, options) = (list.len() as u64, Options::of(None, 0));
        // SAFETY: as many pieces as it says, of memory that nobody else uses.
        let status = unsafe {
            let options = &raw const options;
            (self.list.broadcast)(list.as_ptr(), num, ROOT, GROUP_ALL, options, LIMIT_MS)
        };
        self.job.call("gaspi_coll_broadcast_list", status)
    }

    /// As many bytes that lie together.
    fn broadcast_whole(&self) -> Result<()> {
        let mut whole = self.whole.borrow_mut();
        let (count, options) = (whole.len() as u64, Options::of(None, 0));
        let data: *mut c_void = whole.as_mut_ptr().cast();
        // SAFETY: so many elements, which nobody else uses.
        let status = unsafe {
            let options = &raw const options;
            (self.one.broadcast)(data, data, count, TYPE_F32, ROOT, GROUP_ALL, options, LIMIT_MS)
        };
        self.job.call("gaspi_coll_broadcast", status)
    }

    /// Gives the root what all are to get, and the others something else.
    fn fill(&self) {
        let is_root = self.job.rank == usize::from(ROOT);
        for (piece, elements) in self.pieces.borrow_mut().iter_mut().enumerate() {
            for (index, element) in elements.iter_mut().enumerate() {
                *element = if is_root { value(piece, index) } else { 0.0 };
            }
        }
    }

    /// Elements of pieces that do not arrive.
    fn wrong(&self) -> Result<u64> {
        self.fill();
        self.broadcast_pieces()?;
        let pieces = self.pieces.borrow();
        let wrong_of = |(piece, elements): (usize, &Vec<f32>)| {
            let wrong = |(index, found): &(usize, &f32)| **found != value(piece, *index);
            elements.iter().enumerate().filter(wrong).count() as u64
        };
        Ok(pieces.iter().enumerate().map(wrong_of).sum())
    }
}

pub(crate) fn broadcast_list(job: &Job, wanted: &Pieces, report: &mut Report) -> Result<()> {
    let one = job.extensions.collectives.ok_or_else(|| without(job, "gaspi_coll_*"))?;
    let list = job.extensions.lists.ok_or_else(|| without(job, "gaspi_coll_broadcast_list"))?;
    let counts = tensors::counts(&wanted.tensors)?;
    let elements = counts.iter().sum();
    let pieces = RefCell::new(counts.iter().map(|count| vec![1.0; *count]).collect());
    let weights = Weights { job, one, list, pieces, whole: RefCell::new(vec![1.0; elements]) };
    let bytes = elements * FLOAT;
    let measured = {
        let mut lanes = [
            Lane::new(|batch| timed(batch, || weights.broadcast_whole()).map(Some)),
            Lane::new(|batch| timed(batch, || weights.broadcast_pieces()).map(Some)),
        ];
        let schedule = schedule(&wanted.plain, bytes);
        interleave(job, job.ranks, schedule, &mut lanes, |_| weights.wrong())?
    };
    let of_one = carried(job, bytes, || weights.broadcast_whole())?;
    let of_pieces = carried(job, bytes, || weights.broadcast_pieces())?;
    let [whole, pieces] = [0, 1].map(|lane| measured.samples[lane].clone());
    let limit = whole.median();
    let row = |variant, samples| Row::new("broadcast-list", variant, samples).size(bytes);
    let of_pieces = row("pieces", pieces).errors(measured.errors).carried(of_pieces);
    let rows = [row("one", whole).carried(of_one), of_pieces.limit("one broadcast", limit)];
    if job.rank == 0 {
        rows.iter().try_for_each(|row| report.row(Layout::Step, row))?;
    }
    Ok(())
}
