//! Cost of a packet in a capture file: nanoseconds of CPU and bytes per second, written and read.
//!
//! `cargo bench --workspace --bench trace_files [-- MILLION_PACKETS [DIRECTORY]]`

use parshall_core::trace::*;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

/// CPU time of this thread.
fn cpu_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Bytes like those of packets: a header that changes little, and a payload that compresses by half.
fn packets(bytes: usize) -> Vec<Vec<u8>> {
    let mut state = 88_172_645_463_325_252u64;
    (0..1024u32)
        .map(|number| {
            let mut packet: Vec<u8> = (0..bytes)
                .map(|at| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    if at < 54 {
                        at as u8
                    } else {
                        state as u8 & 0x0f
                    }
                })
                .collect();
            packet[..4].copy_from_slice(&number.to_be_bytes());
            packet
        })
        .collect()
}

fn write(path: &Path, options: &WriterOptions, packets: &[Vec<u8>], count: u64) -> (f64, f64) {
    let interface = Interface::default();
    let mut writer =
        Writer::create(path, options, &Section::default(), &[interface]).expect("a file");
    let (cpu, wall) = (cpu_ns(), Instant::now());
    for number in 0..count {
        let captured = &packets[number as usize % packets.len()];
        writer
            .write(black_box(&Packet {
                time_ns: 1_700_000_000_000_000_000 + number * 1000,
                direction: Direction::In,
                wire_bytes: captured.len() as u32,
                captured,
                ..Packet::default()
            }))
            .expect("room");
    }
    writer
        .finish(&[Statistics::default()])
        .result
        .expect("room");
    let wall_s = wall.elapsed().as_secs_f64();
    ((cpu_ns() - cpu) as f64 / count as f64, wall_s)
}

fn read(path: &Path) -> (u64, f64, f64) {
    let (cpu, wall) = (cpu_ns(), Instant::now());
    let mut reader = Reader::open(path).expect("a file");
    let mut sum = 0;
    while let Some(packet) = reader.next().expect("a good file") {
        sum += packet.time_ns ^ u64::from(packet.captured[0]);
    }
    black_box(sum);
    let packets = reader.packets();
    let cpu_ns = (cpu_ns() - cpu) as f64 / packets as f64;
    (packets, cpu_ns, wall.elapsed().as_secs_f64())
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|text| text != "--bench")
        .collect();
    let count = 1_000_000
        * arguments
            .first()
            .map_or(2, |text| text.parse().expect("a number"));
    let directory =
        tempfile::tempdir_in(arguments.get(1).map_or("/tmp", String::as_str)).expect("a directory");
    println!(
        "{:>8} {:>7} {:>6} {:>10}  {:>8} {:>6} {:>9}  {:>8} {:>6} {:>9}",
        "target",
        "format",
        "bytes",
        "compress",
        "write ns",
        "GB/s",
        "file/raw",
        "read ns",
        "GB/s",
        "packets/s"
    );
    for bytes in [64, 645, 1500] {
        let packets = packets(bytes);
        for (target, format, compression) in [
            ("null", Format::Pcapng, Compression::None),
            ("null", Format::Pcap, Compression::None),
            ("file", Format::Pcapng, Compression::None),
            ("file", Format::Pcap, Compression::None),
            ("file", Format::Pcapng, Compression::Zstd),
            ("file", Format::Pcapng, Compression::Gzip),
        ] {
            let count = if compression == Compression::None {
                count
            } else {
                count / 10
            };
            let options = WriterOptions {
                format,
                compression,
                ..WriterOptions::default()
            };
            let path = match target {
                "null" => "/dev/null".into(),
                _ => directory.path().join("trace"),
            };
            let (write_ns, write_s) = write(&path, &options, &packets, count);
            let raw_bytes = count as f64 * bytes as f64;
            print!(
                "{target:>8} {:>7} {bytes:>6} {:>10}  {write_ns:>8.1} {:>6.2}",
                format!("{format:?}"),
                format!("{compression:?}"),
                raw_bytes / write_s / 1e9
            );
            if target == "null" {
                println!();
                continue;
            }
            let file_bytes = path.metadata().expect("a file").len() as f64;
            let (read_packets, read_ns, read_s) = read(&path);
            assert_eq!(read_packets, count);
            println!(
                " {:>9.2}  {read_ns:>8.1} {:>6.2} {:>9.2e}",
                file_bytes / raw_bytes,
                raw_bytes / read_s / 1e9,
                count as f64 / read_s
            );
        }
    }
}
