//! Plans rounds, runs as many at a time as keep the cores busy, and says what came of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use helix_shm::results::{self, Row};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::points::{POINTS, Point, Role, When};
use crate::round::{self, EPOCHS, HANDED, Place, Plan, Stream};
use crate::tally::Tally;
use crate::{data, leftovers};

/// From so many kills on, each point must be hit [`HITS`] times; of fewer kills each has its share.
const FULL: u64 = 4000;
const HITS: u64 = 20;
/// Rounds begin in one of so many epochs.
const FIRST_EPOCHS: u64 = 4;
/// A campaign with so many failed rounds has shown what it can.
const MOST_FAILURES: usize = 10;

fn variable<T: std::str::FromStr>(name: &str, otherwise: T) -> T {
    let Ok(found) = std::env::var(name) else { return otherwise };
    found.parse().unwrap_or_else(|_| panic!("{name} is `{found}`; wanted a number"))
}

/// What the lanes share.
struct Campaign {
    rng: ChaCha8Rng,
    wanted: u64,
    hits_wanted: u64,
    number: u64,
    tally: Tally,
    /// Entries of rounds that are under way.
    under_way: BTreeMap<String, u64>,
}

/// What is made to die in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Workers,
    /// Workers while others are idle, for the time until their tickets are with those.
    Calm,
    Ranks,
    Daemons,
    /// A worker is stuck, and the daemon dies while it goes around it.
    Stuck,
    All,
}

pub fn run() -> ExitCode {
    let start = Instant::now();
    let before = leftovers::shared_names();
    let manifest = data::manifest();
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("crash-logs");
    let _ = std::fs::remove_dir_all(&root);
    let lanes = std::thread::available_parallelism().map_or(2, |n| n.get()) + 1;
    let places: Vec<(Place, tempfile::TempDir)> = (0..lanes)
        .map(|lane| {
            let sockets = tempfile::Builder::new().prefix("helix-crash-").tempdir_in("/tmp").unwrap();
            let logs = root.join(lane.to_string());
            std::fs::create_dir_all(&logs).unwrap();
            (Place { manifest: manifest.clone(), sockets: sockets.path().to_owned(), logs }, sockets)
        })
        .collect();
    let reference = match reference(&places[0].0) {
        Ok(reference) => reference,
        Err(failures) => {
            eprintln!("crash: without any death: {}", failures.join("\n"));
            return ExitCode::FAILURE;
        }
    };
    if let Ok(plan) = std::env::var("CRASH_PLAN") {
        return again(&places[0].0, &plan, &reference);
    }
    let wanted = variable("CRASH_KILLS", 200);
    let campaign = Mutex::new(Campaign {
        rng: ChaCha8Rng::seed_from_u64(variable("CRASH_SEED", 1)),
        wanted,
        hits_wanted: (HITS * wanted / FULL).clamp(1, HITS),
        number: 0,
        tally: Tally::default(),
        under_way: BTreeMap::new(),
    });
    std::thread::scope(|scope| {
        for (place, _) in &places {
            scope.spawn(|| lane(place, &campaign, &reference));
        }
    });
    let Campaign { mut tally, hits_wanted, .. } = campaign.into_inner().unwrap_or_else(PoisonError::into_inner);
    drop(places);
    let new: Vec<_> = leftovers::shared_names().difference(&before).cloned().collect();
    if !new.is_empty() {
        tally.left_files += new.len() as u64;
        eprintln!("crash: left behind: {new:?}");
        tally.failures.push(format!("left behind: {new:?}"));
    }
    report(&tally, wanted, hits_wanted, start.elapsed().as_secs_f64())
}

