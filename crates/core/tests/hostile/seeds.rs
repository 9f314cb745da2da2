//! Small valid inputs of every kind, made by our own writers where possible.

use parshall_core::abi::{TcpFlowRecord, TcpStateRecord, read_plain};
use parshall_core::ledger::{HookAccount, Ledger};
use parshall_core::tcp_log::{FlowRow, LogHeader, LogWriter};
use parshall_core::trace::{
    Compression, Format, Interface, LINK_TYPE_ETHERNET, LINK_TYPE_RAW, Packet, Section, Sink,
    Statistics, Writer, WriterOptions,
};
use std::io;
use std::sync::{Arc, Mutex};

/// A model with every field.
const EVERY_FIELD: &[u8] = include_bytes!("model.json");

pub fn logs() -> Vec<Vec<u8>> {
    vec![log(0), log(1), log(40), log(700)]
}

pub fn conversions() -> Vec<Vec<u8>> {
    logs()
}

/// A complete log of this many records of three flows.
fn log(records: u64) -> Vec<u8> {
    let header = LogHeader {
        environment: r#"{"kernel":{"release":"6.18.0"}}"#.into(),
        clock: r#"{"clock":"CLOCK_REALTIME","monotonic_offset_ns":1000000000000}"#.into(),
        options: "{}".into(),
        hz: 1000,
        part: None,
    };
    let mut writer = LogWriter::create_with(Vec::new(), &header, 256).expect("memory takes all");
    let states: Vec<TcpStateRecord> = (0..records).map(state).collect();
    for states in states.chunks(300) {
        writer.push_block(states).expect("memory takes all");
        let flows = (0..3).map(flow).collect();
        writer
            .tick(flows, &Ledger::default(), false)
            .expect("memory takes all");
    }
    let ledger = Ledger {
        hooks: vec![HookAccount::default(); 2],
        complete: true,
        ..Ledger::default()
    };
    writer
        .tick(Vec::new(), &ledger, true)
        .expect("memory takes all");
    writer.finish().expect("memory takes all");
    writer.into_inner()
}

fn state(number: u64) -> TcpStateRecord {
    // Some columns change with every record, some now and then, some never.
    let mut bytes = [0_u8; size_of::<TcpStateRecord>()];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = match place % 7 {
            0 => (number + place as u64) as u8,
            3 => (number / 50) as u8,
            _ => 0,
        };
    }
    let state: Option<TcpStateRecord> = read_plain(&bytes);
    TcpStateRecord {
        flow: (number % 3) as u32,
        time_ns: number * 1000,
        ..state.unwrap_or_default()
    }
}

fn flow(flow: u32) -> FlowRow {
    let mut record = TcpFlowRecord {
        flow,
        local_port: 5000,
        remote_port: 80,
        ..TcpFlowRecord::default()
    };
    record.local_address[10..].copy_from_slice(&[255, 255, 10, 0, 0, 1]);
    record.congestion_control[..5].copy_from_slice(b"cubic");
    FlowRow::new(&record, 0)
}

/// Frames of some kinds; none is longer than 100 bytes.
pub fn frames() -> Vec<Vec<u8>> {
    let ethernet = |kind: [u8; 2], rest: &[u8]| [&[2; 12], &kind[..], rest].concat();
    let mut ipv4 = vec![
        0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0, 80,
    ];
    ipv4.resize(60, 0);
    let mut ipv6 = vec![0x60, 0, 0, 0, 0, 20, 17, 64];
    ipv6.resize(60, 1);
    vec![
        ethernet([8, 0], &ipv4),
        ethernet([0x86, 0xDD], &ipv6),
        ethernet([0x81, 0], &[&[0, 5, 8, 0], &ipv4[..]].concat()),
        ethernet([8, 6], &[0; 28]),
        ethernet([8, 0], &ipv4[..6]),
        Vec::new(),
    ]
}

/// Memory that stays readable while a writer has it.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Sink for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("one thread").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn cut(&mut self, length_bytes: u64) -> io::Result<bool> {
        self.0
            .lock()
            .expect("one thread")
            .truncate(length_bytes as usize);
        Ok(true)
    }

    fn overwrite_from(&mut self, _position_bytes: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn is_live(&self) -> bool {
        false
    }
}

fn capture(format: Format, compression: Compression, link_type: u16) -> Vec<u8> {
    let memory = Memory::default();
    let options = WriterOptions {
        format,
        compression,
        ..WriterOptions::default()
    };
    let interface = Interface {
        name: "eth0".into(),
        filter: Some("ip".into()),
        link_type,
        ..Interface::default()
    };
    let sink = Box::new(memory.clone());
    let mut writer = Writer::to_sink(sink, "memory", &options, &Section::default(), &[interface])
        .expect("good options");
    for (number, frame) in (0..).zip(frames()) {
        let packet = Packet {
            interface: 0,
            time_ns: 1_000_000_000 + number * 1000,
            wire_bytes: frame.len() as u32 + 100,
            captured: &frame,
            comment: (number == 1).then_some("a remark"),
            ..Packet::default()
        };
        writer.write(&packet).expect("memory takes all");
    }
    writer
        .finish(&[Statistics::default()])
        .result
        .expect("memory takes all");
    std::mem::take(&mut *memory.0.lock().expect("one thread"))
}

