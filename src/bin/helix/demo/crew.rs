//! The rank processes of one run: started, kept in step by a barrier, and ended, whatever happens.
//!
//! The barrier is a line each way: a rank says that its step has ended and begins the next one when it is told to.
//! A rank that dies closes its pipe, so the barrier never waits for it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::interrupt;
use super::metrics::{Outcome, Step};
use super::screen::Screen;
use super::wire::{self, FromRank, RankSpec, ToRank};

/// How often a wait looks whether Ctrl-C was pressed.
const LOOK: Duration = Duration::from_millis(50);
/// How long ranks and their daemon may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);

/// Why a run ended before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CrewError {
    #[error("cannot start rank {rank}: {source}")]
    Start { rank: usize, source: std::io::Error },
    #[error("rank {rank} {how}; the run is over, since no step can be completed without it")]
    Died { rank: usize, how: String },
    #[error("rank {rank}: {reason}")]
    Failed { rank: usize, reason: String },
    #[error("rank {rank} said something that is not of this protocol: {what}")]
    Protocol { rank: usize, what: String },
    #[error("interrupted")]
    Interrupted,
}

/// The ranks. Dropping it ends them and waits for the daemon that they share.
pub(crate) struct Crew {
    ranks: Vec<Rank>,
    /// Which of them have left in good order: their pipes may close.
    left: Vec<bool>,
    inbox: Receiver<Heard>,
    daemon: Option<Process>,
    screen: Arc<Screen>,
}

struct Rank {
    child: Child,
    /// Closed to end the rank.
    stdin: Option<ChildStdin>,
}

struct Heard {
    rank: usize,
    at: Instant,
    /// `None`: its pipe is closed.
    message: Option<std::io::Result<FromRank>>,
}

impl Crew {
    /// Starts one process a rank: `program`, which must know the subcommand `demo-rank`.
    pub(crate) fn start(
        program: &Path,
        specs: Vec<RankSpec>,
        record: Option<&Path>,
        screen: &Arc<Screen>,
    ) -> Result<Crew, CrewError> {
        let (sender, inbox) = mpsc::channel();
        let mut crew = Crew {
            ranks: Vec::new(),
            left: vec![false; specs.len()],
            inbox,
            daemon: None,
            screen: Arc::clone(screen),
        };
        for (rank, spec) in specs.into_iter().enumerate() {
            let start = |e| CrewError::Start { rank, source: e };
            let mut command = command(program);
            // The daemon that the first rank starts has its environment.
            command.envs(record.iter().map(|folder| ("HELIX_SHM_RECORD", folder)));
            let mut child = command.spawn().map_err(start)?;
            let mut stdin = child.stdin.take().expect("stdin is a pipe");
            listen(rank, child.stdout.take().expect("stdout is a pipe"), sender.clone());
            relay(child.stderr.take().expect("stderr is a pipe"), Arc::clone(screen));
            let told = wire::send(&mut stdin, &ToRank::Be(Box::new(spec)));
            crew.ranks.push(Rank { child, stdin: Some(stdin) });
            told.map_err(start)?;
        }
        Ok(crew)
    }

    /// Runs all steps; `on_step` sees each as it ends.
    pub(crate) fn run(mut self, steps: u32, on_step: &mut dyn FnMut(usize, &Step)) -> Result<Outcome, CrewError> {
        let mut outcome = Outcome::default();
        self.gather(&mut outcome, |message| match message {
            FromRank::Joined { .. } => Ok(()),
            other => Err(other),
        })?;
        let mut opened = Instant::now();
        for n in 0..steps as usize {
            self.tell_all(&ToRank::Go);
            let ended = self.gather(&mut outcome, |message| match message {
                FromRank::Step(report) => Ok(report),
                other => Err(other),
            })?;
            let now = Instant::now();
            let (ranks, arrivals): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
            let last = arrivals.iter().copied().max().unwrap_or(now);
            let idle = arrivals.into_iter().map(|at| last - at).collect();
            let step = Step { took: now - opened, ranks, idle };
            opened = now;
            on_step(n, &step);
            outcome.steps.push(step);
        }
        self.tell_all(&ToRank::Go);
        let left = self.gather(&mut outcome, |message| match message {
            FromRank::Left { copied, uploaded } => Ok((copied, uploaded)),
            other => Err(other),
        })?;
        for ((copied, uploaded), _) in left {
            outcome.copied += copied;
            outcome.uploaded += uploaded;
        }
        outcome.bad.sort();
        outcome.bad.dedup();
        Ok(outcome)
    }

