//! The path programs in the kernel: load, attach, count, sweep, detach.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{
    Btf, Link, Map, MapCore, MapFlags, NFPROTO_IPV4, NFPROTO_IPV6, NetfilterOpts, Object,
};
use libbpf_sys as sys;
use parshall_core::abi::{
    NOISE_COUNT, PATH_BUCKETS, PATH_CODE_COUNT, PATH_FILTER_MAX, PATH_INTERFACES_MAX,
    PATH_REASONS_MAX, PATH_STAGE_COUNT, PATH_WAIT_CODES, PathAccount, PathDrops, PathOptions,
    PathWait, Plain, READ_TIME_COUNT, plain_bytes, view_plain,
};
use parshall_core::filter::classic::ClassicInstruction;
use parshall_core::filter::emit::LinkLayer;
use parshall_core::ledger::ProgramCost;
use parshall_core::path_log::STAGE_NAMES;
use serde::Serialize;

use super::PathError;
use super::request::{Group, PathRequest};
use super::stages::{
    COMMAND_PROGRAMS, Hook, NOISE_PROGRAMS, READER_PROGRAMS, STAGE_PROGRAMS, StageProgram,
    has_tracepoint, is_edge,
};
use crate::filter::Expression;
use crate::net::interface;
use crate::net::mapping::Mapping;
use crate::objects::{CompiledObject, compiled_object};
use crate::ring::memory::Lane;
use crate::ring::{self, Preference};
use crate::{bpf, cgroup, cost, cpus};

pub(crate) static OBJECT: CompiledObject = compiled_object!("path");

const SWEEP_PROGRAM: &str = "path_sweep";
const SWEEP_PLACES: u32 = 8192;
/// The stage whose socket the readers need.
const DATA_READY: usize = 8;
const XMIT: usize = 18;

/// A stage or a group of programs that cannot be had here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// Its name.
    pub stage: String,
    /// Why.
    pub reason: String,
}

/// The arrays that the programs fill, mapped.
pub(super) struct Arrays {
    accounts: Mapping,
    histograms: Mapping,
    noises: Mapping,
    reads: Mapping,
    drops: Mapping,
    waits: Mapping,
    pub cpus: usize,
    pub groups: usize,
}

