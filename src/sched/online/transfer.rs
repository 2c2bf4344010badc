//! What it takes to read a sample, by server and bytes, and to bring it to another server's memory, by bytes and
//! distance.

use std::collections::BTreeMap;

use super::error::Error;
use super::fit::Fit;
use crate::sched::event::{ServerId, Time};

/// Milliseconds of opening and reading before any was measured, and of a megabyte: a local disk's.
const READ_PRIOR: [f64; 2] = [0.2, 1.0];
/// Milliseconds that a megabyte takes longer to another node's memory: a tenth of a nanosecond a byte.
const FAR_PRIOR: f64 = 0.1;

/// Time of reading, for each server: it may have storage of its own, or share a slow one.
#[derive(Debug, Clone, Default)]
pub struct ReadModel {
    servers: BTreeMap<ServerId, Fit<2>>,
    /// How wrong it was.
    pub error: Error,
}

impl ReadModel {
    /// Nanoseconds of reading so many bytes on a server.
    pub fn predict(&self, server: ServerId, bytes: f64) -> u64 {
        let x = [1.0, bytes / 1e6];
        let ms = self.servers.get(&server).map_or(READ_PRIOR[0] + READ_PRIOR[1] * x[1], |fit| fit.predict(&x));
        (ms.max(0.0) * 1e6) as u64
    }

    /// Learns how long it took.
    pub fn learn(&mut self, server: ServerId, bytes: f64, us: u32) {
        if us == 0 {
            return;
        }
        let ms = f64::from(us) / 1e3;
        self.error.note(self.predict(server, bytes) as f64 / 1e6, ms);
        let fit = self.servers.entry(server).or_insert_with(|| Fit::new(READ_PRIOR, 0.1));
        fit.learn(&[1.0, bytes / 1e6], ms, 1.0 / (ms * ms).max(1e-2));
    }
}

/// A way that samples are sent over when they are made.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Nanoseconds of a byte.
    byte: f64,
    latency: u64,
}

/// What bringing samples to another server's memory costs on top, for each pair of servers: their distance. Where
/// workers write there it is learnt; what is sent over a link takes as long as the link is said to.
#[derive(Debug, Clone, Default)]
pub struct TransferModel {
    pairs: BTreeMap<(ServerId, ServerId), Fit<1>>,
    links: BTreeMap<(ServerId, ServerId), Link>,
    /// Nanoseconds of sending that are still to come, by the server that takes it in.
    under_way: BTreeMap<ServerId, u64>,
    /// How wrong the time of tickets that crossed was predicted.
    pub error: Error,
}

impl TransferModel {
    /// There is a link between two servers.
    pub fn link(&mut self, (from, to): (ServerId, ServerId), bytes_per_s: u64, latency: u64) {
        self.links.insert((from, to), Link { byte: 1e9 / (bytes_per_s.max(1) as f64), latency });
    }

    /// Nanoseconds that a link is busy with so many bytes; 0 where nothing is sent.
    pub fn sending(&self, from: ServerId, to: ServerId, bytes: u64) -> u64 {
        self.links.get(&(from, to)).map_or(0, |link| (link.byte * bytes as f64) as u64)
    }

    /// So many nanoseconds of sending are to come to a server.
    pub fn send(&mut self, to: ServerId, sending: u64) {
        if sending > 0 {
            *self.under_way.entry(to).or_default() += sending;
        }
    }

    /// So many nanoseconds of sending to a server are over, or come to nothing.
    pub fn sent(&mut self, to: ServerId, sending: u64) {
        if let Some(left) = self.under_way.get_mut(&to) {
            *left = left.saturating_sub(sending);
        }
    }

    /// When so many bytes that are made at a time on a worker's server are in the memory of a rank's.
    pub fn arrival(&self, (from, to): (ServerId, ServerId), bytes: u64, now: Time, made: Time) -> Time {
        let Some(link) = self.links.get(&(from, to)) else {
            return made.saturating_add(self.predict(from, to, bytes as f64 / 1e6));
        };
        // What is under way goes first, at the latest.
        let free = now.saturating_add(self.under_way.get(&to).copied().unwrap_or(0));
        made.max(free).saturating_add(self.sending(from, to, bytes)).saturating_add(link.latency)
    }

