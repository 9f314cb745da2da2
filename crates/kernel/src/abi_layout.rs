//! Holds the Rust mirror of `bpf/abi.h` against the types of the compiled objects, field by field. For tests.

use std::ffi::OsStr;

use libbpf_rs::btf::types::{MemberAttr, Struct, Union};
use libbpf_rs::btf::{Btf, HasSize, TypeId};
use parshall_core::abi::MIRRORS;

use crate::programs::compiled::{CompiledObject, OBJECTS};

fn btf_of(object: &CompiledObject) -> Btf<'static> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), object.bytes().unwrap()).unwrap();
    Btf::from_path(file.path()).unwrap()
}

/// The name of the kernel's structure behind a mirror's.
fn kernel_name(mirror: &str) -> String {
    let mut name = String::new();
    for letter in mirror.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

fn find<'b>(objects: &'b [Btf<'static>], name: &str) -> (&'b Btf<'static>, Struct<'b>) {
    objects
        .iter()
        .find_map(|btf| Some((btf, btf.type_by_name(name)?)))
        .unwrap_or_else(|| panic!("{name} is in no object"))
}

/// The name of a member; of a union without one, that of its first member.
fn name_of(btf: &Btf<'_>, name: Option<&OsStr>, kind: TypeId) -> String {
    if let Some(name) = name {
        return name.to_string_lossy().into_owned();
    }
    let union: Union<'_> = btf.type_by_id(kind).expect("a union");
    let first = union.iter().next().and_then(|first| first.name);
    first.expect("a name").to_string_lossy().into_owned()
}

#[test]
fn every_field_lies_where_the_header_says() {
    let objects: Vec<_> = OBJECTS.iter().map(btf_of).collect();
    for (mirror, size, fields) in MIRRORS {
        let name = kernel_name(mirror);
        let (btf, found) = find(&objects, &name);
        assert_eq!(found.size(), *size, "size of {name}");
        let members: Vec<_> = found
            .iter()
            .map(|member| {
                let MemberAttr::Normal { offset } = member.attr else {
                    panic!("{name} has a bit field")
                };
                let field = name_of(btf, member.name, member.ty);
                (field, offset as usize / 8)
            })
            .collect();
        let mirrored: Vec<_> = fields
            .iter()
            .map(|(field, offset, _)| ((*field).to_string(), *offset))
            .collect();
        assert_eq!(members, mirrored, "fields of {name}");
    }
}
