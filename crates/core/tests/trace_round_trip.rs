//! Files are read back as written, and damaged files up to the damage.

use parshall_core::ledger::Lost;
use parshall_core::trace::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

/// A packet that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    interface: u32,
    time_ns: u64,
    direction: Direction,
    wire_bytes: u32,
    captured: Vec<u8>,
    lost_before: u64,
    comment: Option<String>,
}

impl Owned {
    fn of(packet: &Packet) -> Self {
        Self {
            interface: packet.interface,
            time_ns: packet.time_ns,
            direction: packet.direction,
            wire_bytes: packet.wire_bytes,
            captured: packet.captured.to_vec(),
            lost_before: packet.lost_before,
            comment: packet.comment.map(str::to_owned),
        }
    }

    fn packet(&self) -> Packet<'_> {
        Packet {
            interface: self.interface,
            time_ns: self.time_ns,
            direction: self.direction,
            wire_bytes: self.wire_bytes,
            captured: &self.captured,
            lost_before: self.lost_before,
            comment: self.comment.as_deref(),
        }
    }
}

/// Memory that stays readable while a writer has it.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Sink for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("one thread").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn cut(&mut self, length_bytes: u64) -> std::io::Result<bool> {
        let mut bytes = self.0.lock().expect("one thread");
        bytes.truncate(length_bytes as usize);
        Ok(true)
    }

    fn overwrite_from(&mut self, _position_bytes: u64) -> std::io::Result<bool> {
        Ok(false)
    }

    fn is_live(&self) -> bool {
        false
    }
}

fn packets() -> impl Strategy<Value = Vec<Owned>> {
    let direction = prop_oneof![
        Just(Direction::Unknown),
        Just(Direction::In),
        Just(Direction::Out)
    ];
    let one = (
        0..3u32,
        any::<u64>(),
        direction,
        vec(any::<u8>(), 0..100),
        0..2000u32,
        prop_oneof![4 => Just(0), 1 => any::<u64>()],
        option::weighted(0.2, "\\PC{0,20}"),
    )
        .prop_map(
            |(interface, time_ns, direction, captured, more_bytes, lost_before, comment)| Owned {
                interface,
                time_ns,
                direction,
                wire_bytes: captured.len() as u32 + more_bytes,
                captured,
                lost_before,
                comment,
            },
        );
    vec(one, 0..60)
}

fn interfaces() -> impl Strategy<Value = Vec<Interface>> {
    let one = (
        "[a-z0-9.]{0,15}",
        option::of("\\PC{1,20}"),
        prop_oneof![Just(LINK_TYPE_ETHERNET), Just(LINK_TYPE_RAW)],
        prop_oneof![Just(0u32), 1000..70_000u32],
        option::of("[a-z0-9 ]{1,20}"),
        option::of(any::<u64>()),
        option::of("[A-Za-z0-9 .]{1,20}"),
    )
        .prop_map(
            |(name, description, link_type, snaplen_bytes, filter, speed_bps, os)| Interface {
                name,
                description,
                link_type,
                snaplen_bytes,
                filter,
                speed_bps,
                os,
                resolution_ns: 1,
            },
        );
    vec(one, 3)
}

fn compressions() -> impl Strategy<Value = Compression> {
    prop_oneof![
        Just(Compression::None),
        Just(Compression::Gzip),
        Just(Compression::Zstd),
        Just(Compression::Lz4)
    ]
}

/// Writes packets into memory, with a flush after each `flush_every`.
fn write(
    options: &WriterOptions,
    section: &Section,
    interfaces: &[Interface],
    packets: &[Owned],
    flush_every: usize,
) -> Vec<u8> {
    let memory = Memory::default();
    let sink = Box::new(memory.clone());
    let mut writer =
        Writer::to_sink(sink, "memory", options, section, interfaces).expect("good options");
    for (number, packet) in packets.iter().enumerate() {
        writer.write(&packet.packet()).expect("memory takes all");
        if number % flush_every == 0 {
            writer.flush().expect("memory takes all");
        }
    }
    let statistics: Vec<Statistics> = (0..interfaces.len() as u32)
        .map(|interface| Statistics {
            start_ns: 5,
            end_ns: u64::MAX,
            seen: packets
                .iter()
                .filter(|packet| packet.interface == interface)
                .count() as u64
                + 111,
            filtered: 11,
            lost: Lost {
                overwritten: 60,
                dropped: 30,
                missed: 7,
                failed: 3,
                unwritten: 0,
            },
            dropped_by_interface: Some(9),
            complete: true,
        })
        .collect();
    let Finished {
        accounts, result, ..
    } = writer.finish(&statistics);
    result.expect("memory takes all");
    for account in accounts {
        assert_eq!(account.difference(), 0, "{}", account.sentence());
    }
    std::mem::take(&mut *memory.0.lock().expect("one thread"))
}

