//! The text format `procfs`: the input of the enhanced kernel packet generator (section A.2.2).

use super::text::{SHOWN, lines};
use super::{CellSize, Parameters, SizesError, TwoStage};
use crate::excerpt::excerpt;
use std::io::{BufRead, Write};

/// Writes `dist`, `outl` and `hist` lines; `surround` puts each into `pgset "..."` (createDist's -s).
///
/// # Errors
/// [`SizesError::Write`].
pub fn write_procfs(
    distribution: &TwoStage,
    mut output: impl Write,
    surround: bool,
) -> Result<(), SizesError> {
    let mut line = |text: String| {
        if surround {
            writeln!(output, "pgset \"{text}\"")
        } else {
            writeln!(output, "{text}")
        }
        .map_err(SizesError::Write)
    };
    line(format!(
        "dist {} {} {} {} {}",
        distribution.precision(),
        distribution.bin_bytes(),
        distribution.maximum_bytes(),
        distribution.outliers().len(),
        distribution.bins().len()
    ))?;
    for outlier in distribution.outliers() {
        line(format!("outl {} {}", outlier.size_bytes, outlier.cells))?;
    }
    for bin in distribution.bins() {
        line(format!("hist {} {}", bin.size_bytes, bin.cells))?;
    }
    output.flush().map_err(SizesError::Write)
}

/// Reads what [`write_procfs`] or createDist wrote, with or without `pgset`.
///
/// createDist truncates its cells to whole numbers, so its arrays may have empty cells. Those of the outliers
/// refer to the bins; those of the bins are not drawn.
///
/// # Errors
/// [`SizesError::Line`] for an unknown line or a number outside its range; [`SizesError::Incomplete`] when
/// lines are missing or nothing could be drawn; [`SizesError::Read`].
pub fn read_procfs(input: impl BufRead, source_name: &str) -> Result<TwoStage, SizesError> {
    let mut reader = Reader {
        source_name,
        head: None,
        outliers: Vec::new(),
        bins: Vec::new(),
    };
    lines(input, source_name, |line, text| reader.take(line, text))?;
    reader.finish()
}

struct Head {
    parameters: Parameters,
    outliers: usize,
    bins: usize,
}

struct Reader<'a> {
    source_name: &'a str,
    head: Option<Head>,
    outliers: Vec<CellSize>,
    bins: Vec<CellSize>,
}

impl Reader<'_> {
    fn take(&mut self, line: u64, text: &str) -> Result<(), SizesError> {
        let bad = |expected: String| SizesError::Line {
            source_name: self.source_name.into(),
            line,
            found: excerpt(text, SHOWN),
            expected,
        };
        let inner = match text.strip_prefix("pgset") {
            None => text,
            Some(quoted) => quoted
                .trim()
                .strip_prefix('"')
                .and_then(|rest| rest.strip_suffix('"'))
                .ok_or_else(|| bad("pgset \"...\" with both quotation marks".into()))?,
        };
        let (word, rest) = inner.trim().split_once(' ').unwrap_or((inner.trim(), ""));
        let numbers: Option<Vec<u32>> = rest
            .split_whitespace()
            .map(|word| word.parse().ok())
            .collect();
        match (word, numbers.as_deref()) {
            // It enables the distribution, and has no numbers of it.
            ("flag", _) => Ok(()),
            ("dist", Some(&[precision, bin_bytes, maximum_bytes, outliers, bins])) => {
                if self.head.is_some() {
                    return Err(bad("one dist line in all".into()));
                }
                let parameters = Parameters {
                    precision,
                    bin_bytes,
                    maximum_bytes,
                    ..Parameters::default()
                }
                .checked()
                .map_err(|error| bad(error.to_string()))?;
                self.head = Some(Head {
                    parameters,
                    outliers: outliers as usize,
                    bins: bins as usize,
                });
                Ok(())
            }
            ("outl" | "hist", Some(&[size_bytes, cells])) => {
                let head = self
                    .head
                    .as_ref()
                    .ok_or_else(|| bad("a dist line before it".into()))?;
                let maximum_bytes = head.parameters.maximum_bytes;
                let is_outlier = word == "outl";
                let (entries, expected, minimum) = if is_outlier {
                    (&mut self.outliers, head.outliers, 1)
                } else {
                    (&mut self.bins, head.bins, 0)
                };
                if !(minimum..=maximum_bytes).contains(&size_bytes) {
                    return Err(bad(format!("a size from {minimum} to {maximum_bytes}")));
                }
                if entries.len() == expected {
                    return Err(bad(format!(
                        "{expected} {word} lines, as the dist line says"
                    )));
                }
                if entries.iter().any(|entry| entry.size_bytes == size_bytes) {
                    return Err(bad(format!("each size once among the {word} lines")));
                }
                let filled: u64 = entries.iter().map(|entry| u64::from(entry.cells)).sum();
                let room = u64::from(head.parameters.precision) - filled;
                if u64::from(cells) > room {
                    return Err(bad(format!(
                        "at most {room} cells, since {filled} of {} are filled",
                        head.parameters.precision
                    )));
                }
                entries.push(CellSize { size_bytes, cells });
                Ok(())
            }
            _ => Err(bad(
                "dist PRECISION BIN_SIZE MAXIMUM OUTLIERS BINS, outl SIZE CELLS or hist SIZE CELLS"
                    .into(),
            )),
        }
    }

    fn finish(self) -> Result<TwoStage, SizesError> {
        let incomplete = |found: String, expected: String| SizesError::Incomplete {
            source_name: self.source_name.into(),
            found,
            expected,
        };
        let Some(head) = self.head else {
            return Err(incomplete(
                "no dist line".into(),
                "dist PRECISION BIN_SIZE MAXIMUM OUTLIERS BINS as the first line".into(),
            ));
        };
        for (word, found, expected) in [
            ("outl", self.outliers.len(), head.outliers),
            ("hist", self.bins.len(), head.bins),
        ] {
            if found != expected {
                return Err(incomplete(
                    format!("{found} {word} lines"),
                    format!("{expected}, as the dist line says"),
                ));
            }
        }
        let sum = |cells: &[CellSize]| {
            cells
                .iter()
                .map(|entry| u64::from(entry.cells))
                .sum::<u64>()
        };
        let misses = u64::from(head.parameters.precision) - sum(&self.outliers);
        if misses > 0 && sum(&self.bins) == 0 {
            return Err(incomplete(
                format!("{misses} cells of the outliers are empty and no bin has a cell"),
                "bins for them, or outliers in all cells".into(),
            ));
        }
        Ok(TwoStage::of_cells(
            &head.parameters,
            self.outliers,
            self.bins,
        ))
    }
}
