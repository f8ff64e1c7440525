//! Layers: modules import what is below them or beside them, never what is above.
//!
//! The tables of this file are the architecture. A module that they do not name is refused, so that
//! a new one gets its place deliberately.

use super::accepted::{DOORS as ACCEPTED_DOORS, UPWARD as ACCEPTED_UPWARD};
use super::modules::{Crate, File, is_below, name};
use super::report::Report;
use super::source::Tree;

const LAYERS: &str = "layers";
const DOORS: &str = "doors";

/// The modules of one layer. A prefix stands for all modules below it; the longest prefix counts.
struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
}

/// Modules that only some others may import, for reasons that layers do not express.
struct Door {
    modules: &'static [&'static str],
    open_to: &'static [&'static str],
    remedy: &'static str,
}

/// What holds in one crate.
struct House {
    root: &'static str,
    /// Bottom first.
    layers: &'static [Layer],
    doors: &'static [Door],
}

const HOUSES: [House; 2] = [
    House { root: "gaspi-core/src/lib.rs", layers: CORE, doors: CORE_DOORS },
    House { root: "gaspi-collectives/src/lib.rs", layers: COLLECTIVES, doors: COLLECTIVES_DOORS },
];

/// Below: what could be taken out of the library and used elsewhere. Above: one rank of one job.
const CORE: &[Layer] = &[
    // System calls, atomics and locks; names and errors that all others share; decisions about
    // time, which are pure values.
    Layer {
        name: "the leafs",
        modules: &["os", "sync", "ids", "error", "timeout", "callback", "config", "policy"],
    },
    // Bytes only: one reader, one writer, frames.
    Layer { name: "the wire", modules: &["wire"] },
    // From the environment to a connected job. Only the runtime starts it: see the doors.
    Layer { name: "bootstrap", modules: &["bootstrap", "diagnostics"] },
    // Memory that others reach: segments, and what the ranks of a node share.
    Layer { name: "shared memory", modules: &["segment", "transport::shm"] },
    // Who the ranks are, and the record of their ends.
    Layer { name: "the ranks", modules: &["ranks"] },
    // How bytes get to another rank. What it has to tell goes through `Upcalls`.
    Layer { name: "the transports", modules: &["transport", "transport::shm::copy"] },
    // Who polls, and who waits.
    Layer { name: "progress", modules: &["progress", "statistics", "wait"] },
    // The parts that a rank consists of: data, with what can be done to it without the rank.
    Layer {
        name: "the parts of a rank",
        modules: &[
            "channel::arena",
            "channel::counts",
            "channel::free_list",
            "channel::layout",
            "channel::shown",
            "channel::spec",
            "channel::zero_copy",
            "control",
            "group",
            "passive",
            "queue",
            "remote_arrivals",
            "resend",
        ],
    },
    // The rank: owns everything, wires it, implements `Upcalls`.
    Layer { name: "the runtime", modules: &["runtime"] },
    // What completes without waiting and without errors; calls that peers answer; the standard's
    // chapters, which are procedures on the runtime.
    Layer {
        name: "the chapters",
        modules: &[
            "atomic",
            "calls",
            "channel",
            "channel::arena::procedures",
            "channel::arena::published",
            "control::arrived",
            "control::call",
            "control::in_node",
            "control::in_words",
            "control::leaders::procedures",
            "control::procedures",
            "control::reason",
            "control::unsent",
            "control::windows",
            "fast_path",
            "group::commit",
            "group::procedures",
            "notification",
            "observer",
            "one_sided",
            "passive::procedures",
            "process",
            "queue::procedures",
            "resend::procedures",
            "segments",
            "state",
            "statistics::procedures",
            "view",
        ],
    },
    // What users see.
    Layer { name: "the library", modules: &["lib", "fuzzing", "benched"] },
];

