//! Rotation: sizes, times, numbers and names are as requested, and each finished file is complete.

use parshall_core::trace::*;
use std::path::Path;

fn packet(time_ns: u64, captured: &[u8]) -> Packet<'_> {
    Packet {
        time_ns,
        wire_bytes: captured.len() as u32,
        captured,
        ..Packet::default()
    }
}

/// Bytes that do not compress.
fn noise(number: u64) -> Vec<u8> {
    (0..20u64)
        .flat_map(|at| {
            let mixed = (number * 20 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 29)
                .wrapping_mul(0xbf58_476d_1ce4_e5b9)
                .to_be_bytes()
        })
        .collect()
}

fn statistics(seen: u64) -> Statistics {
    Statistics {
        seen,
        end_ns: seen,
        complete: true,
        ..Statistics::default()
    }
}

/// Names of the files in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| {
            entry
                .expect("readable")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

/// The times of the packets of each file, in the order of the names. Every file must be complete.
fn times(directory: &Path) -> Vec<Vec<u64>> {
    let read = |name: &String| {
        let mut reader = Reader::open(&directory.join(name)).expect("a head");
        let mut times = Vec::new();
        while let Some(packet) = reader.next().expect("a good file") {
            times.push(packet.time_ns);
        }
        if !name.contains(".pcap.") && !name.ends_with(".pcap") {
            assert_eq!(
                reader.section().application.as_deref(),
                Some("test"),
                "{name}"
            );
            let counters = reader.counters()[0]
                .as_ref()
                .expect("statistics in each file");
            let ledger: serde_json::Value =
                serde_json::from_str(&counters.comments[1]).expect("JSON");
            let in_file = &ledger["parshall_ledger"]["packets_in_file"];
            assert_eq!(in_file, &serde_json::json!(times.len()), "{name}");
        }
        times
    };
    names(directory).iter().map(read).collect()
}

fn writer(path: &Path, rotation: Rotation) -> Writer {
    let options = WriterOptions {
        rotation,
        ..WriterOptions::of_name(path)
    };
    let section = Section {
        application: Some("test".into()),
        ..Section::default()
    };
    Writer::create(path, &options, &section, &[Interface::default()]).expect("a directory")
}

/// A writer whose files have the packets of 1000 ns.
fn writer_by_time(directory: &Path) -> Writer {
    let rotation = Rotation {
        time_ns: Some(1000),
        ..Rotation::default()
    };
    writer(&directory.join("t.pcapng"), rotation)
}

#[test]
fn files_have_at_most_the_requested_size_and_not_much_less() {
    for name in [
        "t.pcapng",
        "t.pcap",
        "t.pcapng.zst",
        "t.pcapng.gz",
        "t.pcap.zst",
        "t.pcapng.lz4",
    ] {
        for size_bytes in [20_000, 300_000, 2_000_000] {
            let directory = tempfile::tempdir().expect("a directory");
            let size = Some(size_bytes);
            let mut writer = writer(
                &directory.path().join(name),
                Rotation {
                    size_bytes: size,
                    ..Rotation::default()
                },
            );
            let count = 30_000;
            for number in 0..count {
                writer.write(&packet(number, &noise(number))).expect("room");
                if number % 1000 == 0 {
                    writer
                        .tick(number, &[statistics(number + 1)])
                        .expect("room");
                }
            }
            writer.finish(&[statistics(count)]).result.expect("room");
            let sizes: Vec<u64> = names(directory.path())
                .iter()
                .map(|name| {
                    directory
                        .path()
                        .join(name)
                        .metadata()
                        .expect("a file")
                        .len()
                })
                .collect();
            let (_, full) = sizes.split_last().expect("files");
            assert!(full.len() >= 2, "{name} {size_bytes}: {sizes:?}");
            for &size in full {
                let least = size_bytes - size_bytes / 8 - 2500;
                assert!(
                    (least..=size_bytes).contains(&size),
                    "{name} {size_bytes}: {size}"
                );
            }
            let all: Vec<u64> = times(directory.path()).concat();
            assert!(all.into_iter().eq(0..count), "{name} {size_bytes}");
        }
    }
}

