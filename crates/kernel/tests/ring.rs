//! The ring under stress: writers and readers at random speeds, wrap-around, readers that stall,
//! lag and die, under both preferences. No privileges are needed.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parshall_core::abi::{RecordHeader, RingLayout, view_plain};
use parshall_kernel::ring::memory::Lane;
use parshall_kernel::ring::reader::{Block, LaneReader, Wanted};
use parshall_kernel::ring::registry::LaneReaders;
use parshall_kernel::ring::writer::LaneWriter;
use parshall_kernel::ring::{LANE_SIZE_MIN_BYTES, Preference, RingError, layout};
use proptest::prelude::*;

fn one_lane(size_bytes: u64, preference: Preference) -> Lane {
    lane_of(layout(size_bytes, preference).unwrap())
}

fn lane_of(layout: RingLayout) -> Lane {
    Lane::anonymous(1, layout).unwrap().remove(0)
}

/// A lane whose writers are never interrupted by each other.
fn lane_of_one_writer(size_bytes: u64, preference: Preference) -> Lane {
    lane_of(RingLayout {
        writers_alone: 1,
        ..layout(size_bytes, preference).unwrap()
    })
}

/// A payload that proves itself: every word follows from the writer, the count and the place.
fn payload(writer: u64, count: u64, words: usize) -> Vec<u64> {
    (0..words as u64)
        .map(|word| word_of(writer, count, word))
        .collect()
}

fn word_of(writer: u64, count: u64, word: u64) -> u64 {
    match word {
        0 => writer,
        1 => count,
        _ => (writer << 48 ^ count.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(word as u32),
    }
}

/// Panics when a record is not exactly what a writer wrote.
fn check(record: &[u64]) -> (u64, u64) {
    let header = view_plain::<RecordHeader>(record).expect("a record has a header");
    assert_eq!(header.length_bytes as usize, record.len() * 8);
    check_beginning(record)
}

/// The same of as much of a record as was copied.
fn check_beginning(record: &[u64]) -> (u64, u64) {
    let header = view_plain::<RecordHeader>(record).expect("a record has a header");
    let words = &record[3..];
    let (writer, count) = (words[0], words[1]);
    assert_eq!(
        usize::from(header.kind) + 3,
        header.length_bytes as usize / 8,
        "the kind implies the length"
    );
    for (place, word) in words.iter().enumerate() {
        assert_eq!(*word, word_of(writer, count, place as u64), "torn record");
    }
    (writer, count)
}

/// How a reader behaves between blocks.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Eager,
    Crawls {
        micros: u64,
    },
    Stalls {
        after: u64,
        millis: u64,
    },
    /// Wants the first words of the records of one writer, and less of the others.
    Picks {
        writer: u64,
    },
}

fn read_all(lane: Lane, manner: Manner, done: &AtomicBool) -> (LaneReader, HashSet<(u64, u64)>) {
    let mut reader = LaneReader::from_start(lane);
    let mut block = Block::default();
    let mut seen = HashSet::new();
    loop {
        let was_done = done.load(Ordering::Acquire);
        let wanted = match manner {
            Manner::Picks { writer } => Wanted {
                mask_word: 3,
                mask: writer,
                words: 10,
                words_of_others: 5,
            },
            _ => Wanted::default(),
        };
        reader.read_block_of(&mut block, 8 << 10, wanted);
        let was_empty = block.is_empty();
        while let Some(record) = block.peek() {
            let whole = match manner {
                Manner::Picks { .. } => check_beginning(record),
                _ => check(record),
            };
            assert!(seen.insert(whole), "a record was delivered twice");
            block.advance();
        }
        match manner {
            Manner::Eager | Manner::Picks { .. } => {}
            Manner::Crawls { micros } => std::thread::sleep(Duration::from_micros(micros)),
            Manner::Stalls { after, millis } => {
                if reader.counts().read > after && reader.counts().read < after + 200 {
                    std::thread::sleep(Duration::from_millis(millis));
                }
            }
        }
        if was_done && was_empty && reader.is_caught_up() {
            reader.settle();
            return (reader, seen);
        }
    }
}

