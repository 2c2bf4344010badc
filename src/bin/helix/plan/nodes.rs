//! Several machines: each loads for its own ranks, all share one first-come-first-served pool, or one scheduler lets
//! the others' cores help where a machine's own would be late.

use std::str::FromStr;

use helix_shm::sim::{Bounds, Job, Layout, Link, Node, Outcome, Setup, System, simulate};
use serde::Serialize;

use super::report::Binds;

/// Above this share of its time a link is what holds a run back.
const LINK_BUSY: f64 = 0.9;

/// What a link carries, bytes a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Speed(pub(crate) f64);

impl FromStr for Speed {
    type Err = String;

    /// As `25Gbit/s` or `3GB/s`; the `/s` may be left out.
    fn from_str(text: &str) -> Result<Speed, String> {
        let wanted = || format!("{text:?} is no speed; wanted a number and a unit, as 25Gbit/s or 3GB/s");
        let bare = text.trim().trim_end_matches("/s").trim();
        let unit = bare.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wanted)?;
        let number: f64 = bare[..unit].trim().parse().map_err(|_| wanted())?;
        // One letter tells bits from bytes.
        let factor = match &bare[unit..] {
            "Gb" => 1e9 / 8.0,
            "Mb" => 1e6 / 8.0,
            other => match other.to_ascii_lowercase().as_str() {
                "gbit" | "gbps" => 1e9 / 8.0,
                "mbit" | "mbps" => 1e6 / 8.0,
                "gb" => 1e9,
                "mb" => 1e6,
                _ => return Err(wanted()),
            },
        };
        let speed = number * factor;
        if speed >= 1.0 && speed.is_finite() { Ok(Speed(speed)) } else { Err(wanted()) }
    }
}

/// The machines that are asked about.
#[derive(Debug, Clone)]
pub(crate) struct Machines {
    pub(crate) nodes: Vec<Node>,
    pub(crate) link: Link,
    pub(crate) depth: u32,
    pub(crate) regroup: u32,
}

/// One system on these machines.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) system: &'static str,
    pub(crate) samples_per_s: f64,
    pub(crate) of_bound: f64,
    pub(crate) miss_rate: f64,
    pub(crate) wait_p95_ms: f64,
    pub(crate) wait_max_ms: f64,
    /// Share of the prepared bytes that were made on another machine than their rank's.
    pub(crate) remote_share: f64,
    pub(crate) binds: &'static str,
    pub(crate) nodes: Vec<NodeLine>,
}

/// What a machine did.
#[derive(Debug, Serialize)]
pub(crate) struct NodeLine {
    pub(crate) ranks: u32,
    pub(crate) cores: u16,
    pub(crate) busy: f64,
    pub(crate) sent_mb_per_s: f64,
    pub(crate) taken_mb_per_s: f64,
}

/// The systems side by side.
pub(crate) fn lines(job: &Job, machines: &Machines) -> Vec<Line> {
    let bounds = Bounds::new(job);
    let each = machines.nodes.iter().map(|n| (u32::from(n.cores) / n.ranks.max(1)).max(1) as u16).max().unwrap_or(1);
    let helix = System::Helix { balance: true, regroup: machines.regroup };
    let systems = [
        ("rank-local", System::Native { workers: each }),
        ("one pool", System::Pool { batches: false }),
        ("helix", helix),
    ];
    let line = |(name, system): (&'static str, System)| {
        let setup = Setup { layout: Layout::Nodes(machines.nodes.clone().into()), ..Setup::new(system) };
        // PyTorch has no such limit: a worker has two batches under way.
        let depth = if name == "rank-local" { setup.depth } else { machines.depth };
        let run = simulate(job, &bounds, Setup { link: Some(machines.link), depth, ..setup });
        Line::of(name, &run, &bounds, machines)
    };
    systems.map(line).into()
}

impl Line {
    fn of(system: &'static str, run: &Outcome, bounds: &Bounds, machines: &Machines) -> Line {
        let per_s = |bytes: u64| bytes as f64 / 1e6 / run.run_s.max(1e-9);
        let node = |(node, share): (&Node, &helix_shm::sim::Share)| NodeLine {
            ranks: node.ranks,
            cores: node.cores,
            busy: share.decode_s / (run.run_s * f64::from(node.cores)).max(1e-9),
            sent_mb_per_s: per_s(share.sent_bytes),
            taken_mb_per_s: per_s(share.taken_bytes),
        };
        let nodes: Vec<NodeLine> = machines.nodes.iter().zip(&run.servers).map(node).collect();
        let busiest = nodes.iter().map(|n| n.sent_mb_per_s.max(n.taken_mb_per_s)).fold(0.0, f64::max);
        let binds = match Binds::of(run) {
            Binds::Decoding if busiest * 1e6 > LINK_BUSY * machines.link.bandwidth => "the link between machines",
            other => other.words(),
        };
        Line {
            system,
            samples_per_s: run.throughput,
            of_bound: run.throughput / bounds.movable,
            miss_rate: run.miss_rate,
            wait_p95_ms: 1e3 * run.waits[1],
            wait_max_ms: 1e3 * run.waits[3],
            remote_share: run.cross_bytes as f64 / run.bytes.max(1) as f64,
            binds,
            nodes,
        }
    }
}

pub(super) fn print(lines: &[Line]) {
    println!("system      samples/s  of bound  misses   p95 wait    longest  remote  what binds");
    for l in lines {
        println!(
            "{:10} {:10.2} {:8.1}% {:6.1}% {:7.0} ms {:7.0} ms {:6.1}%  {}",
            l.system,
            l.samples_per_s,
            100.0 * l.of_bound,
            100.0 * l.miss_rate,
            l.wait_p95_ms,
            l.wait_max_ms,
            100.0 * l.remote_share,
            l.binds
        );
        for (i, n) in l.nodes.iter().enumerate() {
            println!(
                "    node {i}: {} ranks, {:3} cores {:3.0}% busy, sends {:7.1} MB/s, takes in {:7.1} MB/s",
                n.ranks,
                n.cores,
                100.0 * n.busy,
                n.sent_mb_per_s,
                n.taken_mb_per_s
            );
        }
    }
}
