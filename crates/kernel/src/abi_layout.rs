//! Holds the Rust mirror of `bpf/abi.h` against the types of the compiled objects, field by field. For tests.

use libbpf_rs::btf::types::{MemberAttr, Struct};
use libbpf_rs::btf::{Btf, HasSize};
use parshall_core::abi::{CaptureAccount, MIRRORS};

use crate::objects::CompiledObject;

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

fn find<'b>(objects: &'b [Btf<'static>], name: &str) -> Struct<'b> {
    objects
        .iter()
        .find_map(|btf| btf.type_by_name(name))
        .unwrap_or_else(|| panic!("{name} is in no object"))
}

#[test]
fn every_field_lies_where_the_header_says() {
    let objects = [
        &crate::capture::OBJECT,
        &crate::edge::OBJECT,
        &crate::generate::OBJECT,
        &crate::path::load::OBJECT,
        &crate::tcp::hooks::OBJECT,
    ]
    .map(btf_of);
    for (mirror, size, fields) in MIRRORS {
        let name = kernel_name(mirror);
        let found = find(&objects, &name);
        assert_eq!(found.size(), *size, "size of {name}");
        let members: Vec<_> = found
            .iter()
            .map(|member| {
                let MemberAttr::Normal { offset } = member.attr else {
                    panic!("{name} has a bit field")
                };
                let field = member.name.unwrap().to_string_lossy().into_owned();
                (field, offset as usize / 8)
            })
            .collect();
        let mirrored: Vec<_> = fields
            .iter()
            .map(|(field, offset, _)| ((*field).to_string(), *offset))
            .collect();
        assert_eq!(members, mirrored, "fields of {name}");
    }
    let account = find(&objects, "capture_account");
    assert_eq!(account.size(), size_of::<CaptureAccount>());
}
