//! Superposed on/off sources with Pareto periods: self-similar traffic.

use super::geometric_on_off::{checked_periods, checked_sources};
use crate::laws::error::positive;
use crate::laws::{Distribution, Generator, LawError, Pareto};
use std::fmt;

/// `sources` independent sources. On and off periods have a Pareto law; while a source is on, it sends
/// a packet every `gap_ns`. With shapes between 1 and 2 the sum is self-similar with Hurst
/// parameter (3 - shape) / 2 of the heavier tail (Willinger, Taqqu, Sherman, Wilson 1997).
#[derive(Debug, Clone, PartialEq)]
pub struct ParetoOnOff {
    sources: u32,
    gap_ns: f64,
    on_ns: Pareto,
    off_ns: Pareto,
}

impl ParetoOnOff {
    /// `sources` sources with these mean periods and tail exponents, and this gap while on.
    ///
    /// # Errors
    /// When there is no source or more than 4096, a shape is not above 1, a time not above 0, the gap is
    /// longer than 1000 on periods, or off 10^9 times as long as on.
    pub fn new(
        sources: u32,
        gap_ns: f64,
        (mean_on_ns, on_shape): (f64, f64),
        (mean_off_ns, off_shape): (f64, f64),
    ) -> Result<Self, LawError> {
        let law = Self {
            sources: checked_sources("pareto-onoff", sources)?,
            gap_ns: positive("pareto-onoff", "gap", gap_ns)?,
            on_ns: Pareto::with_mean(on_shape, mean_on_ns)?,
            off_ns: Pareto::with_mean(off_shape, mean_off_ns)?,
        };
        checked_periods("pareto-onoff", mean_on_ns, mean_off_ns, gap_ns)?;
        Ok(law)
    }

    /// A source sends once in `gap_ns` of its on time, which runs on from period to period.
    pub fn mean_gap_ns(&self) -> f64 {
        let share = self.on_ns.mean() / (self.on_ns.mean() + self.off_ns.mean());
        self.gap_ns / (share * f64::from(self.sources))
    }

    /// The first packet, at time 0, is one like every other, so that every gap has the law's mean: it is as likely from
    /// each source, which is on then, while the others are as at a random moment.
    pub(super) fn start(&self, generator: &mut Generator) -> ParetoSources {
        let first = generator.below(u64::from(self.sources)) as u32;
        let sources = (0..self.sources).map(|number| {
            if number != first {
                return Source::start(self, generator);
            }
            let mut source = Source {
                packet_ns: 0.0,
                off_ns: self.on_ns.sample_residual(generator),
            };
            source.advance(self.gap_ns, self, generator);
            source
        });
        ParetoSources {
            sources: sources.collect(),
            law: self.clone(),
        }
    }
}

/// One source, seen from the last packet of all: times are relative to it, so that they stay small
/// and exact however long it runs.
#[derive(Debug, Clone)]
struct Source {
    packet_ns: f64,
    // End of the on period in which the next packet lies.
    off_ns: f64,
}

/// Sources and where they are.
#[derive(Debug, Clone)]
pub(super) struct ParetoSources {
    law: ParetoOnOff,
    sources: Vec<Source>,
}

impl Source {
    fn start(law: &ParetoOnOff, generator: &mut Generator) -> Self {
        let share = law.on_ns.mean() / (law.on_ns.mean() + law.off_ns.mean());
        let (on_ns, off_ns) = if generator.unit() < share {
            (0.0, law.on_ns.sample_residual(generator))
        } else {
            let on_ns = law.off_ns.sample_residual(generator);
            (on_ns, on_ns + law.on_ns.sample(generator))
        };
        let mut source = Self {
            packet_ns: on_ns,
            off_ns,
        };
        source.advance(generator.unit() * law.gap_ns, law, generator);
        source
    }

    /// Moves the next packet on by `on_time_ns` of on time.
    fn advance(&mut self, on_time_ns: f64, law: &ParetoOnOff, generator: &mut Generator) {
        let mut left_ns = on_time_ns;
        while self.packet_ns + left_ns > self.off_ns {
            left_ns -= self.off_ns - self.packet_ns;
            self.packet_ns = self.off_ns + law.off_ns.sample(generator);
            self.off_ns = self.packet_ns + law.on_ns.sample(generator);
        }
        self.packet_ns += left_ns;
    }
}

impl ParetoSources {
    pub(super) fn next_gap_ns(&mut self, generator: &mut Generator) -> f64 {
        let Some(next) = self
            .sources
            .iter_mut()
            .min_by(|a, b| a.packet_ns.total_cmp(&b.packet_ns))
        else {
            return 0.0;
        };
        let gap_ns = next.packet_ns;
        next.advance(self.law.gap_ns, &self.law, generator);
        for source in &mut self.sources {
            source.packet_ns -= gap_ns;
            source.off_ns -= gap_ns;
        }
        gap_ns
    }
}

impl fmt::Display for ParetoOnOff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "pareto-onoff:sources={},gap={}ns, on {}, off {}",
            self.sources, self.gap_ns, self.on_ns, self.off_ns
        )
    }
}
