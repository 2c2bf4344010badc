use super::*;

fn ring(capacity: u32) -> (Arc<Segment>, Producer, Consumer) {
    let segment = Arc::new(Segment::create("test", ring_bytes(capacity)).unwrap());
    let producer = Producer::fresh(segment.clone(), 0, capacity).unwrap();
    let consumer = Consumer::new(segment.clone(), 0, capacity).unwrap();
    (segment, producer, consumer)
}

#[test]
fn messages_come_out_in_order_over_many_laps() {
    for capacity in [1, 2, 4, 64] {
        let (_, mut producer, mut consumer) = ring(capacity);
        let (mut pushed, mut popped) = (0u64, 0u64);
        for round in 0..1000u64 {
            for _ in 0..=round % u64::from(capacity) {
                producer.push(&[pushed; 7]).unwrap();
                pushed += 1;
            }
            while let Some(words) = consumer.pop().unwrap() {
                assert_eq!(words, [popped; 7]);
                popped += 1;
            }
        }
        assert_eq!(pushed, popped);
    }
}

#[test]
fn a_full_ring_says_so_until_it_was_drained() {
    let (_, mut producer, mut consumer) = ring(8);
    for n in 0..8 {
        producer.push(&[n; 7]).unwrap();
    }
    assert_eq!(producer.push(&[8; 7]), Err(PushError::Full));
    consumer.pop().unwrap();
    // Taken, but not told yet: the head is published every quarter, and when the ring is empty.
    assert_eq!(producer.push(&[8; 7]), Err(PushError::Full));
    consumer.pop().unwrap();
    assert_eq!(producer.free_slots(), Ok(2));
    while consumer.pop().unwrap().is_some() {}
    assert_eq!(producer.free_slots(), Ok(8));
}

#[test]
fn a_successor_goes_on_at_every_point_of_the_lap() {
    for pushed in 0..20u64 {
        let (segment, mut producer, mut consumer) = ring(4);
        for n in 0..pushed {
            producer.push(&[n; 7]).unwrap();
            assert_eq!(consumer.pop(), Ok(Some([n; 7])));
        }
        assert_eq!(consumer.pop(), Ok(None));
        drop(producer);
        let mut successor = Producer::resume(segment, 0, 4).unwrap();
        assert_eq!(successor.pushed(), pushed);
        successor.push(&[7; 7]).unwrap();
        assert_eq!(consumer.pop(), Ok(Some([7; 7])));
    }
}

#[test]
fn a_used_ring_is_not_fresh() {
    let (segment, mut producer, _) = ring(4);
    producer.push(&[1; 7]).unwrap();
    assert_eq!(Producer::fresh(segment, 0, 4).err(), Some(RingError::Used { offset: 0 }));
}

#[test]
fn a_head_that_no_consumer_can_have_written_is_corrupt() {
    for head in [9, u64::MAX, 1 << 63] {
        let (segment, mut producer, _) = ring(8);
        for n in 0..8 {
            producer.push(&[n; 7]).unwrap();
        }
        segment.word(0).store(head, Ordering::Relaxed);
        let corrupt = Corrupt::Head { found: head, least: 0, most: 8 };
        assert_eq!(producer.push(&[0; 7]), Err(PushError::Corrupt(corrupt)));
    }
}

#[test]
fn a_head_that_goes_back_is_corrupt() {
    let (segment, mut producer, mut consumer) = ring(2);
    for n in 0..6 {
        producer.push(&[n; 7]).unwrap();
        consumer.pop().unwrap();
    }
    assert_eq!(producer.free_slots(), Ok(2));
    segment.word(0).store(3, Ordering::Relaxed);
    assert!(matches!(producer.free_slots(), Err(Corrupt::Head { found: 3, least: 6, most: 6 })));
}

#[test]
fn a_sequence_that_is_neither_next_nor_a_lap_old_is_corrupt() {
    for found in [2, 3, 5, u64::MAX] {
        let (segment, _, mut consumer) = ring(4);
        segment.word(128).store(found, Ordering::Relaxed);
        assert_eq!(consumer.pop(), Err(Corrupt::Sequence { message: 0, found }));
        assert!(!consumer.is_empty());
        assert!(Producer::resume(segment.clone(), 0, 4).is_err());
    }
}

#[test]
fn places_and_capacities_that_do_not_fit_are_refused() {
    let segment = Arc::new(Segment::create("test", ring_bytes(8)).unwrap());
    for capacity in [0, 3, 6] {
        assert_eq!(Consumer::new(segment.clone(), 0, capacity).err(), Some(RingError::Capacity(capacity)));
    }
    for (offset, capacity) in [(0, 16), (64, 8), (32, 4), (usize::MAX - 63, 4), (0, 1 << 31)] {
        let refused = Producer::fresh(segment.clone(), offset, capacity).err();
        assert_eq!(refused, Some(RingError::Place { offset, capacity, segment: segment.len() }));
    }
}
