//! SIFTR's formats, line by line, and back.

use super::*;

#[test]
fn siftr_1_3_golden() {
    let expected = "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=1.3.0\tsysname=Linux\tsysver=618003\tipmode=4\n\
        o,1700000001.234567,10.0.0.1,5001,10.0.0.2,80,1073725440,14480,32,65536,131072,7,9,4,1448,20125,1,992,220000,87040,4608,131072,12,2896,0,1,0\n\
        i,1700000002.000001,10.0.0.1,5001,10.0.0.2,80,28960,14480,32,65536,131072,7,9,4,1448,20125,1,992,220000,87040,4608,131072,12,2896,0,1,0\n\
        disable_time_secs=1700000002\tdisable_time_usecs=000001\tnum_inbound_tcp_pkts=1\tnum_outbound_tcp_pkts=2\ttotal_tcp_pkts=3\t\
        num_inbound_skipped_pkts_malloc=0\tnum_outbound_skipped_pkts_malloc=0\tnum_inbound_skipped_pkts_tcpcb=0\tnum_outbound_skipped_pkts_tcpcb=1\t\
        num_inbound_skipped_pkts_inpcb=0\tnum_outbound_skipped_pkts_inpcb=0\ttotal_skipped_tcp_pkts=1\tflow_list=10.0.0.1;5001-10.0.0.2;80,\n";
    assert_eq!(
        text(&with_noise(), &[flow(1, false)], Format::Siftr13),
        expected
    );
}

#[test]
fn siftr_1_2_golden() {
    let written = text(&with_noise(), &[flow(1, false)], Format::Siftr12);
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(
        lines[0],
        "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=1.2.4\thz=1000\ttcp_rtt_scale=32\tsysname=Linux\tsysver=618003\tipmode=4"
    );
    assert_eq!(
        lines[1],
        "o,0x00000000,1700000001.234567,10.0.0.1,5001,10.0.0.2,80,1073725440,14480,0,65536,131072,7,9,4,1448,644,1,992,220,87040,4608,131072,12,2896,0,20"
    );
    assert_eq!(lines.len(), 4);
    assert!(lines[3].contains("skipped_pkts_malloc=0\tnum_inbound_skipped_pkts_mtx=0\tnum_outbound_skipped_pkts_mtx=0\tnum_inbound_skipped_pkts_tcpcb=0"));
    // As TEACUP does: words 4 and 5 of the head scale column 17 to seconds.
    let words: Vec<f64> = lines[0]
        .split('\t')
        .filter_map(|word| word.split('=').nth(1)?.parse().ok())
        .collect();
    let srtt_ms = lines[1].split(',').nth(16).unwrap().parse::<f64>().unwrap() * 1000.0
        / (words[2] * words[3]);
    assert!((srtt_ms - 20.125).abs() < 0.02, "{srtt_ms}");
}

/// Column 27 is in ticks of 1 ms, as TEACUP reads it; 0 means no sample yet.
#[test]
fn the_enhanced_rtt_of_siftr_1_2_is_in_ticks() {
    for (srtt_us, ticks) in [
        (0, "0"),
        (300, "1"),
        (1499, "1"),
        (25_400, "25"),
        (25_500, "26"),
    ] {
        let record = TcpStateRecord {
            srtt_us_x8: srtt_us * 8,
            ..packet(1, 1000)
        };
        let written = text(&[record], &[flow(1, false)], Format::Siftr12);
        let line = written.lines().nth(1).unwrap();
        assert_eq!(line.split(',').nth(26), Some(ticks), "{srtt_us} us");
    }
}

/// FreeBSD 9 counts a new segment in `snd_max` when the hook sees it, FreeBSD of today and Linux later.
#[test]
fn new_data_is_in_flight_in_siftr_1_2_only() {
    let new = TcpStateRecord {
        pkt_seq: 3896,
        payload_bytes: 2896,
        pkt_flags: 0x11,
        ..packet(1, 1000)
    };
    let acknowledged = TcpStateRecord {
        payload_bytes: 0,
        pkt_flags: 0x10,
        ..new
    };
    for (record, version_1_2) in [(new, "5793"), (acknowledged, "2896")] {
        let in_flight = |format, field: usize| {
            let written = text(&[record], &[flow(1, false)], format);
            let line = written.lines().nth(1).unwrap().to_string();
            line.split(',').nth(field - 1).unwrap().to_string()
        };
        assert_eq!(in_flight(Format::Siftr12, 25), version_1_2);
        assert_eq!(in_flight(Format::Siftr13, 24), "2896");
    }
}

