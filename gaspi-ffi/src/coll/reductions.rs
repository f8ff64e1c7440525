//! Reductions of the program, numbered by `gaspi_coll_op_create`.

use crate::error::Failure;
use crate::types::*;
use gaspi_collectives::{Reducer, ReductionFailed};
use gaspi_core::{Error, Extension, Runtime};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first number of a reduction: above all constants of the header.
const FIRST: gaspi_coll_op_t = 1 << 32;

/// The flags that there are.
const FLAGS: gaspi_uint = GASPI_COLL_OP_ORDERED | GASPI_COLL_OP_BACKGROUND;

/// The reductions of a rank.
#[derive(Debug)]
pub(crate) struct Reductions(Mutex<Table>);

#[derive(Debug)]
struct Table {
    known: HashMap<gaspi_coll_op_t, Reducer>,
    /// Numbers are not reused, so that the use of a freed one is noticed.
    next: gaspi_coll_op_t,
}

impl Extension for Reductions {}

impl Reductions {
    /// Those of this rank.
    pub(crate) fn of(rt: &Runtime) -> &Reductions {
        rt.extension(|| Reductions(Mutex::new(Table { known: HashMap::new(), next: FIRST })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, reducer: Reducer) -> gaspi_coll_op_t {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.known.insert(number, reducer);
        number
    }

    /// The reduction of that number.
    pub(crate) fn get(&self, op: gaspi_coll_op_t) -> Result<Reducer, Failure> {
        self.table().known.get(&op).cloned().ok_or_else(|| strange(op))
    }

    fn remove(&self, op: gaspi_coll_op_t) -> Result<(), Failure> {
        self.table().known.remove(&op).map(drop).ok_or_else(|| strange(op))
    }
}

/// The error for an unknown operation.
fn strange(op: gaspi_coll_op_t) -> Failure {
    const LAST: gaspi_coll_op_t = GASPI_OP_SUM as gaspi_coll_op_t;
    Failure::Rejected(match op {
        0..=LAST => {
            format!("operation {op} is one of gaspi_allreduce; use GASPI_COLL_OP_SUM to _AVERAGE")
        }
        FIRST.. => format!("operation {op} was not made by gaspi_coll_op_create, or freed"),
        _ => format!("operation {op} does not exist; use GASPI_COLL_OP_SUM to _AVERAGE"),
    })
}

/// A function of the program with its state.
struct Callback {
    function: unsafe extern "C" fn(
        *const c_void,
        *const c_void,
        *mut c_void,
        u64,
        gaspi_size_t,
        *mut c_void,
    ) -> gaspi_return_t,
    state: *mut c_void,
    element_size: gaspi_size_t,
}

// SAFETY: the header says that any thread may call the function with its state.
unsafe impl Send for Callback {}
// SAFETY: the header says that several threads may do so at once.
unsafe impl Sync for Callback {}

impl Callback {
    fn reduce(
        &self,
        left: &[u8],
        right: &[u8],
        result: &mut [u8],
        count: u64,
    ) -> Result<(), ReductionFailed> {
        // SAFETY: the program promises that its function reads `count` elements of the first two,
        // writes them to the third, and knows what its state is.
        let code = unsafe {
            (self.function)(
                left.as_ptr().cast(),
                right.as_ptr().cast(),
                result.as_mut_ptr().cast(),
                count,
                self.element_size,
                self.state,
            )
        };
        if code == GASPI_SUCCESS { Ok(()) } else { Err(ReductionFailed) }
    }
}

procedures! {
    /// gaspi_collectives.h: makes an operation of a function.
    fn coll_op_create(
        function: gaspi_coll_reduce_function_t,
        state: *mut c_void,
        element_size: gaspi_size_t,
        flags: gaspi_uint,
        op: *mut gaspi_coll_op_t,
    ) with rt {
        let out = out!(op);
        let function = function.ok_or(Failure::Null("function"))?;
        let element_bytes = u32::try_from(element_size).ok().filter(|size| *size > 0);
        let element_bytes = element_bytes.ok_or_else(|| Error::Size {
            size: element_size,
            reason: "an element has 1 to 2^32 - 1 bytes".to_owned(),
        })?;
        if flags & !FLAGS != 0 {
            return Err(Failure::Rejected(format!(
                "flags {flags:#x}: there are GASPI_COLL_OP_ORDERED and GASPI_COLL_OP_BACKGROUND"
            )));
        }
        let callback = Callback { function, state, element_size };
        let reducer = Reducer {
            reduce: Arc::new(move |left: &[u8], right: &[u8], result: &mut [u8], count| {
                callback.reduce(left, right, result, count)
            }),
            element_bytes,
            ordered: flags & GASPI_COLL_OP_ORDERED != 0,
            background: flags & GASPI_COLL_OP_BACKGROUND != 0,
        };
        out.set(Reductions::of(rt).add(reducer));
        Ok(())
    }

    /// gaspi_collectives.h: ends the use of such an operation.
    fn coll_op_free(op: gaspi_coll_op_t) with rt {
        Reductions::of(rt).remove(op)
    }
}
