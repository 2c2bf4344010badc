//! Clips made once, ranks started and ended, streams compared.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use helix_shm::corpus::{ClipSpec, Damage, Encoder, clip};
use helix_shm::manifest::Manifest;
use helix_shm::proto::options::Policy;

pub use crate::common::{Daemon, alive, folder, index, kill, status, wait_for, workers};
use crate::rank::{Spec, VARIABLE};

/// A manifest of small, uneven clips; the second one also has files that fail only when they are decoded.
pub struct Data {
    pub good: PathBuf,
    pub mixed: PathBuf,
}

/// Made once for all tests of this binary run.
pub fn data() -> &'static Data {
    static DATA: OnceLock<Data> = OnceLock::new();
    DATA.get_or_init(|| {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("e2e-clips-v2");
        // Tests run as processes of their own: one makes the clips, the others wait for it.
        let parent = root.parent().unwrap();
        std::fs::create_dir_all(parent).unwrap();
        let lock = std::fs::File::create(parent.join("e2e-clips.lock")).unwrap();
        lock.lock().unwrap();
        let data = Data { good: root.join("good.arrow"), mixed: root.join("mixed.arrow") };
        // Made by another version of the manifest: made again.
        if !data.mixed.exists() || Manifest::open(&data.mixed).is_err() {
            make(&root, &data);
        }
        data
    })
}

fn make(root: &Path, data: &Data) {
    let _ = std::fs::remove_dir_all(root);
    std::fs::create_dir_all(root.join("good")).unwrap();
    std::fs::create_dir_all(root.join("bad")).unwrap();
    for i in 0..48u32 {
        let encoder = [Encoder::H264, Encoder::H264, Encoder::Hevc, Encoder::Vp9][i as usize % 4];
        let (width, height) = [(160, 120), (128, 96), (96, 160), (320, 180)][i as usize / 4 % 4];
        let name = format!("clip{i:02}.{}", if encoder == Encoder::Vp9 { "webm" } else { "mp4" });
        let spec = ClipSpec {
            encoder,
            width,
            height,
            frames: 20 + i * 37 % 130,
            gop: 12 + i % 3 * 20,
            seed: u64::from(i),
            ..ClipSpec::default()
        };
        clip(&root.join("good").join(name), &spec).unwrap();
    }
    for i in 0..3 {
        Damage::TruncatedFrames.make(&root.join(format!("bad/cut{i}.mp4")), Encoder::H264, i).unwrap();
        Damage::Scribbled.make(&root.join(format!("bad/noise{i}.mp4")), Encoder::H264, i).unwrap();
    }
    Damage::Empty.make(&root.join("bad/empty.mp4"), Encoder::H264, 0).unwrap();
    index(&[root.join("good")], &data.good);
    index(&[root.join("good"), root.join("bad")], &data.mixed);
}

/// What a rank of `world` does by default: the whole epoch of the good clips.
pub fn spec(socket: &Path, rank: u32, world: u32) -> Spec {
    Spec {
        socket: socket.to_path_buf(),
        manifest: data().good.clone(),
        rank,
        world,
        batch_size: 3,
        workers: 2,
        epoch: 0,
        step: 0,
        steps: u32::MAX,
        skip: false,
        substitute: false,
        max_bad_ratio: 0.0,
        quarantine: None,
        drop_last: true,
        balance: true,
        policy: Policy::Helix,
        ragged: false,
        split_ms: 2000,
        spread: false,
        hedge: false,
        max_batches: 0,
        slab_bytes: Some(4 << 20),
        paced: false,
        keep: 0,
        handed: false,
    }
}

/// The rank's command.
pub fn rank_command(spec: &Spec) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["rank::rank_process", "--exact", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, serde_json::to_string(spec).unwrap())
        .env("HELIX_SHMD", env!("CARGO_BIN_EXE_helix-shmd"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// A running rank.
pub struct Rank {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

/// What a rank said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    Up,
    /// Epoch, step, and the samples as `id:hash`, sorted.
    Batch(u32, u32, Vec<String>),
    /// Ended well; bytes copied.
    End(u64),
    Err(String),
}

impl Rank {
    pub fn start(spec: &Spec) -> Rank {
        Rank::start_as(&mut rank_command(spec))
    }

    pub fn start_as(command: &mut Command) -> Rank {
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Rank { child, stdin, lines }
    }

    /// Lets a paced rank take its next step.
    pub fn step(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            // A rank that has died is what some tests are about.
            let _ = stdin.write_all(b"\n");
        }
    }

    /// Waits for the next batch.
    pub fn hear_batch(&mut self) -> Vec<String> {
        loop {
            match self.hear() {
                Some(Said::Up) => {}
                Some(Said::Batch(_, _, samples)) => return samples,
                other => panic!("{other:?} where a batch was expected"),
            }
        }
    }

    /// The next thing the rank says; `None` at its end.
    pub fn hear(&mut self) -> Option<Said> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test runner prints its own lines around ours.
            let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
            match word {
                "UP" => return Some(Said::Up),
                "B" => {
                    let mut parts = rest.split(' ').filter(|p| !p.is_empty());
                    let mut number = || parts.next().unwrap().parse().unwrap();
                    let (epoch, step) = (number(), number());
                    let mut samples: Vec<_> = parts.map(str::to_string).collect();
                    samples.sort();
                    return Some(Said::Batch(epoch, step, samples));
                }
                "END" => return Some(Said::End(rest.parse().unwrap())),
                "ERR" => return Some(Said::Err(rest.to_string())),
                _ => {}
            }
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Per step: who got what, in order of ranks.
pub type Stream = BTreeMap<(u32, u32), Vec<Vec<String>>>;

/// Runs all ranks to their end. Panics with what they said if one of them fails.
pub fn run(specs: &[Spec]) -> Stream {
    let ranks = specs.iter().map(Rank::start).collect();
    collect(ranks)
}

/// Hears running ranks out.
pub fn collect(ranks: Vec<Rank>) -> Stream {
    let world = ranks.len();
    let heard: Vec<Vec<Said>> = std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|mut rank| scope.spawn(move || std::iter::from_fn(|| rank.hear()).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut stream = Stream::new();
    for (rank, said) in heard.into_iter().enumerate() {
        assert!(matches!(said.last(), Some(Said::End(0))), "rank {rank} ended with {:?}", said.last());
        for said in said {
            if let Said::Batch(epoch, step, samples) = said {
                let step = stream.entry((epoch, step)).or_insert_with(|| vec![Vec::new(); world]);
                step[rank] = samples;
            }
        }
    }
    stream
}
