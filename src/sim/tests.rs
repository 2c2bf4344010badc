//! The simulator against what can be worked out by hand.

use super::*;
use crate::proto::transform::Facts;
use crate::sched::second::Terms;

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

fn run(workload: &Workload, setup: Setup, seed: u64, steps: u32) -> Outcome {
    let job = workload.job(seed, steps);
    simulate(&job, &Bounds::new(&job), setup)
}

fn rate(workload: &Workload, system: System) -> f64 {
    run(workload, Setup::new(system), 1, workload.steps).throughput
}

fn near(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.02, "{found}, wanted {wanted}");
}

#[test]
fn equal_costs_come_out_as_worked_out() {
    // .3 s to decode (280 frames of 1 ms), .1 s to compute, one rank, a sample a step.
    let decode_bound = constant(1, 1, 1, 1.0);
    let fed = constant(1, 3, 1, 1.0);
    for system in [System::Pool { batches: false }, System::HELIX] {
        near(rate(&decode_bound, system), 1.0 / 0.3);
        near(rate(&fed, system), 10.0);
    }
    near(rate(&fed, System::Native { workers: 1 }), 1.0 / 0.3);
    near(rate(&fed, System::Native { workers: 3 }), 10.0);
    // Two ranks of two samples, four cores: 4 samples a step, .3 s of decoding on four cores.
    let two = constant(2, 4, 2, 1.0);
    near(rate(&two, System::Native { workers: 2 }), 4.0 / 0.3);
    near(rate(&two, System::HELIX), 4.0 / 0.3);
}

#[test]
fn neighbours_slow_each_other_by_the_law() {
    let workload = constant(1, 12, 4, 5.0);
    let (alpha, beta) = (0.02, 0.003);
    let setup = Setup {
        layout: Layout::Even(1),
        contention: Some(Contention::Workers { alpha, beta }),
        ..Setup::new(System::Pool { batches: false })
    };
    let slow = 1.0 + alpha * 11.0 + beta * 12.0 * 11.0;
    let run = run(&workload, setup, 1, 200);
    near(run.throughput, 12.0 / 1.42 / slow);
}

fn suite() -> Suite {
    Suite::parse(include_str!("../../benches/workloads.json")).expect("a good suite")
}

