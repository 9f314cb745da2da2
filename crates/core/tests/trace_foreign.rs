//! Files of other programs: the other byte order, other resolutions, old blocks, many sections, variants of
//! classic pcap.

use parshall_core::trace::*;
use std::io::Cursor;

fn reader(bytes: &[u8]) -> Reader {
    Reader::new(Box::new(Cursor::new(bytes.to_vec())), "memory").expect("a capture file")
}

/// Writes numbers in one byte order.
struct Builder {
    is_big: bool,
    bytes: Vec<u8>,
}

impl Builder {
    fn new(is_big: bool) -> Self {
        let bytes = Vec::new();
        Self { is_big, bytes }
    }

    fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes.extend(match self.is_big {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        });
        self
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes.extend(match self.is_big {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        });
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes.extend(match self.is_big {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        });
        self
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn block(&mut self, kind: u32, content: impl FnOnce(&mut Builder)) -> &mut Self {
        let mut inside = Builder::new(self.is_big);
        content(&mut inside);
        inside
            .bytes
            .resize(inside.bytes.len().next_multiple_of(4), 0);
        let length = inside.bytes.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&inside.bytes).u32(length)
    }

    fn section(&mut self) -> &mut Self {
        self.block(0x0a0d_0d0a, |block| {
            block.u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX);
        })
    }

    fn interface(&mut self, snaplen: u32, resolution: Option<u8>, offset_s: u64) -> &mut Self {
        self.block(1, |block| {
            block.u16(1).u16(0).u32(snaplen);
            if let Some(resolution) = resolution {
                block.u16(9).u16(1).raw(&[resolution, 0, 0, 0]);
            }
            block.u16(14).u16(8).u64(offset_s);
            block.u16(0).u16(0);
        })
    }

    fn packet(&mut self, interface: u32, time: u64, captured: &[u8]) -> &mut Self {
        self.block(6, |block| {
            block
                .u32(interface)
                .u32((time >> 32) as u32)
                .u32(time as u32);
            block.u32(captured.len() as u32).u32(1500).raw(captured);
        })
    }
}

#[test]
fn sections_of_either_byte_order_follow_each_other() {
    let mut bytes = Vec::new();
    for is_big in [false, true, true, false] {
        let mut builder = Builder::new(is_big);
        builder.section();
        builder.interface(0, Some(9), 0).interface(0, None, 100);
        builder.block(0x0bad, |block| {
            block.raw(b"of unknown content");
        });
        builder.packet(1, 7, &[1, 2, 3]).packet(0, 1 << 40, &[4]);
        bytes.extend(builder.bytes);
    }
    let mut reader = reader(&bytes);
    for section in 0..4 {
        let packet = reader.next().expect("good").expect("two a section");
        assert_eq!(packet.interface, 2 * section + 1);
        assert_eq!(packet.time_ns, 100_000_007_000, "microseconds, and 100 s");
        assert_eq!(
            (packet.captured, packet.wire_bytes),
            ([1, 2, 3].as_slice(), 1500)
        );
        let packet = reader.next().expect("good").expect("two a section");
        assert_eq!((packet.interface, packet.time_ns), (2 * section, 1 << 40));
    }
    assert_eq!(reader.next().expect("good"), None);
    assert_eq!(reader.interfaces().len(), 8);
    assert_eq!(reader.interfaces()[1].resolution_ns, 1000);
}

