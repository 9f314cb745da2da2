//! The two-stage representation: an array of outliers, an array of bins.

use super::cells::apportion;
use super::{SIZE_MAX_BYTES, SizeCounts, SizesError};
use crate::distributions::Rng;

/// Parameters of the representation, with the symbols of the thesis in brackets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Parameters {
    /// Largest size that is considered, bytes (N_ps).
    pub maximum_bytes: u32,
    /// Cells of each array (rho).
    pub precision: u32,
    /// Sizes in a bin, bytes (sigma_bin).
    pub bin_bytes: u32,
    /// Minimum share of all packets of an outlier (p_Omega_bound).
    pub outlier_share: f64,
}

impl Default for Parameters {
    /// The defaults of `createDist`. For outliers the text of the thesis gives 2 %, the program 0.002.
    fn default() -> Self {
        Self {
            maximum_bytes: 1500,
            precision: 1000,
            bin_bytes: 20,
            outlier_share: 0.002,
        }
    }
}

/// 2^24 cells take 64 MiB.
const PRECISION_MAX: u32 = 1 << 24;

impl Parameters {
    pub(super) fn checked(self) -> Result<Self, SizesError> {
        let wrong = |parameter, found: String, expected: String| {
            Err(SizesError::Parameter {
                parameter,
                found,
                expected,
            })
        };
        if !(1..=SIZE_MAX_BYTES).contains(&self.maximum_bytes) {
            let expected = format!("1 to {SIZE_MAX_BYTES} bytes");
            return wrong("maximum size", self.maximum_bytes.to_string(), expected);
        }
        if !(1..=PRECISION_MAX).contains(&self.precision) {
            let expected = format!("1 to {PRECISION_MAX} cells");
            return wrong("precision", self.precision.to_string(), expected);
        }
        if !(1..=SIZE_MAX_BYTES).contains(&self.bin_bytes) {
            let expected = format!("1 to {SIZE_MAX_BYTES} bytes");
            return wrong("bin size", self.bin_bytes.to_string(), expected);
        }
        if !(self.outlier_share.is_finite() && self.outlier_share > 0.0) {
            let expected = "a share of all packets above 0 (1 is all of them)".into();
            return wrong("outlier boundary", self.outlier_share.to_string(), expected);
        }
        Ok(self)
    }
}

/// A size and the number of cells that it fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellSize {
    /// Size, or the first size of a bin, bytes.
    pub size_bytes: u32,
    /// Cells of the array.
    pub cells: u32,
}

/// A distribution of sizes in two arrays of cells.
///
/// A draw (Figure 4.3) picks a cell of the outliers at random. If that cell is empty (-1 there), the draw
/// picks a cell of the bins and a size of its bin. Bins hold sizes from 1 to the maximum only, so the last
/// one may be narrower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwoStage {
    precision: u32,
    bin_bytes: u32,
    maximum_bytes: u32,
    outliers: Vec<CellSize>,
    bins: Vec<CellSize>,
    // The arrays: cell -> size, cell -> first size of the bin. Cells of the outliers beyond the array's end
    // are empty.
    outlier_cells: Vec<u32>,
    bin_cells: Vec<u32>,
}

