//! All rows with all columns, the flow's addresses in front, so that one file says it all. Times are
//! nanoseconds since 1970; what is null is empty.

use super::error::ConvertError;
use super::source::Source;
use crate::tcp_log::columns::{COLUMNS, Kind};
use arrow::array::{Array, AsArray};
use arrow::datatypes::{
    Int8Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use std::io::{Read, Seek, Write};

/// Writes the log; returns the number of rows.
pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    out.write_all(b"local_address,local_port,remote_address,remote_port")?;
    for column in COLUMNS {
        write!(out, ",{}", column.name)?;
    }
    out.write_all(b"\n")?;
    let flows = source.flows();
    let mut rows = 0;
    while let Some(batch) = source.next_batch()? {
        let numbers = batch.column(1).as_primitive::<UInt32Type>();
        for row in 0..batch.num_rows() {
            match flows.get(&numbers.value(row)) {
                Some(flow) => write!(
                    out,
                    "{},{},{},{}",
                    flow.local_address, flow.local_port, flow.remote_address, flow.remote_port
                )?,
                None => out.write_all(b",,,")?,
            }
            for (column, array) in COLUMNS.iter().zip(batch.columns()) {
                out.write_all(b",")?;
                if array.is_null(row) {
                    continue;
                }
                match column.kind {
                    Kind::TimestampNs => write!(
                        out,
                        "{}",
                        array.as_primitive::<TimestampNanosecondType>().value(row)
                    )?,
                    Kind::U8 => write!(out, "{}", array.as_primitive::<UInt8Type>().value(row))?,
                    Kind::U16 => write!(out, "{}", array.as_primitive::<UInt16Type>().value(row))?,
                    Kind::U32 => write!(out, "{}", array.as_primitive::<UInt32Type>().value(row))?,
                    Kind::U64 => write!(out, "{}", array.as_primitive::<UInt64Type>().value(row))?,
                    Kind::Bool => write!(out, "{}", array.as_boolean().value(row))?,
                    Kind::Names(names) => {
                        let key = array.as_dictionary::<Int8Type>().keys().value(row);
                        out.write_all(names[key as usize].as_bytes())?;
                    }
                }
            }
            out.write_all(b"\n")?;
            rows += 1;
        }
    }
    Ok(rows)
}
