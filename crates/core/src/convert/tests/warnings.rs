//! Refusals, warnings and counts of conversions.

use super::web10g::web10g_lines;
use super::*;

#[test]
fn a_log_without_packets_of_sockets_is_refused_by_siftr_only() {
    for format in Format::ALL {
        let handshake = TcpStateRecord {
            state: 12,
            ..packet(1, 1)
        };
        let mut out = Vec::new();
        let log = log_with(&[handshake], &[flow(1, false)], &Ledger::default());
        let result = convert(log, format, &mut out, ConvertOptions::default());
        match format {
            Format::Siftr13 | Format::Siftr12 | Format::Siftr2 | Format::Siftr2Binary => {
                assert!(
                    matches!(result, Err(ConvertError::NoFlow { .. })),
                    "{format}"
                );
                assert!(out.is_empty());
            }
            // These formats are about sockets, and have no handshakes.
            Format::Ttprobe | Format::TtprobeBinary | Format::Web10g => {
                assert_eq!((result.unwrap().rows, out.len()), (0, 0), "{format}");
            }
            Format::Csv | Format::Parquet => assert_eq!(result.unwrap().rows, 1, "{format}"),
        }
    }
    for format in Format::ALL {
        let mut out = Vec::new();
        let result = convert(
            log_with(&[], &[], &Ledger::default()),
            format,
            &mut out,
            ConvertOptions::default(),
        );
        if matches!(
            format,
            Format::Siftr13 | Format::Siftr12 | Format::Siftr2 | Format::Siftr2Binary
        ) {
            let error = result.unwrap_err();
            assert!(
                matches!(error, ConvertError::NoFlow { .. })
                    && error.to_string().contains("test.parshall")
            );
            assert!(out.is_empty());
        } else {
            assert_eq!(result.unwrap().rows, 0, "{format}");
        }
    }
}

#[test]
fn a_long_last_line_gives_a_warning() {
    for count in [5u32, 30, 50, 90] {
        let flows: Vec<FlowRow> = (1..=count).map(|number| flow(number, false)).collect();
        let packets: Vec<_> = (1..=count).map(|number| packet(number, 1)).collect();
        for format in [
            Format::Siftr13,
            Format::Siftr12,
            Format::Siftr2,
            Format::Siftr2Binary,
        ] {
            let (written, report) = converted(&packets, &flows, format);
            let footer_bytes = written.len()
                - written[..written.len() - 1]
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .unwrap()
                - 1;
            // review_siftr_log reads 999 bytes of a line, review_siftr2_log 4095, TEACUP any.
            let warned = match format {
                Format::Siftr13 => footer_bytes > 999,
                Format::Siftr2 | Format::Siftr2Binary => footer_bytes > 4095,
                _ => false,
            };
            let warning = report
                .warnings
                .iter()
                .find(|warning| warning.contains("last line"));
            assert_eq!(warning.is_some(), warned, "{format}, {footer_bytes} bytes");
            assert!(warning.is_none_or(|warning| warning.contains(&footer_bytes.to_string())));
        }
    }
}

#[test]
fn losses_and_missing_flows_give_warnings() {
    let lost = Lost {
        overwritten: 4,
        ..Default::default()
    };
    let ledger = Ledger {
        hooks: vec![HookAccount {
            hook: "tcp_egress".into(),
            seen: 5,
            logged: 1,
            lost,
            ..Default::default()
        }],
        ..Default::default()
    };
    let mut out = Vec::new();
    let log = log_with(&[packet(1, 1), packet(9, 2)], &[flow(1, false)], &ledger);
    let report = convert(log, Format::Siftr13, &mut out, ConvertOptions::default()).unwrap();
    assert_eq!(report.rows, 1);
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("lacks 4 events"))
    );
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("1 rows of 1 flows were left out"))
    );
    assert!(
        String::from_utf8(out)
            .unwrap()
            .contains("num_outbound_tcp_pkts=5\t")
    );
}

#[test]
fn the_interval_is_for_web10g_only() {
    let options = ConvertOptions {
        every_ns: Some(1),
        ..Default::default()
    };
    let error = convert(
        log_with(&[], &[], &Ledger::default()),
        Format::Csv,
        Vec::new(),
        options,
    )
    .unwrap_err();
    assert!(error.to_string().contains("every"), "{error}");
    let options = ConvertOptions {
        every_ns: Some(0),
        ..Default::default()
    };
    assert!(
        convert(
            log_with(&[], &[], &Ledger::default()),
            Format::Web10g,
            Vec::new(),
            options
        )
        .is_err()
    );
}