    /// Nanoseconds on top for so many megabytes from a worker's server into the memory of a rank's.
    pub fn predict(&self, from: ServerId, to: ServerId, megabytes: f64) -> u64 {
        if from == to {
            return 0;
        }
        let each = self.pairs.get(&(from, to)).map_or(FAR_PRIOR, |fit| fit.predict(&[1.0]));
        (each.max(0.0) * megabytes * 1e6) as u64
    }

    /// Learns that a ticket of so many megabytes took `ms` where `near_ms` were predicted for a near one.
    pub fn learn(&mut self, (from, to): (ServerId, ServerId), megabytes: f64, near_ms: f64, ms: f64) {
        if from == to || megabytes <= 0.0 || self.links.contains_key(&(from, to)) {
            return;
        }
        let predicted = near_ms + self.predict(from, to, megabytes) as f64 / 1e6;
        self.error.note(predicted, ms);
        let fit = self.pairs.entry((from, to)).or_insert_with(|| Fit::new([FAR_PRIOR], 1.0));
        // Decoding's noise is far larger than what is looked for: much weight takes many samples.
        fit.learn(&[1.0], (ms - near_ms) / megabytes, (megabytes / near_ms.max(1e-3)).powi(2).min(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::online::margin::tests::Noise;

    const NEAR: ServerId = ServerId(0);
    const FAR: ServerId = ServerId(1);

    #[test]
    fn each_server_reads_at_its_own_pace() {
        let (mut model, mut noise) = (ReadModel::default(), Noise::new(1));
        for i in 0..2000 {
            let megabytes = 0.2 + 5.0 * noise.uniform();
            let (server, pace) = if i % 2 == 0 { (NEAR, 0.5) } else { (FAR, 8.0) };
            let ms = (0.3 + pace * megabytes) * noise.lognormal(0.05);
            model.learn(server, megabytes * 1e6, (ms * 1e3) as u32);
        }
        for (server, pace) in [(NEAR, 0.5), (FAR, 8.0)] {
            let found = model.predict(server, 2e6) as f64 / 1e6;
            assert!((found / (0.3 + 2.0 * pace) - 1.0).abs() < 0.1, "{found} ms");
        }
        assert!(model.error.spread < 0.1 && model.error.count == 2000, "{:?}", model.error);
    }

    #[test]
    fn what_is_sent_over_a_link_waits_for_what_is_under_way() {
        let mut model = TransferModel::default();
        model.link((FAR, NEAR), 1_000_000, 500);
        let arrival = |model: &TransferModel, made| model.arrival((FAR, NEAR), 100, 1000, made);
        assert_eq!(arrival(&model, 2000), 2000 + 100_000 + 500);
        let sending = model.sending(FAR, NEAR, 300);
        model.send(NEAR, sending);
        assert_eq!(arrival(&model, 2000), 1000 + 300_000 + 100_000 + 500);
        assert_eq!(model.arrival((NEAR, FAR), 0, 1000, 2000), 2000, "there is no link the other way");
        model.sent(NEAR, sending);
        assert_eq!(arrival(&model, 2000), 2000 + 100_000 + 500);
    }

    #[test]
    fn distance_is_found_under_the_noise_of_decoding() {
        let (mut model, mut noise) = (TransferModel::default(), Noise::new(2));
        for _ in 0..3000 {
            let (near, megabytes) = (10.0 + 20.0 * noise.uniform(), 5.0 + 20.0 * noise.uniform());
            let ms = near * noise.lognormal(0.1) + 0.4 * megabytes;
            model.learn((NEAR, FAR), megabytes, near, ms);
            model.learn((NEAR, NEAR), megabytes, near, ms);
        }
        let found = model.predict(NEAR, FAR, 10.0) as f64 / 1e6;
        assert!((found / 4.0 - 1.0).abs() < 0.3, "{found} ms");
        assert_eq!(model.predict(NEAR, NEAR, 10.0), 0);
    }
}
