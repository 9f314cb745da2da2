//! What this build has inside: its eBPF objects, and the C libraries it runs with.

use std::collections::BTreeMap;
use std::ffi::CStr;

use serde::Serialize;

use crate::programs::compiled::OBJECTS;

/// Enough of a digest to tell builds apart.
const DIGEST_BYTES: usize = 6;

/// The parts of the kernel side.
#[derive(Serialize)]
pub struct BuildInfo {
    /// Version of libbpf, which is linked statically.
    pub libbpf: String,
    /// Version of libpcap, which compiles filters.
    pub libpcap: String,
    /// The first 12 hexadecimal digits of the SHA-256 of each eBPF object.
    pub objects: BTreeMap<&'static str, String>,
}

/// The parts of this build. Objects that `PARSHALL_BPF_OBJECTS` names take the place of the embedded ones.
///
/// # Errors
/// A named object cannot be read.
pub fn build_info() -> std::io::Result<BuildInfo> {
    // SAFETY: libbpf returns a constant string.
    let libbpf = unsafe { CStr::from_ptr(libbpf_sys::libbpf_version_string()) };
    Ok(BuildInfo {
        libbpf: libbpf.to_string_lossy().trim_start_matches('v').into(),
        libpcap: crate::filter::libpcap_version(),
        objects: (OBJECTS.iter())
            .map(|object| Ok((object.name, short_digest(&object.bytes()?))))
            .collect::<std::io::Result<_>>()?,
    })
}

fn short_digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref()[..DIGEST_BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_begin_as_sha256sum_prints_them() {
        assert_eq!(short_digest(b"abc"), "ba7816bf8f01");
    }

    #[test]
    fn the_build_names_its_libraries_and_every_object() {
        let info = build_info().unwrap();
        for version in [&info.libbpf, &info.libpcap] {
            assert!(version.starts_with(|first: char| first.is_ascii_digit()));
        }
        let sources = std::fs::read_dir("../../bpf").unwrap().filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".bpf.c").map(String::from)
        });
        let mut sources: Vec<_> = sources.collect();
        sources.sort();
        assert_eq!(info.objects.keys().copied().collect::<Vec<_>>(), sources);
    }
}
