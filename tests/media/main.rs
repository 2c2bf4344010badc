//! Hostile media through the whole of it: mutated files, and very many good ones, through a real daemon, real workers and
//! ranks. Nobody may notice more than a bad sample.
//!
//! | variable | meaning |
//! |---|---|
//! | `MEDIA_MUTANTS` | how many mutated files; 240 by default |
//! | `MEDIA_SEED` | seed of the campaign; 1 by default |
//! | `MEDIA_SAMPLES` | how many good samples while memory is looked at; 2000 by default |
//! | `MEDIA_RESULTS` | the file that takes the rows |
#![cfg(feature = "decode")]

mod campaign;
#[path = "../common/mod.rs"]
mod common;
mod memory;
mod mutate;
mod source;

use helix_shm::results::{self, Row};

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |n| n.parse().unwrap_or_else(|_| panic!("{name} is `{n}`")))
}

fn row(name: &str, value: f64, unit: &str, target: &str) -> Row {
    Row::new(name, value, unit, target, "make fuzz-media")
}

/// Shows rows, and adds them to those of the other test where they are wanted.
fn record(rows: Vec<Row>) {
    for row in &rows {
        let holds = if row.holds { "" } else { "  MISSED" };
        println!("{:<32} {:>10.3} {:<3} {}{holds}", row.name, row.value, row.unit, row.target);
    }
    let Some(path) = std::env::var_os("MEDIA_RESULTS").map(std::path::PathBuf::from) else { return };
    let known: Vec<Row> =
        std::fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let kept = known.into_iter().filter(|old| rows.iter().all(|new| new.name != old.name));
    let all: Vec<Row> = kept.chain(rows.iter().cloned()).collect();
    results::write(&path, &all).unwrap();
}
