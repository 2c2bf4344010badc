//! What earliest deadline first is known to give, shown on the engine itself: tasks are the batches of streams whose
//! one rank will want them at times of our choosing.

use std::sync::Arc;

use proptest::prelude::*;

use super::rig::{BatchId, Clips, Rig, options, run};
use super::*;
use crate::proto::options::StreamOptions;
use crate::proto::transform::{Facts, Transform};
use crate::sched::online::margin::tests::Noise;

const MS: u64 = 1_000_000;

/// A clip whose prior is so many tenths of a millisecond, 201 or more.
fn clip(tenths: u32) -> Facts {
    Facts { frames: (tenths - 201) * 2, ..Facts::default() }
}

/// A task: how long it takes, and when it is due after all are released.
#[derive(Debug, Clone, Copy)]
struct Task {
    tenths: u32,
    due: u64,
}

impl Task {
    fn time(self) -> u64 {
        u64::from(self.tenths) * MS / 10
    }
}

/// Runs the tasks, all released at one moment, on so many workers of one server. Answers when each was done.
fn finish_times(tasks: &[Task], workers: u16) -> Vec<u64> {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    let one = |options: StreamOptions| StreamOptions {
        shuffle: false,
        transform: Transform { frames: 1, ..Transform::default() },
        ..options
    };
    rig.worker_up(0, 0);
    for (stream, task) in (0..).zip(tasks) {
        // Two short steps teach the rank's pace; the third is the task.
        let clips = [300, 300, task.tenths].map(clip).to_vec();
        rig.open(stream, one(options(1, 1)), run(Policy::Helix, 2), Arc::new(Clips(clips)));
        rig.start(stream, 0, 0, 0, 0);
        finish_all(&mut rig, None);
    }
    rig.worker_down(WorkerId(0));
    for (stream, task) in (0..).zip(tasks) {
        let batch = BatchId { stream: StreamId(stream), rank: 0, iter: 1, step: 0 };
        rig.end_step(batch, task.due);
        rig.release(batch);
    }
    let released = rig.now;
    for worker in 0..workers {
        rig.worker_up(worker, 0);
    }
    let mut ends = vec![0; tasks.len()];
    finish_all(&mut rig, Some(&mut ends));
    for (stream, task) in (0..).zip(tasks) {
        let due = rig.log.iter().find_map(|(_, d)| match d {
            Decision::Assign { stream: s, step: 2, due, .. } if *s == StreamId(stream) => *due,
            _ => None,
        });
        assert_eq!(due, Some(released + task.due));
    }
    ends.into_iter().map(|end| end - released).collect()
}

/// Lets workers finish in the order of time, each ticket in the time expected of it.
fn finish_all(rig: &mut Rig, mut ends: Option<&mut Vec<u64>>) {
    let mut begun: BTreeMap<TicketId, Time> = BTreeMap::new();
    loop {
        for ticket in rig.live.keys() {
            begun.entry(*ticket).or_insert(rig.now);
        }
        let end = |(t, live): (&TicketId, &super::rig::Live)| (begun[t] + live.expected, *t, live.batch.stream);
        let Some((at, ticket, stream)) = rig.live.iter().map(end).min() else { return };
        rig.now = at;
        let expected = rig.live[&ticket].expected;
        rig.end(ticket, (expected / 1_000) as u32);
        if let Some(ends) = ends.as_mut() {
            ends[stream.0 as usize] = at;
        }
    }
}

fn tasks(noise: &mut Noise, n: usize, equal: bool) -> Vec<Task> {
    let mut task = || {
        let tenths = if equal { 500 } else { 300 + (noise.next() % 1700) as u32 };
        Task { tenths, due: 100_000 * (noise.next() % (n as u64 * 1000)) + 500_000 }
    };
    (0..n).map(|_| task()).collect()
}

/// How late the latest is; negative when all are early.
fn lateness(tasks: &[Task], ends: &[u64]) -> i64 {
    tasks.iter().zip(ends).map(|(t, end)| *end as i64 - t.due as i64).max().unwrap_or(0)
}

/// The least possible lateness on one worker, by trying all orders.
fn best_order(done: u64, rest: &mut Vec<Task>) -> i64 {
    if rest.is_empty() {
        return i64::MIN;
    }
    let mut best = i64::MAX;
    for i in 0..rest.len() {
        let task = rest.swap_remove(i);
        let end = done + task.time();
        best = best.min(best_order(end, rest).max(end as i64 - task.due as i64));
        rest.push(task);
        let last = rest.len() - 1;
        rest.swap(i, last);
    }
    best
}