const CORE_DOORS: &[Door] = &[
    Door {
        modules: &["bootstrap"],
        open_to: &["diagnostics", "runtime", "init", "fuzzing", "benched", "lib"],
        remedy: "the runtime passes in what bootstrap found out",
    },
    Door {
        modules: &["wire::frame"],
        open_to: &["wire", "transport", "fuzzing", "benched", "lib"],
        remedy: "ask the endpoint; only transports know frames",
    },
    Door {
        modules: &["os::socket", "os::tcp"],
        open_to: &["os", "wire", "transport", "bootstrap", "diagnostics"],
        remedy: "ask the endpoint; only transports and bootstrap know sockets",
    },
];

/// Below: algorithms as data, which can be tried and proved without a job. Above: their execution.
const COLLECTIVES: &[Layer] = &[
    // The language of algorithms, and what is done to elements.
    Layer {
        name: "the steps",
        modules: &["collective", "datatype", "mode", "steps", "kernel", "user_reduction"],
    },
    // Steps for each collective, and the proof that they do what they should.
    Layer { name: "the algorithms", modules: &["algorithms", "proof"] },
    // What a program asks for, in the names of collectives and algorithms.
    Layer { name: "the requests", modules: &["request", "signature"] },
    // Which algorithm, and where its bytes are.
    Layer { name: "the plans", modules: &["plan"] },
    // Carrying out plans on a channel.
    Layer { name: "execution", modules: &["exec"] },
    // Requests that come, go on and end.
    Layer {
        name: "the procedures",
        modules: &[
            "broadcast_list",
            "checked_request",
            "engine",
            "fusion",
            "handles",
            "operations",
            "owned",
            "procedures",
            "standard_allreduce",
        ],
    },
    // What users see.
    Layer { name: "the library", modules: &["lib"] },
];

const COLLECTIVES_DOORS: &[Door] = &[];

pub(super) fn check(tree: &Tree, report: &mut Report) {
    report.rule(LAYERS);
    report.rule(DOORS);
    let lists = Accepted { upward: ACCEPTED_UPWARD, doors: ACCEPTED_DOORS };
    let mut seen = Seen::default();
    for house in &HOUSES {
        house.check(tree, &lists, &mut seen, report);
    }
    lists.check_use(&seen, report);
    foreign(tree, report);
}

/// Packages that one part of a crate uses and no other: the folder of the crate, the package, and
/// where in that folder it may be named.
///
/// Raw verbs are limits of gaspi-bench. They call libibverbs themselves: measured with the
/// library's own transport they would share its mistakes.
const FOREIGN: [(&str, &str, &str); 2] = [
    ("gaspi-core/src/", "libibverbs_sys", "gaspi-core/src/transport/verbs"),
    ("tools/src/", "libibverbs_sys", "tools/src/bench/raw_verbs/"),
];

fn foreign(tree: &Tree, report: &mut Report) {
    for (folder, package, place) in FOREIGN {
        for file in tree.rust() {
            if !file.path.starts_with(folder) || file.path.starts_with(place) {
                continue;
            }
            if let Some(index) = (0..file.tokens.len()).find(|index| file.at(*index) == package) {
                let what = format!("names {package}, which is for {place} only; have it passed in");
                report.add(DOORS, &file.path, file.line(index), &what);
            }
        }
    }
}

/// Entries for the two lists of `accepted.rs` as the tree is.
pub(super) fn list(tree: &Tree) -> (Vec<String>, Vec<String>) {
    let mut seen = Seen::default();
    let lists = Accepted { upward: &[], doors: &[] };
    for house in &HOUSES {
        house.check(tree, &lists, &mut seen, &mut Report::default());
    }
    (lines(seen.upward), lines(seen.doors))
}

fn lines(mut edges: Vec<Edge>) -> Vec<String> {
    edges.sort();
    edges.dedup();
    edges.iter().map(|(file, module)| format!("    ({file:?}, {module:?}),")).collect()
}

/// A file and a module that it imports.
type Edge = (String, String);

/// Imports that are accepted until they are gone.
struct Accepted {
    upward: &'static [(&'static str, &'static str)],
    doors: &'static [(&'static str, &'static str)],
}

