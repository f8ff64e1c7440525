//! One definition per procedure: `gaspi_x` and `pgaspi_x` with the same signature, no panic past
//! the boundary, and (in tests) the signature as text for the comparison with the headers.

/// A signature as written in Rust.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Prototype {
    /// Without `gaspi_`.
    pub(crate) name: &'static str,
    /// The type returned.
    pub(crate) returns: &'static str,
    /// The types of the arguments.
    pub(crate) arguments: &'static [&'static str],
}

/// The two functions that C knows a procedure by.
macro_rules! exported {
    ($name:ident($($argument:ident: $type:ty),*) -> $returns:ty $body:block) => {
        /// See the header.
        #[unsafe(export_name = concat!("gaspi_", stringify!($name)))]
        unsafe extern "C" fn gaspi($($argument: $type),*) -> $returns $body
        /// See the header.
        #[unsafe(export_name = concat!("pgaspi_", stringify!($name)))]
        unsafe extern "C" fn pgaspi($($argument: $type),*) -> $returns $body
    };
}

/// Defines procedures that return a `gaspi_return_t`. The body is a `Result<(), Failure>`:
///
/// - `fn x(...) { .. }` works at any time;
/// - `fn x(...) with rt { .. }` runs under an epoch guard: it neither waits, nor sends, nor looks
///   after sockets;
/// - `fn x(...) holding rt { .. }` holds the runtime alive by its count and may wait. The calling
///   thread is not cancelled meanwhile;
/// - `fn x(...) holding_briefly rt { .. }` is the same of what is often short: cancellation is held
///   off only where gaspi-core gets to what may be a cancellation point.
///
/// In all but the first `rt` is the current runtime; without one the procedure is ERR_NOINIT,
/// before any argument is looked at.
///
/// `try_fast rt { .. }` before these is tried first, with `rt` a `FastPath`: a number for the
/// program, or `None` if nothing has happened and the rest has to find out why. It cannot panic.
///
/// `opening rt { .. }` comes next: where it is `Some`, the procedure begins again; it is `None`
/// where it has nothing to do.
macro_rules! procedures {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?)
        $(try_fast $fast:ident $fast_body:block $(opening $opening:ident $open_body:block)?)?
        $(with $guarded:ident)? $(holding $held:ident)? $(holding_briefly $brief:ident)?
        $body:block
    )*) => {
        $(
            $(#[$doc])*
            #[allow(clippy::too_many_arguments, reason = "the arguments of the C procedure")]
            #[inline]
            unsafe fn $name($($argument: $type),*) -> $crate::error::Outcome {
                procedures!(@body [$($guarded)?] [$($held)?] [$($brief)?] $body)
            }
            const _: () = {
                /// The slow path. Cold, so that the fast one keeps its registers. It begins again
                /// by itself: the exported names are not called from here, since a profiler in
                /// front of them would count its own program's call twice.
                #[cold]
                #[inline(never)]
                unsafe extern "C" fn whole($($argument: $type),*) -> $crate::types::gaspi_return_t {
                    let opened = false
                        $($(|| $crate::runtime::try_fast(|$opening| $open_body).is_some())?)?;
                    if opened {
                        $(if let Some(code) = $crate::runtime::try_fast(|$fast| $fast_body) {
                            return code;
                        })?
                        // SAFETY: the arguments are the caller's.
                        return unsafe { whole($($argument),*) };
                    }
                    // SAFETY: the caller keeps the contract of the C declaration.
                    $crate::error::boundary(stringify!($name), || unsafe {
                        self::$name($($argument),*)
                    })
                }
                exported! { $name($($argument: $type),*) -> $crate::types::gaspi_return_t {
                    $(if let Some(code) = $crate::runtime::try_fast(|$fast| $fast_body) {
                        return code;
                    })?
                    // SAFETY: the arguments are the caller's.
                    unsafe { whole($($argument),*) }
                } }
            };
        )*
        #[cfg(test)]
        pub(crate) const PROTOTYPES: &[$crate::macros::Prototype] = &[$(
            $crate::macros::Prototype {
                name: stringify!($name),
                returns: "gaspi_return_t",
                arguments: &[$(stringify!($type)),*],
            }
        ),*];
    };
    (@body [] [] [] $body:block) => { $body };
    (@body [$rt:ident] [] [] $body:block) => { $crate::runtime::with(|$rt| $body) };
    (@body [] [$rt:ident] [] $body:block) => {{
        let _uncancelled = gaspi_core::os::cancel::hold_off();
        procedures!(@body [] [] [$rt] $body)
    }};
    (@body [] [] [$rt:ident] $body:block) => {{
        let held = $crate::runtime::hold()?;
        let $rt: &gaspi_core::Runtime = &held;
        $body
    }};
}

/// Defines the few procedures that return something else; `else` is the value after a panic.
macro_rules! plain_procedures {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),*) -> $returns:ty { $($body:tt)* }
        else $panicked:expr;
    )*) => {
        $(
            $(#[$doc])*
            unsafe fn $name($($argument: $type),*) -> $returns { $($body)* }
            const _: () = {
                exported! { $name($($argument: $type),*) -> $returns {
                    // SAFETY: the caller keeps the contract of the C declaration.
                    $crate::error::plain_boundary(stringify!($name), $panicked, || unsafe {
                        self::$name($($argument),*)
                    })
                } }
            };
        )*
        #[cfg(test)]
        pub(crate) const PLAIN_PROTOTYPES: &[$crate::macros::Prototype] = &[$(
            $crate::macros::Prototype {
                name: stringify!($name),
                returns: stringify!($returns),
                arguments: &[$(stringify!($type)),*],
            }
        ),*];
    };
}

/// The out-argument of that name, or ERR_NULLPTR from the procedure.
macro_rules! out {
    ($argument:ident) => {{
        // SAFETY: the caller of the C function passes NULL or a pointer that may be written.
        unsafe { $crate::pointers::Out::new($argument, stringify!($argument))? }
    }};
}

/// The out-argument of that name, `None` if it is NULL.
macro_rules! wanted {
    ($argument:ident) => {{
        // SAFETY: the caller of the C function passes NULL or a pointer that may be written.
        unsafe { $crate::pointers::Out::wanted($argument) }
    }};
}

/// Ends the procedure with ERR_NULLPTR if the argument of that name is NULL.
macro_rules! not_null {
    ($($argument:ident),+) => {
        $(
            if $argument.is_null() {
                return Err($crate::error::Failure::Null(stringify!($argument)));
            }
        )+
    };
}
