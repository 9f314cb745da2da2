//! The log as a whole: the reader returns what was written, and no input makes it panic.

use super::columns::{CA_STATE_NAMES, DIRECTION_NAMES, EVENT_NAMES, STATE_NAMES};
use super::flow_table::{decode_flows, encode_flows};
use super::message::END_OF_STREAM;
use super::message_reader::{MessageReader, Step};
use super::testing::{begins_with, flow, header, log_compressed, log_of, record_of, some_records};
use super::thinning::ThinningRow;
use super::{
    Compression, FlowRow, ListenerRow, LogError, LogReader, LogWriter, Unwritten, flow_batch,
    flow_rows,
};
use crate::abi::{RecordHeader, TcpListener, TcpStateRecord};
use crate::ledger::Ledger;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    ArrowPrimitiveType, Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type,
    UInt64Type,
};
use arrow::ipc::reader::StreamReader;
use arrow::record_batch::RecordBatch;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;
use std::io::{self, Cursor, Write};

fn read(bytes: &[u8]) -> Result<(Vec<RecordBatch>, LogReader<&[u8]>), LogError> {
    let mut reader = LogReader::new(bytes, "test.parshall".into())?;
    let batches = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    Ok((batches, reader))
}

fn rows(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

fn value_at<T: ArrowPrimitiveType>(
    batch: &RecordBatch,
    name: &str,
    row: usize,
) -> Option<T::Native> {
    let column = batch.column_by_name(name).unwrap().as_primitive::<T>();
    column.is_valid(row).then(|| column.value(row))
}

fn name_at<'a>(batch: &'a RecordBatch, name: &str, row: usize) -> &'a str {
    let column = batch
        .column_by_name(name)
        .unwrap()
        .as_dictionary::<Int8Type>();
    column
        .values()
        .as_string::<i32>()
        .value(column.key(row).unwrap())
}

/// Compares every column of a row with the record, by a second implementation of the format's rules.
fn assert_row(record: &TcpStateRecord, batch: &RecordBatch, row: usize) {
    let u32s: [(&str, u32); 25] = [
        ("flow", record.flow),
        ("cwnd_segments", record.cwnd_segments),
        ("mss_bytes", record.mss_bytes),
        ("srtt_us", record.srtt_us_x8 / 8),
        ("rttvar_us", record.mdev_us_x4 / 4),
        (
            "rto_us",
            (u64::from(record.rto_jiffies) * 1000).min(u64::from(u32::MAX)) as u32,
        ),
        ("snd_una", record.snd_una),
        ("snd_nxt", record.snd_nxt),
        ("snd_wnd_bytes", record.snd_wnd_bytes),
        ("rcv_nxt", record.rcv_nxt),
        ("rcv_wnd_bytes", record.rcv_wnd_bytes),
        ("packets_out", record.packets_out),
        ("retrans_out", record.retrans_out),
        ("lost_out", record.lost_out),
        ("sacked_out", record.sacked_out),
        ("total_retrans", record.total_retrans),
        ("delivered", record.delivered),
        ("delivered_ce", record.delivered_ce),
        ("sndbuf_bytes", record.sndbuf_bytes),
        ("sndbuf_used_bytes", record.sndbuf_used_bytes),
        ("rcvbuf_bytes", record.rcvbuf_bytes),
        ("rcvbuf_used_bytes", record.rcvbuf_used_bytes),
        ("pkt_seq", record.pkt_seq),
        ("pkt_ack", record.pkt_ack),
        ("payload_bytes", record.payload_bytes),
    ];
    for (name, expected) in u32s {
        assert_eq!(
            value_at::<UInt32Type>(batch, name, row),
            Some(expected),
            "{name}"
        );
    }
    let ssthresh = (record.ssthresh_segments < 0x7fff_ffff).then_some(record.ssthresh_segments);
    assert_eq!(
        value_at::<UInt32Type>(batch, "ssthresh_segments", row),
        ssthresh
    );
    assert_eq!(
        value_at::<UInt32Type>(batch, "min_rtt_us", row),
        (record.min_rtt_us != !0).then_some(record.min_rtt_us)
    );
    assert_eq!(
        value_at::<UInt64Type>(batch, "flow_seq", row),
        Some(record.flow_seq)
    );
    let pacing = (record.pacing_rate_Bps != !0).then_some(record.pacing_rate_Bps);
    assert_eq!(
        value_at::<UInt64Type>(batch, "pacing_rate_Bps", row),
        pacing
    );
    let delivery = (u128::from(record.rate_delivered) * u128::from(record.mss_bytes) * 1_000_000)
        .checked_div(u128::from(record.rate_interval_us))
        .unwrap_or(0)
        .min(u128::from(u64::MAX)) as u64;
    assert_eq!(
        value_at::<UInt64Type>(batch, "delivery_rate_Bps", row),
        Some(delivery)
    );
    let time = batch
        .column_by_name("time_ns")
        .unwrap()
        .as_primitive::<TimestampNanosecondType>()
        .value(row);
    assert_eq!(
        time,
        (record.time_ns as i64).wrapping_add(1_000_000_000_000)
    );
    assert_eq!(
        name_at(batch, "direction", row),
        DIRECTION_NAMES[usize::from(record.direction).min(2)]
    );
    assert_eq!(
        name_at(batch, "event", row),
        EVENT_NAMES[usize::from(record.event).min(4)]
    );
    assert_eq!(
        name_at(batch, "state", row),
        *STATE_NAMES
            .get(usize::from(record.state))
            .unwrap_or(&"UNKNOWN")
    );
    assert_eq!(
        name_at(batch, "ca_state", row),
        CA_STATE_NAMES[usize::from(record.ca_state).min(4)]
    );
    let app_limited = batch
        .column_by_name("app_limited")
        .unwrap()
        .as_boolean()
        .value(row);
    assert_eq!(app_limited, record.app_limited & 15 != 0);
    let u8_at = |name| {
        batch
            .column_by_name(name)
            .unwrap()
            .as_primitive::<UInt8Type>()
            .value(row)
    };
    assert_eq!(u8_at("snd_scale"), record.window_scales % 16);
    assert_eq!(u8_at("rcv_scale"), record.window_scales / 16);
    let u16_at = |name| {
        batch
            .column_by_name(name)
            .unwrap()
            .as_primitive::<UInt16Type>()
            .value(row)
    };
    assert_eq!(u16_at("pkt_flags"), record.pkt_flags);
    assert_eq!(u16_at("gso_segs"), record.gso_segs);
}

