//! Conversions of some flows.

use super::*;

fn selected(
    flows: &[u32],
    format: Format,
    ledger: &Ledger,
) -> Result<(Vec<u8>, ConvertReport), ConvertError> {
    let records: Vec<_> = (0..30_000)
        .map(|number| packet(1 + number % 3, 1_000_000 * u64::from(number) + 2_000))
        .chain([1, 2, 3].map(|flow| incoming(flow, 40_000_000_000)))
        .collect();
    let log = log_with(
        &records,
        &[flow(1, false), flow(2, true), flow(3, false)],
        ledger,
    );
    let mut out = Vec::new();
    let options = ConvertOptions {
        flows: flows.to_vec(),
        every_ns: None,
    };
    convert(log, format, &mut out, options).map(|report| (out, report))
}

#[test]
fn some_flows_are_converted_as_a_log_of_them_alone() {
    for format in Format::ALL {
        for number in [1, 2] {
            let alone: Vec<_> = (0..30_000)
                .filter(|each| 1 + each % 3 == number)
                .map(|each| packet(number, 1_000_000 * u64::from(each) + 2_000))
                .chain([incoming(number, 40_000_000_000)])
                .collect();
            let (expected, report) = converted(&alone, &[flow(number, number == 2)], format);
            let (found, of_some) = selected(&[number], format, &Ledger::default()).unwrap();
            assert_eq!(of_some.rows, report.rows, "{format}");
            // Parquet's rows lie in other batches.
            assert!(format == Format::Parquet || found == expected, "{format}");
        }
        let (all, _) = selected(&[], format, &Ledger::default()).unwrap();
        assert_eq!(
            selected(&[3, 1, 2], format, &Ledger::default()).unwrap().0,
            all
        );
    }
}

#[test]
fn what_was_lost_of_all_flows_is_not_counted_as_lost_of_some() {
    let ledger = Ledger {
        hooks: vec![HookAccount {
            hook: "tcp_egress".into(),
            seen: 30_100,
            logged: 30_003,
            thinned: 90,
            lost: Lost {
                dropped: 7,
                ..Lost::default()
            },
            ..HookAccount::default()
        }],
        ..Ledger::default()
    };
    let last = |flows: &[u32]| {
        let (out, report) = selected(flows, Format::Siftr13, &ledger).unwrap();
        let text = String::from_utf8(out).unwrap();
        (text.lines().last().unwrap().to_string(), report.warnings)
    };
    let ((all, _), (some, warnings)) = (last(&[]), last(&[2]));
    assert!(all.contains("num_outbound_skipped_pkts_malloc=7"), "{all}");
    assert!(
        some.contains("num_outbound_skipped_pkts_malloc=0"),
        "{some}"
    );
    assert!(some.contains("num_outbound_tcp_pkts=10000\t"), "{some}");
    assert!(
        warnings.iter().any(|one| one.contains("the flow table")),
        "{warnings:?}"
    );
}

#[test]
fn a_flow_that_the_log_does_not_have_is_refused() {
    let error = selected(&[2, 9], Format::Csv, &Ledger::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--flow 9: is not in test.parshall, which has 3 flows; parshall show lists them"
    );
}
