//! Holds the Rust mirror of `bpf/abi.h` against the types of the compiled object, field by field.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use parshall_core::abi::{
    HookCounters, RecordHeader, RingLayout, TcpFlowEndRecord, TcpFlowRecord, TcpOptions,
    TcpStateRecord,
};

#[test]
fn every_field_lies_where_the_header_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), super::hooks::OBJECT).unwrap();
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

/// Fails unless a structure has this size and these fields (name, offset, size).
pub(crate) fn assert_fields(
    btf: &Btf<'_>,
    name: &str,
    size: usize,
    fields: &[(&str, usize, usize)],
) {
    let found: Struct<'_> = btf
        .type_by_name(name)
        .unwrap_or_else(|| panic!("{name} is not in the object"));
    assert_eq!(found.size(), size, "size of {name}");
    let members: Vec<_> = found
        .iter()
        .map(|member| {
            let MemberAttr::Normal { offset } = member.attr else {
                panic!("{name} has a bit field")
            };
            (
                member.name.unwrap().to_string_lossy().into_owned(),
                offset as usize / 8,
            )
        })
        .collect();
    let mirrored: Vec<_> = fields
        .iter()
        .map(|(field, offset, _)| ((*field).to_string(), *offset))
        .collect();
    assert_eq!(members, mirrored, "fields of {name}");
}
