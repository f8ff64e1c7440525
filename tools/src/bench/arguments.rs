//! The tests of the command line, and their options.

use crate::elements::{Op, Type};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::text::parse_size;
use crate::transport::Choice;
use clap::{Args, Subcommand, ValueEnum};

/// What is measured.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Test {
    /// What the hardware gives: hand-over of lines, atomics, copies, additions, switches
    Limits(Sizes),
    /// gaspi_write: the call, and call and gaspi_wait
    WriteLat(Paired),
    /// gaspi_write: bandwidth
    WriteBw(Bandwidth),
    /// gaspi_read and gaspi_wait
    ReadLat(Paired),
    /// gaspi_read: bandwidth
    ReadBw(Paired),
    /// gaspi_write_notify, one way, and with the data taken over by the target
    WriteNotifyLat(Notified),
    /// gaspi_notify, gaspi_notify_waitsome on an id that is not set, gaspi_notify_reset
    NotifyRate(Plain),
    /// Writes per second, of one thread or several, each with a queue of its own
    WriteRate(Rate),
    /// gaspi_atomic_fetch_add and gaspi_atomic_compare_swap on a peer
    AtomicLat(Plain),
    /// gaspi_passive_send and gaspi_passive_receive, one way
    PassiveLat(Sizes),
    /// gaspi_barrier, back to back
    Barrier(Plain),
    /// gaspi_allreduce of the standard: doubles, sum, back to back
    AllreduceStandard(Sizes),
    /// gaspi_coll_allreduce: all ranks get the combination of all contributions
    Allreduce(Reducing),
    /// gaspi_coll_reduce: the root gets it
    Reduce(Reducing),
    /// gaspi_coll_broadcast: all get what the root has
    Broadcast(DataCollective),
    /// gaspi_coll_reduce_scatter: each gets a block of the combination
    #[command(alias = "reduce_scatter")]
    ReduceScatter(Reducing),
    /// gaspi_coll_allgather: all get the blocks of all
    Allgather(DataCollective),
    /// gaspi_coll_allgatherv: the same with blocks of two lengths
    Allgatherv(DataCollective),
    /// gaspi_coll_gather: the root gets the blocks of all
    Gather(DataCollective),
    /// gaspi_coll_scatter: each gets a block of the root
    Scatter(DataCollective),
    /// gaspi_coll_alltoall: each gets a block of each
    Alltoall(DataCollective),
    /// gaspi_coll_alltoallv: the same with blocks of two lengths
    Alltoallv(DataCollective),
    /// gaspi_fusion_*: a step of many tensors beside one all-reduce of as many bytes
    Fusion(FusedStep),
    /// gaspi_coll_broadcast_list: many pieces beside one broadcast of as many bytes
    #[command(alias = "broadcast_list")]
    BroadcastList(Pieces),
    /// Start of a job, its memory, and what cycles of segments and queues take
    Init(Init),
    /// Every test but fusion and broadcast-list with its default sizes
    All(All),
}

/// What every test takes.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Plain {
    /// Start this program as a job of N ranks under gaspi_run
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=65535),
        allow_negative_numbers = true
    )]
    pub(crate) ranks: Option<u32>,

    /// Where ranks run: one core each in turn, or wherever the kernel puts them
    #[arg(long, value_enum)]
    pub(crate) bind: Option<Bind>,

    /// How ranks reach each other [default: what GASPI_TRANSPORT says, else auto]
    #[arg(long, value_enum)]
    pub(crate) transport: Option<Choice>,

    /// Operations that are measured for each row [default: by size]
    #[arg(long, value_name = "N", value_parser = count, allow_negative_numbers = true)]
    pub(crate) iterations: Option<usize>,

    /// Operations before those [default: a tenth]
    #[arg(long, value_name = "N", value_parser = count_or_none, allow_negative_numbers = true)]
    pub(crate) warmup: Option<usize>,

    /// Compare the data after every batch instead of once for each row
    #[arg(long)]
    pub(crate) check: bool,

    /// More columns: the 90th and the 99.9th percentile
    #[arg(long)]
    pub(crate) percentiles: bool,

    /// One JSON object for each row, and nothing else
    #[arg(long)]
    pub(crate) json: bool,

    /// Say for each row that has a goal whether it is reached
    #[arg(long)]
    pub(crate) goals: bool,
}

/// A choice for `--bind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Bind {
    /// Rank r on the r-th usable core, and round again
    Core,
    /// To the cores of a NUMA node
    Numa,
    /// Not at all
    None,
}

impl Bind {
    /// As gaspi_run spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bind::Core => "core",
            Bind::Numa => "numa",
            Bind::None => "none",
        }
    }
}

