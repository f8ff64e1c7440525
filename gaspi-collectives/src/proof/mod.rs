//! Proves steps: runs those of all members on symbolic contents and reports the first thing that is
//! wrong.
//!
//! What it proves, for the calls it is given, one after the other on the same channel:
//! - each member ends with what it should have in each element: every contribution exactly once, in
//!   order where that is asked for, combined in the same way for all members (equal bits), finished
//!   exactly once; or the right element of the right member;
//! - nothing is read before it was written, nothing is overwritten while it is still needed: any
//!   two accesses to one element of which one writes are ordered by messages, arrivals and awaits
//!   (happens-before, with vector clocks), so the order in which the members happen to run here
//!   does not matter, and one run stands for all. What a message that is not `copied` carries
//!   counts as being read until the receiver took it;
//! - where that is asked for, no output is written before its member has heard of all others;
//! - input is not modified out of place; at the return nobody may touch a caller's buffers any
//!   more;
//! - progress: steps only wait, never choose, so one run to the end shows that all end. More slots
//!   never make a member wait that does not wait with fewer, so one slot stands for any number;
//! - the discipline of messages (length, none left over or taken by another call) and lines (each
//!   arrival is awaited before the next one, own stage and lines only).
//!
//! Data is tracked by element; what a combination consists of is interned, so that comparing two of
//! them compares two numbers. [`memory`] holds the elements, [`value`] what they hold.

mod access;
mod memory;
mod run;
mod value;

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use crate::collective::Collective;
use crate::steps::{Shape, Step};
use run::Run;
use value::Value;

type Checked<T = ()> = Result<T, String>;

/// One call of a collective by all members.
#[derive(Clone, Debug)]
pub struct Call {
    /// What they do.
    pub collective: Collective,
    /// The shape of each member.
    pub shapes: Vec<Shape>,
    /// The steps of each member.
    pub programs: Vec<Vec<Step>>,
    /// Whether input and output share memory, see [`Place::Output`].
    pub in_place: bool,
    /// Whether contributions have to be combined in the order of the members.
    pub in_order: bool,
    /// Whether a member writes its output only where it knows that all others have begun the call.
    pub agrees: bool,
}

/// What is wrong, where: "member 2, call 0, step 5: ...".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The member that noticed.
    pub member: u32,
    /// Its call, from 0.
    pub call: usize,
    /// Its step.
    pub step: usize,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}, call {}, step {}: {}", self.member, self.call, self.step, self.what)
    }
}

impl std::error::Error for Fault {}

/// Proves calls that follow each other, of the same members over a channel with that many slots.
///
/// # Errors
/// The first [`Fault`] found.
pub fn prove(calls: &[Call], slots: u32) -> Result<(), Fault> {
    Run::new(calls, slots).finish()
}

/// Proves a call, and says of each element of each member's result how contributions were combined:
/// each pair of parentheses is a pass over memory, at whose end halves are rounded. Equal words
/// mean equal bits.
///
/// # Errors
/// The first [`Fault`] found.
pub fn combinations(call: &Call, slots: u32) -> Result<Vec<Vec<Rc<str>>>, Fault> {
    let mut run = Run::new(std::slice::from_ref(call), slots);
    run.finish()?;
    let mut known = HashMap::new();
    let mut words = |value: &Value| {
        let combination = || run.values.combination(*value).into();
        Rc::clone(known.entry(value.combined()).or_insert_with(combination))
    };
    let of_member = |values: &Vec<Value>| values.iter().map(&mut words).collect();
    Ok(run.results.iter().map(of_member).collect())
}

#[cfg(test)]
mod tests;
