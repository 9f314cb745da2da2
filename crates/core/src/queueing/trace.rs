//! What happened to every packet, when that is asked for: two tables, written as the model runs.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;

use super::engine::Engine;
use super::model::Model;
use super::scale::Scale;

/// How a visit or a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// It was served, or reached a sink.
    Served,
    /// The queue was full.
    Lost,
}

/// One row per packet (or clone) and queue that it came to; times in ps.
#[derive(Clone, Debug, Default)]
pub struct VisitTable {
    /// Number of the packet, from 0, in the order of their births.
    pub packet: Vec<u64>,
    /// Whether it was a clone of the packet.
    pub clone: Vec<bool>,
    /// Number of its class.
    pub class: Vec<u16>,
    /// Number of the queue.
    pub queue: Vec<u32>,
    /// When it came; for a lost one also `started` and `left`.
    pub arrived: Vec<u64>,
    /// When its service first started.
    pub started: Vec<u64>,
    /// When its service ended.
    pub left: Vec<u64>,
    /// How it ended.
    pub fate: Vec<Fate>,
}

/// One row per packet (or clone) that left the network, in the order in which they did; times in ps.
#[derive(Clone, Debug, Default)]
pub struct PacketTable {
    /// Number of the packet.
    pub packet: Vec<u64>,
    /// Whether it was a clone.
    pub clone: Vec<bool>,
    /// Number of its class.
    pub class: Vec<u16>,
    /// Its length.
    pub bytes: Vec<u32>,
    /// When it came out of its source.
    pub born: Vec<u64>,
    /// When it left.
    pub left: Vec<u64>,
    /// The sink, counted on from the queues, or the queue that lost it.
    pub place: Vec<u32>,
    /// How it ended.
    pub fate: Vec<Fate>,
}

/// Both tables.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Visits of queues.
    pub visits: VisitTable,
    /// Packets that left.
    pub packets: PacketTable,
}

impl VisitTable {
    /// The table with names instead of numbers: `packet`, `clone`, `class`, `queue`, `arrived_ps`,
    /// `started_ps`, `left_ps`, `lost`.
    pub fn batch(&self, model: &Model) -> Result<RecordBatch, ArrowError> {
        let queues = model.queues.iter().map(|queue| queue.name.as_str());
        RecordBatch::try_from_iter([
            ("packet", numbers(&self.packet)),
            ("clone", truths(self.clone.iter().copied())),
            ("class", classes(&self.class, model)?),
            ("queue", names(self.queue.clone(), queues)?),
            ("arrived_ps", numbers(&self.arrived)),
            ("started_ps", numbers(&self.started)),
            ("left_ps", numbers(&self.left)),
            (
                "lost",
                truths(self.fate.iter().map(|&fate| fate == Fate::Lost)),
            ),
        ])
    }
}

impl PacketTable {
    /// The table with names instead of numbers: `packet`, `clone`, `class`, `bytes`, `born_ps`,
    /// `left_ps`, `place`, `lost`.
    pub fn batch(&self, model: &Model) -> Result<RecordBatch, ArrowError> {
        let queues = model.queues.iter().map(|queue| queue.name.as_str());
        let places = queues.chain(model.sinks.iter().map(String::as_str));
        RecordBatch::try_from_iter([
            ("packet", numbers(&self.packet)),
            ("clone", truths(self.clone.iter().copied())),
            ("class", classes(&self.class, model)?),
            (
                "bytes",
                Arc::new(UInt32Array::from(self.bytes.clone())) as ArrayRef,
            ),
            ("born_ps", numbers(&self.born)),
            ("left_ps", numbers(&self.left)),
            ("place", names(self.place.clone(), places)?),
            (
                "lost",
                truths(self.fate.iter().map(|&fate| fate == Fate::Lost)),
            ),
        ])
    }
}

fn numbers(values: &[u64]) -> ArrayRef {
    Arc::new(UInt64Array::from(values.to_vec()))
}

fn truths(values: impl Iterator<Item = bool>) -> ArrayRef {
    Arc::new(BooleanArray::from(values.collect::<Vec<_>>()))
}

fn classes(numbers: &[u16], model: &Model) -> Result<ArrayRef, ArrowError> {
    let numbers = numbers.iter().map(|&class| u32::from(class)).collect();
    names(numbers, model.classes.iter().map(String::as_str))
}

fn names<'a>(
    numbers: Vec<u32>,
    names: impl Iterator<Item = &'a str>,
) -> Result<ArrayRef, ArrowError> {
    let names = StringArray::from(names.collect::<Vec<_>>());
    let column = DictionaryArray::<UInt32Type>::try_new(numbers.into(), Arc::new(names))?;
    Ok(Arc::new(column))
}

impl<S: Scale, const TRACED: bool> Engine<'_, S, TRACED> {
    pub(super) fn record_visit(&mut self, job: u32, queue: usize, fate: Fate) {
        let (slot, table) = (&self.jobs[job], &mut self.trace.visits);
        table.packet.push(slot.packet);
        table.clone.push(slot.clone);
        table.class.push(slot.class);
        table.queue.push(queue as u32);
        table.arrived.push(slot.arrived);
        table.started.push(slot.started);
        table.left.push(self.now);
        table.fate.push(fate);
    }

    pub(super) fn record_packet(&mut self, job: u32, place: u32, fate: Fate) {
        let (slot, table) = (&self.jobs[job], &mut self.trace.packets);
        table.packet.push(slot.packet);
        table.clone.push(slot.clone);
        table.class.push(slot.class);
        table.bytes.push(slot.bytes);
        table.born.push(slot.born);
        table.left.push(self.now);
        table.place.push(place);
        table.fate.push(fate);
    }
}
