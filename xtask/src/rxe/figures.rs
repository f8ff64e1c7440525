//! Figures of perftest and of gaspi-bench, read from what checks print, in one table.

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// Which program with which size, and where.
    pub(super) what: String,
    /// With its unit, and what it is compared with.
    pub(super) value: String,
}

/// The columns that are read, with their units; the first one that a table has counts.
const COLUMNS: [(&str, &str); 3] =
    [("t_typical[usec]", "us"), ("BW average[MB/sec]", "MB/s"), ("BW average[MiB/sec]", "MiB/s")];

/// Reads all tables of perftest in the output of a script, which prints `## NAME` before each, and
/// its lines `= NAME | VALUE`.
pub(super) fn read(output: &str) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut name = "";
    let mut header: Vec<String> = Vec::new();
    for line in output.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("## ") {
            name = found;
            header.clear();
        } else if let Some((what, value)) = figure_of(line) {
            figures.push(Figure { what: what.into(), value: value.into() });
        } else if line.starts_with("#bytes") {
            header = columns(line);
        } else if !header.is_empty() {
            let values: Vec<&str> = line.split_whitespace().collect();
            let figure = COLUMNS.iter().find_map(|(column, unit)| {
                let at = header.iter().position(|found| found == column)?;
                Some((values.get(at)?.parse::<f64>().ok()?, *unit))
            });
            if let (Some((value, unit)), Some(size)) = (figure, values.first()) {
                let value = format!("{value:.2} {unit}");
                figures.push(Figure { what: format!("{name} {size} B"), value });
            }
            header.clear();
        }
    }
    figures
}

/// A figure that a script prints itself.
fn figure_of(line: &str) -> Option<(&str, &str)> {
    let (what, value) = line.strip_prefix("= ")?.split_once('|')?;
    Some((what.trim(), value.trim()))
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
    let mut text = format!("{:<50} {}\n", "figure (in emulation: ratios only)", "value");
    for Figure { what, value } in figures {
        text.push_str(&format!("{what:<50} {value}\n"));
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
        let found: Vec<(&str, &str)> =
            figures.iter().map(|one| (one.what.as_str(), one.value.as_str())).collect();
        let expected = [("ib_write_lat 8 B", "19.75 us"), ("ib_write_bw 65536 B", "18.90 MB/s")];
        assert_eq!(found, expected);
    }

    #[test]
    fn figures_that_a_script_prints_are_read() {
        let figures = read("= raw read, 8 B | 33.10 us, 1.02 x ib_read_lat\n= no figure\n");
        let found: Vec<(&str, &str)> =
            figures.iter().map(|one| (one.what.as_str(), one.value.as_str())).collect();
        assert_eq!(found, [("raw read, 8 B", "33.10 us, 1.02 x ib_read_lat")]);
    }

    #[test]
    fn a_program_that_failed_has_no_figure() {
        assert!(read("## ib_write_lat\nUnable to find the Infiniband/RoCE device\n").is_empty());
    }
}
