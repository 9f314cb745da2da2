//! Packets are valid for every workload, and the same for the same seed.

use super::*;
use crate::distributions::GapDistribution;
use crate::sizes::{Parameters, SizeDistribution};
use proptest::prelude::*;

fn workload(sizes: &str, gaps: &str, flows: Flows) -> Workload {
    Workload {
        sizes: SizeDistribution::parse(sizes, &Parameters::default()).unwrap(),
        gaps: GapDistribution::parse(gaps, None).unwrap(),
        flows,
        seed: 1,
        is_stamped: false,
        replay: None,
    }
}

fn flows(source: &str, destination: &str) -> Flows {
    Flows::between(source, destination).unwrap()
}

/// Checks every field of a frame, and every checksum by a full calculation.
fn check_frame(frame: &[u8], workload: &Workload, packet: &Packet) {
    let be16 = |offset: usize| u16::from_be_bytes([frame[offset], frame[offset + 1]]);
    let total = |bytes: &[u8]| {
        let mut sum = 0_u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    };
    let mut ip = 14;
    let mut ethertype = be16(12);
    if let Some(vlan) = workload.flows.vlan {
        assert_eq!(ethertype, 0x8100);
        assert_eq!(be16(14), u16::from(vlan.priority) << 13 | vlan.id);
        ethertype = be16(16);
        ip = 18;
    }
    let ip_bytes = packet.ip_bytes as usize;
    assert_eq!(frame.len(), (ip + ip_bytes).max(60));
    let (source_ip, destination_ip) = workload.flows.addresses(packet.flow);
    let (protocol, transport, mut pseudo) = if workload.flows.is_ipv6() {
        assert_eq!(ethertype, 0x86dd);
        assert_eq!(be16(ip + 4) as usize, ip_bytes - 40);
        (frame[ip + 6], ip + 40, frame[ip + 8..ip + 40].to_vec())
    } else {
        assert_eq!(ethertype, 0x0800);
        assert_eq!(frame[ip], 0x45);
        assert_eq!(be16(ip + 2) as usize, ip_bytes);
        assert_eq!(total(&frame[ip..ip + 20]), 0xffff, "IPv4 checksum");
        (frame[ip + 9], ip + 20, frame[ip + 12..ip + 20].to_vec())
    };
    let octets = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    };
    assert_eq!(pseudo, [octets(source_ip), octets(destination_ip)].concat());
    let segment = &frame[transport..ip + ip_bytes];
    pseudo.extend([0, protocol]);
    pseudo.extend((segment.len() as u16).to_be_bytes());
    pseudo.extend(segment);
    let (source_port, destination_port) = workload.flows.ports(packet.flow);
    match workload.flows.protocol {
        Protocol::Udp => {
            assert_eq!(protocol, 17);
            assert_eq!(be16(transport + 4) as usize, segment.len());
            assert_ne!(be16(transport + 6), 0);
        }
        Protocol::Tcp => assert_eq!((protocol, frame[transport + 12]), (6, 0x50)),
        Protocol::Raw(number) => {
            assert_eq!(protocol, number);
            return;
        }
    }
    assert_eq!(
        (be16(transport), be16(transport + 2)),
        (source_port, destination_port)
    );
    assert_eq!(total(&pseudo), 0xffff, "transport checksum");
}

proptest! {
    #[test]
    fn every_packet_is_valid(
        is_ipv6: bool,
        protocol in prop_oneof![Just(Protocol::Udp), Just(Protocol::Tcp), (143_u8..=252).prop_map(Protocol::Raw)],
        vlan in prop::option::of((0_u16..4096, 0_u8..8)),
        is_stamped: bool,
        is_random: bool,
        count in 1_u32..70,
        low in 1_u32..200,
        span in 0_u32..1400,
        seed: u64,
        sent_ns: u64,
    ) {
        let mut flows = if is_ipv6 {
            flows("fd00::1-fd00::7", "fd00:0:0:1::/120")
        } else {
            flows("10.0.0.1-10.0.0.5", "192.168.0.0/28")
        }
        .with_ports("1000-1002", "65530-65535").unwrap()
        .with_macs("02:00:00:00:00:01-02:00:00:00:00:03", "ff:ff:ff:ff:ff:ff").unwrap()
        .with_count(count).unwrap();
        flows.protocol = protocol;
        flows.vlan = vlan.map(|(id, priority)| Vlan { id, priority });
        flows.order = if is_random { Order::Random } else { Order::Cycling };
        let workload = Workload {
            is_stamped,
            replay: None,
            seed,
            ..workload(&format!("{low}-{}", low + span), "fixed:1us", flows)
        };
        let packets = Packets::of(&workload);
        for (sequence, packet) in (0..).zip(Plan::new(&workload, &packets).take(30)) {
            let frame = packets.frame(&packet, sequence, sent_ns);
            check_frame(&frame, &workload, &packet);
            prop_assert_eq!(packet.due_ns, 1000 * sequence);
            prop_assert!(packet.ip_bytes >= low && packet.flow < count);
            if !is_random {
                prop_assert_eq!(u64::from(packet.flow), sequence % u64::from(count));
            }
            if is_stamped {
                let payload = &frame[packets.layout().payload_offset..];
                prop_assert_eq!(&payload[..8], &sequence.to_be_bytes());
                prop_assert_eq!(&payload[8..16], &sent_ns.to_be_bytes());
            }
        }
    }
}

