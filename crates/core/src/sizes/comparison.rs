//! Distances between counted sizes and their representation.

use super::two_stage::Stages;
use super::{Parameters, SizeCounts, SizesError, TwoStage};

/// Number of the most frequent sizes, which are compared one by one.
const HEAVY_HITTERS: usize = 20;

/// Total variation distance of two distributions: half of the sum of the differences.
pub fn total_variation(a: &[f64], b: &[f64]) -> f64 {
    (0..a.len().max(b.len()))
        .map(|index| {
            let at = |values: &[f64]| values.get(index).copied().unwrap_or(0.0);
            (at(a) - at(b)).abs()
        })
        .sum::<f64>()
        / 2.0
}

/// One of the most frequent sizes.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct HeavyHitter {
    /// Size, bytes.
    pub size_bytes: u32,
    /// Share of the packets that were counted.
    pub counted_share: f64,
    /// Share that the representation gives it.
    pub represented_share: f64,
    /// Share of the packets that were drawn, if any were.
    pub drawn_share: Option<f64>,
}

/// Distances (total variation) between counted sizes, their representation and draws from it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Comparison {
    /// The error of the bins: the distance of counted sizes from outliers and bins with infinitely fine
    /// cells.
    pub bins_distance: f64,
    /// The maximum error of whole cells: the distance of infinitely fine cells from the real ones.
    pub cells_distance: f64,
    /// The distance of counted sizes from the representation; at most the sum of the two above.
    pub represented_distance: f64,
    /// Draws that were compared.
    pub draws: u64,
    /// The expected sampling error for this number of draws: sum of sqrt(p (1 - p) / (2 pi draws)), the mean
    /// of the distance of a sample from its distribution in the normal approximation.
    pub chance_distance: f64,
    /// The distance of counted sizes from the draws.
    pub drawn_distance: Option<f64>,
    /// Packets above the maximum, which are not represented.
    pub above_maximum: u64,
    /// The most frequent sizes, the most frequent first.
    pub heavy_hitters: Vec<HeavyHitter>,
}

impl Comparison {
    /// Compares `counts` with `representation`, made with `parameters`, and with `drawn` sizes.
    ///
    /// # Errors
    /// When nothing was counted.
    pub fn new(
        counts: &SizeCounts,
        parameters: &Parameters,
        representation: &TwoStage,
        drawn: Option<&SizeCounts>,
    ) -> Result<Self, SizesError> {
        let parameters = parameters.checked()?;
        let stages = Stages::of(counts, &parameters)?;
        let (counted, ideal) = (stages.counted(), stages.ideal());
        let represented = representation.probabilities();
        let draws = drawn.map_or(0, SizeCounts::total);
        let share = |size: u32| {
            drawn
                .filter(|drawn| !drawn.is_empty())
                .map(|drawn| drawn.of(size) as f64 / drawn.total() as f64)
        };
        let drawn_shares: Option<Vec<f64>> = (0..=parameters.maximum_bytes).map(share).collect();
        let mut frequent: Vec<(u32, f64)> = (0..).zip(counted.iter().copied()).collect();
        frequent.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Ok(Self {
            bins_distance: total_variation(&counted, &ideal),
            cells_distance: total_variation(&ideal, &represented),
            represented_distance: total_variation(&counted, &represented),
            draws,
            chance_distance: if draws == 0 {
                0.0
            } else {
                represented
                    .iter()
                    .map(|p| (p * (1.0 - p) / (std::f64::consts::TAU * draws as f64)).sqrt())
                    .sum()
            },
            drawn_distance: drawn_shares.map(|shares| total_variation(&counted, &shares)),
            above_maximum: counts.above(parameters.maximum_bytes),
            heavy_hitters: frequent
                .into_iter()
                .take(HEAVY_HITTERS)
                .filter(|(_, counted_share)| *counted_share > 0.0)
                .map(|(size_bytes, counted_share)| HeavyHitter {
                    size_bytes,
                    counted_share,
                    represented_share: represented.get(size_bytes as usize).copied().unwrap_or(0.0),
                    drawn_share: share(size_bytes),
                })
                .collect(),
        })
    }
}
