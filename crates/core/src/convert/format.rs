//! The names of the formats.

use super::error::ConvertError;
use std::fmt;
use std::str::FromStr;

/// A format that a log can be converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// SIFTR 1.3 of FreeBSD.
    Siftr13,
    /// SIFTR 1.2, which TEACUP reads.
    Siftr12,
    /// siftr2 2.5 with text records.
    Siftr2,
    /// siftr2 2.5 with binary records of 72 bytes.
    Siftr2Binary,
    /// ttprobe 0.1.2, text.
    Ttprobe,
    /// ttprobe 0.1.2, 96 bytes a record.
    TtprobeBinary,
    /// The Web10G logger of TEACUP.
    Web10g,
    /// All columns of the log with the flow's addresses in front.
    Csv,
    /// All columns of the log as Parquet.
    Parquet,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 9] = [
        Format::Siftr13,
        Format::Siftr12,
        Format::Siftr2,
        Format::Siftr2Binary,
        Format::Ttprobe,
        Format::TtprobeBinary,
        Format::Web10g,
        Format::Csv,
        Format::Parquet,
    ];

    /// Their names, in the same order.
    pub const NAMES: [&str; 9] = [
        "siftr-1.3",
        "siftr-1.2",
        "siftr2",
        "siftr2-binary",
        "ttprobe",
        "ttprobe-binary",
        "web10g",
        "csv",
        "parquet",
    ];

    /// The name of the format.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether it is text, which a terminal can show.
    pub fn is_text(self) -> bool {
        !matches!(
            self,
            Format::Siftr2Binary | Format::TtprobeBinary | Format::Parquet
        )
    }

    /// The suffix behind the name of the log.
    pub fn suffix(self) -> &'static str {
        match self {
            Format::Siftr13 | Format::Siftr12 => ".siftr.log",
            Format::Siftr2 => ".siftr2.log",
            Format::Siftr2Binary => ".siftr2.bin",
            Format::Ttprobe => ".ttprobe.log",
            Format::TtprobeBinary => ".ttprobe.bin",
            Format::Web10g => ".web10g.csv",
            Format::Csv => ".csv",
            Format::Parquet => ".parquet",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = ConvertError;

    fn from_str(name: &str) -> Result<Self, ConvertError> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| ConvertError::UnknownFormat {
                found: name.to_string(),
            })
    }
}
