use bytemuck::Zeroable;

use super::*;
use crate::client::ledger::tests::listed;
use crate::proto::handover::{Actual, Dealt, Shift};
use crate::proto::message::{self, Feedback, Head};
use crate::proto::transform::Layout;
use crate::ring::slab::{Slab, SlabOptions};
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::Receiver;

const SESSION: u16 = 3;
const SHAPE: [u16; 4] = [2, 3, 4, 4];
const BYTES: u64 = 96;

struct Bench {
    table: Table,
    sent: Receiver<Feedback>,
}

fn bench(may_skip: bool) -> Bench {
    let ledger = Ledger::new();
    ledger.joining();
    let (outlet, sent) = listed(1000);
    ledger.up(SESSION, outlet);
    let rules = Rules {
        rank: 1,
        rebalance: false,
        session: SESSION,
        slab_bytes: 100 * BYTES,
        rows: 1000,
        world: 2,
        batch_size: 3,
        global_batch: 6,
        transform: Arc::new(Transform { frames: SHAPE[0], ..Transform::default() }),
        may_skip,
        may_replace: false,
        shape: Arc::new(|_| SHAPE),
    };
    let mut table = Table::new(rules, ledger, 0);
    table.start(1, 0, 0);
    Bench { table, sent }
}

fn head_of(kind: u16, slot: u16) -> Head {
    Head { kind, session: SESSION, attempt: 0, slot }
}

fn batch(grant: u32, step: u32) -> Batch {
    Batch {
        head: head_of(kind::BATCH, 3),
        offset: u64::from(grant % 30) * 3 * BYTES,
        len: 3 * BYTES,
        grant,
        iter: 1,
        step,
        global: 6,
        ..Batch::zeroed()
    }
}

fn entry(b: &Batch, slot: u16) -> Entry {
    let offset = b.offset + u64::from(slot) * BYTES;
    let sample = u64::from(b.grant) * 10 + u64::from(slot);
    let head = head_of(kind::ENTRY, slot);
    Entry { head, sample, offset, len: BYTES, grant: b.grant, home_share: 6, tokens: 1.0, ..Entry::zeroed() }
}

fn end(step: u32) -> Batch {
    Batch { head: head_of(kind::END, 0), iter: 1, step, ..Batch::zeroed() }
}

fn ready(b: &Batch, slot: u16) -> Ready {
    let Entry { sample, offset, .. } = entry(b, slot);
    let head = Head { attempt: 1, ..head_of(kind::READY, slot) };
    let (grant, step, frames) = (b.grant, b.step, SHAPE[0]);
    Ready { head, sample, offset, written: BYTES, shape: SHAPE, grant, step, first: 0, frames, reserved: 0 }
}

/// One of the two halves of a sample.
fn half(b: &Batch, slot: u16, first: u16) -> Ready {
    let whole = ready(b, slot);
    let written = BYTES / 2;
    Ready { offset: whole.offset + u64::from(first) * written, written, first, frames: 1, ..whole }
}

fn skip(b: &Batch, slot: u16) -> Ready {
    Ready { head: head_of(kind::SKIP, slot), offset: 0, written: 0, shape: [0; 4], ..ready(b, slot) }
}

impl Bench {
    fn grant(&mut self, b: &Batch) {
        self.table.hear_daemon(&b.words()).unwrap();
        for slot in 0..b.head.slot {
            self.table.hear_daemon(&entry(b, slot).words()).unwrap();
        }
    }

    fn released(&self) -> Vec<u32> {
        self.sent.try_iter().map(|f| f.grant).collect()
    }

    fn refuses(&mut self, field: &str, words: Words) {
        match self.table.hear_daemon(&words) {
            Err(Violation::Contradiction { field: found, .. }) if found == field => {}
            Err(Violation::Bad(BadMessage::Field { field: found, .. })) if found == field => {}
            other => panic!("{field}: {other:?}"),
        }
    }
}