/// What comes without any death, in every epoch that a round may touch.
fn reference(place: &Place) -> Result<Stream, Vec<String>> {
    let mut whole = Stream::new();
    let first = || (0..FIRST_EPOCHS as u32).step_by(EPOCHS as usize).chain([FIRST_EPOCHS as u32 - 1]);
    for epoch in first().chain(first().map(|epoch| HANDED + epoch)) {
        let plan = Plan { epoch, ..Plan::default() };
        let (tally, stream) = round::run(place, &plan, None);
        if !tally.failures.is_empty() {
            return Err(tally.failures);
        }
        whole.extend(stream);
    }
    Ok(whole)
}

/// One round again, as a failure printed it.
fn again(place: &Place, plan: &str, reference: &Stream) -> ExitCode {
    let plan: Plan = serde_json::from_str(plan).expect("CRASH_PLAN as a failure printed it");
    let (tally, _) = round::run(place, &plan, Some(reference));
    println!("{tally:#?}");
    if tally.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn lane(place: &Place, campaign: &Mutex<Campaign>, reference: &Stream) {
    let lock = || campaign.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let Some(plan) = lock().next() else { return };
        let (tally, _) = round::run(place, &plan, Some(reference));
        for failure in &tally.failures {
            eprintln!("crash: round {}: {failure}", plan.number);
        }
        lock().account(&plan, tally);
    }
}

impl Campaign {
    /// The next round; `None` when all is done.
    fn next(&mut self) -> Option<Plan> {
        let complete = POINTS.iter().all(|p| self.tally.hit(&p.key()) >= self.hits_wanted);
        if self.tally.failures.len() >= MOST_FAILURES || (complete && self.tally.kills() >= self.wanted) {
            return None;
        }
        self.number += 1;
        let kind = self.kind();
        let role = match kind {
            Kind::Workers => Role::Worker,
            Kind::Ranks => Role::Rank,
            _ => Role::Daemon,
        };
        let handed_over = |p: &&Point| p.when == When::Handed && p.role == role;
        let lacking = POINTS.iter().filter(handed_over).any(|p| self.lack(p) > 0);
        let handed = kind != Kind::Stuck && (self.below(4) == 0 || (lacking && self.below(2) == 0));
        let mut plan = Plan {
            number: self.number,
            embedded: matches!(kind, Kind::Daemons | Kind::Stuck | Kind::All),
            epoch: self.below(FIRST_EPOCHS) as u32 + if handed { HANDED } else { 0 },
            ..Plan::default()
        };
        match kind {
            Kind::Workers => {
                // Few points at a time: a worker dies at the first that is due, and must live for some tickets.
                for point in self.neediest(Role::Worker, When::Always, 2) {
                    self.enter(&mut plan, point, 11);
                }
                for point in self.handed(Role::Worker, handed, 1) {
                    self.enter(&mut plan, point, 4);
                }
                self.kill_at_random(&mut plan, &[Role::Worker; 4]);
            }
            Kind::Calm => {
                plan.calm = true;
                // While it has a ticket.
                let at: Vec<&Point> = POINTS.iter().filter(|p| p.role == Role::Worker && p.least == 3).collect();
                for _ in 0..2 {
                    let point = at[self.below(at.len() as u64) as usize];
                    self.enter(&mut plan, point, 4);
                }
            }
            Kind::Ranks => {
                let points = self.neediest(Role::Rank, When::Always, if handed { 3 } else { 5 });
                for point in self.handed(Role::Rank, handed, 2).into_iter().chain(points) {
                    self.enter(&mut plan, point, 1);
                }
                self.kill_at_random(&mut plan, &[Role::Rank]);
            }
            Kind::Stuck => {
                // Nothing else, or the stuck worker would end with its daemon before anyone goes around it; and calm, so
                // that there is room in the slab for that.
                (plan.stop, plan.calm) = (true, true);
                for point in self.neediest(Role::Daemon, When::Stuck, 1) {
                    self.enter(&mut plan, point, 1);
                }
            }
            Kind::Daemons => {
                // A loader takes five dead daemons within a minute for a fault that a restart does not cure.
                let points = self.neediest(Role::Daemon, When::Embedded, if handed { 1 } else { 3 });
                for point in self.handed(Role::Daemon, handed, 2).into_iter().chain(points) {
                    self.enter(&mut plan, point, 1);
                }
                for (role, when) in
                    [(Role::Rank, When::Embedded), (Role::Rank, When::Rejoin), (Role::Daemon, When::Mourning)]
                {
                    for point in self.neediest(role, when, 1) {
                        if self.lack(point) > 0 || self.below(4) == 0 {
                            self.enter(&mut plan, point, 1);
                        }
                    }
                }
                // For the daemon to mourn.
                self.enter(&mut plan, &POINTS[0], 1);
            }
            Kind::All => {
                use Role::{Daemon, Rank, Worker};
                let roles =
                    [Worker, Worker, Rank, Worker, Daemon, Worker, Worker, Rank, Worker, Worker, Daemon, Worker];
                self.kill_at_random(&mut plan, &roles);
                for point in self.neediest(Worker, When::Always, 1) {
                    self.enter(&mut plan, point, 4);
                }
            }
        }
        for entry in &plan.entries {
            *self.under_way.entry(key_of(entry)).or_default() += 1;
        }
        Some(plan)
    }

