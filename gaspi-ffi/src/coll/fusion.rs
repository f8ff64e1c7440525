//! Fused buffers of gaspi_collectives.h.

use super::arguments::{algorithm, data_type, mode, operation, read_options, strange_type};
use crate::error::{Failure, Outcome, boundary};
use crate::runtime::{hold, timeout};
use crate::types::*;
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::fusion::handles::{self, Handle};
use gaspi_collectives::fusion::{Fusion, OnEnd, Options, Order, Tensor};
use gaspi_core::os::cancel;
use gaspi_core::{GroupId, Result, Runtime};
use std::ffi::{CStr, c_int, c_void};
use std::sync::Arc;

/// What C passes for a fused buffer, with the program's numbers checked.
///
/// # Safety
/// `options` is null or as the header says.
unsafe fn options(options: *const gaspi_fusion_options_t) -> Result<Options, Failure> {
    if options.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: the caller's promise.
    let given = unsafe {
        read_options(options, "gaspi_fusion_options_t", "begin with GASPI_FUSION_OPTIONS_INIT")
    }?;
    let rejected = |reason: String| Failure::Rejected(format!("options: {reason}"));
    let Some(operation) = operation(given.op) else {
        return Err(rejected(format!(
            "op {} is none of GASPI_COLL_OP_SUM, _AVERAGE, _MIN, _MAX",
            given.op
        )));
    };
    let order = match given.order {
        GASPI_FUSION_DECLARED => Order::Declared,
        GASPI_FUSION_REVERSE => Order::Reverse,
        order => return Err(rejected(format!("order {order} does not exist"))),
    };
    let wire = match given.wire {
        0 => None,
        wire => Some(data_type(wire).ok_or_else(|| strange_type(wire))?),
    };
    if given.background > 1 || given.reserved != 0 {
        return Err(rejected(format!(
            "background is {}, reserved is {}; they have to be 0 or 1, and 0",
            given.background, given.reserved
        )));
    }
    let algorithm = if given.algorithm.is_null() {
        None
    } else {
        // SAFETY: the header asks for a text that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(given.algorithm) };
        Some(algorithm(Collective::Allreduce, &name.to_string_lossy())?)
    };
    Ok(Options {
        operation,
        order,
        threshold: given.threshold,
        limit: (given.limit > 0).then_some(given.limit),
        contributions: given.contributions,
        wire,
        algorithm,
        mode: mode(given.mode)?,
        background: given.background == 1,
    })
}

/// The tensors that C declares.
///
/// # Safety
/// `tensors` points to `num` of them.
unsafe fn declared(
    tensors: *const gaspi_fusion_tensor_t,
    num: u64,
) -> Result<Vec<Tensor>, Failure> {
    let tensor = |at: usize| {
        // SAFETY: one of the `num` tensors; C does not promise alignment.
        let given = unsafe { tensors.add(at).read_unaligned() };
        let ty = data_type(given.datatype).ok_or_else(|| strange_type(given.datatype))?;
        if given.reserved != 0 {
            let reason = format!("tensor {at}: reserved is {}, but has to be 0", given.reserved);
            return Err(Failure::Rejected(reason));
        }
        Ok(Tensor { count: given.count, ty })
    };
    (0..num as usize).map(tensor).collect()
}

/// The function of a program and its state.
struct Told {
    fusion: gaspi_fusion_t,
    function: unsafe extern "C" fn(gaspi_fusion_t, gaspi_size_t, gaspi_return_t, *mut c_void),
    state: *mut c_void,
}

// SAFETY: the header says that any thread may call the function with its state.
unsafe impl Send for Told {}
// SAFETY: the header says that any thread may call the function, several at a time.
unsafe impl Sync for Told {}

impl Told {
    fn tell(&self, bucket: usize, outcome: Result<()>) {
        // The function may ask for the words.
        let code = boundary("fusion_on_end", || Ok(outcome?));
        // SAFETY: the function of the program, with what the header promises.
        unsafe { (self.function)(self.fusion, bucket as gaspi_size_t, code, self.state) };
    }
}