fn digest(workload: &Workload, count: usize) -> String {
    let packets = Packets::of(workload);
    let mut digest = Digest::new(&packets);
    Plan::new(workload, &packets)
        .take(count)
        .for_each(|packet| digest.add(&packet));
    digest.text()
}

#[test]
fn a_seed_fixes_bytes_and_order() {
    let first = workload("thesis", "poisson:mean=1us", flows("10.0.0.1", "10.0.0.2"));
    assert_eq!(digest(&first, 1000), digest(&first, 1000));
    assert_ne!(digest(&first, 1000), digest(&first, 999));
    let other = Workload {
        seed: 2,
        ..first.clone()
    };
    assert_ne!(digest(&first, 1000), digest(&other, 1000));
    // Gaps have a random number stream of their own, and are not in the digest.
    let slower = Workload {
        gaps: GapDistribution::fixed(5.0).unwrap(),
        ..first.clone()
    };
    assert_eq!(digest(&first, 1000), digest(&slower, 1000));
}

#[test]
fn the_digest_of_a_seed_is_fixed_for_ever() {
    let first = workload("thesis", "none", flows("10.0.0.1", "10.0.0.2"));
    assert_eq!(digest(&first, 1000), "efd2df7f10e26143f0eefdaddde01ec6");
}

#[test]
fn small_sizes_are_raised_to_the_length_of_the_headers() {
    let tcp6 = {
        let mut flows = flows("fd00::1", "fd00::2");
        flows.protocol = Protocol::Tcp;
        flows
    };
    let tiny = Workload {
        is_stamped: true,
        ..workload("1", "none", tcp6)
    };
    assert_eq!(tiny.smallest_ip_bytes(), 76);
    assert_eq!(tiny.largest_frame_bytes(), 90);
    // IPv4 with UDP would be 42 bytes: Ethernet pads it.
    let padded = workload("1", "none", flows("10.0.0.1", "10.0.0.2"));
    assert_eq!(
        (padded.largest_ip_bytes(), padded.largest_frame_bytes()),
        (28, 60)
    );
}

#[test]
fn a_rate_becomes_a_mean_gap() {
    let fixed = workload("1500", "none", flows("10.0.0.1", "10.0.0.2"));
    assert_eq!(Rate::Packets(1e6).mean_gap_ns(&fixed).unwrap(), 1000.0);
    assert_eq!(Rate::Bits(1e9).mean_gap_ns(&fixed).unwrap(), 8.0 * 1514.0);
    // 81,274 packets of 1500 bytes a second fill a gigabit link.
    let full = Rate::Load {
        share: 1.0,
        line_bps: 1e9,
    }
    .mean_gap_ns(&fixed)
    .unwrap();
    assert_eq!(full, 8.0 * 1538.0);
    assert!(
        Rate::Load {
            share: 1.1,
            line_bps: 1e9
        }
        .mean_gap_ns(&fixed)
        .is_err()
    );
    assert!(Rate::Packets(0.0).mean_gap_ns(&fixed).is_err());
    assert!(Rate::Bits(f64::NAN).mean_gap_ns(&fixed).is_err());
}

#[test]
fn errors_describe_invalid_flows() {
    let message = |result: Result<Flows, WorkloadError>| result.unwrap_err().to_string();
    assert_eq!(
        message(Flows::between("10.0.0.1", "fd00::1")),
        "destination address \"fd00::1\": is of another family than the source 10.0.0.1; expected two IPv4 or two IPv6 addresses"
    );
    let base = flows("10.0.0.1", "10.0.0.2");
    for result in [
        Flows::between("10.0.0.9-10.0.0.1", "10.0.0.2"),
        Flows::between("10.0.0.1/33", "10.0.0.2"),
        Flows::between("host", "10.0.0.2"),
        base.clone().with_ports("70000", "1"),
        base.clone().with_ports("2-1", "1"),
        base.clone()
            .with_macs("02:00:00:00:00", "02:00:00:00:00:02"),
        base.clone()
            .with_macs("02:00:00:00:00:1", "02:00:00:00:00:02"),
        base.clone().with_count(0),
        base.with_count(65537),
    ] {
        assert!(message(result).contains("; expected "));
    }
    assert_eq!(
        flows("10.0.0.0/24", "::/0".replace("::/0", "10.1.0.1").as_str()).count,
        256
    );
    assert_eq!(flows("fd00::/64", "fd00::1").count, FLOWS_MAX);
}