#[test]
fn batches_come_out_in_step_order_however_their_samples_come() {
    let mut bench = bench(false);
    let (one, two) = (batch(1, 0), batch(2, 1));
    bench.grant(&one);
    bench.grant(&two);
    assert!(bench.table.hear_daemon(&end(2).words()).is_ok());
    for slot in [2, 0, 1] {
        bench.table.hear_worker(&ready(&two, slot).words()).unwrap();
    }
    assert!(bench.table.pop().is_none(), "step 1 must wait for step 0");
    for slot in [1, 2, 2, 1] {
        bench.table.hear_worker(&ready(&one, slot).words()).unwrap();
    }
    assert_eq!(bench.table.missing(), Some((0, vec![10])));
    assert!(bench.table.pop().is_none());
    bench.table.hear_worker(&ready(&one, 0).words()).unwrap();
    let steps: Vec<u32> = std::iter::from_fn(|| bench.table.pop()).map(|b| b.step).collect();
    assert_eq!(steps, [0, 1]);
    assert!(bench.table.is_over());
    assert_eq!(bench.released(), [1, 2]);
}

#[test]
fn a_skipped_sample_completes_its_batch() {
    let mut bench = bench(true);
    let b = batch(1, 0);
    bench.grant(&b);
    bench.table.hear_daemon(&skip(&b, 0).words()).unwrap();
    bench.table.hear_daemon(&skip(&b, 0).words()).unwrap();
    bench.table.hear_worker(&ready(&b, 1).words()).unwrap();
    bench.table.hear_daemon(&skip(&b, 2).words()).unwrap();
    let states: Vec<_> = bench.table.pop().unwrap().slots.iter().map(|s| s.state).collect();
    assert_eq!(states, [SlotState::Skipped, SlotState::Ready { written: BYTES, shape: SHAPE }, SlotState::Skipped]);
}

#[test]
fn a_new_iteration_releases_the_old_one_and_ignores_its_late_news() {
    let mut bench = bench(false);
    let (old, half) = (batch(1, 0), batch(2, 1));
    bench.grant(&old);
    bench.table.hear_daemon(&half.words()).unwrap();
    bench.table.start(2, 5, 9);
    assert_eq!(bench.released(), [2, 1]);
    for slot in 0..3 {
        bench.table.hear_daemon(&entry(&half, slot).words()).unwrap();
    }
    let stale = batch(3, 2);
    bench.grant(&stale);
    assert_eq!(bench.released(), [3]);
    bench.table.hear_daemon(&end(3).words()).unwrap();
    assert!(!bench.table.is_over(), "that was the end of the old iteration");
    bench.table.hear_worker(&ready(&old, 0).words()).unwrap();
    bench.table.hear_worker(&ready(&stale, 0).words()).unwrap();
    let new = Batch { iter: 2, epoch: 5, ..batch(4, 9) };
    bench.grant(&new);
    assert!(bench.table.hear_worker(&ready(&new, 1).words()).is_ok());
    assert_eq!(bench.table.missing(), Some((9, vec![40, 42])));
}

#[test]
fn a_start_behind_the_last_step_ends_at_once() {
    let mut bench = bench(false);
    bench.table.start(1, 0, 50);
    bench.table.hear_daemon(&end(10).words()).unwrap();
    assert!(bench.table.is_over());
    bench.refuses("ended", batch(1, 50).words());
}

#[test]
fn no_untrue_batch_is_believed() {
    type Spoil = fn(&mut Batch);
    let cases: &[(&str, Spoil)] = &[
        ("session", |b| b.head.session += 1),
        ("samples", |b| b.head.slot = 0),
        ("samples", |b| b.head.slot = 4),
        ("block", |b| b.offset = 100 * BYTES),
        ("block", |b| b.len = 0),
        ("len", |b| b.len = u64::MAX),
        ("offset", |b| b.offset = u64::MAX - 1),
        ("block", |b| (b.offset, b.len) = (3 * BYTES + 1, 3 * BYTES)),
        ("grant", |b| b.grant = 1),
        ("iter", |b| b.iter = 2),
        ("epoch", |b| b.epoch = 1),
        ("step", |b| b.step = 2),
        ("global", |b| b.global = 2),
        ("global", |b| b.global = 7),
    ];
    for (field, spoil) in cases {
        let mut bench = bench(false);
        bench.grant(&batch(1, 0));
        let mut b = batch(2, 1);
        spoil(&mut b);
        bench.refuses(field, b.words());
    }
}

