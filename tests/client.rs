//! The rank's side against a scripted daemon.
#![cfg(not(feature = "loom"))]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytemuck::Zeroable;
use helix_shm::client::{BatchError, Violation};
use helix_shm::proto::message::{Batch as BatchBody, Body, Entry, Feedback, Ready, kind};
use helix_shm::proto::options::OnError;
use helix_shm::proto::session::{BadSample, FromRank, Opened, ToRank};
use helix_shm::{Batch, ConnectError, Loader, LoaderError, State};
use support::{BATCH, BYTES, Fake, Peer, Plan, plan};

/// That a batch is the planned one, without the skipped slots.
fn check(batch: &Batch, plan: &Plan, slots: &[u16]) {
    let ids: Vec<u64> = slots.iter().map(|s| plan.entries[usize::from(*s)].sample).collect();
    assert_eq!(batch.ids(), ids);
    assert_eq!((batch.epoch(), batch.step()), (plan.batch.epoch, plan.batch.step));
    assert_eq!(batch.skipped(), usize::from(BATCH) - slots.len());
    let tensor = batch.tensor("video").unwrap();
    assert_eq!(tensor.shape, [slots.len(), 1, 3, 4, 4]);
    let wanted: Vec<u8> = slots.iter().flat_map(|s| [plan.pixel(*s); BYTES as usize]).collect();
    assert_eq!(tensor.data, wanted);
}

fn next(loader: &mut Loader) -> Batch {
    loader.next().expect("a batch, not the end").unwrap()
}

fn error(loader: &mut Loader) -> LoaderError {
    loader.next().expect("an error, not the end").unwrap_err()
}

const ALL: [u16; 4] = [0, 1, 2, 3];

#[test]
fn batches_come_in_order_and_are_released_once() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.pair();
    assert_eq!((loader.steps(), loader.samples()), (100, 1000));
    loader.start(0, 0).unwrap();
    assert_eq!(peer.started(), (1, 0, 0));
    let plans: Vec<Plan> = (0..3).map(|step| peer.grant(step + 1, 1, 0, step)).collect();
    for (step, slot) in
        [(2, 0), (1, 3), (2, 1), (0, 3), (1, 0), (2, 3), (0, 0), (1, 1), (1, 2), (2, 2), (0, 1), (0, 2)]
    {
        peer.make(&plans[step], slot);
    }
    peer.end(1, 3);
    let mut kept = Vec::new();
    for plan in &plans {
        let batch = next(&mut loader);
        check(&batch, plan, &ALL);
        assert_eq!(batch.weights(), [0.125; 4]);
        assert_eq!((batch.n_global(), batch.home_ranks()), (8, &[0, 1, 0, 1][..]));
        assert_eq!(loader.state(), State { epoch: 0, step: plan.batch.step + 1 });
        kept.push(batch);
    }
    assert!(loader.next().is_none());
    assert_eq!(loader.state(), State { epoch: 1, step: 0 });
    assert_eq!(loader.stats().copied, 0);
    // Let go in another order, on another thread.
    let last = kept.pop().unwrap();
    std::thread::spawn(|| drop(last)).join().unwrap();
    drop(kept);
    for grant in [3, 1, 2] {
        let release = peer.released();
        assert_eq!((release.grant, release.iter, release.step), (grant, 1, grant - 1));
    }
    let steps: Vec<u32> = peer.step_ends.iter().map(|f| f.step).collect();
    assert_eq!(steps, [0, 1, 2]);
    assert!(!peer.has_feedback());
}

#[test]
fn for_goes_through_one_epoch_and_the_next_for_through_the_next() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.connect(fake.options().state(State { epoch: 4, step: 98 }));
    let daemon = std::thread::spawn(move || {
        assert_eq!(peer.started(), (1, 4, 98));
        peer.serve(1, 1, 4, 98);
        peer.serve(2, 1, 4, 99);
        peer.end(1, 100);
        assert_eq!(peer.started(), (2, 5, 0));
        peer.serve(3, 2, 5, 0);
        peer.end(2, 1);
        peer
    });
    let steps = |loader: &mut Loader| -> Vec<_> {
        loader.map(|batch| batch.unwrap()).map(|batch| (batch.epoch(), batch.step())).collect()
    };
    assert_eq!(steps(&mut loader), [(4, 98), (4, 99)]);
    assert_eq!(steps(&mut loader), [(5, 0)]);
    daemon.join().unwrap();
}

