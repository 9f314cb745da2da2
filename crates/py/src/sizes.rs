//! `_native`: packet size distributions. Counts are lists of (size, packets), a distribution is its procfs text.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use parshall_core::distributions::{GapDistribution, Rng};
use parshall_core::sizes::{
    Comparison, CountError, Parameters, SizeCounts, SizesError, TwoStage, built_in, count_trace,
    read_dist, read_procfs, read_sizes, trace_gaps_ns, write_dist, write_procfs, write_sizes,
};
use parshall_core::trace::{Reader, allowance_bytes};
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;

use crate::errors::{error_to_python, to_python, usage_to_python};
use crate::output_file::{create, take};

type Counts = Vec<(u32, u64)>;

/// Random number stream of `--to sizes`; the generator draws its sizes from the same.
const SIZES_STREAM: u64 = 1;

fn raise(error: SizesError) -> PyErr {
    match error {
        SizesError::Write(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            PyBrokenPipeError::new_err(error.to_string())
        }
        error => {
            let is_usage = error.is_usage();
            error_to_python(error, is_usage)
        }
    }
}

fn counts_of(counts: &Counts) -> PyResult<SizeCounts> {
    let mut sizes = SizeCounts::new();
    for &(size, packets) in counts {
        sizes.add(size, packets).map_err(raise)?;
    }
    Ok(sizes)
}

fn parsed(text: &str) -> PyResult<TwoStage> {
    read_procfs(text.as_bytes(), "procfs").map_err(raise)
}

/// Opens a file, or the standard input for `-`; returns its name in messages, too.
fn open(path: &Path) -> Result<(Box<dyn BufRead + Send>, String), SizesError> {
    if path.as_os_str() == "-" {
        return Ok((
            Box::new(BufReader::new(io::stdin())),
            "standard input".into(),
        ));
    }
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok((Box::new(BufReader::with_capacity(1 << 18, file)), name)),
        Err(source) => Err(SizesError::Read {
            source_name: name,
            source,
        }),
    }
}

/// Writes to a file that gets its name when it is complete; None is the standard output.
fn write_to<T: Send>(
    py: Python<'_>,
    path: Option<&Path>,
    write: impl FnOnce(Box<dyn Write + Send>) -> Result<T, SizesError> + Send,
) -> PyResult<T> {
    let raise_named = |error: SizesError| match (&error, path) {
        (SizesError::Write(source), _) if source.kind() == io::ErrorKind::BrokenPipe => {
            raise(error)
        }
        (SizesError::Write(_), Some(path)) => to_python(format!("{}: {error}", path.display())),
        (SizesError::Write(_), None) => to_python(format!("standard output: {error}")),
        _ => raise(error),
    };
    py.detach(|| {
        let Some(path) = path else {
            return write(Box::new(BufWriter::new(io::stdout()))).map_err(raise_named);
        };
        let (file, place) = create(path)?;
        let written = write(Box::new(BufWriter::new(file))).map_err(raise_named)?;
        take(place)?;
        Ok(written)
    })
}

/// Counts of a file of sizes (`kind` "sizes") or of a distribution ("dist").
#[pyfunction]
pub fn read_size_counts(
    py: Python<'_>,
    path: PathBuf,
    kind: &str,
    separator: char,
) -> PyResult<Counts> {
    let is_dist = kind == "dist";
    py.detach(|| {
        let (input, name) = open(&path)?;
        if is_dist {
            read_dist(input, &name, separator)
        } else {
            read_sizes(input, &name)
        }
    })
    .map(|counts| counts.iter().collect())
    .map_err(raise)
}

/// Counts of the IP packets of a capture file, and the ledger as JSON.
#[pyfunction]
pub fn count_trace_sizes(py: Python<'_>, path: PathBuf) -> PyResult<(Counts, String)> {
    let mut interrupt = None;
    let counted = py.detach(|| {
        let mut reader = Reader::open(&path).map_err(CountError::from)?;
        count_trace(&mut reader, |_| {
            interrupt = Python::attach(|py| py.check_signals()).err();
            interrupt.is_none()
        })
    });
    if let Some(interrupt) = interrupt {
        return Err(interrupt);
    }
    let (counts, ledger) = counted.map_err(|error| error_to_python(error, false))?;
    let ledger = serde_json::to_string(&ledger).map_err(to_python)?;
    Ok((counts.iter().collect(), ledger))
}

/// Bytes of memory for a gap: as a Python number, in the text of the request, and in the distribution.
const GAP_BYTES: u64 = 128;

