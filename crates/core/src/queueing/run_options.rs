//! How a network is run.

use serde::{Deserialize, Serialize};

use super::calendar::NEVER;
use super::error::ModelError;
use super::network::Network;
use super::range::{above_zero, not_negative, require};

/// How a model is run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    /// Seed of all random numbers.
    pub seed: u64,
    /// Measured time of a replication; None runs until all sources have ended and the network is empty.
    pub duration_ns: Option<f64>,
    /// Warm-up time, which is not measured; None determines it with a pilot run.
    pub warm_up_ns: Option<f64>,
    /// Number of independent replications; or of batches, into which `duration_ns` is divided.
    pub replications: u32,
    /// Divides one long run, with one warm-up, into batches instead of running independent replications.
    pub by_batches: bool,
    /// Maximum number of replications or batches, with `relative_half_width`.
    pub replications_max: u32,
    /// Adds replications until the half-widths of the confidence intervals of throughput and latency at every sink are
    /// at most this fraction of their means.
    pub relative_half_width: Option<f64>,
    /// Confidence level of the intervals.
    pub confidence: f64,
    /// Number of threads; None uses all cores. Results do not depend on it.
    pub threads: Option<usize>,
    /// Keeps the trace of the first replication.
    pub trace: bool,
    /// Runs networks with unlimited queues that are unstable.
    pub allow_unstable: bool,
    /// Maximum number of packets in the network.
    pub jobs_max: usize,
    /// Maximum number of events of a replication, or of all batches.
    pub events_max: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            duration_ns: None,
            warm_up_ns: None,
            replications: 5,
            by_batches: false,
            replications_max: 200,
            relative_half_width: None,
            confidence: 0.95,
            threads: None,
            trace: false,
            allow_unstable: false,
            jobs_max: 5_000_000,
            events_max: 10_000_000_000,
        }
    }
}

impl RunOptions {
    /// Checks the options for a network.
    pub(super) fn check(&self, network: &Network) -> Result<(), ModelError> {
        let place = "the run";
        above_zero(place, "duration_ns", self.duration_ns.unwrap_or(1.0))?;
        let half_width = self.relative_half_width.unwrap_or(1.0);
        above_zero(place, "relative_half_width", half_width)?;
        let warm_up_ns = self.warm_up_ns.unwrap_or(0.0);
        not_negative(place, "warm_up_ns", warm_up_ns)?;
        require(
            self.replications > 0 && self.threads != Some(0),
            place,
            "replications or threads",
            0,
            "at least 1",
        )?;
        require(
            self.confidence > 0.0 && self.confidence < 1.0,
            place,
            "confidence",
            self.confidence,
            "between 0 and 1, such as 0.95",
        )?;
        require(
            self.duration_ns.is_some() || network.ends(),
            place,
            "duration_ns",
            "not given",
            "a duration: the sources of this model never end",
        )?;
        require(
            !self.by_batches || (self.replications >= 2 && self.duration_ns.is_some()),
            place,
            "by_batches",
            true,
            "a duration_ns, and replications of 2 or more: so many batches",
        )?;
        let longest_ns = self.duration_ns.unwrap_or(0.0) + warm_up_ns;
        if longest_ns * 1000.0 >= (NEVER / 2) as f64 {
            return Err(ModelError::EndOfTime);
        }
        let expected = network.arrivals_per_ps * longest_ns * 1000.0;
        if expected > self.events_max as f64 {
            return Err(ModelError::TooManyEvents {
                events: format!("at least {expected:.1e}"),
                time_s: longest_ns / 1e9,
                events_max: self.events_max,
            });
        }
        Ok(())
    }
}