#[test]
fn skipped_samples_leave_no_gap() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.connect(fake.options().on_error(OnError::Skip));
    loader.start(0, 0).unwrap();
    let bad = |sample| BadSample {
        sample,
        path: "/clips/x.mp4".into(),
        epoch: 0,
        step: 0,
        stage: "decode".into(),
        reason: "torn".into(),
    };
    let cases: [&[u16]; 5] = [&[1, 2, 3], &[0, 2, 3], &[0, 1, 2], &[2], &[]];
    for (step, left) in cases.into_iter().enumerate() {
        let step = step as u32;
        let plan = peer.grant(step + 1, 1, 0, step);
        for slot in ALL {
            if left.contains(&slot) {
                peer.make(&plan, slot);
            } else {
                peer.guest.send(&ToRank::BadSample(bad(plan.entries[usize::from(slot)].sample)), &[]);
                peer.tell(&plan.skip(slot));
            }
        }
        check(&next(&mut loader), &plan, left);
    }
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.samples, stats.skipped), (5, 10, 10));
    assert_eq!(stats.copied, BYTES, "one sample was moved, into the gap of slot 1");
    assert_eq!((stats.bad, stats.bad_samples.len()), (10, 10));
    assert_eq!(stats.bad_samples[0].reason, "torn");
}

#[test]
fn a_start_in_the_middle_gives_everything_back() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.pair();
    loader.start(0, 0).unwrap();
    peer.serve(1, 1, 0, 0);
    let half = peer.grant(2, 1, 0, 1);
    peer.make(&half, 0);
    let held = next(&mut loader);
    peer.serve(3, 1, 0, 2);
    loader.start(7, 3).unwrap();
    assert_eq!((peer.started(), peer.started()), ((1, 0, 0), (2, 7, 3)));
    // What the daemon had not heard yet: a batch of the old iteration, and late news of released ones.
    let stale = peer.grant(4, 1, 0, 3);
    peer.make(&half, 1);
    peer.make(&stale, 2);
    peer.end(1, 4);
    let plan = peer.serve(5, 2, 7, 3);
    peer.make(&plan, 0);
    check(&next(&mut loader), &plan, &ALL);
    let mut released: Vec<u32> = (0..4).map(|_| peer.released().grant).collect();
    released.sort_unstable();
    assert_eq!(released, [2, 3, 4, 5]);
    assert_eq!((held.epoch(), held.step()), (0, 0));
    drop(held);
    assert_eq!(peer.released().grant, 1);
}

#[test]
fn ragged_batches_are_not_for_this_transform_and_names_are_checked() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.pair();
    loader.start(0, 0).unwrap();
    let plan = peer.serve(1, 1, 0, 0);
    let mut batch = next(&mut loader);
    assert!(matches!(batch.tensor("audio").unwrap_err(), BatchError::Name { name, .. } if name == "audio"));
    assert_eq!(batch.sample(3, "video").unwrap(), [plan.pixel(3); BYTES as usize]);
    assert!(matches!(batch.sample(4, "video"), Err(BatchError::Index { index: 4, len: 4 })));
    batch.tensor_mut("video").unwrap().data[0] = 200;
    assert_eq!(batch.runs()[0][0], 200);
}

type Script = fn(&mut Peer);

