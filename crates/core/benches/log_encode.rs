//! CPU time to write a record into the log:
//! `cargo bench -p parshall-core --bench log_encode -- FILE...`
//!
//! Each FILE is a TCP log of real traffic, so that the encoding is not tuned to synthetic records. Prints
//! nanoseconds of CPU a record for the transposition and for the encoding, and the bytes of a record, with
//! every codec; and the encoding and the bytes of arrow's own writer. Of three runs the fastest counts.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow::record_batch::RecordBatch;
use parshall_core::abi::{NO_SAMPLE, SSTHRESH_INFINITE, TcpStateRecord};
use parshall_core::tcp_log::{BatchEncoder, Codec, LogReader, Scale, StateColumns};
use std::hint::black_box;

const BATCH_ROWS: usize = 8192;
/// The clock of the records, so that times of a log become positive.
const OFFSET_NS: i64 = 1_700_000_000_000_000_000;
const HZ: u32 = 1000;
/// Packets of a sample of the delivery rate; the log keeps the rate only.
const SAMPLE_SEGMENTS: u32 = 1000;

/// Records that give the rows of a batch, up to the rounding of the log.
fn records_of(batch: &RecordBatch) -> Vec<TcpStateRecord> {
    let mut records = vec![TcpStateRecord::default(); batch.num_rows()];
    let column = |name: &str| batch.column_by_name(name).expect("a column of the format");
    macro_rules! set {
        ($type:ty, $($field:ident = $name:expr, |$value:ident| $map:expr, $null:expr;)*) => {$({
            let values = column($name).as_primitive::<$type>();
            for (row, record) in records.iter_mut().enumerate() {
                let $value = values.value(row);
                record.$field = if values.is_valid(row) { $map } else { $null };
            }
        })*};
        ($type:ty: $($field:ident)*) => {
            set! { $type, $($field = stringify!($field), |value| value, 0;)* }
        };
    }
    set! { UInt32Type: flow cwnd_segments mss_bytes snd_una snd_nxt snd_wnd_bytes rcv_nxt rcv_wnd_bytes packets_out
    retrans_out lost_out sacked_out total_retrans delivered delivered_ce sndbuf_bytes sndbuf_used_bytes
    rcvbuf_bytes rcvbuf_used_bytes pkt_seq pkt_ack payload_bytes }
    set! { UInt16Type: pkt_flags gso_segs }
    set! { UInt64Type: flow_seq }
    set! { UInt32Type,
        ssthresh_segments = "ssthresh_segments", |value| value, SSTHRESH_INFINITE;
        min_rtt_us = "min_rtt_us", |value| value, NO_SAMPLE;
        srtt_us_x8 = "srtt_us", |value| value << 3, 0;
        mdev_us_x4 = "rttvar_us", |value| value << 2, 0;
        rto_jiffies = "rto_us", |value| value / (1_000_000 / HZ), 0;
    }
    set! { UInt64Type, pacing_rate_Bps = "pacing_rate_Bps", |value| value, u64::MAX; }
    set! { TimestampNanosecondType, time_ns = "time_ns", |value| value.wrapping_sub(OFFSET_NS) as u64, 0; }
    set! { UInt8Type, window_scales = "snd_scale", |value| value, 0; }
    let rcv_scales = column("rcv_scale").as_primitive::<UInt8Type>().values();
    let rates = column("delivery_rate_Bps")
        .as_primitive::<UInt64Type>()
        .values();
    let app_limited = column("app_limited").as_boolean();
    let index = |name: &str, row: usize| {
        let keys = column(name).as_dictionary::<Int8Type>().keys();
        keys.value(row) as u8
    };
    for (row, record) in records.iter_mut().enumerate() {
        record.window_scales |= rcv_scales[row] << 4;
        record.app_limited = u8::from(app_limited.value(row));
        record.direction = index("direction", row);
        record.event = index("event", row);
        record.state = index("state", row);
        record.ca_state = index("ca_state", row);
        let sample_bytes = u64::from(SAMPLE_SEGMENTS) * u64::from(record.mss_bytes);
        if let Some(interval_us) = (sample_bytes * 1_000_000).checked_div(rates[row]) {
            (record.rate_delivered, record.rate_interval_us) =
                (SAMPLE_SEGMENTS, interval_us as u32);
        }
    }
    records
}

