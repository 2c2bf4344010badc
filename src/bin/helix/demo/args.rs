//! What `helix demo` can be asked.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use helix_shm::proto::options::{Balance, Policy};

/// Feeds ranks from real video under several policies, on the same cores and memory, and shows what each is worth.
#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// Videos of your own, in this folder and below; otherwise a small corpus is made once.
    #[arg(long, value_name = "DIR")]
    pub(crate) videos: Option<PathBuf>,
    /// Rank processes.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) ranks: u32,
    /// Steps for each policy [default: about 20 s at the perfect bound].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    pub(crate) steps: Option<u32>,
    /// Samples a rank gets in a step.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batch_size: u32,
    /// Seeds the corpus, the order and the crops.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A wait longer than this is a deadline missed, milliseconds. 5 % of the median step is shown as well.
    #[arg(long, value_name = "MS", default_value_t = 1.0, value_parser = positive)]
    pub(crate) theta_ms: f64,
    /// The policies, in the order in which they run.
    #[arg(long, value_delimiter = ',', default_value = "local,pool,helix")]
    pub(crate) policies: Vec<Contender>,
    /// Batches made ahead of the one in use, for each rank; even, since `local` has half as many workers a rank.
    #[arg(long, default_value_t = 4, value_parser = even)]
    pub(crate) lookahead: u32,
    /// Time of the emulated accelerators over that of decoding on these cores, both at their best.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    pub(crate) load: f64,
    /// Where the corpus is made and kept [default: a folder below --work].
    #[arg(long, value_name = "DIR")]
    pub(crate) corpus: Option<PathBuf>,
    /// Clips in the corpus [default: 80], or the most of your videos that take part [default: 256].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clips: Option<u32>,
    /// Where manifests and the corpus lie.
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    pub(crate) work: PathBuf,
    /// Keep a record of each policy's run in this folder, for `helix plan --run`.
    #[arg(long, value_name = "DIR")]
    pub(crate) record: Option<PathBuf>,
    /// Where the rows of the result go.
    #[arg(long, value_name = "FILE", default_value = "target/results/demo.json")]
    pub(crate) results: PathBuf,
    /// Print the rows as JSON on stdout instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(v) if v > 0.0 && v.is_finite() => Ok(v),
        _ => Err("wanted a number above 0".into()),
    }
}

fn even(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(v) if (2..=64).contains(&v) && v.is_multiple_of(2) => Ok(v),
        _ => Err("wanted an even number from 2 to 64".into()),
    }
}

/// Who feeds the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contender {
    /// As PyTorch: each rank has workers of its own, a whole batch a worker, in turn, in order, prefetch 2.
    Local,
    /// One first-come-first-served pool for all ranks, a task a sample.
    Pool,
    /// By deadline over all workers, with samples dealt so that the ranks' compute is even.
    Helix,
}

impl Contender {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Contender::Local => "local",
            Contender::Pool => "pool",
            Contender::Helix => "helix",
        }
    }

    pub(crate) const fn policy(self) -> Policy {
        match self {
            Contender::Local => Policy::Local,
            Contender::Pool => Policy::Pool,
            Contender::Helix => Policy::Helix,
        }
    }

    /// Only helix knows what a sample will cost its rank.
    pub(crate) const fn balance(self) -> Balance {
        match self {
            Contender::Local | Contender::Pool => Balance::None,
            Contender::Helix => Balance::Cost,
        }
    }
}
