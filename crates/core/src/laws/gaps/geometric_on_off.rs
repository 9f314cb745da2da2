//! Superposed on/off sources with geometric periods and geometric gaps.

use crate::laws::error::{number, positive};
use crate::laws::{Distribution, Generator, Geometric, LawError};
use std::fmt;

/// `sources` independent sources in slotted time. On and off periods are geometric; while a source is
/// on, its gaps are geometric. This is the traffic of the second kind of the software router's
/// validation (four sources), with a high ratio of peak to mean.
///
/// Packets of different sources in one slot leave together: their gap is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct GeometricOnOff {
    sources: u32,
    slot_ns: f64,
    on_slots: Geometric,
    off_slots: Geometric,
    gap_slots: Geometric,
}

/// So many sources are looked through for every packet.
const SOURCES_MAX: u32 = 4096;

/// Slots of a period, which are counted in 64 bits over a whole run.
const SLOTS_MAX: f64 = 1e12;

/// So many on periods are gone through for a packet.
const PERIODS_MAX: f64 = 1000.0;

/// A longer off period swallows on periods in the rounding of times.
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
    ) -> Result<Self, LawError> {
        let law = Self {
            sources: checked_sources("onoff", sources)?,
            slot_ns: positive("onoff", "slot", slot_ns)?,
            on_slots: Geometric::new(mean_on_slots)?,
            off_slots: Geometric::new(mean_off_slots)?,
            gap_slots: Geometric::new(mean_gap_slots)?,
        };
        checked_periods("onoff", mean_on_slots, mean_off_slots, mean_gap_slots)?;
        for (parameter, slots) in [("on", mean_on_slots), ("off", mean_off_slots)] {
            if slots > SLOTS_MAX {
                return Err(LawError::Parameter {
                    law: "onoff",
                    parameter,
                    found: number(slots),
                    expected: "at most 1e12 slots",
                });
            }
        }
        Ok(law)
    }

    /// A source sends in a slot with probability on / (on + off) / gap.
    pub fn mean_gap_ns(&self) -> f64 {
        let share = self.on_slots.mean() / (self.on_slots.mean() + self.off_slots.mean());
        self.slot_ns * self.gap_slots.mean() / (share * f64::from(self.sources))
    }

    /// The relative standard deviation of the mean of so many gaps: that of the packets in as long a time, from the
    /// variance of a period's packets (W. L. Smith, Regenerative Stochastic Processes, 1955), and at most that of sources
    /// which keep their state.
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

    /// The first packet, at time 0, is one like every other, so that every gap has the law's mean: it is as likely from
    /// each source, which is on then, while the others are as at a random moment.
    pub(super) fn start(&self, generator: &mut Generator) -> GeometricSources {
        let first = generator.below(u64::from(self.sources)) as u32;
        let sources = (0..self.sources).map(|number| {
            let mut source = if number == first {
                Source {
                    packet_slot: 0,
                    off_slot: slots(&self.on_slots, generator),
                }
            } else {
                Source::start(self, generator)
            };
            // In a slot, sources send in their order: what these send in the first is behind us.
            if number <= first && source.packet_slot == 0 {
                source.find_packet(1, self, generator);
            }
            source
        });
        GeometricSources {
            sources: sources.collect(),
            law: self.clone(),
            now_slot: 0,
        }
    }
}

pub(super) fn checked_sources(law: &'static str, sources: u32) -> Result<u32, LawError> {
    if (1..=SOURCES_MAX).contains(&sources) {
        return Ok(sources);
    }
    Err(LawError::Parameter {
        law,
        parameter: "sources",
        found: sources.to_string(),
        expected: "1 to 4096",
    })
}

/// Checks that a packet is found in bounded time.
pub(super) fn checked_periods(
    law: &'static str,
    on: f64,
    off: f64,
    gap: f64,
) -> Result<(), LawError> {
    let wrong = |parameter, found, expected| LawError::Parameter {
        law,
        parameter,
        found: number(found),
        expected,
    };
    if gap > on * PERIODS_MAX {
        return Err(wrong("gap", gap, "at most 1000 mean on periods"));
    }
    if off > on * OFF_MAX {
        return Err(wrong("off", off, "at most 10^9 times the mean on period"));
    }
    Ok(())
}

/// One source: the slot of its next packet, and the first slot that is no longer on.
#[derive(Debug, Clone)]
struct Source {
    packet_slot: u64,
    off_slot: u64,
}

/// Sources and where they are.
#[derive(Debug, Clone)]
pub(super) struct GeometricSources {
    law: GeometricOnOff,
    now_slot: u64,
    sources: Vec<Source>,
}

impl Source {
    fn start(law: &GeometricOnOff, generator: &mut Generator) -> Self {
        // What is left of a geometric period at a random moment is geometric again.
        let share = law.on_slots.mean() / (law.on_slots.mean() + law.off_slots.mean());
        let on_slot = if generator.unit() < share {
            0
        } else {
            slots(&law.off_slots, generator)
        };
        let mut source = Self {
            packet_slot: on_slot,
            off_slot: on_slot + slots(&law.on_slots, generator),
        };
        source.find_packet(on_slot, law, generator);
        source
    }

    /// Moves to the next packet, looking from the slot `from` on, which is on if it is before `off_slot`.
    fn find_packet(&mut self, from: u64, law: &GeometricOnOff, generator: &mut Generator) {
        let mut from = from;
        loop {
            // A gap of n slots: the packet stands in the n-th slot that is looked at.
            let packet_slot = from + slots(&law.gap_slots, generator) - 1;
            if packet_slot < self.off_slot {
                self.packet_slot = packet_slot;
                return;
            }
            // It would fall beyond this period. Without memory, the next period draws anew.
            from = self.off_slot + slots(&law.off_slots, generator);
            self.off_slot = from + slots(&law.on_slots, generator);
        }
    }
}

fn slots(law: &Geometric, generator: &mut Generator) -> u64 {
    law.sample(generator) as u64
}

impl GeometricSources {
    pub(super) fn next_gap_ns(&mut self, generator: &mut Generator) -> f64 {
        let Some(next) = self
            .sources
            .iter_mut()
            .min_by_key(|source| source.packet_slot)
        else {
            return 0.0;
        };
        let slot = next.packet_slot;
        next.find_packet(slot + 1, &self.law, generator);
        let gap_ns = (slot - self.now_slot) as f64 * self.law.slot_ns;
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
