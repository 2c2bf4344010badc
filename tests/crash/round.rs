//! One round: a daemon and ranks, deaths among them, and the stream that comes out all the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::common::{alive, kill, status};
use crate::leftovers;
use crate::points::Role;
use crate::rank::{Order, Said, Spec, VARIABLE, WORLD};
use crate::tally::Tally;

/// Nothing takes this long, even on a loaded machine; past it something hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Steps of an epoch: 48 clips, two ranks with three each.
pub const STEPS: u32 = 8;
/// Epochs of a round.
pub const EPOCHS: u32 = 3;

/// From this epoch on steps are balanced once more after decoding.
pub const HANDED: u32 = 100;

/// Hash of each batch by epoch, step and rank.
pub type Stream = BTreeMap<(u32, u32), [u64; WORLD as usize]>;

/// What is to happen in a round.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Plan {
    pub number: u64,
    /// Whether ranks start their daemon; otherwise it stands by itself, and is not made to die.
    pub embedded: bool,
    /// Whether there are more workers than the ranks need, so that some are idle when another dies.
    pub calm: bool,
    /// Whether a worker is stopped, and not killed, when the first batch has come.
    #[serde(default)]
    pub stop: bool,
    pub epoch: u32,
    /// `role:point:nth`, see `crash`.
    pub entries: Vec<String>,
    /// Deaths at random instants: how many microseconds after the one before, whose, and which of several.
    pub random: Vec<(u64, Role, u32)>,
}

/// Where everything of a lane of rounds is.
pub struct Place {
    pub manifest: PathBuf,
    /// Sockets; empty between rounds.
    pub sockets: PathBuf,
    /// Logs.
    pub logs: PathBuf,
}

/// Runs a round. What fails is in the tally, in words.
pub fn run(place: &Place, plan: &Plan, reference: Option<&Stream>) -> (Tally, Stream) {
    let mut round = Round::new(place, plan, reference);
    if let Err(failure) = round.play() {
        round.tally.hangs += u64::from(failure.hang);
        let plan = serde_json::to_string(plan).unwrap();
        let log = round.log.display();
        round.tally.failures.push(format!("{}\n    CRASH_PLAN='{plan}'\n    log {log}", failure.what));
    }
    round.end()
}

/// What went wrong.
struct Failure {
    what: String,
    /// Whether something did not happen at all.
    hang: bool,
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure { what, hang: false }
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        e.to_string().into()
    }
}

fn wrong(what: String) -> Result<(), Failure> {
    Err(what.into())
}

