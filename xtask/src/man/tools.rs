//! Section 1: a page per tool, made from what the tool says to `--help`.
//!
//! Headings are lines at the margin that end with a colon. Below them, options and commands become
//! definitions, everything else is shown as it is; other text at the margin describes the tool.

use std::process::Command;

use super::roff;
use crate::{Result, build, process, workspace};

/// Name and text of each page.
pub(super) fn pages() -> Result<Vec<(&'static str, String)>> {
    let mut pages = Vec::new();
    for tool in build::tools() {
        let help = Help::of(tool, None)?;
        let mut commands = Vec::new();
        for command in help.commands() {
            commands.push((command.to_owned(), Help::of(tool, Some(command))?));
        }
        pages.push((tool, page(tool, &help, &commands)));
    }
    Ok(pages)
}

/// What a tool says, in parts.
#[derive(Debug, Default, PartialEq)]
struct Help {
    usage: Vec<String>,
    /// Paragraphs at the margin.
    text: Vec<String>,
    sections: Vec<(String, Vec<String>)>,
}

impl Help {
    fn of(tool: &str, command: Option<&str>) -> Result<Help> {
        let mut ask = Command::new(workspace::release().join(tool));
        Ok(Help::parse(&process::output(ask.args(command).arg("--help"))?))
    }

    fn parse(help: &str) -> Help {
        let mut parts = Help::default();
        let mut lines = help.lines().map(str::trim_end).peekable();
        while let Some(line) = lines.next() {
            let below = |next: &str| next.is_empty() || next.starts_with(' ');
            if let Some(usage) = line.strip_prefix("Usage:") {
                parts.usage.push(usage.trim().to_owned());
                while let Some(more) = lines.next_if(|next| next.starts_with(' ')) {
                    parts.usage.push(more.trim().to_owned());
                }
            } else if line.ends_with(':') && lines.peek().is_some_and(|next| next.starts_with(' '))
            {
                let mut body = Vec::new();
                while let Some(more) = lines.next_if(|next| below(next)) {
                    body.push(more.to_owned());
                }
                roff::trim_end(&mut body);
                parts.sections.push((line.trim_end_matches(':').to_owned(), body));
            } else if !line.is_empty() || !parts.text.is_empty() {
                parts.text.push(line.to_owned());
            }
        }
        parts
    }

    /// The options, each with its explanation.
    fn options(&self) -> Vec<Vec<String>> {
        let list = self.sections.iter().find(|(heading, _)| heading == "Options");
        list.map(|(_, body)| items(body)).unwrap_or_default()
    }

    /// The commands of a tool that has some.
    fn commands(&self) -> Vec<&str> {
        let list = self.sections.iter().find(|(heading, _)| heading == "Commands");
        list.map(|(_, body)| body.as_slice())
            .unwrap_or_default()
            .iter()
            .filter(|line| indent(line) == 2)
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| *name != "help")
            .collect()
    }
}

fn page(tool: &str, help: &Help, commands: &[(String, Help)]) -> String {
    let mut page = roff::title(tool, 1, "GASPI tools");
    let summary = help.text.first().map_or("", String::as_str).trim_end_matches('.');
    page.push_str(&format!(".SH NAME\n{} \\- {}\n", roff::literal(tool), roff::prose(summary)));
    page.push_str(".SH SYNOPSIS\n");
    page.push_str(&roff::verbatim(&help.usage));
    page.push_str(".SH DESCRIPTION\n");
    page.push_str(&roff::block(&help.text));
    for (heading, body) in &help.sections {
        page.push_str(&format!(".SH \"{}\"\n", roff::literal(&heading.to_uppercase())));
        section(&mut page, body);
    }
    let shared = shared_options(commands);
    for (heading, options) in
        [("OPTIONS OF ALL COMMANDS", &shared.all), ("OPTIONS OF SEVERAL COMMANDS", &shared.several)]
    {
        if !options.is_empty() {
            page.push_str(&format!(".SH \"{heading}\"\n"));
            section(&mut page, &options.concat());
        }
    }
    for (name, help) in commands {
        page.push_str(&format!(".SH \"{} {}\"\n", roff::literal(tool), roff::literal(name)));
        command(&mut page, help, &shared);
    }
    let others: Vec<String> = build::tools()
        .into_iter()
        .filter(|other| *other != tool)
        .map(|other| format!(",\n.BR {} (1)", roff::literal(other)))
        .collect();
    page.push_str(&format!(".SH SEE ALSO\n.BR gaspi (7){}\n", others.concat()));
    page
}

/// Options that are told once, each with its explanation.
#[derive(Debug, Default)]
struct Shared {
    all: Vec<Vec<String>>,
    several: Vec<Vec<String>>,
}

/// Options that several commands explain alike.
fn shared_options(commands: &[(String, Help)]) -> Shared {
    let mut shared = Shared::default();
    let mut counts: Vec<(Vec<String>, usize)> = Vec::new();
    for item in commands.iter().flat_map(|(_, help)| help.options()) {
        match counts.iter_mut().find(|(known, _)| *known == item) {
            Some((_, count)) => *count += 1,
            None => counts.push((item, 1)),
        }
    }
    for (item, count) in counts {
        if count > 1 {
            let list = if count == commands.len() { &mut shared.all } else { &mut shared.several };
            list.push(item);
        }
    }
    shared
}