impl TwoStage {
    /// Represents counted sizes (section 4.2.3).
    ///
    /// # Errors
    /// When a parameter is outside its range, or no size from 1 to the maximum was counted.
    pub fn from_counts(counts: &SizeCounts, parameters: &Parameters) -> Result<Self, SizesError> {
        let parameters = parameters.checked()?;
        let stages = Stages::of(counts, &parameters)?;
        // An outlier whose share rounds to no cell of the first stage returns to its bin. The rarest is the
        // first to return, since others may get a cell then.
        let mut outliers = stages.outliers();
        let (outlier_weights, bin_weights, outlier_cells, miss) = loop {
            let (outlier_weights, bin_weights) = stages.weights(&outliers);
            let bins: f64 = bin_weights.iter().map(|(_, weight)| weight).sum();
            let mut weights = outlier_weights.clone();
            weights.push(bins);
            let mut cells = apportion(parameters.precision, &weights);
            let miss = cells.pop().unwrap_or(0);
            let without = (0..outliers.len())
                .filter(|&index| cells[index] == 0)
                .min_by(|&a, &b| outlier_weights[a].total_cmp(&outlier_weights[b]));
            match without {
                Some(index) => drop(outliers.remove(index)),
                None => break (outlier_weights, bin_weights, cells, miss),
            }
        };
        debug_assert_eq!(outlier_weights.len(), outliers.len());
        let outliers = (outliers.iter().zip(outlier_cells))
            .map(|(&size_bytes, cells)| CellSize { size_bytes, cells })
            .collect();
        let bins = if miss == 0 {
            // All cells of the first stage are outliers, so no draw reaches the bins.
            Vec::new()
        } else {
            let weights: Vec<f64> = bin_weights.iter().map(|(_, weight)| *weight).collect();
            (bin_weights
                .iter()
                .zip(apportion(parameters.precision, &weights)))
            .map(|(&(size_bytes, _), cells)| CellSize { size_bytes, cells })
            .filter(|bin| bin.cells > 0)
            .collect()
        };
        Ok(Self::of_cells(&parameters, outliers, bins))
    }

    /// Builds the arrays from checked cells: sizes from 1 (bins: 0) to the maximum, no more outlier cells
    /// than the precision, and at least one bin if fewer.
    pub(super) fn of_cells(
        parameters: &Parameters,
        outliers: Vec<CellSize>,
        bins: Vec<CellSize>,
    ) -> Self {
        let fill = |cells: &[CellSize]| {
            cells
                .iter()
                .flat_map(|entry| std::iter::repeat_n(entry.size_bytes, entry.cells as usize))
                .collect::<Vec<u32>>()
        };
        Self {
            precision: parameters.precision,
            bin_bytes: parameters.bin_bytes,
            maximum_bytes: parameters.maximum_bytes,
            outlier_cells: fill(&outliers),
            bin_cells: fill(&bins),
            outliers,
            bins,
        }
    }

    /// Cells of each array.
    pub fn precision(&self) -> u32 {
        self.precision
    }

    /// Sizes in a bin, bytes.
    pub fn bin_bytes(&self) -> u32 {
        self.bin_bytes
    }

    /// The largest size, bytes.
    pub fn maximum_bytes(&self) -> u32 {
        self.maximum_bytes
    }

    /// The outliers, by size.
    pub fn outliers(&self) -> &[CellSize] {
        &self.outliers
    }

    /// The bins, by size.
    pub fn bins(&self) -> &[CellSize] {
        &self.bins
    }

    /// Draws a size, bytes.
    pub fn sample(&self, rng: &mut Rng) -> u32 {
        let cell = rng.below(u64::from(self.precision)) as usize;
        if let Some(&size_bytes) = self.outlier_cells.get(cell) {
            return size_bytes;
        }
        // A file of another program may leave cells empty; this array has only the filled ones.
        let cell = rng.below(self.bin_cells.len() as u64) as usize;
        let (low, width) = bin_sizes(self.bin_cells[cell], self.bin_bytes, self.maximum_bytes);
        low + rng.below(u64::from(width)) as u32
    }

    /// Probability of each size from 0 to the maximum; the index is the size in bytes.
    pub fn probabilities(&self) -> Vec<f64> {
        let mut probabilities = vec![0.0; self.maximum_bytes as usize + 1];
        let precision = f64::from(self.precision);
        for outlier in &self.outliers {
            probabilities[outlier.size_bytes as usize] += f64::from(outlier.cells) / precision;
        }
        let miss = (precision - self.outlier_cells.len() as f64) / precision;
        for bin in &self.bins {
            let (low, width) = bin_sizes(bin.size_bytes, self.bin_bytes, self.maximum_bytes);
            let share = miss * f64::from(bin.cells) / self.bin_cells.len() as f64;
            for size in low..low + width {
                probabilities[size as usize] += share / f64::from(width);
            }
        }
        probabilities
    }
}

