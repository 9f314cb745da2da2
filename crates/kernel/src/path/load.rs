//! The object of the programs: maps get their sizes, programs their options, and the kernel those that are wanted.

use parshall_core::abi::{
    NOISE_COUNT, PATH_BUCKETS, PATH_CODE_COUNT, PATH_FILTER_MAX, PATH_HEADS_PER_CPU,
    PATH_WAIT_CODES, PathOptions, READ_TIME_COUNT, plain_bytes,
};
use parshall_core::filter::classic::ClassicInstruction;

use super::request::Group;
use super::selection::Selection;
use super::settings::Settings;
use crate::measurement_error::MeasurementError;
use crate::programs::compiled::{CompiledObject, compiled_object};
use crate::programs::{self, Loaded, Opened, Setting, memory};

pub(crate) static OBJECT: CompiledObject = compiled_object!("path");

/// Elements of `path_waits` for a CPU.
pub(super) const WAITS: usize = PATH_WAIT_CODES * PATH_BUCKETS;
/// The program that ends what is under way.
pub(super) const SWEEP_PROGRAM: &str = "path_sweep";
/// The program that forgets what the CPUs were doing when the programs were last attached.
pub(super) const WINDOW_PROGRAM: &str = "path_open_window";
/// Those between which packets begin.
pub(super) const BEGIN_PROGRAM: &str = "path_begin_window";
pub(super) const END_PROGRAM: &str = "path_end_window";
/// Lets the programs do nothing more.
pub(super) const CLOSE_PROGRAM: &str = "path_close_window";
/// The programs that user space runs.
const ON_REQUEST: [&str; 5] = [
    SWEEP_PROGRAM,
    WINDOW_PROGRAM,
    BEGIN_PROGRAM,
    END_PROGRAM,
    CLOSE_PROGRAM,
];

/// Opens the object for so many possible CPUs, of which the first few have lanes and histograms.
pub(super) fn open(
    settings: &Settings,
    selection: &Selection,
    cpus: usize,
    lane_cpus: usize,
) -> Result<Opened, MeasurementError> {
    let options = &settings.options;
    let places = 1 << options.table_bits;
    let groups = PATH_CODE_COUNT + options.groups_max as usize;
    let filter = filter_bytes(&settings.filter);
    let mut maps = vec![
        ("path_ring", Setting::Lanes(&options.layout, lane_cpus)),
        ("path_readers", Setting::Entries(lane_cpus)),
        ("path_accounts", Setting::Entries(cpus)),
        ("path_cpus", Setting::Entries(cpus)),
        ("path_serving", Setting::Entries(cpus)),
        ("packet_heads", Setting::Entries(cpus * PATH_HEADS_PER_CPU)),
        ("path_histograms", Setting::Entries(lane_cpus * groups)),
        ("path_noises", Setting::Entries(lane_cpus * NOISE_COUNT)),
        ("path_reads", Setting::Entries(lane_cpus * READ_TIME_COUNT)),
        ("path_waits", Setting::Entries(lane_cpus * WAITS)),
        ("path_packets", Setting::Entries(places)),
        (
            "path_groups",
            Setting::Entries((options.groups_max as usize).max(1)),
        ),
        (".rodata.options", Setting::Constants(plain_bytes(options))),
        (".rodata.filter", Setting::Constants(&filter)),
    ];
    if options.reads_headers != 0 || has_filters(options) {
        maps.push(("path_identities", Setting::Entries(places)));
    }
    let has_commands = options.group == Group::Command as u32;
    let command_places = if has_commands { places } else { 1024 };
    maps.push(("path_commands", Setting::Entries(command_places)));
    if !has_commands {
        maps.push(("path_reading", Setting::Entries(1024)));
    }
    let is_wanted = |name: &str| {
        ON_REQUEST.contains(&name)
            || selection.others.contains(&name)
            || selection.programs.iter().any(|one| one.program == name)
    };
    Ok(programs::open(&OBJECT, &maps, is_wanted)?)
}

/// Loads the programs that are selected; nothing is attached.
pub(super) fn load(
    settings: &Settings,
    selection: &Selection,
    cpus: usize,
    lane_cpus: usize,
) -> Result<Loaded, MeasurementError> {
    let opened = open(settings, selection, cpus, lane_cpus)?;
    memory::check(&opened, cpus, "--groups-max, --packets-max or --buffer")?;
    Ok(opened.load()?)
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
