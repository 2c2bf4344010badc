//! The workloads of a file under each system, in virtual time, beside the bounds.
//!
//! `cargo run --release --no-default-features --example simulate -- [workloads.json] [seeds]`

use helix_shm::sim::{Bounds, Setup, Suite, System, simulate};

const SYSTEMS: [(&str, System); 6] = [
    ("native, 2 workers", System::Native { workers: 2 }),
    ("native, 4 workers", System::Native { workers: 4 }),
    ("native, 12 workers", System::Native { workers: 12 }),
    ("pool", System::Pool),
    ("helix, as dealt", System::Helix { balance: false }),
    ("helix", System::Helix { balance: true }),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "benches/workloads.json".into());
    let seeds: u64 = args.next().map_or(Ok(3), |s| s.parse())?;
    let suite = Suite::parse(&std::fs::read_to_string(path)?)?;
    println!(
        "{:20} {:19} {:>9} {:>8} {:>8} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "workload", "system", "samples/s", "perfect", "movable", "misses", "mean", "p95", "p99", "longest", "barrier"
    );
    let mut logs = [[0.0; 2]; SYSTEMS.len()];
    let mut runs = 0.0;
    for workload in suite.workloads() {
        if let Some(why) = workload.unsupported() {
            println!("{:20} left out: {why}", workload.name);
            continue;
        }
        runs += 1.0;
        for ((name, system), log) in SYSTEMS.iter().zip(&mut logs) {
            let mut sum = [0.0; 9];
            for seed in 0..seeds {
                let setup = Setup::new(workload, *system, seed);
                let run = simulate(workload, setup, workload.steps);
                let trace = workload.trace(seed, workload.steps + setup.depth);
                let bounds = Bounds::new(workload, &trace, seed, workload.steps);
                let [mean, p95, p99, longest] = run.waits;
                let (perfect, movable) = (run.throughput / bounds.perfect, run.throughput / bounds.movable);
                let row =
                    [run.throughput, perfect, movable, run.miss_rate, mean, p95, p99, longest, run.barrier_idle];
                sum.iter_mut().zip(row).for_each(|(s, r)| *s += r / seeds as f64);
            }
            let [rate, perfect, movable, misses, mean, p95, p99, longest, barrier] = sum;
            log[0] += perfect.ln();
            log[1] += movable.ln();
            println!(
                "{:20} {name:19} {rate:9.2} {:7.1}% {:7.1}% {:6.1}% {mean:8.3} {p95:8.3} {p99:8.3} {longest:8.3} {:7.1}%",
                workload.name,
                100.0 * perfect,
                100.0 * movable,
                100.0 * misses,
                100.0 * barrier
            );
        }
    }
    println!("\ngeometric means, of the perfect and of the movable bound");
    for ((name, _), [perfect, movable]) in SYSTEMS.iter().zip(logs) {
        println!("{name:19} {:5.3} {:5.3}", (perfect / runs).exp(), (movable / runs).exp());
    }
    Ok(())
}