/// CPU time of this thread; the machine may be shared, wall time would include other processes.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds and bytes of a record.
#[derive(Clone, Copy)]
struct Measured {
    transpose_ns: f64,
    encode_ns: f64,
    bytes: f64,
}

fn fastest(measure: impl Fn() -> Measured) -> Measured {
    let runs = [measure(), measure(), measure()];
    let sum_ns = |run: &Measured| run.transpose_ns + run.encode_ns;
    let [first, rest @ ..] = runs;
    rest.into_iter().fold(first, |best, run| {
        if sum_ns(&run) < sum_ns(&best) {
            run
        } else {
            best
        }
    })
}

/// The log's own writer.
fn ours(records: &[TcpStateRecord], codec: Codec) -> Measured {
    let mut columns = StateColumns::new(BATCH_ROWS, Scale::new(OFFSET_NS, HZ));
    let mut encoder = BatchEncoder::new().expect("memory for zstd");
    let mut out = Vec::new();
    let (mut transpose_ns, mut encode_ns, mut bytes) = (0, 0, 0);
    // The reader of the ring passes blocks of some hundred records that it has just copied.
    let mut hot = vec![TcpStateRecord::default(); 512];
    for block in records.chunks(hot.len()) {
        let hot = &mut hot[..block.len()];
        hot.copy_from_slice(block);
        let start = cpu_ns();
        columns.append(black_box(hot));
        let middle = cpu_ns();
        transpose_ns += middle - start;
        if columns.is_full() {
            out.clear();
            encoder.encode(&columns, codec, &mut out).expect("encodes");
            bytes += black_box(&out).len();
            columns.clear();
            encode_ns += cpu_ns() - middle;
        }
    }
    let rows = (records.len() / BATCH_ROWS * BATCH_ROWS) as f64;
    Measured {
        transpose_ns: transpose_ns as f64 / rows,
        encode_ns: encode_ns as f64 / rows,
        bytes: bytes as f64 / rows,
    }
}

/// arrow's writer with the same batches.
fn arrows(batches: &[RecordBatch], compression: CompressionType, level: Option<i32>) -> Measured {
    let options = IpcWriteOptions::default()
        .try_with_compression(Some(compression))
        .and_then(|options| match level {
            Some(level) => options.try_with_compression_level(Some(level)),
            None => Ok(options),
        })
        .expect("compiled in");
    let schema = batches[0].schema();
    let mut writer =
        StreamWriter::try_new_with_options(Vec::new(), &schema, options).expect("a writer");
    let start = cpu_ns();
    for batch in batches {
        writer.write(black_box(batch)).expect("memory takes all");
    }
    let encode_ns = cpu_ns() - start;
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    Measured {
        transpose_ns: 0.0,
        encode_ns: encode_ns as f64 / rows as f64,
        bytes: writer.get_ref().len() as f64 / rows as f64,
    }
}

fn main() {
    // `cargo bench` adds options of its own.
    let files = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'));
    for file in files {
        let log = LogReader::open(&file).expect("a log");
        let batches: Vec<_> = log.map(|batch| batch.expect("rows")).collect();
        let records: Vec<_> = batches.iter().flat_map(records_of).collect();
        assert!(records.len() >= BATCH_ROWS, "{file}: less than a batch");
        println!(
            "{file}: {} records\n{:>12} transpose ns  encode ns   bytes",
            records.len(),
            ""
        );
        let print = |name: &str, measured: Measured| {
            let Measured {
                transpose_ns,
                encode_ns,
                bytes,
            } = measured;
            println!("{name:>12} {transpose_ns:>12.1} {encode_ns:>10.1} {bytes:>7.1}");
        };
        print("lz4", fastest(|| ours(&records, Codec::Lz4)));
        print("zstd 1", fastest(|| ours(&records, Codec::Zstd)));
        print("none", fastest(|| ours(&records, Codec::None)));
        // Batches of the file may be short; the comparison is with full ones.
        let whole =
            arrow::compute::concat_batches(&batches[0].schema(), &batches).expect("one schema");
        let full: Vec<_> = (0..whole.num_rows() / BATCH_ROWS)
            .map(|index| whole.slice(index * BATCH_ROWS, BATCH_ROWS))
            .collect();
        let (lz4, zstd) = (CompressionType::LZ4_FRAME, CompressionType::ZSTD);
        print("arrow lz4", fastest(|| arrows(&full, lz4, None)));
        print("arrow zstd 1", fastest(|| arrows(&full, zstd, Some(1))));
    }
}
