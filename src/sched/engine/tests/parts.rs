//! Long clips, decoded by several workers.

use std::sync::Arc;

use super::super::rig::{Clips, Live, Rig, options, run};
use super::*;
use crate::proto::options::{RunOptions, StreamOptions};
use crate::proto::transform::{Facts, Span};

/// A clip of 9000 frames and so many key frames, among short ones: the rank waits for it.
fn waits_for_a_long_clip(keyframes: u32, split_ms: u32) -> Rig {
    let mut rig = Rig::new(EngineOptions { horizon: 0 });
    let clip = |frames, keyframes| Facts { frames, keyframes, width: 1280, height: 720, ..Facts::default() };
    let clips = vec![clip(9000, keyframes), clip(100, 1), clip(100, 1)];
    let options = StreamOptions { shuffle: false, ..options(1, 3) };
    rig.open(0, options, RunOptions { split_ms, ..run(Policy::Helix, 0) }, Arc::new(Clips(clips)));
    for worker in 0..6 {
        rig.worker_up(worker, 0);
    }
    rig.start(0, 0, 0, 0, 0);
    rig
}

fn parts_at_work(rig: &Rig) -> Vec<Span> {
    rig.live.values().filter(|l| l.slot == 0).filter_map(|l| l.part).collect()
}

#[test]
fn a_long_clip_that_is_waited_for_is_decoded_by_several_workers() {
    let mut rig = waits_for_a_long_clip(16, 2000);
    let spans: Vec<(u16, u16)> = parts_at_work(&rig).iter().map(|p| (p.first, p.frames)).collect();
    assert_eq!(spans, [(0, 3), (3, 3), (6, 3), (9, 3), (12, 3), (15, 1)]);
    let expected = |rig: &Rig| rig.live.values().map(|l| l.expected).max().unwrap_or(0);
    let whole = waits_for_a_long_clip(16, 0);
    assert!(4 * expected(&rig) < expected(&whole), "{} of {}", expected(&rig), expected(&whole));
    rig.drain();
}

#[test]
fn a_clip_is_not_cut_without_key_frames_or_against_the_users_wish() {
    for (keyframes, split_ms) in [(1, 2000), (16, 0), (16, 1_000_000)] {
        let mut rig = waits_for_a_long_clip(keyframes, split_ms);
        assert!(parts_at_work(&rig).is_empty() && rig.live.len() == 3, "{keyframes} {split_ms}");
        rig.drain();
    }
}

#[test]
fn a_dead_workers_part_alone_is_done_again_and_a_bad_part_fails_the_sample_once() {
    let mut rig = waits_for_a_long_clip(16, 2000);
    let (_, lost) = rig.live.iter().next().map(|(t, l)| (*t, *l)).expect("all work");
    let others: Vec<TicketId> = rig.live.iter().filter(|(_, l)| l.worker != lost.worker).map(|(t, _)| *t).collect();
    rig.worker_down(lost.worker);
    rig.worker_up(lost.worker.0, 0);
    let again: Vec<Live> = rig.live.iter().filter(|(t, _)| !others.contains(t)).map(|(_, l)| *l).collect();
    assert_eq!(again.iter().map(|l| (l.slot, l.part)).collect::<Vec<_>>(), [(lost.slot, lost.part)]);
    // Two parts fail, the others finish: the batch is complete when its other two samples are.
    let parts: Vec<TicketId> = rig.live.iter().filter(|(_, l)| l.part.is_some()).map(|(t, _)| *t).collect();
    for (nth, ticket) in parts.into_iter().enumerate() {
        rig.end(ticket, if nth % 2 == 1 { 0 } else { 1000 });
    }
    assert_eq!(rig.rooms.values().next().map(|room| room.ended.clone()), Some(BTreeSet::from([0])));
    rig.drain();
}
