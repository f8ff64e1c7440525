//! Which call, request or completion fails: pure counting.

use std::ffi::c_int;

macro_rules! calls {
    ($($call:ident = $name:literal,)*) => {
        /// A verb that can be refused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Call {
            $($call,)*
        }

        impl Call {
            pub(crate) fn named(name: &str) -> Option<Call> {
                match name {
                    $($name => Some(Call::$call),)*
                    _ => None,
                }
            }
        }
    };
}

calls! {
    AllocPd = "alloc_pd",
    RegMr = "reg_mr",
    CreateCompChannel = "create_comp_channel",
    CreateCq = "create_cq",
    CreateSrq = "create_srq",
    CreateQp = "create_qp",
    ModifyQp = "modify_qp",
    ReqNotifyCq = "req_notify_cq",
    PollCq = "poll_cq",
    PostSend = "post_send",
    PostSrqRecv = "post_srq_recv",
}

/// What becomes of a request that is posted to a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Posted,
    /// The call ends at it with this error number.
    Refused(c_int),
    /// It completes with this status.
    Fails(u32),
}

/// One failure: when `remaining` reaches 0.
#[derive(Debug)]
struct Due<T> {
    remaining: u64,
    what: T,
}

/// Counts one down in all, and takes the first that is due.
fn take<T>(list: &mut Vec<Due<T>>, concerned: impl Fn(&T) -> bool) -> Option<T> {
    for due in list.iter_mut().filter(|due| concerned(&due.what)) {
        due.remaining = due.remaining.saturating_sub(1);
    }
    let at = list.iter().position(|due| due.remaining == 0)?;
    Some(list.remove(at).what)
}

#[derive(Debug, Default)]
pub(crate) struct Plan {
    refusals: Vec<Due<(Call, c_int)>>,
    failures: Vec<Due<u32>>,
    receives: Vec<Due<()>>,
    random: u64,
    of_a_million: u32,
    played: u64,
}

impl Plan {
    pub(crate) const NOTHING: Plan = Plan {
        refusals: Vec::new(),
        failures: Vec::new(),
        receives: Vec::new(),
        random: 0,
        of_a_million: 0,
        played: 0,
    };

    pub(crate) fn refuse(&mut self, call: Call, nth: u64, error: c_int) {
        self.refusals.push(Due { remaining: nth, what: (call, error) });
    }

    pub(crate) fn fail(&mut self, nth: u64, status: u32) {
        self.failures.push(Due { remaining: nth, what: status });
    }

    pub(crate) fn fail_receive(&mut self, nth: u64) {
        self.receives.push(Due { remaining: nth, what: () });
    }

    pub(crate) fn random(&mut self, seed: u64, of_a_million: u32) {
        (self.random, self.of_a_million) = (seed, of_a_million);
    }

    pub(crate) fn played(&self) -> u64 {
        self.played
    }

    /// The error number of this call, if it is refused.
    pub(crate) fn refusal(&mut self, call: Call) -> Option<c_int> {
        let (_, error) = take(&mut self.refusals, |(refused, _)| *refused == call)?;
        self.played += 1;
        Some(error)
    }

    /// What becomes of the next request.
    pub(crate) fn request(&mut self) -> Fate {
        let failure = take(&mut self.failures, |_| true);
        let fate = match (self.refusal(Call::PostSend), failure) {
            // The refusal has been counted.
            (Some(error), _) => return Fate::Refused(error),
            (None, Some(status)) => Fate::Fails(status),
            (None, None) => self.by_chance(),
        };
        self.played += u64::from(fate != Fate::Posted);
        fate
    }

    /// Whether the next receive that is posted fails.
    pub(crate) fn receive(&mut self) -> bool {
        let fails = take(&mut self.receives, |()| true).is_some();
        self.played += u64::from(fails);
        fails
    }

    fn by_chance(&mut self) -> Fate {
        if self.of_a_million == 0 {
            return Fate::Posted;
        }
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.random;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^= number >> 31;
        if number % 1_000_000 >= u64::from(self.of_a_million) {
            return Fate::Posted;
        }
        match number >> 63 {
            0 => Fate::Refused(libc::ENOMEM),
            _ => Fate::Fails(libibverbs_sys::IBV_WC_RETRY_EXC_ERR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_of_each_kind_fails_once() {
        let mut plan = Plan::default();
        plan.refuse(Call::RegMr, 2, 12);
        plan.fail(3, 5);
        plan.refuse(Call::PostSend, 5, 22);
        assert_eq!([(); 3].map(|()| plan.refusal(Call::RegMr)), [None, Some(12), None]);
        let expected =
            [Fate::Posted, Fate::Posted, Fate::Fails(5), Fate::Posted, Fate::Refused(22)];
        assert_eq!([(); 5].map(|()| plan.request()), expected);
        assert_eq!((plan.request(), plan.played()), (Fate::Posted, 3));
    }

    #[test]
    fn a_seed_has_the_same_failures_each_time() {
        let fates = || {
            let mut plan = Plan::default();
            plan.random(7, 100_000);
            (0..1000).map(|_| plan.request()).collect::<Vec<Fate>>()
        };
        let count = |wanted: fn(&Fate) -> bool| fates().iter().filter(|fate| wanted(fate)).count();
        assert_eq!(fates(), fates());
        assert!((20..100).contains(&count(|fate| matches!(fate, Fate::Refused(_)))));
        assert!((20..100).contains(&count(|fate| matches!(fate, Fate::Fails(_)))));
    }
}