/// Arbitrary records, with special values drawn often.
fn records(
    count: impl Into<prop::collection::SizeRange>,
) -> impl Strategy<Value = Vec<TcpStateRecord>> {
    let record = (
        prop::array::uniform32(any::<u8>()),
        any::<[u8; 8]>(),
        0..8u8,
    )
        .prop_map(|(seed, factors, special)| {
            let mut bytes = [0u8; size_of::<TcpStateRecord>()];
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = seed[index % 32]
                    .wrapping_mul(factors[index % 8] | 1)
                    .wrapping_add((index / 32) as u8);
            }
            let mut record = record_of(&bytes);
            match special {
                0 => record.ssthresh_segments = 0x7fff_ffff,
                1 => record.min_rtt_us = !0,
                2 => record.pacing_rate_Bps = !0,
                3 => record.rate_interval_us = 0,
                4 => {
                    (
                        record.state,
                        record.direction,
                        record.event,
                        record.ca_state,
                    ) = (12, 2, 3, 4)
                }
                _ => record.state %= 13,
            }
            record
        });
    prop::collection::vec(record, count)
}

fn assert_rows(records: &[TcpStateRecord], batches: &[RecordBatch]) {
    let mut records = records.iter();
    for batch in batches {
        for row in 0..batch.num_rows() {
            assert_row(records.next().unwrap(), batch, row);
        }
    }
    assert_eq!(records.next(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_written_log_is_read_back(
        records in records(0..600),
        batch_rows in 1..300usize,
        tick_rows in 1..400usize,
        compression in prop::sample::select(vec![Compression::Lz4, Compression::Zstd, Compression::None]),
    ) {
        let bytes = log_compressed(&records, batch_rows, tick_rows, compression);
        let (batches, reader) = read(&bytes).unwrap();
        assert_rows(&records, &batches);
        prop_assert!(reader.is_complete());
        prop_assert!(reader.ledger().unwrap().complete);
        prop_assert_eq!(reader.flows().len(), records.len().div_ceil(tick_rows));
        // Arrow's own reader, of the whole log and of one whose writer was killed.
        for end in [bytes.len(), bytes.len() - END_OF_STREAM.len()] {
            let batches: Result<Vec<_>, _> = StreamReader::try_new(&bytes[..end], None).unwrap().collect();
            assert_rows(&records, &batches.unwrap());
        }
    }

    #[test]
    fn flipped_bytes_never_panic(records in records(1..200), flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 1..6)) {
        let mut bytes = log_of(&records, 64, 100);
        for (index, mask) in flips {
            let at = index.index(bytes.len());
            bytes[at] ^= mask;
        }
        if let Ok((batches, _)) = read(&bytes) {
            prop_assert!(rows(&batches) <= records.len());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let mut marked = vec![255u8; 4];
        marked.extend(bytes);
        let _ = read(&marked);
    }
}

/// Some readers have no codecs.
#[test]
fn a_log_without_compression_names_no_codec() {
    let bytes = log_compressed(&some_records(200), 64, 100, Compression::None);
    let mut messages = MessageReader::new(&bytes[..], "test.parshall".into());
    let mut batches = 0;
    while let Step::Message(raw) = messages.next_message().unwrap() {
        if let Some(head) = raw.message().unwrap().header_as_record_batch() {
            assert!(head.compression().is_none());
            batches += 1;
        }
    }
    assert_eq!(batches, 4 + 3);
}

/// Each record differs from the one before in one byte; every byte has its turn.
#[test]
fn a_change_of_a_single_byte_is_read_back() {
    let mut bytes = [0; size_of::<TcpStateRecord>()];
    let records: Vec<_> = (size_of::<RecordHeader>()..bytes.len())
        .map(|byte| {
            bytes[byte] ^= 0xA5;
            record_of(&bytes)
        })
        .collect();
    for batch_rows in [1, 7, 1000] {
        let (batches, _) = read(&log_of(&records, batch_rows, 1000)).unwrap();
        assert_rows(&records, &batches);
    }
}

/// Damages bytes of a log, from another start for each compression: no panic, and no wrong row.
fn check_damage(step: usize) {
    let records = some_records(150);
    for (first, compression) in (0..).zip([Compression::Lz4, Compression::Zstd, Compression::None])
    {
        let good = log_compressed(&records, 64, 100, compression);
        let (whole, _) = read(&good).unwrap();
        assert_rows(&records, &whole);
        for at in (first..good.len()).step_by(step) {
            let mut bytes = good.clone();
            bytes[at] ^= [0x01, 0x80, 0xff][at / step % 3];
            if let Ok((batches, _)) = read(&bytes) {
                assert!(begins_with(&whole, &batches), "{compression:?}, byte {at}");
            }
        }
    }
}

#[test]
fn a_damaged_byte_never_gives_a_wrong_row() {
    check_damage(19);
}

#[test]
#[ignore = "every byte: make test-long"]
fn long_a_damaged_byte_never_gives_a_wrong_row() {
    check_damage(1);
}

/// Cuts a log: all whole messages before the cut are read, and the rest is reported missing.
fn check_cuts(step: usize) {
    let records = some_records(100);
    let good = log_of(&records, 32, 100);
    let head = log_of(&[], 32, 100);
    let (whole, _) = read(&good).unwrap();
    assert_rows(&records, &whole);
    let (mut most, mut last) = (0, records.len());
    for end in (0..=good.len() - 9).rev().step_by(step) {
        match read(&good[..end]) {
            Ok((batches, reader)) => {
                assert!(rows(&batches) <= last, "byte {end}");
                last = rows(&batches);
                most = most.max(last);
                assert!(begins_with(&whole, &batches), "byte {end}");
                if !reader.is_complete() {
                    let truncation = reader.truncation().unwrap();
                    assert!(truncation.at_byte <= end as u64, "{truncation}");
                } else {
                    assert_eq!(last, records.len());
                }
            }
            Err(error) => {
                assert!(end < head.len(), "byte {end}: {error}");
                assert!(matches!(error, LogError::Headless { .. }), "{error}");
            }
        }
    }
    assert_eq!(most, records.len());
}

#[test]
fn a_truncated_log_is_read_up_to_the_cut() {
    check_cuts(11);
}

#[test]
#[ignore = "at every byte: make test-long"]
fn long_a_truncated_log_is_read_up_to_the_cut() {
    check_cuts(1);
}

#[test]
fn zeros_behind_the_last_message_are_a_truncation() {
    let mut bytes = log_of(&some_records(10), 64, 100);
    bytes.truncate(bytes.len() - 8);
    let end = bytes.len() as u64;
    bytes.extend([0; 4096]);
    let (batches, reader) = read(&bytes).unwrap();
    assert_eq!(rows(&batches), 10);
    assert_eq!(reader.truncation().unwrap().at_byte, end);
}

#[test]
fn the_error_of_a_damaged_log_names_file_and_byte() {
    let mut bytes = log_of(&some_records(300), 64, 100);
    let head = log_of(&[], 64, 100).len();
    let middle = head + (bytes.len() - head) / 2;
    for byte in &mut bytes[middle..middle + 8] {
        *byte ^= 0x55;
    }
    let error = read(&bytes).err().unwrap();
    let LogError::Corrupt { at_byte, .. } = &error else {
        panic!("{error}")
    };
    assert!((1..=middle as u64).contains(at_byte));
    assert!(
        error.to_string().contains("test.parshall: damaged at byte"),
        "{error}"
    );
}

#[test]
fn errors_describe_files_that_are_not_logs() {
    for (bytes, found) in [
        (&b"hello, this is text"[..], "not an Arrow stream"),
        (b"ARROW1\0\0aaaaaaaaaaaa", "not an Arrow stream"),
        (b"\xff\xff\xff\xff\0\0\0\0", "without a schema"),
    ] {
        let error = read(bytes).err().unwrap();
        assert!(
            matches!(error, LogError::NotALog { .. }) && error.to_string().contains(found),
            "{error}"
        );
    }
    let error = read(b"").err().unwrap();
    assert!(
        matches!(error, LogError::Headless { .. }) && error.to_string().contains("an empty file"),
        "{error}"
    );
    let mut other =
        arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &super::flow_schema()).unwrap();
    other.finish().unwrap();
    let error = read(&other.into_inner().unwrap()).err().unwrap();
    assert!(
        error
            .to_string()
            .contains("an Arrow stream of another program"),
        "{error}"
    );
}

#[test]
fn the_error_of_a_newer_version_asks_for_an_upgrade() {
    let mut metadata = header().to_metadata();
    metadata.insert("parshall.format_version".into(), "2".into());
    let bytes = super::message::stream_start(metadata).unwrap();
    let error = read(&bytes).err().unwrap().to_string();
    assert!(
        error.contains("version 2") && error.contains("up to 1.7") && error.contains("upgrade"),
        "{error}"
    );
}

#[test]
fn a_clock_without_offset_is_refused() {
    let bad = super::LogHeader {
        clock: "{}".into(),
        ..header()
    };
    let error = LogWriter::create(Vec::new(), &bad).err().unwrap();
    assert!(error.to_string().contains("monotonic_offset_ns"), "{error}");
}

#[test]
fn a_survey_reads_the_flows_before_the_rows() {
    let bytes = log_of(&some_records(250), 64, 100);
    let mut reader = LogReader::new(io::Cursor::new(bytes), "test".into()).unwrap();
    reader.survey().unwrap();
    assert_eq!(
        reader.flows().keys().copied().collect::<Vec<_>>(),
        [1, 2, 3]
    );
    assert!(reader.is_complete());
    let batches = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(rows(&batches), 250);
    assert!(reader.is_complete());
}

#[test]
fn a_flow_table_that_claims_too_much_memory_is_refused() {
    let mut bytes = BASE64.decode(encode_flows(&[flow(1)]).unwrap()).unwrap();
    // Short buffers are not compressed: their length field is -1.
    let at = bytes
        .windows(8)
        .position(|eight| eight == [0xff; 8])
        .unwrap();
    bytes[at..at + 8].copy_from_slice(&((16_u64 << 20) + 1).to_le_bytes());
    let refusal = decode_flows(&BASE64.encode(bytes)).unwrap_err().to_string();
    assert!(
        refusal.contains("a buffer that claims 16777217 bytes"),
        "{refusal}"
    );
    let flood: Vec<FlowRow> = (0..1 << 17).map(flow).collect();
    let read = decode_flows(&encode_flows(&flood).unwrap()).unwrap();
    assert!(read == flood);
}

#[test]
fn the_last_row_of_a_flow_wins() {
    let mut writer = LogWriter::create(Vec::new(), &header()).unwrap();
    let later = FlowRow {
        packets_seen: 7,
        command: Some("iperf3".into()),
        pid: Some(9),
        ..flow(1)
    };
    writer
        .tick(vec![flow(1), flow(2)], &Ledger::default(), false)
        .unwrap();
    writer
        .tick(vec![later.clone()], &Ledger::default(), true)
        .unwrap();
    writer.finish().unwrap();
    let bytes = writer.into_inner();
    let (_, reader) = read(&bytes).unwrap();
    assert_eq!(reader.flows()[&1], later);
    assert_eq!(reader.flows()[&2], flow(2));
    assert_eq!(
        flow_rows(&flow_batch(std::slice::from_ref(&later)).unwrap()).unwrap(),
        [later]
    );
}

/// A log with three ticks, of which the disk has no room for the second one; something is noted before the first two.
fn ticked_around_a_full_disk(note: impl Fn(&mut LogWriter<Disk>, usize)) -> Vec<u8> {
    let disk = Disk {
        taken: Vec::new(),
        room: usize::MAX,
    };
    let mut writer = LogWriter::create(disk, &header()).unwrap();
    note(&mut writer, 0);
    assert!(writer.has_news());
    writer.tick(Vec::new(), &Ledger::default(), false).unwrap();
    assert!(!writer.has_news());
    writer.inner_mut_for_tests().room = 0;
    note(&mut writer, 1);
    writer
        .tick(Vec::new(), &Ledger::default(), false)
        .unwrap_err();
    writer.inner_mut_for_tests().room = usize::MAX;
    writer.tick(Vec::new(), &Ledger::default(), true).unwrap();
    writer.finish().unwrap();
    writer.into_inner().taken
}

#[test]
fn changes_of_the_thinning_are_read_back_once_and_survive_a_failed_tick() {
    let row = |time_ns| ThinningRow {
        time_ns,
        packets_per_log: 8,
        cost_share: 0.25,
    };
    let rows = [row(5), row(9)];
    let bytes = ticked_around_a_full_disk(|writer, number| writer.note_thinning(rows[number]));
    // Both when the rows are read at once, and when the ticks are read ahead.
    let (_, reader) = read(&bytes).unwrap();
    let mut surveyed = LogReader::new(Cursor::new(&bytes), "made.arrow".into()).unwrap();
    surveyed.survey().unwrap();
    for thinning in [reader.thinning(), surveyed.thinning()] {
        assert_eq!(thinning.values().copied().collect::<Vec<_>>(), rows);
    }
}

#[test]
fn the_last_row_of_a_listener_wins_and_survives_a_failed_tick() {
    let listener = |number, syns_refused| {
        let record = TcpListener {
            listener: number,
            local_address: [0; 16],
            local_port: 80,
            is_ipv6: 1,
            syns_refused,
            first_refused_ns: u64::from(syns_refused > 0),
            ..TcpListener::default()
        };
        ListenerRow::new(&record, 10)
    };
    let noted = [vec![listener(1, 0), listener(2, 3)], vec![listener(1, 7)]];
    let bytes =
        ticked_around_a_full_disk(|writer, number| writer.note_listeners(noted[number].clone()));
    let (_, reader) = read(&bytes).unwrap();
    let rows: Vec<_> = reader.listeners().values().cloned().collect();
    assert_eq!(rows, [listener(1, 7), listener(2, 3)]);
    assert_eq!(rows[0].first_refused_time_ns, Some(11));
    assert_eq!(rows[0].local_address.to_string(), "::");
    // Nothing is written again.
    let written = String::from_utf8_lossy(&bytes);
    assert_eq!(written.matches("parshall.listeners").count(), 2);
}

/// A disk that is full for a while.
struct Disk {
    taken: Vec<u8>,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room -= count;
        self.taken.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any free space, whenever more is freed: the file opens, and rows written + rows counted as
    /// unwritten = rows pushed.
    #[test]
    fn a_full_disk_loses_only_what_is_counted(rooms in prop::collection::vec(0..20_000usize, 10), first in 20_000..40_000usize) {
        let mut writer = LogWriter::create_with(Disk { taken: Vec::new(), room: first }, &header(), 64).unwrap();
        let records = some_records(2000);
        for (chunk, room) in records.chunks(200).zip(rooms) {
            let _ = writer.push_block(chunk);
            let _ = writer.tick(vec![flow(chunk[0].time_ns as u32)], &Ledger::default(), false);
            writer.inner_mut_for_tests().room += room;
        }
        let finished = writer.tick(Vec::new(), &Ledger::default(), true).and_then(|()| writer.finish());
        if finished.is_err() {
            let _ = writer.finish();
        }
        let lost: u64 = writer.unwritten().values().map(Unwritten::total).sum();
        prop_assert_eq!(lost + writer.written_rows(), 2000);
        let written_rows = writer.written_rows();
        let bytes = writer.into_inner().taken;
        let (batches, reader) = read(&bytes).unwrap();
        prop_assert_eq!(rows(&batches) as u64, written_rows);
        if finished.is_ok() {
            prop_assert!(reader.is_complete());
            prop_assert_eq!(reader.flows().len(), 10);
        }
    }
}
