//! Counts, their representation and its text, draws from it, and invalid input.

mod trace;

use super::*;
use crate::distributions::Rng;
use proptest::prelude::*;

fn counts(pairs: &[(u32, u64)]) -> SizeCounts {
    let mut counts = SizeCounts::new();
    for &(size, packets) in pairs {
        counts.add(size, packets).unwrap();
    }
    counts
}

fn procfs(distribution: &TwoStage) -> String {
    let mut text = Vec::new();
    write_procfs(distribution, &mut text, false).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn the_representation_follows_the_equations() {
    // Bin 40-59: an outlier of 900 packets, and 19 other sizes with 100 packets, 100 / 19 on average. The bin
    // gets 100 + 100 / 19 packets, the outlier 900 - 100 / 19.
    let mut pairs = vec![(40, 900), (1500, 1000)];
    pairs.extend([(41, 60), (50, 30), (59, 10)]);
    let parameters = Parameters {
        outlier_share: 0.1,
        precision: 2000,
        ..Parameters::default()
    };
    let distribution = TwoStage::from_counts(&counts(&pairs), &parameters).unwrap();
    assert_eq!(
        procfs(&distribution),
        "dist 2000 20 1500 2 1\noutl 40 895\noutl 1500 1000\nhist 40 2000\n"
    );
    let probabilities = distribution.probabilities();
    // 105 of 2000 cells are empty; one in 20 draws from the bin is 40 bytes.
    assert!((probabilities[40] - (895.0 + 105.0 / 20.0) / 2000.0).abs() < 1e-12);
    assert!((probabilities[41] - 105.0 / 20.0 / 2000.0).abs() < 1e-12);
    assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn pgset_lines_match_the_generator_script() {
    let distribution = TwoStage::from_counts(&counts(&[(64, 3)]), &Parameters::default()).unwrap();
    let mut text = Vec::new();
    write_procfs(&distribution, &mut text, true).unwrap();
    assert_eq!(
        String::from_utf8(text).unwrap(),
        "pgset \"dist 1000 20 1500 1 0\"\npgset \"outl 64 1000\"\n"
    );
}

#[test]
fn one_size_is_always_drawn() {
    for size in [1, 19, 20, 1499, 1500] {
        let distribution =
            TwoStage::from_counts(&counts(&[(size, 7)]), &Parameters::default()).unwrap();
        let mut rng = Rng::new(1, 0);
        assert!((0..100).all(|_| distribution.sample(&mut rng) == size));
    }
}

#[test]
fn sizes_above_the_maximum_are_left_out_and_counted() {
    let counted = counts(&[(100, 10), (1501, 5), (9000, 1)]);
    let distribution = TwoStage::from_counts(&counted, &Parameters::default()).unwrap();
    assert_eq!(distribution.probabilities()[100], 1.0);
    let comparison =
        Comparison::new(&counted, &Parameters::default(), &distribution, None).unwrap();
    assert_eq!(comparison.above_maximum, 6);
    assert_eq!(comparison.represented_distance, 0.0);
    let error = TwoStage::from_counts(&counts(&[(1501, 5)]), &Parameters::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no packet sizes from 1 to 1500 bytes (5 above): give an input with packets, or a larger maximum"
    );
}

#[test]
fn empty_input_has_no_distribution() {
    assert!(matches!(
        TwoStage::from_counts(&SizeCounts::new(), &Parameters::default()),
        Err(SizesError::Empty { .. })
    ));
    assert!(read_sizes(&b""[..], "empty").unwrap().is_empty());
    assert!(
        read_dist(&b"# nothing\n\n"[..], "empty", ' ')
            .unwrap()
            .is_empty()
    );
}

#[test]
fn the_last_bin_never_draws_above_the_maximum() {
    // 1500 alone in the bin that would reach to 1519, and too rare for an outlier.
    let mut pairs: Vec<(u32, u64)> = (40..1040).map(|size| (size, 1)).collect();
    pairs.push((1500, 1));
    let distribution = TwoStage::from_counts(&counts(&pairs), &Parameters::default()).unwrap();
    assert!(distribution.outliers().is_empty());
    assert!(distribution.probabilities()[1500] > 0.0005);
    let mut rng = Rng::new(3, 0);
    assert!((0..20_000).all(|_| (40..=1500).contains(&distribution.sample(&mut rng))));
}

#[test]
fn more_outliers_than_cells_lose_no_probability() {
    // 100 equal sizes of 1 % for 10 cells: none can have a cell of its own.
    let pairs: Vec<(u32, u64)> = (0..100).map(|index| (40 + 10 * index, 5)).collect();
    let parameters = Parameters {
        precision: 10,
        ..Parameters::default()
    };
    let distribution = TwoStage::from_counts(&counts(&pairs), &parameters).unwrap();
    let cells: u32 = distribution
        .outliers()
        .iter()
        .chain(distribution.bins())
        .map(|entry| entry.cells)
        .sum();
    assert!(cells >= 10, "{}", procfs(&distribution));
    assert!((distribution.probabilities().iter().sum::<f64>() - 1.0).abs() < 1e-12);
    // A heavy hitter keeps its cells beside them.
    let mut pairs = pairs;
    pairs.push((1500, 500));
    let distribution = TwoStage::from_counts(&counts(&pairs), &parameters).unwrap();
    assert_eq!(
        distribution.outliers(),
        [CellSize {
            size_bytes: 1500,
            cells: 5
        }]
    );
}

#[test]
fn the_built_in_distribution_has_the_properties_in_the_thesis() {
    let counted = built_in("thesis").unwrap();
    let mut shares: Vec<(u32, f64)> = counted
        .iter()
        .map(|(size, packets)| (size, packets as f64 / counted.total() as f64))
        .collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let top: Vec<u32> = shares[..3].iter().map(|(size, _)| *size).collect();
    assert_eq!(top, [1500, 40, 52]);
    let sum = |n: usize| shares[..n].iter().map(|(_, share)| share).sum::<f64>();
    assert!(
        sum(3) > 0.55 && sum(20) > 0.75 && sum(20) < 0.85,
        "{} {}",
        sum(3),
        sum(20)
    );
    assert!(
        (620.0..650.0).contains(&counted.mean_bytes()),
        "{}",
        counted.mean_bytes()
    );
    let distribution = TwoStage::from_counts(&counted, &Parameters::default()).unwrap();
    let cells_of_40 = distribution
        .outliers()
        .iter()
        .find(|entry| entry.size_bytes == 40)
        .unwrap()
        .cells;
    assert!((170..=190).contains(&cells_of_40), "{cells_of_40}");
}

#[test]
fn ten_million_sizes_keep_the_heavy_hitters_and_the_bound() {
    let counted = built_in("thesis").unwrap();
    let parameters = Parameters::default();
    let text = procfs(&TwoStage::from_counts(&counted, &parameters).unwrap());
    let distribution = read_procfs(text.as_bytes(), "thesis.procfs").unwrap();
    let drawn = write_sizes(
        &distribution,
        10_000_000,
        &mut Rng::new(4, 0),
        std::io::sink(),
    )
    .unwrap();
    assert_eq!(drawn.total(), 10_000_000);
    let comparison = Comparison::new(&counted, &parameters, &distribution, Some(&drawn)).unwrap();
    for heavy in &comparison.heavy_hitters {
        let distance = (heavy.drawn_share.unwrap() - heavy.counted_share).abs();
        assert!(distance <= 0.001, "{heavy:?}");
    }
    let distance = comparison.drawn_distance.unwrap();
    let bound =
        comparison.bins_distance + comparison.cells_distance + 1.2 * comparison.chance_distance;
    assert!(distance <= bound, "{distance} > {bound}: {comparison:?}");
    // With cells as fine as the counts, only the bins cause an error.
    let fine = Parameters {
        precision: 1 << 20,
        ..parameters
    };
    let distribution = TwoStage::from_counts(&counted, &fine).unwrap();
    let comparison = Comparison::new(&counted, &fine, &distribution, None).unwrap();
    assert!(
        comparison.represented_distance - comparison.bins_distance < 1e-4,
        "{comparison:?}"
    );
}

#[test]
fn written_sizes_and_dist_files_are_read_back() {
    let counted = read_sizes(&b"40 40\n1500\n 52\t40 # a comment\n"[..], "sizes").unwrap();
    assert_eq!(counted, counts(&[(40, 3), (52, 1), (1500, 1)]));
    for separator in [' ', ':', ',', '\t'] {
        let mut text = Vec::new();
        write_dist(&counted, &mut text, separator).unwrap();
        assert_eq!(read_dist(&text[..], "dist", separator).unwrap(), counted);
    }
    let lined_up = read_dist(&b"  40    3\n1500    1\n52 1\n"[..], "dist", ' ').unwrap();
    assert_eq!(lined_up, counted);
    // Two files, one after the other.
    assert_eq!(
        read_dist(&b"40 1\n40 2\n"[..], "dist", ' ').unwrap().of(40),
        3
    );
}

#[test]
fn errors_in_lines_name_file_line_and_expectation() {
    let line = |result: Result<SizeCounts, SizesError>| result.unwrap_err().to_string();
    assert_eq!(
        line(read_sizes(&b"40\nforty\n"[..], "a.sizes")),
        "a.sizes:2: \"forty\": expected packet sizes from 1 to 524288 bytes"
    );
    assert_eq!(
        line(read_dist(&b"40 3\n52\n"[..], "a.dist", ' ')),
        "a.dist:2: \"52\": expected SIZE COUNT with a size from 1 to 524288 bytes and less than 2^64 packets in all"
    );
    for text in [
        "0 1",
        "-1 1",
        "40 -1",
        "40 1.5",
        "524289 1",
        "40,1",
        "40 18446744073709551616",
    ] {
        assert!(read_dist(text.as_bytes(), "d", ' ').is_err(), "{text}");
    }
    assert!(read_dist(&b"40 18446744073709551615\n41 1\n"[..], "d", ' ').is_err());
    assert_eq!(
        line(read_sizes(&[0xd4, 0xc3, 0xb2, 0xa1, 0x0a][..], "t.pcap")),
        "t.pcap: line 1 is no text; expected sizes as text; a capture file is read with --from trace"
    );
    let long = vec![b'1'; 200_000];
    assert!(read_sizes(&long[..], "long").is_err());
}

#[test]
fn errors_in_procfs_name_the_line() {
    let error = |text: &str| read_procfs(text.as_bytes(), "p").unwrap_err().to_string();
    for (text, message) in [
        (
            "",
            "p: no dist line; expected dist PRECISION BIN_SIZE MAXIMUM OUTLIERS BINS as the first line",
        ),
        (
            "outl 40 1\n",
            "p:1: \"outl 40 1\": expected a dist line before it",
        ),
        (
            "dist 10 20 1500 1 0\n",
            "p: 0 outl lines; expected 1, as the dist line says",
        ),
        (
            "dist 10 20 1500 1 0\noutl 40 11\n",
            "p:2: \"outl 40 11\": expected at most 10 cells, since 0 of 10 are filled",
        ),
        (
            "dist 10 20 1500 1 0\noutl 1501 10\n",
            "p:2: \"outl 1501 10\": expected a size from 1 to 1500",
        ),
        (
            "dist 10 20 1500 2 0\noutl 40 1\noutl 40 1\n",
            "p:3: \"outl 40 1\": expected each size once among the outl lines",
        ),
        (
            "dist 10 20 1500 0 0\nhist 40 1\n",
            "p:2: \"hist 40 1\": expected 0 hist lines, as the dist line says",
        ),
        (
            "dist 10 20 1500 1 0\noutl 40 9\n",
            "p: 1 cells of the outliers are empty and no bin has a cell; expected bins for them, or outliers in all cells",
        ),
        (
            "dist 0 20 1500 0 0\n",
            "p:1: \"dist 0 20 1500 0 0\": expected precision is 0, expected 1 to 16777216 cells",
        ),
        (
            "pgset \"dist 1 1 1 1 0\n",
            "p:1: \"pgset \\\"dist 1 1 1 1 0\": expected pgset \"...\" with both quotation marks",
        ),
    ] {
        assert_eq!(error(text), message);
    }
    assert!(error("dist 10 20 1500 1\n").contains("expected dist PRECISION"));
}

#[test]
fn empty_cells_of_a_createdist_file_are_not_drawn() {
    // Rounded down: 3 + 3 of 10 outlier cells, 3 + 6 of 10 bin cells.
    let text = "pgset \"dist 10 20 1500 2 2\"\npgset \"outl 40 3\"\npgset \"outl 52 3\"\npgset \"hist 60 3\"\n\
                pgset \"hist 1480 6\"\npgset \"flag PKTSIZE_REAL\"\n";
    let distribution = read_procfs(text.as_bytes(), "old").unwrap();
    let probabilities = distribution.probabilities();
    assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert!((probabilities[60] - 0.4 * 3.0 / 9.0 / 20.0).abs() < 1e-12);
    let mut rng = Rng::new(1, 0);
    assert!((0..1000).all(|_| distribution.sample(&mut rng) >= 40));
}

#[test]
fn size_distribution_texts_are_parsed() {
    let parse = |text: &str| SizeDistribution::parse(text, &Parameters::default());
    assert_eq!(parse("64").unwrap(), SizeDistribution::Fixed(64));
    assert_eq!(parse("fixed:64").unwrap(), SizeDistribution::Fixed(64));
    assert_eq!(
        parse("40-80").unwrap(),
        SizeDistribution::Uniform {
            low_bytes: 40,
            high_bytes: 80
        }
    );
    assert!((parse("uniform:40-80").unwrap().mean_of(f64::from) - 60.0).abs() < 1e-9);
    assert_eq!(parse("40-80").unwrap().cdf(59), 20.0 / 41.0);
    assert_eq!(parse("thesis").unwrap().largest_bytes(), 1500);
    let imix = parse("imix").unwrap();
    assert!((imix.mean_of(f64::from) - 340.0 - 1.0 / 3.0).abs() < 1.0);
    for text in [
        "",
        "x",
        "0",
        "80-40",
        "fixed:",
        "uniform:5",
        "imix:3",
        "procfs:/no/such/file",
        "600000",
    ] {
        let message = parse(text).unwrap_err().to_string();
        assert!(!message.contains('\n'), "{message}");
    }
}

proptest! {
    /// For any counts: the probabilities sum to 1, the distance is at most that of bins and cells, and the
    /// text is read back unchanged.
    #[test]
    fn any_distribution_is_represented(
        pairs in prop::collection::vec((1_u32..2000, 1_u64..100_000), 1..200),
        precision in 1_u32..3000,
        bin_bytes in 1_u32..200,
        outlier_share in 0.0005_f64..0.5,
        seed: u64,
    ) {
        let counted = counts(&pairs);
        let parameters = Parameters { maximum_bytes: 1500, precision, bin_bytes, outlier_share };
        prop_assume!(counted.total() > counted.above(1500));
        let distribution = TwoStage::from_counts(&counted, &parameters).unwrap();
        let probabilities = distribution.probabilities();
        prop_assert_eq!(probabilities.len(), 1501);
        prop_assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert_eq!(probabilities[0], 0.0);
        prop_assert_eq!(read_procfs(procfs(&distribution).as_bytes(), "p").unwrap(), distribution.clone());

        let comparison = Comparison::new(&counted, &parameters, &distribution, None).unwrap();
        prop_assert!(
            comparison.represented_distance
                <= comparison.bins_distance + comparison.cells_distance + 1e-9
        );
        let considered = (counted.total() - counted.above(1500)) as f64;
        for outlier in distribution.outliers() {
            prop_assert!(outlier.cells > 0);
            prop_assert!(counted.of(outlier.size_bytes) as f64 / considered >= outlier_share);
        }
        let mut rng = Rng::new(seed, 0);
        for _ in 0..100 {
            let size = distribution.sample(&mut rng);
            prop_assert!(probabilities[size as usize] > 0.0);
        }
    }

    /// With cells finer than the counts, only the bins cause an error.
    #[test]
    fn with_fine_cells_only_the_bins_cause_an_error(
        pairs in prop::collection::vec((1_u32..=1500, 1_u64..1000), 1..100),
        bin_bytes in 1_u32..100,
    ) {
        let counted = counts(&pairs);
        let parameters = Parameters { precision: 1 << 20, bin_bytes, ..Parameters::default() };
        let distribution = TwoStage::from_counts(&counted, &parameters).unwrap();
        let comparison = Comparison::new(&counted, &parameters, &distribution, None).unwrap();
        prop_assert!(comparison.cells_distance < 1e-3, "{}", comparison.cells_distance);
        if bin_bytes == 1 {
            prop_assert!(comparison.bins_distance < 1e-9);
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "(pgset \")?(dist|outl|hist|flag|)[ 0-9\"\n]{0,60}") {
        let _ = read_procfs(text.as_bytes(), "p");
        let _ = read_dist(text.as_bytes(), "d", ' ');
        let _ = read_sizes(text.as_bytes(), "s");
        let _ = SizeDistribution::parse(&text, &Parameters::default());
    }

    #[test]
    fn apportioned_cells_sum_to_all_cells(
        weights in prop::collection::vec(0.0_f64..1e6, 1..50),
        cells in 0_u32..5000,
    ) {
        let apportioned = cells::apportion(cells, &weights);
        let sum: f64 = weights.iter().sum();
        prop_assume!(sum > 0.0);
        prop_assert_eq!(apportioned.iter().sum::<u32>(), cells);
        for (weight, share) in weights.iter().zip(&apportioned) {
            let exact = weight / sum * f64::from(cells);
            prop_assert!((f64::from(*share) - exact).abs() < 1.0 + 1e-6);
        }
    }
}

#[test]
fn bins_of_width_1_represent_the_counts_exactly() {
    let counted = counts(&[(1, 100), (2, 100), (3, 800)]);
    let parameters = Parameters {
        bin_bytes: 1,
        // Nothing is an outlier.
        outlier_share: 2.0,
        ..Parameters::default()
    };
    let distribution = TwoStage::from_counts(&counted, &parameters).unwrap();
    assert_eq!(distribution.probabilities()[..4], [0.0, 0.1, 0.1, 0.8]);
    let comparison = Comparison::new(&counted, &parameters, &distribution, None).unwrap();
    assert!(comparison.bins_distance < 1e-12, "{comparison:?}");
}
