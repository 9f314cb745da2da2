//! The object of the programs: maps get their sizes, programs their options, and the kernel those that are wanted.

use libbpf_rs::{Map, MapCore, Object, OpenObject, ProgramMut};
use parshall_core::abi::{
    NOISE_COUNT, PATH_BUCKETS, PATH_CODE_COUNT, PATH_FILTER_MAX, PATH_HEADS_PER_CPU,
    PATH_WAIT_CODES, PathOptions, READ_TIME_COUNT, plain_bytes,
};
use parshall_core::filter::classic::ClassicInstruction;

use super::request::Group;
use super::selection::Selection;
use super::settings::Settings;
use crate::map_memory;
use crate::measurement_error::MeasurementError;
use crate::objects::{CompiledObject, compiled_object};
use crate::ring;

pub(crate) static OBJECT: CompiledObject = compiled_object!("path");

/// Elements of `path_waits` for a CPU.
pub(super) const WAITS: usize = PATH_WAIT_CODES * PATH_BUCKETS;
/// The program that ends what is under way.
pub(super) const SWEEP_PROGRAM: &str = "path_sweep";
/// The program that forgets what the CPUs were doing when the programs were last attached.
pub(super) const WINDOW_PROGRAM: &str = "path_open_window";

/// Loads the programs that are selected; nothing is attached.
pub(super) fn load_programs(
    settings: &Settings,
    selection: &Selection,
    cpus: usize,
    lane_cpus: usize,
) -> Result<Object, MeasurementError> {
    let open = size_maps(settings, selection, cpus, lane_cpus)?;
    map_memory::check(&open, cpus, "--groups-max, --packets-max or --buffer")?;
    open.load()
        .map_err(|error| MeasurementError::load(crate::libbpf_log::explained(&error)))
}

/// Opens the object for so many possible CPUs, of which the first few have lanes and histograms.
pub(super) fn size_maps(
    settings: &Settings,
    selection: &Selection,
    cpus: usize,
    lane_cpus: usize,
) -> Result<OpenObject, MeasurementError> {
    let mut open = crate::libbpf_log::open(&OBJECT).map_err(MeasurementError::load)?;
    let Settings {
        options, filter, ..
    } = settings;
    let places = 1 << options.table_bits;
    let groups = PATH_CODE_COUNT + options.groups_max as usize;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "path_ring" => {
                map.set_value_size(ring::lane_bytes(&options.layout) as u32)
                    .map_err(MeasurementError::load)?;
                lane_cpus
            }
            "path_readers" => lane_cpus,
            "path_accounts" | "path_cpus" | "path_serving" => cpus,
            "packet_heads" => cpus * PATH_HEADS_PER_CPU,
            "path_histograms" => lane_cpus * groups,
            "path_noises" => lane_cpus * NOISE_COUNT,
            "path_reads" => lane_cpus * READ_TIME_COUNT,
            "path_waits" => lane_cpus * WAITS,
            "path_packets" => places,
            "path_identities" if options.reads_headers != 0 || has_filters(options) => places,
            "path_commands" | "path_reading" if options.group != Group::Command as u32 => 1024,
            "path_commands" => places,
            "path_groups" => (options.groups_max as usize).max(1),
            _ => {
                let value = if name.ends_with("rodata.options") {
                    plain_bytes(options).to_vec()
                } else if name.ends_with("rodata.filter") {
                    filter_bytes(filter)
                } else {
                    continue;
                };
                map.set_initial_value(&value)
                    .map_err(MeasurementError::load)?;
                continue;
            }
        };
        map.set_max_entries(entries as u32)
            .map_err(MeasurementError::load)?;
    }
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_wanted = name == SWEEP_PROGRAM
            || name == WINDOW_PROGRAM
            || selection.others.contains(&name.as_str())
            || selection.programs.iter().any(|one| one.program == name);
        program.set_autoload(is_wanted);
    }
    Ok(open)
}

fn has_filters(options: &PathOptions) -> bool {
    options.netns_inode != 0 || options.interface_count != 0 || options.filter_length != 0
}

/// Instructions as `struct classic_instruction` has them.
fn filter_bytes(filter: &[ClassicInstruction]) -> Vec<u8> {
    let mut bytes: Vec<u8> = filter
        .iter()
        .flat_map(|one| {
            let mut bytes = [0; 8];
            bytes[..2].copy_from_slice(&one.code.to_ne_bytes());
            bytes[2] = one.jt;
            bytes[3] = one.jf;
            bytes[4..].copy_from_slice(&one.k.to_ne_bytes());
            bytes
        })
        .collect();
    bytes.resize(PATH_FILTER_MAX * 8, 0);
    bytes
}

/// A map by the end of its name.
pub(super) fn find_map<'object>(
    object: &'object Object,
    name: &str,
) -> Result<Map<'object>, MeasurementError> {
    object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(name))
        .ok_or_else(|| MeasurementError::load(format!("map {name} is not in the object")))
}

/// A program by its name.
pub(super) fn find_program<'object>(
    object: &'object Object,
    name: &str,
) -> Result<ProgramMut<'object>, MeasurementError> {
    object
        .progs_mut()
        .find(|program| program.name().to_string_lossy() == name)
        .ok_or_else(|| MeasurementError::attach(name, "not in the object"))
}
