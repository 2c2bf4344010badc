//! `helix index`: from folders, tars and lists of media to a manifest, or from a manifest to what has become of its files.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use helix_shm::manifest::Manifest;
use helix_shm::manifest::build::{Build, BuildError, Drift, Progress, Summary, check};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What a user has to know of the inputs; `docs/inputs.md` says more.
const INPUTS: &str = "\
Inputs:
  a folder       is walked, links followed: media and tars are taken; sound without video is only counted,
                 unless --sound makes samples of it
  a media file   is a sample, and a bad one if it has no video
  a .tar         as WebDataset makes it: members KEY.EXTENSION, one sample a key, KEY.txt or KEY.json (`caption` or
                 `text`) is its text; samples are read in place, so it must not be compressed
  a .csv         of Kinetics (label,youtube_id,time_start,time_end,split), OpenVid (video,caption,...) or WebVid
                 (videoid,contentUrl,duration,page_dir,name); its files are looked for below --root
  a .jsonl       one {\"path\": ..., \"text\": ...} a line, relative to its folder; also `video` and `caption`;
                 `offset` and `len` (bytes) make a part of a file a sample

A line, member or file that cannot be a sample is a bad row with its reason and stops nothing. Files whose length and
time are those of a former manifest at the same place are not looked into again.";

/// What the shell knows of it: 0 done, 1 failed (nothing written), 2 wrong usage, 130 stopped by Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = INPUTS)]
pub(crate) struct Args {
    /// Folders to walk, media files, tars (WebDataset), and lists of files (.csv, .jsonl)
    #[arg(value_name = "PATH", required_unless_present = "check")]
    paths: Vec<PathBuf>,
    /// Where the files are that a CSV names [default: the folder that the CSV is in]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where to write the manifest, an Arrow IPC file
    #[arg(short, long, value_name = "FILE", default_value = "data.arrow")]
    output: PathBuf,
    /// Files to look into at a time [default: one for each core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Look into every file again, even those that a former manifest has unchanged
    #[arg(long)]
    fresh: bool,
    /// Take files of sound without video as samples too
    #[arg(long)]
    sound: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Instead: read a manifest and name the files that are missing or changed
    #[arg(long, value_name = "MANIFEST", conflicts_with_all = ["paths", "root", "output", "jobs", "fresh", "sound"])]
    check: Option<PathBuf>,
}

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);

