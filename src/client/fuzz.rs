//! A rank's table, ledger and batches, driven by arbitrary bytes: for the fuzzer, and for a test with random ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Zeroable;

use super::batch::{Batch, View};
use super::ledger::{Held, Ledger, Outlet};
use super::store::Store;
use super::table::{Rules, Table};
use crate::proto::handover::{Dealt, Shift};
use crate::proto::message::{self, Body, Entry, Head, Ready, Words, kind};
use crate::proto::transform::Transform;
use crate::ring::slab::{Slab, SlabOptions};
use crate::ring::spsc::Corrupt;

const SLAB: u64 = 64 << 10;
const SHAPE: [u16; 4] = [2, 3, 2, 4];
const BYTES: u64 = 48;
const ROWS: u64 = 100;
const WORLD: u32 = 4;
const BATCH: u32 = 6;
const RANK: u32 = 1;
const SESSION: u16 = 3;

/// Counts releases.
struct Count(Arc<AtomicU64>);

impl Outlet for Count {
    fn push(&mut self, _words: &Words) -> Result<bool, Corrupt> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

/// The bytes, taken from the front; zeros when they are used up.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn words(&mut self) -> Words {
        std::array::from_fn(|_| u64::from_le_bytes(std::array::from_fn(|_| self.byte())))
    }

    /// Mostly `likely`, sometimes beside it, sometimes far away.
    fn near(&mut self, likely: u64) -> u64 {
        match self.byte() {
            0..=223 => likely,
            224..=239 => likely.wrapping_add(1),
            240..=249 => likely.wrapping_sub(1),
            250..=252 => u64::from(self.byte()),
            _ => u64::MAX - u64::from(self.byte()),
        }
    }
}

/// Has a table hear what the bytes say, as daemon and workers might, and uses what comes out of it.
///
/// # Panics
/// If what came out is not what it has to be, whatever was heard.
pub fn table(bytes: &[u8]) {
    let mut from = Bytes(bytes);
    let flags = from.byte();
    let options = SlabOptions { prefault: false, huge: false, node: None };
    let Ok(slab) = Slab::create("helix-fuzz", SLAB as usize, options) else { return };
    let store = Arc::new(Store::bare(slab));
    let (ledger, released) = (Ledger::new(), Arc::new(AtomicU64::new(0)));
    ledger.joining();
    ledger.up(SESSION, Box::new(Count(Arc::clone(&released))));
    let rules = Rules {
        session: SESSION,
        rank: RANK,
        rebalance: flags & 2 == 2,
        slab_bytes: SLAB,
        rows: ROWS,
        world: WORLD,
        batch_size: BATCH,
        global_batch: u64::from(WORLD * BATCH),
        transform: Arc::new(Transform { frames: SHAPE[0], ..Transform::default() }),
        may_skip: flags & 1 == 1,
        may_replace: flags & 4 == 4,
        shape: Arc::new(|_| SHAPE),
    };
    let mut table = Table::new(rules, Arc::clone(&ledger), 0);
    let mut peer = Peer { iter: 0, step: 0, grant: 0, blocks: VecDeque::new() };
    let (mut held, mut next) = (VecDeque::<Batch>::new(), 0);
    while !from.0.is_empty() {
        let heard = match from.byte() % 16 {
            0 => table.hear_daemon(&from.words()),
            1 => table.hear_worker(&from.words()),
            2 => {
                (peer.iter, peer.step, next) = (peer.iter + 1, 0, 0);
                peer.blocks.clear();
                table.start(peer.iter, 0, 0);
                Ok(())
            }
            3..=6 => peer.batch(&mut from).iter().try_for_each(|words| table.hear_daemon(words)),
            7 if from.byte() & 1 == 1 => table.hear_daemon(&peer.spare(&mut from)),
            7 => table.hear_daemon(&peer.end(&mut from)),
            8..=12 => {
                let (words, by_worker) = (peer.ready(&mut from), from.byte() & 3 > 0);
                if by_worker { table.hear_worker(&words) } else { table.hear_daemon(&words) }
            }
            13 | 14 => {
                while let Some(assembled) = table.pop() {
                    assert_eq!(assembled.step, next, "batches come in the order of steps");
                    next += 1;
                    held.push_back(Batch::new(
                        Arc::clone(&store),
                        assembled,
                        View { fixed: Some(SHAPE), ..View::default() },
                    ));
                }
                Ok(())
            }
            15 if flags & 2 == 2 => peer.plan(&mut from).iter().try_for_each(|words| table.hear_daemon(words)),
            _ => {
                held.pop_front();
                Ok(())
            }
        };
        look_at(&held);
        if heard.is_err() {
            break; // the loader gives the session up
        }
    }
    let _ = (table.is_over(), table.missing());
    drop((table, held));
    let Held { blocks, loans, .. } = ledger.joining();
    assert!(blocks.is_empty() && loans.is_empty(), "every block was released: {blocks:?} {loans:?}");
}

