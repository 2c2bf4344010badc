//! The table of ratios, and the rows whose names are fixed.

use helix_shm::results::Row;

use crate::bench::What;
use crate::rounds::{ENOUGH, Group, Item, Regime};

const COMMAND: &str = "make bench-ring";

/// The regimes that a group is told apart by: those of the line, or none.
fn regimes(group: &Group) -> Vec<(&'static str, Option<Regime>)> {
    if group.floor == What::Floor {
        vec![("near", Some(Regime::Near)), ("far", Some(Regime::Far))]
    } else {
        vec![("", None)]
    }
}

fn keep(regime: Option<Regime>) -> impl Fn(f64) -> bool {
    move |floor| regime.is_none_or(|regime| Regime::of(floor) == regime)
}

/// The table, group by group.
pub fn table(groups: &[Group]) -> String {
    let mut out = String::new();
    for group in groups {
        let regimes = regimes(group);
        out += &format!("\n{:<40}", group.title);
        for (name, _) in &regimes {
            out += &format!("{:>12} {:>11} {:>5}", format!("{name} x floor"), "ns", "n");
        }
        out += &format!("{:>9}\n", "dropped");
        out += &format!("  {:<38}", group.floor_name);
        for (_, regime) in &regimes {
            out += &format!("{:>12} {:>11} {:>5}", "1", floor(group, *regime), "");
        }
        out += "\n";
        for item in &group.items {
            out += &format!("  {:<38}", item.name);
            for (_, regime) in &regimes {
                let (ratio, kept) = item.ratio(keep(*regime));
                let ratio = ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
                let took = item.took(keep(*regime)).map_or("-".to_owned(), |ns| format!("{ns:.1}"));
                out += &format!("{ratio:>12} {took:>11} {kept:>5}");
            }
            out += &format!("{:>9}\n", item.dropped);
        }
    }
    out
}

/// The median floor of a regime.
fn floor(group: &Group, regime: Option<Regime>) -> String {
    let samples = group.items.iter().flat_map(|item| &item.samples);
    let mut floors: Vec<f64> = samples.map(|s| s.1).filter(|&f| keep(regime)(f)).collect();
    floors.sort_by(f64::total_cmp);
    floors.get(floors.len() / 2).map_or("-".to_owned(), |ns| format!("{ns:.1}"))
}

/// The rows, and a line for each that could not be had.
pub fn rows(groups: &[Group]) -> (Vec<Row>, Vec<String>) {
    let mut report = Report { groups, rows: Vec::new(), missing: Vec::new() };
    for (name, regime) in [("near", Regime::Near), ("far", Regime::Far)] {
        report.row(
            &format!("ring.one_way_vs_floor.{name}"),
            "<= 1.25",
            report.ratio("one way, polled", "helix ring", Some(regime)),
        );
    }
    let [latency, rate, crowd] =
        ["one way, polled", "a message of a stream, polled", "a message of many producers, threads"];
    let bound = report.between("one way, polled", "helix ring", "a word on a line of its sender's");
    report.row("ring.one_way_vs_two_lines", "", bound.into_iter().reduce(f64::max));
    let busy = report.between("one way, polled", "helix ring", "a word on a line, no pause");
    report.row("ring.one_way_vs_busy_floor", "", busy.into_iter().reduce(f64::max));
    // Of the regimes that occurred the worse one counts.
    let worst = |ratios: Vec<f64>| ratios.into_iter().reduce(f64::max);
    let least = |ratios: Vec<f64>| ratios.into_iter().map(f64::recip).reduce(f64::min);
    let between = |title, ours, theirs| report.between(title, ours, theirs);
    let full_latency = worst(between(latency, "helix full path", "iceoryx2"));
    let full_rate = least(between(rate, "helix full path", "iceoryx2"));
    let many = least(between(crowd, "helix matrix + bell", "ArrayQueue"));
    let [same, other] = ["wake a sleeper on the same core", "wake a sleeper on another core"];
    let bell = report.ratio(same, "helix bell", None);
    let event = worst(between(same, "helix bell", "iceoryx2 event"));
    let bell_other = report.ratio(other, "helix bell", None);
    let event_other = worst(between(other, "helix bell", "iceoryx2 event"));
    let busy = report.ratio("publish, consumer looks all the time", "helix push + ring", None);
    let idle = report.ratio("publish, consumer awake and busy", "helix push + ring", None);
    report.row("ring.full_path_latency_vs_iceoryx2", "<= 0.5", full_latency);
    report.row("ring.full_path_rate_vs_iceoryx2", ">= 4", full_rate);
    report.row("ring.many_producer_vs_arrayqueue", ">= 2", many);
    report.row("ring.wake_vs_eventfd", "<= 1.15", bell);
    report.row("ring.wake_vs_iceoryx2", "<= 0.45", event);
    // The dearer of the two.
    report.row("ring.publish_vs_fence", "<= 3", busy.zip(idle).map(|(a, b)| a.max(b)));
    report.row("ring.publish_vs_fence.watched", "", busy);
    report.row("ring.publish_vs_fence.unwatched", "", idle);
    report.row("ring.wake_vs_eventfd.other_core", "", bell_other);
    report.row("ring.wake_vs_iceoryx2.other_core", "", event_other);
    (report.rows, report.missing)
}

struct Report<'a> {
    groups: &'a [Group],
    rows: Vec<Row>,
    missing: Vec<String>,
}

impl Report<'_> {
    fn item(&self, title: &str, name: &str) -> (&Group, &Item) {
        let group = self.groups.iter().find(|g| g.title == title).expect("a group of that title");
        (group, group.items.iter().find(|i| i.name == name).expect("an item of that name"))
    }

    /// To the floor.
    fn ratio(&self, title: &str, name: &str, regime: Option<Regime>) -> Option<f64> {
        self.item(title, name).1.ratio(keep(regime)).0
    }

    /// Ours to theirs, both as ratios to the floor, in each regime that occurred.
    fn between(&self, title: &str, ours: &str, theirs: &str) -> Vec<f64> {
        let regimes = regimes(self.item(title, ours).0);
        let ratios = regimes
            .iter()
            .map(|&(_, regime)| Some(self.ratio(title, ours, regime)? / self.ratio(title, theirs, regime)?));
        ratios.flatten().collect()
    }

    fn row(&mut self, name: &str, target: &str, value: Option<f64>) {
        match value {
            Some(value) => self.rows.push(Row::new(name, value, "", target, COMMAND)),
            None => self.missing.push(format!("{name}: fewer than {ENOUGH} undisturbed bursts: no row")),
        }
    }
}

/// The rows as text, those that miss marked.
pub fn verdict(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let word = match (row.target.is_empty(), row.holds) {
            (true, _) => "",
            (_, true) => "holds",
            (_, false) => "MISSED",
        };
        format!("{:<40} {:>8.2}  {:<8} {word}\n", row.name, row.value, row.target)
    };
    rows.iter().map(line).collect()
}