/// `tcp_compute_pipe` leaves out SACKed and lost bytes, and adds retransmitted ones.
#[test]
fn siftr2_has_the_pipe() {
    let record = TcpStateRecord {
        snd_nxt: 1000 + 10 * 1448,
        sacked_out: 3,
        lost_out: 2,
        retrans_out: 1,
        ..packet(1, 1000)
    };
    let written = text(&[record], &[flow(1, false)], Format::Siftr2);
    let line = written.lines().nth(1).unwrap();
    assert_eq!(
        line.split(',').nth(16),
        Some(format!("{:x}", 6 * 1448).as_str())
    );
}

/// FreeBSD 9 writes all groups of an IPv6 address, today's SIFTR writes `::`.
#[test]
fn ipv6_addresses_are_written_as_each_version_writes_them() {
    for (format, expected) in [
        (Format::Siftr12, "2001:db8:0:0:0:0:0:1"),
        (Format::Siftr13, "2001:db8::1"),
        (Format::Siftr2, "2001:db8::1"),
    ] {
        let written = text(&[packet(1, 1000)], &[flow(1, true)], format);
        let footer = written.lines().last().unwrap();
        assert!(footer.contains(expected), "{footer}");
    }
}

/// A flow without a line has no measured facts, and readers divide by its number of records.
#[test]
fn the_last_line_lists_only_flows_that_have_lines() {
    let handshake = TcpStateRecord {
        state: 12,
        mss_bytes: 0,
        ..packet(2, 900)
    };
    let later = TcpStateRecord {
        mss_bytes: 500,
        ..packet(1, 2000)
    };
    let flows = [flow(1, false), flow(2, false), flow(3, false)];
    for format in [Format::Siftr12, Format::Siftr13, Format::Siftr2] {
        let written = text(&[handshake, packet(1, 1000), later], &flows, format);
        let footer = written.lines().last().unwrap();
        assert!(footer.contains("5001") && !footer.contains("5002") && !footer.contains("5003"));
        if format == Format::Siftr2 {
            // The facts are from the first packet, as in siftr2.
            assert!(footer.contains("\tglobal_flow_cnt=1\t") && footer.contains(",cubic,1448,"));
        } else {
            assert!(footer.contains("num_outbound_skipped_pkts_tcpcb=0\t"));
            assert!(footer.contains("num_outbound_skipped_pkts_inpcb=1\t"));
        }
    }
}

#[test]
fn siftr2_golden() {
    let expected = "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=2.5\trec_fmt=txt\tsysver=Linux 6.18.3-amd64\n\
        00000001,o,4d2,3890,3fffc000,4e9d,5a8,10000,20000,3e0,20,35b60,15400,1200,20000,c,b50,0\n\
        00000001,i,7d0,3890,7120,4e9d,0,10000,20000,3e0,20,35b60,15400,1200,20000,c,b50,0\n\
        disable_time_secs=1700000002\tdisable_time_usecs=000001\tglobal_flow_cnt=1\tring_drops=0\tmax_str_size=88\tgen_flowid_cnt=0\t\
        flow_list=00000001,4,10.0.0.1,5001,10.0.0.2,80,linux,cubic,1448,1,7,9,2,2;\n";
    assert_eq!(
        text(&with_noise(), &[flow(1, false)], Format::Siftr2),
        expected
    );
}

