//! Server sweep: more servers under a law by which they slow each other, and the bytes that cross between them.

use helix_shm::results::Row;
use helix_shm::sim::{Bounds, Contention, Job, Layout, Setup, System, Workload, simulate};

use super::flow::fewest_bytes;
use super::nodes::windows;
use super::run::side_by_side;

/// Servers of the sweep, of [`EACH`] workers each. The law peaks at 18.
const SERVERS: [u16; 6] = [4, 8, 12, 16, 20, 24];
const EACH: u16 = 4;
const LAW: Contention = Contention::Servers { alpha: 0.02, beta: 0.003 };
/// Seeds of the sweep with all workers at work, in runs as long as the workloads say.
const SEEDS: u64 = 2;

/// Steps of the one run in which the number of workers is looked for, and those before the clock starts.
const STEPS: (u32, u32) = (420, 300);

/// A workload's throughput with each number of servers.
struct Sweep {
    rates: Vec<f64>,
}

impl Sweep {
    /// The least that any number of servers gives, over the best that no more of them give.
    fn worst(&self) -> f64 {
        let mut best = 0.0f64;
        let mut worst = f64::INFINITY;
        for rate in &self.rates {
            best = best.max(*rate);
            worst = worst.min(rate / best);
        }
        worst
    }
}

/// The sweep's rows and its table: with all workers at work, and with as many as are found to be best.
pub(super) fn servers(workloads: &[&Workload], threads: usize, command: &str) -> (Vec<Row>, String) {
    let sweep = |workload: &Workload, scale: bool| {
        let rate = |servers: &u16| {
            let seeds = if scale { 1 } else { SEEDS };
            let rates = (0..seeds).map(|seed| {
                let mut job = workload.job(seed, if scale { STEPS.0 } else { workload.steps });
                job = Job { warmup: if scale { STEPS.1 } else { job.warmup }, cores: servers * EACH, ..job };
                let layout = Layout::Even(*servers);
                let setup = Setup { layout, scale, contention: Some(LAW), ..Setup::new(System::HELIX) };
                simulate(&job, &Bounds::new(&job), setup).throughput
            });
            rates.sum::<f64>() / seeds as f64
        };
        Sweep { rates: SERVERS.iter().map(rate).collect() }
    };
    let sweeps = side_by_side(2 * workloads.len(), threads, |n| sweep(workloads[n / 2], n % 2 == 1));
    let mut table = format!("{:20} samples/s with servers of {EACH} workers:", "servers");
    SERVERS.iter().for_each(|n| table += &format!(" {n:>9}"));
    table += "  worst over best\n";
    let mut rows = Vec::new();
    for (n, sweep) in sweeps.iter().enumerate() {
        let (workload, mode) = (&workloads[n / 2].name, ["servers", "servers-scaled"][n % 2]);
        table += &format!("{workload:20} {mode:33}");
        for (n, rate) in SERVERS.iter().zip(&sweep.rates) {
            table += &format!(" {rate:9.2}");
            let name = format!("paper.{workload}.{mode}{n}.throughput");
            rows.push(Row::new(name, *rate, "samples/s", "", command));
        }
        table += &format!("  {:15.3}\n", sweep.worst());
    }
    let worst = |scaled: usize| {
        let of = sweeps.iter().skip(scaled).step_by(2);
        of.map(Sweep::worst).fold(f64::INFINITY, f64::min)
    };
    rows.push(Row::new("paper.servers_worst_vs_best", worst(1), "", ">= 0.97", command));
    rows.push(Row::new("paper.servers_worst_vs_best_unscaled", worst(0), "", "", command));
    (rows, table + "\n")
}

/// Bytes that crossed between servers over the fewest that could have, with each server's load as it was.
pub(super) fn cross_bytes(workloads: &[&Workload], threads: usize, command: &str) -> (Vec<Row>, String) {
    let found = side_by_side(workloads.len(), threads, |n| {
        let job = workloads[n].job(0, workloads[n].steps);
        let setup = Setup { trace: true, ..Setup::new(System::HELIX) };
        let run = simulate(&job, &Bounds::new(&job), setup.clone());
        let all = run.bytes;
        let windows = windows(run.placed, setup.depth);
        let least: f64 = windows.iter().map(|w| fewest_bytes(w, setup.layout.servers().into())).sum();
        (run.cross_bytes as f64, least, all as f64)
    });
    let mut table = format!(
        "{:20} {:>10} {:>10} {:>10} {:>7}\n",
        "bytes between servers", "GB all", "crossed", "oracle", "ratio"
    );
    let mut rows = Vec::new();
    for (workload, (crossed, least, all)) in workloads.iter().zip(&found) {
        let ratio = crossed / least.max(1.0);
        table += &format!(
            "{:20} {:11.2} {:10.3} {:10.3} {ratio:7.2}\n",
            workload.name,
            all / 1e9,
            crossed / 1e9,
            least / 1e9
        );
        rows.push(Row::new(format!("paper.{}.cross_share", workload.name), crossed / all.max(1.0), "", "", command));
    }
    let sum = |f: fn(&(f64, f64, f64)) -> f64| found.iter().map(f).sum::<f64>();
    let ratio = sum(|f| f.0) / sum(|f| f.1).max(1.0);
    rows.push(Row::new("paper.cross_share", sum(|f| f.0) / sum(|f| f.2).max(1.0), "", "", command));
    rows.push(Row::new("paper.cross_bytes_vs_oracle", ratio, "", "<= 1.1", command));
    (rows, table + "\n")
}
