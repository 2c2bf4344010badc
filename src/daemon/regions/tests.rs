use super::*;
use proptest::prelude::*;

fn places(sizes: &[u64]) -> Vec<Place> {
    sizes.iter().map(|&bytes| Place { bytes, cost: 1.0, ..Place::default() }).collect()
}

const WHOLE: Span = Span { first: 0, frames: 4 };

fn whole(grant: u32, slot: u16) -> Address {
    Address { grant, slot, span: WHOLE }
}

#[test]
fn equal_regions_are_one_tensor_and_others_share_no_line() {
    let mut table = Regions::new(1 << 20);
    let even = table.grant(1, 0, 0, &places(&[150, 150, 150])).unwrap();
    let offsets: Vec<_> = table.block(even).unwrap().regions.iter().map(|r| r.offset).collect();
    assert_eq!(offsets, [0, 150, 300]);
    let odd = table.grant(1, 0, 1, &places(&[150, 151])).unwrap();
    let block = table.block(odd).unwrap();
    assert_eq!(block.regions[1].offset - block.offset, 192);
}

#[test]
fn a_released_block_with_a_writer_is_not_reused() {
    let mut table = Regions::new(8192);
    let grant = table.grant(1, 0, 0, &places(&[4096, 4096])).unwrap();
    assert_eq!(table.assign(whole(grant, 0), (0, 4096)), Ok(1));
    table.release(grant).unwrap();
    assert_eq!(table.reap(grant), None);
    assert_eq!(table.grant(1, 0, 1, &places(&[1])), None);
    table.lost(whole(grant, 0), 1).unwrap();
    assert!(table.reap(grant).is_some());
    assert!(table.grant(1, 0, 1, &places(&[1])).is_some());
}

#[test]
fn a_region_has_one_writer_and_attempts_count_up() {
    let mut table = Regions::new(8192);
    let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
    let (what, at) = (whole(grant, 0), (0, 100));
    assert_eq!(table.assign(what, at), Ok(1));
    assert!(table.assign(what, at).is_err());
    table.lost(what, 1).unwrap();
    assert_eq!(table.assign(what, at), Ok(2));
    let made = Made { what, attempt: 2, worker: 3, written: 100, shape: [1, 1, 1, 100] };
    assert!(table.done(Made { attempt: 1, ..made }).is_err(), "an attempt whose writer is dead");
    assert_eq!(table.done(Made { written: 101, ..made }), Err(Refused::Written { written: 101, len: 100 }));
    assert_eq!(table.done(made), Ok(Done { spare: None, first: true, complete: true }));
    assert!(table.assign(what, at).is_err());
    assert!(table.done(made).is_err());
    table.release(grant).unwrap();
    assert!(table.release(grant).is_err());
    assert!(table.reap(grant).is_some());
    assert_eq!(table.used(), 0);
}

#[test]
fn parts_lie_apart_and_the_first_that_fails_skips_the_sample() {
    let mut table = Regions::new(8192);
    let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
    let part = |first, frames| Address { grant, slot: 0, span: Span { first, frames } };
    let (left, right) = (part(0, 1), part(1, 3));
    assert_eq!(table.assign(left, (0, 25)), Ok(1));
    for (what, at) in [(whole(grant, 0), (0, 100)), (right, (24, 76)), (right, (25, 76)), (right, (25, 0))] {
        assert!(matches!(table.assign(what, at), Err(Refused::Part { .. })), "{what:?} at {at:?}");
    }
    assert_eq!(table.assign(right, (25, 75)), Ok(1));
    let made = Made { what: left, attempt: 1, worker: 3, written: 25, shape: [4, 1, 1, 25] };
    let part_of = Done { spare: None, first: true, complete: false };
    assert_eq!(table.done(made), Ok(part_of));
    table.lost(right, 1).unwrap();
    assert_eq!(table.assign(right, (25, 75)), Ok(2));
    assert!(table.assign(left, (0, 25)).is_err(), "it is ready, whatever became of the other");
    assert!(table.assign(whole(grant, 0), (0, 0)).is_err(), "of no bytes");
    assert_eq!(table.fail(right, 2), Ok(Failed { spare: None, first: true }));
    assert_eq!(table.fail(right, 2), Ok(Failed { spare: None, first: false }));
    table.release(grant).unwrap();
    assert!(table.reap(grant).is_some(), "nobody writes");
}

