//! CSV, Parquet, and the rows that all conversions read.

use super::*;
use crate::convert::row::{self, Row};

#[test]
fn csv_joins_the_addresses() {
    let written = text(&with_noise(), &[flow(1, false)], Format::Csv);
    let lines: Vec<Vec<&str>> = written
        .lines()
        .map(|line| line.split(',').collect())
        .collect();
    assert_eq!(
        &lines[0][..6],
        [
            "local_address",
            "local_port",
            "remote_address",
            "remote_port",
            "time_ns",
            "flow"
        ]
    );
    assert_eq!(lines.len(), 5);
    assert!(lines.iter().all(|line| line.len() == 50));
    let column = |name: &str| lines[0].iter().position(|found| *found == name).unwrap();
    assert_eq!(
        &lines[2][..8],
        [
            "10.0.0.1",
            "5001",
            "10.0.0.2",
            "80",
            "1700000001234567000",
            "1",
            "out",
            "packet"
        ]
    );
    assert_eq!(lines[2][column("ssthresh_segments")], "");
    assert_eq!(lines[4][column("ssthresh_segments")], "20");
    assert_eq!(lines[2][column("state")], "ESTABLISHED");
    assert_eq!(lines[2][column("app_limited")], "false");
}

#[test]
fn parquet_keeps_rows_and_metadata() {
    let (bytes, report) = converted(&with_noise(), &[flow(1, false)], Format::Parquet);
    assert_eq!(report.rows, 4);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    let builder =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let metadata = builder
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .unwrap()
        .clone();
    let value = |key: &str| {
        metadata
            .iter()
            .find(|pair| pair.key == key)
            .and_then(|pair| pair.value.clone())
            .unwrap()
    };
    assert_eq!(value("parshall.format"), "tcp-state");
    let flows: serde_json::Value = serde_json::from_str(&value("parshall.flows_table")).unwrap();
    assert_eq!(flows[0]["local_address"], "10.0.0.1");
    assert!(value("parshall.ledger").contains("\"hooks\""));
    let rows: usize = builder
        .build()
        .unwrap()
        .map(|batch| batch.unwrap().num_rows())
        .sum();
    assert_eq!(rows, 4);
}

#[test]
fn rows_hold_what_was_written() {
    let mut log = log_with(&[packet(3, 9)], &[], &Ledger::default());
    let batch = log.next().unwrap().unwrap();
    let row: Row = row::rows(&batch).next().unwrap();
    assert_eq!(
        (row.flow, row.flow_seq, row.state, row.gso_segs),
        (3, 7, 1, 1)
    );
    assert_eq!(
        (row.ssthresh_segments, row.min_rtt_us, row.pacing_rate_Bps),
        (None, Some(19_500), None)
    );
}
