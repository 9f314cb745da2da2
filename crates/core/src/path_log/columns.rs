//! The columns of a path log: the one table of them.

use super::{CODE_NAMES, Row};
use crate::abi::PathRecord;
use crate::protocols::PROTOCOL_TCP;
use crate::stage::{STAGE_NAMES, Stage, stage_table};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use std::collections::HashMap;
use std::sync::Arc;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nanoseconds since 1970, UTC.
    TimestampNs,
    /// A number of that many bits.
    U8,
    /// See `U8`.
    U16,
    /// See `U8`.
    U32,
    /// See `U8`.
    U64,
    /// One of these names; a dictionary.
    Names(&'static [&'static str]),
    /// An IP address, 16 bytes in network byte order; IPv4 as `::ffff:a.b.c.d`.
    Address,
    /// A short text.
    Text,
}

/// A column: its value of a row, `None` where it has none. Addresses and texts are taken by name.
#[derive(Clone, Copy)]
pub struct Column {
    /// Its name, with the unit.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// The value of a row.
    pub value: fn(&Row<'_>) -> Option<u64>,
}

const EVENTS: [&str; 2] = ["packet", "read"];

/// A column that only rows of one event have.
macro_rules! column_of {
    ($event:ident, $name:expr, $kind:expr, $row:ident => $value:expr) => {
        Column {
            name: $name,
            kind: $kind,
            value: |row| match row {
                Row::$event($row) => $value,
                _ => None,
            },
        }
    };
}

macro_rules! packet {
    ($name:expr, $kind:expr, $packet:ident => $value:expr) => {
        column_of!(Packet, $name, $kind, $packet => $value)
    };
}

macro_rules! read {
    ($name:literal, $kind:expr, $read:ident => $value:expr) => {
        column_of!(Read, $name, $kind, $read => $value)
    };
}

fn stage_ns(packet: &PathRecord, stage: Stage) -> Option<u64> {
    (stage.is_in(packet.seen)).then(|| u64::from(packet.offset_ns[stage.number()]))
}

/// 0 means that it is not known.
fn known(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

/// A value that only TCP segments have.
fn of_tcp(packet: &PathRecord, value: u32) -> Option<u64> {
    (packet.identity.protocol == PROTOCOL_TCP).then(|| value.into())
}

/// A value that only IP packets have.
fn of_ip(packet: &PathRecord, value: impl Into<u64>) -> Option<u64> {
    (packet.identity.ip_version != 0).then(|| value.into())
}

/// From one moment of a read to a later one.
fn since(from_ns: u64, until_ns: u64) -> Option<u64> {
    (from_ns != 0 && until_ns != 0).then(|| until_ns.saturating_sub(from_ns))
}

macro_rules! list_columns {
    ($($stage:ident)*) => {
        /// All columns, in their order.
        pub const COLUMNS: &[Column] = &[
            // Of the first stage; of a read, when its data was ready.
            Column {
                name: "time",
                kind: Kind::TimestampNs,
                value: |row| Some(row.time_ns()),
            },
            Column {
                name: "event",
                kind: Kind::Names(&EVENTS),
                value: |row| Some(matches!(row, Row::Read(_)).into()),
            },
            packet!("path", Kind::Names(&CODE_NAMES), packet => Some(packet.code.into())),
            packet!("first_stage", Kind::Names(&STAGE_NAMES), packet => Some(packet.first_stage.into())),
            packet!("last_stage", Kind::Names(&STAGE_NAMES), packet => Some(packet.last_stage.into())),
            packet!("drop_reason", Kind::U32, packet => known(packet.reason.into())),
            $(packet!(concat!(stringify!($stage), "_ns"), Kind::U32, packet => stage_ns(packet, Stage::$stage)),)*
            packet!("whole_ns", Kind::U32, packet => whole_ns(packet)),
            packet!("stolen_ns", Kind::U32, packet => (packet.stolen_ns != u32::MAX).then(|| packet.stolen_ns.into())),
            packet!("first_cpu", Kind::U16, packet => Some(packet.first_cpu.into())),
            packet!("last_cpu", Kind::U16, packet => Some(packet.last_cpu.into())),
            packet!("poll", Kind::U32, packet => known(packet.identity.poll_index.into()).map(|_| packet.identity.poll.into())),
            packet!("poll_index", Kind::U16, packet => known(packet.identity.poll_index.into())),
            packet!("netns_inode", Kind::U32, packet => known(packet.identity.netns_inode.into())),
            packet!("interface", Kind::U32, packet => known(packet.identity.interface.into())),
            packet!("interface_out", Kind::U32, packet => known(packet.interface_out.into())),
            packet!("ethernet_protocol", Kind::U16, packet => Some(packet.identity.ethernet_protocol.into())),
            packet!("ip_version", Kind::U8, packet => known(packet.identity.ip_version.into())),
            packet!("protocol", Kind::U8, packet => of_ip(packet, packet.identity.protocol)),
            packet!("source", Kind::Address, packet => of_ip(packet, 0_u8)),
            packet!("destination", Kind::Address, packet => of_ip(packet, 0_u8)),
            packet!("source_port", Kind::U16, packet => of_ip(packet, packet.identity.source_port)),
            packet!("destination_port", Kind::U16, packet => of_ip(packet, packet.identity.destination_port)),
            packet!("ip_id", Kind::U16, packet => (packet.identity.ip_version == 4).then(|| packet.identity.ip_id.into())),
            packet!("tcp_seq", Kind::U32, packet => of_tcp(packet, packet.identity.tcp_seq)),
            packet!("tcp_ack", Kind::U32, packet => of_tcp(packet, packet.identity.tcp_ack)),
            packet!("tcp_flags", Kind::U16, packet => of_tcp(packet, packet.identity.tcp_flags.into())),
            Column {
                name: "length_bytes",
                kind: Kind::U32,
                value: |row| match row {
                    Row::Packet(packet) => Some(packet.identity.length_bytes.into()),
                    Row::Read(read) => Some(read.bytes.into()),
                },
            },
            packet!("payload_bytes", Kind::U32, packet => of_ip(packet, packet.identity.payload_bytes)),
            packet!("gso_segs", Kind::U16, packet => Some(packet.identity.gso_segs.into())),
            Column {
                name: "socket_cookie",
                kind: Kind::U64,
                value: |row| {
                    known(match row {
                        Row::Packet(packet) => packet.identity.socket_cookie,
                        Row::Read(read) => read.socket_cookie,
                    })
                },
            },
            packet!("cgroup_id", Kind::U64, packet => known(packet.identity.cgroup_id)),
            read!("waking_ns", Kind::U64, read => since(read.ready_ns, read.waking_ns)),
            read!("running_ns", Kind::U64, read => since(read.ready_ns, read.running_ns)),
            read!("read_ns", Kind::U64, read => since(read.ready_ns, read.time_ns)),
            read!("pid", Kind::U32, read => Some(read.pid.into())),
            read!("command", Kind::Text, _read => Some(0)),
        ];
    };
}

stage_table!(list_columns);

/// From the first stage to the last.
fn whole_ns(packet: &PathRecord) -> Option<u64> {
    (Stage::ALL.iter().rev()).find_map(|&stage| stage_ns(packet, stage))
}

fn field(column: &Column) -> Field {
    let data_type = match column.kind {
        Kind::TimestampNs => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        Kind::U8 => DataType::UInt8,
        Kind::U16 => DataType::UInt16,
        Kind::U32 => DataType::UInt32,
        Kind::U64 => DataType::UInt64,
        Kind::Names(_) => DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
        Kind::Address => DataType::FixedSizeBinary(16),
        Kind::Text => DataType::Utf8,
    };
    Field::new(column.name, data_type, true)
}

/// The schema of the rows with metadata of the file.
pub fn path_schema(metadata: HashMap<String, String>) -> SchemaRef {
    Arc::new(Schema::new(COLUMNS.iter().map(field).collect::<Vec<_>>()).with_metadata(metadata))
}