#[test]
fn a_sample_is_skipped_once_and_its_last_writer_is_waited_for() {
    let mut table = Regions::new(8192);
    let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
    let part = |first| Address { grant, slot: 0, span: Span { first, frames: 1 } };
    for first in 0..3 {
        assert_eq!(table.assign(part(first), (25 * u64::from(first), 25)), Ok(1));
    }
    assert!(!table.skip(grant, 0));
    assert_eq!(table.fail(part(1), 1), Ok(Failed { spare: None, first: true }));
    assert_eq!(table.fail(part(0), 1), Ok(Failed { spare: None, first: false }));
    assert!(!table.skip(grant, 0), "the rank could put another sample there, and one still writes");
    assert_eq!(table.held_up(), [part(2)]);
    assert!(table.assign(part(3), (75, 25)).is_err(), "there is no use in the rest");
    let made = Made { what: part(2), attempt: 1, worker: 3, written: 25, shape: [4, 1, 1, 25] };
    assert!(table.done(made).is_ok_and(|done| !done.complete));
    assert!(table.held_up().is_empty());
    assert!(table.skip(grant, 0) && !table.skip(grant, 0));
}

#[test]
fn a_second_attempt_has_a_place_of_its_own_and_the_first_that_is_done_wins() {
    let table = || {
        let mut table = Regions::new(4 * 4096);
        let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
        assert!(table.hedge(whole(grant, 0)).is_err(), "nobody is at it");
        assert_eq!(table.assign(whole(grant, 0), (0, 100)), Ok(1));
        let (attempt, spare, fresh) = table.hedge(whole(grant, 0)).unwrap().unwrap();
        let spare = spare.unwrap();
        assert_eq!((attempt, spare.offset, fresh), (2, 4096, true));
        assert!(table.hedge(whole(grant, 0)).is_err(), "two are enough");
        (table, whole(grant, 0), spare.grant)
    };
    for winner in [1, 2] {
        let (mut table, what, spare) = table();
        let made = |attempt| Made { what, attempt, worker: attempt, written: 100, shape: [4, 1, 1, 25] };
        let place = |attempt| (attempt == 2).then_some(spare);
        let done = table.done(made(winner));
        assert_eq!(done, Ok(Done { spare: place(winner), first: true, complete: true }));
        for grant in [what.grant, spare] {
            table.release(grant).unwrap();
        }
        assert_eq!(table.reap(what.grant).is_some(), winner == 1, "the loser may still write");
        assert_eq!(table.reap(spare).is_some(), winner == 2);
        // The loser says so when its batch is long gone, or dies.
        let loser = if winner == 2 { made(1) } else { made(2) };
        let late = table.done(loser);
        assert_eq!(late, Ok(Done { spare: place(loser.attempt), first: false, complete: false }));
        assert!(table.done(loser).is_err(), "twice");
        assert!(table.reap(if winner == 2 { what.grant } else { spare }).is_some());
        assert_eq!(table.used(), 0);
    }
    // One that is lost is not made again while the other is at it, and the place serves a third.
    let (mut table, what, spare) = table();
    assert_eq!(table.lost(what, 2).map(|(_, spare)| spare), Ok(Some(spare)));
    assert!(table.assign(what, (0, 100)).is_err());
    assert!(matches!(table.hedge(what), Ok(Some((3, Some(again), false))) if again.grant == spare));
    table.lost(what, 1).unwrap();
    assert!(table.assign(what, (0, 100)).is_err());
    // Who is stuck in the spare place leaves the part's own.
    assert_eq!(table.hedge(what), Ok(Some((4, None, false))));
    table.lost(what, 4).unwrap();
    assert_eq!(table.fail(what, 3), Ok(Failed { spare: Some(spare), first: true }));
    assert!(table.skip(what.grant, 0));
}

#[test]
fn what_fails_after_another_attempt_was_done_fails_nothing() {
    let mut table = Regions::new(4 * 4096);
    let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
    let what = whole(grant, 0);
    table.assign(what, (0, 100)).unwrap();
    let spare = table.hedge(what).unwrap().unwrap().1.unwrap();
    let made = Made { what, attempt: 1, worker: 0, written: 100, shape: [4, 1, 1, 25] };
    assert!(table.done(made).is_ok_and(|done| done.complete));
    assert_eq!(table.fail(what, 2), Ok(Failed { spare: Some(spare.grant), first: false }));
    assert!(!table.skip(grant, 0));
}

