//! All rows and columns, the flow's addresses first, so that one file holds everything. Times are nanoseconds
//! since 1970; null is an empty field.

use super::error::ConvertError;
use super::source::Source;
use crate::tcp_log::columns::COLUMNS;
use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{Int64Type, TimestampNanosecondType, UInt32Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::io::{Read, Seek, Write};
use std::sync::Arc;

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
        // A time becomes its number of nanoseconds.
        let times: ArrayRef = Arc::new(
            batch
                .column(0)
                .as_primitive::<TimestampNanosecondType>()
                .reinterpret_cast::<Int64Type>(),
        );
        let arrays = std::iter::once(&times).chain(&batch.columns()[1..]);
        let options = FormatOptions::default();
        let cells = arrays
            .map(|array| ArrayFormatter::try_new(array, &options))
            .collect::<Result<Vec<_>, _>>()
            .map_err(std::io::Error::other)?;
        for row in 0..batch.num_rows() {
            match flows.get(&numbers.value(row)) {
                Some(flow) => write!(
                    out,
                    "{},{},{},{}",
                    flow.local_address, flow.local_port, flow.remote_address, flow.remote_port
                )?,
                None => out.write_all(b",,,")?,
            }
            for cell in &cells {
                write!(out, ",{}", cell.value(row))?;
            }
            out.write_all(b"\n")?;
            rows += 1;
        }
    }
    Ok(rows)
}
