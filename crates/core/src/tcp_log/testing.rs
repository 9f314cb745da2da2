//! Headers, records and flows for tests.

use super::compression::Compression;
use super::flow::FlowRow;
use super::header::LogHeader;
use super::writer::LogWriter;
use crate::abi::{TcpFlowRecord, TcpStateRecord, read_plain};
use crate::ledger::Ledger;
use arrow::record_batch::RecordBatch;

/// A header with a clock offset of 1000 s.
pub fn header() -> LogHeader {
    LogHeader {
        environment: r#"{"kernel":{"release":"6.18.0"}}"#.into(),
        clock: r#"{"clock":"CLOCK_REALTIME","monotonic_offset_ns":1000000000000}"#.into(),
        options: "{}".into(),
        hz: 1000,
        part: None,
    }
}

/// A record made of arbitrary bytes.
pub fn record_of(bytes: &[u8; size_of::<TcpStateRecord>()]) -> TcpStateRecord {
    read_plain(bytes).unwrap_or_default()
}

/// Flow `flow` from 10.0.0.1:5000 to 10.0.0.2:80.
pub fn flow(flow: u32) -> FlowRow {
    let mut record = TcpFlowRecord {
        flow,
        local_port: 5000,
        remote_port: 80,
        ..Default::default()
    };
    record.local_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 1]);
    record.remote_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 2]);
    record.congestion_control[..5].copy_from_slice(b"cubic");
    FlowRow::new(&record, 0)
}

/// A whole log in memory: batches of `batch_rows`, one tick after every `tick_rows` records.
pub fn log_of(records: &[TcpStateRecord], batch_rows: usize, tick_rows: usize) -> Vec<u8> {
    log_compressed(records, batch_rows, tick_rows, Compression::Auto)
}

/// As [`log_of`], with a compression.
pub fn log_compressed(
    records: &[TcpStateRecord],
    batch_rows: usize,
    tick_rows: usize,
    compression: Compression,
) -> Vec<u8> {
    let mut writer = LogWriter::create_with(Vec::new(), &header(), batch_rows)
        .unwrap()
        .with_compression(compression);
    for (number, chunk) in records.chunks(tick_rows).enumerate() {
        writer.push_block(chunk).unwrap();
        writer
            .tick(vec![flow(number as u32 + 1)], &Ledger::default(), false)
            .unwrap();
    }
    writer
        .tick(
            Vec::new(),
            &Ledger {
                complete: true,
                ..Default::default()
            },
            true,
        )
        .unwrap();
    writer.finish().unwrap();
    writer.into_inner()
}

/// Whether batches have the first rows of others, column by column.
pub fn begins_with(whole: &[RecordBatch], batches: &[RecordBatch]) -> bool {
    let names = |batch: &RecordBatch| -> Vec<String> {
        let fields = batch.schema_ref().fields().iter();
        fields.map(|field| field.name().clone()).collect()
    };
    batches.len() <= whole.len()
        && batches
            .iter()
            .zip(whole)
            .all(|(batch, good)| batch.columns() == good.columns() && names(batch) == names(good))
}

/// Records of three flows, a microsecond apart.
pub fn some_records(count: usize) -> Vec<TcpStateRecord> {
    (0..count as u32)
        .map(|number| TcpStateRecord {
            time_ns: u64::from(number) * 1000,
            flow: number % 3 + 1,
            flow_seq: u64::from(number),
            snd_nxt: number.wrapping_mul(1448),
            srtt_us_x8: 80_000 + number % 17,
            state: 1,
            event: u8::from(number % 5 == 0),
            ..Default::default()
        })
        .collect()
}