#[test]
fn files_rotate_by_time_and_size_and_the_oldest_are_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t.pcapng");
    let rotation = Rotation {
        size_bytes: Some(10_000),
        time_ns: Some(1000),
        files: Some(4),
        ..Rotation::default()
    };
    let mut writer = writer(&path, rotation);
    // Slow: 4 packets in 1000 ns. Then many: 10,000 bytes come first.
    for number in 0..12 {
        writer
            .write(&packet(number * 250, &noise(number)))
            .expect("room");
    }
    assert_eq!(
        names(directory.path()),
        ["t.000001.pcapng", "t.000002.pcapng", "t.000003.pcapng"]
    );
    for number in 0..100 {
        writer
            .write(&packet(5000 + number, &noise(number)))
            .expect("room");
    }
    writer.finish(&[statistics(112)]).result.expect("room");
    let times = times(directory.path());
    assert_eq!(
        names(directory.path()),
        [
            "t.000003.pcapng",
            "t.000004.pcapng",
            "t.000005.pcapng",
            "t.000006.pcapng"
        ]
    );
    assert_eq!(times[0], [2000, 2250, 2500, 2750]);
    assert!(times.concat().is_sorted());
    assert_eq!(times.concat().last(), Some(&5099));
    for pair in times[1..].windows(2) {
        assert!(pair[1][0] - pair[0][0] < 1000, "size came before time");
    }
}

#[test]
fn files_rotate_by_time_without_packets_but_never_empty() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut writer = writer_by_time(directory.path());
    writer.write(&packet(0, &noise(0))).expect("room");
    for now_ns in (0..10_000).step_by(100) {
        writer.tick(now_ns, &[statistics(1)]).expect("room");
    }
    assert_eq!(
        names(directory.path()),
        ["t.000001.pcapng", "t.000002.pcapng"]
    );
    writer.write(&packet(20_000, &noise(0))).expect("room");
    writer.finish(&[statistics(2)]).result.expect("room");
    assert_eq!(times(directory.path()), [[0], [20_000]]);
}

#[test]
fn a_number_of_files_without_size_or_time_is_refused() {
    let options = WriterOptions {
        rotation: Rotation {
            files: Some(3),
            ..Rotation::default()
        },
        ..WriterOptions::default()
    };
    let error = Writer::create(
        Path::new("/tmp/t.pcapng"),
        &options,
        &Section::default(),
        &[],
    )
    .err()
    .expect("nothing would begin a second file")
    .to_string();
    assert!(error.starts_with("number of files 3: "), "{error}");
}

#[test]
fn a_removed_directory_gives_one_error_and_counted_packets() {
    let directory = tempfile::tempdir().expect("a directory");
    let inside = directory.path().join("inside");
    std::fs::create_dir(&inside).expect("room");
    let rotation = Rotation {
        size_bytes: Some(10_000),
        ..Rotation::default()
    };
    let mut writer = writer(&inside.join("t.pcapng"), rotation);
    std::fs::remove_dir_all(&inside).expect("it is there");
    let mut errors = Vec::new();
    for number in 0..5000 {
        errors.extend(writer.write(&packet(number, &noise(number))).err());
    }
    assert!(writer.is_stalled());
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0]
            .to_string()
            .contains("t.000002.pcapng: cannot be written"),
        "{errors:?}"
    );
    std::fs::create_dir(&inside).expect("room");
    writer
        .tick(5000, &[statistics(5000)])
        .expect("a directory again");
    writer
        .write(&packet(5000, &noise(0)))
        .expect("a directory again");
    let Finished {
        accounts, result, ..
    } = writer.finish(&[statistics(5001)]);
    result.expect("a directory again");
    assert_eq!(accounts[0].difference(), 0, "{}", accounts[0].sentence());
    assert!(accounts[0].written.unwritten > 1000);
    assert_eq!(times(&inside).concat().last(), Some(&5000));
}

#[test]
fn the_time_of_a_file_begins_with_its_first_packet_also_after_a_silence() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut writer = writer_by_time(directory.path());
    // Before the first packet comes, and after the first file has ended, only time passes.
    writer.tick(0, &[statistics(0)]).expect("room");
    for time_ns in [5000, 5900] {
        writer.write(&packet(time_ns, &noise(1))).expect("room");
    }
    for time_ns in [6500, 7500, 90_000] {
        writer.tick(time_ns, &[statistics(2)]).expect("room");
    }
    for time_ns in [100_000, 100_900, 101_100] {
        writer.write(&packet(time_ns, &noise(2))).expect("room");
    }
    writer.finish(&[statistics(5)]).result.expect("room");
    assert_eq!(
        times(directory.path()),
        [vec![5000, 5900], vec![100_000, 100_900], vec![101_100]]
    );
}