#[test]
fn a_polling_interval_with_too_many_lines_is_refused_before_writing() {
    let second = 1_000_000_000;
    let mut busy = flow(1, false);
    busy.last_time_ns = busy.first_time_ns + 10 * second;
    let mut gone = flow(2, false);
    gone.ended = true;
    // The second is of a log that was cut: its flow table does not have the pause.
    for (records, flows, least_ns) in [
        (vec![packet(1, 1000)], vec![busy, gone], "101"),
        (
            vec![packet(1, 1000), packet(1, 20 * second as u64)],
            vec![flow(1, false)],
            "200",
        ),
    ] {
        let refused = |every_ns| {
            let mut out = Vec::new();
            let log = log_with(&records, &flows, &Ledger::default());
            let options = ConvertOptions {
                every_ns: Some(every_ns),
                ..Default::default()
            };
            let error = convert(log, Format::Web10g, &mut out, options).unwrap_err();
            assert!(out.is_empty());
            error.to_string()
        };
        let text = refused(1);
        assert!(text.contains("--every: 1 ns make"), "{text}");
        assert!(
            text.ends_with(&format!("poll every {least_ns} ns or less often")),
            "{text}"
        );
    }
    let long = web10g_lines(&[packet(1, 1000)], &[flow(1, false)], Some(1));
    assert_eq!(long.len(), 1);
}

#[test]
fn a_polling_interval_longer_than_the_log_is_said() {
    let warnings = |every_ns| {
        let options = ConvertOptions {
            every_ns: Some(every_ns),
            ..Default::default()
        };
        let log = log_with(
            &[packet(1, 1000), packet(1, 5000)],
            &[flow(1, false)],
            &Ledger::default(),
        );
        convert(log, Format::Web10g, Vec::new(), options)
            .unwrap()
            .warnings
            .join("; ")
    };
    assert!(warnings(4000).contains("--every: the log is not longer than 4000 ns"));
    assert!(!warnings(3999).contains("--every"));
}

#[test]
fn packets_that_were_thinned_out_are_in_the_total_of_siftr() {
    let account = |hook: &str, thinned| HookAccount {
        hook: hook.into(),
        seen: 1 + thinned,
        thinned,
        logged: 1,
        ..Default::default()
    };
    let ledger = Ledger {
        hooks: vec![account("tcp_ingress", 9), account("tcp_egress", 90)],
        ..Default::default()
    };
    for format in [Format::Siftr13, Format::Siftr12] {
        let mut out = Vec::new();
        let log = log_with(&[packet(1, 1), incoming(1, 2)], &[flow(1, false)], &ledger);
        convert(log, format, &mut out, ConvertOptions::default()).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains(
                "num_inbound_tcp_pkts=10\tnum_outbound_tcp_pkts=91\ttotal_tcp_pkts=101\t"
            ),
            "{text}"
        );
    }
}

/// A file with limited space.
struct Disk(usize);

impl std::io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        match taken {
            0 if !bytes.is_empty() => Err(std::io::ErrorKind::StorageFull.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_a_write_error_in_every_format() {
    for format in Format::ALL {
        for room_bytes in [0, 10] {
            let log = log_with(&with_noise(), &[flow(1, false)], &Ledger::default());
            let error =
                convert(log, format, Disk(room_bytes), ConvertOptions::default()).unwrap_err();
            assert!(
                matches!(&error, ConvertError::Write(source) if source.kind() == std::io::ErrorKind::StorageFull),
                "{format}: {error}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No values make any conversion panic, and every format keeps its number of columns.
    #[test]
    fn no_conversion_panics(seeds in prop::collection::vec(any::<[u8; 32]>(), 0..60), every_us in prop::option::of(1000..1_000_000u64)) {
        let records: Vec<TcpStateRecord> = seeds.iter().enumerate().map(|(number, seed)| {
            let mut bytes = [0u8; size_of::<TcpStateRecord>()];
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = seed[index % 32].rotate_left(index as u32 / 32);
            }
            let mut record: TcpStateRecord = crate::abi::read_plain(&bytes).unwrap();
            record.time_ns = number as u64 * 1_000_000;
            record.flow = record.flow % 3 + 1;
            record
        }).chain([packet(1, 0)]).collect();
        let flows = [flow(1, false), flow(2, true)];
        for (format, columns) in [(Format::Siftr12, 27), (Format::Siftr2, 18), (Format::Ttprobe, 17), (Format::Csv, 50)] {
            let written = text(&records, &flows, format);
            let lines: Vec<&str> = written.lines().collect();
            let data = if matches!(format, Format::Siftr12 | Format::Siftr2) { &lines[1..lines.len() - 1] } else { &lines[..] };
            prop_assert!(data.iter().all(|line| line.split(',').count() == columns), "{}", format);
        }
        let every_ns = every_us.map(|us| us * 1000);
        prop_assert!(web10g_lines(&records, &flows, every_ns).iter().all(|line| line.len() == 123));
        converted(&records, &flows, Format::Parquet);
        converted(&records, &flows, Format::TtprobeBinary);
    }
}
