//! A chart of times by size, as SVG: both axes logarithmic, a line for each library, a legend.

use crate::text::size;
use std::fmt::Write;

/// One line of the chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Bytes and microseconds.
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Distinct for people who see colours differently too; ours is the first.
const COLOURS: [&str; 6] = ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

/// A logarithmic axis.
#[derive(Debug, Clone, Copy)]
struct Axis {
    /// Logarithms of its ends, and where they lie.
    from: f64,
    to: f64,
    at: f64,
    length: f64,
}

impl Axis {
    /// From a power of `base` to another, around all of `values`.
    fn around(values: impl Iterator<Item = f64> + Clone, base: f64, at: f64, length: f64) -> Axis {
        let log = |value: f64| value.log(base);
        let from = values.clone().map(log).fold(f64::INFINITY, f64::min);
        let to = values.map(log).fold(f64::NEG_INFINITY, f64::max);
        let (from, to) = (from.floor(), to.ceil());
        let (from, to) = (from * base.ln(), to.max(from + 1.0) * base.ln());
        Axis { from, to, at, length }
    }

    fn place(self, value: f64) -> f64 {
        self.at + (value.ln() - self.from) / (self.to - self.from) * self.length
    }

    /// The powers of `base` on it.
    fn powers(self, base: f64) -> impl Iterator<Item = f64> {
        let first = (self.from / base.ln()).round() as i32;
        let last = (self.to / base.ln()).round() as i32;
        (first..=last).map(move |power| base.powi(power))
    }
}

/// The chart as a document; none if there is nothing to show.
pub(crate) fn draw(title: &str, lines: &[Line]) -> Option<String> {
    let all = lines.iter().flat_map(|line| &line.points);
    let points: Vec<(f64, f64)> = all.copied().filter(|(x, y)| *x > 0.0 && *y > 0.0).collect();
    if points.is_empty() {
        return None;
    }
    let across = WIDTH - LEFT - RIGHT;
    let up = HEIGHT - TOP - BOTTOM;
    let x = Axis::around(points.iter().map(|point| point.0), 4.0, LEFT, across);
    let y = Axis::around(points.iter().map(|point| point.1), 10.0, HEIGHT - BOTTOM, -up);
    let mut text = String::new();
    let _ = writeln!(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"#ffffff\"/>\n<text x=\"{LEFT}\" y=\"28\" font-size=\"16\">{}</text>",
        escaped(title)
    );
    grid(&mut text, x, y);
    for (index, line) in lines.iter().enumerate() {
        curve(&mut text, line, index, x, y);
    }
    text.push_str("</svg>\n");
    Some(text)
}

fn grid(text: &mut String, x: Axis, y: Axis) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for bytes in x.powers(4.0) {
        let at = x.place(bytes);
        let _ = writeln!(
            text,
            "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#dddddd\"/>\n<text x=\"{at:.1}\" \
             y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            size(bytes as usize)
        );
    }
    for us in y.powers(10.0) {
        let at = y.place(us);
        let _ = writeln!(
            text,
            "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#dddddd\"/>\n<text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{us}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">bytes</text>\n<text x=\"20\" y=\"{}\" \
         transform=\"rotate(-90 20 {1})\" text-anchor=\"middle\">us per call</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 16.0,
        (TOP + bottom) / 2.0,
    );
}

fn curve(text: &mut String, line: &Line, index: usize, x: Axis, y: Axis) {
    let colour = COLOURS[index % COLOURS.len()];
    let width = if index == 0 { 3 } else { 2 };
    let places: Vec<String> = line
        .points
        .iter()
        .filter(|(bytes, us)| *bytes > 0.0 && *us > 0.0)
        .map(|(bytes, us)| format!("{:.1},{:.1}", x.place(*bytes), y.place(*us)))
        .collect();
    let (legend, row) = (WIDTH - RIGHT + 16.0, TOP + 12.0 + 22.0 * index as f64);
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        places.join(" ")
    );
    for place in &places {
        let (x, y) = place.split_once(',').unwrap_or((place, "0"));
        let _ = writeln!(text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
    }
    let _ = writeln!(
        text,
        "<path d=\"M{legend} {row}h24\" stroke=\"{colour}\" stroke-width=\"{width}\"/>\n<text \
         x=\"{}\" y=\"{}\">{}</text>",
        legend + 30.0,
        row + 4.0,
        escaped(&line.name)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Line {
        Line { name: name.to_owned(), points: points.to_vec() }
    }

    #[test]
    fn times_that_grow_by_the_same_factor_are_a_straight_line() {
        let points = [(16.0, 1.0), (64.0, 10.0), (256.0, 100.0)];
        let text = draw("t", &[line("ours", &points)]).unwrap();
        let (left, bottom) = (LEFT, HEIGHT - BOTTOM);
        let (right, middle) = (WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2.0);
        let centre = (TOP + bottom) / 2.0;
        let expected =
            format!("points=\"{left:.1},{bottom:.1} {middle:.1},{centre:.1} {right:.1},{TOP:.1}\"");
        assert!(text.contains(&expected), "{text}");
    }

    #[test]
    fn every_library_is_in_the_legend_and_axes_have_powers() {
        let lines = [line("gaspi", &[(8.0, 0.2)]), line("A & <B>", &[(1e6, 300.0)])];
        let text = draw("sums > 0", &lines).unwrap();
        for words in [">gaspi<", "A &amp; &lt;B&gt;", "sums &gt; 0", ">1K<", ">0.1<", ">1000<"] {
            assert!(text.contains(words), "{words} in {text}");
        }
        assert_eq!(text.matches("<polyline").count(), 2);
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
    }

    #[test]
    fn a_single_point_has_axes_too_and_nothing_has_no_chart() {
        let text = draw("t", &[line("one", &[(64.0, 1.0)])]).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert_eq!(draw("t", &[]), None);
        assert_eq!(draw("t", &[line("none", &[(0.0, 1.0)])]), None);
    }
}