    /// One message of the wanted kind from each rank, in the order of ranks, with its time of arrival.
    fn gather<T>(
        &mut self,
        outcome: &mut Outcome,
        wanted: impl Fn(FromRank) -> Result<T, FromRank>,
    ) -> Result<Vec<(T, Instant)>, CrewError> {
        let mut got: Vec<Option<(T, Instant)>> = self.ranks.iter().map(|_| None).collect();
        while got.iter().any(Option::is_none) {
            let Heard { rank, at, message } = self.hear()?;
            match message {
                // All ranks have the same one. It is known from the first word on, so that it is waited for even if
                // the run ends before all have joined.
                Some(Ok(FromRank::Joined { daemon })) if self.daemon.is_none() => self.daemon = Process::open(daemon),
                Some(Ok(FromRank::Left { .. })) => self.left[rank] = true,
                _ => {}
            }
            match message.map(|m| m.map(&wanted)) {
                Some(Ok(Ok(value))) if got[rank].is_none() => got[rank] = Some((value, at)),
                Some(Ok(Err(FromRank::Bad(bad)))) => {
                    self.screen.once(&format!("skipped: {} ({}: {})", bad.path, bad.stage, bad.reason));
                    outcome.bad.push(bad);
                }
                Some(Ok(Err(FromRank::Failed(reason)))) => return Err(self.blame(rank, reason)),
                None if self.left[rank] => {}
                None => return Err(CrewError::Died { rank, how: self.how_ended(rank) }),
                Some(Ok(Ok(_))) => return Err(CrewError::Protocol { rank, what: "a message too many".into() }),
                Some(Ok(Err(other))) => return Err(CrewError::Protocol { rank, what: format!("{other:?}") }),
                Some(Err(error)) => return Err(CrewError::Protocol { rank, what: error.to_string() }),
            }
        }
        Ok(got.into_iter().flatten().collect())
    }

    fn hear(&self) -> Result<Heard, CrewError> {
        loop {
            if interrupt::asked() {
                return Err(CrewError::Interrupted);
            }
            match self.inbox.recv_timeout(LOOK) {
                Ok(heard) => return Ok(heard),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(CrewError::Died { rank: 0, how: "and all others closed their pipes".into() });
                }
            }
        }
    }

    /// When a rank dies, what the others report follows from it: the death is the news, even if it is heard second.
    fn blame(&mut self, rank: usize, reason: String) -> CrewError {
        for other in 0..self.ranks.len() {
            if let Ok(Some(status)) = self.ranks[other].child.try_wait()
                && status.signal().is_some()
            {
                return CrewError::Died { rank: other, how: describe(status) };
            }
        }
        CrewError::Failed { rank, reason }
    }

    fn how_ended(&mut self, rank: usize) -> String {
        // Its pipe is closed, so it is about to end if it has not.
        match self.ranks[rank].child.wait() {
            Ok(status) => describe(status),
            Err(error) => format!("ended ({error})"),
        }
    }

    /// A rank that cannot be told is dead, which the next [`Crew::hear`] notices.
    fn tell_all(&mut self, message: &ToRank) {
        for stdin in self.ranks.iter_mut().filter_map(|r| r.stdin.as_mut()) {
            let _ = wire::send(stdin, message);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            rank.stdin = None;
        }
        let limit = Instant::now() + GRACE;
        for (n, rank) in self.ranks.iter_mut().enumerate() {
            while matches!(rank.child.try_wait(), Ok(None)) {
                if Instant::now() > limit {
                    self.screen.line(&format!("rank {n} did not end by itself and was killed"));
                    let _ = rank.child.kill();
                    let _ = rank.child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if let Some(daemon) = self.daemon.take() {
            daemon.end(&self.screen);
        }
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("demo-rank").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of their own: Ctrl-C reaches the demo alone, which then ends everything in good order.
    command.process_group(0);
    // The demo measures a daemon of its own, whatever the user's environment points at.
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("HELIX_SHM_")) {
        command.env_remove(name);
    }
    command
}

fn describe(status: std::process::ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".into(),
    }
}

fn listen(rank: usize, from: impl Read + Send + 'static, to: Sender<Heard>) {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let message = wire::receive(&mut from).transpose();
            let over = !matches!(message, Some(Ok(_)));
            if to.send(Heard { rank, at: Instant::now(), message }).is_err() || over {
                return;
            }
        }
    });
}

/// What ranks, daemon and workers write to stderr appears above the bar, each line once.
fn relay(from: impl Read + Send + 'static, screen: Arc<Screen>) {
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            screen.once(&line);
        }
    });
}

/// A process that is not a child. Its folder in /proc stands for it alone, even if its number is used again.
struct Process {
    pid: Pid,
    folder: File,
}

impl Process {
    fn open(pid: i32) -> Option<Process> {
        File::open(format!("/proc/{pid}")).ok().map(|folder| Process { pid: Pid::from_raw(pid), folder })
    }

    fn is_alive(&self) -> bool {
        use nix::fcntl::{OFlag, openat};
        let Ok(stat) = openat(&self.folder, "stat", OFlag::O_RDONLY, nix::sys::stat::Mode::empty()) else {
            return false;
        };
        let mut text = String::new();
        let read = File::from(stat).read_to_string(&mut text);
        // The state follows the name, which is in parentheses: a zombie has let go of everything.
        read.is_ok() && !text.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']))
    }

    /// Waits until it has ended; it does so with its job. If not, it is made to.
    fn end(self, screen: &Screen) {
        for (signal, name) in [(Signal::SIGTERM, "asked to end"), (Signal::SIGKILL, "killed")] {
            let limit = Instant::now() + GRACE;
            while self.is_alive() {
                if Instant::now() > limit {
                    screen.line(&format!("the daemon (pid {}) outlived its job and was {name}", self.pid));
                    let _ = kill(self.pid, signal);
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[cfg(test)]
#[path = "crew_tests.rs"]
mod tests;
