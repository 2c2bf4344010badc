//! The inputs that fuzzing has found worth keeping, and cut and changed ones beside them, through the fuzz targets' own
//! bodies: `make test` needs no fuzzer for that. `make fuzz` looks for more. (A rank's table has a property test of its own.)

use std::fs;
use std::path::Path;

#[path = "../fuzz/bodies/config.rs"]
mod config;
#[path = "../fuzz/bodies/manifest.rs"]
mod manifest;
#[path = "../fuzz/bodies/messages.rs"]
mod messages;
#[path = "../fuzz/bodies/packets.rs"]
mod packets;
#[path = "../fuzz/bodies/page.rs"]
mod page;
#[path = "../fuzz/bodies/rings.rs"]
mod rings;
#[path = "../fuzz/bodies/tables.rs"]
mod tables;

/// Of each input so many cut or changed ones.
const VARIANTS: u64 = 16;

/// A step of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&folder).expect("kept inputs").map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "no input is kept in {}", folder.display());
    let mut state = 7;
    for file in files {
        let seed = fs::read(&file).unwrap();
        run(&seed);
        for _ in 0..VARIANTS {
            let mut bytes = seed.clone();
            if next(&mut state).is_multiple_of(4) {
                bytes.truncate(next(&mut state) as usize % (bytes.len() + 1));
            }
            for _ in 0..next(&mut state) % 4 {
                if let Some(at) = (next(&mut state) as usize).checked_rem(bytes.len()) {
                    bytes[at] = next(&mut state) as u8;
                }
            }
            run(&bytes);
        }
    }
}

#[test]
fn any_seven_words_are_a_message_or_an_error() {
    replay("messages", messages::run);
}

#[test]
fn any_packet_is_one_of_the_protocol_or_an_error() {
    replay("packets", packets::run);
}

#[test]
fn any_bytes_are_a_manifest_or_an_error() {
    replay("manifest", manifest::run);
}

#[test]
fn any_bytes_are_a_status_page_or_none() {
    replay("page", page::run);
}

#[test]
fn rings_that_somebody_else_writes_to_give_messages_or_errors() {
    replay("rings", rings::run);
}

#[test]
fn any_bytes_are_a_configuration_or_an_error() {
    replay("config", config::run);
}

#[test]
fn whatever_workers_and_ranks_say_a_slab_has_one_owner_for_each_byte() {
    replay("tables", tables::run);
}
