//! Superposed on/off sources: geometric periods, or Pareto periods (self-similar traffic).

use crate::distributions::error::{checked, positive};
use crate::distributions::{Distribution, DistributionError, Geometric, Pareto, Rng};
use std::fmt;

/// `sources` independent sources in slotted time. On and off periods are geometric; while a source is on, its
/// gaps are geometric. The validation of the software router uses four such sources for traffic with a high
/// peak-to-mean ratio.
///
/// The gap between packets of different sources in one slot is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct GeometricOnOff {
    sources: u32,
    slot_ns: f64,
    on_slots: Geometric,
    off_slots: Geometric,
    gap_slots: Geometric,
}

/// Maximum number of sources: each packet compares all of them.
const SOURCES_MAX: u32 = 4096;

/// Maximum length of a period: the slots of a whole run are counted in 64 bits.
const SLOTS_MAX: f64 = 1e12;

/// Maximum mean number of on periods until a source sends a packet.
const PERIODS_MAX: f64 = 1000.0;

/// Maximum ratio of off to on periods: beyond it, rounding of times loses on periods.
const OFF_MAX: f64 = 1e9;

impl GeometricOnOff {
    /// `sources` sources with these mean periods and this mean gap while on, all in slots.
    ///
    /// # Errors
    /// When there is no source or more than 4096, a mean is below 1 slot, the gap is longer than 1000 on periods, or
    /// a period longer than 10^12 slots or off 10^9 times as long as on.
    pub fn new(
        sources: u32,
        slot_ns: f64,
        mean_on_slots: f64,
        mean_off_slots: f64,
        mean_gap_slots: f64,
    ) -> Result<Self, DistributionError> {
        let distribution = Self {
            sources: checked_sources("onoff", sources)?,
            slot_ns: positive("onoff", "slot", slot_ns)?,
            on_slots: Geometric::new(mean_on_slots)?,
            off_slots: Geometric::new(mean_off_slots)?,
            gap_slots: Geometric::new(mean_gap_slots)?,
        };
        check_periods("onoff", mean_on_slots, mean_off_slots, mean_gap_slots)?;
        for (parameter, slots) in [("on", mean_on_slots), ("off", mean_off_slots)] {
            let is_valid = slots <= SLOTS_MAX;
            checked(is_valid, "onoff", parameter, slots, "at most 1e12 slots")?;
        }
        Ok(distribution)
    }

    /// A source sends in a slot with probability on / (on + off) / gap.
    pub fn mean_gap_ns(&self) -> f64 {
        let share = self.on_slots.mean() / (self.on_slots.mean() + self.off_slots.mean());
        self.slot_ns * self.gap_slots.mean() / (share * f64::from(self.sources))
    }

    /// Relative standard deviation of the mean of this many gaps. It is that of the number of packets in the
    /// same time: asymptotic for a regenerative process (W. L. Smith, Regenerative Stochastic Processes,
    /// 1955), and at most as if the sources kept their state.
    pub(super) fn mean_spread(&self, gaps: f64) -> f64 {
        let (on, off) = (self.on_slots.mean(), self.off_slots.mean());
        let in_a_slot = 1.0 / self.gap_slots.mean();
        let share = on / (on + off);
        let rate = in_a_slot * share;
        let variance = in_a_slot * (1.0 - in_a_slot) * on
            + (in_a_slot - rate).powi(2) * self.on_slots.variance()
            + rate * rate * self.off_slots.variance();
        let squared = variance / ((on + off) * rate * gaps);
        let frozen = (1.0 - share) / (share * f64::from(self.sources)) + 1.0 / gaps;
        squared.min(frozen).sqrt()
    }

