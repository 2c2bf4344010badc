//! The page for people.

use std::fmt::Write;

use helix_shm::proto::page::{Page, Rank, UNKNOWN, Worker};

use super::judge::{Binding, Daemon, Job};

/// Everything.
pub fn all(jobs: &[Job], uid: u32, out: &mut String) {
    if jobs.is_empty() {
        line(out, format_args!("no daemon of user {uid} shows a status page (helix-shmd makes one where it runs)"));
    }
    for (n, job) in jobs.iter().enumerate() {
        if n > 0 {
            out.push('\n');
        }
        head(job, out);
        if let Some(page) = job.page.as_ref().filter(|page| !page.ranks.is_empty() || page.top.tickets > 0) {
            tables(page, job.now, out);
        }
    }
}

/// Writing to a string cannot fail.
fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
    out.push('\n');
}

fn head(job: &Job, out: &mut String) {
    let Some(page) = &job.page else {
        let how = if job.daemon == Daemon::Gone { "is gone" } else { "lives" };
        return line(out, format_args!("a daemon {how}, and its page is not to be read: somebody has spoilt it"));
    };
    let top = &page.top;
    let (pid, age) = (top.pid, job.age_s.unwrap_or(0.0));
    let kind = if top.embedded != 0 { "embedded" } else { "service" };
    let name = top.job.to_string();
    if name.is_empty() {
        line(out, format_args!("no job                 daemon {pid} ({kind})"));
    } else {
        line(out, format_args!("job {name:<18} daemon {pid} ({kind}), seen {age:.1} s ago"));
    }
    match job.daemon {
        Daemon::Well => {}
        Daemon::Stopped => line(
            out,
            format_args!(
                "  THE DAEMON IS STOPPED, by a signal or a debugger: `kill -CONT {pid}` lets it go on. Below is how it was"
            ),
        ),
        Daemon::Silent => line(
            out,
            format_args!(
                "  THE DAEMON IS SILENT: it lives and has written nothing for {age:.1} s; look at /proc/{pid}/stack and its log. Below is how it was"
            ),
        ),
        Daemon::Gone => line(
            out,
            format_args!(
                "  THE DAEMON IS GONE: process {pid} was killed; its ranks start another one, which clears this. Below is how it was"
            ),
        ),
        Daemon::Unreadable => {}
    }
    if let Some(binding) = job.binding {
        let what = match binding {
            Binding::Nobody => "nothing: no rank iterates yet",
            Binding::Ranks => "the ranks: every batch is there in time",
            Binding::Workers => "decoding: all workers are busy, and ranks stand still",
            Binding::Memory => "memory: workers are idle and there is no room for what comes next; raise slab_bytes",
            Binding::Samples => "a few samples: ranks stand still for what is being decoded, while workers are idle",
        };
        line(out, format_args!("  held up by {what}"));
    }
}

fn tables(page: &Page, now: u64, out: &mut String) {
    let top = &page.top;
    line(
        out,
        format_args!(
            "  {} samples of {} tickets, {} under way; {} bad, {} given out again, {} workers replaced, {} messages refused",
            top.done, top.tickets, top.in_flight, top.bad, top.reissued, top.restarts, top.refused
        ),
    );
    line(
        out,
        format_args!(
            "  {} frames decoded in {:.1} s of CPU, {} read; predictions off by {:.0} % (fact - prediction: {:+.0} %)",
            top.frames,
            top.cpu_us as f64 / 1e6,
            bytes(top.bytes_read),
            100.0 * top.prediction_error,
            100.0 * top.prediction_bias
        ),
    );
    line(
        out,
        format_args!(
            "  {:<5}{:<10}{:>9}{:>11}{:>11}{:>11}{:>8}{:>8}{:>8}{:>20}{:>9}{:>9}",
            "rank",
            "loader",
            "window",
            "last wait",
            "mean wait",
            "max wait",
            "steps",
            "misses",
            "batches",
            "slab",
            "copied",
            "skipped"
        ),
    );
    page.ranks.iter().for_each(|rank| self::rank(rank, out));
    line(out, format_args!("  {:<8}{:>8}{:>6}{:>8}{:>12}", "server", "workers", "idle", "waiting", "work"));
    for s in &page.servers {
        let (server, workers, idle, queued, work) = (s.server, s.workers, s.idle, s.queued, time(s.queued_ns));
        line(out, format_args!("  {server:<8}{workers:>8}{idle:>6}{queued:>8}{work:>12}"));
    }
    line(
        out,
        format_args!(
            "  {:<8}{:>9}{:>6}  {:<34}{:>9}{:>10}",
            "worker", "process", "core", "decodes", "for", "expected"
        ),
    );
    page.workers.iter().for_each(|worker| self::worker(worker, now, out));
}

fn rank(rank: &Rank, out: &mut String) {
    let window = match rank.window {
        _ if rank.phase == 1 => "leaving".into(),
        _ if rank.phase > 1 => "over".into(),
        0 => "WAITS".into(),
        UNKNOWN => "-".into(),
        ns => time(ns),
    };
    let mean = rank.wait.checked_div(rank.steps).unwrap_or(0);
    let used = (100 * u128::from(rank.used)).checked_div(rank.slab.into()).unwrap_or(0);
    line(
        out,
        format_args!(
            "  {:<5}{:<10.10}{:>9}{:>11}{:>11}{:>11}{:>8}{:>8}{:>8}{:>20}{:>9}{:>9}",
            rank.rank,
            rank.loader,
            window,
            time(rank.wait_last),
            time(mean),
            time(rank.wait_max),
            rank.steps,
            rank.misses,
            rank.batches,
            format!("{used} % of {}", bytes(rank.slab)),
            bytes(rank.copied),
            rank.skipped
        ),
    );
}

fn worker(worker: &Worker, now: u64, out: &mut String) {
    let what = match worker {
        w if w.up == 0 => "starts".into(),
        w if w.sample == UNKNOWN => "idle".into(),
        w => format!("sample {} (rank {}, step {})", w.sample, w.rank, w.step),
    };
    let at_work = worker.up != 0 && worker.sample != UNKNOWN;
    let since = if at_work { time(now.saturating_sub(worker.since)) } else { String::new() };
    let expected = if at_work && worker.expected != UNKNOWN { time(worker.expected) } else { String::new() };
    let core = if worker.core == u32::MAX { "any".into() } else { worker.core.to_string() };
    let (slot, pid) = (worker.slot, worker.pid);
    line(out, format_args!("  {slot:<8}{pid:>9}{core:>6}  {what:<34}{since:>9}{expected:>10}"));
}

/// Nanoseconds in the unit that suits them.
fn time(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        10_000_000..1_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..0x10_0000 => format!("{:.0} KiB", n as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.0} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", n as f64 / 1_073_741_824.0),
    }
}