/// Runs writers and readers on one lane and checks every account.
fn run(lane: &Lane, writers: u64, records: u64, manners: &[Manner]) {
    let readers = LaneReaders::anonymous(1).unwrap().remove(0);
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let reading: Vec<_> = manners
            .iter()
            .map(|manner| {
                let (lane, done) = (lane.clone(), &done);
                scope.spawn(move || read_all(lane, *manner, done))
            })
            .collect();
        let writing: Vec<_> = (0..writers)
            .map(|writer| {
                let (lane, readers) = (lane.clone(), readers.clone());
                scope.spawn(move || {
                    let end = LaneWriter::new(lane, Some(readers));
                    (0..records)
                        .filter(|count| {
                            let words = 2 + (count.wrapping_mul(writer + 7) % 30) as usize;
                            end.write(words as u16, 0, &payload(writer, *count, words))
                                .is_some()
                        })
                        .count() as u64
                })
            })
            .collect();
        let written: u64 = writing
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        done.store(true, Ordering::Release);
        for reader in reading {
            let (reader, seen) = reader.join().unwrap();
            let counts = reader.counts();
            assert_eq!(counts.read, seen.len() as u64);
            assert_eq!(
                counts.read as i64 + counts.gaps,
                written as i64,
                "the ledger of {manners:?}"
            );
        }
        written
    });
    let dropped = lane.dropped_records().load(Ordering::Acquire);
    assert_eq!(written + dropped, writers * records);
}

fn manner() -> impl Strategy<Value = Manner> {
    prop_oneof![
        Just(Manner::Eager),
        (1u64..200).prop_map(|micros| Manner::Crawls { micros }),
        (0u64..500, 1u64..5).prop_map(|(after, millis)| Manner::Stalls { after, millis }),
        (0u64..4).prop_map(|writer| Manner::Picks { writer }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_record_is_delivered_whole_or_counted(
        shift in 0u32..4,
        writers in 1u64..4,
        records in 1u64..20_000,
        manners in prop::collection::vec(manner(), 1..4),
    ) {
        let lane = one_lane(LANE_SIZE_MIN_BYTES << shift, Preference::FastReader);
        run(&lane, writers, records, &manners);
    }

    #[test]
    fn every_record_of_a_writer_that_is_alone_is_delivered_whole_or_counted(
        shift in 0u32..4,
        records in 1u64..40_000,
        manners in prop::collection::vec(manner(), 1..4),
    ) {
        let lane = lane_of_one_writer(LANE_SIZE_MIN_BYTES << shift, Preference::FastReader);
        run(&lane, 1, records, &manners);
        prop_assert_eq!(lane.dropped_records().load(Ordering::Acquire), 0);
    }
}

#[test]
fn a_reader_that_keeps_up_misses_nothing() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    let writer = LaneWriter::new(lane.clone(), None);
    let mut reader = LaneReader::from_start(lane);
    let mut block = Block::default();
    for count in 0..100_000 {
        writer.write(8, 0, &payload(1, count, 8)).unwrap();
        reader.read_block(&mut block, 64 << 10);
        assert_eq!(block.peek().map(check), Some((1, count)));
    }
    assert_eq!((reader.counts().read, reader.counts().gaps), (100_000, 0));
}

#[test]
fn an_overtaken_reader_goes_on_at_a_record_start_and_counts_exactly() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    let writer = LaneWriter::new(lane.clone(), None);
    let mut reader = LaneReader::from_start(lane);
    let mut block = Block::default();
    let (mut read, mut total) = (0, 0);
    for burst in [10, 5_000, 1, 300, 100_000, 2] {
        for count in 0..burst {
            writer.write(5, 0, &payload(burst, count, 5)).unwrap();
        }
        total += burst;
        loop {
            reader.read_block(&mut block, 64 << 10);
            if block.is_empty() {
                break;
            }
            while let Some(record) = block.peek() {
                check(record);
                read += 1;
                block.advance();
            }
        }
        reader.settle();
        assert_eq!(reader.counts().read, read);
        assert_eq!(read as i64 + reader.counts().gaps, total as i64);
    }
    assert!(read > 300, "what was still in the lane was read: {read}");
}

