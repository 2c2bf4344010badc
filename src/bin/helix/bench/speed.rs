//! How fast the scheduler itself is: two thousand steps of 8 ranks and 96 cores, and the planning of a million
//! samples. Wall time of this machine, so that it wants to be quiet.

use std::hint::black_box;
use std::time::{Duration, Instant};

use helix_shm::proto::options::{Balance, StreamOptions};
use helix_shm::results::Row;
use helix_shm::sched::order::Permutation;
use helix_shm::sched::plan::StepPlan;
use helix_shm::sched::units::Units;
use helix_shm::sim::{Bounds, Setup, System, Workload, simulate};
use nix::time::{ClockId, clock_gettime};

const STEPS: u32 = 2000;
const MILLION: u32 = 1_000_000;

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

pub(super) fn rows(workload: &Workload, command: &str) -> Vec<Row> {
    let begin = Instant::now();
    let job = workload.job(0, STEPS);
    let bounds = Bounds::new(&job);
    let cpu = cpu_time();
    let run = simulate(&job, &bounds, Setup::new(System::HELIX));
    // The simulator's own part is in it; a live daemon's wake-ups are not.
    let ticket = (cpu_time() - cpu).as_secs_f64() * 1e6 / run.tickets.max(1) as f64;
    let whole = begin.elapsed().as_secs_f64();
    vec![
        Row::new("paper.sim_2000_steps_s", whole, "s", "<= 10", command),
        Row::new("sched.us_per_ticket", ticket, "µs", "<= 5", command),
        Row::new("sched.order_1m_s", order(workload), "s", "<= 1", command),
    ]
}

/// Shuffles a million samples and balances all their steps. CPU seconds.
fn order(workload: &Workload) -> f64 {
    let base = workload.job(0, 1).options;
    let steps = MILLION / base.global_batch() as u32;
    let job = workload.job(0, steps);
    let options = StreamOptions { balance: Balance::Cost, ..base };
    let begin = cpu_time();
    let count = job.trace.samples.len() as u32;
    let units = Units::new(&options, &*job.trace, Permutation::shuffled(count, options.seed, 0), 0);
    for step in 0..steps {
        black_box(StepPlan::new(&options, &*job.trace, &units, 0, step));
    }
    (cpu_time() - begin).as_secs_f64()
}