/// The least possible lateness on several workers: all ways to share the tasks, each share in order of due times.
fn best_shares(tasks: &[Task], loads: &mut [u64]) -> i64 {
    let Some((task, rest)) = tasks.split_first() else { return i64::MIN };
    let mut best = i64::MAX;
    for w in 0..loads.len() {
        loads[w] += task.time();
        best = best.min(best_shares(rest, loads).max(loads[w] as i64 - task.due as i64));
        loads[w] -= task.time();
    }
    best
}

/// Whether each task can have a time slot of its own that ends before it is due: a flow through augmenting paths.
fn flow_fits(tasks: &[Task], workers: usize) -> bool {
    fn place(
        task: usize,
        fits: &dyn Fn(usize, usize) -> bool,
        taken: &mut [Option<usize>],
        seen: &mut [bool],
    ) -> bool {
        for slot in 0..taken.len() {
            if seen[slot] || !fits(task, slot) {
                continue;
            }
            seen[slot] = true;
            if taken[slot].is_none_or(|other| place(other, fits, taken, seen)) {
                taken[slot] = Some(task);
                return true;
            }
        }
        false
    }
    let slots = tasks.len() * workers;
    let fits = |task: usize, slot: usize| (slot / workers + 1) as u64 * tasks[task].time() <= tasks[task].due;
    let mut taken = vec![None; slots];
    (0..tasks.len()).all(|task| place(task, &fits, &mut taken, &mut vec![false; slots]))
}

/// Rounding of a task's time to what a message can say.
const GRAIN: i64 = 20_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn one_server_meets_all_deadlines_if_any_order_does(seed: u64, n in 1usize..7) {
        let tasks = tasks(&mut Noise::new(seed), n, false);
        let ours = lateness(&tasks, &finish_times(&tasks, 1));
        let best = best_order(0, &mut tasks.clone());
        prop_assert!((ours - best).abs() <= GRAIN, "{ours} against {best}");
    }

    #[test]
    fn equal_tasks_on_identical_workers_agree_with_max_flow(seed: u64, n in 1usize..10, workers in 1u16..4) {
        let tasks = tasks(&mut Noise::new(seed), n, true);
        let ours = lateness(&tasks, &finish_times(&tasks, workers));
        prop_assume!(ours.abs() > GRAIN);
        prop_assert_eq!(ours <= 0, flow_fits(&tasks, workers as usize));
    }

    #[test]
    fn several_workers_are_late_by_less_than_a_task_more_than_the_best(seed: u64, n in 1usize..8, workers in 1u16..4) {
        let mut tasks = tasks(&mut Noise::new(seed), n, false);
        let ours = lateness(&tasks, &finish_times(&tasks, workers));
        tasks.sort_by_key(|t| t.due);
        let best = best_shares(&tasks, &mut vec![0; workers as usize]);
        let longest = tasks.iter().map(|t| t.time()).max().unwrap_or(0) as i64;
        let workers = i64::from(workers);
        prop_assert!(ours <= best + longest * (workers - 1) / workers + GRAIN, "{ours} against {best}");
    }

    #[test]
    fn a_common_deadline_is_kept_within_grahams_bound(seed: u64, n in 1usize..9, workers in 1u16..4) {
        let due = 1_000_000;
        let tasks: Vec<Task> = tasks(&mut Noise::new(seed), n, false).iter().map(|t| Task { due, ..*t }).collect();
        let mut rig = Rig::new(EngineOptions { horizon: 0 });
        let transform = Transform { frames: 1, ..Transform::default() };
        let options = StreamOptions { transform, ..options(1, n as u32) };
        let clips = tasks.iter().map(|t| clip(t.tenths)).collect();
        rig.open(0, options, run(Policy::Helix, 0), Arc::new(Clips(clips)));
        rig.start(0, 0, 0, 0, 0);
        let begin = rig.now;
        (0..workers).for_each(|w| rig.worker_up(w, 0));
        finish_all(&mut rig, None);
        let makespan = (rig.now - begin) as f64;
        let best = (best_shares(&tasks, &mut vec![0; workers as usize]) + due as i64) as f64;
        let bound = 4.0 / 3.0 - 1.0 / (3.0 * f64::from(workers));
        prop_assert!(makespan <= bound * best + GRAIN as f64, "{makespan} against {best}");
    }
}