#[test]
fn slow_reader_preference_never_overwrites_unread_records() {
    for lane_of in [one_lane, lane_of_one_writer] {
        fill_before_a_slow_reader(lane_of(LANE_SIZE_MIN_BYTES, Preference::SlowReader));
    }
}

fn fill_before_a_slow_reader(lane: Lane) {
    let register = LaneReaders::anonymous(1).unwrap().remove(0);
    let slot = register.join(0).unwrap();
    let writer = LaneWriter::new(lane.clone(), Some(register.clone()));
    let mut written = Vec::new();
    for count in 0..10_000 {
        if writer.write(6, 0, &payload(0, count, 6)).is_some() {
            written.push((0, count));
        }
    }
    assert!(written.len() < 10_000, "the lane is too small for all");
    assert_eq!(
        lane.dropped_records().load(Ordering::Acquire),
        10_000 - written.len() as u64
    );
    let mut reader = LaneReader::from_start(lane);
    let mut block = Block::default();
    let mut read = Vec::new();
    loop {
        reader.read_block(&mut block, 1 << 20);
        if block.is_empty() {
            break;
        }
        while let Some(record) = block.peek() {
            read.push(check(record));
            block.advance();
        }
        register.report(slot, reader.position());
    }
    assert_eq!(read, written);
    assert_eq!(reader.counts().gaps, 0);
    assert!(
        writer.write(6, 0, &payload(0, 0, 6)).is_some(),
        "room again"
    );
}

#[test]
fn writers_do_not_wait_for_a_reader_that_left() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::SlowReader);
    let register = LaneReaders::anonymous(1).unwrap().remove(0);
    let slot = register.join(0).unwrap();
    let writer = LaneWriter::new(lane, Some(register.clone()));
    while writer.write(6, 0, &payload(0, 0, 6)).is_some() {}
    register.leave(slot);
    assert!(writer.write(6, 0, &payload(0, 0, 6)).is_some());
}

#[test]
fn uncommitted_records_are_not_delivered() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    let writer = LaneWriter::new(lane.clone(), None);
    let mut reader = LaneReader::from_start(lane.clone());
    let mut block = Block::default();
    writer.write(5, 0, &payload(0, 0, 5)).unwrap();
    // A writer that was interrupted between its reservation and its commit.
    lane.reserved_bytes().fetch_add(64, Ordering::SeqCst);
    writer.write(5, 0, &payload(0, 1, 5)).unwrap();
    reader.read_block(&mut block, 1 << 20);
    assert_eq!(block.peek().map(check), Some((0, 0)));
    block.advance();
    assert!(
        block.is_empty(),
        "order is kept: nothing behind the open record is delivered"
    );
    assert!(!reader.is_caught_up());
}

#[test]
fn a_writer_interrupted_for_a_lap_writes_nothing_in_the_next() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    let writer = LaneWriter::new(lane.clone(), None);
    writer.write(5, 0, &payload(0, 0, 5)).unwrap();
    // Half-way: reserved, not yet written.
    let open = lane.reserved_bytes().fetch_add(64, Ordering::SeqCst);
    let mut written = 1;
    while writer.write(5, 0, &payload(0, written, 5)).is_some() {
        written += 1;
    }
    let reserved = lane.reserved_bytes().load(Ordering::SeqCst);
    assert!(reserved <= open + LANE_SIZE_MIN_BYTES, "a lap, no more");
    assert!(reserved > LANE_SIZE_MIN_BYTES - 128, "nearly a lap");
    assert_eq!(lane.dropped_records().load(Ordering::SeqCst), 1);
    // It goes on: its record is a good one, and the lane is open again.
    lane.data(open, 3)[2].store(64, Ordering::SeqCst);
    lane.data(open, 1)[0].store(lane.stamp(open), Ordering::SeqCst);
    lane.committed_bytes().fetch_add(64, Ordering::SeqCst);
    assert!(writer.write(5, 0, &payload(0, written, 5)).is_some());
}

