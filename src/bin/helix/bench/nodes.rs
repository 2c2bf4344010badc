//! Several machines: the paper's case of four nodes with two accelerators each, here with unequal numbers of cores. Each
//! loads for its own ranks, or one pool serves all, or this scheduler lets the others help where a node would be late.

use helix_shm::results::Row;
use helix_shm::sim::{Bounds, Layout, Link, Node, Outcome, Placed, Setup, System, Workload, simulate};

use super::figures::{arithmetic, geometric};
use super::flow::fewest_bytes;
use super::run::side_by_side;

/// Ranks of a node.
const RANKS: u32 = 2;
/// Cores of the nodes: as many as the workloads' box has, together.
const UNEVEN: [u16; 4] = [24, 24, 12, 36];
const EVEN: [u16; 4] = [24; 4];
/// What joins them: 25 Gbit/s and 50 microseconds.
const LINK: Link = Link { bandwidth: 25e9 / 8.0, latency: 50e-6 };
/// Runs so many times as long as the workloads say: what the warm-up leaves behind is not to be taken for speed.
const LONGER: u32 = 3;
const SEEDS: u64 = 2;

const SYSTEMS: [(&str, System); 4] = [
    ("rank-local", System::Native { workers: 18 }),
    ("pool", System::Pool { batches: false }),
    ("helix", System::HELIX),
    ("helix-regroup8", System::Helix { balance: true, regroup: 8 }),
];
const HELIX: usize = 2;

fn layout(cores: [u16; 4]) -> Layout {
    Layout::Nodes(cores.map(|cores| Node { ranks: RANKS, cores }).into())
}

/// A workload on the nodes: each system's outcomes over the seeds, with their bounds, and the fewest bytes that could
/// have gone over the links if each node had done as much as it did.
struct Found {
    runs: Vec<Vec<(Outcome, Bounds)>>,
    least: f64,
}

fn run(workload: &Workload, cores: [u16; 4]) -> Found {
    let mut least = 0.0;
    let mut runs = vec![Vec::new(); SYSTEMS.len()];
    for seed in 0..SEEDS {
        let job = workload.job(seed, workload.steps * LONGER);
        let bounds = Bounds::new(&job);
        for (i, (_, system)) in SYSTEMS.iter().enumerate() {
            let trace = i == HELIX;
            let setup = Setup { layout: layout(cores), link: Some(LINK), trace, ..Setup::new(*system) };
            let depth = setup.depth;
            let mut outcome = simulate(&job, &bounds, setup);
            if trace {
                least += windows(std::mem::take(&mut outcome.placed), depth)
                    .iter()
                    .map(|w| fewest_bytes(w, cores.len()))
                    .sum::<f64>();
            }
            runs[i].push((outcome, bounds));
        }
    }
    Found { runs, least }
}

/// Tickets by the steps that lie within one lookahead: what is decoded at the same time can be exchanged.
pub(super) fn windows(placed: Vec<Placed>, depth: u32) -> Vec<Vec<Placed>> {
    let mut windows: Vec<Vec<Placed>> = Vec::new();
    for placed in placed {
        let window = (placed.step / depth.max(1)) as usize;
        windows.resize_with(windows.len().max(window + 1), Vec::new);
        windows[window].push(placed);
    }
    windows
}

/// Rows and table, for unequal and for equal nodes.
pub(super) fn rows(workloads: &[&Workload], threads: usize, command: &str) -> (Vec<Row>, String) {
    let (mut rows, mut table) = (Vec::new(), String::new());
    for (name, cores) in [("nodes", UNEVEN), ("nodes-even", EVEN)] {
        let found = side_by_side(workloads.len(), threads, |n| run(workloads[n], cores));
        table += &format!("{:20} four nodes of {RANKS} ranks, {cores:?} cores, 25 Gbit/s\n{:20}", name, "");
        SYSTEMS.iter().for_each(|(system, _)| table += &format!(" {system:>14}"));
        table += "  over rank-local  misses  remote  remote GB  fewest  (shares of the movable bound)\n";
        let mut over = Vec::new();
        let (mut crossed, mut least) = (0.0, 0.0);
        for (workload, found) in workloads.iter().zip(&found) {
            let mean = |i: usize, f: &dyn Fn(&(Outcome, Bounds)) -> f64| arithmetic(found.runs[i].iter().map(f));
            let rate = |i: usize| mean(i, &|(o, _)| o.throughput);
            let gain = rate(HELIX) / rate(0);
            let remote = mean(HELIX, &|(o, _)| o.cross_bytes as f64 / o.bytes.max(1) as f64);
            let bytes = found.runs[HELIX].iter().map(|(o, _)| o.cross_bytes as f64).sum::<f64>();
            (crossed, least) = (crossed + bytes, least + found.least);
            over.push(gain);
            table += &format!("{:20}", workload.name);
            for (i, (system, _)) in SYSTEMS.iter().enumerate() {
                let share = mean(i, &|(o, b)| o.throughput / b.movable);
                table += &format!(" {:13.1}%", 100.0 * share);
                let mut row = |what: &str, value: f64, unit: &str| {
                    let row = format!("paper.{name}.{}.{system}.{what}", workload.name);
                    rows.push(Row::new(row, value, unit, "", command));
                };
                row("throughput", rate(i), "samples/s");
                row("of_movable", share, "");
                row("miss_rate", mean(i, &|(o, _)| o.miss_rate), "");
                row("wait_p95", mean(i, &|(o, _)| o.waits[1]), "s");
            }
            rows.push(Row::new(format!("paper.{name}.{}.remote_share", workload.name), remote, "", "", command));
            table += &format!(
                " {gain:16.2} {:6.1}% {:6.1}% {:10.2} {:7.2}\n",
                100.0 * mean(HELIX, &|(o, _)| o.miss_rate),
                100.0 * remote,
                bytes / 1e9 / SEEDS as f64,
                found.least / 1e9 / SEEDS as f64
            );
        }
        let gain = geometric(over.into_iter());
        table += &format!("{:20} {gain:.3} times rank-local loading\n\n", "geometric mean");
        let (target, few) = if name == "nodes" { (">= 1.36", "<= 1.1") } else { ("", "") };
        rows.push(Row::new(format!("paper.{name}.vs_rank_local"), gain, "", target, command));
        rows.push(Row::new(format!("paper.{name}.remote_vs_fewest"), crossed / least.max(1.0), "", few, command));
    }
    (rows, table)
}
