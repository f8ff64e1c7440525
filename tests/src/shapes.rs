//! Jobs of which several ranks share each of several nodes or hosts.

use std::fmt;

use crate::{Seed, is_full};

/// So many nodes of so many ranks each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many nodes.
    pub nodes: usize,
    /// How many ranks each of them has.
    pub each: usize,
}

/// The last one is for the full tier.
const SHAPES: [Shape; 3] =
    [Shape { nodes: 2, each: 3 }, Shape { nodes: 9, each: 2 }, Shape { nodes: 24, each: 2 }];

impl Shape {
    /// Those of this tier.
    pub fn all() -> &'static [Shape] {
        if is_full() { &SHAPES } else { &SHAPES[..2] }
    }

    /// How many ranks there are together.
    pub fn ranks(self) -> usize {
        self.nodes * self.each
    }

    /// The node of each rank: one node after the other is filled, or all of them in turn.
    pub fn places(self, seed: &mut Seed) -> Vec<usize> {
        let in_turn = seed.below(2) == 1;
        let node = |rank| if in_turn { rank % self.nodes } else { rank / self.each };
        (0..self.ranks()).map(node).collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-of-{}", self.nodes, self.each)
    }
}

/// Says over which nodes the ranks of a program are spread that takes its job from
/// [`job_over_nodes`]: a number of them, or `pairs`.
pub const NODES: &str = "GASPI_TEST_NODES";

/// The job that this process is a rank of. With [`NODES`] ranks of different nodes share no memory.
///
/// # Errors
/// As `Job::from_environment`.
pub fn job_over_nodes() -> gaspi::Result<gaspi::Job> {
    let job = gaspi::Job::from_environment()?;
    let Ok(nodes) = std::env::var(NODES) else { return Ok(job) };
    let rank: u64 = std::env::var("GASPI_RANK").ok().and_then(|r| r.parse().ok()).unwrap_or(0);
    Ok(job.on_node(nodes.parse().map_or(rank / 2, |nodes: u64| rank % nodes)))
}
