//! The trace of a run: what happened to every packet.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, DictionaryArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;

use super::jobs::Job;
use super::model::Model;

/// How a visit or a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    /// It was served, or reached a sink.
    Served,
    /// A full queue dropped it.
    Lost,
}

/// One row for each packet (or clone) and queue at which it arrived; times in ps.
#[derive(Clone, Debug, Default)]
pub struct VisitTable {
    /// Number of the packet, from 0, in the order in which sources send them.
    pub packet: Vec<u64>,
    /// Whether it is a clone of the packet.
    pub clone: Vec<bool>,
    /// Number of its class.
    pub class: Vec<u16>,
    /// Number of the queue.
    pub queue: Vec<u32>,
    /// Arrival; a lost packet has the same time as `started` and `left`.
    pub arrived: Vec<u64>,
    /// First start of service.
    pub started: Vec<u64>,
    /// End of service.
    pub left: Vec<u64>,
    /// How it ended.
    pub fate: Vec<Fate>,
}

/// One row for each packet (or clone) that left the network, in that order; times in ps.
#[derive(Clone, Debug, Default)]
pub struct PacketTable {
    /// Number of the packet.
    pub packet: Vec<u64>,
    /// Whether it is a clone.
    pub clone: Vec<bool>,
    /// Number of its class.
    pub class: Vec<u16>,
    /// Its length in bytes.
    pub bytes: Vec<u32>,
    /// When the source sent it.
    pub born: Vec<u64>,
    /// When it left.
    pub left: Vec<u64>,
    /// Number of the sink, counted on from the queues, or of the queue that dropped it.
    pub place: Vec<u32>,
    /// How it ended.
    pub fate: Vec<Fate>,
}

/// The tables of visits and of packets.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Visits of queues.
    pub visits: VisitTable,
    /// Packets that left the network.
    pub packets: PacketTable,
}

impl VisitTable {
    /// The table with names instead of numbers: `packet`, `clone`, `class`, `queue`, `arrived_ps`,
    /// `started_ps`, `left_ps`, `lost`.
    pub fn batch(&self, model: &Model) -> Result<RecordBatch, ArrowError> {
        let queues = model.queues.iter().map(|queue| queue.name.as_str());
        RecordBatch::try_from_iter([
            ("packet", numbers(&self.packet)),
            ("clone", truths(self.clone.clone())),
            ("class", classes(&self.class, model)?),
            ("queue", names(self.queue.clone(), queues)?),
            ("arrived_ps", numbers(&self.arrived)),
            ("started_ps", numbers(&self.started)),
            ("left_ps", numbers(&self.left)),
            ("lost", losses(&self.fate)),
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
            ("clone", truths(self.clone.clone())),
            ("class", classes(&self.class, model)?),
            ("bytes", Arc::new(UInt32Array::from(self.bytes.clone()))),
            ("born_ps", numbers(&self.born)),
            ("left_ps", numbers(&self.left)),
            ("place", names(self.place.clone(), places)?),
            ("lost", losses(&self.fate)),
        ])
    }
}

fn numbers(values: &[u64]) -> ArrayRef {
    Arc::new(UInt64Array::from(values.to_vec()))
}

fn truths(values: Vec<bool>) -> ArrayRef {
    Arc::new(BooleanArray::from(values))
}

fn losses(fates: &[Fate]) -> ArrayRef {
    truths(fates.iter().map(|&fate| fate == Fate::Lost).collect())
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

impl Trace {
    /// Records that a packet leaves a queue.
    pub(super) fn record_visit(&mut self, job: &Job, queue: usize, fate: Fate, now: u64) {
        let table = &mut self.visits;
        table.packet.push(job.packet);
        table.clone.push(job.is_clone);
        table.class.push(job.class);
        table.queue.push(queue as u32);
        table.arrived.push(job.arrived);
        table.started.push(job.started);
        table.left.push(now);
        table.fate.push(fate);
    }

    /// Records that a packet leaves the network.
    pub(super) fn record_packet(&mut self, job: &Job, place: u32, fate: Fate, now: u64) {
        let table = &mut self.packets;
        table.packet.push(job.packet);
        table.clone.push(job.is_clone);
        table.class.push(job.class);
        table.bytes.push(job.bytes);
        table.born.push(job.created);
        table.left.push(now);
        table.place.push(place);
        table.fate.push(fate);
    }
}
