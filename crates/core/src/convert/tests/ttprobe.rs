//! ttprobe's formats, as text and in binary.

use super::*;

#[test]
fn ttprobe_golden() {
    let written = text(&with_noise()[1..], &[flow(1, true)], Format::Ttprobe);
    let expected = "o,1700000001.234567,2001:0DB8:0000:0000:0000:0000:0000:0001,5001,2001:0DB8:0000:0000:0000:0000:0000:ABCD,80,0,1448,20125,14480,2147483647,65536,131072,1,1000,3896,1448\n\
        i,1700000002.000001,2001:0DB8:0000:0000:0000:0000:0000:0001,5001,2001:0DB8:0000:0000:0000:0000:0000:ABCD,80,1,1448,20125,14480,28960,65536,131072,1,1000,3896,32\n";
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
    assert_eq!(&record[88..], &[1, b'o', 2, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[2 * 96 + 89], b'i');
}

/// ttprobe calls `tcp_current_ssthresh`: in CWR (2) and Recovery (3) it is `snd_ssthresh`, else at least 3/4 of cwnd.
#[test]
fn the_threshold_is_the_current_one() {
    for (ca_state, cwnd, expected) in [
        (0, 10, 20),
        (0, 41, 30),
        (1, 41, 30),
        (2, 41, 20),
        (3, 41, 20),
        (4, 41, 30),
    ] {
        let record = TcpStateRecord {
            ca_state,
            cwnd_segments: cwnd,
            ..incoming(1, 1000)
        };
        let written = text(&[record], &[flow(1, false)], Format::Ttprobe);
        let field = written.split(',').nth(10).unwrap();
        assert_eq!(
            field,
            (expected * 1448).to_string(),
            "state {ca_state}, cwnd {cwnd}"
        );
        let (bytes, _) = converted(&[record], &[flow(1, false)], Format::TtprobeBinary);
        assert_eq!(bytes[76..80], (expected as u32).to_le_bytes());
    }
}

/// `skb->len` includes the TCP header of received packets, not of sent ones; ttprobe gets no skb of a
/// handshake without a socket.
#[test]
fn the_length_is_that_of_the_hook() {
    let mut plain = flow(1, false);
    (plain.timestamps, plain.sack, plain.window_scaling) = (false, false, false);
    let received = |pkt_flags, payload_bytes| TcpStateRecord {
        pkt_flags,
        payload_bytes,
        state: if pkt_flags & 2 == 0 { 1 } else { 2 },
        ..incoming(1, 1000)
    };
    for (record, flow, expected) in [
        (packet(1, 1000), flow(1, false), 1448),
        (received(0x10, 0), flow(1, false), 32),
        (received(0x18, 1448), flow(1, false), 1480),
        (received(0x12, 0), flow(1, false), 40),
        (received(0x18, 1448), plain.clone(), 1468),
        (received(0x12, 0), plain.clone(), 24),
    ] {
        let handshake = TcpStateRecord {
            state: 12,
            ..packet(1, 500)
        };
        let flows = [flow];
        let written = text(&[handshake, record], &flows, Format::Ttprobe);
        let fields: Vec<&str> = written.trim_end().split(',').collect();
        assert_eq!(
            (fields.len(), fields[6], fields[16]),
            (17, "0", expected.to_string().as_str())
        );
        let (bytes, _) = converted(&[handshake, record], &flows, Format::TtprobeBinary);
        assert_eq!(
            (bytes.len(), &bytes[52..54]),
            (96, &(expected as u16).to_le_bytes()[..])
        );
    }
}
