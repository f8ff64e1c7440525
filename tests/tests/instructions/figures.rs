//! The committed figures, what differs from them and when that is a failure.

use std::fmt::Write as _;

/// One more instruction is allowed per this many, and always [`SLACK`].
const SLACK_SHARE: f64 = 0.03;
const SLACK: u64 = 2;
/// The same where another compiler made the library.
const SLACK_OF_COMPILER: f64 = 0.10;
/// What these paths may cost at most, without slack, whatever the committed figure is: promises
/// that hold for the compiler of the committed file.
const CEILINGS: [(&str, u64); 12] = [
    ("rdma_write_8", 150),
    ("rdma_write_notify_8", 190),
    // What they took before fused buffers came, whose functions may not wait.
    ("barrier_alone", 157),
    ("allreduce_alone", 447),
    // Besides copying, converting and adding, which are a call of the C library or of the kernel.
    ("fusion_submit", 200),
    ("fusion_submit_further", 200),
    ("fusion_submit_scale", 200),
    ("fusion_submit_add", 200),
    ("fusion_submit_bf16", 200),
    ("fusion_submit_bf16_add", 200),
    ("rust_submit", 200),
    ("rust_submit_scale", 200),
];

/// What a call costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Its short name.
    pub(crate) path: String,
    /// Instructions of libgaspi.so.
    pub(crate) instructions: u64,
    /// Calls of functions of other libraries, such as memmove.
    pub(crate) calls: u64,
    /// What is called, in words.
    pub(crate) words: String,
}

/// The figures of one build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Its version, as it writes it into what it makes.
    pub(crate) compiler: String,
    pub(crate) paths: Vec<Figure>,
}

/// What a comparison found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As committed, but for what is allowed.
    Same,
    /// Something became cheaper, or the compiler is another one; nothing is too dear.
    Renew,
    /// Something became dearer, or a path has come or gone.
    Fails,
}

const HEAD: &str = "\
# What a call of each fast path costs: instructions of libgaspi.so (release build, x86-64), and
# calls of functions of other libraries. Where a tensor is submitted, the kernel that scales,
# converts or adds counts as another library. Counted by tests/tests/instructions;
# docs/performance.md explains.
# Renew with GASPI_TEST_RENEW=1 cargo xtask test --only instructions
# and give the reason in the commit.
";

