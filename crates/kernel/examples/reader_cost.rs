//! What a packet costs a reader: nanoseconds of CPU from the ring into a pcapng file at `/dev/null`.
//!
//! `cargo run --release --example reader_cost [ROUNDS [BYTES...]]`. The ring is in memory of this
//! process, larger than the caches, and filled before each round by another thread, so that nothing
//! but the reader is measured. No privileges are needed.

use std::path::Path;

use parshall_core::abi::{
    CAPTURE_SLACK_BYTES, CaptureRecord, RECORD_PACKET, RecordHeader, plain_bytes,
};
use parshall_core::trace::{Direction, Interface, Packet, Section, WriterOptions};
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::kept_ring::Start;
use parshall_kernel::capture::sink::{Sink, Target};
use parshall_kernel::clock::thread_cpu_s;
use parshall_kernel::ring::memory::Lane;
use parshall_kernel::ring::writer::LaneWriter;
use parshall_kernel::ring::{Preference, layout_with_slack};

const RING_BYTES: u64 = 128 << 20;
const LANES: usize = 2;

/// Fills a lane with packets of one size, less than a lap; returns how many.
fn fill(lane: &Lane, bytes: usize) -> u64 {
    let mut record = CaptureRecord {
        time_ns: 1,
        subscribers: 1,
        wire_length_bytes: bytes as u32,
        captured_length_bytes: bytes as u32,
        gso_segs: 1,
        ..CaptureRecord::default()
    };
    let words = (size_of::<CaptureRecord>() + bytes).div_ceil(8);
    let packets = RING_BYTES * 15 / 16 / (words as u64 * 8);
    let writer = LaneWriter::new(lane.clone(), None);
    let mut payload = vec![0x5a5a_5a5a_5a5a_5a5a; words - size_of::<RecordHeader>() / 8];
    for _ in 0..packets {
        record.time_ns += 100;
        let head = &plain_bytes(&record)[size_of::<RecordHeader>()..];
        for (word, bytes) in payload.iter_mut().zip(head.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        writer.write(RECORD_PACKET, 0, &payload);
    }
    packets
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds = arguments
        .next()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(5);
    let mut sizes: Vec<usize> = arguments.filter_map(|bytes| bytes.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![64, 645, 1500];
    }
    let layout = layout_with_slack(RING_BYTES, Preference::FastReader, CAPTURE_SLACK_BYTES)
        .unwrap_or_else(|error| panic!("{error}"));
    let lanes = Lane::anonymous(LANES, layout).unwrap_or_else(|error| panic!("{error}"));
    let interfaces = [Interface::default()];
    let options = WriterOptions::default();
    for bytes in sizes {
        let mut costs_ns = Vec::new();
        for _ in 0..rounds {
            let target = Target::File {
                path: Path::new("/dev/null").into(),
                options,
            };
            let target = target
                .open(&mut || false)
                .unwrap_or_else(|error| panic!("{error}"));
            let mut sink = Sink::begin(target, &Section::default(), &interfaces)
                .unwrap_or_else(|error| panic!("{error}"));
            let starts: Vec<Start> = lanes
                .iter()
                .map(|lane| Start {
                    position: lane
                        .reserved_bytes()
                        .load(std::sync::atomic::Ordering::Acquire),
                    records: lane.records().load(std::sync::atomic::Ordering::Acquire),
                })
                .collect();
            let mut collector = Collector::new(&lanes, &starts, None, 1, 262_144);
            let packets = std::thread::scope(|scope| scope.spawn(|| fill(&lanes[0], bytes)).join())
                .unwrap_or_else(|_| panic!("the writer died"));
            let before_s = thread_cpu_s();
            let mut taken = 0;
            while taken < packets {
                let now = collector.collect(u64::MAX, |record, bytes| {
                    let packet = Packet {
                        interface: u32::from(record.interface),
                        time_ns: record.time_ns,
                        direction: Direction::In,
                        wire_bytes: record.wire_length_bytes,
                        captured: bytes,
                        ..Packet::default()
                    };
                    sink.write(&packet)
                        .unwrap_or_else(|error| panic!("{error}"));
                });
                assert!(now > 0, "{taken} of {packets} packets were read");
                taken += now as u64;
            }
            costs_ns.push((thread_cpu_s() - before_s) * 1e9 / packets as f64);
        }
        costs_ns.sort_unstable_by(f64::total_cmp);
        println!(
            "{bytes:5} bytes: {:6.1} ns a packet ({:.1} to {:.1})",
            costs_ns[costs_ns.len() / 2],
            costs_ns[0],
            costs_ns[costs_ns.len() - 1]
        );
    }
}
