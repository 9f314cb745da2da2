//! SIFTR 1.3 as FreeBSD writes it today: 27 fields, srtt and rto in microseconds.

use super::address;
use super::error::ConvertError;
use super::format::Format;
use super::siftr::{check_footer, direction, flow_id, t_flags2, write_lines};
use super::siftr_1::{Differing, first_line, write_fields, write_last_line};
use super::source::Source;
use std::io::{Read, Seek, Write};

/// review_siftr_log, a reader of this version, has a buffer of this size for the last line.
const FOOTER_BYTES_MAX: usize = 1000;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let head = first_line(source, "1.3.0");
    let counts = write_lines(source, out, Format::Siftr13, &head, |out, row, flow| {
        write!(out, "{},", direction(row))?;
        let differing = Differing {
            window_or_t_flags2: t_flags2(flow),
            srtt: row.srtt_us.into(),
            rto: row.rto_us.into(),
            in_flight_bytes: row.in_flight_bytes(),
        };
        write_fields(out, row, flow, address::short, &differing)?;
        writeln!(out, ",0,{},0", flow_id(row.flow))
    })?;
    let footer_bytes = write_last_line(source, out, &counts, "", address::short)?;
    check_footer(
        source,
        &counts,
        footer_bytes,
        "review_siftr_log",
        FOOTER_BYTES_MAX,
    );
    Ok(counts.lines())
}
