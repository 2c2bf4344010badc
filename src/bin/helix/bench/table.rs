//! The table.

use std::fmt::Write as _;

use super::Name;
use super::figures::{Figure, Figures, arithmetic, geometric};

const HEAD: &str = "samples/s  perfect  movable  misses     mean      p95      p99  longest  barrier";

fn line(f: &Figure) -> String {
    format!(
        "{:9.2} {:7.1}% {:7.1}% {:6.1}% {:8.3} {:8.3} {:8.3} {:8.3} {:7.1}%",
        f.throughput,
        100.0 * f.of_perfect,
        100.0 * f.of_movable,
        100.0 * f.miss_rate,
        f.wait_mean,
        f.wait_p95,
        f.wait_p99,
        f.wait_max,
        100.0 * f.barrier
    )
}

/// All figures: a workload and system a line, then the means. Waits are seconds.
pub(super) fn of(figures: &[Figures], systems: &[Name]) -> String {
    let mut out = format!("{:20} {:14} {HEAD}\n", "workload", "system");
    for workload in figures {
        for (name, figure) in &workload.systems {
            let _ = writeln!(out, "{:20} {:14} {}", workload.workload, name.text(), line(figure));
        }
    }
    let _ =
        writeln!(out, "\nover {} workloads: geometric means of throughput, arithmetic of the rest", figures.len());
    for name in systems {
        let all = || figures.iter().filter_map(|w| w.of(*name));
        let figure = Figure {
            throughput: geometric(all().map(|f| f.throughput)),
            of_perfect: geometric(all().map(|f| f.of_perfect)),
            of_movable: geometric(all().map(|f| f.of_movable)),
            miss_rate: arithmetic(all().map(|f| f.miss_rate)),
            wait_mean: arithmetic(all().map(|f| f.wait_mean)),
            wait_p95: arithmetic(all().map(|f| f.wait_p95)),
            wait_p99: arithmetic(all().map(|f| f.wait_p99)),
            wait_max: all().map(|f| f.wait_max).fold(0.0, f64::max),
            barrier: arithmetic(all().map(|f| f.barrier)),
        };
        let _ = writeln!(out, "{:20} {:14} {}", "", name.text(), line(&figure));
    }
    out.push('\n');
    out
}
