//! Holds the Rust mirror of `bpf/abi.h` against the types of the compiled object, field by field.

use libbpf_rs::btf::Btf;
use parshall_core::abi::{
    HookCounters, ReaderTime, RecordHeader, RingLayout, TcpFlowEndRecord, TcpFlowRecord,
    TcpOptions, TcpStateRecord,
};

use crate::abi_layout::assert_fields;

#[test]
fn every_field_lies_where_the_header_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), super::hooks::OBJECT.bytes().unwrap()).unwrap();
    let btf = Btf::from_path(file.path()).unwrap();
    for (name, size, fields) in [
        ("ring_layout", size_of::<RingLayout>(), RingLayout::FIELDS),
        (
            "record_header",
            size_of::<RecordHeader>(),
            RecordHeader::FIELDS,
        ),
        (
            "hook_counters",
            size_of::<HookCounters>(),
            HookCounters::FIELDS,
        ),
        ("reader_time", size_of::<ReaderTime>(), ReaderTime::FIELDS),
        ("tcp_options", size_of::<TcpOptions>(), TcpOptions::FIELDS),
        (
            "tcp_state_record",
            size_of::<TcpStateRecord>(),
            TcpStateRecord::FIELDS,
        ),
        (
            "tcp_flow_record",
            size_of::<TcpFlowRecord>(),
            TcpFlowRecord::FIELDS,
        ),
        (
            "tcp_flow_end_record",
            size_of::<TcpFlowEndRecord>(),
            TcpFlowEndRecord::FIELDS,
        ),
    ] {
        assert_fields(&btf, name, size, fields);
    }
}
