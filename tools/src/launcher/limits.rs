//! Limits of the ranks' resources (ulimit) on other machines: at least those that gaspi_run has, as
//! far as the machine allows that, and core files exactly as here.

use gaspi_tools::system;
use libc::{RLIM_INFINITY, rlimit};

/// A limit that is carried over.
#[derive(Debug)]
struct Resource {
    number: libc::__rlimit_resource_t,
    name: &'static str,
    /// The option of ulimit.
    option: char,
    in_bytes: bool,
    /// What a machine gives anyway is not lowered: those that compute often have more than the one
    /// at which jobs are started. That there shall be no core files is a wish like any other.
    only_raised: bool,
}

/// How many are carried over.
pub(crate) const COUNT: usize = 3;
const RESOURCES: [Resource; COUNT] = [
    Resource {
        number: libc::RLIMIT_NOFILE,
        name: "open files",
        option: 'n',
        in_bytes: false,
        only_raised: true,
    },
    Resource {
        number: libc::RLIMIT_MEMLOCK,
        name: "locked memory",
        option: 'l',
        in_bytes: true,
        only_raised: true,
    },
    Resource {
        number: libc::RLIMIT_CORE,
        name: "core files",
        option: 'c',
        in_bytes: true,
        only_raised: false,
    },
];

/// The soft limits of this process, in the order in which [`raise`] takes them.
pub(crate) fn look_up() -> [u64; COUNT] {
    RESOURCES.map(|resource| system::limit(resource.number).rlim_cur)
}

/// What a machine makes of limits that were carried to it.
#[derive(Debug)]
pub(crate) struct Settled {
    /// For open files: the process itself needs more than its ranks get.
    pub(crate) descriptors: rlimit,
    /// The limit that could not be set, as a text.
    pub(crate) lacks: Vec<String>,
}

/// Takes on `wanted` limits, for this process and so for those that it starts. `descriptors` is the
/// limit of open files that it had at its beginning.
pub(crate) fn take_on(wanted: &[u64; COUNT], descriptors: rlimit) -> Settled {
    let mut settled = Settled { descriptors, lacks: Vec::new() };
    for (resource, wanted) in RESOURCES.iter().zip(*wanted) {
        let is_descriptors = resource.number == libc::RLIMIT_NOFILE;
        let have = if is_descriptors { descriptors } else { system::limit(resource.number) };
        let (limit, lack) =
            settle(resource, wanted, have, |limit| system::set_limit(resource.number, limit));
        settled.lacks.extend(lack);
        if is_descriptors {
            settled.descriptors = limit;
        }
    }
    settled
}

/// The limit that comes of it, and what is to be said about that.
fn settle(
    resource: &Resource,
    wanted: u64,
    have: rlimit,
    set: impl Fn(rlimit) -> bool,
) -> (rlimit, Option<String>) {
    if resource.only_raised && wanted <= have.rlim_cur {
        return (have, None);
    }
    // Some may raise the hard limit.
    let limit = rlimit { rlim_cur: wanted, rlim_max: have.rlim_max.max(wanted) };
    if set(limit) {
        return (limit, None);
    }
    let limit = rlimit { rlim_cur: have.rlim_max.min(wanted), rlim_max: have.rlim_max };
    set(limit);
    let lack = (wanted > limit.rlim_cur).then(|| {
        let (name, option) = (resource.name, resource.option);
        let (here, there) = (words(resource, limit.rlim_cur), words(resource, wanted));
        format!(
            "the limit of {name} is {here}, not {there} as for gaspi_run, because the hard limit \
             there is lower; raise it (ulimit -H{option}, /etc/security/limits.conf)"
        )
    });
    (limit, lack)
}

fn words(resource: &Resource, limit: u64) -> String {
    match limit {
        RLIM_INFINITY => "unlimited".to_owned(),
        limit if resource.in_bytes && limit >= 1024 => format!("{} KiB", limit / 1024),
        limit if resource.in_bytes => format!("{limit} bytes"),
        limit => limit.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of it where the hard limit cannot be raised, or can.
    fn settled(number: usize, wanted: u64, (soft, hard): (u64, u64), mighty: bool) -> (u64, bool) {
        let have = rlimit { rlim_cur: soft, rlim_max: hard };
        let (limit, lack) =
            settle(&RESOURCES[number], wanted, have, |limit| mighty || limit.rlim_max <= hard);
        (limit.rlim_cur, lack.is_some())
    }

    #[test]
    fn limits_are_raised_as_far_as_they_may() {
        let (files, memory, core) = (0, 1, 2);
        assert_eq!(settled(files, 4096, (1024, 8192), false), (4096, false));
        assert_eq!(settled(files, 512, (1024, 8192), false), (1024, false));
        assert_eq!(settled(files, 9000, (1024, 8192), false), (8192, true));
        assert_eq!(settled(files, 9000, (1024, 8192), true), (9000, false));
        let none = RLIM_INFINITY;
        assert_eq!(settled(memory, 8 << 20, (none, none), false), (none, false));
        assert_eq!(settled(memory, none, (1 << 16, 1 << 20), false), (1 << 20, true));
        assert_eq!(settled(core, 0, (none, none), false), (0, false));
        assert_eq!(settled(core, none, (0, none), false), (none, false));
    }

    #[test]
    fn what_is_lacking_is_said_with_figures() {
        let have = rlimit { rlim_cur: 1 << 16, rlim_max: 8 << 20 };
        let (_, lack) =
            settle(&RESOURCES[1], RLIM_INFINITY, have, |limit| limit.rlim_max <= have.rlim_max);
        let text = lack.expect("a lack");
        assert!(text.contains("locked memory is 8192 KiB, not unlimited"), "{text}");
    }
}
