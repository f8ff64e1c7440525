//! The collective operations by name, without their algorithms.

use std::fmt;

/// What members do together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Everybody gets all contributions combined.
    Allreduce,
    /// The root gets all contributions combined.
    Reduce,
    /// Everybody gets what the root has.
    Broadcast,
    /// Each gets its block of all contributions combined.
    ReduceScatter,
    /// Everybody gets all blocks.
    Allgather,
    /// The root gets all blocks.
    Gather,
    /// Each gets its block of what the root has.
    Scatter,
    /// Each gets its block of what everybody has.
    Alltoall,
    /// Nobody leaves before all have come.
    Barrier,
}

impl Collective {
    /// All there are.
    pub const ALL: [Collective; 9] = [
        Collective::Allreduce,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::ReduceScatter,
        Collective::Allgather,
        Collective::Gather,
        Collective::Scatter,
        Collective::Alltoall,
        Collective::Barrier,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::Allreduce => "allreduce",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Allgather => "allgather",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::Alltoall => "alltoall",
            Collective::Barrier => "barrier",
        }
    }

    /// Whether contributions are combined.
    pub const fn reduces(self) -> bool {
        matches!(self, Collective::Allreduce | Collective::Reduce | Collective::ReduceScatter)
    }

    /// Whether one member has or gets everything.
    pub const fn is_rooted(self) -> bool {
        use Collective::{Broadcast, Gather, Reduce, Scatter};
        matches!(self, Reduce | Broadcast | Gather | Scatter)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