/// What the daemon or a worker does wrong, and where.
const LIES: &[(&str, Script)] = &[
    ("no message", |p| p.lane(0, &[u64::MAX; 7])),
    ("a release from the daemon", |p| {
        let head = support::head(kind::RELEASE, 0);
        p.tell(&Feedback { head, ..Zeroable::zeroed() });
    }),
    ("a batch outside the slab", |p| p.tell(&BatchBody { offset: 1 << 40, ..plan(2, 1, 0, 1).batch })),
    ("a batch on top of a held one", |p| p.tell(&BatchBody { offset: 4096, ..plan(2, 1, 0, 1).batch })),
    ("a batch of another step", |p| p.tell(&plan(2, 1, 0, 7).batch)),
    ("a batch of an iteration to come", |p| p.tell(&plan(2, 9, 0, 1).batch)),
    ("a grant twice", |p| p.tell(&plan(1, 1, 0, 1).batch)),
    ("an entry of no batch", |p| p.tell(&plan(1, 1, 0, 0).entries[0])),
    ("an entry out of order", |p| {
        p.tell(&plan(2, 1, 0, 1).batch);
        p.tell(&plan(2, 1, 0, 1).entries[1]);
    }),
    ("an entry of no row", |p| {
        p.tell(&plan(2, 1, 0, 1).batch);
        p.tell(&Entry { sample: 1000, ..plan(2, 1, 0, 1).entries[0] });
    }),
    ("a ready of no slot", |p| {
        let mut ready = plan(1, 1, 0, 0).ready(0);
        ready.head.slot = 999;
        p.lane(2, &ready.words());
    }),
    ("another shape", |p| p.lane(1, &Ready { shape: [2, 3, 4, 4], ..plan(1, 1, 0, 0).ready(0) }.words())),
    ("too many bytes", |p| p.lane(1, &Ready { written: BYTES + 1, ..plan(1, 1, 0, 0).ready(0) }.words())),
    ("a skip where the loader raises", |p| p.tell(&plan(1, 1, 0, 0).skip(0))),
    ("a skip from a worker", |p| p.lane(1, &plan(1, 1, 0, 0).skip(0).words())),
    ("a batch from a worker", |p| p.lane(2, &plan(2, 1, 0, 1).batch.words())),
    ("a scribbled sequence", |p| {
        let inbox = &p.inbox;
        inbox.word(128 + 5 * 64).store(77, Ordering::Release);
        p.guest.send(&ToRank::Notice { text: "look".into() }, &[]);
    }),
    ("no packet", |p| p.guest.send_bytes(b"{\"say\":\"hello\"}", &[])),
    ("an unknown field", |p| p.guest.send_bytes(b"{\"say\":\"started\",\"iter\":1,\"more\":1}", &[])),
    ("a packet out of turn", |p| p.guest.send(&ToRank::Bye, &[])),
    ("an iteration that nobody wants", |p| p.guest.send(&ToRank::Started { iter: 2 }, &[])),
    ("a descriptor that nobody wants", |p| {
        let file = tempfile::tempfile().unwrap();
        p.guest.send(&ToRank::Started { iter: 1 }, &[std::os::fd::AsFd::as_fd(&file)]);
    }),
];

#[test]
fn what_cannot_be_true_is_an_error_and_final() {
    let fake = Fake::new();
    for (what, lie) in LIES {
        let (mut loader, mut peer) = fake.pair();
        loader.start(0, 0).unwrap();
        assert_eq!(peer.started(), (1, 0, 0));
        peer.grant(1, 1, 0, 0);
        lie(&mut peer);
        let first = error(&mut loader);
        assert!(matches!(first, LoaderError::Protocol { .. }), "{what}: {first}");
        assert!(loader.next().is_none(), "{what}: the iteration goes on");
        assert_eq!(error(&mut loader), first, "{what}");
        assert_eq!(loader.start(0, 0).err(), Some(first), "{what}");
        assert!(peer.guest.ended(), "{what}: the rank stays");
    }
}

#[test]
fn a_scribbled_feedback_ring_is_noticed() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.pair();
    loader.start(0, 0).unwrap();
    // The head of the feedback ring, behind three lanes.
    peer.inbox.word(3 * (128 + 64 * 64)).store(1 << 40, Ordering::Release);
    for step in 0..40 {
        peer.serve(step + 1, 1, 0, step);
        match loader.next() {
            Some(Ok(batch)) => drop(batch),
            Some(Err(LoaderError::Protocol { violation: Violation::Ring(_), .. })) => return,
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(error(&mut loader), LoaderError::Protocol { violation: Violation::Ring(_), .. }));
}

#[test]
fn a_daemon_that_cannot_be_understood_is_not_joined() {
    let fake = Fake::new();
    let refuse = |answer: fn(support::Joined)| {
        let options = fake.options();
        let connecting = std::thread::spawn(|| Loader::connect(options));
        answer(fake.accept());
        connecting.join().unwrap().unwrap_err()
    };
    let refused =
        refuse(|j| j.guest.send(&ToRank::Failed { reason: "slab too small".into(), rank: None, sample: None }, &[]));
    assert!(matches!(&refused, ConnectError::Refused { rank: 1, reason } if reason == "slab too small"));
    type Answer = fn(support::Joined);
    let cases: [(&str, Answer); 8] = [
        ("another version", |j| open_spoilt(j, |o| o.version += 1)),
        ("too many lanes", |j| open_spoilt(j, |o| o.lanes = 1000)),
        ("a capacity that is none", |j| open_spoilt(j, |o| o.lane_capacity = 63)),
        ("an inbox larger than its file", |j| open_spoilt(j, |o| o.feedback_capacity = 1 << 20)),
        ("a bell outside the hints", |j| open_spoilt(j, |o| o.bell = 5000)),
        ("a session number that is none", |j| open_spoilt(j, |o| o.session = 704)),
        ("no descriptors", |j| j.guest.send(&ToRank::Opened(j.opened()), &[])),
        ("the wrong packet", |j| j.guest.send(&ToRank::Bye, &[])),
    ];
    for (what, answer) in cases {
        let error = refuse(answer);
        assert!(matches!(error, ConnectError::Protocol(_)), "{what}: {error}");
    }
}

