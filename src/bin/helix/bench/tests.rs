//! The figures' arithmetic, and that all workloads run.

use super::figures::Figure;
use super::*;

fn figures(of: &[(Name, f64)]) -> figures::Figures {
    let figure = |v: f64| Figure { throughput: v, wait_p99: 1.0 / v, miss_rate: 0.5 / v, ..Figure::default() };
    let systems = of.iter().map(|(n, v)| (*n, figure(*v))).collect();
    figures::Figures { workload: "w".into(), decode_over_compute: 0.5, movable: 1.0, systems }
}

fn value(rows: &[helix_shm::results::Row], name: &str) -> Option<f64> {
    rows.iter().find(|r| r.name == name).map(|r| r.value)
}

#[test]
fn rows_say_against_whom_and_where_it_is_worse() {
    use Name::{Helix, Native4, PoolSample};
    let all = [
        figures(&[(Native4, 2.0), (PoolSample, 3.0), (Helix, 4.0)]),
        figures(&[(Native4, 2.0), (PoolSample, 4.0), (Helix, 2.0)]),
    ];
    let rows = rows::of(&all, "x");
    let near = |name: &str, wanted: f64| {
        let found = value(&rows, name).unwrap_or(f64::NAN);
        assert!((found - wanted).abs() < 1e-9, "{name}: {found}, wanted {wanted}");
    };
    near("paper.vs_best_other_min", 0.5);
    near("paper.throughput_vs_native4", 2f64.sqrt());
    near("paper.miss_rate_vs_native4", (0.125 + 0.25) / 0.5);
    near("paper.wait_p99_worse_on", 1.0);
    near("paper.miss_rate_worse_on", 1.0);
    near("paper.wait_mean_worse_on", 0.0);
    near("paper.w.helix.throughput", 4.0);
    assert_eq!(value(&rows, "paper.regroup8_of_perfect"), None, "it was not run");
}

#[test]
fn every_workload_runs_under_every_system_and_gives_the_same_rows_on_any_number_of_threads() {
    let suite = Suite::parse(
        &SUITE
            .replace("\"steps\": 96", "\"steps\": 9")
            .replace("\"steps\": 72", "\"steps\": 9")
            .replace("\"steps\": 60", "\"steps\": 9")
            .replace("\"steps\": 48", "\"steps\": 9"),
    )
    .expect("a good suite");
    // Those of large batches take their time without optimisation.
    let workloads: Vec<&Workload> = suite.workloads().iter().filter(|w| !w.name.contains("videomae")).collect();
    let systems = Name::value_variants();
    let find = |threads| {
        let runs = run::all(&workloads, systems, (1, 1), threads);
        figures::average(&workloads, systems, &runs)
    };
    let all = find(1);
    assert_eq!(all.len(), 9);
    assert_eq!(rows::of(&all, ""), rows::of(&find(4), ""));
    for workload in &all {
        let helix = workload.of(Name::Helix).expect("it was run");
        assert!(helix.throughput > 0.0 && workload.movable <= 1.0 + 1e-9, "{}", workload.workload);
    }
    let plot = plot::of(&all, systems);
    assert!(plot.starts_with("<svg") && plot.matches("<title>").count() == 9 * systems.len());
    assert!(table::of(&all, systems).lines().count() > 9 * systems.len());
}

#[test]
fn a_workload_that_is_not_there_is_named_with_those_that_are() {
    let suite = Suite::parse(SUITE).expect("a good suite");
    let error = chosen(&suite, &["nope".into()]).expect_err("there is none").to_string();
    assert!(error.contains("`nope`") && error.contains("open-sora-2"), "{error}");
    assert_eq!(chosen(&suite, &["all".into()]).map(|w| w.len()).ok(), Some(11));
}
