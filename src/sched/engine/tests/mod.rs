//! What the engine promises: [`chaos`], whatever happens; [`order`], what goes first; [`place`], on which worker;
//! [`parts`], long clips; [`stuck`], second attempts.

mod chaos;
mod order;
mod parts;
mod place;
mod stuck;

use super::rig::{Clips, Rig, options, run};
use super::*;

const POLICIES: [Policy; 3] = [Policy::Helix, Policy::Pool, Policy::Local];

/// The step of the batch that each assignment is of, in order.
fn steps(rig: &Rig) -> Vec<(u32, u32)> {
    let assigned = rig.log.iter().filter_map(|(_, d)| match d {
        Decision::Assign { rank, step, .. } => Some((*step, *rank)),
        _ => None,
    });
    assigned.collect()
}

/// Lets the worker that is due first finish, with times as expected, until all is done and nobody consumes.
fn work(rig: &mut Rig) {
    while let Some((&ticket, _)) = rig.live.iter().next() {
        rig.now += 20_000_000;
        rig.end(ticket, 20_000);
    }
}

/// Three workers decode eight samples, of which the rank will want the first in a very long time.
fn three_at_work(pace_ns: u64) -> Rig {
    let mut rig = Rig::new(EngineOptions::default());
    rig.open(0, options(1, 8), run(Policy::Helix, 3), Clips::new(80, 1));
    rig.start(0, 0, 0, 0, 0);
    for worker in 0..3 {
        rig.worker_up(worker, 0);
    }
    work(&mut rig);
    let batch = rig.ready(StreamId(0), 0).expect("all is done");
    rig.end_step(batch, pace_ns);
    rig.release(batch);
    assert_eq!(rig.live.len(), 3);
    rig
}
