//! Figures of perftest, read from its output and set beside each other in one table.

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// Which program with which size, and where.
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) unit: &'static str,
}

/// The columns that are read, with their units; the first one that a table has counts.
const COLUMNS: [(&str, &str); 3] =
    [("t_typical[usec]", "us"), ("BW average[MB/sec]", "MB/s"), ("BW average[MiB/sec]", "MiB/s")];

/// Reads all tables in the output of a script. The script prints `## NAME` before each.
pub(super) fn read(output: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut name = "";
    let mut header: Vec<String> = Vec::new();
    for line in output.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("## ") {
            name = found;
            header.clear();
        } else if line.starts_with("#bytes") {
            header = columns(line);
        } else if !header.is_empty() {
            let values: Vec<&str> = line.split_whitespace().collect();
            let figure = COLUMNS.iter().find_map(|(column, unit)| {
                let at = header.iter().position(|found| found == column)?;
                Some((values.get(at)?.parse().ok()?, *unit))
            });
            if let (Some((value, unit)), Some(size)) = (figure, values.first()) {
                figures.push(Figure { what: format!("{name} {size} B"), value, unit });
            }
            header.clear();
        }
    }
    figures
}

/// The names of columns: some consist of two words, and all but the first ones end in a unit.
fn columns(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut begun = String::new();
    for word in line.split_whitespace() {
        begun.push_str(word);
        if word.starts_with('#') || word.ends_with(']') {
            names.push(std::mem::take(&mut begun));
        } else {
            begun.push(' ');
        }
    }
    names
}

/// The table as text.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut text = format!("{:<44} {:>10}\n", "figure (in emulation: ratios only)", "value");
    for Figure { what, value, unit } in figures {
        text.push_str(&format!("{what:<44} {value:>10.2} {unit}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn figures_of_both_kinds_of_tables_are_read() {
        let latency = "## ib_write_lat\n--------\n \
            #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
            t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
            8       200          13.20          812.00       19.75    \t       25.1  3.1  99.1  \
            812.00\n--------\n";
        let bandwidth = "## ib_write_bw\n \
            #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
            65536      100            21.30              18.90\t\t     0.000302\n";
        let figures = read(&format!("{latency}{bandwidth}"));
        let found: Vec<(&str, f64, &str)> =
            figures.iter().map(|one| (one.what.as_str(), one.value, one.unit)).collect();
        let expected = [("ib_write_lat 8 B", 19.75, "us"), ("ib_write_bw 65536 B", 18.9, "MB/s")];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_program_that_failed_has_no_figure() {
        assert!(read("## ib_write_lat\nUnable to find the Infiniband/RoCE device\n").is_empty());
    }
}
