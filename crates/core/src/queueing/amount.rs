//! Times and lengths of a model, as data.

use serde::{Deserialize, Serialize};

/// A time or a length, constant or random. The field that holds it gives the unit. Negative samples become 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// A constant.
    Number(f64),
    /// A distribution as text, such as `exponential:mean=2.5us`; for gaps also an arrival process, such as `poisson:...`.
    Text(String),
    /// Measured values, sampled with equal probability (the bootstrap).
    Samples {
        /// The measured values.
        samples: Vec<f64>,
    },
    /// A measured histogram: a bin in proportion to its count, then uniform inside the bin.
    Histogram {
        /// Bounds of the bins, increasing; one more than counts.
        bounds: Vec<f64>,
        /// Counts, or weights in any unit.
        counts: Vec<f64>,
    },
    /// A function of the packet's length: linear between the points, constant beyond them.
    Table {
        /// Lengths in bytes, increasing.
        bytes: Vec<f64>,
        /// Values at those lengths.
        values: Vec<f64>,
    },
    /// Recorded values in their order. A source ends with its trace; a service repeats its trace.
    Trace {
        /// Name of one of the traces that the caller passes with the model.
        trace: String,
    },
}