fn open_spoilt(joined: support::Joined, spoil: fn(&mut Opened)) {
    let mut opened = joined.opened();
    spoil(&mut opened);
    drop(joined.open_as(opened));
}

#[test]
fn the_daemons_reasons_reach_the_user() {
    let fake = Fake::new();
    let bad = BadSample {
        sample: 17,
        path: "/clips/17.mp4".into(),
        epoch: 0,
        step: 3,
        stage: "demux".into(),
        reason: "no moov".into(),
    };
    let (mut loader, peer) = fake.pair();
    loader.start(0, 0).unwrap();
    peer.guest.send(&ToRank::BadSample(bad.clone()), &[]);
    peer.guest.send(&ToRank::Failed { reason: "a bad sample".into(), rank: None, sample: Some(17) }, &[]);
    let text = error(&mut loader).to_string();
    for part in ["17", "/clips/17.mp4", "step 3", "demux", "no moov", "on_error"] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
    let (mut loader, peer) = fake.pair();
    loader.start(0, 0).unwrap();
    peer.guest.send(&ToRank::Failed { reason: "its process died".into(), rank: Some(0), sample: None }, &[]);
    assert_eq!(error(&mut loader), LoaderError::RankDied { rank: 0, reason: "its process died".into() });
    // The one that is to blame itself.
    let (mut loader, peer) = fake.pair();
    peer.guest.send(&ToRank::Failed { reason: "bad release".into(), rank: Some(1), sample: None }, &[]);
    assert_eq!(error(&mut loader), LoaderError::Failed { reason: "bad release".into() });
}

#[test]
fn a_batch_that_does_not_come_in_time_is_named() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.connect(fake.options().timeout(Duration::from_millis(50)));
    let timed_out = error(&mut loader);
    assert!(matches!(timed_out, LoaderError::Timeout { rank: 1, epoch: 0, step: 0, .. }), "{timed_out}");
    assert!(loader.next().is_none());
    peer.started();
    let plan = peer.grant(1, 1, 0, 0);
    (0..3).for_each(|slot| peer.make(&plan, slot));
    // The limit is not the end of the session: the same batch is asked for again.
    loop {
        let LoaderError::Timeout { missing, .. } = error(&mut loader) else { panic!() };
        assert!(loader.next().is_none());
        if missing.contains("[7]") && missing.contains("/clips/7.mp4") {
            break;
        }
    }
    peer.make(&plan, 3);
    let batch = loop {
        match loader.next() {
            Some(Ok(batch)) => break batch,
            Some(Err(LoaderError::Timeout { .. })) | None => {}
            other => panic!("{other:?}"),
        }
    };
    check(&batch, &plan, &ALL);
}

#[test]
fn the_stream_goes_on_over_a_daemons_death() {
    let fake = Fake::new();
    let (mut loader, mut first) = fake.pair();
    loader.start(2, 10).unwrap();
    assert_eq!(first.started(), (1, 2, 10));
    let plans: Vec<Plan> = (0..3).map(|i| first.serve(i + 1, 1, 2, 10 + i)).collect();
    let held = next(&mut loader);
    check(&held, &plans[0], &ALL);
    let (late, half) = (first.grant(4, 1, 2, 13), first.grant(5, 1, 2, 14));
    first.make(&late, 0);
    first.make(&half, 0);
    first.die();
    // Its workers live on for a while, and finish what they have in hand.
    (1..4).for_each(|slot| first.make(&late, slot));
    assert!(!fake.is_called(Duration::from_millis(150)), "joined while a writer of the old daemon lived");
    drop(first);
    let joining = fake.accept();
    // Three were finished and not delivered; they count as held, like the one that was.
    let mut stated = joining.join.held.clone();
    stated.sort_unstable();
    assert_eq!(stated, [1, 2, 3, 4].map(|grant| (grant, u64::from(grant) * 4096, 4096)));
    let mut second = joining.open();
    assert_eq!(second.started(), (1, 2, 14));
    for plan in plans[1..].iter().chain([&late]) {
        check(&next(&mut loader), plan, &ALL);
        let release = second.released();
        assert_eq!((release.grant, release.iter, release.step), (plan.batch.grant, 0, 0));
    }
    let again = second.serve(5, 1, 2, 14);
    check(&next(&mut loader), &again, &ALL);
    assert_eq!(second.released().grant, 5);
    check(&held, &plans[0], &ALL);
    drop(held);
    assert_eq!(second.released().grant, 1);
    let stats = loader.stats();
    assert_eq!((stats.batches, stats.restarts), (5, 1));
    assert!(second.step_ends.is_empty(), "steps of batches of a dead daemon interest nobody");
}