    fn account(&mut self, plan: &Plan, tally: Tally) {
        for entry in &plan.entries {
            if let Some(n) = self.under_way.get_mut(&key_of(entry)) {
                *n -= 1;
            }
        }
        self.tally.add(tally);
        let done = &self.tally;
        if done.rounds.is_multiple_of(25) {
            let least = POINTS.iter().min_by_key(|p| done.hit(&p.key()));
            let (point, hits) = least.map_or((String::new(), 0), |p| (p.key(), done.hit(&p.key())));
            println!(
                "{} rounds, {} kills; least often at {point} ({hits}); {} failures",
                done.rounds,
                done.kills(),
                done.failures.len()
            );
        }
    }

    /// Those that lack hits decide, then chance.
    fn kind(&mut self) -> Kind {
        let stuck = |p: &&Point| p.when == When::Stuck;
        let lacks =
            |role: Role| POINTS.iter().filter(|p| p.role == role && !stuck(p)).map(|p| self.lack(p)).sum::<u64>();
        let reissues = (5 * self.hits_wanted).saturating_sub(self.tally.reissued.count());
        // By the rounds that it takes.
        let rounds = [
            (lacks(Role::Worker).div_ceil(22), Kind::Workers),
            (lacks(Role::Rank).div_ceil(5), Kind::Ranks),
            (lacks(Role::Daemon).div_ceil(3), Kind::Daemons),
            (POINTS.iter().filter(stuck).map(|p| self.lack(p)).sum(), Kind::Stuck),
            (reissues.div_ceil(4), Kind::Calm),
        ];
        let (most, kind) = rounds.into_iter().max_by_key(|(rounds, _)| *rounds).unwrap_or((0, Kind::All));
        if most > 0 && self.below(8) > 0 {
            return kind;
        }
        match self.below(16) {
            0 => Kind::Daemons,
            1..3 => Kind::Ranks,
            3..5 => Kind::All,
            5..7 => Kind::Calm,
            _ => Kind::Workers,
        }
    }

    fn lack(&self, point: &Point) -> u64 {
        self.hits_wanted.saturating_sub(self.expected(point))
    }

    fn expected(&self, point: &Point) -> u64 {
        let key = point.key();
        self.tally.hit(&key) + self.under_way.get(&key).copied().unwrap_or(0)
    }

