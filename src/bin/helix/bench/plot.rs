//! One plot: how near each system comes to the perfect bound, workload by workload.

use std::fmt::Write as _;

use super::Name;
use super::figures::Figures;

const LEFT: f64 = 60.0;
const TOP: f64 = 50.0;
const HEIGHT: f64 = 320.0;
const BAR: f64 = 11.0;
const GAP: f64 = 24.0;
/// What was prefetched in the warm-up lifts some runs above their bound.
const MOST: f64 = 1.2;

const fn colour(name: Name) -> &'static str {
    match name {
        Name::Native2 => "#d9d9d9",
        Name::Native4 => "#bdbdbd",
        Name::Native12 => "#969696",
        Name::PoolBatch => "#9ecae1",
        Name::PoolSample => "#6baed6",
        Name::HelixDealt => "#fdae6b",
        Name::Helix => "#e6550d",
        Name::HelixRegroup8 => "#a63603",
    }
}

fn y(share: f64) -> f64 {
    TOP + HEIGHT * (1.0 - share.clamp(0.0, MOST) / MOST)
}

/// An SVG.
pub(super) fn of(figures: &[Figures], systems: &[Name]) -> String {
    let group = BAR * systems.len() as f64 + GAP;
    let width = LEFT + group * figures.len() as f64 + GAP;
    let width = width.max(LEFT + 110.0 * systems.len() as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"16\" font-size=\"13\">Throughput as a share of the perfect bound; \
         the line across a group is what moving whole samples allows</text>\n",
        TOP + HEIGHT + 90.0
    );
    for tick in 0..=6 {
        let (share, at) = (f64::from(tick) / 5.0, y(f64::from(tick) / 5.0));
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{width:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#eee\"/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{:.0} %</text>",
            LEFT - 6.0,
            at + 4.0,
            100.0 * share
        );
    }
    for (i, name) in systems.iter().enumerate() {
        let x = LEFT + 110.0 * i as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{x:.0}\" y=\"26\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0}\" y=\"35\">{}</text>",
            colour(*name),
            x + 14.0,
            name.text()
        );
    }
    for (i, workload) in figures.iter().enumerate() {
        let x = LEFT + GAP / 2.0 + group * i as f64;
        for (j, (name, figure)) in workload.systems.iter().enumerate() {
            let top = y(figure.of_perfect);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{} {}: {:.1} %\
                 </title></rect>",
                x + BAR * j as f64,
                BAR - 1.0,
                TOP + HEIGHT - top,
                colour(*name),
                workload.workload,
                name.text(),
                100.0 * figure.of_perfect
            );
        }
        let (bound, right) = (y(workload.movable), x + group - GAP);
        let _ = writeln!(
            out,
            "<line x1=\"{x:.1}\" x2=\"{right:.1}\" y1=\"{bound:.1}\" y2=\"{bound:.1}\" stroke=\"black\"/>\
             <text transform=\"translate({:.1},{:.0}) rotate(-25)\" text-anchor=\"end\">{}</text>",
            (x + right) / 2.0,
            TOP + HEIGHT + 16.0,
            workload.workload
        );
    }
    out.push_str("</svg>\n");
    out
}