    /// The state that an arbitrary packet sees (Palm distribution), so that every gap has the distribution's
    /// mean. The packet, at time 0, is from each source with the same probability. The other sources are in
    /// their stationary state.
    pub(super) fn start(&self, rng: &mut Rng) -> GeometricSources {
        let first = rng.below(u64::from(self.sources)) as u32;
        let sources = (0..self.sources).map(|number| {
            let mut source = if number == first {
                GeometricSource {
                    packet_slot: 0,
                    off_slot: slots(&self.on_slots, rng),
                }
            } else {
                GeometricSource::start(self, rng)
            };
            // In a slot, sources send in their order, so these sources have already sent in the first slot.
            if number <= first && source.packet_slot == 0 {
                source.find_packet(1, self, rng);
            }
            source
        });
        GeometricSources {
            sources: sources.collect(),
            distribution: self.clone(),
            now_slot: 0,
        }
    }
}

fn checked_sources(distribution: &'static str, sources: u32) -> Result<u32, DistributionError> {
    let is_valid = (1..=SOURCES_MAX).contains(&sources);
    checked(
        is_valid,
        distribution,
        "sources",
        sources.into(),
        "1 to 4096",
    )?;
    Ok(sources)
}

/// Checks that a packet is found in bounded time.
fn check_periods(
    distribution: &'static str,
    on: f64,
    off: f64,
    gap: f64,
) -> Result<(), DistributionError> {
    let expected = "at most 1000 mean on periods";
    checked(gap <= on * PERIODS_MAX, distribution, "gap", gap, expected)?;
    let expected = "at most 10^9 times the mean on period";
    checked(off <= on * OFF_MAX, distribution, "off", off, expected)?;
    Ok(())
}

/// One source: the slot of its next packet, and the first slot after its on period.
#[derive(Debug, Clone)]
struct GeometricSource {
    packet_slot: u64,
    off_slot: u64,
}

/// The sources and their state.
#[derive(Debug, Clone)]
pub(super) struct GeometricSources {
    distribution: GeometricOnOff,
    now_slot: u64,
    sources: Vec<GeometricSource>,
}

impl GeometricSource {
    fn start(distribution: &GeometricOnOff, rng: &mut Rng) -> Self {
        // The residual life of a geometric period is geometric.
        let share = distribution.on_slots.mean()
            / (distribution.on_slots.mean() + distribution.off_slots.mean());
        let on_slot = if rng.unit() < share {
            0
        } else {
            slots(&distribution.off_slots, rng)
        };
        let mut source = Self {
            packet_slot: on_slot,
            off_slot: on_slot + slots(&distribution.on_slots, rng),
        };
        source.find_packet(on_slot, distribution, rng);
        source
    }

    /// Finds the next packet at or after the slot `from`. The source is on in that slot if it is before
    /// `off_slot`.
    fn find_packet(&mut self, from: u64, distribution: &GeometricOnOff, rng: &mut Rng) {
        let mut from = from;
        loop {
            // A gap of n slots: the packet is in the n-th slot from here.
            let packet_slot = from + slots(&distribution.gap_slots, rng) - 1;
            if packet_slot < self.off_slot {
                self.packet_slot = packet_slot;
                return;
            }
            // It is beyond this on period. The gap is memoryless, so the next period draws anew.
            from = self.off_slot + slots(&distribution.off_slots, rng);
            self.off_slot = from + slots(&distribution.on_slots, rng);
        }
    }
}

fn slots(distribution: &Geometric, rng: &mut Rng) -> u64 {
    distribution.sample(rng) as u64
}

impl GeometricSources {
    pub(super) fn next_gap_ns(&mut self, rng: &mut Rng) -> f64 {
        let Some(next) = self
            .sources
            .iter_mut()
            .min_by_key(|source| source.packet_slot)
        else {
            return 0.0;
        };
        let slot = next.packet_slot;
        next.find_packet(slot + 1, &self.distribution, rng);
        let gap_ns = (slot - self.now_slot) as f64 * self.distribution.slot_ns;
        self.now_slot = slot;
        gap_ns
    }
}