/// The loaded programs with their ring.
pub struct PathHooks {
    object: Object,
    links: Vec<(&'static str, Link)>,
    tcx_links: Vec<OwnedFd>,
    programs: Vec<StageProgram>,
    others: Vec<&'static str>,
    root_cgroup: Option<OwnedFd>,
    interfaces: Vec<u32>,
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
    /// [`PathError`] for a request that cannot be had, or what the kernel refused.
    pub fn load(request: &PathRequest) -> Result<Self, PathError> {
        let cpus = cpus::possible().map_err(PathError::load)?;
        let lane_cpus = cpus::with_lanes().map_err(PathError::load)?;
        let (programs, others, unavailable) = available(request)?;
        let stages = programs
            .iter()
            .fold(0, |bits, program| bits | 1 << program.stage);
        let layout = ring::layout(request.ring_bytes, Preference::FastReader)?;
        let filter = compile(request.filter.as_deref())?;
        let interfaces = request
            .interfaces
            .iter()
            .map(|name| {
                interface::index(name).map_err(|_| PathError::Option {
                    option: "interface",
                    value: name.clone(),
                    expected: "an interface of this network namespace (ip link lists them)".into(),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let group =
            cgroup::resolve(request.cgroup.as_deref()).map_err(|error| PathError::Cgroup {
                reason: error.to_string(),
            })?;
        let mut options = PathOptions {
            layout,
            cgroup_id: group.id,
            interface_count: interfaces.len() as u32,
            netns_inode: match &request.netns {
                Some(_) => interface::namespace_number() as u32,
                None => 0,
            },
            every: request.every,
            filter_length: filter.len() as u32,
            stages,
            table_bits: request.packets_max.trailing_zeros(),
            writes_records: u32::from(request.path.is_some()),
            group: request.group as u32,
            groups_max: if request.group == Group::None {
                0
            } else {
                request.groups_max
            },
            reads_headers: u32::from(
                request.path.is_some() || request.group != Group::None || group.id != 0,
            ),
            follows_readers: u32::from(others.contains(&"path_read")),
            ..PathOptions::default()
        };
        options.interfaces[..interfaces.len()].copy_from_slice(&interfaces);
        let root_cgroup = programs
            .iter()
            .any(|one| matches!(one.hook, Hook::SocketIn | Hook::SocketOut))
            .then(open_root_cgroup)
            .transpose()?;
        let object = load_programs(&options, &filter, &programs, &others, cpus, lane_cpus)?;
        let groups = PATH_CODE_COUNT + options.groups_max as usize;
        let map = |name: &str, values: usize, value_bytes: usize| {
            let bytes = (values * value_bytes).next_multiple_of(4096);
            Mapping::of(find_map(&object, name)?, bytes, 0, false).map_err(PathError::load)
        };
        let noise_bytes = size_of::<parshall_core::abi::PathNoiseHistogram>();
        let arrays = Arrays {
            accounts: map("path_accounts", cpus, size_of::<PathAccount>())?,
            histograms: map("path_histograms", cpus * groups, HISTOGRAM_BYTES)?,
            noises: map("path_noises", cpus * NOISE_COUNT, noise_bytes)?,
            reads: map("path_reads", cpus * READ_TIME_COUNT, noise_bytes)?,
            drops: map(
                "path_drops",
                cpus * PATH_REASONS_MAX,
                size_of::<PathDrops>(),
            )?,
            waits: map("path_waits", cpus * WAITS, size_of::<PathWait>())?,
            cpus,
            groups,
        };
        Ok(Self {
            lanes: Lane::of_map(find_map(&object, "path_ring")?, lane_cpus, layout, false)?,
            arrays,
            object,
            links: Vec::new(),
            tcx_links: Vec::new(),
            programs,
            others,
            root_cgroup,
            interfaces,
            table_places: request.packets_max,
            netns: request.netns.clone(),
            stages,
            unavailable,
        })
    }

    /// Attaches all programs, or those of the stages at which packets may begin or end. The calling thread must be in
    /// the network namespace of the request.
    ///
    /// # Errors
    /// [`PathError::Attach`]; what was attached stays until [`PathHooks::detach`].
    pub fn attach(&mut self, with_middle: bool) -> Result<(), PathError> {
        for program in self.others.clone() {
            self.link(program, |program| program.attach())?;
        }
        for stage in self.programs.clone() {
            if is_edge(stage.stage) || with_middle {
                self.attach_stage(&stage)?;
            }
        }
        Ok(())
    }

    fn attach_stage(&mut self, stage: &StageProgram) -> Result<(), PathError> {
        let cgroup = self.root_cgroup.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        match stage.hook {
            Hook::Tracepoint(_) => self.link(stage.program, |program| program.attach()),
            Hook::SocketIn | Hook::SocketOut => {
                self.link(stage.program, |program| program.attach_cgroup(cgroup))
            }
            Hook::Netfilter { number, is_first } => {
                for family in [NFPROTO_IPV4, NFPROTO_IPV6] {
                    self.link(stage.program, |program| {
                        attach_to_netfilter(program, family, number, is_first)
                    })?;
                }
                Ok(())
            }
            Hook::TcxIngress => {
                for interface in self.interfaces.clone() {
                    let program = self.program(stage.program)?;
                    let link = bpf::create_link(
                        program.as_fd(),
                        interface as i32,
                        sys::BPF_TCX_INGRESS,
                        sys::bpf_link_create_opts::default(),
                    )
                    .map_err(|error| PathError::attach(stage.program, error))?;
                    self.tcx_links.push(link);
                }
                Ok(())
            }
        }
    }

    fn link(
        &mut self,
        name: &'static str,
        attach: impl FnOnce(&libbpf_rs::ProgramMut<'_>) -> libbpf_rs::Result<Link>,
    ) -> Result<(), PathError> {
        let program = self.program(name)?;
        let link = attach(&program).map_err(|error| PathError::attach(name, error))?;
        self.links.push((name, link));
        Ok(())
    }

    fn program(&self, name: &str) -> Result<libbpf_rs::ProgramMut<'_>, PathError> {
        self.object
            .progs_mut()
            .find(|program| program.name().to_string_lossy() == name)
            .ok_or_else(|| PathError::attach(name, "not in the object"))
    }

    /// Detaches everything; programs that run at this moment still finish. Beginnings go first.
    pub fn detach(&mut self) {
        while self.links.pop().is_some() {}
        self.tcx_links.clear();
    }

    /// Ends all packets that are under way, as open. For when nothing is attached.
    ///
    /// # Errors
    /// [`PathError::Attach`] when the kernel refuses.
    pub fn sweep(&self) -> Result<(), PathError> {
        for _ in 0..self.table_places.div_ceil(SWEEP_PLACES) {
            bpf::test_run(
                self.program(SWEEP_PROGRAM)?.as_fd(),
                &[],
                Default::default(),
            )
            .map_err(|error| PathError::attach(SWEEP_PROGRAM, error))?;
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

/// Attaches to a netfilter hook, before or behind all others. The kernel gives each priority to one program, so a second
/// measurement takes the next one.
fn attach_to_netfilter(
    program: &libbpf_rs::ProgramMut<'_>,
    protocol_family: i32,
    hooknum: i32,
    is_first: bool,
) -> libbpf_rs::Result<Link> {
    const PRIORITIES: i32 = 16;
    let attach = |step: i32| {
        program.attach_netfilter_with_opts(NetfilterOpts {
            protocol_family,
            hooknum,
            // The ends of the range are refused.
            priority: if is_first {
                i32::MIN + step
            } else {
                i32::MAX - step
            },
            ..NetfilterOpts::default()
        })
    };
    (2..=PRIORITIES).fold(attach(1), |attached, step| {
        attached.or_else(|_| attach(step))
    })
}

/// Elements of `path_waits` for a CPU.
const WAITS: usize = PATH_WAIT_CODES * PATH_BUCKETS;
const HISTOGRAM_BYTES: usize = size_of::<parshall_core::abi::PathHistogram>();

impl Arrays {
    fn copy<T: Plain>(mapping: &Mapping, element: usize, words: &mut Vec<u64>) -> Option<T> {
        words.clear();
        mapping.append_words(element * size_of::<T>(), size_of::<T>() / 8, words);
        view_plain::<T>(words).copied()
    }

    /// The accounts, summed over the CPUs.
    pub fn account(&self) -> PathAccount {
        let mut sum = PathAccount::default();
        let mut words = Vec::new();
        for cpu in 0..self.cpus {
            let Some(one) = Self::copy::<PathAccount>(&self.accounts, cpu, &mut words) else {
                continue;
            };
            sum.seen += one.seen;
            sum.filtered += one.filtered;
            sum.thinned += one.thinned;
            sum.failed += one.failed;
            sum.dropped += one.dropped;
            sum.ungrouped += one.ungrouped;
            sum.reads += one.reads;
            sum.reads_dropped += one.reads_dropped;
            for (total, ended) in sum.ended.iter_mut().zip(one.ended) {
                *total += ended;
            }
        }
        sum
    }

    /// Calls `take` with each CPU's histogram of a group.
    pub fn histograms(
        &self,
        group: usize,
        mut take: impl FnMut(&parshall_core::abi::PathHistogram),
    ) {
        let mut words = Vec::new();
        for cpu in 0..self.cpus {
            words.clear();
            let element = cpu * self.groups + group;
            self.histograms.append_words(
                element * HISTOGRAM_BYTES,
                HISTOGRAM_BYTES / 8,
                &mut words,
            );
            if let Some(histogram) = view_plain(&words) {
                take(histogram);
            }
        }
    }

    /// Calls `take` with each CPU's histogram of a kind of noise, or of a time of reads.
    pub fn noises(
        &self,
        of_reads: bool,
        kind: usize,
        mut take: impl FnMut(usize, &parshall_core::abi::PathNoiseHistogram),
    ) {
        let (mapping, kinds) = match of_reads {
            true => (&self.reads, READ_TIME_COUNT),
            false => (&self.noises, NOISE_COUNT),
        };
        let mut words = Vec::new();
        for cpu in 0..self.cpus {
            if let Some(histogram) = Self::copy(mapping, cpu * kinds + kind, &mut words) {
                take(cpu, &histogram);
            }
        }
    }

    /// Where the packets of a code path spent their time, by the bucket of the whole.
    pub fn waits(&self, code: usize) -> Vec<PathWait> {
        let mut sums = vec![PathWait::default(); PATH_BUCKETS];
        let mut words = Vec::new();
        for cpu in 0..self.cpus {
            for (bucket, sum) in sums.iter_mut().enumerate() {
                let element = cpu * WAITS + code * PATH_BUCKETS + bucket;
                let Some(one) = Self::copy::<PathWait>(&self.waits, element, &mut words) else {
                    continue;
                };
                sum.packets += one.packets;
                for (total, part_ns) in sum.sum_ns.iter_mut().zip(one.sum_ns) {
                    *total += part_ns;
                }
            }
        }
        sums
    }

    /// Drops by reason: all, and those of packets that are followed, by the last stage before.
    pub fn drops(&self) -> Vec<(u32, u64, [u64; PATH_STAGE_COUNT])> {
        let mut words = Vec::new();
        (0..PATH_REASONS_MAX)
            .filter_map(|reason| {
                let (mut all, mut followed) = (0, [0; PATH_STAGE_COUNT]);
                for cpu in 0..self.cpus {
                    let element = cpu * PATH_REASONS_MAX + reason;
                    let one: PathDrops = Self::copy(&self.drops, element, &mut words)?;
                    all += one.all;
                    for (total, packets) in followed.iter_mut().zip(one.followed) {
                        *total += packets;
                    }
                }
                (all > 0).then_some((reason as u32, all, followed))
            })
            .collect()
    }
}

fn open_root_cgroup() -> Result<OwnedFd, PathError> {
    let root = cgroup::resolve(None).map_err(|error| PathError::Cgroup {
        reason: error.to_string(),
    })?;
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(
        &root.path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| PathError::Cgroup {
        reason: format!("{}: {error}", root.path.display()),
    })
}

/// The programs of what is asked for and there, and what is not there.
type Available = (Vec<StageProgram>, Vec<&'static str>, Vec<Unavailable>);

fn available(request: &PathRequest) -> Result<Available, PathError> {
    let btf = Btf::from_vmlinux().map_err(PathError::load)?;
    let mut unavailable = Vec::new();
    let mut missing = |stage: &str, reason: String| {
        let one = Unavailable {
            stage: stage.into(),
            reason,
        };
        if !unavailable.contains(&one) {
            unavailable.push(one);
        }
    };
    let has_function = |name: &str| {
        btf.type_by_name::<libbpf_rs::btf::types::Func<'_>>(name)
            .is_some()
    };
    let mut programs = Vec::new();
    for name in &request.stages {
        if !STAGE_PROGRAMS
            .iter()
            .any(|program| STAGE_NAMES[program.stage] == name)
        {
            return Err(PathError::Option {
                option: "stages",
                value: name.clone(),
                expected: "names that `parshall path --list-stages` shows".into(),
            });
        }
    }
    for program in STAGE_PROGRAMS {
        let name = STAGE_NAMES[program.stage];
        if !request.stages.iter().any(|wanted| wanted == name) {
            continue;
        }
        let reason = match program.hook {
            Hook::Tracepoint("napi_gro_frags_entry") if !has_tracepoint(&btf, "napi_gro_frags_entry") => continue,
            Hook::Tracepoint(tracepoint) if !has_tracepoint(&btf, tracepoint) => {
                Some(format!("this kernel has no tracepoint {tracepoint}"))
            }
            Hook::Tracepoint(_) => None,
            Hook::Netfilter { .. } => (!has_function("bpf_nf_link_attach"))
                .then(|| "this kernel attaches no programs to netfilter (Linux 6.4, CONFIG_NETFILTER_BPF_LINK)".into()),
            Hook::SocketIn | Hook::SocketOut | Hook::TcxIngress if !has_function("bpf_cast_to_kern_ctx") => {
                Some("this kernel has no bpf_cast_to_kern_ctx (Linux 6.2)".into())
            }
            Hook::TcxIngress if request.interfaces.is_empty() => {
                Some("it is attached to interfaces; name them with -i".into())
            }
            Hook::TcxIngress if !has_function("tcx_link_attach") => {
                Some("this kernel has no tcx (Linux 6.6)".into())
            }
            _ => None,
        };
        match reason {
            Some(reason) => missing(name, reason),
            None => programs.push(program),
        }
    }
    let mut others = Vec::new();
    let mut add = |name: &str, table: &[(&'static str, &'static str)]| {
        for (program, tracepoint) in table {
            match has_tracepoint(&btf, tracepoint) {
                true => others.push(*program),
                false => missing(name, format!("this kernel has no tracepoint {tracepoint}")),
            }
        }
    };
    if request.reads && programs.iter().any(|program| program.stage == DATA_READY) {
        add("reads", &READER_PROGRAMS);
    }
    if request.group == Group::Command {
        add("command", &COMMAND_PROGRAMS);
    }
    if request.noise {
        add("noise", &NOISE_PROGRAMS);
    } else if request.path.is_some() {
        // Numbers polls, and packets within them.
        add("poll", &NOISE_PROGRAMS[..1]);
    }
    let begins = |program: &StageProgram| matches!(program.stage, 0..=2 | 11 | 12 | 14 | 17);
    if !programs.iter().any(begins) {
        return Err(PathError::Option {
            option: "stages",
            value: request.stages.join(","),
            expected: "one at which packets begin: gro, netif_rx, receive, local_out, post_routing, queue or start_xmit"
                .into(),
        });
    }
    // What leaves ends when the driver has taken it; without both ends it would stay in the table.
    if programs.iter().any(|one| one.stage == XMIT)
        && !programs.iter().any(|one| one.stage == XMIT - 1)
    {
        return Err(PathError::Option {
            option: "stages",
            value: request.stages.join(","),
            expected: "start_xmit with xmit".into(),
        });
    }
    Ok((programs, others, unavailable))
}

fn compile(filter: Option<&str>) -> Result<Vec<ClassicInstruction>, PathError> {
    let Some(text) = filter else {
        return Ok(Vec::new());
    };
    let expression = Expression::compile(text, LinkLayer::RawIp, None)?;
    let instructions = expression.instructions().to_vec();
    if instructions.len() > PATH_FILTER_MAX {
        return Err(PathError::Option {
            option: "filter",
            value: format!("{} instructions", instructions.len()),
            expected: format!("at most {PATH_FILTER_MAX}; give a shorter expression"),
        });
    }
    Ok(instructions)
}

fn find_map<'object>(object: &'object Object, name: &str) -> Result<Map<'object>, PathError> {
    object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(name))
        .ok_or_else(|| PathError::load(format!("map {name} is not in the object")))
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

fn load_programs(
    options: &PathOptions,
    filter: &[ClassicInstruction],
    programs: &[StageProgram],
    others: &[&str],
    cpus: usize,
    lane_cpus: usize,
) -> Result<Object, PathError> {
    let mut open = crate::libbpf_log::open(&OBJECT).map_err(PathError::load)?;
    let places = 1 << options.table_bits;
    let groups = PATH_CODE_COUNT + options.groups_max as usize;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let entries = match name.as_str() {
            "path_ring" => {
                map.set_value_size(ring::lane_bytes(&options.layout) as u32)
                    .map_err(PathError::load)?;
                lane_cpus
            }
            "path_readers" => lane_cpus,
            "path_accounts" | "path_cpus" | "path_serving" | "packet_heads" => cpus,
            "path_histograms" => cpus * groups,
            "path_noises" => cpus * NOISE_COUNT,
            "path_reads" => cpus * READ_TIME_COUNT,
            "path_drops" => cpus * PATH_REASONS_MAX,
            "path_waits" => cpus * WAITS,
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
                map.set_initial_value(&value).map_err(PathError::load)?;
                continue;
            }
        };
        map.set_max_entries(entries as u32)
            .map_err(PathError::load)?;
    }
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_wanted = name == SWEEP_PROGRAM
            || others.contains(&name.as_str())
            || programs.iter().any(|one| one.program == name);
        program.set_autoload(is_wanted);
    }
    open.load()
        .map_err(|error| PathError::load(crate::libbpf_log::explained(&error)))
}

fn has_filters(options: &PathOptions) -> bool {
    options.netns_inode != 0 || options.interface_count != 0 || options.filter_length != 0
}

/// Loads all programs that this kernel can have, with a ring and tables of a size that costs nothing.
///
/// # Errors
/// [`PathError`] when the kernel refuses one.
pub fn try_programs() -> Result<Vec<Unavailable>, PathError> {
    let request = PathRequest {
        path: Some("-".into()),
        environment: "{}".into(),
        options_text: "{}".into(),
        stages: STAGE_NAMES[..STAGE_NAMES.len() - 1]
            .iter()
            .map(ToString::to_string)
            .collect(),
        reads: true,
        noise: true,
        filter: Some("tcp port 80 and ip6[6] != 0".into()),
        every: 2,
        interfaces: vec!["lo".into()],
        netns: None,
        cgroup: None,
        group: Group::Connection,
        groups_max: 1,
        packets_max: 1 << 10,
        ring_bytes: ring::LANE_SIZE_MIN_BYTES,
        share: 1.0,
        seed: 0,
        probe_cost: false,
    };
    PathHooks::load(&request).map(|hooks| hooks.unavailable)
}

/// Refuses what no request may have.
pub(super) fn check(request: &PathRequest) -> Result<(), PathError> {
    let fail = |option: &'static str, value: String, expected: String| {
        Err(PathError::Option {
            option,
            value,
            expected,
        })
    };
    if request.every == 0 {
        return fail("every", "0".into(), "1 (every packet) or more".into());
    }
    if request.interfaces.len() > PATH_INTERFACES_MAX {
        let count = format!("{} interfaces", request.interfaces.len());
        return fail("interface", count, format!("at most {PATH_INTERFACES_MAX}"));
    }
    if !request.packets_max.is_power_of_two() || !(1 << 10..=1 << 22).contains(&request.packets_max)
    {
        let value = request.packets_max.to_string();
        return fail(
            "packets-max",
            value,
            "a power of two from 1024 to 4194304".into(),
        );
    }
    if !(request.share > 0.0 && request.share <= 1.0) {
        return fail(
            "share",
            request.share.to_string(),
            "above 0 and at most 1 (100%)".into(),
        );
    }
    if !(1..=4096).contains(&request.groups_max) {
        return fail(
            "groups-max",
            request.groups_max.to_string(),
            "1 to 4096".into(),
        );
    }
    Ok(())
}

/// Moves the calling thread into the network namespace of the request, if it has one.
pub(super) fn enter(netns: Option<&Path>) -> Result<(), PathError> {
    let Some(path) = netns else { return Ok(()) };
    interface::enter_namespace(path).map_err(|error| PathError::Option {
        option: "netns",
        value: path.display().to_string(),
        expected: format!("a network namespace that may be entered ({error})"),
    })
}