#[test]
fn no_untrue_entry_is_believed() {
    type Spoil = fn(&mut Entry);
    let cases: &[(&str, Spoil)] = &[
        ("session", |e| e.head.session += 1),
        ("grant", |e| e.grant += 1),
        ("slot", |e| e.head.slot = 0),
        ("slot", |e| e.head.slot = 2),
        ("sample", |e| e.sample = 1000),
        ("home_rank", |e| e.home_rank = 2),
        ("tokens", |e| e.tokens = f64::NAN),
        ("region", |e| e.offset -= 1),
        ("region", |e| e.len = 2 * BYTES + 1),
        ("offset", |e| e.offset = u64::MAX),
        ("len", |e| e.len = 1 << 48),
    ];
    for (field, spoil) in cases {
        let mut bench = bench(false);
        let b = batch(1, 0);
        bench.table.hear_daemon(&b.words()).unwrap();
        bench.table.hear_daemon(&entry(&b, 0).words()).unwrap();
        let mut e = entry(&b, 1);
        spoil(&mut e);
        bench.refuses(field, e.words());
    }
}

#[test]
fn no_untrue_ready_is_believed() {
    type Spoil = fn(&mut Ready);
    let cases: &[(&str, Spoil)] = &[
        ("session", |r| r.head.session += 1),
        ("slot", |r| r.head.slot = 3),
        ("slot", |r| r.head.slot = u16::MAX),
        ("sample", |r| r.sample += 1),
        ("offset", |r| r.offset += 1),
        ("written", |r| r.written -= 1),
        ("written", |r| r.written += 1),
        ("shape", |r| r.shape[0] = 1),
        ("step", |r| r.step = 1),
        ("frames", |r| r.frames = 0),
        ("frames", |r| r.first = 1),
        ("frames", |r| (r.first, r.frames) = (u16::MAX, u16::MAX)),
        ("written", |r| r.frames = 1),
        ("offset", |r| (r.first, r.frames, r.written) = (1, 1, BYTES / 2)),
    ];
    for (field, spoil) in cases {
        let mut bench = bench(false);
        let b = batch(1, 0);
        bench.grant(&b);
        let mut r = ready(&b, 1);
        spoil(&mut r);
        bench.refuses(field, r.words());
    }
}

#[test]
fn a_sample_that_is_ready_before_its_batch_is_announced_waits_for_it() {
    let mut bench = bench(false);
    let (one, two) = (batch(1, 0), batch(2, 1));
    bench.table.hear_worker(&ready(&two, 1).words()).unwrap();
    bench.table.hear_worker(&ready(&one, 0).words()).unwrap();
    bench.grant(&one);
    assert_eq!(bench.table.missing(), Some((0, vec![11, 12])));
    bench.table.hear_daemon(&two.words()).unwrap();
    bench.table.hear_daemon(&entry(&two, 0).words()).unwrap();
    bench.table.hear_worker(&ready(&two, 0).words()).unwrap();
    for slot in 1..3 {
        bench.table.hear_daemon(&entry(&two, slot).words()).unwrap();
    }
    for slot in 1..3 {
        bench.table.hear_worker(&ready(&one, slot).words()).unwrap();
    }
    assert!(bench.table.pop().is_some_and(|b| b.step == 0));
    assert_eq!(bench.table.missing(), Some((1, vec![22])));
    // What is said of a grant early is checked like everything else, once it can be.
    let three = batch(3, 2);
    let lie = Ready { sample: 77, ..ready(&three, 0) };
    bench.table.hear_worker(&lie.words()).unwrap();
    for words in [three.words(), entry(&three, 0).words(), entry(&three, 1).words()] {
        bench.table.hear_daemon(&words).unwrap();
    }
    bench.refuses("sample", entry(&three, 2).words());
}