/// Reads every byte, and sees that no two batches share one.
fn look_at(held: &VecDeque<Batch>) {
    let mut spans: Vec<_> = held.iter().flat_map(Batch::runs).map(|run| (run.as_ptr() as usize, run.len())).collect();
    spans.sort_unstable();
    assert!(spans.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0), "two batches share memory");
    let sum: u64 = held.iter().flat_map(Batch::runs).flatten().map(|byte| u64::from(*byte)).sum();
    std::hint::black_box(sum);
    for batch in held {
        assert!(batch.len() + batch.skipped() <= BATCH as usize);
        let _ = std::hint::black_box(batch.tensor("video"));
    }
}

/// What an almost honest daemon says next.
struct Peer {
    iter: u32,
    step: u32,
    grant: u32,
    /// Grant, step, offset, samples.
    blocks: VecDeque<(u32, u32, u64, u16)>,
}

impl Peer {
    fn batch(&mut self, from: &mut Bytes<'_>) -> Vec<Words> {
        let samples = 1 + u16::from(from.byte()) % BATCH as u16;
        let page = u64::from(from.byte() % 16);
        let (offset, len) = (from.near(4096 * page), 4096);
        self.grant += 1;
        let grant = from.near(self.grant.into()) as u32;
        let step = from.near(self.step.into()) as u32;
        let iter = from.near(self.iter.into()) as u32;
        self.step += 1;
        let session = from.near(SESSION.into()) as u16;
        let head = Head { kind: kind::BATCH, session, attempt: 0, slot: from.near(samples.into()) as u16 };
        let global = from.near(u64::from(samples) + 1) as u32;
        let mut said = vec![
            message::Batch { head, offset, len: from.near(len), grant, iter, step, global, ..Zeroable::zeroed() }
                .words(),
        ];
        for slot in 0..samples {
            let attempt = from.near(0) as u16;
            let head = Head { kind: kind::ENTRY, session, attempt, slot: from.near(slot.into()) as u16 };
            let home_share = from.near(1);
            let at = from.near(offset.wrapping_add(u64::from(slot) * BYTES));
            let (sample, home_rank) = (from.near(slot.into()), from.near(0) as u32);
            let tokens = f64::from_bits(from.near(0));
            let len = from.near(BYTES);
            said.push(Entry { head, sample, offset: at, len, grant, home_rank, home_share, tokens }.words());
        }
        self.blocks.push_back((grant, step, offset, samples));
        if self.blocks.len() > 8 {
            self.blocks.pop_front();
        }
        said
    }

    /// How a step was balanced: up to three samples that go or come.
    fn plan(&mut self, from: &mut Bytes<'_>) -> Vec<Words> {
        let at = usize::from(from.byte()) % self.blocks.len().max(1);
        let (grant, step, _, samples) = self.blocks.get(at).copied().unwrap_or_default();
        let mut dealt = Dealt { total: 9.0, ..Dealt::default() };
        for _ in 0..from.byte() % 4 {
            let slot = u32::from(u16::from(from.byte()) % samples.max(1));
            let other = from.near(0) as u32;
            let (go, come) = (Shift { from: RANK, slot, to: other }, Shift { from: other, slot, to: RANK });
            dealt.shifts.push(if from.byte() & 1 == 1 { go } else { come });
        }
        let head = |kind, slot: u32| Head { kind, session: SESSION, attempt: 0, slot: slot as u16 };
        let (moves, digest) = (dealt.shifts.len() as u64, dealt.digest(0, step));
        let (digest, moves) = (from.near(digest), from.near(moves) as u32);
        let (total, grant, dealt_before) = (dealt.total, from.near(grant.into()) as u32, from.near(0) as u32);
        let plan = message::Plan {
            head: head(kind::PLAN, 0),
            digest,
            total,
            grant,
            tokens: 0,
            moves,
            dealt: dealt_before,
            epoch: 0,
            step: from.near(step.into()) as u32,
            reserved: 0,
        };
        let mut said = vec![plan.words()];
        for s in &dealt.shifts {
            let comes = s.to == RANK;
            let pieces = from.near(u64::from(comes)) as u32;
            let (head_of, Shift { from: giver, slot, to }) = (head(kind::MOVE, s.slot), *s);
            said.push(message::Move { head: head_of, grant, from: giver, to, pieces, reserved: [0; 4] }.words());
            if comes {
                let (offset, tokens) = (from.near(64), f64::from_bits(from.near(0)));
                let (sample, home_share) = (from.near(3), from.near(1));
                let (len, home_rank) = (BYTES, 0);
                let head_of = head(kind::ENTRY, slot);
                said.push(Entry { head: head_of, sample, offset, len, grant, home_rank, home_share, tokens }.words());
                let (block, block_len, of) = (from.near(0), from.near(4096), from.near(5) as u32);
                let (first, frames, slab) = (from.near(0) as u16, from.near(SHAPE[0].into()) as u16, 8);
                let head = head(kind::HANDED, slot);
                let from = giver;
                let handed = message::Handed { head, block, block_len, offset, grant, of, from, first, frames, slab };
                said.push(handed.words());
            }
        }
        said
    }