/// The account of the first `count` packets of a plan, all on time.
fn account_on_time(workload: &Workload, count: usize) -> Account {
    let packets = Packets::of(workload);
    let mut account = Account::new(workload);
    for packet in Plan::new(workload, &packets).take(count) {
        let frame_bytes = workload.frame_bytes(packet.ip_bytes);
        account.add(&packet, frame_bytes, Some(packet.due_ns));
        account.departed(packet.due_ns);
    }
    account
}

#[test]
fn the_report_of_a_plan_is_close_to_the_distribution() {
    let workload = workload("thesis", "poisson:mean=1us", flows("10.0.0.1", "10.0.0.2"));
    let account = account_on_time(&workload, 600_000);
    let sizes = account.sizes(&workload).unwrap();
    assert!(sizes.ks_distance < 0.003, "{sizes:?}");
    assert!(
        (sizes.mean_bytes / sizes.requested_mean_bytes - 1.0).abs() < 0.005,
        "{sizes:?}"
    );
    let medians = (sizes.quantiles_bytes[3], sizes.requested_quantiles_bytes[3]);
    assert!((medians.0 - medians.1).abs() < 10.0, "{medians:?}");
    let gaps = account.gaps(&workload.gaps).unwrap();
    assert!(gaps.ks_distance.unwrap() < 0.005, "{gaps:?}");
    assert!((gaps.mean_ns / 1000.0 - 1.0).abs() < 0.01, "{gaps:?}");
    assert_eq!((gaps.late_max_ns, account.packets()), (0, 600_000));
    assert!(
        (sizes.ks_bound - 1.36 / 600_000_f64.sqrt()).abs() < 1e-12,
        "{sizes:?}"
    );
    // Of 599,999 gaps every fourth is kept.
    assert!(
        (gaps.ks_bound.unwrap() - 1.36 / 150_000_f64.sqrt()).abs() < 1e-12,
        "{gaps:?}"
    );
}

#[test]
fn draws_of_the_distribution_exceed_the_bound_once_in_twenty_runs() {
    let exceeded = (1..=400).filter(|seed| {
        let workload = Workload {
            seed: *seed,
            ..workload("64", "poisson:mean=1us", flows("10.0.0.1", "10.0.0.2"))
        };
        let account = account_on_time(&workload, 501);
        let gaps = account.gaps(&workload.gaps).unwrap();
        gaps.ks_distance > gaps.ks_bound
    });
    // 20 of 400 are expected, with a standard deviation of 4.4.
    let exceeded = exceeded.count();
    assert!((6..=34).contains(&exceeded), "{exceeded}");
}

#[test]
fn gaps_with_steps_have_no_distance_but_a_lateness() {
    for text in [
        "bursts:size=2,period=1us",
        "bursts:size=4,inside=10ns,period=1us",
    ] {
        let workload = workload("64", text, flows("10.0.0.1", "10.0.0.2"));
        let packets = Packets::of(&workload);
        let mut account = Account::new(&workload);
        for (number, packet) in (0..4000).zip(Plan::new(&workload, &packets)) {
            // Each is late by 1 to 100 ns: far from every step, and near the plan.
            let sent_ns = packet.due_ns + 1 + number * 7 % 100;
            account.add(
                &packet,
                workload.frame_bytes(packet.ip_bytes),
                Some(sent_ns),
            );
            account.departed(sent_ns);
        }
        let gaps = account.gaps(&workload.gaps).unwrap();
        assert_eq!((gaps.ks_distance, gaps.ks_bound), (None, None));
        assert_eq!(
            gaps.late_quantiles_ns,
            [1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 99.0]
        );
        assert!(gaps.is_shape_kept, "{text}: {gaps:?}");
    }
}

#[test]
fn a_range_that_ends_before_it_begins_is_refused() {
    let range = "02:00:00:00:00:09-02:00:00:00:00:01";
    let refusal = flows("10.0.0.1", "10.0.0.2").with_macs("02:00:00:00:00:01", range);
    let text = refusal.unwrap_err().to_string();
    assert!(
        text.contains("destination MAC") && text.contains("ends before it begins"),
        "{text}"
    );
}