/// Gaps between the packets of a capture file, ns, and the number of packets that go back in time.
#[pyfunction]
pub fn read_trace_gaps(py: Python<'_>, path: PathBuf) -> PyResult<(Vec<f64>, u64)> {
    let packets_max = allowance_bytes(&path) / GAP_BYTES;
    py.detach(|| Reader::open(&path).and_then(|mut reader| trace_gaps_ns(&mut reader, packets_max)))
        .map_err(|error| error_to_python(error, false))
}

/// Fails unless a text is a gap distribution that can have this mean, ns.
#[pyfunction]
pub fn check_gaps(text: &str, mean_gap_ns: f64) -> PyResult<()> {
    let parsed = GapDistribution::parse(text, Some(mean_gap_ns));
    parsed.map(drop).map_err(usage_to_python)
}

/// Counts of a built-in distribution; None if the name is unknown.
#[pyfunction]
pub fn built_in_sizes(name: &str) -> Option<Counts> {
    built_in(name).map(|counts| counts.iter().collect())
}

fn parameters(
    maximum_bytes: u32,
    precision: u32,
    bin_bytes: u32,
    outlier_share: f64,
) -> Parameters {
    Parameters {
        maximum_bytes,
        precision,
        bin_bytes,
        outlier_share,
    }
}

/// The distribution of counted sizes.
#[pyfunction]
pub fn represent_sizes(
    counts: Counts,
    maximum_bytes: u32,
    precision: u32,
    bin_bytes: u32,
    outlier_share: f64,
) -> PyResult<String> {
    let parameters = parameters(maximum_bytes, precision, bin_bytes, outlier_share);
    let distribution = TwoStage::from_counts(&counts_of(&counts)?, &parameters).map_err(raise)?;
    procfs_text(&distribution)
}

/// The distribution of a procfs file.
#[pyfunction]
pub fn read_size_distribution(path: PathBuf) -> PyResult<String> {
    let (input, name) = open(&path).map_err(raise)?;
    procfs_text(&read_procfs(input, &name).map_err(raise)?)
}

fn procfs_text(distribution: &TwoStage) -> PyResult<String> {
    let mut text = Vec::new();
    write_procfs(distribution, &mut text, false).map_err(raise)?;
    String::from_utf8(text).map_err(to_python)
}

/// Writes a distribution; None is the standard output.
#[pyfunction]
pub fn write_size_distribution(
    py: Python<'_>,
    distribution: &str,
    output: Option<PathBuf>,
    surround: bool,
) -> PyResult<()> {
    let distribution = parsed(distribution)?;
    write_to(py, output.as_deref(), |out| {
        write_procfs(&distribution, out, surround)
    })
}

/// Writes counts; None is the standard output.
#[pyfunction]
pub fn write_size_counts(
    py: Python<'_>,
    counts: Counts,
    output: Option<PathBuf>,
    separator: char,
) -> PyResult<()> {
    let counts = counts_of(&counts)?;
    write_to(py, output.as_deref(), |out| {
        write_dist(&counts, out, separator)
    })
}

/// Probability of each size: element n is that of n bytes, from 0 to the maximum.
#[pyfunction]
pub fn size_probabilities(distribution: &str) -> PyResult<Vec<f64>> {
    Ok(parsed(distribution)?.probabilities())
}

/// Draws sizes; with `writes` they are written, one a line (None is the standard output).
#[pyfunction]
pub fn draw_sizes(
    py: Python<'_>,
    distribution: &str,
    count: u64,
    seed: u64,
    writes: bool,
    output: Option<PathBuf>,
) -> PyResult<Counts> {
    let distribution = parsed(distribution)?;
    let mut rng = Rng::new(seed, SIZES_STREAM);
    let drawn = if writes {
        write_to(py, output.as_deref(), |out| {
            write_sizes(&distribution, count, &mut rng, out)
        })?
    } else {
        py.detach(|| write_sizes(&distribution, count, &mut rng, io::sink()))
            .map_err(raise)?
    };
    Ok(drawn.iter().collect())
}

/// Distance of a distribution from counted sizes, as JSON.
#[pyfunction]
#[pyo3(signature = (counts, distribution, maximum_bytes, precision, bin_bytes, outlier_share, drawn=None))]
#[allow(clippy::too_many_arguments)] // They are keywords in Python.
pub fn compare_sizes(
    counts: Counts,
    distribution: &str,
    maximum_bytes: u32,
    precision: u32,
    bin_bytes: u32,
    outlier_share: f64,
    drawn: Option<Counts>,
) -> PyResult<String> {
    let parameters = parameters(maximum_bytes, precision, bin_bytes, outlier_share);
    let drawn = drawn.as_ref().map(counts_of).transpose()?;
    let comparison = Comparison::new(
        &counts_of(&counts)?,
        &parameters,
        &parsed(distribution)?,
        drawn.as_ref(),
    )
    .map_err(raise)?;
    serde_json::to_string(&comparison).map_err(to_python)
}