/// Imports against the rules that exist, accepted or not.
#[derive(Default)]
struct Seen {
    upward: Vec<Edge>,
    doors: Vec<Edge>,
}

impl House {
    fn check(&self, tree: &Tree, accepted: &Accepted, seen: &mut Seen, report: &mut Report) {
        let Some(found) = Crate::read(tree, self.root) else {
            report.add(LAYERS, self.root, 1, "no such file; correct xtask/src/lint/layers.rs");
            return;
        };
        for file in &found.files {
            let Some(own) = self.layer(&name(&file.module)) else {
                let what = format!(
                    "module {} belongs to no layer; add it to the table in \
                     xtask/src/lint/layers.rs",
                    name(&file.module)
                );
                report.add(LAYERS, &file.source.path, 1, &what);
                continue;
            };
            for import in &file.imports {
                let target = name(&found.files[import.file].module);
                self.check_import(file, own, &target, import.line, (accepted, seen, report));
            }
        }
    }

    fn check_import(
        &self,
        file: &File,
        own: usize,
        target: &str,
        line: u32,
        (accepted, seen, report): (&Accepted, &mut Seen, &mut Report),
    ) {
        let path = &file.source.path;
        let edge = (path.clone(), target.to_owned());
        if let Some(above) = self.layer(target).filter(|above| *above > own) {
            if !has(accepted.upward, &edge) {
                let (own, above) = (self.layers[own].name, self.layers[above].name);
                let what = format!(
                    "imports {target} ({above}) from below ({own}); move what is needed down, or \
                     have it passed in"
                );
                report.add(LAYERS, path, line, &what);
            }
            seen.upward.push(edge.clone());
        }
        if let Some(remedy) = self.closed(&name(&file.module), target) {
            if !has(accepted.doors, &edge) {
                let what = format!("imports {target}, which is not for it; {remedy}");
                report.add(DOORS, path, line, &what);
            }
            seen.doors.push(edge);
        }
    }

    /// The layer of a module, by the longest prefix.
    fn layer(&self, module: &str) -> Option<usize> {
        let layers = self.layers.iter().enumerate();
        let prefixes = layers.flat_map(|(index, layer)| {
            layer.modules.iter().map(move |prefix| (prefix.len(), index, *prefix))
        });
        let matching = prefixes.filter(|(_, _, prefix)| is_below(module, prefix));
        matching.max().map(|(_, index, _)| index)
    }

    /// What to do instead, if `module` must not import `target`.
    fn closed(&self, module: &str, target: &str) -> Option<&'static str> {
        let any =
            |prefixes: &[&str], name: &str| prefixes.iter().any(|prefix| is_below(name, prefix));
        let mut doors = self.doors.iter().filter(|door| any(door.modules, target));
        let closed = doors.find(|door| !any(door.modules, module) && !any(door.open_to, module));
        closed.map(|door| door.remedy)
    }
}

impl Accepted {
    /// Refuses entries that nothing needs any more.
    fn check_use(&self, seen: &Seen, report: &mut Report) {
        let lists = [(LAYERS, self.upward, &seen.upward), (DOORS, self.doors, &seen.doors)];
        for (rule, accepted, seen) in lists {
            for (file, module) in accepted {
                if !seen.iter().any(|edge| edge.0 == *file && edge.1 == *module) {
                    let what = format!(
                        "does not import {module} against the rules any more; remove the entry \
                         from xtask/src/lint/accepted.rs"
                    );
                    report.add(rule, file, 1, &what);
                }
            }
        }
    }
}