impl Figures {
    /// Reads what [`Figures::written`] wrote.
    pub(crate) fn read(text: &str) -> Result<Figures, String> {
        let mut figures = Figures { compiler: String::new(), paths: Vec::new() };
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            if let Some(compiler) = line.strip_prefix("compiler ") {
                compiler.clone_into(&mut figures.compiler);
                continue;
            }
            let mut words = line.split_whitespace();
            let path = words.next().map(str::to_owned);
            let mut number = || words.next().and_then(|word| word.parse().ok());
            let (instructions, calls) = (number(), number());
            let words = words.collect::<Vec<_>>().join(" ");
            let (Some(path), Some(instructions), Some(calls)) = (path, instructions, calls) else {
                return Err(format!("strange line {line:?}"));
            };
            figures.paths.push(Figure { path, instructions, calls, words });
        }
        Ok(figures)
    }

    /// The committed file.
    pub(crate) fn written(&self) -> String {
        let mut text = format!("{HEAD}compiler {}\n", self.compiler);
        for Figure { path, instructions, calls, words } in &self.paths {
            let _ = writeln!(text, "{path:<20}{instructions:>6}{calls:>4}  {words}");
        }
        text
    }

    /// The table of docs/performance.md.
    pub(crate) fn as_markdown(&self) -> String {
        let mut text = format!("Made by {}.\n\n", self.compiler);
        text.push_str(
            "| call | instructions | calls of the C library, or of the kernel |\n|---|---:|---:|\n",
        );
        for Figure { instructions, calls, words, .. } in &self.paths {
            let calls = if *calls == 0 { "none".to_owned() } else { calls.to_string() };
            let _ = writeln!(text, "| {words} | {instructions} | {calls} |");
        }
        text
    }

    fn of(&self, path: &str) -> Option<&Figure> {
        self.paths.iter().find(|figure| figure.path == path)
    }

    /// Compares `is` with what was committed, and shows both.
    pub(crate) fn compare(&self, is: &Figures) -> (Verdict, String) {
        let is_same_compiler = self.compiler == is.compiler;
        let mut table = String::new();
        if !is_same_compiler {
            let (was, is) = (&self.compiler, &is.compiler);
            let _ = writeln!(table, "figures of {was}; this library was made by {is}");
        }
        let head = ("path", "was", "is", "difference");
        let _ = writeln!(table, "{:<20}{:>8}{:>8}{:>12}", head.0, head.1, head.2, head.3);
        let mut verdict = if is_same_compiler { Verdict::Same } else { Verdict::Renew };
        for now in &is.paths {
            let path = &now.path;
            let Some(was) = self.of(path) else {
                let _ = writeln!(table, "{path:<20}{:>8}{:>8}  is new", "", now.instructions);
                verdict = Verdict::Fails;
                continue;
            };
            let change = now.instructions.cast_signed() - was.instructions.cast_signed();
            let percent = 100.0 * change as f64 / was.instructions.max(1) as f64;
            let (w, n) = (was.instructions, now.instructions);
            let _ = write!(table, "{path:<20}{w:>8}{n:>8}{change:>+5}{percent:>+6.1}%");
            // One that waits looks once more, now and then: threads of the device are in between.
            let looks = if was.calls >= WITH_LOOKS { was.instructions / 10 } else { 0 };
            if now.instructions > allowed(was.instructions, is_same_compiler) + looks {
                table.push_str("  too many");
                verdict = Verdict::Fails;
            } else if let Some(most) = ceiling(path, is_same_compiler)
                && now.instructions > most
            {
                let _ = write!(table, "  above its ceiling of {most}");
                verdict = Verdict::Fails;
            } else if change < 0 && verdict == Verdict::Same {
                verdict = Verdict::Renew;
            }
            if now.calls != was.calls {
                let _ = write!(table, "  calls {} instead of {}", now.calls, was.calls);
                let more = if was.calls >= WITH_LOOKS { LOOK } else { 0 };
                if now.calls > was.calls + more {
                    verdict = Verdict::Fails;
                } else if verdict == Verdict::Same {
                    verdict = Verdict::Renew;
                }
            }
            table.push('\n');
        }
        for gone in self.paths.iter().filter(|was| is.of(&was.path).is_none()) {
            let _ = writeln!(table, "{:<20}{:>8}  is gone", gone.path, gone.instructions);
            verdict = Verdict::Fails;
        }
        (verdict, table)
    }
}

/// A path that calls others so often looks at something until it is there.
const WITH_LOOKS: u64 = 2;
/// Calls of others in a look: at two queues.
const LOOK: u64 = 2;

/// As many instructions are no failure.
fn allowed(was: u64, is_same_compiler: bool) -> u64 {
    let share = if is_same_compiler { SLACK_SHARE } else { SLACK_OF_COMPILER };
    was + SLACK.max((was as f64 * share) as u64)
}

