//! How many workers are used: what [`Scaling`] is told, and what is made of its answer.

use super::Engine;
use crate::proto::options::Policy;
use crate::sched::cost::Work;
use crate::sched::event::{Measured, StreamId};
use crate::sched::scaling::Scaling;

/// What happened since the last step.
#[derive(Debug, Default)]
pub(super) struct Scale {
    /// With the most workers that it was made for.
    scaling: Option<(usize, Scaling)>,
    /// Milliseconds that the tickets done should have taken on a lone core, and that they took.
    prior_ms: f64,
    took_ms: f64,
    /// Time that ranks waited and that they were busy.
    waited: f64,
    busy: f64,
    /// Ranks that have ended a step.
    ends: u32,
}

impl Scale {
    /// A ticket was done.
    pub(super) fn ticket(&mut self, work: &Work, measured: &Measured) {
        self.prior_ms += work.prior_ms();
        self.took_ms += f64::from(measured.wall_us) / 1e3;
    }

    /// What so many workers give, if all of them work: the speed of those that did, times as many.
    fn rate(&self, workers: u32) -> f64 {
        f64::from(workers) * self.prior_ms / self.took_ms
    }
}

impl Engine {
    /// A rank has ended a step. When as many have as the stream has ranks, the number of workers is thought over.
    pub(super) fn rescale(&mut self, stream: StreamId, wait_ns: u64, busy_ns: u64) {
        let Some(s) = self.streams.get(&stream).filter(|s| s.run.scale && s.run.policy == Policy::Helix) else {
            return;
        };
        let world = s.options.world;
        let (most, scale) = (self.workers.len(), &mut self.scale);
        if most == 0 {
            return;
        }
        scale.waited += wait_ns as f64;
        scale.busy += busy_ns as f64;
        scale.ends += 1;
        // Fewer than before are there only until those that died are replaced.
        if scale.scaling.as_ref().is_none_or(|(of, _)| most > *of) {
            scale.scaling = Some((most, Scaling::new(most as u32)));
        }
        if scale.ends < world {
            return;
        }
        let known = scale.scaling.take();
        if let Some((most, mut scaling)) = known {
            let waiting = scale.waited / (scale.waited + scale.busy).max(1.0);
            scaling.step(scale.rate(scaling.workers()), waiting);
            self.workers.limit(scaling.workers() as usize);
            self.scale = Scale { scaling: Some((most, scaling)), ..Scale::default() };
        }
    }

    /// Workers that may be at work, for the status.
    pub fn workers_used(&self) -> usize {
        self.workers.usable()
    }
}