#[test]
fn old_and_simple_packet_blocks_are_read() {
    let mut builder = Builder::new(true);
    builder.section().interface(5, None, 0);
    builder.block(2, |block| {
        block
            .u16(0)
            .u16(3)
            .u32(0)
            .u32(9)
            .u32(2)
            .u32(70)
            .raw(&[8, 9, 0, 0]);
        block.u16(2).u16(4).u32(2).u16(0).u16(0);
    });
    builder.block(3, |block| {
        block.u32(9).raw(&[1, 2, 3, 4, 5]);
    });
    let mut reader = reader(&builder.bytes);
    let old = reader.next().expect("good").expect("a packet");
    assert_eq!(
        (old.time_ns, old.lost_before, old.direction),
        (9000, 3, Direction::Out)
    );
    assert_eq!((old.captured, old.wire_bytes), ([8, 9].as_slice(), 70));
    let simple = reader.next().expect("good").expect("a packet");
    assert_eq!(
        (simple.captured, simple.wire_bytes),
        ([1, 2, 3, 4, 5].as_slice(), 9)
    );
    assert_eq!(reader.next().expect("good"), None);
}

#[test]
fn a_block_that_is_longer_than_the_buffer_is_read() {
    let large = vec![7; 3 << 20];
    let mut builder = Builder::new(false);
    builder.section().interface(0, None, 0).packet(0, 1, &[1]);
    builder.block(0x0bad, |block| {
        block.raw(&large);
    });
    builder.packet(0, 2, &large).packet(0, 3, &[3]);
    let mut reader = reader(&builder.bytes);
    for (time_ns, bytes) in [(1000, 1), (2000, 3 << 20), (3000, 1)] {
        let packet = reader.next().expect("good").expect("three");
        assert_eq!((packet.time_ns, packet.captured.len()), (time_ns, bytes));
    }
}

/// A classic file with two packets at 5.000000007 (or as exact as the unit is).
fn pcap(is_big: bool, magic: u32, version: (u16, u16), fraction: u32) -> Vec<u8> {
    let mut builder = Builder::new(is_big);
    builder
        .u32(magic)
        .u16(version.0)
        .u16(version.1)
        .u64(0)
        .u32(96)
        .u32(101);
    if magic >> 16 == 0x1c00 {
        builder.u32(1234);
    }
    for _ in 0..2 {
        let lengths = if version.1 < 3 && version.0 == 2 {
            (60, 3)
        } else {
            (3, 60)
        };
        builder.u32(5).u32(fraction).u32(lengths.0).u32(lengths.1);
        if magic == 0xa1b2_cd34 {
            builder.u32(2).u16(0x800).u16(0);
        }
        builder.raw(&[1, 2, 3]);
    }
    builder.bytes
}

#[test]
fn classic_variants_are_recognised_by_their_heads() {
    for is_big in [false, true] {
        for (magic, version, fraction, time_ns) in [
            (0xa1b2_c3d4, (2, 4), 7, 5_000_007_000),
            (0xa1b2_c3d4, (2, 2), 7, 5_000_007_000),
            (0xa1b2_c3d4, (2, 3), 7, 5_000_007_000),
            (0xa1b2_c3d4, (543, 0), 7, 5_000_007_000),
            (0xa1b2_3c4d, (2, 4), 7, 5_000_000_007),
            (0xa1b2_cd34, (2, 4), 7, 5_000_007_000),
            (0x1c00_01ac, (2, 4), 7, 5_000_000_007),
            (0x1c00_01ab, (2, 4), 7, 5_000_000_007u64),
        ] {
            let bytes = pcap(is_big, magic, version, fraction);
            let mut reader = reader(&bytes);
            assert_eq!(reader.interfaces()[0].link_type, 101);
            for _ in 0..2 {
                let packet = reader.next().expect("good").expect("two packets");
                assert_eq!(packet.time_ns, time_ns, "{magic:x} {version:?} {is_big}");
                assert_eq!(
                    (packet.captured, packet.wire_bytes),
                    ([1, 2, 3].as_slice(), 60)
                );
            }
            assert_eq!(reader.next().expect("good"), None);
        }
    }
}

#[test]
fn an_unknown_version_is_reported() {
    let bytes = pcap(false, 0xa1b2_c3d4, (3, 0), 0);
    let error = Reader::new(Box::new(Cursor::new(bytes)), "memory")
        .err()
        .expect("no such version")
        .to_string();
    assert!(error.contains("version 3.0"), "{error}");
}
