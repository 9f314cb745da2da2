//! Superposed on/off sources with geometric periods and geometric gaps.

use crate::laws::error::positive;
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

impl GeometricOnOff {
    /// `sources` sources with these mean periods and this mean gap while on, all in slots.
    ///
    /// # Errors
    /// When there is no source or more than 4096, or a mean is below 1 slot.
    pub fn new(
        sources: u32,
        slot_ns: f64,
        mean_on_slots: f64,
        mean_off_slots: f64,
        mean_gap_slots: f64,
    ) -> Result<Self, LawError> {
        Ok(Self {
            sources: checked_sources("onoff", sources)?,
            slot_ns: positive("onoff", "slot", slot_ns)?,
            on_slots: Geometric::new(mean_on_slots)?,
            off_slots: Geometric::new(mean_off_slots)?,
            gap_slots: Geometric::new(mean_gap_slots)?,
        })
    }

    /// A source sends in a slot with probability on / (on + off) / gap.
    pub fn mean_gap_ns(&self) -> f64 {
        let share = self.on_slots.mean() / (self.on_slots.mean() + self.off_slots.mean());
        self.slot_ns * self.gap_slots.mean() / (share * f64::from(self.sources))
    }

    pub(super) fn start(&self, generator: &mut Generator) -> GeometricSources {
        let mut sources = GeometricSources {
            law: self.clone(),
            now_slot: 0,
            sources: Vec::new(),
        };
        for _ in 0..self.sources {
            let source = Source::start(self, generator);
            sources.sources.push(source);
        }
        // The first packet stands at time 0.
        sources.next_gap_ns(generator);
        sources
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
