//! Whether memory leaks: a worker's and the daemon's, over very many samples.

use helix_shm::proto::options::OnError;
use helix_shm::proto::transform::{Resize, Sampling, Transform};
use helix_shm::{Loader, Options};

use crate::campaign::rss;
use crate::common::{Daemon, folder, workers};
use crate::source::sources;
use crate::{number, record, row};

/// What a process may have grown by, beyond a twentieth: pages that the allocator keeps, bytes. A leak of 1 KiB a sample
/// would be twice that in the fewest samples that are taken.
const SLACK: u64 = 1 << 20;

#[test]
fn memory_is_flat_over_many_samples() {
    let samples = number("MEDIA_SAMPLES", 2000);
    let root = folder();
    let (_, manifest) = sources(root.path());
    let daemon = Daemon::start(root.path());
    let options = Options::default()
        .manifest(manifest.path())
        .socket(&daemon.socket)
        .spawn(false)
        .job("memory")
        .workers(1)
        .pin(false)
        .batch_size(8)
        .on_error(OnError::Skip)
        .max_bad_ratio(1.0)
        .slab_bytes(4 << 20)
        .transform(Transform {
            frames: 2,
            sampling: Sampling::Uniform,
            resize: Resize::Exact { width: 32, height: 32 },
            ..Transform::default()
        });
    let mut loader = Loader::connect(options).unwrap();
    let (mut seen, mut before) = (0, None);
    let memory = || (rss(workers(&daemon.socket)[0] as u32), rss(daemon.child.id()));
    for epoch in 0.. {
        loader.epoch(epoch).unwrap();
        for batch in &mut loader {
            seen += batch.unwrap().len() as u64;
        }
        // By then every kind of file has been decoded several times.
        if seen >= samples / 5 && before.is_none() {
            before = Some(memory());
        }
        if seen >= samples {
            break;
        }
    }
    let (worker, coordinator) = memory();
    let (worker_before, coordinator_before) = before.unwrap();
    let ratio = |now: u64, before: u64| now as f64 / before as f64;
    record(vec![
        row("media.samples", seen as f64, "", &format!(">= {samples}")),
        row("media.rss_growth", ratio(worker, worker_before), "", "<= 1.05"),
        row("media.daemon_rss_growth", ratio(coordinator, coordinator_before), "", "<= 1.05"),
        row("media.worker_rss_mb", worker as f64 / 1e6, "MB", ""),
    ]);
    let flat = |now: u64, before: u64| now <= before + before / 20 + SLACK;
    assert!(flat(worker, worker_before), "a worker grew from {worker_before} to {worker} bytes");
    assert!(
        flat(coordinator, coordinator_before),
        "the daemon grew from {coordinator_before} to {coordinator} bytes"
    );
}