fn named(name: &str) -> Workload {
    suite().workloads().iter().find(|w| w.name == name).expect("it is in the suite").clone()
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_another() {
    let workload = named("slowfast-r50");
    let run = |seed| run(&workload, Setup::new(System::HELIX), seed, 30);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn helix_is_not_behind_on_uneven_clips_and_nobody_beats_the_bound() {
    for name in ["slowfast-r50", "internvl-8b", "open-sora-2"] {
        let workload = named(name);
        let (mut native, mut pool, mut helix) = (0.0, 0.0, 0.0);
        // One clip that takes minutes decides a single short run.
        for seed in 1..=3 {
            let job = workload.job(seed, 60);
            let bounds = Bounds::new(&job);
            let rate = |system| simulate(&job, &bounds, Setup::new(system)).throughput / bounds.perfect;
            native += rate(System::Native { workers: 12 });
            pool += rate(System::Pool { batches: false });
            let share = rate(System::HELIX);
            // What was prefetched in the warm-up lifts a run a little above its bound.
            assert!(share <= 1.25 && bounds.movable <= bounds.perfect * 1.0001, "{name}: {share}");
            assert!(bounds.unbalanced <= bounds.movable * 1.0001);
            helix += share;
        }
        assert!(helix >= native && helix >= 0.98 * pool, "{name}: {helix}, native {native}, pool {pool}");
    }
}

#[test]
fn regrouping_helps_where_nothing_else_can() {
    let workload = named("wan2.1-1.3b");
    let job = workload.job(1, 60);
    let bounds = Bounds::new(&job);
    let rate = |regroup| simulate(&job, &bounds, Setup::new(System::Helix { balance: true, regroup })).throughput;
    let (plain, grouped) = (rate(1), rate(8));
    assert!(grouped > 1.3 * plain && grouped <= 1.05 * bounds.perfect, "{grouped}, without {plain}, {bounds:?}");
}

#[test]
fn batches_of_one_shape_come_whole() {
    let job = named("open-sora-2").job(2, 20);
    let sizes: Vec<u32> = {
        let units = job.units();
        let count = u64::from(units.steps(&job.options)) * 8;
        (0..count).map(|n| units.unit(n).count() as u32).collect()
    };
    assert!(sizes.iter().all(|n| [3, 12].contains(n)) && sizes.contains(&3) && sizes.contains(&12));
    assert!(sizes.len() as u32 >= 8 * (20 + job::EXTRA_STEPS));
    // As tasks of a pool they stand for as many samples.
    let whole = job.in_batches();
    let counts: Vec<u32> = whole.trace.samples.iter().map(|s| s.count).collect();
    assert_eq!(counts, sizes[..counts.len()]);
}

#[test]
fn a_file_without_workloads_is_refused() {
    assert!(Suite::parse("{}").is_err());
}

#[test]
fn what_is_misjudged_is_evened_out_after_decode() {
    let job = named("internvl-8b").job(1, 60).misjudged(0.4);
    let bounds = Bounds::new(&job);
    let rate = |second| simulate(&job, &bounds, Setup { second, ..Setup::new(System::HELIX) });
    let (without, with) = (rate(None), rate(Some(Terms::BOX)));
    assert_eq!((without.plans, without.moved_bytes), (0, 0));
    assert!(with.plans > 0, "{with:?}");
    assert!(with.throughput > 1.05 * without.throughput, "{} without {}", with.throughput, without.throughput);
    assert!(with.throughput <= 1.05 * bounds.perfect);
    // Where nothing is misjudged there is little left to gain, and it costs nothing to look.
    let known = named("internvl-8b").job(1, 60);
    let bounds = Bounds::new(&known);
    let rate = |second| simulate(&known, &bounds, Setup { second, ..Setup::new(System::HELIX) }).throughput;
    assert!(rate(Some(Terms::BOX)) > 0.98 * rate(None));
}

#[test]
fn a_slow_link_is_waited_for_and_a_fast_one_is_not() {
    let workload = constant(2, 4, 2, 1.0);
    // Both ranks on one server, two workers on the other.
    let rate = |link| {
        let setup = Setup { layout: Layout::Even(2), link, ..Setup::new(System::Pool { batches: false }) };
        run(&workload, setup, 1, 300).throughput
    };
    let (none, fast) = (rate(None), rate(Some(Link { bandwidth: 1e12, latency: 1e-6 })));
    near(fast, none);
    let bytes = workload.draw(1, 0).out_bytes as f64;
    // A sample every .3 s and server would cross; the link takes a second for one.
    let slow = rate(Some(Link { bandwidth: bytes, latency: 0.0 }));
    assert!(slow < 0.8 * none, "{slow}, without a link {none}");
}

#[test]
fn without_locality_more_bytes_cross() {
    let workload = constant(8, 32, 2, 1.0);
    let bytes = |locality| run(&workload, Setup { locality, ..Setup::new(System::HELIX) }, 1, 200).cross_bytes;
    assert!(bytes(true) * 2 < bytes(false), "{} of {}", bytes(true), bytes(false));
}

#[test]
fn a_replay_of_a_recorded_run_comes_out_as_the_run_did() {
    for (name, system) in [
        ("internvl-8b", System::HELIX),
        ("slowfast-r50", System::HELIX),
        ("qwen2.5-vl-7b", System::Pool { batches: false }),
        ("open-sora-2", System::Native { workers: 12 }),
    ] {
        let job = named(name).job(4, 60);
        let setup = Setup::new(system);
        let (run, lines) = machine::simulate_recorded(&job, &Bounds::new(&job), setup.clone());
        // As it would be read from a file.
        let text: Vec<String> = lines.iter().map(|l| serde_json::to_string(l).expect("a line")).collect();
        let lines = text.iter().map(|l| serde_json::from_str(l).expect("a line"));
        let recording = Recording::read(lines, |row| job.trace.samples[row as usize].facts).expect("a recording");
        assert_eq!(recording.setup.layout, Layout::Even(4), "{name}");
        let replay = |workers: u16| {
            let (job, setup) = recording.with_workers(workers);
            simulate(&job, &Bounds::new(&job), setup)
        };
        let again = replay(recording.workers).throughput;
        let off = again / recording.throughput - 1.0;
        assert!(off.abs() < 0.1, "{name}: {again}, recorded {}", recording.throughput);
        // With a third of the cores the same comes out as if that had been run.
        let fewer = Job { cores: 32, ..job.clone() };
        let setup =
            if let System::Native { .. } = system { Setup::new(System::Native { workers: 4 }) } else { setup };
        let really = simulate(&fewer, &Bounds::new(&fewer), setup);
        let off = replay(32).throughput / really.throughput - 1.0;
        assert!(off.abs() < 0.15, "{name}: off by {off} with a third of the cores");
        assert!(run.throughput > 0.0);
    }
}

#[test]
fn a_recording_of_nothing_is_refused() {
    let read = |lines: Vec<crate::sched::record::Line>| Recording::read(lines, |_| Facts::default());
    assert!(matches!(read(Vec::new()), Err(BadRecording::Empty)));
    let job = constant(2, 2, 1, 1.0).job(1, 4);
    let (_, lines) = machine::simulate_recorded(&job, &Bounds::new(&job), Setup::new(System::HELIX));
    assert!(matches!(read(lines), Err(BadRecording::Short(_))));
}
