//! Worker scaling where workers slow each other: against the best fixed number of them.

use helix_shm::results::Row;
use helix_shm::sim::{Bounds, Contention, Job, Layout, Setup, System, Workload, simulate};

/// How much each of a server's workers slows every other, and how that grows: it peaks at 18 of them.
const CONTENTION: Contention = Contention::Workers { alpha: 0.02, beta: 0.003 };
/// Fixed numbers to compare with; beside the peak they lie close.
const FIXED: [u16; 12] = [4, 8, 12, 14, 16, 17, 18, 19, 20, 24, 48, 96];
/// Steps of a run, and those before the clock starts: what it takes to find the number.
const STEPS: (u32, u32) = (700, 400);

/// The row, by one workload on one server.
pub(super) fn rows(workload: &Workload, command: &str) -> Vec<Row> {
    let job = Job { warmup: STEPS.1, ..workload.job(0, STEPS.0) };
    let run = |cores: u16, scale: bool| {
        let job = Job { cores, ..job.clone() };
        let setup =
            Setup { layout: Layout::Even(1), scale, contention: Some(CONTENTION), ..Setup::new(System::HELIX) };
        simulate(&job, &Bounds::new(&job), setup).throughput
    };
    let best = FIXED.map(|cores| run(cores, false)).into_iter().fold(0.0, f64::max);
    let (scaled, all) = (run(job.cores, true), run(job.cores, false));
    let row = |name: &str, value: f64, target: &str| Row::new(format!("paper.{name}"), value, "", target, command);
    vec![row("scaling_vs_best", scaled / best, ">= 0.97"), row("scaling_vs_all", scaled / all, "")]
}
