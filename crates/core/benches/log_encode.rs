//! What a record costs on its way into the log: `cargo bench -p parshall-core --bench log_encode`.
//!
//! Prints nanoseconds of CPU a record for the transposition and for encoding with compression, and
//! the bytes a record takes, for both efforts and several batch sizes, and the same for arrow's own
//! writer. With `-- --columns`, every column alone under several settings of zstd.

use arrow::ipc::CompressionType;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use parshall_core::abi::TcpStateRecord;
use parshall_core::log::columns::{COLUMNS, Scale};
use parshall_core::log::runs::Runs;
use parshall_core::log::{BatchEncoder, Effort, LogHeader, LogReader, LogWriter, StateColumns};
use std::hint::black_box;
use std::time::Instant;
use zstd::bulk::Compressor;

/// A small fixed generator, so that every run encodes the same bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// Bulk senders at 1 million packets a second together: data out in bursts of up to 16 segments,
/// acknowledgements in, the congestion window growing and shrinking, the RTT wandering.
fn generate(records: usize, flows: u32, random: &mut Random) -> Vec<TcpStateRecord> {
    let mut states: Vec<TcpStateRecord> = (1..=flows)
        .map(|flow| TcpStateRecord {
            flow,
            cwnd_segments: 10 + flow,
            ssthresh_segments: 0x7fff_ffff,
            mss_bytes: 1448,
            srtt_us_x8: 8 * 20_000,
            mdev_us_x4: 4 * 500,
            min_rtt_us: 19_000 + flow,
            rto_jiffies: 220,
            snd_una: random.next() as u32,
            snd_wnd_bytes: 3_145_728,
            rcv_nxt: random.next() as u32,
            rcv_wnd_bytes: 65_536,
            sndbuf_bytes: 4_194_304,
            rcvbuf_bytes: 131_072,
            window_scales: 0x79,
            pacing_rate_Bps: 12_500_000,
            rate_interval_us: 20_000,
            state: 1,
            ..Default::default()
        })
        .collect();
    for state in &mut states {
        state.snd_nxt = state.snd_una;
    }
    let mut out = Vec::with_capacity(records + 16);
    let mut time_ns = 5_000_000_000_000u64;
    while out.len() < records {
        let state = &mut states[random.below(u64::from(flows)) as usize];
        for _ in 0..=random.below(8) {
            time_ns += 300 + random.below(1400);
            state.time_ns = time_ns;
            state.flow_seq += 1;
            if state.packets_out < state.cwnd_segments && random.below(3) > 0 {
                let segments = 1 + random.below(16) as u32;
                state.direction = 1;
                state.pkt_seq = state.snd_nxt;
                state.pkt_ack = state.rcv_nxt;
                state.payload_bytes = segments * 1448;
                state.gso_segs = segments as u16;
                state.pkt_flags = if random.below(4) == 0 { 0x18 } else { 0x10 };
                state.snd_nxt = state.snd_nxt.wrapping_add(state.payload_bytes);
                state.packets_out += segments;
                state.sndbuf_used_bytes = state.packets_out * 2304;
            } else {
                let acked = state.packets_out.min(1 + random.below(8) as u32);
                state.direction = 0;
                state.pkt_seq = state.rcv_nxt;
                state.packets_out -= acked;
                state.snd_una = state.snd_una.wrapping_add(acked * 1448);
                state.pkt_ack = state.snd_una;
                state.payload_bytes = 0;
                state.gso_segs = 1;
                state.pkt_flags = 0x10;
                state.delivered += acked;
                state.rate_delivered = 20 + random.below(20) as u32;
                state.rate_interval_us = 19_000 + random.below(3000) as u32;
                let sample = 19_000 + random.below(4000) as i64;
                let error = sample - i64::from(state.srtt_us_x8 >> 3);
                state.srtt_us_x8 = (i64::from(state.srtt_us_x8) + error) as u32;
                state.mdev_us_x4 = (i64::from(state.mdev_us_x4) + error.abs()
                    - i64::from(state.mdev_us_x4 >> 2)) as u32;
                if random.below(40) == 0 {
                    state.cwnd_segments += 1;
                }
                if random.below(20_000) == 0 {
                    state.ssthresh_segments = state.cwnd_segments * 7 / 10;
                    state.cwnd_segments = state.ssthresh_segments.max(2);
                    state.total_retrans += 1;
                    state.ca_state = 3;
                } else if random.below(200) == 0 {
                    state.ca_state = 0;
                }
                state.pacing_rate_Bps = u64::from(state.cwnd_segments) * 1448 * 1_200_000
                    / u64::from(state.srtt_us_x8 >> 3);
            }
            out.push(*state);
        }
    }
    out.truncate(records);
    out
}

