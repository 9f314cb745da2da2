//! The retransmissions of a log as a table, read in one pass.

use super::error::LogError;
use super::reader::LogReader;
use super::retransmission::{CAUSE_NAMES, EVIDENCE_NAMES, FlowFacts, Judge, Retransmission, Row};
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, DictionaryArray, Int8Array,
    StringArray, TimestampNanosecondArray, UInt16Array, UInt32Array,
};
use arrow::datatypes::{Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use std::io::{Read, Seek};
use std::sync::Arc;

/// The columns that [`retransmissions`] reads.
const COLUMNS_READ: [&str; 16] = [
    "time_ns",
    "flow",
    "event",
    "ca_state",
    "snd_una",
    "sacked_out",
    "min_rtt_us",
    "pkt_seq",
    "pkt_flags",
    "payload_bytes",
    "gso_segs",
    "timer",
    "dupthresh_segments",
    "reordering_seen",
    "can_undo",
    "original_acked",
];

/// Reads a log and judges its retransmissions.
///
/// # Errors
/// As [`LogReader::next`] and [`LogReader::survey`].
pub fn retransmissions<R: Read + Seek>(
    mut reader: LogReader<R>,
) -> Result<Vec<Retransmission>, LogError> {
    reader.survey()?;
    let flows = reader.take_flows();
    let is_inbound_logged = serde_json::from_str::<serde_json::Value>(&reader.header().options)
        .ok()
        .and_then(|options| Some(options.get("direction")?.as_str()? != "out"))
        .unwrap_or(true);
    let mut judge = Judge::new(|flow| FlowFacts {
        sack: flows.get(&flow).is_some_and(|row| row.sack),
        is_inbound_logged,
    });
    for batch in reader.select(&COLUMNS_READ)? {
        judge_batch(&batch?, &mut judge);
    }
    Ok(judge.finish())
}

fn judge_batch<F: Fn(u32) -> FlowFacts>(batch: &RecordBatch, judge: &mut Judge<F>) -> Option<()> {
    let column = |name: &str| batch.column_by_name(name);
    let names = |name: &str| Some(column(name)?.as_dictionary_opt::<Int8Type>()?.keys());
    let times = column("time_ns")?.as_primitive_opt::<TimestampNanosecondType>()?;
    let flows = column("flow")?.as_primitive_opt::<UInt32Type>()?;
    let (events, states, timers) = (names("event")?, names("ca_state")?, names("timer")?);
    let u32s = |name: &str| column(name)?.as_primitive_opt::<UInt32Type>();
    let u16s = |name: &str| column(name)?.as_primitive_opt::<UInt16Type>();
    let bools = |name: &str| column(name)?.as_boolean_opt();
    let (una, sacked, rtts) = (u32s("snd_una")?, u32s("sacked_out")?, u32s("min_rtt_us")?);
    let (seqs, payloads) = (u32s("pkt_seq")?, u32s("payload_bytes")?);
    let (flags, segments) = (u16s("pkt_flags")?, u16s("gso_segs")?);
    let thresholds = column("dupthresh_segments")?.as_primitive_opt::<UInt8Type>()?;
    let (reordering, undo) = (bools("reordering_seen")?, bools("can_undo")?);
    let original = bools("original_acked")?;
    for row in 0..batch.num_rows() {
        judge.see(&Row {
            time_ns: times.value(row),
            flow: flows.value(row),
            event: events.value(row) as u8,
            ca_state: states.value(row) as u8,
            snd_una: una.value(row),
            sacked_out: sacked.value(row),
            min_rtt_us: value(rtts, row),
            pkt_seq: seqs.value(row),
            pkt_flags: flags.value(row),
            payload_bytes: payloads.value(row),
            gso_segs: segments.value(row),
            timer: value(timers, row).map(|timer| timer as u8),
            dupthresh_segments: value(thresholds, row),
            reordering_seen: reordering.is_valid(row).then(|| reordering.value(row)),
            can_undo: undo.is_valid(row).then(|| undo.value(row)),
            original_acked: original.is_valid(row).then(|| original.value(row)),
        });
    }
    Some(())
}

fn value<T: ArrowPrimitiveType>(
    column: &arrow::array::PrimitiveArray<T>,
    row: usize,
) -> Option<T::Native> {
    column.is_valid(row).then(|| column.value(row))
}

/// A table with a row for each retransmission.
///
/// # Errors
/// Those of Arrow.
pub fn retransmission_batch(rows: &[Retransmission]) -> Result<RecordBatch, ArrowError> {
    let times = TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.time_ns));
    let u32s = |value: fn(&Retransmission) -> u32| {
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(value))) as ArrayRef
    };
    let names = |names: &[&str], value: fn(&Retransmission) -> Option<i8>| {
        let keys = Int8Array::from_iter(rows.iter().map(value));
        DictionaryArray::try_new(keys, Arc::new(StringArray::from(names.to_vec())))
            .map(|array| Arc::new(array) as ArrayRef)
    };
    let segments = UInt16Array::from_iter_values(rows.iter().map(|row| row.segments));
    let spurious = BooleanArray::from_iter(rows.iter().map(|row| row.spurious));
    RecordBatch::try_from_iter_with_nullable([
        (
            "time_ns",
            Arc::new(times.with_timezone("UTC")) as ArrayRef,
            false,
        ),
        ("flow", u32s(|row| row.flow), false),
        ("pkt_seq", u32s(|row| row.pkt_seq), false),
        ("payload_bytes", u32s(|row| row.payload_bytes), false),
        ("segments", Arc::new(segments), false),
        (
            "cause",
            names(CAUSE_NAMES, |row| row.cause.map(|cause| cause as i8))?,
            true,
        ),
        ("spurious", Arc::new(spurious), true),
        (
            "evidence",
            names(EVIDENCE_NAMES, |row| row.evidence.map(|one| one as i8))?,
            true,
        ),
    ])
}