    fn end(&self, from: &mut Bytes<'_>) -> Words {
        let head = Head { kind: kind::END, session: SESSION, attempt: 0, slot: 0 };
        let (iter, step) = (from.near(self.iter.into()) as u32, from.near(self.step.into()) as u32);
        message::Batch { head, iter, step, ..Zeroable::zeroed() }.words()
    }

    /// A second place, which may then be spoken of as a batch of one.
    fn spare(&mut self, from: &mut Bytes<'_>) -> Words {
        let at = usize::from(from.byte()) % self.blocks.len().max(1);
        let (of, step, _, samples) = self.blocks.get(at).copied().unwrap_or_default();
        let slot = u64::from(from.byte()) % u64::from(samples.max(1));
        let slot = from.near(slot) as u16;
        self.grant += 1;
        let (grant, page) = (from.near(self.grant.into()) as u32, u64::from(from.byte() % 16));
        let (offset, len) = (from.near(4096 * page), from.near(4096));
        let (of, step) = (from.near(of.into()) as u32, from.near(step.into()) as u32);
        let head = Head { kind: kind::SPARE, session: SESSION, attempt: 2, slot };
        let iter = from.near(self.iter.into()) as u32;
        // What is said of it names the batch's slot, and lies at the block's start whatever that is.
        self.blocks.push_back((grant, step, offset.wrapping_sub(u64::from(slot) * BYTES), slot.saturating_add(1)));
        message::Spare { head, offset, len, grant, of, iter, step, first: 0, frames: SHAPE[0], reserved: [0; 3] }
            .words()
    }

    fn ready(&self, from: &mut Bytes<'_>) -> Words {
        let at = usize::from(from.byte()) % self.blocks.len().max(1);
        let (grant, step, offset, samples) = self.blocks.get(at).copied().unwrap_or_default();
        let slot = u64::from(from.byte()) % u64::from(samples.max(1));
        let slot = from.near(slot) as u16;
        let skip = from.byte().is_multiple_of(8);
        let head = Head { kind: if skip { kind::SKIP } else { kind::READY }, session: SESSION, attempt: 1, slot };
        let (sample, grant) = (from.near(slot.into()), from.near(grant.into()) as u32);
        let step = from.near(step.into()) as u32;
        let place = offset.wrapping_add(u64::from(slot) * BYTES);
        let (mut offset, mut written, shape) = if skip { (0, 0, [0; 4]) } else { (place, BYTES, SHAPE) };
        let (mut first, mut frames) = (0, SHAPE[0]);
        if !skip && from.byte() & 1 == 1 {
            (first, frames, written) = (u16::from(from.byte() & 1), 1, BYTES / 2);
            offset = offset.wrapping_add(u64::from(first) * written);
        }
        let (first, frames) = (from.near(first.into()) as u16, from.near(frames.into()) as u16);
        let (offset, written) = (from.near(offset), from.near(written));
        Ready { head, sample, offset, written, shape, grant, step, first, frames, reserved: 0 }.words()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn whatever_is_heard_no_batch_is_wrong(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            super::table(&bytes);
        }
    }
}
