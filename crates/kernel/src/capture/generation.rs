//! The programs of one hook that serve one set of subscribers, from one change of the set to the next.
//!
//! A generation counts by itself, from 0. When it was replaced and has come to rest, its counts are
//! exactly what passed while this set was served: that is what makes a subscriber's account exact.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libbpf_sys as sys;
use parshall_core::abi::{
    CAPTURE_JUMP_COPY, CAPTURE_SLACK_BYTES, CAPTURE_SUBSCRIBERS_MAX, CaptureAccount,
    CaptureOptions, CaptureVerdict, Plain, plain_bytes, read_plain,
};
use serde::{Deserialize, Serialize};

use super::attachment::{Direction, HookKind};
use super::dispatcher::Dispatchers;
use super::request::RING_MIN_BYTES;
use super::ring_maps::RingMaps;
use super::{CaptureError, OBJECT};
use crate::filter::Maps;
use crate::net::interface::Interface;
use crate::programs::{self, Loaded, Setting};
use crate::ring::{self, Preference};

/// One interface in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// Where.
    pub interface: Interface,
    /// Its number in the ring.
    pub interface_number: u8,
    /// Which packets.
    pub direction: Direction,
    /// How packets are taken.
    pub kind: HookKind,
}

impl Hook {
    /// As the ledger names it.
    pub fn name(&self) -> String {
        let direction = match self.direction {
            Direction::In => "in",
            Direction::Out => "out",
        };
        format!("{} {direction} ({})", self.interface.name, self.kind.name())
    }
}

/// What a generation has counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Packets that passed the hook.
    pub seen: u64,
    /// Packets that each subscriber's filter matched.
    pub matched: [u64; CAPTURE_SUBSCRIBERS_MAX],
    /// Of these, packets dropped because the ring was full.
    pub dropped: [u64; CAPTURE_SUBSCRIBERS_MAX],
}

/// Timed runs of a hook's programs, and the nanoseconds of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTime {
    /// Timed runs.
    pub runs: u64,
    /// Their nanoseconds.
    pub run_ns: u64,
}

impl RunTime {
    pub(super) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.run_ns += other.run_ns;
    }
}

/// The program that copies packets at one hook, and the maps between it and the filters before it.
pub(super) struct CopyProgram {
    object: Loaded,
}

impl CopyProgram {
    /// Loads the program.
    pub fn load(hook: &Hook, hook_number: usize, maps: &RingMaps) -> Result<Self, CaptureError> {
        let options = CaptureOptions {
            layout: maps.layout,
            hook: hook_number as u16,
            interface: u16::from(hook.interface_number),
            direction: hook.direction as u16,
            discard: u16::from(maps.discard),
        };
        let copy = copy_at(hook.kind.is_xdp());
        let object = load_copy(maps, &options, copy)?;
        let program = object.descriptor_of_program(copy)?;
        let descriptor = program.as_raw_fd().to_ne_bytes();
        object.set("jumps", CAPTURE_JUMP_COPY, &descriptor)?;
        Ok(Self { object })
    }

    /// Loads the program of the filters in front of it.
    fn load_dispatcher(
        &self,
        hook: &Hook,
        maps: &RingMaps,
        dispatchers: &Dispatchers,
    ) -> Result<OwnedFd, CaptureError> {
        let jumps = self.object.map("jumps")?;
        let verdict = self.object.map("verdict")?;
        let connections = Maps {
            verdict: verdict.as_fd(),
            jumps: jumps.as_fd(),
            unfiltered: maps.sets.as_fd(),
        };
        dispatchers.load(hook, maps.discard, connections)
    }

    /// The programs with the filters in front.
    pub fn with_filters(
        self,
        hook: &Hook,
        maps: &RingMaps,
        dispatchers: &Dispatchers,
    ) -> Result<Generation, CaptureError> {
        let dispatcher = self.load_dispatcher(hook, maps, dispatchers)?;
        Ok(Generation {
            dispatcher,
            verdict: self.object.descriptor_of_map("verdict")?,
            account: self.object.descriptor_of_map("account")?,
            jumps: self.object.descriptor_of_map("jumps")?,
        })
    }
}

/// The programs of one hook for one set of subscribers.
pub(super) struct Generation {
    dispatcher: OwnedFd,
    verdict: OwnedFd,
    account: OwnedFd,
    /// When the last descriptor of this map is closed, the kernel removes the copying program from it.
    jumps: OwnedFd,
}

