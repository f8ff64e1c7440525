//! The floating-point environment: rounding, flushing of small numbers, traps.
//!
//! Any thread may carry an operation on, and programs set the environment of their threads. So that
//! bits do not depend on who comes first, floats are combined in the environment that every thread
//! begins with. Looking takes a nanosecond; a change is rare. Functions of the program are called
//! as they find the thread.

/// The thread computes in the environment that threads begin with, until this is dropped.
pub(super) struct Environment {
    /// What is put back; `None` where nothing was changed.
    former: Option<Control>,
}

impl Environment {
    #[inline(always)]
    pub(super) fn enter() -> Environment {
        let found = control();
        if found & CHOICES == INITIAL {
            return Environment { former: None };
        }
        set_control(INITIAL);
        Environment { former: Some(found) }
    }
}

impl Drop for Environment {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(former) = self.former {
            set_control(former);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod register {
    use std::arch::asm;

    pub(super) type Control = u32;

    /// What threads begin with: to the nearest, nothing flushed, nothing traps.
    pub(super) const INITIAL: Control = 0x1f80;
    /// All but the flags of what has happened.
    pub(super) const CHOICES: Control = !0x3f;

    #[inline(always)]
    pub(super) fn control() -> Control {
        let mut control = 0;
        // SAFETY: the instruction writes the four bytes of the variable.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags));
        }
        control
    }

    #[cold]
    pub(super) fn set_control(control: Control) {
        // SAFETY: the instruction reads the four bytes of the variable; the value is the initial
        // one, or one that was read.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod register {
    use std::arch::asm;

    pub(super) type Control = u64;

    /// What threads begin with: to the nearest, nothing flushed, nothing traps.
    pub(super) const INITIAL: Control = 0;
    /// Flags of what has happened are in another register.
    pub(super) const CHOICES: Control = !0;

    #[inline(always)]
    pub(super) fn control() -> Control {
        let control;
        // SAFETY: the instruction reads a register that every thread may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nostack, preserves_flags)) };
        control
    }

    #[cold]
    pub(super) fn set_control(control: Control) {
        // SAFETY: the value is the initial one, or one that was read.
        unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
}

/// Elsewhere threads are taken as they are.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod register {
    pub(super) type Control = u32;
    pub(super) const INITIAL: Control = 0;
    pub(super) const CHOICES: Control = 0;

    pub(super) fn control() -> Control {
        INITIAL
    }

    pub(super) fn set_control(_: Control) {}
}

use register::{CHOICES, Control, INITIAL, control, set_control};

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::datatype::{DataType, Operation};
    use crate::kernel::stage::{Stage, Write};
    use crate::kernel::{Source, Target, divide, fold};

    /// Environments that programs set: small numbers flushed (as `-ffast-math` does), rounding
    /// towards zero, and traps of inexact results.
    const SET: [Control; 4] = [INITIAL | 0x8040, INITIAL | 0x6000, INITIAL & !0x1000, INITIAL];

    /// In another environment, which is there again at the end.
    fn within<R>(environment: Control, body: impl FnOnce() -> R) -> R {
        set_control(environment);
        let result = body();
        let found = control();
        set_control(INITIAL);
        assert_eq!(found & CHOICES, environment & CHOICES, "what the program set is there again");
        result
    }

    fn bytes<T: bytemuck::NoUninit>(values: &[T]) -> Vec<u8> {
        bytemuck::cast_slice(values).to_vec()
    }

    /// Smaller than any normal number, and sums that have to be rounded.
    fn inputs(ty: DataType) -> [Vec<u8>; 2] {
        let halves = |one: u16, two: u16| [bytes(&[one; 37]), bytes(&[two; 37])];
        match ty {
            DataType::F16 => halves(0x0001, 0x3c01),
            DataType::Bf16 => halves(0x0001, 0x0003),
            DataType::F32 => [bytes(&[1e-42_f32, 0.1, -3e-41]), bytes(&[3e-42_f32, 0.7, 1e-42])],
            _ => [bytes(&[5e-320_f64, 0.1, -3e-310]), bytes(&[3e-320_f64, 0.7, 1e-310])],
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_environment_of_the_thread() {
        for ty in [DataType::F16, DataType::Bf16, DataType::F32, DataType::F64] {
            let [one, two] = inputs(ty);
            for op in [Operation::Sum, Operation::Product, Operation::Min, Operation::Max] {
                let combined = |environment| {
                    within(environment, || {
                        let mut to = vec![0; one.len()];
                        let sources = [Source::of(&one), Source::of(&two)];
                        fold(op, ty, &[Target::of(&mut to)], &sources);
                        divide(ty, Target::of(&mut to), 3);
                        to
                    })
                };
                let expected = combined(INITIAL);
                for environment in SET {
                    assert_eq!(combined(environment), expected, "{ty} {op} {environment:#x}");
                }
            }
        }
    }

    #[test]
    fn bits_that_are_handed_over_do_not_depend_on_it_either() {
        let source = bytes(&[1e-42_f32, 0.1, 1e-7, 3.3, 65519.0, 1e-40]);
        for to in [DataType::F32, DataType::F16, DataType::Bf16] {
            let handed = |environment| {
                let stage = Stage::new(DataType::F32, to, Write::Store).expect("floats");
                within(environment, || {
                    let mut target = vec![0; 6 * to.bytes() as usize];
                    stage.run(0.3, Target::of(&mut target), Source::of(&source));
                    target
                })
            };
            let expected = handed(INITIAL);
            for environment in SET {
                assert_eq!(handed(environment), expected, "{to} {environment:#x}");
            }
        }
    }
}
