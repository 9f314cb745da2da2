//! All rows and columns as Parquet. The file has the metadata of the log, and the flow table, the listeners
//! and the ledger as JSON under `parshall.flows_table`, `parshall.listeners` and `parshall.ledger`.

use super::error::ConvertError;
use super::source::Source;
use ::parquet::arrow::ArrowWriter;
use ::parquet::basic::{Compression, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::io::{Read, Seek, Write};
use std::sync::Arc;

/// The writer keeps a row group in memory.
const GROUP_ROWS: usize = 1 << 20;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut (impl Write + Send),
) -> Result<u64, ConvertError> {
    let flows = source.flows();
    let json = |error: serde_json::Error| ConvertError::Write(error.into());
    let table = serde_json::to_string(&flows.values().collect::<Vec<_>>()).map_err(json)?;
    let listeners: Vec<_> = source.reader().listeners().values().collect();
    let listeners = serde_json::to_string(&listeners).map_err(json)?;
    let ledger = serde_json::to_string(source.ledger()).map_err(json)?;
    let log_schema = source.reader().schema();
    let mut metadata = log_schema.metadata().clone();
    metadata.insert("parshall.flows_table", table);
    metadata.insert("parshall.listeners", listeners);
    metadata.insert("parshall.ledger", ledger);
    // Some readers use the schema's metadata, some the file's.
    let listed = metadata
        .iter()
        .map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_key_value_metadata(Some(listed.collect()))
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        // The writer would keep statistics of single pages until the end.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("parshall ", env!("CARGO_PKG_VERSION")).into())
        .build();
    let schema = Arc::new(log_schema.as_ref().clone().with_metadata(metadata));
    let mut writer = ArrowWriter::try_new(out, schema.clone(), Some(properties))?;
    let mut rows = 0;
    while let Some(batch) = source.next_batch()? {
        rows += batch.num_rows() as u64;
        writer.write(
            &batch
                .with_schema(schema.clone())
                .map_err(ParquetError::from)?,
        )?;
    }
    writer.close()?;
    Ok(rows)
}
