use super::*;
use crate::client::ledger::Ledger;
use crate::client::ledger::tests::listed;
use crate::client::table::Slot;
use crate::proto::transform::Span;
use crate::ring::slab::{Slab, SlabOptions};
use std::collections::BTreeMap;

const SHAPE: [u16; 4] = [1, 3, 2, 2];
const BYTES: u64 = 12;

/// A batch of one letter a sample: `a`, `b`, … are there, `-` was skipped. Upper case has another shape. A digit was
/// made in a second place, and `/` came in halves of which one was.
fn batch(ledger: &Arc<Ledger>, letters: &str) -> Batch {
    let options = SlabOptions { prefault: true, huge: false, node: None };
    let slab = Slab::create("test", 4096, options).unwrap();
    let mut scattered = BTreeMap::new();
    let slots: Vec<Slot> = letters
        .bytes()
        .enumerate()
        .map(|(i, letter)| {
            let home = 64 + i as u64 * BYTES;
            let spare = 2048 + home;
            let offset = if letter.is_ascii_digit() { spare } else { home };
            for at in [offset, spare] {
                // SAFETY: nobody else knows this slab.
                unsafe { slab.slice_mut(at as usize, BYTES as usize) }.fill(letter);
            }
            if letter == b'/' {
                let half = |at, second: u16| Part::of(Span { first: second, frames: 1 }, at, BYTES / 2);
                scattered.insert(i as u16, vec![half(home, 0), half(spare + BYTES / 2, 1)]);
                // SAFETY: as above.
                unsafe { slab.slice_mut((home + BYTES / 2) as usize, BYTES as usize / 2) }.fill(b'?');
            }
            let shape = if letter.is_ascii_uppercase() { [1, 3, 4, 1] } else { SHAPE };
            let state = if letter == b'-' { SlotState::Skipped } else { SlotState::Ready { written: BYTES, shape } };
            Slot {
                sample: i as u64,
                offset,
                len: BYTES,
                home_rank: 1,
                home_share: 16,
                tokens: i as f64,
                bin: i as u16 / 2,
                state,
            }
        })
        .collect();
    let lease = ledger.take((64, slots.len() as u64 * BYTES), (1, 1, 0)).unwrap();
    let spares = Vec::from_iter(
        letters
            .bytes()
            .any(|l| l == b'/' || l.is_ascii_digit())
            .then(|| ledger.take((2048, 1024), (2, 1, 0)).unwrap()),
    );
    let (epoch, step, global, mean_cost, tokens_global) = (2, 0, 16, 2.0, 40.0);
    let bins = slots.len().div_ceil(2) as u16 + 1;
    let handover = Default::default();
    let assembled =
        Assembled { lease, epoch, step, global, mean_cost, tokens_global, bins, slots, scattered, spares, handover };
    Batch::new(Arc::new(Store::bare(slab)), assembled, View { fixed: Some(SHAPE), ..View::default() })
}

fn text(bytes: &[u8]) -> String {
    bytes.chunks(BYTES as usize).map(|c| c[0] as char).collect()
}

#[test]
fn a_full_batch_is_a_tensor_without_a_copy() {
    let ledger = Ledger::new();
    let batch = batch(&ledger, "abcd");
    let tensor = batch.tensor("video").unwrap();
    assert_eq!((tensor.shape, tensor.strides), ([4, 1, 3, 2, 2], [12, 12, 4, 2, 1]));
    assert_eq!(text(tensor.data), "abcd");
    assert_eq!(tensor.numbers::<u8>().unwrap().len(), 48);
    assert!(tensor.numbers::<f32>().is_none());
    assert_eq!(ledger.copied_total(), 0);
    assert_eq!(batch.weights(), [1.0 / 16.0; 4]);
    assert_eq!((batch.ids(), batch.tokens()), (&[0, 1, 2, 3][..], &[0.0, 1.0, 2.0, 3.0][..]));
}

#[test]
fn packed_sequences_are_ranges_of_what_was_delivered() {
    let ledger = Ledger::new();
    let whole = batch(&ledger, "abcd");
    assert_eq!(whole.sequences(), [0..2, 2..4, 4..4], "every rank has as many, so that one may be empty");
    assert_eq!(whole.cu_seqlens(0), [0, 0, 1]);
    assert_eq!(whole.cu_seqlens(1), [0, 2, 5]);
    assert_eq!((whole.cu_seqlens(2), whole.cu_seqlens(3)), (vec![0], vec![]));
    assert_eq!((whole.n_rank(), whole.n_global(), whole.tokens_rank(), whole.tokens_global()), (4, 16, 6.0, 40.0));
    drop(whole);
    let skipped = batch(&ledger, "a-cd");
    assert_eq!((skipped.sequences(), skipped.cu_seqlens(0)), (vec![0..1, 1..3, 3..3], vec![0, 0]));
    assert_eq!((skipped.n_rank(), skipped.tokens_rank()), (4, 6.0), "what was skipped keeps its place");
}

const GAPS: [(&str, &str, u64); 7] = [
    ("-bcd", "bcd", 0),
    ("abc-", "abc", 0),
    ("a-cd", "acd", 1),
    ("abc-e", "abce", 1),
    ("a-c-efg-i", "acefgi", 3),
    ("--c--", "c", 0),
    ("a---e", "ae", 1),
];

fn check_samples(batch: &Batch, letters: &str, left: &str) {
    assert_eq!((batch.len(), batch.skipped()), (left.len(), letters.len() - left.len()));
    for (i, letter) in left.bytes().enumerate() {
        assert_eq!(batch.sample(i, "video").unwrap(), [letter; BYTES as usize]);
        assert_eq!(batch.ids()[i], letters.bytes().position(|l| l == letter).unwrap() as u64);
    }
}

