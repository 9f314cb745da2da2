//! The texts `sizes` (numbers) and `dist` (size and count, one pair a line).

use super::{SizeCounts, SizesError, TwoStage};
use crate::distributions::Rng;
use crate::excerpt::excerpt;
use std::io::{BufRead, Write};

/// Maximum number of characters of a line in an error.
pub(super) const SHOWN: usize = 60;

/// A line longer than this is no line of ours: a binary file must not be read as one line.
const LINE_MAX_BYTES: usize = 1 << 16;

/// Hands each line without its end to `take`, with its number from 1. It skips comments (`#`) and empty
/// lines.
pub(super) fn lines(
    mut input: impl BufRead,
    source_name: &str,
    mut take: impl FnMut(u64, &str) -> Result<(), SizesError>,
) -> Result<(), SizesError> {
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        let mut limited = std::io::Read::take(&mut input, LINE_MAX_BYTES as u64);
        let read = limited
            .read_until(b'\n', &mut line)
            .map_err(|source| SizesError::Read {
                source_name: source_name.into(),
                source,
            })?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        let bad = |found: &str, expected: &str| SizesError::Line {
            source_name: source_name.into(),
            line: number,
            found: excerpt(found, SHOWN),
            expected: expected.into(),
        };
        // The bytes of another format say nothing to a reader.
        let text = std::str::from_utf8(&line).map_err(|_| SizesError::Incomplete {
            source_name: source_name.into(),
            found: format!("line {number} is no text"),
            expected: "sizes as text; a capture file is read with --from trace".into(),
        })?;
        if read == LINE_MAX_BYTES && !text.ends_with('\n') {
            return Err(bad(text, "a line of at most 65535 bytes"));
        }
        let text = text.split('#').next().unwrap_or("").trim();
        if !text.is_empty() {
            take(number, text)?;
        }
    }
}

/// Reads a sequence of sizes, separated by blanks or line ends, in any number.
///
/// # Errors
/// [`SizesError::Line`] for a text that is no size from 1 to `SIZE_MAX_BYTES`; [`SizesError::Read`].
pub fn read_sizes(input: impl BufRead, source_name: &str) -> Result<SizeCounts, SizesError> {
    let mut counts = SizeCounts::new();
    lines(input, source_name, |line, text| {
        for word in text.split_ascii_whitespace() {
            let added = word.parse().ok().and_then(|size| counts.add(size, 1).ok());
            if added.is_none() {
                return Err(SizesError::Line {
                    source_name: source_name.into(),
                    line,
                    found: excerpt(word, SHOWN),
                    expected: format!("packet sizes from 1 to {} bytes", super::SIZE_MAX_BYTES),
                });
            }
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Reads lines of a size, `separator`, and how many packets have it. A size may occur repeatedly: several
/// files, one after the other, are read as one.
///
/// # Errors
/// [`SizesError::Line`] for a line that is no such pair; [`SizesError::Read`].
pub fn read_dist(
    input: impl BufRead,
    source_name: &str,
    separator: char,
) -> Result<SizeCounts, SizesError> {
    let mut counts = SizeCounts::new();
    lines(input, source_name, |line, text| {
        let pair = if separator.is_whitespace() {
            // Columns that were lined up have several of them.
            text.split_once(char::is_whitespace)
        } else {
            text.split_once(separator)
        };
        pair.and_then(|(size, packets)| {
            let (size, packets) = (size.trim().parse().ok()?, packets.trim().parse().ok()?);
            counts.add(size, packets).ok()
        })
        .ok_or_else(|| SizesError::Line {
            source_name: source_name.into(),
            line,
            found: excerpt(text, SHOWN),
            expected: format!(
                "SIZE{separator}COUNT with a size from 1 to {} bytes and less than 2^64 packets in all",
                super::SIZE_MAX_BYTES
            ),
        })
    })?;
    Ok(counts)
}

/// Writes a line of size, `separator` and packets for every size that occurs, ascending.
///
/// # Errors
/// [`SizesError::Write`].
pub fn write_dist(
    counts: &SizeCounts,
    mut output: impl Write,
    separator: char,
) -> Result<(), SizesError> {
    for (size, packets) in counts.iter() {
        writeln!(output, "{size}{separator}{packets}").map_err(SizesError::Write)?;
    }
    output.flush().map_err(SizesError::Write)
}

/// Draws `count` sizes and writes them, one a line; returns what was drawn.
///
/// # Errors
/// [`SizesError::Write`].
pub fn write_sizes(
    distribution: &TwoStage,
    count: u64,
    rng: &mut Rng,
    mut output: impl Write,
) -> Result<SizeCounts, SizesError> {
    // Every possible line, made once.
    let lines: Vec<String> = (0..=distribution.maximum_bytes())
        .map(|size| format!("{size}\n"))
        .collect();
    let mut packets = vec![0_u64; lines.len()];
    let mut buffer = Vec::with_capacity(1 << 16);
    for _ in 0..count {
        let size = distribution.sample(rng) as usize;
        packets[size] += 1;
        buffer.extend_from_slice(lines[size].as_bytes());
        if buffer.len() > (1 << 16) - 16 {
            output.write_all(&buffer).map_err(SizesError::Write)?;
            buffer.clear();
        }
    }
    output
        .write_all(&buffer)
        .and_then(|()| output.flush())
        .map_err(SizesError::Write)?;
    let mut drawn = SizeCounts::new();
    for (size, packets) in (0..).zip(packets).filter(|(_, packets)| *packets > 0) {
        drawn.add(size, packets)?;
    }
    Ok(drawn)
}
