//! Requested rates, and the mean gaps that they need.

use super::{Workload, WorkloadError};

/// Bytes of an Ethernet line for a frame in addition to its own: preamble 8, check sequence 4, gap 12.
pub const LINE_OVERHEAD_BYTES: f64 = 24.0;

/// A requested rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// Packets per second.
    Packets(f64),
    /// Bits of frames per second: from the MAC addresses to the end of the payload.
    Bits(f64),
    /// A share of a line, including preamble, check sequence and the line's own gap.
    Load {
        /// Share, 1 is a full line.
        share: f64,
        /// Bits per second of the line.
        line_bps: f64,
    },
}

impl Rate {
    /// The mean gap between packets of this workload, ns.
    ///
    /// # Errors
    /// When it is not above 0, or a load above 1.
    pub fn mean_gap_ns(&self, workload: &Workload) -> Result<f64, WorkloadError> {
        let positive = |parameter, value: f64, expected| {
            if value.is_finite() && value > 0.0 {
                return Ok(value);
            }
            Err(WorkloadError::Rate {
                parameter,
                found: value.to_string(),
                expected,
            })
        };
        let frame_bits = 8.0 * workload.mean_frame_bytes();
        match *self {
            Self::Packets(pps) => Ok(1e9 / positive("pps", pps, "packets per second above 0")?),
            Self::Bits(bps) => {
                Ok(1e9 * frame_bits / positive("rate", bps, "bits per second above 0")?)
            }
            Self::Load { share, line_bps } => {
                positive("line", line_bps, "bits per second above 0")?;
                if !(share > 0.0 && share <= 1.0) {
                    return Err(WorkloadError::Rate {
                        parameter: "load",
                        found: share.to_string(),
                        expected: "a share of the line above 0 and up to 1",
                    });
                }
                let line_bits = frame_bits + 8.0 * LINE_OVERHEAD_BYTES;
                Ok(1e9 * line_bits / (share * line_bps))
            }
        }
    }
}
