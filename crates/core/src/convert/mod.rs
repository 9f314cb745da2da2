//! Conversions of a log into the formats that researchers' scripts already read.
//!
//! Each is a streaming function of a [`LogReader`] into a [`Write`]; limits of the target format
//! and omitted rows become warnings in the report.

mod address;
mod csv;
mod error;
mod format;
mod parquet;
mod row;
mod siftr;
mod siftr2;
mod siftr_1;
mod siftr_1_2;
mod siftr_1_3;
mod source;
mod ttprobe;
mod ttprobe_binary;
mod web10g;
mod web10g_account;

pub use error::ConvertError;
pub use format::Format;

use crate::tcp_log::LogReader;
use source::Source;
use std::io::{BufWriter, Read, Seek, Write};

/// Options of a conversion.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Convert these flows only; all when there is none.
    pub flows: Vec<u32>,
    /// Poll the flows at this interval instead of writing a line per packet (`web10g` only).
    pub every_ns: Option<u64>,
}

/// The result of a conversion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConvertReport {
    /// Rows (lines, records) written, heads and footers not counted.
    pub rows: u64,
    /// Warnings for the reader of the result, a sentence each.
    pub warnings: Vec<String>,
}

/// Converts a log.
///
/// The log is read twice: first the ticks only, because formats with addresses in every line need
/// the flow table, and then the rows.
///
/// # Errors
/// [`ConvertError::Log`] when the log is damaged, [`ConvertError::Write`] when `out` fails,
/// [`ConvertError::NoFlow`] when the format needs a flow and the log has none, [`ConvertError::UnknownFlow`] for a
/// flow that the log does not have, [`ConvertError::Option`] for an option that the format does not have.
pub fn convert<R: Read + Seek>(
    reader: LogReader<R>,
    format: Format,
    out: impl Write + Send,
    options: ConvertOptions,
) -> Result<ConvertReport, ConvertError> {
    if options.every_ns.is_some() && format != Format::Web10g {
        return Err(ConvertError::Option {
            option: "every",
            format,
            reason: "only web10g is a polled format",
        });
    }
    let mut source = Source::new(reader, &options.flows)?;
    let mut out = BufWriter::with_capacity(1 << 18, out);
    let rows = match format {
        Format::Siftr13 => siftr_1_3::write(&mut source, &mut out),
        Format::Siftr12 => siftr_1_2::write(&mut source, &mut out),
        Format::Siftr2 | Format::Siftr2Binary => siftr2::write(&mut source, &mut out, format),
        Format::Ttprobe => ttprobe::write(&mut source, &mut out),
        Format::TtprobeBinary => ttprobe_binary::write(&mut source, &mut out),
        Format::Web10g => web10g::write(&mut source, &mut out, options.every_ns),
        Format::Csv => csv::write(&mut source, &mut out),
        Format::Parquet => parquet::write(&mut source, &mut out),
    }?;
    out.flush()?;
    let has_counts = matches!(
        format,
        Format::Siftr13 | Format::Siftr12 | Format::Siftr2 | Format::Siftr2Binary
    );
    if has_counts && source.is_selection() {
        source.warn(
            "the last line counts what is in the log of these flows; what was thinned or lost is in the flow table"
                .into(),
        );
    }
    Ok(ConvertReport {
        rows,
        warnings: source.into_warnings(),
    })
}

#[cfg(test)]
mod tests;