    /// The points with the fewest hits, in an order of chance where they are equal.
    fn neediest(&mut self, role: Role, when: When, count: usize) -> Vec<&'static Point> {
        let mut points: Vec<_> = POINTS
            .iter()
            .filter(|p| p.role == role && p.when == when)
            .map(|p| (self.expected(p), self.rng.next_u32(), p))
            .collect();
        points.sort_by_key(|(hits, chance, _)| (*hits, *chance));
        points.into_iter().take(count).map(|(.., point)| point).collect()
    }

    /// The neediest of those that are passed where steps are balanced once more.
    fn handed(&mut self, role: Role, handed: bool, count: usize) -> Vec<&'static Point> {
        if handed { self.neediest(role, When::Handed, count) } else { Vec::new() }
    }

    fn enter(&mut self, plan: &mut Plan, point: &Point, times: u64) {
        // What every worker passes at once would kill them all at once.
        let times = if point.most <= 2 { times.min(4) } else { times };
        for _ in 0..times {
            let nth = point.least + self.below(point.most - point.least + 1);
            plan.entries.push(format!("{}:{nth}", point.key()));
        }
    }

    fn kill_at_random(&mut self, plan: &mut Plan, roles: &[Role]) {
        for &role in roles {
            let us = self.below(20_000);
            plan.random.push((us, role, self.rng.next_u32()));
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n.max(1)
    }
}

fn key_of(entry: &str) -> String {
    entry.rsplit_once(':').map_or(entry, |(key, _)| key).to_string()
}

fn report(tally: &Tally, wanted: u64, hits_wanted: u64, seconds: f64) -> ExitCode {
    println!("\n{:<30} hits", "point");
    for point in POINTS {
        println!("{:<30} {}", point.key(), tally.hit(&point.key()));
    }
    for (role, n) in &tally.random {
        println!("{:<30} {n}", format!("{role} at random instants"));
    }
    let least = POINTS.iter().map(|p| tally.hit(&p.key())).min().unwrap_or(0);
    let command = if wanted >= 10_000 { "make crash".into() } else { format!("CRASH_KILLS={wanted} make crash") };
    let row = |name: &str, value: f64, unit, target: &str| Row::new(name, value, unit, target, &command);
    let none = "= 0";
    let rows = [
        row("crash.kills", tally.kills() as f64, "", &format!(">= {wanted}")),
        row("crash.points", POINTS.len() as f64, "", ""),
        row("crash.point_hits_min", least as f64, "", &format!(">= {hits_wanted}")),
        row("crash.lost", tally.lost as f64, "", none),
        row("crash.repeated", tally.repeated as f64, "", none),
        row("crash.hangs", tally.hangs as f64, "", none),
        row("crash.leaked_regions", tally.leaked_regions as f64, "", none),
        row("crash.leaked_fds", tally.leaked_fds as f64, "", none),
        row("crash.left_files", tally.left_files as f64, "", none),
        row("crash.left_processes", tally.left_processes as f64, "", none),
        row("crash.failures", tally.failures.len() as f64, "", none),
        row("crash.reissue_ms_p99", tally.reissued.quantile_ms(0.99), "ms", "<= 5"),
        row("crash.reissue_ms_p50", tally.reissued.quantile_ms(0.5), "ms", ""),
        row("crash.reissue_queued_ms_p99", tally.queued.quantile_ms(0.99), "ms", ""),
        row("crash.batches", tally.batches as f64, "", ""),
        row("crash.seconds", seconds, "s", if wanted >= 10_000 { "<= 1200" } else { "" }),
    ];
    let (idle, queued) = (tally.reissued.count(), tally.queued.count());
    println!("\n{} rounds; {idle} lost tickets went to idle workers, {queued} waited for busy ones", tally.rounds);
    for row in &rows {
        let holds = if row.holds { "" } else { "  MISSED" };
        println!("{:<24} {:>10.2} {:<3} {}{holds}", row.name, row.value, row.unit, row.target);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), std::path::PathBuf::from);
    if let Err(e) = results::write(&target.join("results/crash.json"), &rows) {
        eprintln!("crash: cannot write the results: {e}");
    }
    // Times depend on the machine; everything else is right or wrong.
    let right = rows.iter().all(|row| row.holds || row.name.contains("_ms_") || row.name == "crash.seconds");
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
