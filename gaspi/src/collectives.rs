//! Operations that all ranks of a group call together (GASPI 17.1, chapter 11).
//!
//! [`Runtime::barrier`](crate::Runtime::barrier) and the all-reduces are those of the standard:
//! [`allreduce_slice`] and [`allreduce_in_place`] for elements that have an [`Operation`],
//! [`allreduce_user`] for a function of the program. They take at most
//! [`Config::allreduce_elem_max`](crate::Config) elements.
//!
//! [`run`], [`start`] and [`prepare`] go beyond the standard: a [`Request`] or [`TypedRequest`]
//! names any [`Collective`], on memory of any kind and length. `run` waits. `start` gives a
//! [`Started`], which is waited for. `prepare` gives a [`Prepared`], which can be started again and
//! again. They own their memory, or borrow it in a [`scope`].
//!
//! [`run_broadcast_list`] gives many pieces of memory to all, such as the weights of a model.
//!
//! [`fusion`] sums many tensors in few all-reduces, in whatever order they become ready.
//!
//! All ranks of the group have to call the same operation with fitting arguments. After a timeout
//! the same call continues.
//!
//! # Errors
//! [`Error::Mismatch`](crate::Error::Mismatch) names ranks that called something else,
//! [`Error::Reduction`](crate::Error::Reduction) a rank whose function failed,
//! [`Error::RankDied`](crate::Error::RankDied) a rank that died. After ranks that differed or died
//! [`run`], [`start`], [`prepare`] and [`fusion`] need a new group; barrier and all-reduces of the
//! standard go on after ranks that differed.
//!
//! # Example
//! ```
//! use gaspi::collectives::{Operation, allreduce_slice};
//! use gaspi::{Config, GroupId, Job, PendingInit, Timeout};
//!
//! let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
//! let mine = [f64::from(rt.rank().0), 1.0];
//! let mut sum = [0.0; 2];
//! allreduce_slice(&rt, &mine, &mut sum, Operation::Sum, GroupId::ALL, Timeout::Block)?;
//! assert_eq!(sum[1], f64::from(rt.size()));
//! rt.barrier(GroupId::ALL, Timeout::Block)?;
//! # Ok::<(), gaspi::Error>(())
//! ```

#[doc(inline)]
pub use gaspi_collectives::algorithms::{Algorithm, Collective};
#[doc(inline)]
pub use gaspi_collectives::fusion;
#[doc(inline)]
pub use gaspi_collectives::{
    Blocks, BroadcastList, Combination, DataType, Element, Mode, NotStarted, Operand, Operation,
    Piece, Prepared, Reduce, Reducer, ReductionFailed, Request, Scope, Started, TypedRequest,
    UserReduce, allreduce, allreduce_in_place, allreduce_slice, allreduce_user, bf16, f16, prepare,
    prepare_raw, run, run_broadcast_list, scope, start, start_broadcast_list_raw, start_raw,
};
