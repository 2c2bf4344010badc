//! The table and the rows.

use std::fmt::Write as _;
use std::time::Duration;

use helix_shm::results::Row;

use super::args::Contender;
use super::metrics::{Bound, Outcome, Reference, Summary};

/// One policy's run with its numbers.
pub(crate) struct Entry {
    pub(crate) who: Contender,
    pub(crate) outcome: Outcome,
    pub(crate) summary: Summary,
}

/// All that is reported.
pub(crate) struct Report {
    pub(crate) entries: Vec<Entry>,
    pub(crate) bound: Bound,
    /// The two thresholds of a missed deadline.
    pub(crate) thresholds: [Duration; 2],
    /// The first step in which a policy's stream differs from the first one's.
    pub(crate) difference: Option<(Contender, usize)>,
    /// How the first policy's pixels compare with those of the calibration.
    pub(crate) reference: Reference,
    pub(crate) command: String,
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

type Column<'a> = Box<dyn Fn(&Entry) -> String + 'a>;

impl Report {
    /// The table, a policy a column.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        let widest = 30;
        let _ = write!(out, "{:widest$}", "");
        for entry in &self.entries {
            let _ = write!(out, "{:>12}", entry.who.name());
        }
        let _ = writeln!(out, "{:>12}", "bound");
        for (label, cell, bound) in self.lines() {
            let _ = write!(out, "{label:widest$}");
            for entry in &self.entries {
                let _ = write!(out, "{:>12}", cell(entry));
            }
            let _ = writeln!(out, "{bound:>12}");
        }
        out
    }

    fn lines(&self) -> Vec<(String, Column<'_>, String)> {
        let time =
            |f: fn(&Summary) -> Duration| -> Column<'_> { Box::new(move |e| format!("{:.1}", ms(f(&e.summary)))) };
        let miss = |i: usize| -> Column<'_> { Box::new(move |e| format!("{:.1} %", e.summary.misses[i] * 100.0)) };
        let [theta, relative] = self.thresholds.map(ms);
        vec![
            (
                "samples a second".into(),
                Box::new(|e: &Entry| format!("{:.2}", e.summary.throughput)) as Column<'_>,
                format!("{:.2}", self.bound.throughput),
            ),
            (
                "  of the bound".into(),
                Box::new(|e| format!("{:.0} %", e.summary.throughput / self.bound.throughput * 100.0)),
                "100 %".into(),
            ),
            (format!("waits above {theta} ms"), miss(0), "0.0 %".into()),
            (format!("waits above {relative:.0} ms (5 %)"), miss(1), "0.0 %".into()),
            ("mean input wait, ms".into(), time(|s| s.wait_mean), "0.0".into()),
            ("p95 input wait, ms".into(), time(|s| s.wait_p95), "0.0".into()),
            ("p99 input wait, ms".into(), time(|s| s.wait_p99), "0.0".into()),
            ("longest input wait, ms".into(), time(|s| s.wait_max), "0.0".into()),
            (
                "idle at the barrier".into(),
                Box::new(|e| format!("{:.1} %", e.summary.barrier_idle * 100.0)),
                String::new(),
            ),
            ("bytes copied after decoding".into(), Box::new(|e| e.outcome.copied.to_string()), "0".into()),
            ("samples skipped".into(), Box::new(|e| e.skipped().to_string()), String::new()),
        ]
    }

