//! What-ifs whose answer is known.

use clap::Parser;
use helix_shm::proto::transform::{Codec, Facts};

use super::report::Binds;
use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    plan: Args,
}

/// Clips of 720p, of 2 to 20 seconds.
struct Clips;

impl Catalog for Clips {
    fn len(&self) -> u64 {
        300
    }
    fn row(&self, i: u64) -> u64 {
        i
    }
    fn facts(&self, i: u64) -> Facts {
        let frames = 50 + (i * 37 % 450) as u32;
        let (bytes, duration_ms) = (u64::from(frames) * 10_000, frames * 40);
        Facts { bytes, frames, duration_ms, width: 1280, height: 720, keyframes: frames / 50, codec: Codec::H264 }
    }
}

fn planned(more: &[&str]) -> Report {
    let words = [&["plan", "x.arrow", "--ranks", "4", "--batch-size", "2", "--steps", "60"], more].concat();
    let args = Cli::parse_from(words).plan;
    match answer(&args, &Clips, &options(&args), None) {
        Answer::One(report) => report,
        Answer::Several(lines) => panic!("asked for one machine: {lines:?}"),
    }
}

fn several(more: &[&str]) -> Result<Vec<nodes::Line>, Failure> {
    let words = [&["plan", "x.arrow", "--ranks", "2", "--batch-size", "4", "--steps", "80"], more].concat();
    let args = Cli::parse_from(words).plan;
    let machines = machines(&args, args.nodes.expect("it was given"))?;
    match answer(&args, &Clips, &options(&args), Some(&machines)) {
        Answer::Several(lines) => Ok(lines),
        Answer::One(report) => panic!("asked for several machines: {report:?}"),
    }
}

#[test]
fn a_machine_that_is_short_of_cores_is_helped_by_the_others_and_only_it() {
    let slow = ["--step-ms", "500", "--nodes", "2", "--cores", "4,20"];
    let lines = several(&slow).expect("good options");
    let [local, _, helix] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((local.system, helix.system), ("rank-local", "helix"));
    assert!(local.remote_share == 0.0 && helix.samples_per_s > 1.5 * local.samples_per_s, "{lines:?}");
    let [short, long] = &helix.nodes[..] else { panic!("{helix:?}") };
    assert!(short.taken_mb_per_s > 10.0 * long.taken_mb_per_s && long.sent_mb_per_s > 0.0, "{helix:?}");
    // Over a link that carries next to nothing nothing is sent: it would come later still.
    let lines = several(&[&slow[..], &["--link", "0.1Mbit/s"]].concat()).expect("good options");
    let bound = &lines[2];
    assert!(bound.remote_share < 0.01 && bound.samples_per_s > 0.95 * local.samples_per_s, "{lines:?}");
}

#[test]
fn where_all_machines_keep_up_nothing_is_sent() {
    let lines = several(&["--step-ms", "9000", "--nodes", "2", "--cores", "12"]).expect("good options");
    assert!(lines[2].remote_share < 0.02 && lines[2].of_bound > 0.98, "{lines:?}");
}

#[test]
fn cores_are_given_for_every_node_or_for_all() {
    for cores in ["1,2", "1,2,3,4", "0"] {
        let wrong = several(&["--step-ms", "9", "--nodes", "3", "--cores", cores]);
        assert!(matches!(wrong, Err(Failure::Cores { nodes: 3, .. })), "{cores}");
    }
}

#[test]
fn speeds_of_links_are_read_in_bits_and_bytes() {
    for (text, bytes) in [("25Gbit/s", 3.125e9), ("3 GB/s", 3e9), ("100mbit", 1.25e7), ("40Gbps", 5e9)] {
        assert_eq!(text.parse(), Ok(Speed(bytes)), "{text}");
    }
    for text in ["", "fast", "25", "25 furlongs", "-1GB/s", "NaNGB/s"] {
        assert!(text.parse::<Speed>().is_err(), "{text}");
    }
}

#[test]
fn few_workers_bind_and_enough_do_not() {
    let report = planned(&["--step-ms", "400", "--workers", "1", "64"]);
    let [one, many] = &report.lines[..] else { panic!("{report:?}") };
    assert_eq!((one.binds, many.binds), (Binds::Decoding, Binds::Compute), "{report:?}");
    assert!(one.workers_busy > 0.95 && many.of_compute_bound > 0.98, "{report:?}");
    assert!(many.samples_per_s > 3.0 * one.samples_per_s);
    assert!(report.enough.is_some_and(|n| n > 1 && n < 64), "{report:?}");
}

#[test]
fn uneven_batches_are_told_from_slow_decoding() {
    let uneven = ["--step-ms", "4000", "--workers", "64", "--profile", "qwen-vl", "--as-dealt"];
    assert_eq!(planned(&uneven).lines[0].binds, Binds::Imbalance);
    let grouped = ["--step-ms", "4000", "--workers", "64", "--profile", "qwen-vl", "--regroup", "8"];
    assert_eq!(planned(&grouped).lines[0].binds, Binds::Compute);
}

#[test]
fn the_fewest_that_are_enough_are_found() {
    assert_eq!(enough(|w| f64::from(w.min(37))), Some(37));
    assert_eq!(enough(|_| 1.0), Some(1));
}
