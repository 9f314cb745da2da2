//! The compiled eBPF programs, which the build embeds.
//!
//! `PARSHALL_BPF_OBJECTS` names a directory whose objects are loaded in their place: so the output of several compilers is
//! tested without a build for each (`scripts/every-clang`).

use std::borrow::Cow;
use std::path::Path;

/// An object file of eBPF programs.
pub(crate) struct CompiledObject {
    /// Name of its source, without `.bpf.c`.
    pub name: &'static str,
    /// What the build compiled.
    pub embedded: &'static [u8],
}

/// The object that was compiled from `bpf/$name.bpf.c`.
macro_rules! compiled_object {
    ($name:literal) => {
        $crate::programs::compiled::CompiledObject {
            name: $name,
            embedded: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),
        }
    };
}
pub(crate) use compiled_object;

/// All that were compiled, by name.
pub(crate) static OBJECTS: &[CompiledObject] = include!(concat!(env!("OUT_DIR"), "/objects.rs"));

impl CompiledObject {
    /// The object's bytes.
    ///
    /// # Errors
    /// A directory is named, and the object in it cannot be read.
    pub fn bytes(&self) -> std::io::Result<Cow<'static, [u8]>> {
        match std::env::var_os("PARSHALL_BPF_OBJECTS") {
            Some(directory) => {
                let path = Path::new(&directory).join(format!("{}.bpf.o", self.name));
                std::fs::read(&path).map(Cow::Owned).map_err(|error| {
                    std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                })
            }
            None => Ok(Cow::Borrowed(self.embedded)),
        }
    }
}
