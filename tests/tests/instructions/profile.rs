//! What callgrind writes: which function executed how many instructions and called what.
//!
//! Read from the file itself (without compression of names and positions), since its printer is a
//! script of another language. Costs on the line after `calls=` are the callee's and counted there.

use std::collections::BTreeMap;

/// One part of a profile: all that was counted between two dumps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// The function after whose end it was written.
    pub(crate) after: String,
    /// By object and function.
    pub(crate) functions: BTreeMap<(String, String), Function>,
}

/// One function.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Function {
    /// Instructions of itself.
    pub(crate) own: u64,
    /// How often it called others, by object and function.
    pub(crate) calls: BTreeMap<(String, String), u64>,
}

impl Profile {
    /// Reads a part; what it does not know it ignores, as the format asks.
    pub(crate) fn read(text: &str) -> Profile {
        let mut profile = Profile::default();
        let (mut object, mut function) = (String::new(), String::new());
        let (mut called_object, mut called) = (None, String::new());
        let mut is_callee_cost = false;
        for line in text.lines() {
            let (key, value) = line.split_once('=').unwrap_or(("", line));
            match key {
                "ob" => object = value.to_owned(),
                "fn" => function = value.to_owned(),
                "cob" => called_object = Some(value.to_owned()),
                "cfn" => called = value.to_owned(),
                "calls" => {
                    let times = number(value.split_whitespace().next());
                    let of = called_object.take().unwrap_or_else(|| object.clone());
                    let key = (object.clone(), function.clone());
                    let calls = &mut profile.functions.entry(key).or_default().calls;
                    *calls.entry((of, called.clone())).or_default() += times;
                    is_callee_cost = true;
                }
                _ if line.starts_with(|first: char| first.is_ascii_digit()) => {
                    if !std::mem::take(&mut is_callee_cost) {
                        let cost = number(line.split_whitespace().nth(1));
                        let key = (object.clone(), function.clone());
                        profile.functions.entry(key).or_default().own += cost;
                    }
                }
                _ => {
                    if let Some(trigger) = line.strip_prefix("desc: Trigger: --dump-after=") {
                        profile.after = trigger.to_owned();
                    }
                }
            }
        }
        profile
    }

    /// How often functions whose names begin with `from` called others.
    pub(crate) fn calls_by(&self, from: &str) -> u64 {
        let callers = self.functions.iter().filter(|((_, name), _)| name.starts_with(from));
        callers.flat_map(|(_, function)| function.calls.values()).sum()
    }

    /// Instructions of an object itself, and how often it called others: both without what these
    /// executed. Functions whose names hold `others` count as those of another object, and those
    /// that are counted in, `path_*`, do not count.
    pub(crate) fn of_object(&self, name: &str, others: Option<&str>) -> (u64, u64) {
        let is_it = |(object, function): &(String, String)| {
            object.rsplit('/').next() == Some(name)
                && others.is_none_or(|others| !function.contains(others))
        };
        let is_counted_in = |(_, function): &(String, String)| function.starts_with("path_");
        let functions = self.functions.iter();
        let (mut own, mut outside) = (0, 0);
        for (_, function) in functions.filter(|(key, _)| is_it(key) && !is_counted_in(key)) {
            own += function.own;
            let called = function.calls.iter().filter(|(key, _)| !is_it(key));
            outside += called.map(|(_, times)| times).sum::<u64>();
        }
        (own, outside)
    }
}

fn number(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_callees_are_counted_once() {
        let profile = Profile::read(
            "desc: Trigger: --dump-after=run_write_8\n\
             positions: line\nevents: Ir\n\n\
             ob=/tmp/paths\nfl=paths.c\nfn=path_write_8\n80 140\n\
             cob=/lib/libgaspi.so\ncfi=a.rs\ncfn=gaspi_write\ncalls=10 52\n80 1000\n80 5\n\n\
             ob=/lib/libgaspi.so\nfn=gaspi_write\n52 600\nfi=b.rs\n7 300\n\
             cob=/lib/libc.so.6\ncfn=memmove\ncalls=10 1\n9 70\n\
             cfn=copy\ncalls=10 1\n9 30\n\n\
             fn=copy\n1 30\n\nob=/lib/libc.so.6\nfn=memmove\n1 70\n\ntotals: 1145\n",
        );
        assert_eq!(profile.after, "run_write_8");
        assert_eq!(profile.calls_by("path_"), 10);
        assert_eq!(profile.of_object("libgaspi.so", None), (930, 10));
        assert_eq!(profile.of_object("libgaspi.so", Some("cop")), (900, 20));
        assert_eq!(profile.of_object("libc.so.6", None), (70, 0));
        assert_eq!(profile.of_object("paths", None), (0, 0));
    }
}
