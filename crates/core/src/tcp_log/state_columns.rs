//! Records transposed into columns.

// The table's values are expressions of these two, and of the bits of a record.
use super::columns::*;
use super::scale::*;
use crate::abi::*;
use arrow::datatypes::{ArrowNativeType, ToByteSlice};

/// Records of a block: 128 of them are 22 KiB, which leaves space in an L1 cache of 32 KiB.
const BLOCK_RECORDS: usize = 128;

/// The bytes of all values, or of one value when all are equal.
fn bytes_of<T: ArrowNativeType>(values: &[T]) -> &[u8] {
    let bytes = values.to_byte_slice();
    let width = size_of::<T>();
    if bytes.len() > width && bytes[width..] == bytes[..bytes.len() - width] {
        return &bytes[..width];
    }
    bytes
}

macro_rules! storage {
    (time) => {
        i64
    };
    (bool) => {
        u8
    };
    (names) => {
        u8
    };
    ($number:ident) => {
        $number
    };
}

macro_rules! state_columns {
    (|$record:ident, $scale:ident| $($name:ident: $kind:ident $(($names:ident))?, $null:ident $(($null_from:expr))?,
        $unit:literal => $value:expr;)*) => {
        /// Transposed records to be encoded.
        #[allow(non_snake_case)]
        pub struct StateColumns {
            rows: usize,
            capacity: usize,
            scale: Scale,
            $($name: Vec<storage!($kind)>,)*
        }

        impl StateColumns {
            /// Allocates `capacity` rows.
            pub fn new(capacity: usize, scale: Scale) -> Self {
                Self {
                    rows: 0,
                    capacity,
                    scale,
                    $($name: Vec::with_capacity(capacity),)*
                }
            }

            /// Drops the rows; the buffers stay.
            pub fn clear(&mut self) {
                self.rows = 0;
                $(self.$name.clear();)*
            }

            /// Appends records until the capacity is reached; returns how many that were.
            pub fn append(&mut self, records: &[TcpStateRecord]) -> usize {
                let taken = records.len().min(self.capacity - self.rows);
                let $scale = self.scale;
                for block in records[..taken].chunks(BLOCK_RECORDS) {
                    $(self.$name.extend(block.iter().map(|$record| $value));)*
                }
                self.rows += taken;
                taken
            }

            /// Calls `each` with every column and the bytes of its values (of one value when all are equal),
            /// in the order of the file.
            ///
            /// # Errors
            /// The first error of `each`.
            pub fn for_each<E>(
                &self,
                mut each: impl FnMut(&'static Column, &[u8]) -> Result<(), E>,
            ) -> Result<(), E> {
                let mut columns = COLUMNS.iter();
                $(if let Some(column) = columns.next() {
                    each(column, bytes_of(&self.$name))?;
                })*
                Ok(())
            }
        }
    };
}

column_table!(state_columns);

impl StateColumns {
    /// Buffered rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the capacity is reached.
    pub fn is_full(&self) -> bool {
        self.rows == self.capacity
    }

    /// Nanoseconds from the first buffered row to the last.
    pub fn span_ns(&self) -> u64 {
        let ends_ns = self.time_ns.first().zip(self.time_ns.last());
        ends_ns.map_or(0, |(first, last)| last.abs_diff(*first))
    }

    /// Flow, event (an index of [`EVENT_NAMES`]) and direction of every buffered row.
    pub fn flows_and_events(&self) -> impl Iterator<Item = (u32, u8, u8)> {
        (0..self.rows).map(|row| (self.flow[row], self.event[row], self.direction[row]))
    }
}
