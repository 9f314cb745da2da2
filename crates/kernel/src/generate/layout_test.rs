//! Holds the Rust mirror of the generator's structures against the types of the compiled object.

use libbpf_rs::btf::Btf;
use parshall_core::abi::{FlowHeader, GenerateOptions, GenerateState, PlannedPacket};

use crate::abi_layout::assert_fields;

#[test]
fn every_field_of_the_generator_lies_where_the_header_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), super::program::OBJECT.bytes().unwrap()).unwrap();
    let btf = Btf::from_path(file.path()).unwrap();
    for (name, size, fields) in [
        (
            "planned_packet",
            size_of::<PlannedPacket>(),
            PlannedPacket::FIELDS,
        ),
        ("flow_header", size_of::<FlowHeader>(), FlowHeader::FIELDS),
        (
            "generate_options",
            size_of::<GenerateOptions>(),
            GenerateOptions::FIELDS,
        ),
        (
            "generate_state",
            size_of::<GenerateState>(),
            GenerateState::FIELDS,
        ),
    ] {
        assert_fields(&btf, name, size, fields);
    }
}
