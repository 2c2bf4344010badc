//! What each lever is worth: the scheduler with one of them off, or one more on.

use helix_shm::results::Row;
use helix_shm::sched::second::Terms;
use helix_shm::sim::{Bounds, Outcome, Setup, System, Workload, simulate};

use super::figures::{arithmetic, geometric};
use super::run::side_by_side;

/// Deviation of real compute around the predicted, where costs are misjudged.
const SIGMA: f64 = 0.3;

/// A variant.
struct Variant {
    name: &'static str,
    setup: fn() -> Setup,
    /// Whether compute is other than predicted.
    misjudged: bool,
}

const fn helix(regroup: u32, balance: bool) -> System {
    System::Helix { balance, regroup }
}

const VARIANTS: [Variant; 9] = [
    Variant { name: "helix", setup: || Setup::new(System::HELIX), misjudged: false },
    Variant {
        name: "no-deadlines",
        setup: || Setup { deadlines: false, ..Setup::new(System::HELIX) },
        misjudged: false,
    },
    Variant {
        name: "no-locality",
        setup: || Setup { locality: false, ..Setup::new(System::HELIX) },
        misjudged: false,
    },
    Variant { name: "no-splitting", setup: || Setup { split_ms: 0, ..Setup::new(System::HELIX) }, misjudged: false },
    Variant { name: "no-balance", setup: || Setup::new(helix(1, false)), misjudged: false },
    Variant { name: "regroup8", setup: || Setup::new(helix(8, true)), misjudged: false },
    Variant { name: "regroup8-no-balance", setup: || Setup::new(helix(8, false)), misjudged: false },
    Variant { name: "misjudged", setup: || Setup::new(System::HELIX), misjudged: true },
    Variant {
        name: "misjudged-second",
        setup: || Setup { second: Some(Terms::BOX), ..Setup::new(System::HELIX) },
        misjudged: true,
    },
];

/// Rows and table. `longer` as for the comparison.
pub(super) fn rows(
    workloads: &[&Workload],
    (seeds, longer): (u64, u32),
    threads: usize,
    command: &str,
) -> (Vec<Row>, String) {
    let runs: Vec<Vec<(Outcome, Bounds)>> = side_by_side(workloads.len() * seeds as usize, threads, |n| {
        let workload = workloads[n / seeds as usize];
        let job = workload.job(n as u64 % seeds, workload.steps * longer);
        let other = job.misjudged(SIGMA);
        let bounds = [Bounds::new(&job), Bounds::new(&other)];
        let run = |v: &Variant| {
            let (job, bounds) = if v.misjudged { (&other, bounds[1]) } else { (&job, bounds[0]) };
            (simulate(job, &bounds, (v.setup)()), bounds)
        };
        VARIANTS.iter().map(run).collect()
    });
    let mut table = format!("{:22} perfect  misses      p95      p99  barrier  crossed\n", "with one thing changed");
    let mut rows = Vec::new();
    for (i, variant) in VARIANTS.iter().enumerate() {
        let all = || runs.iter().map(|run| &run[i]);
        let mean = |f: fn(&Outcome) -> f64| arithmetic(all().map(|(o, _)| f(o)));
        let perfect = geometric(all().map(|(o, b)| o.throughput / b.perfect));
        let figures = [
            ("of_perfect", perfect, ""),
            ("miss_rate", mean(|o| o.miss_rate), ""),
            ("wait_p95", mean(|o| o.waits[1]), "s"),
            ("wait_p99", mean(|o| o.waits[2]), "s"),
            ("barrier_idle", mean(|o| o.barrier_idle), ""),
            ("cross_gb", mean(|o| o.cross_bytes as f64 / 1e9), "GB"),
        ];
        table += &format!(
            "{:22} {:6.1}% {:6.1}% {:8.3} {:8.3} {:7.1}% {:7.2} GB\n",
            variant.name,
            100.0 * figures[0].1,
            100.0 * figures[1].1,
            figures[2].1,
            figures[3].1,
            100.0 * figures[4].1,
            figures[5].1
        );
        for (what, value, unit) in figures {
            rows.push(Row::new(format!("paper.ablation.{}.{what}", variant.name), value, unit, "", command));
        }
    }
    (rows, table + "\n")
}