#[test]
fn a_second_writer_of_a_lane_for_one_is_refused_and_counted() {
    let lane = lane_of_one_writer(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    let writer = LaneWriter::new(lane.clone(), None);
    writer.write(5, 0, &payload(0, 0, 5)).unwrap();
    // Another one is half-way: reserved, not yet written.
    let open = lane.reserved_bytes().fetch_add(64, Ordering::SeqCst);
    assert_eq!(writer.write(5, 0, &payload(0, 1, 5)), None);
    assert_eq!(lane.dropped_records().load(Ordering::SeqCst), 1);
    let mut reader = LaneReader::from_start(lane.clone());
    let mut block = Block::default();
    reader.read_block(&mut block, 1 << 20);
    assert_eq!(block.peek().map(check), Some((0, 0)));
    assert_eq!(reader.position(), open, "what is half-way is not delivered");
    lane.committed_bytes().store(open + 64, Ordering::SeqCst);
    assert!(writer.write(5, 0, &payload(0, 2, 5)).is_some());
}

#[test]
fn stale_bytes_that_look_like_records_are_skipped() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    // Bytes as they might come from the network: a header with every position as stamp.
    for position in (0..LANE_SIZE_MIN_BYTES).step_by(8) {
        lane.data(position, 1)[0].store(position, Ordering::Relaxed);
    }
    lane.reserved_bytes().store(4096, Ordering::SeqCst);
    let mut reader = LaneReader::from_start(lane);
    let mut block = Block::default();
    reader.read_block(&mut block, 1 << 20);
    assert!(block.is_empty());
}

#[test]
fn a_late_reader_does_not_count_earlier_records_as_missed() {
    let lane = one_lane(LANE_SIZE_MIN_BYTES, Preference::FastReader);
    let writer = LaneWriter::new(lane.clone(), None);
    for count in 0..50_000 {
        writer.write(5, 0, &payload(0, count, 5)).unwrap();
    }
    let mut reader = LaneReader::from_now(lane);
    let mut block = Block::default();
    writer.write(5, 0, &payload(1, 1, 5)).unwrap();
    reader.read_block(&mut block, 1 << 20);
    assert_eq!(block.peek().map(check), Some((1, 1)));
    assert_eq!((reader.counts().read, reader.counts().gaps), (1, 0));
}

#[test]
fn a_full_register_refuses_one_more_reader() {
    let register = LaneReaders::anonymous(1).unwrap().remove(0);
    let slots: HashSet<_> = (0..64).map(|_| register.join(0).unwrap()).collect();
    assert_eq!(slots.len(), 64);
    assert!(matches!(register.join(0), Err(RingError::Readers)));
    register.leave(17);
    assert_eq!(register.join(0).unwrap(), 17);
}

#[test]
fn impossible_lane_sizes_are_refused() {
    for size_bytes in [0, 1, 4096, LANE_SIZE_MIN_BYTES + 8, 1 << 40] {
        let error = layout(size_bytes, Preference::FastReader)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&size_bytes.to_string()), "{error}");
    }
}

#[test]
fn two_readers_of_a_lane_read_the_same_records() {
    let started = Instant::now();
    run(
        &one_lane(1 << 20, Preference::FastReader),
        2,
        2_000,
        &[Manner::Eager, Manner::Eager],
    );
    assert!(started.elapsed() < Duration::from_secs(60));
}