/// A batch with skips was let go when the daemon died just then, and those behind it came in its place.
#[test]
fn a_daemon_that_dies_with_a_skip_takes_no_batch_along() {
    for _ in 0..30 {
        let fake = Fake::new();
        let (mut loader, mut first) = fake.connect(fake.options().on_error(OnError::Skip));
        loader.start(0, 0).unwrap();
        let (skipping, whole) = (first.grant(1, 1, 0, 0), first.grant(2, 1, 0, 1));
        first.make_all(&whole);
        first.tell(&skipping.skip(0));
        (1..BATCH).for_each(|slot| first.make(&skipping, slot));
        first.die();
        drop(first);
        let mut second = fake.accept().open();
        let (iter, epoch, step) = second.started();
        (step..3).for_each(|step| drop(second.serve(step + 10, iter, epoch, step)));
        assert_eq!([0; 3].map(|_| next(&mut loader).step()), [0, 1, 2]);
    }
}

#[test]
fn daemons_that_keep_dying_are_given_up() {
    let fake = Fake::new();
    let (mut loader, peer) = fake.pair();
    loader.start(0, 0).unwrap();
    drop(peer);
    for _ in 0..5 {
        drop(fake.accept().open());
    }
    let gone = error(&mut loader);
    assert!(matches!(&gone, LoaderError::DaemonGone { reason } if reason.contains("4242")), "{gone}");
}

#[test]
fn a_loader_leaves_in_good_order_and_its_batches_stay() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.pair();
    loader.start(0, 0).unwrap();
    peer.started();
    let plan = peer.serve(1, 1, 0, 0);
    peer.serve(2, 1, 0, 1);
    let kept = next(&mut loader);
    let daemon = std::thread::spawn(move || {
        assert!(matches!(peer.guest.recv(), (FromRank::Leave, _)));
        // A sample that was under way ends before the farewell.
        peer.guest.send(&ToRank::Notice { text: "still busy".into() }, &[]);
        peer.guest.send(&ToRank::Bye, &[]);
        assert!(peer.guest.ended());
        peer
    });
    drop(loader);
    let mut peer = daemon.join().unwrap();
    assert_eq!(peer.released().grant, 2);
    check(&kept, &plan, &ALL);
    drop(kept);
    assert!(!peer.has_feedback());
}

#[test]
fn a_forked_child_gets_an_error_and_disturbs_nobody() {
    let fake = Fake::new();
    let (mut loader, mut peer) = fake.pair();
    loader.start(0, 0).unwrap();
    let one = peer.serve(1, 1, 0, 0);
    let batch = next(&mut loader);
    // SAFETY: the child touches the loader, whose every way in first asks for the process, drops two values, and
    // leaves by `_exit`.
    match unsafe { nix::unistd::fork() }.unwrap() {
        nix::unistd::ForkResult::Child => {
            let refused = matches!(loader.next(), Some(Err(LoaderError::Forked { .. })));
            let refused = refused && matches!(loader.start(0, 0), Err(LoaderError::Forked { .. }));
            drop(batch);
            drop(loader);
            // SAFETY: ends the child at once, without the parent's exit handlers.
            unsafe { libc::_exit(if refused { 0 } else { 1 }) }
        }
        nix::unistd::ForkResult::Parent { child } => {
            let status = nix::sys::wait::waitpid(child, None).unwrap();
            assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        }
    }
    assert!(!peer.has_feedback(), "the child released a batch of its parent");
    check(&batch, &one, &ALL);
    let two = peer.serve(2, 1, 0, 1);
    check(&next(&mut loader), &two, &ALL);
}