/// CPU time of this thread; the machine may be shared, wall time would count the others.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Cost and size of every column alone: where the encoding spends its time.
fn columns_alone(records: &[TcpStateRecord], batch_rows: usize) {
    let mut compressors = [
        ("level 1", Compressor::new(1)),
        ("level -1", Compressor::new(-1)),
        ("level -5", Compressor::new(-5)),
    ]
    .map(|(name, compressor)| (name, compressor.expect("zstd knows these settings")));
    print!("{:>20}", "column");
    for (name, _) in &compressors {
        print!("  {name:>9} ns  bytes");
    }
    println!();
    let mut columns = StateColumns::new(batch_rows, Scale::new(0, 1000));
    let mut sums = vec![[(0u64, 0usize); 3]; COLUMNS.len()];
    let mut out = vec![0u8; 1 << 20];
    let (mut runs, mut room) = (Runs::default(), Vec::new());
    for batch in records.chunks_exact(batch_rows) {
        columns.clear();
        columns.append(batch);
        let mut sums = sums.iter_mut();
        let _ = columns.for_each(&mut runs, |_, runs| {
            let values = runs.every_row(&mut room);
            for (sum, (_, compressor)) in sums.next().into_iter().flatten().zip(&mut compressors) {
                let start = cpu_ns();
                let bytes = compressor
                    .compress_to_buffer(values, out.as_mut_slice())
                    .expect("fits");
                sum.0 += cpu_ns() - start;
                sum.1 += bytes;
            }
            Ok::<(), ()>(())
        });
    }
    let rows = (records.len() / batch_rows * batch_rows) as f64;
    for (column, sums) in COLUMNS.iter().zip(&sums) {
        print!("{:>20}", column.name);
        for (ns, bytes) in sums {
            print!(
                "  {:>12.1} {:>6.2}",
                *ns as f64 / rows,
                *bytes as f64 / rows
            );
        }
        println!();
    }
}

struct Measured {
    transpose_ns: f64,
    encode_ns: f64,
    bytes: f64,
}

fn measure(records: &[TcpStateRecord], effort: Effort, batch_rows: usize) -> Measured {
    let mut columns = StateColumns::new(batch_rows, Scale::new(1_700_000_000_000_000_000, 1000));
    let mut encoder = BatchEncoder::new().expect("memory for zstd");
    let mut out = Vec::new();
    let (mut transpose_ns, mut encode_ns, mut bytes) = (0, 0, 0);
    // The reader of the ring hands over blocks of some hundred records that it has just copied.
    let mut hot = vec![TcpStateRecord::default(); 512];
    for block in records.chunks(hot.len()) {
        let hot = &mut hot[..block.len()];
        hot.copy_from_slice(block);
        let mut rest = &*hot;
        while !rest.is_empty() {
            let start = cpu_ns();
            let taken = columns.append(black_box(rest));
            let middle = cpu_ns();
            transpose_ns += middle - start;
            rest = &rest[taken..];
            if columns.is_full() {
                out.clear();
                encoder.encode(&columns, effort, &mut out).expect("encodes");
                bytes += black_box(&out).len();
                columns.clear();
                encode_ns += cpu_ns() - middle;
            }
        }
    }
    let rows = (records.len() / batch_rows * batch_rows) as f64;
    Measured {
        transpose_ns: transpose_ns as f64 / rows,
        encode_ns: encode_ns as f64 / rows,
        bytes: bytes as f64 / rows,
    }
}