#[test]
fn a_sample_is_ready_when_all_its_parts_are() {
    let mut bench = bench(true);
    let b = batch(1, 0);
    bench.grant(&b);
    for part in [half(&b, 0, 1), half(&b, 0, 1), half(&b, 1, 0), half(&b, 2, 0), half(&b, 2, 1)] {
        bench.table.hear_worker(&part.words()).unwrap();
    }
    assert_eq!(bench.table.missing(), Some((0, vec![10, 11])));
    bench.refuses("frames", ready(&b, 0).words());
    // A part that cannot be made: the sample as a whole is left out, whatever is there of it or comes later.
    bench.table.hear_daemon(&skip(&b, 1).words()).unwrap();
    bench.table.hear_worker(&half(&b, 1, 1).words()).unwrap();
    bench.table.hear_worker(&half(&b, 0, 0).words()).unwrap();
    let states: Vec<_> = bench.table.pop().unwrap().slots.iter().map(|s| s.state).collect();
    let ready = SlotState::Ready { written: BYTES, shape: SHAPE };
    assert_eq!(states, [ready, SlotState::Skipped, ready]);
}

fn spare(grant: u32, of: &Batch, slot: u16, (first, frames): (u16, u16)) -> Spare {
    let (offset, len) = (97 * BYTES, BYTES);
    let (iter, step) = (of.iter, of.step);
    Spare {
        head: head_of(kind::SPARE, slot),
        offset,
        len,
        grant,
        of: of.grant,
        iter,
        step,
        first,
        frames,
        reserved: [0; 3],
    }
}

#[test]
fn a_sample_may_come_in_a_second_place_that_was_announced() {
    let mut bench = bench(false);
    let b = batch(1, 0);
    bench.grant(&b);
    let there = Ready { offset: 97 * BYTES, grant: 2, ..ready(&b, 1) };
    // It comes before its announcement, as a batch's may.
    bench.table.hear_worker(&there.words()).unwrap();
    bench.table.hear_daemon(&spare(2, &b, 1, (0, 2)).words()).unwrap();
    bench.refuses("spare", Ready { head: head_of(kind::READY, 0), sample: 10, ..there }.words());
    for slot in [0, 2] {
        bench.table.hear_worker(&ready(&b, slot).words()).unwrap();
    }
    // Who was stuck comes late, and finds the batch complete.
    bench.table.hear_worker(&ready(&b, 1).words()).unwrap();
    let batch = bench.table.pop().unwrap();
    assert_eq!(batch.slots[1].offset, 97 * BYTES);
    assert!(batch.scattered.is_empty() && bench.released().is_empty());
    drop(batch);
    assert_eq!(bench.released(), [1, 2]);
    bench.table.hear_worker(&there.words()).unwrap();
}

#[test]
fn parts_in_several_places_are_told_in_order() {
    let mut bench = bench(false);
    let b = batch(1, 0);
    bench.grant(&b);
    bench.table.hear_daemon(&spare(2, &b, 0, (0, 1)).words()).unwrap();
    bench.table.hear_worker(&half(&b, 0, 1).words()).unwrap();
    bench.table.hear_worker(&Ready { offset: 97 * BYTES, grant: 2, ..half(&b, 0, 0) }.words()).unwrap();
    for slot in [1, 2] {
        bench.table.hear_worker(&ready(&b, slot).words()).unwrap();
    }
    let batch = bench.table.pop().unwrap();
    let offsets: Vec<u64> = batch.scattered[&0].iter().map(|p| p.offset).collect();
    assert_eq!(offsets, [97 * BYTES, b.offset + BYTES / 2]);
}

#[test]
fn a_second_place_for_what_is_over_is_released_at_once_and_a_wrong_one_is_refused() {
    let mut bench = bench(false);
    let (one, two) = (batch(1, 0), batch(2, 1));
    bench.grant(&one);
    bench.grant(&two);
    for slot in 0..3 {
        bench.table.hear_worker(&ready(&one, slot).words()).unwrap();
    }
    drop(bench.table.pop());
    bench.table.hear_daemon(&spare(3, &one, 0, (0, 2)).words()).unwrap();
    assert_eq!(bench.released(), [1, 3]);
    bench.refuses("grant", spare(3, &two, 0, (0, 2)).words());
    bench.refuses("of", Spare { of: 9, ..spare(4, &two, 0, (0, 2)) }.words());
    bench.refuses("block", Spare { offset: two.offset, ..spare(4, &two, 0, (0, 2)) }.words());
    bench.refuses("block", Spare { len: 0, ..spare(4, &two, 0, (0, 2)) }.words());
    bench.refuses("slot", spare(4, &two, 3, (0, 2)).words());
}

