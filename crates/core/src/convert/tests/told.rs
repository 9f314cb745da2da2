//! What a conversion refuses, warns of and counts.

use super::web10g::web10g_lines;
use super::*;

#[test]
fn a_log_without_flows_is_refused_by_siftr_only() {
    for format in Format::ALL {
        let mut out = Vec::new();
        let result = convert(
            log_with(&[], &[], &Ledger::default()),
            format,
            &mut out,
            ConvertOptions::default(),
        );
        if matches!(format, Format::Siftr13 | Format::Siftr12 | Format::Siftr2) {
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
fn a_long_last_line_is_warned_of() {
    for (flows, warned) in [(5u32, false), (30, true)] {
        let flows: Vec<FlowRow> = (1..=flows).map(|number| flow(number, false)).collect();
        for format in [Format::Siftr13, Format::Siftr12, Format::Siftr2] {
            let (_, report) = converted(&[packet(1, 1)], &flows, format);
            assert_eq!(
                report
                    .warnings
                    .iter()
                    .any(|warning| warning.contains("last line")),
                warned,
                "{format}"
            );
        }
    }
}

#[test]
fn losses_and_missing_flows_are_said() {
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
    let options = ConvertOptions { every_ns: Some(1) };
    let error = convert(
        log_with(&[], &[], &Ledger::default()),
        Format::Csv,
        Vec::new(),
        options,
    )
    .unwrap_err();
    assert!(error.to_string().contains("every"), "{error}");
    let options = ConvertOptions { every_ns: Some(0) };
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No values make any conversion panic, and every format keeps its number of columns.
    #[test]
    fn no_conversion_panics(seeds in prop::collection::vec(any::<[u8; 32]>(), 0..60), every_us in prop::option::of(1000..1_000_000u64)) {
        let records: Vec<TcpStateRecord> = seeds.iter().enumerate().map(|(number, seed)| {
            let mut bytes = [0u8; 176];
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte = seed[index % 32].rotate_left(index as u32 / 32);
            }
            let mut record: TcpStateRecord = crate::abi::read_plain(&bytes).unwrap();
            record.time_ns = number as u64 * 1_000_000;
            record.flow = record.flow % 3 + 1;
            record
        }).collect();
        let flows = [flow(1, false), flow(2, true)];
        for (format, columns) in [(Format::Siftr12, 27), (Format::Siftr2, 18), (Format::Ttprobe, 17), (Format::Csv, 44)] {
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
