//! The simulator against what can be worked out by hand.

use super::*;

/// Clips that all take the same to decode, `.02 + frames · frame_ms` seconds, and .1 s to compute.
fn constant(ranks: u32, cores: u32, batch: u32, frame_ms: f64) -> Workload {
    let json = format!(
        r#"{{
            "machine": {{"ranks": {ranks}, "cores": {cores}}},
            "decode": {{"fixed_ms": 20, "frame_ms": {frame_ms}, "sigma": 0, "core_speed": 1}},
            "datasets": {{"even": {{
                "duration": {{"kind": "clip", "full": 10.0, "share_full": 1.0, "min": 2.0}},
                "fps": {{"28": 1}}, "heights": {{"240": 1}}, "aspects": {{"1.5": 1}},
                "keyframe_interval": {{"48": 1}}, "bytes_per_mp_s": 200000.0
            }}}},
            "workloads": [{{
                "name": "even", "dataset": "even", "sampling": {{"kind": "full", "count": {{"16": 1}}}},
                "out": [224, 224], "batch": {batch}, "accum": 1, "move": "sample",
                "tokens": {{"formula": "frames"}},
                "compute": {{"step_base": 0.0, "fixed": 0.1, "a": 0, "b": 0}}, "steps": 1500, "warmup": 100
            }}]
        }}"#
    );
    Suite::parse(&json).expect("a good suite").workloads()[0].clone()
}

fn rate(workload: &Workload, system: System) -> f64 {
    simulate(workload, Setup::new(workload, system, 1), workload.steps).throughput
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.02, "{found}, wanted {wanted}");
}

#[test]
fn equal_costs_come_out_as_worked_out() {
    // .3 s to decode (280 frames of 1 ms), .1 s to compute, one rank, a sample a step.
    let decode_bound = constant(1, 1, 1, 1.0);
    let fed = constant(1, 3, 1, 1.0);
    for system in [System::Pool, System::Helix { balance: true }] {
        near(rate(&decode_bound, system), 1.0 / 0.3);
        near(rate(&fed, system), 10.0);
    }
    near(rate(&fed, System::Native { workers: 1 }), 1.0 / 0.3);
    near(rate(&fed, System::Native { workers: 3 }), 10.0);
    // Two ranks of two samples, four cores: 4 samples a step, .3 s of decoding on four cores.
    let two = constant(2, 4, 2, 1.0);
    near(rate(&two, System::Native { workers: 2 }), 4.0 / 0.3);
    near(rate(&two, System::Helix { balance: true }), 4.0 / 0.3);
}

#[test]
fn neighbours_slow_each_other_by_the_law() {
    let workload = constant(1, 12, 4, 5.0);
    let (alpha, beta) = (0.02, 0.003);
    let setup = Setup { servers: 1, contention: Some((alpha, beta)), ..Setup::new(&workload, System::Pool, 1) };
    let slow = 1.0 + alpha * 11.0 + beta * 12.0 * 11.0;
    let run = simulate(&workload, setup, 200);
    near(run.throughput, 12.0 / 1.42 / slow);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_another() {
    let suite = Suite::parse(include_str!("../../benches/workloads.json")).expect("a good suite");
    let workload = &suite.workloads()[0];
    let run = |seed| simulate(workload, Setup::new(workload, System::Helix { balance: true }, seed), 30);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn helix_is_not_behind_on_uneven_clips_and_nobody_beats_the_bound() {
    let suite = Suite::parse(include_str!("../../benches/workloads.json")).expect("a good suite");
    for name in ["slowfast-r50", "internvl-8b"] {
        let workload = suite.workloads().iter().find(|w| w.name == name).expect("it is in the suite");
        let setup = |system| Setup::new(workload, system, 3);
        let [native, pool, helix] = [System::Native { workers: 12 }, System::Pool, System::Helix { balance: true }]
            .map(|system| simulate(workload, setup(system), workload.steps).throughput);
        let trace = workload.trace(3, workload.steps + 25);
        let bounds = Bounds::new(workload, &trace, 3, workload.steps);
        assert!(helix >= native && helix >= 0.98 * pool, "{name}: {helix}, native {native}, pool {pool}");
        // What was prefetched in the warm-up lifts a run a little above its bound.
        assert!(helix <= 1.25 * bounds.perfect && bounds.movable <= bounds.perfect * 1.0001);
        assert!(bounds.unbalanced <= bounds.movable * 1.0001);
    }
}

#[test]
fn what_cannot_be_said_is_refused_with_a_reason() {
    let suite = Suite::parse(include_str!("../../benches/workloads.json")).expect("a good suite");
    let unsupported: Vec<_> = suite.workloads().iter().filter(|w| w.unsupported().is_some()).collect();
    assert_eq!(unsupported.len(), 1);
    assert!(Suite::parse("{}").is_err());
}