/// A test with sizes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sizes {
    #[command(flatten)]
    pub(crate) plain: Plain,

    /// Sizes in bytes, with K, M or G for powers of 1024: 8,1K,1M
    #[arg(
        long,
        short = 's',
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_size,
        allow_hyphen_values = true,
        conflicts_with_all = ["begin", "end", "factor"]
    )]
    pub(crate) sizes: Vec<usize>,

    /// Smallest size of a series
    #[arg(short = 'b', long = "begin", value_name = "SIZE", value_parser = parse_size,
          allow_hyphen_values = true)]
    pub(crate) begin: Option<usize>,

    /// Largest size of a series
    #[arg(short = 'e', long = "end", value_name = "SIZE", value_parser = parse_size,
          allow_hyphen_values = true)]
    pub(crate) end: Option<usize>,

    /// From one size of a series to the next
    #[arg(short = 'f', long = "factor", value_name = "N", value_parser = factor,
          allow_negative_numbers = true)]
    pub(crate) factor: Option<usize>,

    /// Rotate through buffers that are larger than the caches
    #[arg(long)]
    pub(crate) cold: bool,
}

/// A test between pairs of ranks.
#[derive(Debug, Clone, Args)]
pub(crate) struct Paired {
    #[command(flatten)]
    pub(crate) sizes: Sizes,

    /// Pairs of ranks at once: 0 and 1, 2 and 3, ...
    #[arg(long, value_name = "N", default_value = "1", value_parser = count,
          allow_negative_numbers = true)]
    pub(crate) pairs: usize,
}

/// `write-bw`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Bandwidth {
    #[command(flatten)]
    pub(crate) paired: Paired,

    /// Both ranks of a pair write at once, and bytes of both count
    #[arg(long)]
    pub(crate) both_ways: bool,

    /// Queues that requests of --both-ways go through in turn
    #[arg(
        long,
        value_name = "N",
        default_value = "4",
        requires = "both_ways",
        value_parser = clap::value_parser!(u8).range(1..=8),
        allow_negative_numbers = true
    )]
    pub(crate) queues: u8,
}

/// `write-notify-lat`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Notified {
    #[command(flatten)]
    pub(crate) paired: Paired,

    /// With a target that sleeps: each message is sent so many microseconds after the one before
    /// arrived [400 if not said]
    #[arg(
        long,
        value_name = "US",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "400",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub(crate) sleeping: Option<u32>,
}

/// `write-rate`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Rate {
    #[command(flatten)]
    pub(crate) paired: Paired,

    /// Threads of rank 0 at once, measured against one of them
    #[arg(long, value_name = "T", default_value = "1", value_parser = count,
          allow_negative_numbers = true)]
    pub(crate) threads: usize,
}

/// A collective operation that moves data.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataCollective {
    #[command(flatten)]
    pub(crate) sizes: Sizes,

    /// Type of the elements
    #[arg(short = 'd', long = "type", value_enum, default_value = "f32")]
    pub(crate) ty: Type,

    /// The algorithm [default: what the library chooses]; `all`: what it chooses, beside all that
    /// serve
    #[arg(long, value_name = "NAME")]
    pub(crate) algorithm: Option<String>,

    /// What bits may depend on [default: what GASPI_COLL_MODE says]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<Modes>,

    /// Beside writes from each rank to the next, of as many bytes as a rank has to send
    #[arg(long)]
    pub(crate) point_to_point: bool,

    /// The result goes where the contribution lies
    #[arg(long)]
    pub(crate) in_place: bool,

    /// Where the buffers lie
    #[arg(long, value_enum, default_value = "segment")]
    pub(crate) memory: Place,

    /// The rank that has or gets everything, in operations that have one
    #[arg(
        long,
        value_name = "RANK",
        default_value = "0",
        value_parser = clap::value_parser!(u32).range(..65536),
        allow_negative_numbers = true
    )]
    pub(crate) root: u32,
}

impl DataCollective {
    /// Options as if nothing had been asked for.
    pub(crate) fn default_with(plain: &Plain, cold: bool) -> DataCollective {
        DataCollective {
            sizes: Sizes::default_with(plain, cold),
            ty: Type::F32,
            algorithm: None,
            mode: None,
            point_to_point: false,
            in_place: false,
            memory: Place::Segment,
            root: 0,
        }
    }

    fn memory(&self) -> &'static str {
        match self.memory {
            Place::Segment => "segments",
            Place::Private => "private memory",
        }
    }
}

/// A collective operation that combines data.
#[derive(Debug, Clone, Args)]
pub(crate) struct Reducing {
    #[command(flatten)]
    pub(crate) options: DataCollective,

    /// How elements are combined
    #[arg(short = 'o', long, value_enum, default_value = "sum")]
    pub(crate) op: Op,
}