fn with<T>(
    rt: &Runtime,
    fusion: gaspi_fusion_t,
    call: impl FnOnce(&Fusion<'_>) -> Result<T>,
) -> Result<T, Failure> {
    Ok(handles::with(rt, Handle(fusion), call)?)
}

/// Starts the all-reduce of a bucket whose last tensor has been submitted inside of an epoch.
#[cold]
#[inline(never)]
fn start(fusion: gaspi_fusion_t, bucket: usize) -> gaspi_return_t {
    boundary("fusion_submit", || {
        let _uncancelled = cancel::hold_off();
        let held = hold()?;
        Ok(handles::start(&held, Handle(fusion), bucket)?)
    })
}

procedures! {
    /// gaspi_collectives.h: makes a fused buffer.
    fn fusion_create(
        tensors: *const gaspi_fusion_tensor_t,
        num: gaspi_size_t,
        group: gaspi_group_t,
        given: *const gaspi_fusion_options_t,
        fusion: *mut gaspi_fusion_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        let out = out!(fusion);
        if num > 0 {
            not_null!(tensors);
        }
        // SAFETY: the header asks for `num` tensors.
        let tensors = unsafe { declared(tensors, num) }?;
        // SAFETY: the header asks for valid options.
        let options = unsafe { options(given) }?;
        let timeout = timeout(milliseconds);
        out.set(handles::create(rt, &tensors, GroupId(group), &options, timeout)?.0);
        Ok(())
    }

    /// gaspi_collectives.h: hands a tensor over.
    fn fusion_submit(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        data: *const c_void,
        scale: f64,
    ) try_fast inside {
        let (handle, tensor) = (Handle(fusion), tensor as usize);
        // SAFETY: the header asks for as much memory as the tensor has.
        match unsafe { handles::try_submit(inside, handle, tensor, data.cast(), scale) }? {
            None => Some(GASPI_SUCCESS),
            Some(bucket) => Some(start(fusion, bucket)),
        }
    } holding rt {
        with(rt, fusion, |fusion| {
            // SAFETY: the header asks for as much memory as the tensor has.
            unsafe { fusion.submit(tensor as usize, data.cast(), scale) }
        })
    }

    /// gaspi_collectives.h: tells whether a tensor has been summed.
    fn fusion_test(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        result: *mut c_void,
        done: *mut gaspi_int,
    ) holding rt {
        let out = out!(done);
        let done = with(rt, fusion, |fusion| {
            // SAFETY: the header asks for as much memory as the tensor has.
            unsafe { fusion.test(tensor as usize, result.cast()) }
        })?;
        out.set(done.into());
        Ok(())
    }

    /// gaspi_collectives.h: waits for the sum of a tensor.
    fn fusion_wait(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        result: *mut c_void,
        milliseconds: gaspi_timeout_t,
    ) try_fast inside {
        // Where the sum is to be copied it is looked at whether it may be written there.
        let is_over = result.is_null() && handles::has_sum(inside, Handle(fusion), tensor as usize);
        is_over.then_some(GASPI_SUCCESS)
    } holding rt {
        with(rt, fusion, |fusion| {
            // SAFETY: the header asks for as much memory as the tensor has.
            unsafe { fusion.wait(tensor as usize, result.cast(), timeout(milliseconds)) }
        })
    }

    /// gaspi_collectives.h: lends the sum of a tensor.
    fn fusion_result(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        result: *mut *const c_void,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        let out = out!(result);
        let lent = with(rt, fusion, |fusion| {
            fusion.result(tensor as usize, timeout(milliseconds))
        })?;
        out.set(lent.cast());
        Ok(())
    }

    /// gaspi_collectives.h: takes a sum back.
    fn fusion_release(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        result: *const c_void,
    ) holding rt {
        with(rt, fusion, |fusion| fusion.release(tensor as usize, result.cast()))
    }

    /// gaspi_collectives.h: the place of a tensor.
    fn fusion_tensor_ptr(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        pointer: *mut *mut c_void,
    ) holding rt {
        let out = out!(pointer);
        let place = with(rt, fusion, |fusion| fusion.tensor_ptr(tensor as usize))?;
        out.set(place.cast());
        Ok(())
    }

    /// gaspi_collectives.h: waits for the end of any bucket.
    fn fusion_next(
        fusion: gaspi_fusion_t,
        bucket: *mut gaspi_size_t,
        milliseconds: gaspi_timeout_t,
    ) holding rt {
        let out = out!(bucket);
        let next = with(rt, fusion, |fusion| fusion.next(timeout(milliseconds)))?;
        out.set(next as gaspi_size_t);
        Ok(())
    }

    /// gaspi_collectives.h: has a function told of ends.
    fn fusion_on_end(
        fusion: gaspi_fusion_t,
        function: gaspi_fusion_function_t,
        state: *mut c_void,
    ) holding rt {
        let told = function.map(|function| {
            let told = Told { fusion, function, state };
            Arc::new(move |bucket, outcome| told.tell(bucket, outcome)) as Arc<OnEnd>
        });
        with(rt, fusion, |fusion| fusion.on_end(told))
    }

    /// gaspi_collectives.h: a descriptor for who polls.
    fn fusion_fd(fusion: gaspi_fusion_t, fd: *mut c_int) holding rt {
        let out = out!(fd);
        out.set(with(rt, fusion, |fusion| fusion.descriptor())?);
        Ok(())
    }

    /// gaspi_collectives.h: number of buckets.
    fn fusion_buckets(fusion: gaspi_fusion_t, num: *mut gaspi_size_t) holding rt {
        let out = out!(num);
        out.set(with(rt, fusion, |fusion| Ok(fusion.buckets()))? as gaspi_size_t);
        Ok(())
    }

    /// gaspi_collectives.h: the bucket of a tensor.
    fn fusion_bucket(
        fusion: gaspi_fusion_t,
        tensor: gaspi_size_t,
        bucket: *mut gaspi_size_t,
    ) holding rt {
        let out = out!(bucket);
        let found = with(rt, fusion, |fusion| fusion.bucket(tensor as usize))?;
        out.set(found as gaspi_size_t);
        Ok(())
    }

    /// gaspi_collectives.h: frees a fused buffer.
    fn fusion_free(fusion: gaspi_fusion_t) holding rt {
        let outcome: Outcome = Ok(handles::free(rt, Handle(fusion))?);
        outcome
    }
}
