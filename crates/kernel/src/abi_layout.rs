//! Holds a mirrored structure against the type information of a compiled object. For tests.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};

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