#[test]
fn parts_of_a_layout_whose_frames_lie_apart_are_refused() {
    let mut bench = bench(false);
    let apart = Transform { frames: SHAPE[0], layout: Layout::Sound, ..Transform::default() };
    bench.table.rules.transform = Arc::new(apart);
    let b = batch(1, 0);
    bench.grant(&b);
    bench.refuses("frames", half(&b, 0, 0).words());
    bench.table.hear_worker(&ready(&b, 0).words()).unwrap();
}

#[test]
fn messages_out_of_turn_are_refused() {
    let mut bench = bench(true);
    let b = batch(1, 0);
    assert!(bench.table.hear_daemon(&entry(&b, 0).words()).is_err(), "an entry of no batch");
    assert!(bench.table.hear_worker(&skip(&b, 0).words()).is_err(), "a skip from a worker");
    assert!(bench.table.hear_worker(&b.words()).is_err(), "a batch from a worker");
    bench.table.hear_daemon(&b.words()).unwrap();
    assert!(bench.table.hear_daemon(&batch(2, 1).words()).is_err(), "a batch inside a batch");
    assert!(bench.table.hear_daemon(&[u64::MAX; 7]).is_err());
    let mut bench = self::bench(true);
    bench.refuses("samples", Batch { head: head_of(kind::END, 1), ..end(0) }.words());
}

#[test]
fn ready_and_skip_do_not_contradict_each_other() {
    let mut lenient = bench(true);
    let b = batch(1, 0);
    lenient.grant(&b);
    lenient.table.hear_worker(&ready(&b, 0).words()).unwrap();
    lenient.refuses("sample", skip(&b, 0).words());
    lenient.table.hear_daemon(&skip(&b, 1).words()).unwrap();
    // Whoever had a part of it in hand when another failed may still finish.
    lenient.table.hear_worker(&ready(&b, 1).words()).unwrap();
    assert_eq!(lenient.table.missing(), Some((0, vec![12])));
    let mut strict = bench(false);
    strict.grant(&b);
    strict.refuses("kind", skip(&b, 0).words());
}

/// A bench of rank 1 of two whose batches wait for plans.
fn balancing() -> Bench {
    let mut bench = bench(true);
    bench.table.rules.rebalance = true;
    bench
}

/// What the daemon says of a step: rank 1 gives its first sample to rank 0 and gets that one's second.
fn plan(b: &Batch, change: impl Fn(&mut message::Plan, &mut message::Handed)) -> Vec<Words> {
    let shifts = vec![Shift { from: 0, slot: 1, to: 1 }, Shift { from: 1, slot: 0, to: 0 }];
    let actual = vec![Actual { rank: 1, slot: 1, tokens: 33.0 }];
    let dealt = Dealt { shifts, actual, total: 70.0 };
    let (digest, total, grant) = (dealt.digest(b.epoch, b.step), dealt.total, b.grant);
    let (epoch, step) = (b.epoch, b.step);
    let head = |kind, slot| head_of(kind, slot);
    let mut plan = message::Plan {
        head: head(kind::PLAN, 0),
        digest,
        total,
        grant,
        tokens: 1,
        moves: 2,
        dealt: 0,
        epoch,
        step,
        reserved: 0,
    };
    let tokens = message::Tokens { head: head(kind::TOKENS, 1), tokens: 33.0, grant, rank: 1, reserved: [0; 4] };
    let come = message::Move { head: head(kind::MOVE, 1), grant, from: 0, to: 1, pieces: 1, reserved: [0; 4] };
    let go = message::Move { head: head(kind::MOVE, 0), from: 1, to: 0, pieces: 0, ..come };
    let entry = Entry { head: head(kind::ENTRY, 1), sample: 9, grant: 77, tokens: 5.0, ..entry(b, 1) };
    let mut handed = message::Handed {
        head: head(kind::HANDED, 1),
        block: 4096,
        block_len: 4096,
        offset: 4096 + BYTES,
        grant,
        of: 77,
        from: 0,
        first: 0,
        frames: SHAPE[0],
        slab: 5,
    };
    change(&mut plan, &mut handed);
    vec![plan.words(), tokens.words(), come.words(), entry.words(), handed.words(), go.words()]
}

