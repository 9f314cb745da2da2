//! Holds the Rust mirror of `bpf/abi.h` against the types of the compiled object, field by field.

use libbpf_rs::btf::types::Struct;
use libbpf_rs::btf::{Btf, HasSize};
use parshall_core::abi::{CaptureAccount, CaptureOptions, CaptureRecord, CaptureVerdict};

use crate::abi_layout::assert_fields;

#[test]
fn every_field_lies_where_the_header_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), super::OBJECT.bytes().unwrap()).unwrap();
    let btf = Btf::from_path(file.path()).unwrap();
    for (name, size, fields) in [
        (
            "capture_verdict",
            size_of::<CaptureVerdict>(),
            CaptureVerdict::FIELDS,
        ),
        (
            "capture_options",
            size_of::<CaptureOptions>(),
            CaptureOptions::FIELDS,
        ),
        (
            "capture_record",
            size_of::<CaptureRecord>(),
            CaptureRecord::FIELDS,
        ),
    ] {
        assert_fields(&btf, name, size, fields);
    }
    let account: Struct<'_> = btf.type_by_name("capture_account").unwrap();
    assert_eq!(account.size(), size_of::<CaptureAccount>());
}