/// The words of the text, 32 bits each; the footer follows a line feed.
#[test]
fn siftr2_binary_golden() {
    let (written, report) = converted(&with_noise(), &[flow(1, false)], Format::Siftr2Binary);
    assert_eq!(report.rows, 2);
    let head = "enable_time_secs=1700000000\tenable_time_usecs=000000\tsiftrver=2.5\trec_fmt=binary\tsysver=Linux 6.18.3-amd64\n";
    let foot = "\ndisable_time_secs=1700000002\tdisable_time_usecs=000001\tglobal_flow_cnt=1\tring_drops=0\trecord_size=72\tgen_flowid_cnt=0\t\
        flow_list=00000001,4,10.0.0.1,5001,10.0.0.2,80,linux,cubic,1448,1,7,9,2,2;\n";
    let words = |direction: u32, since_start_ms, ssthresh, payload| {
        [
            1,
            direction,
            since_start_ms,
            0x3890,
            ssthresh,
            0x4e9d,
            payload,
            0x1_0000,
            0x2_0000,
            0x3e0,
            0x20,
            0x3_5b60,
            0x1_5400,
            0x1200,
            0x2_0000,
            0xc,
            0xb50,
            0,
        ]
    };
    let records = [
        words(1, 0x4d2, 0x3fff_c000, 0x5a8),
        words(0, 0x7d0, 0x7120, 0),
    ];
    let mut expected = head.as_bytes().to_vec();
    expected.extend(records.into_iter().flatten().flat_map(u32::to_le_bytes));
    expected.extend(foot.as_bytes());
    assert_eq!(written, expected);
}

/// SIFTR's state numbers, written out from the description: index is Linux's number.
const FREEBSD_STATES: [u8; 13] = [0, 4, 2, 3, 6, 9, 10, 0, 5, 8, 1, 7, 3];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A reader of SIFTR 1.3 gets the logged values, for any values.
    #[test]
    fn siftr_1_3_parses_back(
        rows in prop::collection::vec((any::<[u32; 8]>(), 0..13u8, any::<bool>(), 0..4u8), 0..80),
        last in any::<[u32; 8]>(),
    ) {
        let records: Vec<TcpStateRecord> = rows.iter().chain([&(last, 1, true, 0)]).enumerate().map(|(number, (words, state, out, event))| TcpStateRecord {
            cwnd_segments: words[0] >> 12,
            ssthresh_segments: words[1] >> 1,
            srtt_us_x8: words[2],
            snd_una: words[3],
            snd_nxt: words[4],
            snd_wnd_bytes: words[5],
            rto_jiffies: words[6] >> 16,
            rcvbuf_used_bytes: words[7],
            state: *state,
            direction: u8::from(*out),
            event: *event,
            ..packet(1, number as u64 * 1_000_003)
        }).collect();
        let written = text(&records, &[flow(1, false)], Format::Siftr13);
        let mut lines = written.lines();
        prop_assert_eq!(lines.next().unwrap().split('\t').count(), 6);
        for value in written.lines().next().unwrap().split('\t').skip(2) {
            prop_assert!(value.split('=').nth(1).unwrap().len() <= 7);
        }
        let expected = records.iter().filter(|record| record.event == 0 && FREEBSD_STATES[usize::from(record.state)] >= 4);
        for record in expected {
            let fields: Vec<&str> = lines.next().unwrap().split(',').collect();
            prop_assert_eq!(fields.len(), 27);
            let number = |field: usize| fields[field - 1].parse::<u64>().unwrap();
            prop_assert_eq!(fields[0], if record.direction == 1 { "o" } else { "i" });
            let ssthresh = u64::from(record.ssthresh_segments) * 1448;
            prop_assert_eq!(number(7), ssthresh.min(1_073_725_440));
            prop_assert_eq!(number(8), u64::from(record.cwnd_segments) * 1448);
            prop_assert_eq!(number(10), u64::from(record.snd_wnd_bytes));
            prop_assert_eq!(number(14), u64::from(FREEBSD_STATES[usize::from(record.state)]));
            prop_assert_eq!(number(16), u64::from(record.srtt_us_x8 / 8));
            prop_assert_eq!(number(19), u64::from(record.rto_jiffies) * 4000);
            prop_assert_eq!(number(23), u64::from(record.rcvbuf_used_bytes));
            prop_assert_eq!(number(24), u64::from(record.snd_nxt.wrapping_sub(record.snd_una)));
            prop_assert_ne!(number(26), 0);
        }
        let footer: Vec<&str> = lines.next().unwrap().split('\t').collect();
        prop_assert_eq!(footer.len(), 13);
        prop_assert!(footer[12].starts_with("flow_list=") && footer[12].ends_with(','));
        prop_assert_eq!(lines.next(), None);
    }
}