/// What a command says that is not told for others too.
fn command(page: &mut String, help: &Help, shared: &Shared) {
    page.push_str(&roff::verbatim(&help.usage));
    page.push_str(&roff::block(&help.text));
    let mut also = Vec::new();
    for (heading, body) in &help.sections {
        let mut own = Vec::new();
        for item in items(body) {
            if shared.several.contains(&item) {
                also.extend(item.first().map(|line| term(line).to_owned()));
            } else if !shared.all.contains(&item) {
                own.extend(item);
            }
        }
        if !own.is_empty() {
            page.push_str(&format!(".SS \"{}\"\n", roff::literal(heading)));
            section(page, &own);
        }
    }
    if !also.is_empty() {
        let also: Vec<String> =
            also.iter().map(|option| format!("\\fB{}\\fR", roff::literal(option))).collect();
        page.push_str(&format!(".PP\nOptions told above:\n{}.\n", also.join(",\n")));
    }
}

/// The option, argument or command that a line explains.
fn term(line: &str) -> &str {
    let words = line.trim();
    words.split_once("  ").map_or(words, |(term, _)| term)
}

/// The parts of a section that begin with a line which is indented little, without empty lines at
/// their ends.
fn items(body: &[String]) -> Vec<Vec<String>> {
    let mut items: Vec<Vec<String>> = Vec::new();
    for line in body {
        match items.last_mut() {
            Some(item) if line.is_empty() || indent(line) >= 8 => item.push(line.clone()),
            _ => items.push(vec![line.clone()]),
        }
    }
    for item in &mut items {
        roff::trim_end(item);
    }
    items
}

/// What stands below a heading.
fn section(page: &mut String, body: &[String]) {
    let is_list = body.iter().find(|line| !line.is_empty()).is_some_and(|line| {
        let words = line.trim_start();
        words.starts_with(['-', '<', '[']) || (indent(line) == 2 && words.contains("  "))
    });
    if !is_list {
        page.push_str(&roff::verbatim(body));
        return;
    }
    let mut was_empty = false;
    // Inside of a list of values that belongs to an option.
    let mut is_inner = false;
    for line in body {
        let words = line.trim();
        if words.is_empty() {
            was_empty = true;
            continue;
        }
        let value = words.strip_prefix("- ").filter(|_| indent(line) >= 8);
        if is_inner && (indent(line) < 8 || was_empty && value.is_none()) {
            page.push_str(".RE\n");
            is_inner = false;
        }
        if indent(line) < 8 {
            let term = term(line);
            let meaning = &words[term.len()..];
            page.push_str(&format!(".TP\n\\fB{}\\fR\n", roff::literal(term)));
            if !meaning.is_empty() {
                page.push_str(&format!("{}\n", roff::prose(meaning.trim())));
            }
        } else if let Some(value) = value {
            page.push_str(if is_inner { "" } else { ".RS\n" });
            page.push_str(&format!(".IP \\(bu 2\n{}\n", roff::prose(value)));
            is_inner = true;
        } else {
            page.push_str(if was_empty { ".IP\n" } else { "" });
            page.push_str(&format!("{}\n", roff::prose(words)));
        }
        was_empty = false;
    }
    page.push_str(if is_inner { ".RE\n" } else { "" });
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELP: &str = "Does things\n\nUsage: tool [OPTIONS]\n       tool -m FILE\n\nCommands:\n  \
        one   The first\n  help  Print this\n\nOptions:\n  -n, --nodes <N>  How many\n      \
        --long\n          \
        Long text\n\n          Values:\n          - a: one\n          - b: two\n\n          \
        Second part\n\nIt does them well.\nAlways:\nyes.\n\nExamples:\n  tool -n 4    four\n";

    #[test]
    fn help_is_taken_apart() {
        let help = Help::parse(HELP);
        assert_eq!(help.usage, ["tool [OPTIONS]", "tool -m FILE"]);
        assert_eq!(help.commands(), ["one"]);
        let headings: Vec<&str> = help.sections.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(headings, ["Commands", "Options", "Examples"]);
        assert!(help.text.contains(&"It does them well.".to_owned()), "{help:?}");
        assert!(help.text.contains(&"Always:".to_owned()), "{help:?}");
    }

    #[test]
    fn what_every_command_takes_is_told_once() {
        let help = |own: &str| {
            let options = format!("Options:\n  -n <N>\n          How many\n\n  {own}  Own");
            Help::parse(&format!("Command\n\nUsage: tool one\n\n{options}\n"))
        };
        let commands = [
            ("one".to_owned(), help("--x")),
            ("two".to_owned(), help("--y")),
            ("three".to_owned(), help("--x")),
        ];
        let page = page("tool", &Help::parse(HELP), &commands);
        assert_eq!(page.matches("\\fB\\-n <N>\\fR").count(), 1, "{page}");
        assert_eq!(page.matches("\n\\fB\\-\\-x\\fR\nOwn\n").count(), 1, "{page}");
        assert_eq!(page.matches("told above:\n\\fB\\-\\-x\\fR.\n").count(), 2, "{page}");
        assert_eq!(page.matches("\\fB\\-\\-y\\fR").count(), 1, "{page}");
    }

    #[test]
    fn options_are_definitions() {
        let page = page("tool", &Help::parse(HELP), &[]);
        for part in [
            ".SH NAME\ntool \\- Does things\n",
            ".TP\n\\fB\\-n, \\-\\-nodes <N>\\fR\nHow many\n",
            ".TP\n\\fB\\-\\-long\\fR\nLong text\n.IP\nValues:\n.RS\n.IP \\(bu 2\na: one\n\
             .IP \\(bu 2\nb: two\n.RE\n.IP\nSecond part\n",
            ".SH \"OPTIONS\"\n",
        ] {
            assert!(page.contains(part), "no {part:?} in\n{page}");
        }
    }
}
