//! What is simulated: the system, the machine it runs on, and what of it is switched off.

use super::layout::Layout;
use crate::proto::options::RunOptions;
use crate::sched::second::Terms;

/// A system to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// PyTorch's `DataLoader` a rank, with so many workers each: a whole batch a worker, in turn.
    Native {
        /// Workers of a rank.
        workers: u16,
    },
    /// One first-come-first-served pool for all ranks, as with Ray actors.
    Pool {
        /// Whether a task is a whole batch; else a sample.
        batches: bool,
    },
    /// This scheduler.
    Helix {
        /// Whether samples move between ranks to even their costs.
        balance: bool,
        /// Steps that share their samples.
        regroup: u32,
    },
}

impl System {
    /// This scheduler as it is meant to be used, without regrouping.
    pub const HELIX: System = System::Helix { balance: true, regroup: 1 };
}

/// What bytes that leave a server have to go through.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes a second that a server takes in, and that it sends; one sample after the other.
    pub bandwidth: f64,
    /// Seconds on top.
    pub latency: f64,
}

/// How those at work slow each other: with `n` of them each takes `1 + α(n−1) + βn(n−1)` times as long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Contention {
    /// The workers of a server.
    Workers {
        /// α.
        alpha: f64,
        /// β.
        beta: f64,
    },
    /// The servers, each counted by the share of its workers at work: they share storage or network.
    Servers {
        /// α.
        alpha: f64,
        /// β.
        beta: f64,
    },
}

/// The machine.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The system.
    pub system: System,
    /// Where cores and ranks are.
    pub layout: Layout,
    /// Batches that a rank may hold, the one in use included.
    pub depth: u32,
    /// Milliseconds of decoding from which on this scheduler may cut a clip; 0 = never.
    pub split_ms: u32,
    /// Whether this scheduler finds out by itself how many of the cores to use.
    pub scale: bool,
    /// How those at work slow each other.
    pub contention: Option<Contention>,
    /// What a sample goes through that is decoded on another server than its rank's; nothing on one box.
    pub link: Option<Link>,
    /// Whether Helix knows deadlines; else it serves in the order of the ranks' batches.
    pub deadlines: bool,
    /// Whether the scheduler is told which server a worker or a rank is on.
    pub locality: bool,
    /// Whether, and on what terms, samples move once more when they are decoded.
    pub second: Option<Terms>,
    /// Whether to note where each ticket was done.
    pub trace: bool,
}

impl Setup {
    /// As many batches in flight as PyTorch has with twelve workers, or with fewer, if a rank has fewer.
    pub fn new(system: System) -> Self {
        let depth = if let System::Native { workers } = system { 2 * u32::from(workers) + 1 } else { 25 };
        Setup {
            system,
            layout: Layout::Even(4),
            depth,
            split_ms: RunOptions::default().split_ms,
            scale: false,
            contention: None,
            link: None,
            deadlines: true,
            locality: true,
            second: None,
            trace: false,
        }
    }
}