#[test]
fn a_batch_waits_for_the_plan_of_its_step_and_gives_and_takes_by_it() {
    let mut bench = balancing();
    let b = batch(1, 0);
    bench.grant(&b);
    // The first sample goes before this rank has heard that it is there.
    for slot in 1..b.head.slot {
        bench.table.hear_worker(&ready(&b, slot).words()).unwrap();
    }
    assert!(bench.table.pop().is_none());
    for words in plan(&b, |_, _| ()) {
        bench.table.hear_daemon(&words).unwrap();
    }
    bench.table.hear_worker(&ready(&b, 0).words()).unwrap();
    assert!(bench.table.pop().is_none(), "the slab in which the other's sample lies is not there yet");
    let slab = Slab::create("test", 8192, SlabOptions { prefault: false, huge: false, node: None }).unwrap();
    let fd = slab.fd().unwrap().try_clone_to_owned().unwrap();
    let inode = std::fs::File::from(fd.try_clone().unwrap()).metadata().unwrap().ino();
    let mut slabs = Slabs::default();
    slabs.take(0, 8192, fd).unwrap();
    assert!(bench.table.pop_with(&slabs).is_none(), "it is another slab than that of the sample");
    assert!(bench.released().is_empty(), "the sample is lent");
    bench.table.start(2, 0, 0);
    assert_eq!(bench.released(), [1, 77], "let go with its batch");

    let b = Batch { iter: 2, ..batch(2, 0) };
    bench.grant(&b);
    for words in plan(&b, |_, handed| handed.slab = inode) {
        bench.table.hear_daemon(&words).unwrap();
    }
    for slot in 1..b.head.slot {
        bench.table.hear_worker(&ready(&b, slot).words()).unwrap();
    }
    let batch = bench.table.pop_with(&slabs).expect("a batch");
    assert_eq!((batch.slots[0].state, batch.slots[1].tokens, batch.tokens_global), (SlotState::Away, 33.0, 70.0));
    assert_eq!((batch.handover.coming.len(), batch.handover.coming[0].slot.sample), (1, 9));
    drop(batch);
    let mut released = bench.released();
    released.sort_unstable();
    assert_eq!(released, [2, 77]);
}

#[test]
fn a_plan_for_a_batch_that_was_let_go_gives_what_comes_back() {
    let mut bench = balancing();
    let b = batch(1, 0);
    bench.grant(&b);
    bench.table.start(2, 0, 0);
    assert_eq!(bench.released(), [1]);
    for words in plan(&b, |_, _| ()) {
        bench.table.hear_daemon(&words).unwrap();
    }
    assert_eq!(bench.released(), [77]);
}

