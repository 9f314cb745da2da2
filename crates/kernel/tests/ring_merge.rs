//! The lanes of a ring as one stream: in order of time, whole, up to a horizon. No privileges are needed.

use parshall_kernel::ring::memory::Lane;
use parshall_kernel::ring::merge::{MergedLanes, time_ns};
use parshall_kernel::ring::reader::{LaneReader, Wanted};
use parshall_kernel::ring::registry::LaneReaders;
use parshall_kernel::ring::writer::LaneWriter;
use parshall_kernel::ring::{LANE_SIZE_MIN_BYTES, Preference, layout};
use proptest::prelude::*;

/// Takes what is not younger than the horizon; returns the time and the number of each record.
fn take(merged: &mut MergedLanes, horizon_ns: u64) -> Vec<(u64, u64)> {
    let mut taken = Vec::new();
    merged.refill();
    while let Some((lane, limit_ns)) = merged.oldest(horizon_ns) {
        loop {
            let block = merged.block(lane);
            match block.peek() {
                Some(record) if time_ns(record) <= limit_ns => {
                    taken.push((time_ns(record), record[4]));
                }
                _ => break,
            }
            block.advance();
        }
    }
    taken
}

proptest! {
    /// Writes records of a few lanes in pieces, each given as lane and time since the previous one,
    /// and reads in between, up to the time of the last record.
    #[test]
    fn lanes_give_one_stream_in_order_of_time(
        records in prop::collection::vec((0..3_usize, 0..4_u64), 0..400),
        pieces in 1..5_usize,
        block_bytes in 8..2000_usize,
    ) {
        let lanes =
            Lane::anonymous(3, layout(LANE_SIZE_MIN_BYTES, Preference::FastReader).unwrap()).unwrap();
        let registers = LaneReaders::anonymous(3).unwrap();
        let mut merged = MergedLanes::new(block_bytes, Wanted::default());
        for (lane, register) in lanes.iter().zip(&registers) {
            let slot = register.join(0).unwrap();
            merged.add(LaneReader::from_start(lane.clone()), Some((register.clone(), slot)));
        }
        let writers: Vec<_> =
            lanes.iter().map(|lane| LaneWriter::new(lane.clone(), None)).collect();
        let (mut now_ns, mut number, mut taken) = (0, 0, Vec::new());
        for piece in records.chunks(records.len().div_ceil(pieces).max(1)) {
            for (lane, gap_ns) in piece {
                now_ns += gap_ns;
                writers[*lane].write(0, 0, &[now_ns, number]).unwrap();
                number += 1;
            }
            // Others may still write records of this time.
            taken.extend(take(&mut merged, now_ns.saturating_sub(1)));
            prop_assert!(taken.iter().all(|(time_ns, _)| *time_ns < now_ns.max(1)));
        }
        taken.extend(take(&mut merged, u64::MAX));
        prop_assert!(taken.is_sorted_by_key(|(time_ns, _)| *time_ns));
        let mut numbers: Vec<u64> = taken.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (0..number).collect::<Vec<_>>());
        prop_assert!(merged.is_caught_up());
        merged.settle();
        prop_assert_eq!(merged.sequence_gaps(), 0);
        for (lane, register) in lanes.iter().zip(&registers) {
            prop_assert_eq!(register.slowest(0), LaneReader::from_now(lane.clone()).position());
        }
    }
}

#[test]
fn overwritten_records_of_all_lanes_are_counted() {
    let lanes = Lane::anonymous(
        2,
        layout(LANE_SIZE_MIN_BYTES, Preference::FastReader).unwrap(),
    )
    .unwrap();
    let mut merged = MergedLanes::new(4096, Wanted::default());
    for lane in &lanes {
        merged.add(LaneReader::from_start(lane.clone()), None);
    }
    // Records of 40 bytes: twice what the first lane holds.
    let written = 2 * LANE_SIZE_MIN_BYTES / 40;
    let writers: Vec<_> = lanes
        .iter()
        .map(|lane| LaneWriter::new(lane.clone(), None))
        .collect();
    for number in 0..written {
        writers[0].write(0, 0, &[number, number]).unwrap();
    }
    writers[1].write(0, 0, &[0, written]).unwrap();
    let taken = take(&mut merged, u64::MAX);
    assert!(!merged.has_reached(&[u64::MAX, 0]));
    assert!(merged.has_reached(&[0, 0]));
    merged.settle();
    assert!(merged.sequence_gaps() > 0);
    assert_eq!(merged.sequence_gaps() + taken.len() as u64, written + 1);
}