/// More instructions than this are a failure, however close to the committed figure.
fn ceiling(path: &str, is_same_compiler: bool) -> Option<u64> {
    let row = CEILINGS.iter().find(|(name, _)| is_same_compiler && *name == path);
    row.map(|(_, most)| *most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(compiler: &str, paths: &[(&str, u64, u64)]) -> Figures {
        let figure = |(path, instructions, calls): &(&str, u64, u64)| Figure {
            path: (*path).to_owned(),
            instructions: *instructions,
            calls: *calls,
            words: format!("{path} in words"),
        };
        Figures { compiler: compiler.to_owned(), paths: paths.iter().map(figure).collect() }
    }

    fn verdict(was: &[(&str, u64, u64)], is: &[(&str, u64, u64)]) -> Verdict {
        figures("a", was).compare(&figures("a", is)).0
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let some = figures("rustc version 1.2.3 (f 2000-01-01)", &[("a", 100, 0), ("bc", 12, 8)]);
        assert_eq!(Figures::read(&some.written()), Ok(some));
        assert!(Figures::read("a 1").is_err());
    }

    #[test]
    fn a_rise_fails_beyond_two_instructions_or_three_percent() {
        let was = [("small", 20, 0), ("large", 1000, 0)];
        assert_eq!(verdict(&was, &was), Verdict::Same);
        assert_eq!(verdict(&was, &[("small", 22, 0), ("large", 1030, 0)]), Verdict::Same);
        assert_eq!(verdict(&was, &[("small", 23, 0), ("large", 1000, 0)]), Verdict::Fails);
        assert_eq!(verdict(&was, &[("small", 20, 0), ("large", 1031, 0)]), Verdict::Fails);
        // What is saved elsewhere does not make up for it.
        assert_eq!(verdict(&was, &[("small", 23, 0), ("large", 1, 0)]), Verdict::Fails);
    }

    #[test]
    fn fewer_is_told_and_passes() {
        assert_eq!(verdict(&[("a", 20, 1)], &[("a", 19, 1)]), Verdict::Renew);
        assert_eq!(verdict(&[("a", 20, 1)], &[("a", 20, 0)]), Verdict::Renew);
    }

    #[test]
    fn a_call_more_and_paths_that_come_or_go_fail() {
        assert_eq!(verdict(&[("a", 20, 0)], &[("a", 18, 1)]), Verdict::Fails);
        assert_eq!(verdict(&[("a", 20, 0)], &[("a", 20, 0), ("b", 1, 0)]), Verdict::Fails);
        assert_eq!(verdict(&[("a", 20, 0), ("b", 1, 0)], &[("a", 20, 0)]), Verdict::Fails);
    }

    #[test]
    fn a_path_that_waits_may_look_once_more() {
        let was = [("a", 1000, 2)];
        assert_eq!(verdict(&was, &[("a", 1130, 4)]), Verdict::Renew);
        assert_eq!(verdict(&was, &[("a", 1131, 4)]), Verdict::Fails);
        assert_eq!(verdict(&was, &[("a", 1000, 5)]), Verdict::Fails);
    }

    #[test]
    fn another_compiler_may_differ_by_a_tenth() {
        let was = figures("a", &[("path", 100, 0)]);
        let with = |instructions| was.compare(&figures("b", &[("path", instructions, 0)])).0;
        assert_eq!(with(110), Verdict::Renew);
        assert_eq!(with(111), Verdict::Fails);
    }

    #[test]
    fn a_promised_ceiling_has_no_slack_with_the_compiler_noted() {
        let was = figures("a", &[("rdma_write_8", 150, 1)]);
        let by = |compiler, is| was.compare(&figures(compiler, &[("rdma_write_8", is, 1)]));
        assert_eq!(by("a", 150).0, Verdict::Same);
        let (verdict, table) = by("a", 151);
        assert_eq!(verdict, Verdict::Fails);
        assert!(table.contains("above its ceiling of 150"), "{table}");
        assert_eq!(by("b", 154).0, Verdict::Renew);
        // Renewing the file does not raise it.
        let was = [("rdma_write_notify_8", 191, 1)];
        assert_eq!(self::verdict(&was, &was), Verdict::Fails);
    }

    #[test]
    fn the_table_shows_what_rose() {
        let (_, table) =
            figures("a", &[("path", 100, 0)]).compare(&figures("a", &[("path", 125, 0)]));
        assert!(
            table.contains("path                     100     125  +25 +25.0%  too many"),
            "{table}"
        );
    }
}