fn open(bytes: Vec<u8>) -> Result<Reader, TraceError> {
    Reader::new(Box::new(Cursor::new(bytes)), "memory")
}

/// All packets up to the end or the error.
fn read(bytes: Vec<u8>) -> (Vec<Owned>, Result<(), TraceError>) {
    let mut packets = Vec::new();
    let mut reader = match open(bytes) {
        Ok(reader) => reader,
        Err(error) => return (packets, Err(error)),
    };
    loop {
        match reader.next() {
            Ok(Some(packet)) => packets.push(Owned::of(&packet)),
            Ok(None) => return (packets, Ok(())),
            Err(error) => {
                assert!(matches!(reader.next(), Ok(None)), "none after an error");
                return (packets, Err(error));
            }
        }
    }
}

proptest! {
    #[test]
    fn pcapng_returns_everything(
        packets in packets(),
        interfaces in interfaces(),
        compression in compressions(),
        texts in (option::of("\\PC{1,30}"), option::of("\\PC{1,30}"), vec("\\PC{1,30}", 0..3)),
        flush_every in 1..50usize,
    ) {
        let section = Section {
            hardware: texts.0,
            os: texts.1,
            application: Some("proptest".into()),
            comments: texts.2,
        };
        let options = WriterOptions { compression, ..Default::default() };
        let bytes = write(&options, &section, &interfaces, &packets, flush_every);
        let mut reader = open(bytes.clone()).expect("a good file");
        while reader.next().expect("a good file").is_some() {}
        prop_assert_eq!(reader.section(), &section);
        prop_assert_eq!(reader.interfaces(), &interfaces);
        for (interface, counters) in (0u32..).zip(reader.counters()) {
            let counters = counters.clone().expect("statistics of each");
            let logged = packets.iter().filter(|packet| packet.interface == interface).count() as u64;
            prop_assert_eq!(counters.received, Some(logged + 111));
            prop_assert_eq!(counters.accepted, Some(logged + 100));
            prop_assert_eq!(counters.dropped_by_os, Some(100));
            prop_assert_eq!(counters.delivered, Some(logged));
            prop_assert_eq!(counters.dropped_by_interface, Some(9));
            prop_assert_eq!(counters.start_ns, Some(5));
            prop_assert_eq!(counters.end_ns, Some(u64::MAX));
            let ledger: serde_json::Value = serde_json::from_str(&counters.comments[1]).expect("JSON");
            prop_assert_eq!(&ledger["parshall_ledger"]["logged"], &serde_json::json!(logged));
            prop_assert_eq!(&ledger["parshall_ledger"]["lost"]["missed"], &serde_json::json!(7));
            prop_assert_eq!(&ledger["parshall_ledger"]["complete"], &serde_json::json!(true));
        }
        let (again, result) = read(bytes);
        result.expect("a good file");
        prop_assert_eq!(again, packets);
    }

    #[test]
    fn pcap_returns_times_lengths_and_bytes(
        packets in packets(),
        compression in compressions(),
        snaplen_bytes in prop_oneof![Just(0u32), 1..120u32],
        flush_every in 1..50usize,
    ) {
        let interfaces = vec![Interface::default(); 3];
        let options = WriterOptions { format: Format::Pcap, compression, snaplen_bytes, ..Default::default() };
        let bytes = write(&options, &Section::default(), &interfaces, &packets, flush_every);
        let (again, result) = read(bytes);
        result.expect("a good file");
        let most = if snaplen_bytes == 0 { usize::MAX } else { snaplen_bytes as usize };
        let expected: Vec<Owned> = packets
            .into_iter()
            .map(|packet| Owned {
                interface: 0,
                // Seconds have 32 bits in this format.
                time_ns: packet.time_ns / 1_000_000_000 % (1 << 32) * 1_000_000_000 + packet.time_ns % 1_000_000_000,
                direction: Direction::Unknown,
                captured: packet.captured[..packet.captured.len().min(most)].to_vec(),
                lost_before: 0,
                comment: None,
                ..packet
            })
            .collect();
        prop_assert_eq!(again, expected);
    }

    #[test]
    fn a_truncated_file_gives_the_packets_before_the_cut_and_an_error(
        packets in packets(),
        compression in compressions(),
        pcap in any::<bool>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let format = if pcap { Format::Pcap } else { Format::Pcapng };
        let options = WriterOptions { format, compression, ..Default::default() };
        let interfaces = vec![Interface::default(); 3];
        let mut bytes = write(&options, &Section::default(), &interfaces, &packets, 7);
        let (whole, result) = read(bytes.clone());
        result.expect("a good file");
        bytes.truncate(cut.index(bytes.len()));
        let (before, result) = read(bytes.clone());
        prop_assert!(whole.starts_with(&before));
        if let Err(error) = result {
            let message = error.to_string();
            prop_assert!(message.starts_with("memory: "), "{}", message);
            prop_assert!(!message.contains('\n'), "{}", message);
        } else {
            // A cut between two blocks or two frames cannot be detected.
            let (_, result) = read(bytes[..bytes.len() - 1].to_vec());
            prop_assert!(result.is_err());
        }
    }

    #[test]
    fn damage_is_an_error_or_other_bytes_but_never_a_panic(
        packets in packets(),
        compression in compressions(),
        pcap in any::<bool>(),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let format = if pcap { Format::Pcap } else { Format::Pcapng };
        let options = WriterOptions { format, compression, ..Default::default() };
        let interfaces = vec![Interface::default(); 3];
        let mut bytes = write(&options, &Section::default(), &interfaces, &packets, 7);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        if let (_, Err(error)) = read(bytes) {
            prop_assert!(error.to_string().starts_with("memory: "));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        magic in prop_oneof![
            Just(vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]),
            Just(vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0]),
            Just(vec![0xa1, 0xb2, 0xcd, 0x34, 0, 2, 0, 3]),
            Just(vec![0x1f, 0x8b, 8, 0]),
            Just(vec![0x28, 0xb5, 0x2f, 0xfd]),
            Just(vec![]),
        ],
        rest in vec(prop_oneof![Just(0u8), 0..16u8, any::<u8>()], 0..300),
    ) {
        let bytes = [magic, rest].concat();
        let _ = read(bytes);
    }
}