    /// The rows of `demo.json`.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row =
            |name: &str, value, unit, target| Row::new(format!("demo.{name}"), value, unit, target, &self.command);
        let equal = if self.is_right() { 1.0 } else { 0.0 };
        let most = |f: fn(&Entry) -> f64| self.entries.iter().map(f).fold(0.0, f64::max);
        let mut rows = vec![
            row("stream_equal", equal, "", "= 1"),
            row("copied_bytes", most(|e| e.outcome.copied as f64), "B", "= 0"),
            row("skipped", most(|e| e.skipped() as f64), "samples", ""),
            row("throughput.bound", self.bound.throughput, "samples/s", ""),
            row("theta_5pct_ms", ms(self.thresholds[1]), "ms", ""),
        ];
        for Entry { who, summary: s, .. } in &self.entries {
            let who = who.name();
            for (name, value, unit) in [
                ("throughput", s.throughput, "samples/s"),
                ("miss_rate", s.misses[0], ""),
                ("miss_rate_5pct", s.misses[1], ""),
                ("wait_mean_ms", ms(s.wait_mean), "ms"),
                ("wait_p95_ms", ms(s.wait_p95), "ms"),
                ("wait_p99_ms", ms(s.wait_p99), "ms"),
                ("wait_max_ms", ms(s.wait_max), "ms"),
                ("barrier_idle", s.barrier_idle, ""),
                ("of_bound", s.throughput / self.bound.throughput, ""),
            ] {
                rows.push(row(&format!("{name}.{who}"), value, unit, ""));
            }
        }
        let of = |who| self.entries.iter().find(|e| e.who == who).map(|e| e.summary.throughput);
        for (name, other) in [("helix_vs_local", Contender::Local), ("helix_vs_pool", Contender::Pool)] {
            if let (Some(helix), Some(other)) = (of(Contender::Helix), of(other)) {
                rows.push(row(name, helix / other, "", ">= 1"));
            }
        }
        rows
    }

    /// Whether all policies delivered the same, and what a plain decoder makes of the same clips.
    pub(crate) fn is_right(&self) -> bool {
        self.difference.is_none() && self.reference.different == 0
    }

    /// What stands below the table, a line each.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let Reference { compared, different } = self.reference;
        let Bound { compute, decode, .. } = self.bound;
        let mut lines = vec![
            self.verdict(),
            match different {
                0 => format!("{compared} of them were also decoded without daemon, ring and worker: the same pixels"),
                n => format!(
                    "PIXELS DIFFER in {n} of {compared} samples from those decoded without daemon, ring and worker"
                ),
            },
            format!(
                "bound: the longer of balanced compute without waits ({:.1} s) and decoding on all cores without pause ({:.1} s)",
                compute.as_secs_f64(),
                decode.as_secs_f64()
            ),
        ];
        for entry in self.entries.iter().filter(|e| e.summary.late > 0.01) {
            let (who, late) = (entry.who.name(), entry.summary.late * 100.0);
            lines.push(format!(
                "{who}: uploading and hashing outlasted the emulated compute for {late:.0} % of the time; these numbers are too low"
            ));
        }
        // A clip is skipped as often as it is used, for one reason.
        let bad: std::collections::BTreeSet<String> = (self.entries.iter().flat_map(|e| &e.outcome.bad))
            .map(|b| format!("skipped each time: {} ({}: {})", b.path, b.stage, b.reason))
            .collect();
        lines.extend(bad);
        lines
    }

    /// The verdict on the streams, in a line.
    fn verdict(&self) -> String {
        let Some(first) = self.entries.first() else { return String::new() };
        match self.difference {
            Some((who, step)) => format!(
                "STREAMS DIFFER: in step {step} {} did not deliver the samples and pixels that {} did",
                who.name(),
                first.who.name()
            ),
            None => {
                let digest = first.outcome.steps.iter().fold(0u128, |d, s| d.rotate_left(1) ^ s.digest().sum);
                let steps = first.outcome.steps.len();
                let delivered: usize = first.outcome.steps.iter().map(|s| s.digest().samples).sum();
                let who = self.entries.iter().map(|e| e.who.name()).collect::<Vec<_>>().join(", ");
                format!(
                    "{who}: the same {delivered} samples with the same pixels in each of {steps} steps (xxh3 {digest:032x})"
                )
            }
        }
    }
}

impl Entry {
    fn skipped(&self) -> usize {
        self.outcome.steps.iter().map(|s| s.digest().skipped).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(difference: Option<(Contender, usize)>) -> Report {
        let summary = |throughput| Summary {
            throughput,
            misses: [0.5, 0.25],
            wait_mean: Duration::from_millis(2),
            wait_p95: Duration::from_millis(4),
            wait_p99: Duration::from_millis(5),
            wait_max: Duration::from_millis(6),
            barrier_idle: 0.1,
            late: 0.0,
        };
        let entry = |who, throughput| Entry { who, outcome: Outcome::default(), summary: summary(throughput) };
        Report {
            entries: vec![entry(Contender::Local, 4.0), entry(Contender::Helix, 6.0)],
            bound: Bound { throughput: 8.0, compute: Duration::ZERO, decode: Duration::ZERO },
            thresholds: [Duration::from_millis(1), Duration::from_millis(43)],
            difference,
            reference: Reference { compared: 9, different: 0 },
            command: "make demo".into(),
        }
    }

    #[test]
    fn rows_have_the_fixed_names_and_only_of_policies_that_ran() {
        let rows = report(None).rows();
        let value = |name: &str| rows.iter().find(|r| r.name == name).map(|r| (r.value, r.holds));
        assert_eq!(value("demo.stream_equal"), Some((1.0, true)));
        assert_eq!(value("demo.copied_bytes"), Some((0.0, true)));
        assert_eq!(value("demo.throughput.helix"), Some((6.0, true)));
        assert_eq!(value("demo.miss_rate.local"), Some((0.5, true)));
        assert_eq!(value("demo.wait_p95_ms.helix"), Some((4.0, true)));
        assert_eq!(value("demo.helix_vs_local"), Some((1.5, true)));
        assert_eq!(value("demo.helix_vs_pool"), None);
        let names: std::collections::HashSet<_> = rows.iter().map(|r| &r.name).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn a_difference_is_named_and_does_not_hold() {
        let report = report(Some((Contender::Helix, 7)));
        assert!(report.verdict().contains("step 7 helix"), "{}", report.verdict());
        assert!(report.rows().iter().any(|r| r.name == "demo.stream_equal" && !r.holds));
    }

    #[test]
    fn the_table_has_a_column_for_each_policy_and_the_bound() {
        let table = report(None).table();
        assert!(table.lines().next().unwrap().split_whitespace().eq(["local", "helix", "bound"]), "{table}");
        assert!(table.contains("waits above 43 ms"), "{table}");
        let ends: std::collections::HashSet<_> =
            table.lines().filter(|l| !l.trim_start().starts_with("idle")).map(|l| l.chars().count()).collect();
        assert!(ends.len() <= 2, "columns are not aligned:\n{table}");
    }
}
