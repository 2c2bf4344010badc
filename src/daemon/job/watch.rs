//! Workers that do not come back: one that is at a sample for too long, or takes too much memory, is ended.
//!
//! Looked at ten times a second, whatever the bells say; a worker counts as seen at a ticket from the second look on, so
//! that the many short ones cost nothing. A worker that has burnt the time is in a loop, and so would
//! be the next: its sample is bad at once. One that has not burnt it was waiting, for storage or because somebody
//! stopped it: its sample is given to others, as after any kill.

use std::time::{Duration, Instant};

use super::Job;
use crate::daemon::workers::{SeenAt, Worker};

/// Of its time a worker in a loop has burnt at least this part, in hundredths; the rest went to others on its core.
const BURNT: u32 = 30;

impl Job {
    /// Ends the workers that are beyond their limits. Their deaths do the rest.
    pub(super) fn end_stray_workers(&mut self) {
        for slot in 0..self.workers.len() {
            let Some(worker) = self.workers[slot].as_ref().filter(|worker| worker.sentence.is_none()) else {
                continue;
            };
            let ticket = worker.held.front().copied();
            // Most are at another ticket at each look, and cost nothing.
            let found = if ticket.is_none() || ticket != worker.noticed { None } else { self.judge(worker, ticket) };
            let Some(worker) = self.workers[slot].as_mut() else { continue };
            worker.noticed = ticket;
            match found {
                None => worker.seen_at = None,
                Some(Found::Fine) => {}
                Some(Found::New(seen)) => worker.seen_at = Some(seen),
                Some(Found::Waits(why)) => {
                    tracing::error!(job = self.name, slot, pid = worker.pid(), "worker ended: {why}");
                    worker.seen_at = None;
                    worker.pidfd.kill();
                }
                Some(Found::Guilty(stage, why)) => {
                    tracing::error!(job = self.name, slot, pid = worker.pid(), "worker ended: {why}");
                    worker.sentence = ticket.map(|ticket| (ticket, stage, why));
                    worker.pidfd.kill();
                    self.stats.ended += 1;
                }
            }
        }
    }

    /// Looks at a worker that is at the ticket that it was at before.
    fn judge(&self, worker: &Worker, ticket: Option<u64>) -> Option<Found> {
        let ticket = ticket?;
        let flight = self.flights.get(&ticket)?;
        let stream = self.stream_of(self.sessions.get(&flight.session)?.stream)?;
        let run = &stream.run;
        // What a program of the user's own may take only the user knows.
        let own = !run.program.is_empty();
        let most_memory = if own && run.worker_memory == 0 { u64::MAX } else { worker.bounds.memory };
        let frames = stream.manifest.facts(flight.sample).frames;
        let most_ms = if own && run.sample_ms == 0 { u64::MAX } else { run.most_ms(frames) };
        let now = Use::of(worker.pid())?;
        let seen = worker.seen_at.filter(|seen| seen.ticket == ticket);
        Some(judge(seen, ticket, now, most_memory, Duration::from_millis(most_ms)))
    }
}

/// What a look at a worker found.
#[derive(Debug)]
enum Found {
    Fine,
    /// It was not looked at before.
    New(SeenAt),
    /// It has had its time and has not used it.
    Waits(String),
    /// It is beyond a limit through its sample: the stage, and why.
    Guilty(&'static str, String),
}

fn judge(seen: Option<SeenAt>, ticket: u64, now: Use, most: u64, limit: Duration) -> Found {
    if now.memory > most {
        let (has, most) = (now.memory >> 20, most >> 20);
        return Found::Guilty(
            "memory",
            format!("it took {has} MiB of memory, and {most} are allowed (worker_memory)"),
        );
    }
    let Some(seen) = seen else { return Found::New(SeenAt { ticket, since: Instant::now(), cpu: now.cpu }) };
    let (wall, cpu) = (seen.since.elapsed(), now.cpu.saturating_sub(seen.cpu));
    if wall <= limit {
        Found::Fine
    } else if cpu * 100 >= wall * BURNT {
        Found::Guilty("stuck", format!("after {wall:.1?} and {cpu:.1?} of computing it was still at it (sample_ms)"))
    } else {
        Found::Waits(format!("it was at one sample for {wall:.1?} and computed {cpu:.1?} of them: slow storage?"))
    }
}

/// What a process has used, as the kernel counts.
#[derive(Debug, Clone, Copy)]
struct Use {
    cpu: Duration,
    /// Private memory, bytes.
    memory: u64,
}

impl Use {
    /// `None` when the process is gone.
    fn of(pid: u32) -> Option<Use> {
        use nix::unistd::{SysconfVar, sysconf};
        let ask = |what, usual: u64| sysconf(what).ok().flatten().map_or(usual, |n| n as u64);
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything.
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()?.checked_add(fields.get(12)?.parse().ok()?)?;
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let mut pages = statm.split(' ').skip(1).map(|n| n.parse::<u64>().unwrap_or(0));
        let (resident, shared) = (pages.next()?, pages.next()?);
        Some(Use {
            cpu: Duration::from_millis(ticks.saturating_mul(1000) / ask(SysconfVar::CLK_TCK, 100).max(1)),
            memory: resident.saturating_sub(shared).saturating_mul(ask(SysconfVar::PAGE_SIZE, 4096)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_burnt_its_time_is_in_a_loop_and_who_has_not_was_waiting() {
        let second = Duration::from_secs(1);
        let since = Instant::now().checked_sub(10 * second).unwrap();
        let seen = Some(SeenAt { ticket: 7, since, cpu: second });
        let now = |cpu, memory| Use { cpu: cpu * second, memory };
        let judge = |seen, now, limit: u32| super::judge(seen, 7, now, 1000, limit * second);
        assert!(matches!(judge(seen, now(9, 0), 60), Found::Fine));
        assert!(matches!(judge(None, now(9, 0), 5), Found::New(SeenAt { ticket: 7, .. })));
        assert!(matches!(judge(seen, now(9, 0), 5), Found::Guilty("stuck", _)));
        assert!(matches!(judge(seen, now(2, 0), 5), Found::Waits(_)));
        assert!(matches!(judge(None, now(0, 1001), 60), Found::Guilty("memory", _)));
    }

    #[test]
    fn the_kernel_tells_what_this_process_has_used() {
        let before = Use::of(std::process::id()).unwrap();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        let mut sum = 0u64;
        while Use::of(std::process::id()).unwrap().cpu < before.cpu + Duration::from_millis(20) {
            sum = memory.iter().fold(sum, |a, &b| a.wrapping_mul(31).wrapping_add(b.into()));
        }
        std::hint::black_box(sum);
        let after = Use::of(std::process::id()).unwrap();
        assert!(after.memory >= before.memory + (60 << 20) && after.cpu > before.cpu);
        assert!(Use::of(u32::MAX).is_none());
    }
}