#[test]
fn no_untrue_plan_is_believed() {
    type Change = fn(&mut message::Plan, &mut message::Handed);
    let changes: [(&str, Change); 12] = [
        ("digest", |p, _| p.digest ^= 1),
        ("digest", |p, _| p.step += 1),
        ("session", |p, _| p.head.session += 1),
        ("tokens", |p, _| p.tokens = 1 << 20),
        ("moves", |p, _| p.moves = 1 << 20),
        ("total", |p, _| p.total = f64::NAN),
        ("grant", |_, h| h.grant += 1),
        ("from", |_, h| h.from += 1),
        ("slot", |_, h| h.head.slot += 1),
        ("frames", |_, h| h.first = 1),
        ("offset", |_, h| h.offset = 0),
        ("offset", |_, h| h.offset = 8192),
    ];
    for (field, change) in changes {
        let mut bench = balancing();
        let b = batch(1, 0);
        bench.grant(&b);
        let heard = plan(&b, change).iter().try_for_each(|words| bench.table.hear_daemon(words));
        match heard {
            Err(Violation::Contradiction { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        }
        drop(bench.table);
    }
    let mut bench = bench(true);
    bench.grant(&batch(1, 0));
    let unasked = plan(&batch(1, 0), |_, _| ());
    assert!(bench.table.hear_daemon(&unasked[0]).is_err(), "nobody asked for plans");
}

#[test]
fn two_plans_of_one_step_are_told_apart() {
    let mut bench = balancing();
    let b = batch(1, 0);
    bench.grant(&b);
    bench.table.ledger.learn(b.epoch, b.step, Dealt::default().into()).unwrap();
    let heard = plan(&b, |_, _| ()).iter().try_for_each(|words| bench.table.hear_daemon(words));
    assert!(matches!(heard, Err(Violation::Plan(d)) if (d.epoch, d.step) == (b.epoch, b.step)));
}

/// As `bench`, of a loader in which others take the places of bad samples.
fn replacing() -> Bench {
    let mut bench = bench(false);
    bench.table.rules.may_replace = true;
    bench
}

fn other(b: &Batch, slot: u16, sample: u64) -> Entry {
    Entry { head: head_of(kind::OTHER, slot), sample, ..entry(b, slot) }
}

#[test]
fn another_sample_takes_a_place_whichever_word_comes_first() {
    let mut bench = replacing();
    let b = batch(1, 0);
    bench.grant(&b);
    let of = |sample, r: Ready| Ready { sample, ..r };
    // A part of the bad one, then the next one's word before the daemon's, then a late part of the bad one.
    bench.table.hear_worker(&half(&b, 1, 0).words()).unwrap();
    bench.table.hear_worker(&of(77, ready(&b, 1)).words()).unwrap();
    assert_eq!(bench.table.missing(), Some((0, vec![10, 11, 12])));
    bench.table.hear_daemon(&other(&b, 1, 77).words()).unwrap();
    assert_eq!(bench.table.missing(), Some((0, vec![10, 12])));
    bench.table.hear_worker(&half(&b, 1, 1).words()).unwrap();
    // A substitute that is bad too.
    bench.table.hear_daemon(&other(&b, 0, 78).words()).unwrap();
    bench.table.hear_worker(&half(&b, 0, 0).words()).unwrap();
    bench.table.hear_daemon(&other(&b, 0, 79).words()).unwrap();
    bench.table.hear_worker(&of(78, half(&b, 0, 1)).words()).unwrap();
    bench.table.hear_worker(&of(79, half(&b, 0, 0)).words()).unwrap();
    bench.table.hear_worker(&of(79, half(&b, 0, 1)).words()).unwrap();
    bench.table.hear_worker(&ready(&b, 2).words()).unwrap();
    let done = bench.table.pop().unwrap();
    assert_eq!(done.slots.iter().map(|s| s.sample).collect::<Vec<_>>(), [79, 77, 12]);
    // Late words of a batch that is complete.
    bench.table.hear_worker(&half(&b, 0, 1).words()).unwrap();
}

#[test]
fn words_of_other_samples_that_cannot_be_true() {
    let mut bench = replacing();
    let b = batch(1, 0);
    bench.grant(&b);
    bench.refuses("region", Entry { offset: b.offset, ..other(&b, 1, 77) }.words());
    bench.refuses("sample", other(&b, 1, 1000).words());
    bench.refuses("slot", other(&b, 3, 77).words());
    bench.refuses("grant", Entry { grant: 2, ..other(&b, 1, 77) }.words());
    bench.table.hear_worker(&ready(&b, 1).words()).unwrap();
    bench.refuses("sample", other(&b, 1, 77).words());
    assert!(bench.table.hear_worker(&Ready { sample: 77, ..ready(&b, 1) }.words()).is_err(), "one that is there");
    let mut raising = self::bench(false);
    raising.grant(&b);
    raising.refuses("kind", other(&b, 1, 77).words());
    assert!(raising.table.hear_worker(&Ready { sample: 77, ..ready(&b, 1) }.words()).is_err());
}
