//! Any seven words: a body or an error, and a body says what it was made of.

use helix_shm::proto::message::{Batch, Body, Done, Entry, Feedback, Ready, Spare, Ticket, Words, head};

fn parse<B: Body>(words: &Words) {
    match B::parse(words) {
        Ok(body) => assert_eq!(body.words(), *words),
        Err(e) => drop(e.to_string()),
    }
}

/// One input.
pub fn run(bytes: &[u8]) {
    for chunk in bytes.chunks(56) {
        let mut raw = [0u8; 56];
        raw[..chunk.len()].copy_from_slice(chunk);
        let words: Words = std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|b| raw[8 * i + b])));
        parse::<Ticket>(&words);
        parse::<Done>(&words);
        parse::<Ready>(&words);
        parse::<Batch>(&words);
        parse::<Entry>(&words);
        parse::<Spare>(&words);
        parse::<Feedback>(&words);
        let _ = head(&words);
    }
}