/// The same batches through arrow's own writer.
fn arrow_writer(
    records: &[TcpStateRecord],
    batch_rows: usize,
    compression: CompressionType,
    level: Option<i32>,
) -> (f64, f64) {
    let header = LogHeader {
        environment: "{}".into(),
        clock: r#"{"monotonic_offset_ns":0}"#.into(),
        options: "{}".into(),
        hz: 1000,
    };
    let mut writer = LogWriter::create_with(Vec::new(), &header, batch_rows).expect("a writer");
    writer.push_block(records).expect("memory takes all");
    writer.finish().expect("memory takes all");
    let log =
        LogReader::new(std::io::Cursor::new(writer.into_inner()), "bench".into()).expect("a log");
    let options = IpcWriteOptions::default()
        .try_with_compression(Some(compression))
        .expect("compiled in");
    let options = match level {
        Some(level) => options
            .try_with_compression_level(Some(level))
            .expect("a level"),
        None => options,
    };
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &log.schema(), options).expect("a writer");
    let mut encode_ns = 0;
    for batch in log {
        let batch = batch.expect("a batch");
        let start = cpu_ns();
        writer.write(black_box(&batch)).expect("memory takes all");
        encode_ns += cpu_ns() - start;
    }
    let bytes = writer.get_ref().len();
    (
        encode_ns as f64 / records.len() as f64,
        bytes as f64 / records.len() as f64,
    )
}

fn main() {
    if std::env::args().any(|argument| argument == "--columns") {
        for flows in [1, 100] {
            println!("{flows} flows");
            let records = generate(1 << 18, flows, &mut Random(88_172_645_463_325_252));
            columns_alone(&records, 8192);
        }
        return;
    }
    println!(
        "{:>6} {:>6} {:>9} {:>10} {:>9} {:>9} {:>7}",
        "flows", "rows", "effort", "transpose", "encode", "sum ns", "bytes"
    );
    let started = Instant::now();
    for flows in [1, 10, 100] {
        let records = generate(1 << 19, flows, &mut Random(88_172_645_463_325_252));
        for effort in [Effort::Fast, Effort::Thorough] {
            for batch_rows in [2048, 4096, 8192, 16_384, 32_768] {
                let best = (0..3)
                    .map(|_| measure(&records, effort, batch_rows))
                    .min_by(|a, b| {
                        (a.transpose_ns + a.encode_ns).total_cmp(&(b.transpose_ns + b.encode_ns))
                    })
                    .expect("three runs");
                println!(
                    "{flows:>6} {batch_rows:>6} {:>9} {:>10.1} {:>9.1} {:>9.1} {:>7.1}",
                    format!("{effort:?}"),
                    best.transpose_ns,
                    best.encode_ns,
                    best.transpose_ns + best.encode_ns,
                    best.bytes
                );
            }
        }
    }
    println!("arrow's writer, 8192 rows, 10 flows");
    let records = generate(1 << 19, 10, &mut Random(88_172_645_463_325_252));
    for (name, compression, level) in [
        ("zstd 3", CompressionType::ZSTD, Some(3)),
        ("zstd 1", CompressionType::ZSTD, Some(1)),
        ("zstd -5", CompressionType::ZSTD, Some(-5)),
        ("lz4", CompressionType::LZ4_FRAME, None),
    ] {
        let (ns, bytes) = (0..3)
            .map(|_| arrow_writer(&records, 8192, compression, level))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("three runs");
        println!("{name:>23} {:>10} {ns:>9.1} {:>9} {bytes:>7.1}", "", "");
    }
    println!("took {:.1} s", started.elapsed().as_secs_f64());
}
