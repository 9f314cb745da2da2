//! Rows that wait to be written, column by column.

use super::columns::{COLUMNS, Kind};
use crate::abi::{PathReadRecord, PathRecord};
use arrow::array::{
    ArrayRef, DictionaryArray, FixedSizeBinaryBuilder, Int8Array, StringArray, StringBuilder,
    TimestampNanosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use std::sync::Arc;

/// What becomes a row.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// A packet, at its end.
    Packet(&'a PathRecord),
    /// A read from a socket.
    Read(&'a PathReadRecord),
}

impl Row<'_> {
    /// When it began, ns of CLOCK_MONOTONIC.
    pub fn time_ns(&self) -> u64 {
        match self {
            Self::Packet(packet) => packet.time_ns,
            Self::Read(read) => read.ready_ns,
        }
    }
}

enum Stored {
    Packet(PathRecord),
    Read(PathReadRecord),
}

impl Stored {
    fn row(&self) -> Row<'_> {
        match self {
            Self::Packet(packet) => Row::Packet(packet),
            Self::Read(read) => Row::Read(read),
        }
    }
}

/// Rows in the order of their coming.
#[derive(Default)]
pub struct PathRows {
    rows: Vec<Stored>,
}

impl PathRows {
    /// Adds a row.
    pub fn push(&mut self, row: Row<'_>) {
        self.rows.push(match row {
            Row::Packet(packet) => Stored::Packet(*packet),
            Row::Read(read) => Stored::Read(*read),
        });
    }

    /// Packets and reads that wait.
    pub fn counts(&self) -> [u64; 2] {
        let packets = self
            .rows
            .iter()
            .filter(|row| matches!(row, Stored::Packet(_)))
            .count();
        [packets as u64, (self.rows.len() - packets) as u64]
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Takes all rows as a batch; `offset_ns` turns their clock into that of the log.
    ///
    /// # Errors
    /// Arrow's, which would be a mistake of this file.
    pub fn take_batch(
        &mut self,
        schema: &SchemaRef,
        offset_ns: i64,
    ) -> Result<RecordBatch, ArrowError> {
        let columns = COLUMNS
            .iter()
            .map(|column| {
                let values = self.rows.iter().map(|row| (column.value)(&row.row()));
                Ok(match column.kind {
                    Kind::TimestampNs => Arc::new(
                        TimestampNanosecondArray::from_iter(
                            values.map(|value| value.map(|ns| ns as i64 + offset_ns)),
                        )
                        .with_timezone("UTC"),
                    ) as ArrayRef,
                    Kind::U8 => Arc::new(UInt8Array::from_iter(values.map(|v| v.map(|v| v as u8)))),
                    Kind::U16 => {
                        Arc::new(UInt16Array::from_iter(values.map(|v| v.map(|v| v as u16))))
                    }
                    Kind::U32 => {
                        Arc::new(UInt32Array::from_iter(values.map(|v| v.map(|v| v as u32))))
                    }
                    Kind::U64 => Arc::new(UInt64Array::from_iter(values)),
                    Kind::Names(names) => {
                        let keys = values.map(|value| {
                            value.map(|key| (key as usize).min(names.len() - 1) as i8)
                        });
                        let names = Arc::new(StringArray::from_iter_values(names));
                        Arc::new(DictionaryArray::try_new(Int8Array::from_iter(keys), names)?)
                    }
                    Kind::Address => self.addresses(column.name == "source")?,
                    Kind::Text => self.commands(),
                })
            })
            .collect::<Result<Vec<_>, ArrowError>>()?;
        self.rows.clear();
        RecordBatch::try_new(Arc::clone(schema), columns)
    }

    fn addresses(&self, of_source: bool) -> Result<ArrayRef, ArrowError> {
        let mut builder = FixedSizeBinaryBuilder::with_capacity(self.rows.len(), 16);
        for row in &self.rows {
            match row {
                Stored::Packet(packet) if packet.identity.ip_version != 0 => {
                    let identity = &packet.identity;
                    let address = if of_source {
                        identity.source
                    } else {
                        identity.destination
                    };
                    builder.append_value(address)?;
                }
                _ => builder.append_null(),
            }
        }
        Ok(Arc::new(builder.finish()))
    }

    fn commands(&self) -> ArrayRef {
        let mut builder = StringBuilder::new();
        for row in &self.rows {
            match row {
                Stored::Read(read) => {
                    let name = read
                        .command
                        .split(|byte| *byte == 0)
                        .next()
                        .unwrap_or_default();
                    builder.append_value(String::from_utf8_lossy(name));
                }
                Stored::Packet(_) => builder.append_null(),
            }
        }
        Arc::new(builder.finish())
    }
}