#[test]
fn a_sample_in_a_second_place_is_left_there_and_a_tensor_of_it_is_gathered_and_counted() {
    // Letters, bytes copied when it is made, bytes copied for the tensor.
    for (letters, made, tensor) in
        [("a1c", 0, 3), ("1bc", 0, 3), ("ab1", 0, 3), ("1", 0, 0), ("a/c", 1, 3), ("/", 1, 0), ("-1-d", 0, 2)]
    {
        let ledger = Ledger::new();
        let left: String = letters.replace('-', "");
        let mut batch = batch(&ledger, letters);
        assert_eq!(ledger.copied_total(), made * BYTES, "{letters}");
        check_samples(&batch, letters, &left);
        assert_eq!(batch.runs().concat(), batch.tensor("video").unwrap().data, "{letters}");
        assert_eq!(ledger.copied_total(), (made + tensor) * BYTES, "{letters}");
        let written = batch.tensor_mut("video").unwrap();
        assert_eq!(text(written.data), left);
        written.data.fill(b'x');
        assert!(batch.tensor("video").unwrap().data.iter().all(|b| *b == b'x'));
        assert!((0..batch.len()).all(|i| batch.sample(i, "video").unwrap() == [b'x'; BYTES as usize]), "{letters}");
        drop(batch);
        assert_eq!(ledger.joining().blocks, [], "both blocks are released");
    }
}

#[test]
fn a_tensor_closes_gaps_by_the_fewest_moves_and_counts_them() {
    for (letters, left, moved) in GAPS {
        let ledger = Ledger::new();
        let batch = batch(&ledger, letters);
        assert_eq!(ledger.copied_total(), 0, "nobody asked yet");
        for _ in 0..2 {
            assert_eq!(text(batch.tensor("video").unwrap().data), left, "{letters}");
        }
        assert_eq!(ledger.copied_total(), moved * BYTES, "{letters}");
        assert_eq!(batch.runs().len(), 1);
        check_samples(&batch, letters, left);
    }
}

#[test]
fn what_was_looked_at_is_not_moved() {
    for (letters, left, moved) in GAPS {
        let ledger = Ledger::new();
        let mut batch = batch(&ledger, letters);
        check_samples(&batch, letters, left);
        let runs = batch.runs();
        assert_eq!(runs.iter().map(|r| text(r)).collect::<String>(), left);
        assert_eq!(ledger.copied_total(), 0, "samples and runs cost nothing");
        let first = batch.sample(0, "video").unwrap();
        for _ in 0..2 {
            assert_eq!(text(batch.tensor("video").unwrap().data), left, "{letters}");
        }
        assert_eq!(text(first), left[..1]);
        let gathered = if moved == 0 { 0 } else { left.len() as u64 };
        assert_eq!(ledger.copied_total(), gathered * BYTES, "{letters}");
        // Alone, it is moved after all; and what is written then is seen by all.
        batch.tensor_mut("video").unwrap().data.fill(b'z');
        assert_eq!(ledger.copied_total(), (gathered + moved) * BYTES, "{letters}");
        let (tensor, sample) = (batch.tensor("video").unwrap(), batch.sample(0, "video").unwrap());
        assert!(tensor.data.iter().chain(sample).all(|b| *b == b'z'));
    }
}

#[test]
fn ragged_samples_are_had_one_by_one() {
    let ledger = Ledger::new();
    let batch = batch(&ledger, "a-Cd");
    let error = batch.tensor("video").unwrap_err();
    assert_eq!(error, BatchError::Ragged { first: SHAPE, other: [1, 3, 4, 1] });
    assert!(error.to_string().contains("sample(i)"));
    assert_eq!(batch.shape(1), Ok([1, 3, 4, 1]));
    assert_eq!(text(batch.sample(2, "video").unwrap()), "d");
    assert_eq!(batch.runs().iter().map(|r| text(r)).collect::<Vec<_>>(), ["a", "Cd"]);
    assert_eq!(ledger.copied_total(), 0);
}

#[test]
fn an_empty_batch_is_an_empty_tensor() {
    let ledger = Ledger::new();
    let batch = batch(&ledger, "---");
    assert!(batch.is_empty());
    let tensor = batch.tensor("video").unwrap();
    assert_eq!((tensor.shape, tensor.data.len()), ([0, 1, 3, 2, 2], 0));
    assert!(batch.runs().is_empty());
    assert!(matches!(batch.sample(0, "video"), Err(BatchError::Index { index: 0, len: 0 })));
    let error = batch.tensor("audio").unwrap_err();
    assert_eq!(error.to_string(), "a batch has no tensor `audio`; it has `video`");
}

#[test]
fn a_batch_is_written_in_place_and_released_once_behind_its_upload() {
    use crate::device::{Device, host::HostDevice};
    let ledger = Ledger::new();
    ledger.joining();
    let (outlet, sent) = listed(9);
    ledger.up(0, outlet);
    let mut batch = batch(&ledger, "ab");
    batch.tensor_mut("video").unwrap().data[0] = b'x';
    let device = HostDevice::new();
    let buffer = device.allocate(24).unwrap();
    let mut queue = device.queue().unwrap();
    queue.upload(Box::new(batch), &buffer, 0).unwrap().wait(None).unwrap();
    assert_eq!(sent.try_iter().map(|f| f.grant).collect::<Vec<_>>(), [1]);
    let mut bytes = [0; 24];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes[..2], b"xa");
}
