//! The small procedures around a program (GASPI 17.1, 12 and 13).

use crate::types::*;

/// The interface that this library matches.
const VERSION: gaspi_float = 1.6;

procedures! {
    /// GASPI.h: version of the interface.
    fn version(version: *mut gaspi_float) {
        out!(version).give(VERSION)
    }

    /// GASPI.h: for profilers, which replace it; the library itself has no profile to control.
    fn pcontrol(_argument: gaspi_pointer_t) {
        crate::runtime::refuse_fork()
    }
}

plain_procedures! {
    /// GASPI_Ext.h: one pause of the processor.
    fn delay() -> () {
        std::hint::spin_loop();
    } else ();
}
