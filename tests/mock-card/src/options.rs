//! What a test can set: the behaviour of a fabric, and limits and traits of its devices.
//!
//! All values are numbers, and have a text form, `name=value,name=value`, which crosses the C
//! interface and the environment. A name that does not exist is an error.

use std::fmt;

/// A struct of numbers that can be set by their names.
macro_rules! numbers {
    ($(#[$about:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $value:expr;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Default for $type {
            fn default() -> $type {
                $type { $($name: $value,)* }
            }
        }

        impl $type {
            fn find(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(write!(out, concat!(stringify!($name), "={},"), self.$name)?;)*
                Ok(())
            }
        }
    };
}

numbers! {
    /// How the fabric treats requests.
    Behaviour {
        /// Start of all random choices.
        seed = 1;
        /// When bytes are placed in memory: 0 at once, 1 late and in pieces, 2 only when a
        /// completion or read forces it.
        placement = 0;
        /// 0: a post carries out and completes its request. 1: requests of different pairs are
        /// carried out and completed later, in any order.
        shuffle = 0;
        /// What a polled receive completion makes visible: 0 all that its card took before it,
        /// 1 only what the same pair took before it.
        by_pair = 0;
        /// How much faster than real time timers run. 0: time passes by `mock_card_advance` only.
        time_scale = 100;
        /// 1: a retry count of 7 means for ever, as soft-RoCE has it.
        retry_seven_forever = 1;
        /// 1: a pair with a shared receive queue tells when it took its last receive.
        last_wqe_event = 0;
        /// 1: a post of a signalled request returns once all that its pair has posted has been
        /// answered, also by other processes, so that the next poll finds it.
        await_answers = 0;
        /// 1: nothing passes a pair whose GID has left the entry of the table that it was connected
        /// with.
        by_gid = 0;
        /// Devices that are listed for a thread that did not choose one.
        devices = 1;
        /// 1: children of this process harm it unless ibv_fork_init was called, ahead of the first
        /// queue or registration.
        needs_fork_init = 0;
    }
}

numbers! {
    /// What a device refuses to exceed.
    Limits {
        /// Queue pairs.
        max_qp = 65_536;
        /// Requests per send or receive queue.
        max_qp_wr = 16_384;
        /// Pieces of a request.
        max_sge = 16;
        /// Completion queues.
        max_cq = 65_536;
        /// Entries of a completion queue.
        max_cqe = 1 << 22;
        /// Memory regions.
        max_mr = 1 << 20;
        /// Bytes of a memory region.
        max_mr_size = 1 << 46;
        /// Shared receive queues.
        max_srq = 4096;
        /// Receives in a shared receive queue.
        max_srq_wr = 32_768;
        /// Reads and atomics that a pair accepts at a time.
        max_qp_rd_atom = 16;
        /// Reads and atomics that a pair has under way at a time.
        max_qp_init_rd_atom = 16;
        /// Bytes of a request that carries its data.
        max_inline = 256;
        /// Bytes of a message.
        max_msg_sz = 1 << 30;
        /// Registered bytes, as the limit of locked memory.
        max_registered = u64::MAX;
        /// Protection domains.
        max_pd = 4096;
    }
}

numbers! {
    /// What a device is.
    Traits {
        /// 1 InfiniBand, 2 Ethernet.
        link_layer = 2;
        /// 0 InfiniBand or RoCE, 1 iWARP, 2 and more others.
        transport = 0;
        /// Active MTU: 1 to 5 for 256 to 4096 bytes.
        mtu = 5;
        /// 0 none, 1 atomic among devices only, 2 atomic with processors.
        atomic_cap = 1;
        /// 0: reliable queue pairs cannot be made.
        reliable = 1;
        /// Entries of the GID table.
        gids = 8;
        /// 1: entries for RoCE v1 beside those for v2.
        roce_v1 = 1;
        /// 1: a link-local GID in front of the others.
        link_local = 1;
        /// Entries of the table of partition keys.
        pkeys = 1;
        /// Added to the LID of the port, as if the subnet manager had given it another one. On
        /// Ethernet, where a LID means nothing, the one that the port tells nevertheless.
        lid = 0;
        /// 1: paths of the port need a global header, as those of some virtual functions do.
        grh_required = 0;
        /// 1: the port is active at first.
        port_up = 1;
        /// The speed of a lane of the port, by its code: 32 for EDR, 256 for XDR.
        speed = 32;
    }
}

/// All that can be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Of the fabric.
    pub behaviour: Behaviour,
    /// Of each device, until set for one.
    pub limits: Limits,
    /// Of each device, until set for one.
    pub traits: Traits,
}

impl Options {
    /// Requests are done when they are posted.
    pub fn kind() -> Options {
        Options::default()
    }

    /// As unkind as the standard allows.
    pub fn unkind(seed: u64) -> Options {
        let behaviour = Behaviour { seed, placement: 1, shuffle: 1, ..Behaviour::default() };
        Options { behaviour, ..Options::default() }
    }

    /// Sets what `text` names: `name=value` parted by commas.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("no value in \"{part}\""))?;
            let value =
                value.trim().parse().map_err(|_| format!("\"{value}\" of {name} is no number"))?;
            let name = name.trim();
            let field = (self.behaviour.find(name))
                .or_else(|| self.limits.find(name))
                .or_else(|| self.traits.find(name));
            *field.ok_or_else(|| format!("no option is called \"{name}\""))? = value;
        }
        Ok(())
    }
}

impl fmt::Display for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}{}", self.behaviour, self.limits, self.traits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_options_sets_them() {
        let mut wanted = Options::unkind(7);
        wanted.limits.max_qp = 3;
        wanted.traits.mtu = 1;
        let mut found = Options::default();
        found.set(&wanted.to_string()).unwrap();
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_is_no_option_is_refused() {
        for text in ["max_qp", "max_qp=many", "max_qps=1", "seed=-1"] {
            assert!(Options::default().set(text).is_err(), "{text}");
        }
    }
}
