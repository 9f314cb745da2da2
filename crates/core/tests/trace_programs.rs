//! The programs of the field read every capture file that Parshall writes: tshark, capinfos, tcpdump.
//!
//! They come with `make test`. If one is missing, its test prints so and passes; under CI it fails.

use parshall_core::ledger::Lost;
use parshall_core::trace::*;
use std::path::Path;
use std::process::{Command, Stdio};

const START_NS: u64 = 1_763_766_000_123_456_789;
const PACKETS: u64 = 3000;

/// Whether a program is installed; under CI it must be.
fn has(program: &str) -> bool {
    let there = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    if !there {
        assert!(
            std::env::var_os("CI").is_none(),
            "{program} is required under CI; scripts/setup packages"
        );
        eprintln!("skipped: {program} is not installed");
    }
    there
}

/// The standard output of a program that must succeed without output on standard error, except lines that
/// start with `expected_noise`.
fn output_of(program: &str, arguments: &[&str], expected_noise: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect("the program runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let unexpected: Vec<&str> = errors
        .lines()
        .filter(|line| !expected_noise.iter().any(|noise| line.starts_with(noise)))
        .collect();
    assert!(
        output.status.success() && unexpected.is_empty(),
        "{program} {arguments:?}: {} {unexpected:?}",
        output.status
    );
    String::from_utf8(output.stdout).expect("text")
}

fn tshark(path: &Path, arguments: &[&str]) -> String {
    let path = path.to_str().expect("a path of text");
    let all = [&["-n", "-r", path], arguments].concat();
    output_of("tshark", &all, &["Running as user"])
}

/// A UDP packet over IPv4 over Ethernet that carries its number.
fn frame(number: u64, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let total_bytes = (28 + payload_bytes) as u16;
    frame.extend_from_slice(&[0x45, 0]);
    frame.extend_from_slice(&total_bytes.to_be_bytes());
    frame.extend_from_slice(&[0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend_from_slice(&4000u16.to_be_bytes());
    frame.extend_from_slice(&5000u16.to_be_bytes());
    frame.extend_from_slice(&(total_bytes - 20).to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend((0..payload_bytes).map(|at| (at as u64 + number) as u8));
    frame
}

fn interfaces() -> [Interface; 2] {
    let eth0 = Interface {
        name: "eth0".into(),
        description: Some("towards the sender".into()),
        filter: Some("udp port 5000".into()),
        speed_bps: Some(10_000_000_000),
        os: Some("Linux 6.18".into()),
        ..Interface::default()
    };
    let eth1 = Interface {
        name: "eth1".into(),
        ..Interface::default()
    };
    [eth0, eth1]
}

fn section() -> Section {
    Section {
        hardware: Some("some processor".into()),
        os: Some("Linux 6.18".into()),
        application: Some("parshall 0.1.0".into()),
        comments: vec![r#"{"kernel":"6.18"}"#.into()],
    }
}

fn statistics(packets: u64) -> [Statistics; 2] {
    let one = Statistics {
        start_ns: START_NS,
        end_ns: START_NS + packets * 1000,
        seen: packets / 2 + 30,
        filtered: 20,
        lost: Lost {
            overwritten: 7,
            dropped: 3,
            ..Lost::default()
        },
        dropped_by_interface: Some(5),
        complete: true,
    };
    [one, one]
}

/// Writes `PACKETS` packets, alternating between the interfaces, 1000 ns apart.
fn write(path: &Path, options: &WriterOptions) -> Vec<Account> {
    let mut writer =
        Writer::create(path, options, &section(), &interfaces()).expect("a file in a directory");
    for number in 0..PACKETS {
        let bytes = frame(number, number as usize % 1473);
        let comment = (number == 4).then_some("the fifth packet");
        writer
            .write(&Packet {
                interface: (number % 2) as u32,
                time_ns: START_NS + number * 1000,
                direction: if number % 2 == 0 {
                    Direction::In
                } else {
                    Direction::Out
                },
                wire_bytes: bytes.len() as u32,
                captured: &bytes,
                lost_before: if number == 6 { 10 } else { 0 },
                comment,
            })
            .expect("room");
        if number % 1000 == 999 {
            writer
                .tick(START_NS + number * 1000, &statistics(number))
                .expect("room");
        }
    }
    let Finished {
        accounts, result, ..
    } = writer.finish(&statistics(PACKETS));
    result.expect("room");
    accounts
}

#[test]
fn tshark_sees_every_field() {
    if !has("tshark") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("all.pcapng");
    let accounts = write(&path, &WriterOptions::default());
    assert!(accounts.iter().all(|account| account.difference() == 0));
    let fields = [
        "-T",
        "fields",
        "-e",
        "frame.time_epoch",
        "-e",
        "frame.interface_name",
        "-e",
        "frame.packet_flags_direction",
        "-e",
        "frame.len",
        "-e",
        "frame.cap_len",
        "-e",
        "frame.drop_count",
        "-e",
        "frame.comment",
        "-e",
        "udp.length",
    ];
    let text = tshark(&path, &fields);
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    assert_eq!(lines.len() as u64, PACKETS);
    for (number, line) in (0u64..).zip(&lines) {
        let time_ns = START_NS + number * 1000;
        let payload_bytes = number as usize % 1473;
        let length = (42 + payload_bytes).to_string();
        let time = format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        let expected: [&str; 8] = [
            &time,
            if number % 2 == 0 { "eth0" } else { "eth1" },
            if number % 2 == 0 {
                "0x00000001"
            } else {
                "0x00000002"
            },
            &length,
            &length,
            if number == 6 { "10" } else { "" },
            if number == 4 { "the fifth packet" } else { "" },
            &(8 + payload_bytes).to_string(),
        ];
        assert_eq!(line, &expected, "packet {number}");
    }
}

#[test]
fn capinfos_sees_the_environment() {
    if !has("capinfos") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("all.pcapng");
    write(&path, &WriterOptions::default());
    let text = output_of("capinfos", &[path.to_str().expect("text")], &[]);
    for expected in [
        "some processor",
        "Linux 6.18",
        "parshall 0.1.0",
        r#"{"kernel":"6.18"}"#,
        "nanoseconds (9)",
        "eth0",
        "towards the sender",
        "udp port 5000",
        "Number of packets:   3000",
        "Number of stat entries = ",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }
}

/// Writes every kind of file, and calls `check` with each, if the program that reads them is installed.
fn reads_every_kind(program: &str, check: impl Fn(&Path, Compression)) {
    if !has(program) {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    for name in [
        "t.pcapng",
        "t.pcap",
        "t.pcapng.gz",
        "t.pcapng.zst",
        "t.pcapng.lz4",
        "t.pcap.gz",
        "t.pcap.zst",
        "t.pcap.lz4",
    ] {
        let path = directory.path().join(name);
        let options = WriterOptions::of_name(&path);
        write(&path, &options);
        check(&path, options.compression);
    }
}

/// The time of a packet, as programs print it.
fn seconds(number: u64) -> String {
    let time_ns = START_NS + number * 1000;
    format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000)
}

#[test]
fn tshark_reads_every_kind() {
    reads_every_kind("tshark", |path, _| {
        let fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.len"];
        let text = tshark(path, &fields);
        let expected: String = (0..PACKETS)
            .map(|number| format!("{}\t{}\n", seconds(number), 42 + number % 1473))
            .collect();
        let lines = text.lines().count();
        assert!(text == expected, "{}: {lines} lines", path.display());
    });
}

#[test]
fn tcpdump_reads_every_kind() {
    reads_every_kind("tcpdump", |path, compression| {
        let name = path.to_str().expect("text");
        // libpcap does not decompress: gzip, zstd and lz4 do, which also checks the compression.
        let decompress = match compression {
            Compression::None => "cat",
            Compression::Gzip => "gzip -dc",
            Compression::Zstd if has("zstd") => "zstd -dcq",
            Compression::Lz4 if has("lz4") => "lz4 -dcq",
            Compression::Zstd | Compression::Lz4 => return,
        };
        let line = format!("set -o pipefail; {decompress} {name} | tcpdump -n -tt --nano -r -");
        let text = output_of("bash", &["-c", &line], &["reading from file"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len() as u64, PACKETS, "{name}");
        assert_eq!(
            lines[2].rsplit_once("IP").map(|(_, rest)| rest),
            Some(" 10.0.0.1.4000 > 10.0.0.2.5000: UDP, length 2"),
            "{name}"
        );
        let time = format!("{} ", seconds(2));
        assert!(lines[2].starts_with(&time), "{name}: {}", lines[2]);
    });
}

#[test]
fn tcpdump_follows_a_pipe() {
    use std::io::{BufRead as _, BufReader};
    if !has("tcpdump") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let mut tcpdump = Command::new("tcpdump")
        .args(["-n", "-l", "-r"])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    let options = WriterOptions::default();
    let mut writer =
        Writer::create(&path, &options, &section(), &interfaces()).expect("tcpdump reads");
    let mut lines = BufReader::new(tcpdump.stdout.take().expect("a pipe")).lines();
    for number in 0..20 {
        let bytes = frame(number, 100 + number as usize);
        writer
            .write(&Packet {
                time_ns: START_NS,
                wire_bytes: bytes.len() as u32,
                captured: &bytes,
                ..Packet::default()
            })
            .expect("tcpdump reads");
        writer.caught_up().expect("tcpdump reads");
        let line = lines.next().expect("it goes on").expect("text");
        assert!(
            line.ends_with(&format!("length {}", 100 + number)),
            "{line}"
        );
    }
    writer
        .finish(&statistics(20))
        .result
        .expect("tcpdump reads");
    assert!(tcpdump.wait().expect("it ends").success());
}

#[test]
fn files_of_other_programs_are_read() {
    if !has("editcap") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let ours = directory.path().join("ours.pcapng");
    write(&ours, &WriterOptions::default());
    for format in ["pcapng", "pcap", "nsecpcap", "modpcap"] {
        let theirs = directory.path().join(format);
        let paths = [ours.to_str().expect("text"), theirs.to_str().expect("text")];
        output_of(
            "editcap",
            &[&["-F", format], paths.as_slice()].concat(),
            &[],
        );
        let mut reader = Reader::open(&theirs).expect("a capture file");
        let unit_ns = if format.ends_with("capng") || format == "nsecpcap" {
            1
        } else {
            1000
        };
        for number in 0..PACKETS {
            let packet = reader.next().expect("good").expect("all packets");
            let time_ns = START_NS + number * 1000;
            assert_eq!(packet.time_ns, time_ns / unit_ns * unit_ns, "{format}");
            assert_eq!(
                packet.captured,
                frame(number, number as usize % 1473),
                "{format}"
            );
        }
        assert_eq!(reader.next().expect("good"), None);
    }
}
