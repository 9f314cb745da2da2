//! Holds the Rust mirror of the generator's structures against the types of the compiled object.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use parshall_core::abi::{FlowHeader, GenerateOptions, GenerateState, PlannedPacket};

#[test]
fn every_field_of_the_generator_lies_where_the_header_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), super::program::OBJECT).unwrap();
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
}
