//! The right loss: however samples were dealt, the ranks' averaged gradient is that of the loss over the whole batch.

use std::sync::Arc;

use super::batch::{Batch, View};
use super::ledger::Ledger;
use super::store::Store;
use super::table::{Assembled, Slot, SlotState};
use crate::proto::options::{Balance, OnError, Profile, StreamOptions, Weigh};
use crate::proto::transform::{Facts, Transform};
use crate::ring::slab::{Slab, SlabOptions};
use crate::sched::cost::Work;
use crate::sched::event::{Catalog, Place};
use crate::sched::online::margin::tests::Noise;
use crate::sched::order::Permutation;
use crate::sched::plan::StepPlan;
use crate::sched::units::Units;

const RANKS: u32 = 4;
const EACH: u32 = 6;

/// Samples of uneven lengths.
struct Lengths(Vec<f64>);

impl Catalog for Lengths {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn row(&self, i: u64) -> u64 {
        i
    }
    fn facts(&self, _: u64) -> Facts {
        Facts::default()
    }
    fn appraise(&self, i: u64, _: &StreamOptions) -> (Work, f64) {
        (Work::default(), self.0[i as usize])
    }
    fn tokens(&self, i: u64, _: &StreamOptions) -> f64 {
        self.0[i as usize]
    }
}

fn options(balance: Balance, regroup: u32) -> StreamOptions {
    StreamOptions {
        world: RANKS,
        batch_size: EACH,
        seed: 1,
        shuffle: true,
        drop_last: true,
        balance,
        profile: Profile::Decode,
        on_error: OnError::Raise,
        transform: Transform::default(),
        micro_batch: 1,
        regroup,
        weigh: Weigh::Samples,
        mix: Vec::new(),
        rebalance: Default::default(),
    }
}

/// What the daemon would announce to a rank, as the rank's batch.
fn batch(ledger: &Arc<Ledger>, places: &[Place], step: &Step, weigh: Weigh) -> Batch {
    let options = SlabOptions { prefault: false, huge: false, node: None };
    let slab = Slab::create("test", 4096, options).expect("memory");
    let slot = |(i, place): (usize, &Place)| Slot {
        sample: place.sample,
        offset: i as u64,
        len: 1,
        home_rank: place.home_rank,
        home_share: place.home_share,
        tokens: place.tokens,
        bin: place.bin,
        state: SlotState::Ready { written: 1, shape: [1; 4] },
    };
    let slots = places.iter().enumerate().map(slot).collect();
    let lease = ledger.take((0, 64), (step.number, 1, step.number)).expect("a lease");
    let (mean_cost, tokens_global, bins, global) = (0.0, step.tokens, 0, step.samples);
    let (scattered, spares, handover) = Default::default();
    let (epoch, step) = (0, 0);
    let assembled =
        Assembled { lease, epoch, step, global, mean_cost, tokens_global, bins, slots, scattered, spares, handover };
    Batch::new(Arc::new(Store::bare(slab)), assembled, View { weigh, ..View::default() })
}

/// A step, dealt to ranks.
struct Step {
    ranks: Vec<Vec<Place>>,
    samples: u32,
    tokens: f64,
    number: u32,
}

/// `tanh(W·x)·v` and half the squared distance to a target: a net of 4 inputs and 3 hidden units.
#[derive(Clone)]
struct Net {
    w: [[f64; 4]; 3],
    v: [f64; 3],
}

type Gradient = [f64; 15];

impl Net {
    fn new(noise: &mut Noise) -> Net {
        let mut draw = || noise.uniform() - 0.5;
        Net { w: std::array::from_fn(|_| std::array::from_fn(|_| draw())), v: std::array::from_fn(|_| draw()) }
    }

    /// The gradient of one sample's loss.
    fn gradient(&self, sample: u64) -> Gradient {
        let mut noise = Noise::new(sample + 1000);
        let x: [f64; 4] = std::array::from_fn(|_| 2.0 * noise.uniform() - 1.0);
        let target = noise.uniform();
        let hidden: [f64; 3] =
            std::array::from_fn(|i| self.w[i].iter().zip(x).map(|(w, x)| w * x).sum::<f64>().tanh());
        let error = self.v.iter().zip(hidden).map(|(v, h)| v * h).sum::<f64>() - target;
        let mut gradient = [0.0; 15];
        for i in 0..3 {
            for j in 0..4 {
                gradient[4 * i + j] = error * self.v[i] * (1.0 - hidden[i] * hidden[i]) * x[j];
            }
            gradient[12 + i] = error * hidden[i];
        }
        gradient
    }
}

fn sum(weighted: impl Iterator<Item = (f64, Gradient)>) -> Gradient {
    weighted.fold([0.0; 15], |mut all, (weight, gradient)| {
        all.iter_mut().zip(gradient).for_each(|(a, g)| *a += weight * g);
        all
    })
}