#[test]
fn a_pcap_file_has_one_link_type() {
    let other = Interface {
        name: "tun0".into(),
        link_type: LINK_TYPE_RAW,
        ..Interface::default()
    };
    let options = WriterOptions {
        format: Format::Pcap,
        ..Default::default()
    };
    let sink = Box::new(Memory::default());
    let section = Section::default();
    let interfaces = [Interface::default(), other];
    let error = Writer::to_sink(sink, "memory", &options, &section, &interfaces)
        .err()
        .expect("two link types do not fit")
        .to_string();
    assert!(
        error.contains("tun0") && error.contains("write pcapng"),
        "{error}"
    );
}

#[test]
fn a_packet_of_an_unknown_interface_is_refused() {
    let sink = Box::new(Memory::default());
    let (options, section) = (WriterOptions::default(), Section::default());
    let mut writer = Writer::to_sink(sink, "memory", &options, &section, &[Interface::default()])
        .expect("good options");
    let error = writer
        .write(&Packet {
            interface: 1,
            ..Packet::default()
        })
        .expect_err("there is one interface");
    assert!(error.to_string().contains("1 interfaces"), "{error}");
}

#[test]
fn errors_describe_other_kinds_of_files() {
    for (bytes, expected) in [
        (b"".as_slice(), "is empty"),
        (b"\xfd7zXZ\0\0\0", "compressed with xz"),
        (
            b"hello, world",
            "starts with the bytes 68 65 6c 6c 6f 2c 20 77",
        ),
        (b"\xa1", "starts with the bytes a1"),
    ] {
        let error = open(bytes.to_vec())
            .err()
            .expect("no capture file")
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("expected a capture file"), "{error}");
    }
}

#[test]
fn damage_is_reported_with_its_position() {
    let packet = Owned {
        interface: 0,
        time_ns: 1,
        direction: Direction::In,
        wire_bytes: 60,
        captured: vec![7; 60],
        lost_before: 0,
        comment: None,
    };
    let packets = vec![packet; 10];
    let (options, section) = (WriterOptions::default(), Section::default());
    let bytes = write(&options, &section, &[Interface::default()], &packets, 100);
    // 32 bytes of section, 32 of interface; 60 + 44 of each packet. The second byte of a number counts 256.
    let fourth = 64 + 3 * 104;
    for (at, expected) in [
        (5, "ends with the length"),
        (9, "a packet of interface 256"),
        (21, "a packet of 316 captured bytes"),
        (101, "104 bytes that ends with the length 360"),
    ] {
        let mut damaged = bytes.clone();
        damaged[fourth + at] ^= 1;
        let (before, result) = read(damaged);
        let message = result.expect_err("damage").to_string();
        assert_eq!(before.len(), 3, "{message}");
        assert!(
            message.starts_with(&format!("memory: damaged at byte {fourth}: ")),
            "{message}"
        );
        assert!(message.contains(expected), "{message} lacks {expected}");
        assert!(
            message.contains("the 3 packets before it are good"),
            "{message}"
        );
    }
    let (before, result) = read(bytes[..fourth + 50].to_vec());
    assert_eq!(before.len(), 3);
    assert_eq!(
        result.expect_err("cut").to_string(),
        format!(
            "memory: ends at byte {} within a block that starts at byte {fourth}; the 3 packets before it are good",
            fourth + 50
        )
    );
}