/// The modes of a collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Modes {
    /// On anything
    Fast,
    /// Not on memory, cores or who comes first
    Stable,
    /// The stable mode beside the fast one
    Both,
}

/// Where the buffers of a collective operation lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Place {
    /// In a segment, which other ranks of the machine map
    Segment,
    /// In memory of the program
    Private,
}

impl Place {
    /// As the command line spells it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Segment => "segment",
            Place::Private => "private",
        }
    }
}

/// `broadcast-list`, and what `fusion` has in common with it.
#[derive(Debug, Clone, Args)]
pub(crate) struct Pieces {
    #[command(flatten)]
    pub(crate) plain: Plain,

    /// resnet50, lenet, deep or transformer; NxELEMENTS; or a file of numbers of elements
    #[arg(long, value_name = "LIST", default_value = "resnet50")]
    pub(crate) tensors: String,
}

/// `fusion`.
#[derive(Debug, Clone, Args)]
pub(crate) struct FusedStep {
    #[command(flatten)]
    pub(crate) all: Pieces,

    /// The order in which ranks submit them; random: another one on each rank and in each step
    #[arg(long, value_enum, default_value = "reverse")]
    pub(crate) order: TensorOrder,

    /// Microseconds that each rank computes in a step, between the submits
    #[arg(long, value_name = "US", default_value = "0", allow_negative_numbers = true)]
    pub(crate) compute: u32,

    /// Only the program's threads carry all-reduces on
    #[arg(long)]
    pub(crate) no_background: bool,

    /// A bucket grows while it has fewer bytes
    #[arg(long, value_name = "SIZE", default_value = "32K", value_parser = threshold,
          allow_hyphen_values = true)]
    pub(crate) threshold: usize,

    /// Also a step whose values travel as this type, beside one whose values travel as f32
    #[arg(long, value_enum)]
    pub(crate) wire: Option<Wire>,

    /// Also a step in the stable mode, beside one in the fast mode
    #[arg(long)]
    pub(crate) stable: bool,
}

/// A choice for `--wire`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wire {
    /// IEEE 754 of 16 bits
    F16,
    /// The upper half of an f32
    Bf16,
}

/// A choice for `--order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TensorOrder {
    /// As they are declared
    Forward,
    /// The last one first
    Reverse,
    /// Any
    Random,
}

fn threshold(text: &str) -> std::result::Result<usize, String> {
    if text == "0" { Ok(0) } else { parse_size(text) }
}

/// `init`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Init {
    #[command(flatten)]
    pub(crate) plain: Plain,

    /// Jobs that are started one after another
    #[arg(long, value_name = "N", default_value = "10", value_parser = count,
          allow_negative_numbers = true)]
    pub(crate) jobs: usize,

    /// Only the start, without the cycles of segments and queues
    #[arg(long)]
    pub(crate) no_cycles: bool,

    /// What a peer costs in private memory: from jobs of N and of 2 N ranks that connect on first
    /// use
    #[arg(long, requires = "ranks")]
    pub(crate) peers: bool,
}

/// `all`.
#[derive(Debug, Clone, Args)]
pub(crate) struct All {
    #[command(flatten)]
    pub(crate) plain: Plain,

    /// Rotate through buffers that are larger than the caches
    #[arg(long)]
    pub(crate) cold: bool,
}

