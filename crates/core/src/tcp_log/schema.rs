//! The Arrow schema of the rows, and the arrays of the constant dictionaries.

use super::columns::{COLUMNS, Column, Kind};
use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::collections::HashMap;
use std::sync::Arc;

/// The schema of the rows, without metadata.
pub fn record_schema() -> Schema {
    Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>())
}

/// The schema of the rows with metadata of the file.
pub fn record_schema_with(metadata: HashMap<String, String>) -> SchemaRef {
    Arc::new(record_schema().with_metadata(metadata))
}

/// The schema of batches from a file: all columns, nullable when the file lacks them, with its metadata.
/// `None` when the file has other columns.
pub fn batch_schema(file: &Schema) -> Option<Schema> {
    let mut in_file = file.fields().iter().peekable();
    let mut fields = Vec::with_capacity(COLUMNS.len());
    for column in COLUMNS {
        let field = field(column);
        match in_file.next_if(|found| ***found == field) {
            Some(_) => fields.push(field),
            None => fields.push(field.with_nullable(true)),
        }
    }
    let schema = Schema::new(fields).with_metadata(file.metadata().clone());
    in_file.next().is_none().then_some(schema)
}

/// Metadata of a column that is null in batches of packets only, which need not be decompressed for it.
const OF_EVENTS: &str = "parshall.of_events";

/// Whether a column is null in batches of packets only.
pub fn is_of_events(field: &Field) -> bool {
    field.metadata().contains_key(OF_EVENTS)
}

/// Some columns of a schema, by name, and further ones that are wanted of batches with events only; names that it does not
/// have are ignored.
pub fn selected(
    schema: &Schema,
    columns: &[impl AsRef<str>],
    of_events: &[impl AsRef<str>],
) -> SchemaRef {
    let fields = schema.fields().iter();
    let kept: Vec<_> = fields
        .filter_map(|field| {
            if columns.iter().any(|name| name.as_ref() == field.name()) {
                return Some(field.clone());
            }
            let is_wanted = of_events.iter().any(|name| name.as_ref() == field.name());
            is_wanted.then(|| {
                let mark = HashMap::from([(OF_EVENTS.to_string(), String::new())]);
                let field = field.as_ref().clone().with_nullable(true);
                Arc::new(field.with_metadata(mark))
            })
        })
        .collect();
    Schema::new(kept)
        .with_metadata(schema.metadata().clone())
        .into()
}

fn field(column: &Column) -> Field {
    Field::new(
        column.name,
        data_type(column.kind),
        column.null_from.is_some(),
    )
}

/// The Arrow type of a column. Indices are signed because pandas does not accept unsigned ones.
pub fn data_type(kind: Kind) -> DataType {
    match kind {
        Kind::TimestampNs => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        Kind::U8 => DataType::UInt8,
        Kind::U16 => DataType::UInt16,
        Kind::U32 => DataType::UInt32,
        Kind::U64 => DataType::UInt64,
        Kind::Bool => DataType::Boolean,
        Kind::Names(_) => DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
    }
}

/// Every column's names as an array, `None` for columns that have none.
pub fn dictionaries() -> Vec<Option<ArrayRef>> {
    COLUMNS
        .iter()
        .map(|column| match column.kind {
            Kind::Names(names) => Some(Arc::new(StringArray::from(names.to_vec())) as ArrayRef),
            _ => None,
        })
        .collect()
}
