//! Section 3: a page per procedure, from the headers, the Fortran modules and the conformance
//! table.

use super::headers::{self, Chapter, Procedure};
use super::roff;
use crate::{Result, workspace};

const FORTRAN: [(&str, &str); 3] = [
    ("gaspi", "gaspi.f90"),
    ("gaspi_ext", "gaspi_ext.f90"),
    ("gaspi_collectives", "gaspi_collectives.f90"),
];

/// Name and text of each page.
pub(super) fn pages(chapters: &[Chapter]) -> Result<Vec<(String, String)>> {
    let table = workspace::source("docs/conformance.md")?;
    let mut modules = Vec::new();
    for (module, file) in FORTRAN {
        modules.push((module, workspace::source(&format!("include/fortran/{file}"))?));
    }
    let mut pages = Vec::new();
    for chapter in chapters {
        for procedure in &chapter.procedures {
            let page = page(chapter, procedure, &modules, &table);
            pages.push((procedure.name.clone(), page));
        }
    }
    Ok(pages)
}

/// What holds for every procedure, from the opening of GASPI.h.
pub(super) fn conventions() -> Result<String> {
    let lines = headers::opening("GASPI.h")?;
    let list: Vec<&String> = lines
        .iter()
        .skip_while(|line| !line.trim_start().starts_with("- "))
        .take_while(|line| !line.is_empty())
        .collect();
    if list.is_empty() {
        return Err("include/GASPI.h does not open with a list of conventions".into());
    }
    Ok(roff::block(&list).trim_end().to_owned())
}

/// All procedures by chapter, for the overview.
pub(super) fn list(chapters: &[Chapter]) -> String {
    let mut out = String::new();
    for Chapter { header, title, procedures, .. } in chapters {
        out.push_str(&format!(".SS \"{} (<{header}>)\"\n.ad l\n.nh\n", roff::literal(title)));
        let names: Vec<&str> = procedures.iter().map(|procedure| procedure.name.as_str()).collect();
        out.push_str(&references(&names));
        out.push_str(".hy\n.ad b\n");
    }
    out.trim_end().to_owned()
}

fn page(
    chapter: &Chapter,
    procedure: &Procedure,
    modules: &[(&str, String)],
    table: &str,
) -> String {
    let name = &procedure.name;
    let mut page = roff::title(name, 3, "GASPI procedures");
    let summary = summary(&procedure.text);
    page.push_str(&format!(".SH NAME\n{name}, p{name} \\- {}\n", roff::prose(&summary)));
    synopsis(&mut page, chapter.header, procedure, modules);
    page.push_str(".SH DESCRIPTION\n");
    page.push_str(&roff::block(&procedure.text));
    for (argument, meaning) in &procedure.arguments {
        page.push_str(&format!(".TP\n.I {}\n{}\n", roff::literal(argument), roff::prose(meaning)));
    }
    page.push_str(
        ".PP\nWhat holds for all procedures \\(en timeouts, checked arguments, threads, \
         units \\(en is in\n.BR gaspi (7).\n",
    );
    if !procedure.result.is_empty() {
        page.push_str(&format!(".SH RETURN VALUE\n{}\n", roff::prose(&procedure.result)));
    }
    if !chapter.text.is_empty() {
        page.push_str(&format!(".SH NOTES\n{}", roff::block(&chapter.text)));
    }
    standards(&mut page, name, table);
    let others: Vec<&str> = chapter
        .procedures
        .iter()
        .map(|other| other.name.as_str())
        .filter(|other| other != name)
        .collect();
    page.push_str(".SH SEE ALSO\n.ad l\n.nh\n.BR gaspi (7),\n.BR gaspi_run (1)");
    if others.is_empty() {
        page.push('\n');
    } else {
        page.push_str(&format!(",\n{}", references(&others)));
    }
    page
}

fn synopsis(page: &mut String, header: &str, procedure: &Procedure, modules: &[(&str, String)]) {
    page.push_str(&format!(".SH SYNOPSIS\n.nf\n.B #include <{header}>\n.PP\n"));
    for line in &procedure.declaration {
        page.push_str(&format!("\\fB{}\\fR\n", roff::literal(line)));
    }
    page.push_str(".fi\n");
    for (module, source) in modules {
        let Some(interface) = fortran(source, &procedure.name) else { continue };
        page.push_str(&format!(".PP\nFortran:\n.PP\n.nf\n.B use {module}\n.PP\n"));
        for line in interface {
            page.push_str(&format!("{}\n", roff::literal(line)));
        }
        page.push_str(".fi\n");
    }
    page.push_str(".PP\nLink with\n.B \\-lgaspi\n");
}

/// The first sentence.
fn summary(text: &[impl AsRef<str>]) -> String {
    let lines = text.iter().map(AsRef::as_ref);
    let first: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let first = first.join(" ");
    let sentence = first.split_once(". ").map_or(first.as_str(), |(sentence, _)| sentence);
    sentence.trim_end_matches('.').to_owned()
}

/// The interface of `name` in a Fortran module, without what every interface repeats.
fn fortran<'a>(source: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let begins = [format!("function {name}("), format!("subroutine {name}(")];
    let ends = [format!("end function {name}"), format!("end subroutine {name}")];
    let mut lines = source.lines().map(|line| line.strip_prefix("    ").unwrap_or(line));
    let first = lines.find(|line| begins.iter().any(|begin| line.starts_with(begin)))?;
    let mut found = vec![first];
    for line in lines {
        if line.trim() != "import" {
            found.push(line);
        }
        if ends.iter().any(|end| line.trim() == end) {
            return Some(found);
        }
    }
    None
}

/// What the conformance table says of a procedure.
fn standards(page: &mut String, name: &str, table: &str) {
    let start = format!("| `{name}` |");
    let Some(row) = table.lines().find(|line| line.starts_with(&start)) else { return };
    let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
    let [_, section, _, remarks, ..] = cells.as_slice() else { return };
    page.push_str(".SH STANDARDS\n");
    if *section == "-" {
        page.push_str("Not part of GASPI 17.1.\n");
    } else {
        page.push_str(&format!("GASPI 17.1, section {section}.\n"));
    }
    let remarks = remarks.trim_matches([' ', '|']);
    if !remarks.is_empty() {
        page.push_str(&format!("In this library: {}.\n", roff::prose(remarks)));
    }
}

fn references(names: &[&str]) -> String {
    let lines: Vec<String> = names.iter().map(|name| format!(".BR {name} (3)")).collect();
    format!("{}\n", lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chapter_gives_whole_pages() {
        let chapters = headers::read().expect("headers");
        let pages = pages(&chapters).expect("pages");
        let (_, page) = pages
            .iter()
            .find(|(name, _)| name == "gaspi_write_notify")
            .expect("gaspi_write_notify");
        for part in [
            "\ngaspi_write_notify, pgaspi_write_notify \\- Posts a write and a notification",
            "#include <GASPI.h>",
            "gaspi_notification_t notification_value",
            "end function gaspi_write_notify",
            ".SH RETURN VALUE",
            "GASPI 17.1, section",
            ".BR gaspi_wait (3)",
        ] {
            assert!(page.contains(part), "no {part:?} in\n{page}");
        }
        for (name, page) in &pages {
            assert!(page.contains(".SH STANDARDS"), "{name}: not in the conformance table\n{page}");
        }
    }

    #[test]
    fn the_summary_is_one_sentence() {
        assert_eq!(summary(&["Frees a thing. Local; the", "rest."]), "Frees a thing");
        assert_eq!(summary(&["Takes it", "away.", "", "More."]), "Takes it away");
    }
}
