//! ttprobe's formats, as text and in binary.

use super::*;

#[test]
fn ttprobe_golden() {
    let written = text(&with_noise()[1..], &[flow(1, true)], Format::Ttprobe);
    let expected = "o,1700000001.234567,2001:0DB8:0000:0000:0000:0000:0000:0001,5001,2001:0DB8:0000:0000:0000:0000:0000:ABCD,80,7,1448,20125,14480,2147483647,65536,131072,1,1000,3896,1448\n\
        i,1700000002.000001,2001:0DB8:0000:0000:0000:0000:0000:0001,5001,2001:0DB8:0000:0000:0000:0000:0000:ABCD,80,7,1448,20125,14480,28960,65536,131072,1,1000,3896,0\n";
    assert_eq!(written, expected);
}

#[test]
fn ttprobe_binary_golden() {
    let (bytes, report) = converted(&with_noise(), &[flow(1, false)], Format::TtprobeBinary);
    assert_eq!((bytes.len(), report.rows), (3 * 96, 3));
    let record = &bytes[96..192];
    let u64_at = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    assert_eq!((u64_at(0), u64_at(8)), (1_700_000_001, 234_567));
    assert_eq!(
        (&record[16..20], &record[32..36]),
        (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..])
    );
    assert_eq!(&record[48..54], &[0x13, 0x89, 0, 80, 0xa8, 0x05]);
    let words: Vec<u32> = (56..88).step_by(4).map(u32_at).collect();
    assert_eq!(
        words,
        [3896, 1000, 65_536, 131_072, 10, 0x7fff_ffff, 20_125, 1448]
    );
    assert_eq!(&record[88..], &[1, 1, 2, 0, 0, 0, 0, 0]);
}
