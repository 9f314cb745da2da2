//! The path programs in the kernel: load, attach, sweep, count, detach.

use std::os::fd::AsFd;
use std::path::PathBuf;

use libbpf_rs::{Btf, MapCore, MapFlags, Object};
use parshall_core::ledger::ProgramCost;

use super::arrays::Arrays;
use super::attachment::Attachment;
use super::load::{SWEEP_PROGRAM, find_map, find_program, load_programs};
use super::request::PathRequest;
use super::selection::{Selection, Unavailable};
use super::settings::Settings;
use super::stages::{StageProgram, is_edge};
use crate::measurement_error::MeasurementError;
use crate::ring::memory::Lane;
use crate::{bpf, cost, cpus};

/// Places of the table that one run of the sweep looks at.
const SWEEP_PLACES: u32 = 8192;

/// The loaded programs with their ring.
pub struct PathHooks {
    object: Object,
    attachment: Attachment,
    programs: Vec<StageProgram>,
    others: Vec<&'static str>,
    table_places: u32,
    pub(super) netns: Option<PathBuf>,
    pub(super) arrays: Arrays,
    /// Stages that are attached, bit by number.
    pub stages: u32,
    /// What was asked for and is not there.
    pub unavailable: Vec<Unavailable>,
    /// Lanes of the ring, one a CPU.
    pub lanes: Vec<Lane>,
}

// SAFETY: libbpf objects are not bound to a thread; `PathHooks` is moved, never shared unguarded.
unsafe impl Send for PathHooks {}

impl PathHooks {
    /// Loads the programs of what is asked for and there; nothing is attached yet. The calling thread must be in the
    /// network namespace of the request.
    ///
    /// # Errors
    /// [`MeasurementError`] for a request that cannot be had, or what the kernel refused.
    pub fn load(request: &PathRequest) -> Result<Self, MeasurementError> {
        let cpus = cpus::possible().map_err(MeasurementError::load)?;
        let lane_cpus = cpus::with_lanes().map_err(MeasurementError::load)?;
        let kernel = Btf::from_vmlinux().map_err(MeasurementError::load)?;
        let selection = Selection::of(request, &kernel)?;
        let settings = Settings::of(request, &selection)?;
        let layout = settings.options.layout;
        let groups_max = settings.options.groups_max as usize;
        let object = load_programs(&settings, &selection, cpus, lane_cpus)?;
        Ok(Self {
            lanes: Lane::of_map(find_map(&object, "path_ring")?, lane_cpus, layout, false)?,
            arrays: Arrays::of(&object, cpus, groups_max, request.probe_cost)?,
            attachment: Attachment::new(
                &selection.programs,
                request
                    .interfaces
                    .iter()
                    .cloned()
                    .zip(settings.interfaces)
                    .collect(),
            )?,
            object,
            table_places: request.packets_max,
            netns: request.netns.clone(),
            stages: selection.stages(),
            programs: selection.programs,
            others: selection.others,
            unavailable: selection.unavailable,
        })
    }

    /// Attaches all programs, or those of the stages at which packets may begin or end. The calling thread must be in
    /// the network namespace of the request.
    ///
    /// # Errors
    /// [`MeasurementError::Attach`]; what was attached stays until [`PathHooks::detach`].
    pub fn attach(&mut self, with_middle: bool) -> Result<(), MeasurementError> {
        for program in &self.others {
            self.attachment.attach_tracepoint(&self.object, program)?;
        }
        for stage in &self.programs {
            if is_edge(stage.stage) || with_middle {
                self.attachment.attach_stage(&self.object, stage)?;
            }
        }
        Ok(())
    }

    /// Detaches everything; programs that run at this moment still finish.
    pub fn detach(&mut self) {
        self.attachment.detach();
    }

    /// Ends all packets that are under way, as open. For when nothing is attached.
    ///
    /// # Errors
    /// [`MeasurementError::Attach`] when the kernel refuses.
    pub fn sweep(&self) -> Result<(), MeasurementError> {
        for _ in 0..self.table_places.div_ceil(SWEEP_PLACES) {
            bpf::test_run(
                find_program(&self.object, SWEEP_PROGRAM)?.as_fd(),
                &[],
                Default::default(),
            )
            .map_err(|error| MeasurementError::attach(SWEEP_PROGRAM, error))?;
        }
        Ok(())
    }

    /// Mean run time of every program, as far as the kernel's statistics were on.
    pub fn costs(&self) -> Vec<ProgramCost> {
        self.object
            .progs()
            .filter_map(|program| {
                let info = bpf::program_info(program.as_fd())?;
                let name = program.name().to_string_lossy().into_owned();
                (info.run_cnt > 0)
                    .then(|| cost::program_cost(&name, info.run_cnt, info.run_time_ns))
            })
            .collect()
    }

    /// Runs that did not take place because the program was already running on this CPU, by program.
    pub fn missed(&self) -> Vec<(String, u64)> {
        self.object
            .progs()
            .filter_map(|program| {
                let info = bpf::program_info(program.as_fd())?;
                let name = program.name().to_string_lossy().into_owned();
                (info.recursion_misses > 0).then_some((name, info.recursion_misses))
            })
            .collect()
    }

    /// Keys and numbers of the groups that have histograms.
    pub fn group_keys(&self) -> Vec<(Vec<u8>, u32)> {
        let Ok(map) = find_map(&self.object, "path_groups") else {
            return Vec::new();
        };
        map.keys()
            .filter_map(|key| {
                let value = map.lookup(&key, MapFlags::ANY).ok().flatten()?;
                let number = u32::from_ne_bytes(value.try_into().ok()?);
                Some((key, number))
            })
            .collect()
    }
}

/// Loads all programs that this kernel can have, with a ring and tables of a size that costs nothing.
///
/// # Errors
/// [`MeasurementError`] when the kernel refuses one.
pub fn try_programs() -> Result<Vec<Unavailable>, MeasurementError> {
    let request = PathRequest::of_everything();
    PathHooks::load(&request).map(|hooks| hooks.unavailable)
}