fn has(accepted: &[(&str, &str)], edge: &Edge) -> bool {
    accepted.iter().any(|(file, module)| edge.0 == *file && edge.1 == *module)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUSE: House = House {
        root: "c/lib.rs",
        layers: &[
            Layer { name: "bottom", modules: &["os", "wire"] },
            Layer { name: "middle", modules: &["chapter", "wire::late"] },
            Layer { name: "top", modules: &["lib"] },
        ],
        doors: &[Door { modules: &["os::socket"], open_to: &["wire"], remedy: "ask wire" }],
    };

    #[test]
    fn libibverbs_is_for_one_transport_and_its_limits() {
        let tree = Tree::of(&[
            ("gaspi-core/src/transport/verbs/device.rs", "use libibverbs_sys::Library;"),
            ("gaspi-core/src/transport/tcp.rs", "\nuse libibverbs_sys::Library;"),
            ("tools/src/bench/raw_verbs/device.rs", "use libibverbs_sys::Library;"),
            ("tools/src/bench/limits.rs", "use libibverbs_sys::Library; // `libibverbs_sys`"),
            ("tests/mock-card/src/lib.rs", "use libibverbs_sys::Library;"),
            ("gaspi-core/src/lib.rs", "// libibverbs_sys"),
        ]);
        let found = Report::of(|report| foreign(&tree, report));
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("gaspi-core/src/transport/tcp.rs:2: names libibverbs_sys"));
        assert!(found[1].starts_with("tools/src/bench/limits.rs:1: names libibverbs_sys"));
    }

    const NONE: Accepted = Accepted { upward: &[], doors: &[] };

    fn found(chapter: &str, wire: &str, accepted: &Accepted) -> Vec<String> {
        let tree = Tree::of(&[
            ("c/lib.rs", "mod chapter; mod os; mod wire; use chapter::C;"),
            ("c/chapter.rs", chapter),
            ("c/os/mod.rs", "mod socket;"),
            ("c/os/socket.rs", ""),
            ("c/wire/mod.rs", wire),
            ("c/wire/late.rs", ""),
        ]);
        let (mut report, mut seen) = (Report::default(), Seen::default());
        HOUSE.check(&tree, accepted, &mut seen, &mut report);
        accepted.check_use(&seen, &mut report);
        report.violations().to_vec()
    }

    #[test]
    fn imports_go_down_or_stay() {
        assert!(found("use crate::wire;", "use crate::os::socket::S;", &NONE).is_empty());
    }

    #[test]
    fn an_import_that_goes_up_is_refused() {
        let up = found("", "\nfn f() { crate::chapter::f() }", &NONE);
        assert_eq!(up.len(), 1);
        let text = "c/wire/mod.rs:2: imports chapter (middle) from below (bottom);";
        assert!(up[0].starts_with(text), "{}", up[0]);
        let longest = found("", "mod late; use late::L;", &NONE);
        assert!(longest[0].contains("imports wire::late (middle)"), "{}", longest[0]);
    }

    #[test]
    fn an_unlisted_module_is_refused() {
        let tree = Tree::of(&[("c/lib.rs", "mod new;"), ("c/new.rs", "")]);
        let mut report = Report::default();
        HOUSE.check(&tree, &NONE, &mut Seen::default(), &mut report);
        assert!(report.violations()[0].starts_with("c/new.rs:1: module new belongs to no layer;"));
    }

    #[test]
    fn a_closed_door_is_refused() {
        let closed = found("use crate::os::socket::S;", "", &NONE);
        assert_eq!(closed, ["c/chapter.rs:1: imports os::socket, which is not for it; ask wire"]);
    }

    #[test]
    fn accepted_imports_are_exact() {
        let accepted = Accepted {
            upward: &[("c/wire/mod.rs", "chapter")],
            doors: &[("c/chapter.rs", "os::socket")],
        };
        assert!(found("use crate::os::socket;", "use crate::chapter::C;", &accepted).is_empty());
        let gone = found("", "", &accepted);
        assert_eq!(gone.len(), 2);
        assert!(gone.iter().all(|line| line.contains("remove the entry")), "{gone:?}");
    }

    #[test]
    fn every_module_has_one_layer() {
        for house in &HOUSES {
            let mut modules: Vec<&str> =
                house.layers.iter().flat_map(|layer| layer.modules).copied().collect();
            modules.sort_unstable();
            let count = modules.len();
            modules.dedup();
            assert_eq!(modules.len(), count, "{}: a module is listed twice", house.root);
        }
    }
}