#[test]
fn a_full_slab_has_no_room_for_a_second_attempt() {
    let mut table = Regions::new(4096);
    let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
    table.assign(whole(grant, 0), (0, 100)).unwrap();
    assert_eq!(table.hedge(whole(grant, 0)), Ok(None));
}

#[test]
fn what_a_rank_still_holds_is_taken_out_and_grants_go_on_behind_it() {
    let mut table = Regions::new(5 * 4096);
    table.hold(7, 4096, 8192).unwrap();
    assert!(table.hold(8, 8192, 4096).is_err(), "overlaps");
    assert!(table.hold(9, u64::MAX, 2).is_err(), "overflows");
    assert!(table.hold(u32::MAX - 1, 0, 4096).is_err(), "numbers would run out");
    let grant = table.grant(1, 0, 0, &places(&[8192])).unwrap();
    assert_eq!((grant, table.block(grant).unwrap().offset), (8, 3 * 4096));
    table.release(7).unwrap();
    assert!(table.reap(7).is_some());
    assert_eq!(table.used(), 8192);
}

proptest! {
    #[test]
    fn blocks_never_overlap_and_all_memory_comes_back(ops in prop::collection::vec((0u8..3, 0usize..8, 1u64..9000), 1..200)) {
        let mut table = Regions::new(64 * 1024);
        let mut held = Vec::new();
        for (op, n, size) in ops {
            if op < 2 {
                held.extend(table.grant(1, 0, 0, &places(&vec![size; n + 1])));
            } else if !held.is_empty() {
                let grant = held.swap_remove(n % held.len());
                table.release(grant).unwrap();
                prop_assert!(table.reap(grant).is_some());
            }
            let mut spans: Vec<_> = table.blocks().map(|(_, b)| (b.offset, b.offset + b.len)).collect();
            spans.sort_unstable();
            prop_assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
            prop_assert!(spans.iter().all(|s| s.1 <= table.bytes()));
            prop_assert_eq!(spans.iter().map(|s| s.1 - s.0).sum::<u64>(), table.used());
        }
        for grant in held {
            table.release(grant).unwrap();
            table.reap(grant);
        }
        prop_assert_eq!(table.used(), 0);
    }
}

#[test]
fn the_frames_of_a_part_lie_in_one_place() {
    let mut table = Regions::new(8192);
    let grant = table.grant(1, 0, 0, &places(&[100])).unwrap();
    assert_eq!(table.assign(whole(grant, 0), (0, 50)), Ok(1));
    assert!(table.assign(whole(grant, 0), (50, 50)).is_err(), "its writer could not be told from the first");
}

#[test]
fn a_bad_sample_s_place_goes_to_another_one_when_nobody_is_at_it_any_more() {
    let mut table = Regions::new(1 << 20);
    let grant = table.grant(1, 0, 0, &places(&[400])).unwrap();
    let half = |first| Address { grant, slot: 0, span: Span { first, frames: 2 } };
    let lie = |first: u16| (u64::from(first) * 100, 200);
    table.assign(half(0), lie(0)).unwrap();
    table.assign(half(2), lie(2)).unwrap();
    assert!(table.replace(grant, 0, 7, 1).is_err(), "a sample that is not bad");
    let (beside, _, _) = table.hedge(half(2)).unwrap().unwrap();
    assert!(table.fail(half(0), 1).unwrap().first);
    table.lost(half(2), 1).unwrap();
    assert!(!table.can_be_replaced(grant, 0), "someone writes to a spare place");
    table.lost(half(2), beside).unwrap();
    let region = table.replace(grant, 0, 7, 1).unwrap();
    assert_eq!((region.place.sample, region.planned, region.parts.len()), (7, (0, 1), 0));
    assert!(!table.can_be_replaced(grant, 0) && !table.skip(grant, 0));
    assert_eq!(table.assign(whole(grant, 0), (0, 400)), Ok(1));
    assert!(table.fail(whole(grant, 0), 1).unwrap().first, "a substitute that is bad too");
    table.release(grant).unwrap();
    assert!(!table.can_be_replaced(grant, 0), "nobody wants it any more");
}
