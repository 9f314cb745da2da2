//! A log that rotated, read as one and followed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::testing::{flow, header};
use super::{GapCause, LogFollower, LogHeader, LogPart, LogReader, LogWriter};
use crate::abi::TcpStateRecord;
use crate::ledger::Ledger;

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("day.{number:06}.arrow"))
}

/// Writes a file with so many rows of flow 1.
fn write(directory: &Path, file: u64, run: &str, number: u64, rows: usize, is_last: bool) {
    let part = LogPart {
        run: run.into(),
        number,
        began_ns: number as i64 * 1000,
    };
    let header = LogHeader {
        part: Some(part),
        ..header()
    };
    let out = File::create(path_of(directory, file)).unwrap();
    let mut writer = LogWriter::create(out, &header).unwrap();
    let record = TcpStateRecord {
        flow: 1,
        ..Default::default()
    };
    writer.push_block(&vec![record; rows]).unwrap();
    let ledger = Ledger {
        complete: is_last,
        until_time_ns: (number as i64 + 1) * 1000,
        ..Ledger::default()
    };
    writer.tick(vec![flow(1)], &ledger, true).unwrap();
    writer.finish().unwrap();
}

/// Rows, flows and gaps, surveyed first and by the rows alone, which must agree.
fn read(directory: &Path) -> (usize, usize, Vec<(i64, i64, GapCause)>, bool) {
    let mut surveyed = LogReader::open(directory).unwrap();
    surveyed.survey().unwrap();
    let mut alone = LogReader::open(directory).unwrap();
    let rows: Vec<usize> = [&mut surveyed, &mut alone]
        .map(|reader| reader.by_ref().map(|batch| batch.unwrap().num_rows()).sum())
        .into();
    assert_eq!(rows[0], rows[1]);
    assert_eq!(surveyed.flows().len(), alone.flows().len());
    assert_eq!(surveyed.gaps(), alone.gaps());
    let gaps = surveyed.gaps().iter();
    (
        rows[0],
        surveyed.flows().len(),
        gaps.map(|gap| (gap.from_ns, gap.until_ns, gap.cause))
            .collect(),
        surveyed.is_complete(),
    )
}

#[test]
fn a_run_is_one_log_without_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    for number in 1..=3 {
        write(directory.path(), number, "a", number, 10, number == 3);
    }
    assert_eq!(read(directory.path()), (30, 1, vec![], true));
}

#[test]
fn a_file_without_a_head_is_a_gap_wherever_it_is() {
    for (damaged, gaps) in [
        (1, vec![(0, 2000, GapCause::FileMissing)]),
        (2, vec![(2000, 3000, GapCause::FileDamaged)]),
        (3, vec![(3000, 0, GapCause::FileDamaged)]),
    ] {
        for content in [&b""[..], b"\xff\xff\xff\xff\x10"] {
            let directory = tempfile::tempdir().unwrap();
            for number in 1..=3 {
                write(directory.path(), number, "a", number, 10, number == 3);
            }
            fs::write(path_of(directory.path(), damaged), content).unwrap();
            assert_eq!(read(directory.path()), (20, 1, gaps.clone(), false));
            let follower = LogFollower::open(directory.path(), &["flow"], &[""; 0]).unwrap();
            let newest = if damaged == 3 { 2 } else { 3 };
            assert_eq!(follower.header().part.as_ref().unwrap().number, newest);
        }
    }
}

#[test]
fn numbers_that_a_file_claims_do_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), 1, "a", u64::MAX >> 1, 1, false);
    write(directory.path(), 2, "a", 0, 1, true);
    let (rows, _, gaps, _) = read(directory.path());
    assert_eq!((rows, gaps.len()), (2, 2));
}

#[test]
fn a_follower_reads_a_file_to_its_end_and_goes_on_by_number_not_by_name() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), 999_999, "a", 1, 10, false);
    let mut follower =
        LogFollower::open(&directory.path().join("day.arrow"), &["flow"], &[""; 0]).unwrap();
    write(directory.path(), 1_000_000, "a", 2, 20, false);
    write(directory.path(), 1_000_001, "b", 1, 5, true);
    let mut rows = Vec::new();
    while let Some(batch) = follower.next_batch().unwrap() {
        rows.push((batch.num_rows(), follower.flow_base()));
    }
    assert_eq!(rows, [(10, 0), (20, 0), (5, 1)]);
    assert!(follower.has_ended());
    assert_eq!(follower.take_flows().len(), 2);
}

#[test]
fn a_follower_goes_on_when_its_file_was_removed() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), 1, "a", 1, 10, false);
    let mut follower = LogFollower::open(directory.path(), &["flow"], &[""; 0]).unwrap();
    write(directory.path(), 2, "a", 2, 20, true);
    fs::remove_file(path_of(directory.path(), 1)).unwrap();
    let mut rows = 0;
    while let Some(batch) = follower.next_batch().unwrap() {
        rows += batch.num_rows();
    }
    assert_eq!(rows, 30);
}