impl fmt::Display for GeometricOnOff {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "onoff:sources={},slot={}ns,on={},off={},gap={}",
            self.sources,
            self.slot_ns,
            self.on_slots.mean(),
            self.off_slots.mean(),
            self.gap_slots.mean()
        )
    }
}

/// `sources` independent sources. On and off periods have a Pareto distribution; while a source is on, it sends
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
    ) -> Result<Self, DistributionError> {
        let distribution = Self {
            sources: checked_sources("pareto-onoff", sources)?,
            gap_ns: positive("pareto-onoff", "gap", gap_ns)?,
            on_ns: Pareto::with_mean(on_shape, mean_on_ns)?,
            off_ns: Pareto::with_mean(off_shape, mean_off_ns)?,
        };
        check_periods("pareto-onoff", mean_on_ns, mean_off_ns, gap_ns)?;
        Ok(distribution)
    }

    /// A source sends one packet per `gap_ns` of on time, summed over its on periods.
    pub fn mean_gap_ns(&self) -> f64 {
        let share = self.on_ns.mean() / (self.on_ns.mean() + self.off_ns.mean());
        self.gap_ns / (share * f64::from(self.sources))
    }

    /// The state that an arbitrary packet sees (Palm distribution), so that every gap has the distribution's
    /// mean. The packet, at time 0, is from each source with the same probability. The other sources are in
    /// their stationary state.
    pub(super) fn start(&self, rng: &mut Rng) -> ParetoSources {
        let first = rng.below(u64::from(self.sources)) as u32;
        let sources = (0..self.sources).map(|number| {
            if number != first {
                return ParetoSource::start(self, rng);
            }
            let mut source = ParetoSource {
                packet_ns: 0.0,
                off_ns: self.on_ns.sample_residual(rng),
            };
            source.advance(self.gap_ns, self, rng);
            source
        });
        ParetoSources {
            sources: sources.collect(),
            distribution: self.clone(),
        }
    }
}

/// One source. Times are relative to the last packet of all sources, so that they stay small and exact.
#[derive(Debug, Clone)]
struct ParetoSource {
    packet_ns: f64,
    // End of the on period in which the next packet lies.
    off_ns: f64,
}

/// The sources and their state.
#[derive(Debug, Clone)]
pub(super) struct ParetoSources {
    distribution: ParetoOnOff,
    sources: Vec<ParetoSource>,
}

impl ParetoSource {
    fn start(distribution: &ParetoOnOff, rng: &mut Rng) -> Self {
        let share =
            distribution.on_ns.mean() / (distribution.on_ns.mean() + distribution.off_ns.mean());
        let (on_ns, off_ns) = if rng.unit() < share {
            (0.0, distribution.on_ns.sample_residual(rng))
        } else {
            let on_ns = distribution.off_ns.sample_residual(rng);
            (on_ns, on_ns + distribution.on_ns.sample(rng))
        };
        let mut source = Self {
            packet_ns: on_ns,
            off_ns,
        };
        source.advance(rng.unit() * distribution.gap_ns, distribution, rng);
        source
    }

    /// Delays the next packet by `on_time_ns` of on time.
    fn advance(&mut self, on_time_ns: f64, distribution: &ParetoOnOff, rng: &mut Rng) {
        let mut left_ns = on_time_ns;
        while self.packet_ns + left_ns > self.off_ns {
            left_ns -= self.off_ns - self.packet_ns;
            self.packet_ns = self.off_ns + distribution.off_ns.sample(rng);
            self.off_ns = self.packet_ns + distribution.on_ns.sample(rng);
        }
        self.packet_ns += left_ns;
    }
}

impl ParetoSources {
    pub(super) fn next_gap_ns(&mut self, rng: &mut Rng) -> f64 {
        let Some(next) = self
            .sources
            .iter_mut()
            .min_by(|a, b| a.packet_ns.total_cmp(&b.packet_ns))
        else {
            return 0.0;
        };
        let gap_ns = next.packet_ns;
        next.advance(self.distribution.gap_ns, &self.distribution, rng);
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
