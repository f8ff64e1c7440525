//! The numbers of the verbs interface that the model works with. The C interface asserts that they
//! are those of verbs.h.

/// A group of constants of one type.
macro_rules! codes {
    ($(#[$about:meta])* $module:ident: $type:ty { $($name:ident = $value:expr,)* }) => {
        $(#[$about])*
        pub(crate) mod $module {
            $(pub(crate) const $name: $type = $value;)*
        }
    };
}

codes! {
    /// Opcodes of requests.
    opcode: u32 {
        WRITE = 0,
        WRITE_IMM = 1,
        SEND = 2,
        SEND_IMM = 3,
        READ = 4,
        COMPARE_SWAP = 5,
        FETCH_ADD = 6,
    }
}

codes! {
    /// Opcodes of completions.
    completed: u32 {
        SEND = 0,
        WRITE = 1,
        READ = 2,
        COMPARE_SWAP = 3,
        FETCH_ADD = 4,
        RECEIVE = 128,
        RECEIVE_WRITE_IMM = 129,
    }
}

codes! {
    /// Flags of requests.
    flag: u32 {
        FENCE = 1,
        SIGNALED = 2,
        SOLICITED = 4,
        INLINE = 8,
    }
}

codes! {
    /// Flags of completions.
    completion_flag: u32 {
        WITH_IMM = 2,
    }
}

codes! {
    /// Status of completions.
    status: u32 {
        SUCCESS = 0,
        LOCAL_LENGTH = 1,
        LOCAL_PROTECTION = 4,
        FLUSHED = 5,
        REMOTE_INVALID = 9,
        REMOTE_ACCESS = 10,
        REMOTE_OPERATION = 11,
        RETRY_EXCEEDED = 12,
        RNR_EXCEEDED = 13,
    }
}

codes! {
    /// Access rights.
    access: u32 {
        LOCAL_WRITE = 1,
        REMOTE_WRITE = 2,
        REMOTE_READ = 4,
        REMOTE_ATOMIC = 8,
        ON_DEMAND = 64,
        RELAXED_ORDERING = 1 << 20,
        OPTIONAL = 0x3ff0_0000,
        KNOWN = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | OPTIONAL,
    }
}

codes! {
    /// States of a queue pair.
    state: u32 {
        RESET = 0,
        INIT = 1,
        RTR = 2,
        RTS = 3,
        SQD = 4,
        SQE = 5,
        ERR = 6,
    }
}

codes! {
    /// Kinds of asynchronous events.
    event: u32 {
        CQ_ERR = 0,
        QP_FATAL = 1,
        DEVICE_FATAL = 8,
        PORT_ACTIVE = 9,
        PORT_ERR = 10,
        SRQ_LIMIT_REACHED = 15,
        QP_LAST_WQE_REACHED = 16,
        GID_CHANGE = 18,
    }
}