/// Waits for what other processes do.
fn wait(socket: &Path, what: &str, mut there: impl FnMut() -> bool) -> Result<(), Failure> {
    let start = Instant::now();
    while !there() {
        if start.elapsed() > PATIENCE {
            let what = format!("waited {PATIENCE:?} for {what}; status {:?}", status(socket));
            return Err(Failure { what, hang: true });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

struct Rank {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Counts the processes of this rank.
    life: u32,
    /// The next batch that it must deliver.
    next: (u32, u32),
    /// Whether it is through its epochs.
    through: bool,
    /// How many times in a row the daemon did not know it although it was.
    missed: u32,
}

/// Something that a rank said, or its end.
struct Event {
    rank: usize,
    life: u32,
    said: Option<Said>,
}

struct Round<'a> {
    place: &'a Place,
    plan: &'a Plan,
    reference: Option<&'a Stream>,
    socket: PathBuf,
    deaths: PathBuf,
    log: PathBuf,
    standing: Option<(Child, usize)>,
    ranks: Vec<Rank>,
    events: Receiver<Event>,
    teller: Sender<Event>,
    stream: Stream,
    /// Ranks that died.
    dead: BTreeSet<usize>,
    victims: std::vec::IntoIter<(u64, Role, u32)>,
    victim: Option<(Instant, Role, u32)>,
    tally: Tally,
}

impl<'a> Round<'a> {
    fn new(place: &'a Place, plan: &'a Plan, reference: Option<&'a Stream>) -> Round<'a> {
        let (teller, events) = channel();
        let named = |what: &str| place.logs.join(format!("{:06}.{what}", plan.number));
        let mut round = Round {
            place,
            plan,
            reference,
            socket: place.sockets.join("d.sock"),
            deaths: named("deaths"),
            log: named("log"),
            standing: None,
            ranks: Vec::new(),
            events,
            teller,
            stream: Stream::new(),
            dead: BTreeSet::new(),
            victims: plan.random.clone().into_iter(),
            victim: None,
            tally: Tally { rounds: 1, ..Tally::default() },
        };
        let _ = std::fs::remove_file(&round.deaths);
        let _ = std::fs::remove_file(&round.log);
        round.next_victim();
        round
    }

    fn last(&self) -> u32 {
        self.plan.epoch + EPOCHS - 1
    }

    /// What all processes of a round have in their environment.
    fn mark<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env("HELIX_CRASH", self.plan.entries.join(","))
            .env("HELIX_CRASH_LOG", &self.deaths)
            .env("HELIX_SHM_LOG_FILE", &self.log)
            .env("HELIX_SHMD", env!("CARGO_BIN_EXE_helix-shmd"))
    }

    fn tag(&self) -> String {
        format!("HELIX_CRASH_LOG={}", self.deaths.display())
    }

    fn play(&mut self) -> Result<(), Failure> {
        if !self.plan.embedded {
            self.stand_up()?;
        }
        for rank in 0..WORLD as usize {
            let started = self.start(rank, 1, (self.plan.epoch, 0));
            self.ranks.push(started);
        }
        loop {
            self.march()?;
            if self.regions_are_free()? {
                break;
            }
        }
        self.leave()?;
        self.sit_down()?;
        self.look_for_leftovers()
    }

    /// Starts a daemon by hand, and notes how many descriptors it has without any job.
    fn stand_up(&mut self) -> Result<(), Failure> {
        let log = File::create(&self.log)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
        self.mark(&mut command).arg("--socket").arg(&self.socket).stdin(Stdio::null()).stderr(log);
        let child = command.spawn()?;
        let pid = child.id() as i32;
        self.standing = Some((child, 0));
        wait(&self.socket, "the daemon to listen", || status(&self.socket).is_some())?;
        let base = leftovers::descriptors(pid).len();
        self.standing.iter_mut().for_each(|s| s.1 = base);
        Ok(())
    }

    fn start(&self, rank: usize, life: u32, at: (u32, u32)) -> Rank {
        let spec = Spec {
            socket: self.socket.clone(),
            manifest: self.place.manifest.clone(),
            rank: rank as u32,
            last: self.last(),
            spawn: self.plan.embedded,
            handed: self.plan.epoch >= HANDED,
            calm: self.plan.calm,
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.mark(&mut command).env(VARIABLE, serde_json::to_string(&spec).unwrap());
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let teller = self.teller.clone();
        std::thread::spawn(move || {
            // A rank that dies may leave half a line.
            for line in lines.map_while(Result::ok) {
                let Ok(said) = serde_json::from_str(&line) else { continue };
                let _ = teller.send(Event { rank, life, said: Some(said) });
            }
            let _ = teller.send(Event { rank, life, said: None });
        });
        let stdin = child.stdin.take();
        let mut started = Rank { child, stdin, life, next: at, through: false, missed: 0 };
        started.order(&Order::Go(at.0, at.1));
        started
    }

    /// Hears ranks, kills and revives them, until all are through.
    fn march(&mut self) -> Result<(), Failure> {
        let mut heard = Instant::now();
        while !self.ranks.iter().all(|r| r.through) {
            let now = Instant::now();
            if self.victim.is_some_and(|(at, ..)| at <= now) {
                self.kill_victim();
            }
            let until = self.victim.map_or(PATIENCE, |(at, ..)| at.saturating_duration_since(now));
            match self.events.recv_timeout(until.min(Duration::from_millis(200))) {
                Ok(event) => {
                    heard = Instant::now();
                    self.hear(event)?;
                }
                Err(RecvTimeoutError::Timeout) if heard.elapsed() < PATIENCE => self.recall(),
                Err(_) => {
                    let at: Vec<_> = self.ranks.iter().map(|r| (r.next, r.through)).collect();
                    let status = status(&self.socket);
                    let what = format!("nothing happened for {PATIENCE:?}; ranks at {at:?}; status {status:?}");
                    return Err(Failure { what, hang: true });
                }
            }
        }
        Ok(())
    }

    fn hear(&mut self, event: Event) -> Result<(), Failure> {
        let Event { rank: at, life, said } = event;
        if self.ranks[at].life != life {
            return Ok(());
        }
        match said {
            Some(Said::Up) => Ok(()),
            Some(Said::Batch(epoch, step, hash)) => self.take(at, (epoch, step), hash),
            Some(Said::End) => {
                if self.ranks[at].next != (self.last() + 1, 0) {
                    self.tally.lost += 1;
                    return wrong(format!("rank {at} ended before {:?}", self.ranks[at].next));
                }
                self.ranks[at].through = true;
                Ok(())
            }
            Some(Said::Failed(reason)) => self.fell(at, &reason),
            Some(Said::Bye) => wrong(format!("rank {at} left by itself")),
            None => self.died(at),
        }
    }

    /// A batch: the next one, and the same as without any death.
    fn take(&mut self, at: usize, place: (u32, u32), hash: u64) -> Result<(), Failure> {
        let rank = &mut self.ranks[at];
        if place != rank.next {
            let count = if place < rank.next { &mut self.tally.repeated } else { &mut self.tally.lost };
            *count += 1;
            return wrong(format!("rank {at} got {place:?}, and {:?} was next", rank.next));
        }
        rank.next = if place.1 + 1 < STEPS { (place.0, place.1 + 1) } else { (place.0 + 1, 0) };
        self.tally.batches += 1;
        self.stream.entry(place).or_default()[at] = hash;
        let wanted = self.reference.map_or(hash, |reference| reference[&place][at]);
        if self.plan.stop && self.tally.batches == 1 {
            self.stop_a_worker();
        }
        if hash != wanted {
            self.tally.lost += 1;
            return wrong(format!("rank {at} got other samples or pixels in {place:?} than without a death"));
        }
        Ok(())
    }

    /// A loader failed. That is right if it names a rank that died; then all go on from where the last one is.
    fn fell(&mut self, at: usize, reason: &str) -> Result<(), Failure> {
        let named = |rank: usize| rank != at && reason.contains(&format!("rank {rank} died"));
        let Some(dead) = (0..self.ranks.len()).find(|rank| named(*rank)) else {
            return wrong(format!("rank {at} failed: {reason}"));
        };
        // We may hear of it before we hear its end.
        let child = &mut self.ranks[dead].child;
        let ended = || self.dead.contains(&dead) || child.try_wait().is_ok_and(|status| status.is_some());
        if wait(&self.socket, "the end of the rank that is said to be dead", ended).is_err() {
            return wrong(format!("rank {at} failed: {reason}"));
        }
        self.send_back(at);
        Ok(())
    }

    fn died(&mut self, at: usize) -> Result<(), Failure> {
        let status = self.ranks[at].child.wait()?;
        if status.signal() != Some(libc::SIGKILL) {
            return wrong(format!("rank {at} ended by itself: {status}"));
        }
        self.dead.insert(at);
        let next = self.earliest();
        self.ranks[at] = self.start(at, self.ranks[at].life + 1, next);
        Ok(())
    }

    /// A rank that was through when another died must be there again, or that one waits for it for ever.
    fn recall(&mut self) {
        let Some(status) = status(&self.socket) else { return };
        let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
        let sessions: Vec<_> =
            jobs.iter().flat_map(|job| job["sessions"].as_array().cloned().unwrap_or_default()).collect();
        for at in 0..self.ranks.len() {
            let live = sessions.iter().any(|s| s["phase"] == "live" && s["rank"] == at);
            let rank = &mut self.ranks[at];
            rank.missed = if live || !rank.through { 0 } else { rank.missed + 1 };
            // One that is just joining a new daemon is back soon.
            if rank.missed >= 5 {
                self.send_back(at);
            }
        }
    }

    fn earliest(&self) -> (u32, u32) {
        self.ranks.iter().map(|r| r.next).min().unwrap_or((self.plan.epoch, 0)).min((self.last(), STEPS - 1))
    }

    fn send_back(&mut self, at: usize) {
        let next = self.earliest();
        let rank = &mut self.ranks[at];
        (rank.next, rank.through, rank.missed) = (next, false, 0);
        rank.order(&Order::Go(next.0, next.1));
    }

    fn next_victim(&mut self) {
        self.victim =
            self.victims.next().map(|(us, role, which)| (Instant::now() + Duration::from_micros(us), role, which));
    }

    /// One that can take tickets, and then sits on them.
    fn stop_a_worker(&self) {
        if let Some(&pid) = crate::common::workers(&self.socket).first() {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGSTOP);
        }
    }

    fn kill_victim(&mut self) {
        let Some((_, role, which)) = self.victim else { return };
        // By their command lines, so that those that are just starting are among them.
        let running = |word: &str| {
            let found = leftovers::processes(&self.tag()).into_iter();
            found.filter(|(_, line)| line.split(' ').nth(1) == Some(word)).map(|(pid, _)| pid).collect()
        };
        let candidates: Vec<i32> = match role {
            Role::Rank => self.ranks.iter().map(|r| r.child.id() as i32).collect(),
            Role::Daemon => running("--embedded"),
            Role::Worker => running("worker"),
        };
        let live: Vec<i32> = candidates.into_iter().filter(|pid| alive(*pid)).collect();
        if let Some(&pid) = live.get(which as usize % live.len().max(1)) {
            kill(pid);
            *self.tally.random.entry(role.name()).or_default() += 1;
            self.next_victim();
        } else {
            // None is there yet.
            self.victim = Some((Instant::now() + Duration::from_millis(5), role, which));
        }
    }

    /// All batches were let go, so no region may be in use. `false` if a rank died meanwhile.
    fn regions_are_free(&mut self) -> Result<bool, Failure> {
        let start = Instant::now();
        loop {
            while let Ok(event) = self.events.try_recv() {
                self.hear(event)?;
            }
            if !self.ranks.iter().all(|r| r.through) {
                return Ok(false);
            }
            let status = status(&self.socket).unwrap_or_default();
            let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
            let sessions: Vec<_> =
                jobs.iter().flat_map(|job| job["sessions"].as_array().cloned().unwrap_or_default()).collect();
            let used = sessions.iter().filter(|s| s["slab_used"] != 0 || s["blocks"] != 0).count();
            let idle = jobs.iter().all(|job| job["tickets_in_flight"] == 0);
            if used == 0 && idle && sessions.len() == WORLD as usize {
                let pairs = |how: &str| serde_json::from_value::<Vec<(u64, u64)>>(jobs[0]["reissue_us"][how].clone());
                self.tally.reissued.add(pairs("idle").map_err(|e| e.to_string())?);
                self.tally.queued.add(pairs("busy").map_err(|e| e.to_string())?);
                return Ok(true);
            }
            if start.elapsed() > PATIENCE {
                self.tally.leaked_regions += used as u64;
                let what = format!("{used} slabs are in use when all batches were let go; status {status}");
                return Err(Failure { what, hang: used == 0 });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Lets the ranks leave. Some may be made to die on the way out.
    fn leave(&mut self) -> Result<(), Failure> {
        for rank in &mut self.ranks {
            rank.order(&Order::Quit);
            rank.stdin = None;
        }
        let socket = &self.socket;
        for (at, rank) in self.ranks.iter_mut().enumerate() {
            let mut ended = None;
            wait(socket, "a rank to leave", || {
                ended = rank.child.try_wait().unwrap();
                ended.is_some()
            })?;
            if let Some(status) = ended.filter(|s| !s.success() && s.signal() != Some(libc::SIGKILL)) {
                return Err(format!("rank {at} ended with {status}").into());
            }
        }
        Ok(())
    }

    /// Ends the daemon: a standing one has no job left and as many descriptors as before the first.
    fn sit_down(&mut self) -> Result<(), Failure> {
        let Some((child, base)) = &self.standing else { return Ok(()) };
        let (pid, base) = (child.id() as i32, *base);
        wait(&self.socket, "the job to end", || {
            status(&self.socket).is_some_and(|s| s["jobs"].as_array().is_some_and(|jobs| jobs.is_empty()))
        })?;
        let counted = wait(&self.socket, "the daemon's descriptors", || leftovers::descriptors(pid).len() <= base);
        if counted.is_err() {
            let open = leftovers::descriptors(pid);
            self.tally.leaked_fds += (open.len() - base) as u64;
            return wrong(format!("the daemon has {} descriptors, {base} before: {open:?}", open.len()));
        }
        let Some((mut child, _)) = self.standing.take() else { return Ok(()) };
        terminate(&mut child)
    }

    fn look_for_leftovers(&mut self) -> Result<(), Failure> {
        let tag = self.tag();
        let mut left = Vec::new();
        let gone = wait(&self.socket, "the last processes to end", || {
            left = leftovers::processes(&tag);
            left.is_empty()
        });
        if gone.is_err() {
            self.tally.left_processes += left.len() as u64;
            return wrong(format!("processes left behind: {left:?}"));
        }
        // A daemon that was killed after the last rank left could remove nothing; whoever starts next does.
        if self.daemons_died() && !leftovers::files(&self.place.sockets).is_empty() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_helix-shmd"));
            let mut child = command.arg("--socket").arg(&self.socket).stdin(Stdio::null()).spawn()?;
            let listened =
                wait(&self.socket, "a daemon to take a dead one's place", || status(&self.socket).is_some());
            terminate(&mut child)?;
            listened?;
        }
        let files = leftovers::files(&self.place.sockets);
        self.tally.left_files += files.len() as u64;
        if files.is_empty() { Ok(()) } else { wrong(format!("files left behind: {files:?}")) }
    }

    fn daemons_died(&self) -> bool {
        let text = std::fs::read_to_string(&self.deaths).unwrap_or_default();
        text.lines().any(|line| line.starts_with("daemon:")) || self.tally.random.contains_key("daemon")
    }

    /// Counts the deaths, ends what is left, and keeps the logs of a round that failed.
    fn end(mut self) -> (Tally, Stream) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
        if let Some((child, _)) = &mut self.standing {
            let _ = child.kill();
            let _ = child.wait();
        }
        for (pid, _) in leftovers::processes(&self.tag()) {
            kill(pid);
        }
        for line in std::fs::read_to_string(&self.deaths).unwrap_or_default().lines() {
            let point = line.split(' ').next().unwrap_or_default().to_string();
            *self.tally.hits.entry(point).or_default() += 1;
        }
        if self.tally.failures.is_empty() {
            let _ = std::fs::remove_file(&self.log);
            let _ = std::fs::remove_file(&self.deaths);
        } else {
            clear(&self.place.sockets);
        }
        (self.tally, self.stream)
    }
}

impl Rank {
    fn order(&mut self, order: &Order) {
        if let Some(stdin) = &mut self.stdin {
            // Whether it is dead is what its end says.
            let _ = writeln!(stdin, "{}", serde_json::to_string(order).unwrap());
        }
    }
}

/// Asks a daemon to end, and waits until it has ended well.
fn terminate(child: &mut Child) -> Result<(), Failure> {
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    let status = child.wait()?;
    if status.success() { Ok(()) } else { wrong(format!("the daemon ended with {status}")) }
}

fn clear(folder: &Path) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let _ = std::fs::remove_file(file.path());
    }
}