/// First size and number of sizes of the bin that begins at `start`.
pub(super) fn bin_sizes(start: u32, bin_bytes: u32, maximum_bytes: u32) -> (u32, u32) {
    let low = start.max(1);
    let end = start.saturating_add(bin_bytes).min(maximum_bytes + 1);
    (low, end.saturating_sub(low).max(1))
}

/// Counts, with the equations of section 4.2.3.
pub(super) struct Stages<'a> {
    counts: &'a SizeCounts,
    parameters: Parameters,
    considered: u64,
}

impl<'a> Stages<'a> {
    pub fn of(counts: &'a SizeCounts, parameters: &Parameters) -> Result<Self, SizesError> {
        let above_maximum = counts.above(parameters.maximum_bytes);
        let considered = counts.total() - above_maximum;
        if considered == 0 {
            return Err(SizesError::Empty {
                maximum_bytes: parameters.maximum_bytes,
                above_maximum,
            });
        }
        Ok(Self {
            counts,
            parameters: *parameters,
            considered,
        })
    }

    /// (4.2), by size.
    pub fn outliers(&self) -> Vec<u32> {
        self.counts
            .iter()
            .take_while(|(size, _)| *size <= self.parameters.maximum_bytes)
            .filter(|(_, packets)| {
                *packets as f64 / self.considered as f64 >= self.parameters.outlier_share
            })
            .map(|(size, _)| size)
            .collect()
    }

    /// (4.3) to (4.8): the packets of each outlier minus the average of its bin, and (first size, packets) of
    /// each bin plus these averages. Draws from the bin return the average to the outlier.
    ///
    /// In the thesis, bins j = 1 ... n_bin begin at j * sigma, so sizes below sigma have no bin; here they
    /// have bin 0.
    pub fn weights(&self, outliers: &[u32]) -> (Vec<f64>, Vec<(u32, f64)>) {
        let Parameters {
            maximum_bytes,
            bin_bytes,
            ..
        } = self.parameters;
        let mut outlier_weights: Vec<f64> = outliers
            .iter()
            .map(|&size| self.counts.of(size) as f64)
            .collect();
        let mut bins = Vec::new();
        // Bins of width 1 begin at 1: a bin of size 0 would be empty.
        let first = u32::from(bin_bytes == 1);
        for start in (first..=maximum_bytes).step_by(bin_bytes as usize) {
            let (low, width) = bin_sizes(start, bin_bytes, maximum_bytes);
            let inside = outliers.partition_point(|&size| size < low)
                ..outliers.partition_point(|&size| size < low + width);
            let members = outliers[inside.clone()].len() as u32;
            let all: u64 = (low..low + width).map(|size| self.counts.of(size)).sum();
            let outlying: u64 = (outliers[inside.clone()].iter())
                .map(|&size| self.counts.of(size))
                .sum();
            let mut weight = (all - outlying) as f64;
            if weight > 0.0 {
                // A size in the bin is no outlier, so this does not divide by 0.
                let average = weight / f64::from(width - members);
                for outlier in &mut outlier_weights[inside] {
                    *outlier -= average;
                }
                weight += average * f64::from(members);
                bins.push((start, weight));
            }
        }
        (outlier_weights, bins)
    }

    /// Probability of each size with infinitely fine cells: only the bins cause an error.
    pub fn ideal(&self) -> Vec<f64> {
        let mut probabilities = vec![0.0; self.parameters.maximum_bytes as usize + 1];
        let outliers = self.outliers();
        let (outlier_weights, bins) = self.weights(&outliers);
        let considered = self.considered as f64;
        for (&size, weight) in outliers.iter().zip(outlier_weights) {
            probabilities[size as usize] += weight / considered;
        }
        for (start, weight) in bins {
            let (low, width) = bin_sizes(
                start,
                self.parameters.bin_bytes,
                self.parameters.maximum_bytes,
            );
            for size in low..low + width {
                probabilities[size as usize] += weight / considered / f64::from(width);
            }
        }
        probabilities
    }

    pub fn counted(&self) -> Vec<f64> {
        (0..=self.parameters.maximum_bytes)
            .map(|size| self.counts.of(size) as f64 / self.considered as f64)
            .collect()
    }
}