pub fn captures() -> Vec<Vec<u8>> {
    let plain = capture(Format::Pcap, Compression::None, LINK_TYPE_ETHERNET);
    vec![
        other_byte_order(&plain),
        plain,
        capture(Format::Pcapng, Compression::None, LINK_TYPE_ETHERNET),
        capture(Format::Pcapng, Compression::None, LINK_TYPE_RAW),
        capture(Format::Pcap, Compression::Gzip, LINK_TYPE_ETHERNET),
        capture(Format::Pcapng, Compression::Zstd, LINK_TYPE_ETHERNET),
    ]
}

/// A classic capture of one packet, as a machine of the other byte order writes it.
fn other_byte_order(capture: &[u8]) -> Vec<u8> {
    let mut bytes = capture.to_vec();
    let mut at = 0;
    for width in [4, 2, 2, 4, 4, 4, 4, 4, 4, 4, 4] {
        bytes[at..at + width].reverse();
        at += width;
    }
    bytes.truncate(at + frames()[0].len());
    bytes
}

pub fn captured_sizes() -> Vec<Vec<u8>> {
    captures()
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub fn sizes() -> Vec<Vec<u8>> {
    texts(&[
        "# sizes\n40 1500 576 40 40\n1500\n",
        "64\n",
        "1 65535 40\r\n",
    ])
}

pub fn dist() -> Vec<Vec<u8>> {
    texts(&[
        "40 7\n576 3\n1500 12\n",
        "64 18446744073709551615\n",
        "40\t1\n# end\n",
    ])
}

pub fn procfs() -> Vec<Vec<u8>> {
    texts(&[
        "pgset \"dist 100 20 1500 2 2\"\noutl 40 30\noutl 1500 20\nhist 40 60\npgset \"hist 1480 40\"\nflag X\n",
        "dist 1000 10 1500 1 3\noutl 64 500\nhist 0 100\nhist 10 200\nhist 1490 200\n",
    ])
}

pub fn distributions() -> Vec<Vec<u8>> {
    texts(&[
        "poisson:mean=2us",
        "bursts:size=8,inside=0,period=1ms,pause=exponential",
        "onoff:sources=4,on=50,off=150,gap=4,slot=100ns",
        "pareto-onoff:sources=16,on=1ms,off=3ms,on-shape=1.5,off-shape=1.5,gap=10us",
        "weibull:shape=0.5,mean=1us",
        "lognormal:variation=2,mean=1us",
        "hyperexponential:p=0.1/0.9,mean=9us/1us",
        "erlang:stages=3,mean=1us",
        "geometric:mean=3us",
        "uniform:low=5ns,high=1us",
        "normal:mean=5us,deviation=1us",
        "exponential:mean=2us",
        "40-1500",
        "imix",
        "64",
    ])
}

pub fn models() -> Vec<Vec<u8>> {
    vec![EVERY_FIELD.to_vec()]
}

/// Two programs as `tcpdump -ddd` has them, with the mark between programs.
pub fn filters() -> Vec<Vec<u8>> {
    // "tcp port 80", without fragments: the second begins like it.
    let instructions: [(u16, u8, u8, u32); 24] = [
        (0x28, 0, 0, 12),
        (0x15, 0, 8, 0x800),
        (0x30, 0, 0, 23),
        (0x15, 0, 6, 6),
        (0x28, 0, 0, 20),
        (0x45, 4, 0, 0x1FFF),
        (0xB1, 0, 0, 14),
        (0x48, 0, 0, 16),
        (0x15, 0, 1, 80),
        (0x06, 0, 0, 262_144),
        (0x06, 0, 0, 0),
        (0x16, 0, 0, 0),
        (0x28, 0, 0, 12),
        (0x02, 0, 0, 3),
        (0x54, 0, 0, 0xFF00),
        (0x15, 0, 6, 0x8600),
        (0x80, 0, 0, 0),
        (0x35, 0, 4, 60),
        (0x61, 0, 0, 3),
        (0x87, 0, 0, 0),
        (0x04, 0, 0, 1),
        (0x74, 0, 0, 3),
        (0x06, 0, 0, 96),
        (0x06, 0, 0, 0),
    ];
    let bytes = |of: &[(u16, u8, u8, u32)]| {
        let bytes = of.iter().flat_map(|&(code, jt, jf, k)| {
            let [low, high] = code.to_le_bytes();
            let k = k.to_le_bytes();
            [low, high, jt, jf, k[0], k[1], k[2], k[3]]
        });
        bytes.collect::<Vec<u8>>()
    };
    vec![
        bytes(&instructions),
        bytes(&instructions[12..]),
        bytes(&instructions[9..11]),
    ]
}
