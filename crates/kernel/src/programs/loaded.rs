//! Objects: opened with the sizes of their maps, loaded, and asked.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{
    IterOpts, Link as LibbpfLink, Map, MapCore, MapFlags, Object, ObjectBuilder, OpenObject,
    ProgramMut,
};
use parshall_core::abi::{Plain, RingLayout, read_plain};

use super::compiled::CompiledObject;
use super::hook::{Hook, Link};
use super::{ProgramError, calls, log};
use crate::net::mapping::Mapping;
use crate::ring::lane_bytes;

const PAGE_BYTES: usize = 4096;

/// What a map gets before it is made. A name that begins with a dot is the end of one: libbpf puts the object's before it.
pub(crate) enum Setting<'a> {
    /// So many elements.
    Entries(usize),
    /// So many lanes of a ring.
    Lanes(&'a RingLayout, usize),
    /// Constants, which the verifier sees.
    Constants(&'a [u8]),
    /// Another map, which is there already.
    Shared(BorrowedFd<'a>),
    /// Is not made: no program that is loaded uses it.
    Absent,
}

/// An object before it is loaded.
pub(crate) struct Opened(pub(super) OpenObject);

/// Opens an object, gives its maps what they need, and chooses the programs to load.
pub(crate) fn open(
    object: &CompiledObject,
    settings: &[(&str, Setting<'_>)],
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Opened, ProgramError> {
    log::listen();
    let bytes = object.bytes().map_err(ProgramError::load)?;
    let mut open = ObjectBuilder::default()
        .open_memory(&bytes)
        .map_err(refused)?;
    for (name, setting) in settings {
        let mut map = open
            .maps_mut()
            .find(|map| is_named(&map.name().to_string_lossy(), name))
            .ok_or_else(|| missing(name))?;
        match setting {
            Setting::Entries(entries) => map.set_max_entries(*entries as u32),
            Setting::Lanes(layout, lanes) => map
                .set_value_size(lane_bytes(layout) as u32)
                .and_then(|()| map.set_max_entries(*lanes as u32)),
            Setting::Constants(bytes) => map.set_initial_value(bytes),
            Setting::Shared(other) => map.reuse_fd(*other),
            Setting::Absent => map.set_autocreate(false),
        }
        .map_err(refused)?;
    }
    for mut program in open.progs_mut() {
        let is_wanted = is_wanted(&program.name().to_string_lossy());
        program.set_autoload(is_wanted);
    }
    Ok(Opened(open))
}

impl Opened {
    /// Loads the programs; nothing is attached.
    pub fn load(self) -> Result<Loaded, ProgramError> {
        self.0.load().map(Loaded).map_err(refused)
    }
}

fn is_named(full: &str, name: &str) -> bool {
    full == name || name.starts_with('.') && full.ends_with(name)
}

fn missing(name: &str) -> ProgramError {
    ProgramError::Load(format!("{name} is not in the object; please report this"))
}

fn refused(error: libbpf_rs::Error) -> ProgramError {
    ProgramError::Load(log::explained(&error))
}

/// The kernel's run-time statistics of a program.
#[derive(Clone, Debug, Default)]
pub struct ProgramStatistics {
    /// Name in the object.
    pub name: String,
    /// Timed runs.
    pub runs: u64,
    /// Nanoseconds of these runs.
    pub run_ns: u64,
    /// Runs that did not take place because the program was already running on this CPU.
    pub missed: u64,
}

/// An object in the kernel.
pub(crate) struct Loaded(Object);

impl Loaded {
    /// A map by its name.
    pub fn map(&self, name: &str) -> Result<Map<'_>, ProgramError> {
        self.0
            .maps()
            .find(|map| is_named(&map.name().to_string_lossy(), name))
            .ok_or_else(|| missing(name))
    }

    /// A program by its name.
    pub fn program(&self, name: &str) -> Result<ProgramMut<'_>, ProgramError> {
        self.0
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| missing(name))
    }

    /// A descriptor of a map, which lives on without the object.
    pub fn descriptor_of_map(&self, name: &str) -> Result<OwnedFd, ProgramError> {
        let copied = self.map(name)?.as_fd().try_clone_to_owned();
        copied.map_err(ProgramError::load)
    }

    /// A descriptor of a program, which lives on without the object.
    pub fn descriptor_of_program(&self, name: &str) -> Result<OwnedFd, ProgramError> {
        let copied = self.program(name)?.as_fd().try_clone_to_owned();
        copied.map_err(ProgramError::load)
    }

    /// The elements of an array, mapped.
    pub fn mapping(
        &self,
        name: &str,
        bytes: usize,
        is_writable: bool,
    ) -> Result<Mapping, ProgramError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        Mapping::of(self.map(name)?, bytes, 0, is_writable)
            .map_err(|error| ProgramError::Load(format!("{name} of {bytes} bytes: {error}")))
    }

    /// Sets the element of a 32-bit key.
    pub fn set(&self, name: &str, key: u32, value: &[u8]) -> Result<(), ProgramError> {
        self.map(name)?
            .update(&key.to_ne_bytes(), value, MapFlags::ANY)
            .map_err(ProgramError::load)
    }

    /// The first element of an array.
    pub fn first<T: Plain>(&self, name: &str) -> Option<T> {
        let value = self.map(name).ok()?.lookup(&[0; 4], MapFlags::ANY);
        read_plain(&value.ok().flatten()?)
    }

    /// The first element of an array that has one for each CPU.
    pub fn first_of_each_cpu<T: Plain>(&self, name: &str) -> Vec<T> {
        let found = self.map(name).ok().and_then(|map| {
            let values = map.lookup_percpu(&[0; 4], MapFlags::ANY);
            values.ok().flatten()
        });
        let values = found.unwrap_or_default();
        values
            .iter()
            .filter_map(|value| read_plain(value))
            .collect()
    }

    /// Keys and values of a table, as bytes; nothing where it cannot be read.
    pub fn elements(&self, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let Ok(map) = self.map(name) else {
            return Vec::new();
        };
        map.keys()
            .filter_map(|key| {
                let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
                Some((key, value))
            })
            .collect()
    }

    /// Runs a program once, in this thread, and returns what it returns.
    pub fn run(&self, name: &str) -> Result<u32, ProgramError> {
        calls::test_run(self.program(name)?.as_fd(), &[], Default::default())
            .map(|ended| ended.retval)
            .map_err(|error| ProgramError::attach(name, error))
    }

    /// Attaches a program.
    pub fn attach(&self, name: &str, hook: Hook<'_>) -> Result<Link, ProgramError> {
        hook.attach(&self.program(name)?)
            .map_err(|error| ProgramError::attach(name, error))
    }

    /// Prepares a walk by a program that the kernel runs for each of its objects.
    pub fn iterate(&self, name: &str, over: IterOpts<'_>) -> Result<LibbpfLink, ProgramError> {
        self.program(name)?
            .attach_iter_with_opts(over)
            .map_err(|error| ProgramError::attach(name, std::io::Error::other(error)))
    }

    /// The kernel's statistics of every loaded program.
    pub fn statistics(&self) -> Vec<ProgramStatistics> {
        self.0
            .progs()
            .filter_map(|program| {
                let info = calls::program_info(program.as_fd())?;
                Some(ProgramStatistics {
                    name: program.name().to_string_lossy().into_owned(),
                    runs: info.run_cnt,
                    run_ns: info.run_time_ns,
                    missed: info.recursion_misses,
                })
            })
            .collect()
    }

    /// All maps.
    #[cfg(test)]
    pub fn maps(&self) -> impl Iterator<Item = Map<'_>> {
        self.0.maps()
    }
}