fn distance(a: &Gradient, b: &Gradient) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// The loss as it is defined over the whole step, without a word of who computes what.
fn wanted(net: &Net, step: &Step, weigh: Weigh) -> Gradient {
    let all: Vec<&Place> = step.ranks.iter().flatten().collect();
    let (n, tokens) = (all.len() as f64, all.iter().map(|p| p.tokens).sum::<f64>());
    let of_home = |home: u32| all.iter().filter(|p| p.home_rank == home).count() as f64;
    let homes = (0..RANKS).filter(|home| of_home(*home) > 0.0).count() as f64;
    sum(all.iter().map(|p| {
        let weight = match weigh {
            Weigh::Samples => 1.0 / n,
            Weigh::Tokens => p.tokens / tokens,
            Weigh::Ranks => 1.0 / homes / of_home(p.home_rank),
        };
        (weight, net.gradient(p.sample))
    }))
}

/// What gradient averaging makes of the ranks' losses `R · Σ wᵢ·ℓᵢ`, and of means that each rank takes for itself.
fn averaged(net: &Net, step: &Step, weigh: Weigh) -> (Gradient, Gradient) {
    let ledger = Ledger::new();
    let (mut weighted, mut local) = (Vec::new(), Vec::new());
    let mut total = 0.0;
    for places in &step.ranks {
        let batch = batch(&ledger, places, step, weigh);
        assert_eq!(batch.n_rank() as usize, places.len());
        let n = batch.len() as f64;
        total += batch.weights().iter().sum::<f64>();
        for (&id, &weight) in batch.ids().iter().zip(batch.weights()) {
            // R · w, averaged over R ranks; and 1/n, averaged.
            weighted.push((f64::from(RANKS) * weight / f64::from(RANKS), net.gradient(id)));
            local.push((1.0 / n / f64::from(RANKS), net.gradient(id)));
        }
    }
    assert!((total - 1.0).abs() < 1e-12, "weights sum to {total}");
    (sum(weighted.into_iter()), sum(local.into_iter()))
}

/// Steps of every kind of dealing, and some that leave ranks without a sample.
fn steps() -> Vec<Step> {
    let mut noise = Noise::new(5);
    let lengths = (0..240).map(|_| (300.0 * noise.lognormal(0.9)).ceil()).collect();
    let catalog = Lengths(lengths);
    let mut steps = Vec::new();
    for (balance, regroup) in [
        (Balance::None, 1),
        (Balance::Cost, 1),
        (Balance::Free { most: 20 }, 1),
        (Balance::Free { most: 20 }, 5),
        (Balance::Packed { budget: 1500, most: 24 }, 1),
        (Balance::Packed { budget: 1500, most: 24 }, 5),
    ] {
        let options = options(balance, regroup);
        let units = Units::new(&options, &catalog, Permutation::shuffled(240, 1, 0), 0);
        for step in 0..units.steps(&options) {
            let StepPlan { ranks, samples, tokens, .. } = StepPlan::new(&options, &catalog, &units, 0, step);
            let ranks: Vec<Vec<Place>> =
                ranks.into_iter().map(|r| r.into_iter().map(|p| p.place).collect()).collect();
            steps.push(Step { ranks, samples, tokens, number: steps.len() as u32 + 1 });
        }
    }
    // Any placement at all: everything on one rank, or thrown about.
    for seed in 0..8u64 {
        let from = &steps[seed as usize];
        let all: Vec<Place> = from.ranks.iter().flatten().copied().collect();
        let mut ranks = vec![Vec::new(); RANKS as usize];
        for place in all {
            let to = if seed == 0 { 2 } else { noise.next() % u64::from(RANKS - 1) };
            ranks[to as usize].push(place);
        }
        steps.push(Step { ranks, samples: from.samples, tokens: from.tokens, number: steps.len() as u32 + 1 });
    }
    steps
}

#[test]
fn the_gradient_is_that_of_the_whole_batch_wherever_samples_are() {
    let net = Net::new(&mut Noise::new(3));
    let steps = steps();
    assert!(steps.iter().flat_map(|s| &s.ranks).any(Vec::is_empty), "some rank has none");
    for weigh in [Weigh::Samples, Weigh::Tokens, Weigh::Ranks] {
        let mut worst_without = 0.0f64;
        for step in &steps {
            let wanted = wanted(&net, step, weigh);
            let (weighted, local) = averaged(&net, step, weigh);
            let off = distance(&wanted, &weighted);
            assert!(off < 1e-10, "{weigh:?}, step {}: off by {off}", step.number);
            worst_without = worst_without.max(distance(&wanted, &local));
        }
        assert!(worst_without > 1e-3, "{weigh:?}: without the weights it is the same; the test tells nothing");
    }
}

#[test]
fn every_rank_has_as_many_sequences() {
    let (budget, most) = (1500, 24);
    let options = options(Balance::Packed { budget, most }, 1);
    let mut noise = Noise::new(8);
    let catalog = Lengths((0..240).map(|_| (300.0 * noise.lognormal(0.9)).ceil()).collect());
    let units = Units::new(&options, &catalog, Permutation::shuffled(240, 1, 0), 0);
    for step in 0..units.steps(&options) {
        let plan = StepPlan::new(&options, &catalog, &units, 0, step);
        assert!(plan.bins > 0);
        for rank in &plan.ranks {
            assert!(rank.iter().map(|p| p.place.bin).is_sorted());
            for bin in 0..plan.bins {
                let inside: Vec<f64> = rank.iter().filter(|p| p.place.bin == bin).map(|p| p.place.tokens).collect();
                assert!(inside.iter().sum::<f64>() <= f64::from(budget) || inside.len() == 1, "{inside:?}");
            }
        }
    }
}
