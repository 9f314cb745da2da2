//! The arrays that the programs fill, mapped.

use parshall_core::abi::{
    NOISE_COUNT, PATH_BUCKETS, PATH_CODE_COUNT, PathAccount, PathHistogram, PathNoiseHistogram,
    PathWait, Plain, READ_TIME_COUNT, view_plain,
};

use super::load::WAITS;
use super::snapshot::Snapshot;
use crate::measurement_error::MeasurementError;
use crate::net::mapping::Mapping;
use crate::programs::Loaded;

const HISTOGRAM_BYTES: usize = size_of::<PathHistogram>();

/// Counts for each possible CPU; histograms and sums for each that has a lane.
pub(super) struct Arrays {
    accounts: Mapping,
    histograms: Mapping,
    noises: Mapping,
    reads: Mapping,
    waits: Mapping,
    cpus: usize,
    lane_cpus: usize,
    groups: usize,
}

impl Arrays {
    /// Maps those of a loaded object, which has histograms for `groups_max` groups beside the code paths. Histograms can
    /// be put back when they are writable.
    pub fn of(
        object: &Loaded,
        cpus: usize,
        lane_cpus: usize,
        groups_max: usize,
        is_writable: bool,
    ) -> Result<Self, MeasurementError> {
        let groups = PATH_CODE_COUNT + groups_max;
        let map = |name: &str, values: usize, value_bytes: usize| {
            object.mapping(name, values * value_bytes, is_writable)
        };
        let noise_bytes = size_of::<PathNoiseHistogram>();
        Ok(Self {
            accounts: map("path_accounts", cpus, size_of::<PathAccount>())?,
            histograms: map("path_histograms", lane_cpus * groups, HISTOGRAM_BYTES)?,
            noises: map("path_noises", lane_cpus * NOISE_COUNT, noise_bytes)?,
            reads: map("path_reads", lane_cpus * READ_TIME_COUNT, noise_bytes)?,
            waits: map("path_waits", lane_cpus * WAITS, size_of::<PathWait>())?,
            cpus,
            lane_cpus,
            groups,
        })
    }

    fn copy<T: Plain>(mapping: &Mapping, element: usize, words: &mut Vec<u64>) -> Option<T> {
        words.clear();
        mapping.append_words(element * size_of::<T>(), size_of::<T>() / 8, words);
        view_plain::<T>(words).copied()
    }

    /// Adds up elements that hold 64-bit counts only.
    fn sum<T: Plain + Default>(mapping: &Mapping, elements: impl Iterator<Item = usize>) -> T {
        let mut sums = vec![0_u64; size_of::<T>() / 8];
        let mut words = Vec::new();
        for element in elements {
            words.clear();
            mapping.append_words(element * size_of::<T>(), sums.len(), &mut words);
            for (sum, word) in sums.iter_mut().zip(&words) {
                *sum = sum.wrapping_add(*word);
            }
        }
        view_plain::<T>(&sums).copied().unwrap_or_default()
    }

    /// The accounts, summed over the CPUs.
    pub fn account(&self) -> PathAccount {
        Self::sum(&self.accounts, 0..self.cpus)
    }

    /// Copies histograms and waits.
    pub fn snapshot(&self) -> [Snapshot; 2] {
        [
            Snapshot::take(&self.histograms, HISTOGRAM_BYTES),
            Snapshot::take(&self.waits, size_of::<PathWait>()),
        ]
    }

    /// Puts them back.
    pub fn restore(&self, [histograms, waits]: &[Snapshot; 2]) {
        histograms.restore(&self.histograms);
        waits.restore(&self.waits);
    }

    /// Calls `take` with each CPU's histogram of a group.
    pub fn histograms(&self, group: usize, mut take: impl FnMut(&PathHistogram)) {
        let mut words = Vec::new();
        for cpu in 0..self.lane_cpus {
            words.clear();
            let element = cpu * self.groups + group;
            self.histograms.append_words(
                element * HISTOGRAM_BYTES,
                HISTOGRAM_BYTES / 8,
                &mut words,
            );
            if let Some(histogram) = view_plain(&words) {
                take(histogram);
            }
        }
    }

    /// Calls `take` with each CPU's histogram of a kind of noise, or of a time of reads.
    pub fn noises(
        &self,
        of_reads: bool,
        kind: usize,
        mut take: impl FnMut(usize, &PathNoiseHistogram),
    ) {
        let (mapping, kinds) = match of_reads {
            true => (&self.reads, READ_TIME_COUNT),
            false => (&self.noises, NOISE_COUNT),
        };
        let mut words = Vec::new();
        for cpu in 0..self.lane_cpus {
            if let Some(histogram) = Self::copy(mapping, cpu * kinds + kind, &mut words) {
                take(cpu, &histogram);
            }
        }
    }

    /// Where the packets of a code path spent their time, by the bucket of the whole.
    pub fn waits(&self, code: usize) -> Vec<PathWait> {
        let element = |cpu, bucket| cpu * WAITS + code * PATH_BUCKETS + bucket;
        (0..PATH_BUCKETS)
            .map(|bucket| {
                let elements = (0..self.lane_cpus).map(|cpu| element(cpu, bucket));
                Self::sum(&self.waits, elements)
            })
            .collect()
    }
}