impl Test {
    /// As it is called on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Test::Limits(_) => "limits",
            Test::WriteLat(_) => "write-lat",
            Test::WriteBw(_) => "write-bw",
            Test::ReadLat(_) => "read-lat",
            Test::ReadBw(_) => "read-bw",
            Test::WriteNotifyLat(_) => "write-notify-lat",
            Test::NotifyRate(_) => "notify-rate",
            Test::WriteRate(_) => "write-rate",
            Test::AtomicLat(_) => "atomic-lat",
            Test::PassiveLat(_) => "passive-lat",
            Test::Barrier(_) => "barrier",
            Test::AllreduceStandard(_) => "allreduce-standard",
            Test::Allreduce(_) => "allreduce",
            Test::Reduce(_) => "reduce",
            Test::Broadcast(_) => "broadcast",
            Test::ReduceScatter(_) => "reduce-scatter",
            Test::Allgather(_) => "allgather",
            Test::Allgatherv(_) => "allgatherv",
            Test::Gather(_) => "gather",
            Test::Scatter(_) => "scatter",
            Test::Alltoall(_) => "alltoall",
            Test::Alltoallv(_) => "alltoallv",
            Test::Fusion(_) => "fusion",
            Test::BroadcastList(_) => "broadcast-list",
            Test::Init(_) => "init",
            Test::All(_) => "all",
        }
    }

    /// The options of a collective operation that moves data, if it is one.
    fn data_collective(&self) -> Option<&DataCollective> {
        match self {
            Test::Allreduce(reducing) | Test::Reduce(reducing) | Test::ReduceScatter(reducing) => {
                Some(&reducing.options)
            }
            Test::Broadcast(options)
            | Test::Allgather(options)
            | Test::Allgatherv(options)
            | Test::Gather(options)
            | Test::Scatter(options)
            | Test::Alltoall(options)
            | Test::Alltoallv(options) => Some(options),
            _ => None,
        }
    }

    /// Which memory is used, and in which state.
    pub(crate) fn memory(&self) -> String {
        let place = match self {
            Test::BroadcastList(_) => "private memory",
            test => test.data_collective().map_or("segments", DataCollective::memory),
        };
        let cold = match self {
            Test::Limits(sizes) | Test::PassiveLat(sizes) | Test::AllreduceStandard(sizes) => {
                sizes.cold
            }
            Test::WriteLat(paired) | Test::ReadLat(paired) | Test::ReadBw(paired) => {
                paired.sizes.cold
            }
            Test::WriteBw(bandwidth) => bandwidth.paired.sizes.cold,
            Test::WriteNotifyLat(notified) => notified.paired.sizes.cold,
            Test::WriteRate(rate) => rate.paired.sizes.cold,
            Test::All(all) => all.cold,
            test => test.data_collective().is_some_and(|options| options.sizes.cold),
        };
        if cold {
            let mib = machine::cold_span() >> 20;
            format!("cold: {place}, rotating through {mib} MiB")
        } else {
            format!("warm: {place}, the same buffers every time")
        }
    }

    /// The options that every test has.
    pub(crate) fn plain(&self) -> &Plain {
        match self {
            Test::Limits(sizes) | Test::PassiveLat(sizes) | Test::AllreduceStandard(sizes) => {
                &sizes.plain
            }
            Test::Allreduce(reducing) | Test::Reduce(reducing) | Test::ReduceScatter(reducing) => {
                &reducing.options.sizes.plain
            }
            Test::Broadcast(options)
            | Test::Allgather(options)
            | Test::Allgatherv(options)
            | Test::Gather(options)
            | Test::Scatter(options)
            | Test::Alltoall(options)
            | Test::Alltoallv(options) => &options.sizes.plain,
            Test::WriteLat(paired) | Test::ReadLat(paired) | Test::ReadBw(paired) => {
                &paired.sizes.plain
            }
            Test::WriteBw(bandwidth) => &bandwidth.paired.sizes.plain,
            Test::WriteNotifyLat(notified) => &notified.paired.sizes.plain,
            Test::NotifyRate(plain) | Test::AtomicLat(plain) | Test::Barrier(plain) => plain,
            Test::WriteRate(rate) => &rate.paired.sizes.plain,
            Test::Fusion(step) => &step.all.plain,
            Test::BroadcastList(pieces) => &pieces.plain,
            Test::Init(init) => &init.plain,
            Test::All(all) => &all.plain,
        }
    }
}

impl Sizes {
    /// The sizes that were asked for, or `default`.
    pub(crate) fn sizes(&self, default: &[usize]) -> Result<Vec<usize>> {
        if !self.sizes.is_empty() {
            return Ok(self.sizes.clone());
        }
        if self.begin.is_none() && self.end.is_none() && self.factor.is_none() {
            return Ok(default.to_vec());
        }
        let first = self.begin.or(default.first().copied()).unwrap_or(8);
        let last = self.end.or(default.last().copied()).unwrap_or(first).max(first);
        if self.end.is_some_and(|end| end < first) {
            return Err(Failure::usage(format!(
                "the series of sizes begins with {first} and is to end with {last}, which is less"
            )));
        }
        let factor = self.factor.unwrap_or(2);
        Ok(std::iter::successors(Some(first), |size| size.checked_mul(factor))
            .take_while(|size| *size <= last)
            .collect())
    }

    /// Options as if nothing had been asked for.
    pub(crate) fn default_with(plain: &Plain, cold: bool) -> Sizes {
        Sizes { plain: plain.clone(), sizes: vec![], begin: None, end: None, factor: None, cold }
    }
}

fn count(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=1_000_000_000).contains(&number) => Ok(number),
        _ => Err("a number from 1 to 1000000000 is wanted".into()),
    }
}

fn count_or_none(text: &str) -> std::result::Result<usize, String> {
    if text == "0" { Ok(0) } else { count(text) }
}

fn factor(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(number) if (2..=1 << 20).contains(&number) => Ok(number),
        _ => Err("a factor is a number from 2 on".into()),
    }
}
