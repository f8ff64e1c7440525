//! The manual pages of the installed tree.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use gaspi_tests::{Result, root, run_compiler};

use crate::{Verdict, layouts};

/// Requests that the pages use. Any other line that begins with a dot or a quote is text that was
/// not escaped, and would not be shown.
const REQUESTS: [&str; 19] = [
    ".TH", ".SH", ".SS", ".PP", ".TP", ".IP", ".B", ".I", ".BR", ".BI", ".IR", ".nf", ".fi", ".nh",
    ".hy", ".ad", ".so", ".RS", ".RE",
];

/// Every procedure has a page, under its profiling name too.
pub(crate) fn procedures(prefix: &Path) -> Verdict {
    let table = std::fs::read_to_string(root().join("docs/conformance.md"))?;
    let mut count = 0;
    for name in table.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()) {
        let page = read(prefix, &format!("man3/{name}.3"))?;
        for part in [format!("{name}, p{name} \\- "), ".SH SYNOPSIS".into(), "#include".into()] {
            if !page.contains(&part) {
                return Err(format!("no {part:?} in the page of {name}:\n{page}").into());
            }
        }
        let link = read(prefix, &format!("man3/p{name}.3"))?;
        if link != format!(".so man3/{name}.3\n") {
            return Err(format!("the page of p{name} is {link:?}").into());
        }
        count += 1;
    }
    if count < 100 { Err(format!("only {count} procedures").into()) } else { Ok(()) }
}

/// Every option that a tool or one of its commands tells is on its page.
pub(crate) fn tools(prefix: &Path) -> Verdict {
    for tool in layouts::files(&prefix.join("bin"))? {
        let name = tool.display().to_string();
        let page = read(prefix, &format!("man1/{name}.1"))?.replace('\\', "");
        let help = run_compiler(Command::new(prefix.join("bin").join(&tool)).arg("--help"))?;
        let mut helps = vec![help.clone()];
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        for command in commands.take_while(|line| line.starts_with("  ")) {
            let command = command.split_whitespace().next().unwrap_or_default();
            if command != "help" && !command.is_empty() {
                let mut ask = Command::new(prefix.join("bin").join(&tool));
                helps.push(run_compiler(ask.arg(command).arg("--help"))?);
            }
        }
        let options: BTreeSet<&str> = helps
            .iter()
            .flat_map(|help| help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')))
            .filter(|word| word.starts_with("--") && word.len() > 2)
            .collect();
        if !options.contains("--help") {
            return Err(format!("{name} --help tells no options:\n{help}").into());
        }
        for option in options {
            if !page.contains(option) {
                return Err(format!("{option} is not in the page of {name}").into());
            }
        }
    }
    Ok(())
}

/// No line of text is taken for a request.
pub(crate) fn requests(prefix: &Path) -> Verdict {
    let man = prefix.join("share/man");
    let pages = layouts::files(&man)?;
    for page in &pages {
        let text = std::fs::read_to_string(man.join(page))?;
        for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
            let request = line.split(' ').next().unwrap_or_default();
            if !REQUESTS.contains(&request) {
                return Err(format!("{}: {line:?} is not a request", page.display()).into());
            }
        }
        // Names of placeholders stand between two of these.
        if text.split('@').skip(1).any(|name| name.chars().all(|c| c.is_ascii_uppercase())) {
            return Err(format!("{}: a placeholder was not replaced", page.display()).into());
        }
    }
    Ok(())
}

fn read(prefix: &Path, page: &str) -> Result<String> {
    let file = prefix.join("share/man").join(page);
    std::fs::read_to_string(&file)
        .map_err(|error| gaspi_tests::Failed(format!("{}: {error}", file.display())))
}