pub(crate) fn run(args: &Args) -> ExitCode {
    let done = match &args.check {
        Some(manifest) => run_check(manifest, args.quiet),
        None => run_build(args),
    };
    match done {
        Ok(code) => code,
        // Whoever read our output has seen enough.
        Err(Failure::Print(e)) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(io::stderr(), "helix index: {e}");
            e.code()
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Manifest(#[from] helix_shm::manifest::ManifestError),
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

impl Failure {
    fn code(&self) -> ExitCode {
        match self {
            Failure::Build(BuildError::Stopped { .. }) => ExitCode::from(130),
            _ => ExitCode::FAILURE,
        }
    }
}

fn run_build(args: &Args) -> Result<ExitCode, Failure> {
    stop_on_ctrl_c();
    let start = Instant::now();
    let jobs = args.jobs.map_or(0, usize::from);
    let (paths, root, output) = (args.paths.clone(), args.root.clone(), args.output.clone());
    let build = Build { paths, root, output, jobs, reuse: !args.fresh, sound: args.sound };
    let mut shown = Shown::new(args.quiet);
    let built = build.run(&STOP, |p| shown.update(p));
    shown.finish();
    if let Err(BuildError::AllBad { bad, .. }) = &built {
        print_bad(bad, &mut io::stderr().lock())?;
    }
    let summary = built?;
    if !args.quiet {
        print_summary(&summary, &args.output, start.elapsed(), &mut io::stdout().lock())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_bad(bad: &[(PathBuf, String)], out: &mut impl Write) -> io::Result<()> {
    bad.iter().try_for_each(|(path, reason)| writeln!(out, "bad: {} {reason}", path.display()))
}

fn print_summary(s: &Summary, output: &Path, took: Duration, out: &mut impl Write) -> io::Result<()> {
    print_bad(&s.bad, out)?;
    for (path, reason) in &s.unreadable {
        writeln!(out, "unreadable: {} {reason}", path.display())?;
    }
    for (path, note) in &s.notes {
        writeln!(out, "note: {} {note}", path.display())?;
    }
    let mut rest = Vec::new();
    for (n, what) in [
        (s.bad.len() as u64, "bad"),
        (s.no_video, "not video"),
        (s.others, "not media"),
        (s.unreadable.len() as u64, "unreadable"),
        (s.reused, "unchanged since the last run"),
    ] {
        if n > 0 {
            rest.push(format!("{n} {what}"));
        }
    }
    let rest = if rest.is_empty() { String::new() } else { format!(" ({})", rest.join(", ")) };
    writeln!(out, "{} of {} media files are good{rest}", s.good, s.files)?;
    let length = HumanDuration(Duration::from_secs_f64(s.seconds.clamp(0.0, 1e15)));
    writeln!(out, "{} frames, {:.1} s of video ({length:#}), {}", s.frames, s.seconds, HumanBytes(s.bytes))?;
    let took = took.as_secs_f64();
    writeln!(out, "wrote {} in {took:.2} s, fingerprint {}", output.display(), s.fingerprint)
}

fn run_check(path: &Path, quiet: bool) -> Result<ExitCode, Failure> {
    let manifest = Manifest::open(path)?;
    manifest.verify()?;
    let mut out = io::stdout().lock();
    let mut printed = Ok(());
    let (mut missing, mut changed) = (0_u64, 0_u64);
    check(&manifest, |row, file, drift| {
        let (count, what, reason) = match &drift {
            Drift::Missing(reason) => (&mut missing, "missing", reason),
            Drift::Changed(reason) => (&mut changed, "changed", reason),
        };
        *count += 1;
        if printed.is_ok() {
            printed = writeln!(out, "{what}: row {row}: {file}: {reason}");
        }
    });
    printed?;
    if !quiet {
        let (good, bad) = (manifest.good(), manifest.bad_rows().len());
        writeln!(out, "{good} good rows, {bad} bad: {missing} files missing, {changed} changed")?;
    }
    Ok(if missing + changed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first Ctrl-C asks to stop and keep what is done; a second one ends the process as usual.
fn stop_on_ctrl_c() {
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    extern "C" fn stop(_: libc::c_int) {
        STOP.store(true, Ordering::Relaxed);
    }
    let action =
        SigAction::new(SigHandler::Handler(stop), SaFlags::SA_RESTART | SaFlags::SA_RESETHAND, SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler only stores to an atomic.
        if let Err(e) = unsafe { sigaction(signal, &action) } {
            tracing::warn!("Ctrl-C will not keep what is done: {e}");
        }
    }
}

/// A bar on a terminal; a line now and then elsewhere.
struct Shown {
    bar: Option<ProgressBar>,
    quiet: bool,
    last: Instant,
}

impl Shown {
    const EVERY: Duration = Duration::from_secs(10);

    fn new(quiet: bool) -> Shown {
        let bar = (!quiet && io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} files {msg} {per_sec} {eta} left");
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Shown { bar, quiet, last: Instant::now() }
    }

    fn update(&mut self, p: Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(p.total);
            bar.set_position(p.done);
            if p.bad > 0 {
                bar.set_message(format!("({} bad)", p.bad));
            }
        } else if !self.quiet && self.last.elapsed() >= Self::EVERY {
            self.last = Instant::now();
            let _ = writeln!(io::stderr(), "{} of {} files, {} bad", p.done, p.total, p.bad);
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