impl Generation {
    /// Takes over the descriptors of programs that are loaded and not attached, in the order of [`Self::descriptors`].
    pub fn of([dispatcher, verdict, account, jumps]: [OwnedFd; 4]) -> Self {
        Self {
            dispatcher,
            verdict,
            account,
            jumps,
        }
    }

    /// What makes the programs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [&self.dispatcher, &self.verdict, &self.account, &self.jumps].map(AsFd::as_fd)
    }

    /// The program to attach.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.dispatcher.as_fd()
    }

    /// What was counted so far.
    pub fn counts(&self) -> Result<Counts, CaptureError> {
        let mut counts = Counts {
            seen: 0,
            matched: [0; CAPTURE_SUBSCRIBERS_MAX],
            dropped: [0; CAPTURE_SUBSCRIBERS_MAX],
        };
        for value in of_every_cpu::<CaptureVerdict>(&self.verdict)? {
            counts.seen += value.seen;
        }
        for account in of_every_cpu::<CaptureAccount>(&self.account)? {
            for subscriber in 0..CAPTURE_SUBSCRIBERS_MAX {
                counts.matched[subscriber] += account.matched_by(subscriber);
                counts.dropped[subscriber] += account.dropped[subscriber];
            }
        }
        Ok(counts)
    }

    /// Timed runs of the attached program, with the copy, and the nanoseconds of these.
    pub fn run_time(&self) -> RunTime {
        let info =
            crate::programs::calls::program_info(self.dispatcher.as_fd()).unwrap_or_default();
        RunTime {
            runs: info.run_cnt,
            run_ns: info.run_time_ns,
        }
    }
}

/// The first value of a map that has one for each CPU.
fn of_every_cpu<T: Plain>(map: &OwnedFd) -> Result<Vec<T>, CaptureError> {
    let cpus = libbpf_rs::num_possible_cpus().map_err(CaptureError::load)?;
    // The kernel rounds each value up to whole words; ours are.
    let mut values = vec![0_u8; size_of::<T>() * cpus];
    // SAFETY: key and values outlive the call, and there is room for a value of each CPU.
    let status = unsafe {
        sys::bpf_map_lookup_elem(
            map.as_raw_fd(),
            std::ptr::from_ref(&0_u32).cast(),
            values.as_mut_ptr().cast(),
        )
    };
    if status < 0 {
        return Err(CaptureError::load(io::Error::from_raw_os_error(-status)));
    }
    let values = values.chunks(size_of::<T>());
    Ok(values.filter_map(read_plain::<T>).collect())
}

/// Name of the program that copies packets.
fn copy_at(is_xdp: bool) -> &'static str {
    match is_xdp {
        true => "capture_xdp",
        false => "capture_tcx",
    }
}

/// Loads the programs that copy packets as an instrument would, for every kind of hook and ring,
/// with tiny rings, and unloads them.
pub fn try_programs() -> Result<(), CaptureError> {
    for preference in [Preference::FastReader, Preference::SlowReader] {
        let mut layout = ring::layout_with_slack(RING_MIN_BYTES, preference, CAPTURE_SLACK_BYTES)?;
        let maps = RingMaps::make(&layout, 1, false)?;
        for (is_xdp, writers_alone) in [(true, 0), (true, 1), (false, 0), (false, 1)] {
            layout.writers_alone = writers_alone;
            let options = CaptureOptions {
                layout,
                ..CaptureOptions::default()
            };
            load_copy(&maps, &options, copy_at(is_xdp))?;
        }
    }
    Ok(())
}

/// Loads the program that copies packets.
fn load_copy(
    maps: &RingMaps,
    options: &CaptureOptions,
    copy: &str,
) -> Result<Loaded, CaptureError> {
    let settings = [
        ("ring", Setting::Shared(maps.ring.as_fd())),
        ("ring_readers", Setting::Shared(maps.readers.as_fd())),
        ("subscriber_sets", Setting::Shared(maps.sets.as_fd())),
        ("bells", Setting::Shared(maps.bells.as_fd())),
        (".rodata.options", Setting::Constants(plain_bytes(options))),
    ];
    Ok(programs::open(&OBJECT, &settings, |name| name == copy)?.load()?)
}
