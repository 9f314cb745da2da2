//! The head of a log: environment, clock and options.

use super::error::{LogError, plain};
use arrow::datatypes::Metadata;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Value of the schema metadata key `parshall.format`.
pub const FORMAT: &str = "tcp-state";
/// The version of the format that this code writes: `MAJOR.MINOR`. It reads logs of this and of older minor
/// versions, which may lack columns.
pub const FORMAT_VERSION: &str = "1.7";
const KEY_PART: &str = "parshall.part";

/// The head of a log. The JSON texts are stored unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// The environment: kernel, offloads, queueing disciplines, sysctls, ... (a JSON object).
    pub environment: String,
    /// The clock: an object with at least `monotonic_offset_ns`, the nanoseconds to add to the
    /// records' `CLOCK_MONOTONIC` to get `CLOCK_REALTIME`.
    pub clock: String,
    /// The options of the run (a JSON object).
    pub options: String,
    /// `CONFIG_HZ` of the kernel, the unit of `rto_jiffies`.
    pub hz: u32,
    /// Which file of the log this is, if the log rotates.
    pub part: Option<LogPart>,
}

/// A file of a log that rotates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// Name of the run of the writer: a writer that is started again numbers flows anew.
    pub run: String,
    /// Number of the file within the run, from 1.
    pub number: u64,
    /// When the file begins, `CLOCK_REALTIME`.
    pub began_ns: i64,
}

impl LogHeader {
    /// The clock's `monotonic_offset_ns`.
    ///
    /// # Errors
    /// [`LogError::Header`] when a text is not JSON, the offset is missing, or `hz` is 0.
    pub fn monotonic_offset_ns(&self) -> Result<i64, LogError> {
        for (key, text) in [
            ("environment", &self.environment),
            ("options", &self.options),
        ] {
            parsed(key, text)?;
        }
        if self.hz == 0 {
            return Err(LogError::Header {
                key: "hz",
                found: "0".into(),
                expected: "the kernel's CONFIG_HZ",
            });
        }
        let clock = parsed("clock", &self.clock)?;
        clock
            .get("monotonic_offset_ns")
            .and_then(serde_json::Value::as_i64)
            .ok_or_else(|| LogError::Header {
                key: "clock",
                found: self.clock.clone(),
                expected: "an object with the integer monotonic_offset_ns",
            })
    }

    /// As schema metadata.
    pub fn to_metadata(&self) -> HashMap<String, String> {
        let part = (self.part.iter())
            .filter_map(|part| serde_json::to_string(part).ok())
            .map(|text| (KEY_PART.to_string(), text));
        let metadata = HashMap::from([
            ("parshall.format".to_string(), FORMAT.to_string()),
            (
                "parshall.format_version".to_string(),
                FORMAT_VERSION.to_string(),
            ),
            ("parshall.environment".to_string(), self.environment.clone()),
            ("parshall.clock".to_string(), self.clock.clone()),
            ("parshall.options".to_string(), self.options.clone()),
            ("parshall.hz".to_string(), self.hz.to_string()),
        ]);
        metadata.into_iter().chain(part).collect()
    }

    /// From the schema metadata of the file `path`.
    ///
    /// # Errors
    /// [`LogError::NotALog`] when the file has another format, [`LogError::NewerVersion`] when its version is
    /// newer than [`FORMAT_VERSION`].
    pub fn from_metadata(path: &str, metadata: &Metadata) -> Result<Self, LogError> {
        let not_a_log = |found: String| LogError::NotALog {
            path: path.to_string(),
            found: plain(&found),
        };
        match metadata.get("parshall.format") {
            None => return Err(not_a_log("an Arrow stream of another program".into())),
            Some(format) if format != FORMAT => {
                return Err(not_a_log(format!(
                    "a Parshall file of the format {format:?}"
                )));
            }
            Some(_) => {}
        }
        let version = metadata
            .get("parshall.format_version")
            .map_or("", String::as_str);
        let (ours, found) = (parsed_version(FORMAT_VERSION), parsed_version(version));
        match found {
            Some(_) if found > ours => {
                return Err(LogError::NewerVersion {
                    path: path.to_string(),
                    found: plain(version),
                    supported: FORMAT_VERSION,
                });
            }
            Some((major, _)) if Some(major) == ours.map(|(major, _)| major) => {}
            _ => {
                return Err(not_a_log(format!(
                    "a TCP state log of the unknown format version {version:?}"
                )));
            }
        }
        let text = |key: &str| metadata.get(key).cloned().unwrap_or_else(|| "{}".into());
        let hz = text("parshall.hz");
        Ok(Self {
            environment: text("parshall.environment"),
            clock: text("parshall.clock"),
            options: text("parshall.options"),
            hz: hz
                .parse()
                .map_err(|_| not_a_log(format!("a log whose parshall.hz is {hz:?}")))?,
            part: (metadata.get(KEY_PART))
                .map(|text| serde_json::from_str(text))
                .transpose()
                .map_err(|error| {
                    not_a_log(format!("a log whose {KEY_PART} is damaged ({error})"))
                })?,
        })
    }
}

/// Major and minor version; `1` is 1.0.
fn parsed_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn parsed(key: &'static str, text: &str) -> Result<serde_json::Value, LogError> {
    serde_json::from_str(text).map_err(|error| LogError::Header {
        key,
        found: format!("not JSON ({error})"),
        expected: "a JSON object",
    })
}
