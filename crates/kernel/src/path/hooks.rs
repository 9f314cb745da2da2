//! The path programs in the kernel: load, attach, sweep, count, detach.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libbpf_rs::{Btf, MapCore, MapFlags};
use parshall_core::abi::{PathDrops, PathKey, read_plain, view_plain};
use parshall_core::ledger::ProgramCost;

use super::arrays::Arrays;
use super::attachment::Attachment;
use super::load::{self, BEGIN_PROGRAM, CLOSE_PROGRAM, END_PROGRAM, SWEEP_PROGRAM, WINDOW_PROGRAM};
use super::request::PathRequest;
use super::selection::{Selection, Unavailable};
use super::settings::Settings;
use super::stages::{StageProgram, is_between};
use crate::clock::monotonic_ns;
use crate::measurement_error::MeasurementError;
use crate::programs::Loaded;
use crate::ring::memory::Lane;
use crate::{cost, cpus};

/// Places of the table that one run of the sweep looks at.
const SWEEP_PLACES: u32 = 8192;

/// Programs that differ from another one in a constant only: whether the verifier accepts their code, the other one
/// shows. Each takes it up to a second.
const TWINS: [&str; 6] = [
    "path_consume_2",
    "path_gro",
    "path_gro_frags",
    "path_netif_rx",
    "path_post_routing",
    "path_start_xmit",
];

/// A CPU takes microseconds from where it receives a packet to a socket or a drop; more if it is interrupted.
const UNDER_WAY: Duration = Duration::from_millis(4);

/// The instant whose time on the kernel's clock has these low bits, less than four seconds ago.
fn passed_since(low_ns: u32) -> Instant {
    let passed_ns = (monotonic_ns() as u32).wrapping_sub(low_ns);
    Instant::now() - Duration::from_nanos(passed_ns.into())
}

/// The loaded programs with their ring.
pub struct PathHooks {
    object: Loaded,
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
        Self::load_selection(request, Selection::of(request, &kernel)?, cpus, lane_cpus)
    }

    fn load_selection(
        request: &PathRequest,
        selection: Selection,
        cpus: usize,
        lane_cpus: usize,
    ) -> Result<Self, MeasurementError> {
        let settings = Settings::of(request, &selection)?;
        let layout = settings.options.layout;
        let groups_max = settings.options.groups_max as usize;
        let object = load::load(&settings, &selection, cpus, lane_cpus)?;
        Ok(Self {
            lanes: Lane::of_map(object.map("path_ring")?, lane_cpus, layout, false)?,
            arrays: Arrays::of(&object, cpus, lane_cpus, groups_max, request.probe_cost)?,
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
    /// the network namespace of the request. Returns since when packets begin.
    ///
    /// # Errors
    /// [`MeasurementError::Attach`]; what was attached stays until [`PathHooks::detach`].
    pub fn attach(&mut self, with_middle: bool) -> Result<Instant, MeasurementError> {
        self.object.run(WINDOW_PROGRAM)?;
        for program in &self.others {
            self.attachment.attach_tracepoint(&self.object, program)?;
        }
        for stage in &self.programs {
            if with_middle || !is_between(stage.stage, self.stages) {
                self.attachment.attach_stage(&self.object, stage)?;
            }
        }
        Ok(passed_since(self.object.run(BEGIN_PROGRAM)?))
    }

    /// Lets no more packets begin, and detaches everything when those have passed that a CPU was working on; programs that
    /// run at this moment still finish. Returns since when none begins.
    pub fn detach(&mut self) -> Instant {
        // If these cannot run, some packets begin and end while programs are detached, as they would without them.
        let until = match self.object.run(END_PROGRAM) {
            Ok(time) => passed_since(time),
            Err(_) => Instant::now(),
        };
        std::thread::sleep(UNDER_WAY);
        let _ = self.object.run(CLOSE_PROGRAM);
        self.attachment.detach();
        until
    }

    /// Ends all packets that are under way, as open. For when nothing is attached.
    ///
    /// # Errors
    /// [`MeasurementError::Attach`] when the kernel refuses.
    pub fn sweep(&self) -> Result<(), MeasurementError> {
        for _ in 0..self.table_places.div_ceil(SWEEP_PLACES) {
            self.object.run(SWEEP_PROGRAM)?;
        }
        Ok(())
    }

    /// Mean run time of every program, as far as the kernel's statistics were on.
    pub fn costs(&self) -> Vec<ProgramCost> {
        let statistics = self.object.statistics().into_iter();
        statistics
            .filter(|one| one.runs > 0)
            .map(|one| cost::program_cost(&one.name, one.runs, one.run_ns))
            .collect()
    }

    /// Time of all runs that the kernel timed, ns.
    pub fn run_ns(&self) -> u64 {
        let statistics = self.object.statistics().into_iter();
        statistics.map(|one| one.run_ns).sum()
    }

    /// Runs that did not take place because the program was already running on this CPU, by program. Of two programs for
    /// the same event, one stands in for the other: at most as many are missed as that one missed, too.
    pub fn missed(&self) -> Vec<(String, u64)> {
        let missed: BTreeMap<String, u64> = (self.object.statistics().into_iter())
            .map(|one| (one.name, one.missed))
            .collect();
        let of_both = |(name, &count): (&String, &u64)| match missed.get(&format!("{name}_2")) {
            Some(&other) => (name.clone(), count.min(other)),
            None => (name.clone(), count),
        };
        (missed.iter().filter(|(name, _)| !name.ends_with("_2")))
            .map(of_both)
            .filter(|&(_, count)| count > 0)
            .collect()
    }

    /// Drops by reason, those of all CPUs added up.
    pub(super) fn drops(&self) -> BTreeMap<u32, PathDrops> {
        let Ok(map) = self.object.map("path_drops") else {
            return BTreeMap::new();
        };
        map.keys()
            .filter_map(|key| {
                let of_cpus = map.lookup_percpu(&key, MapFlags::ANY).ok().flatten()?;
                let mut sums = [0_u64; size_of::<PathDrops>() / 8];
                for bytes in of_cpus {
                    for (sum, word) in sums.iter_mut().zip(bytes.as_chunks().0) {
                        *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
                    }
                }
                let reason = u32::from_ne_bytes(key.try_into().ok()?);
                Some((reason, *view_plain(&sums)?))
            })
            .collect()
    }

    /// Keys and numbers of the groups that have histograms.
    pub fn groups(&self) -> Vec<(PathKey, u32)> {
        let elements = self.object.elements("path_groups").into_iter();
        elements
            .filter_map(|(key, value)| {
                let number = u32::from_ne_bytes(value.try_into().ok()?);
                Some((read_plain(&key)?, number))
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
    let kernel = Btf::from_vmlinux().map_err(MeasurementError::load)?;
    let mut selection = Selection::of(&request, &kernel)?;
    selection
        .programs
        .retain(|one| !TWINS.contains(&one.program));
    let cpus = cpus::possible().map_err(MeasurementError::load)?;
    let lane_cpus = cpus::with_lanes().map_err(MeasurementError::load)?;
    PathHooks::load_selection(&request, selection, cpus, lane_cpus).map(|hooks| hooks.unavailable)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use parshall_core::abi::{PATH_CODE_COUNT, PATH_REASONS_MAX, PathHistogram};

    use super::*;
    use crate::path::account::drops;
    use crate::path::drop_reasons::DropReasons;
    use crate::programs::memory;

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        assert!(
            is_root || std::env::var_os("CI").is_none(),
            "this test needs root, and under CI it must not be skipped"
        );
        if !is_root {
            eprintln!("skipped: this needs root");
        }
        is_root
    }

    fn put(hooks: &PathHooks, reason: u32, of_a_cpu: u64) {
        let map = hooks.object.map("path_drops").unwrap();
        let mut bytes = vec![0; size_of::<PathDrops>()];
        bytes[..8].copy_from_slice(&of_a_cpu.to_ne_bytes());
        let of_cpus = vec![bytes; cpus::possible().unwrap()];
        let key = reason.to_ne_bytes();
        map.update_percpu(&key, &of_cpus, MapFlags::ANY).unwrap();
    }

    /// Lets the kernel drop a datagram for a port that is closed; the answer says that it has.
    fn drop_one() {
        let closed = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(closed).unwrap();
        socket.send(b"x").unwrap();
        assert!(socket.recv(&mut [0]).is_err());
    }

    #[test]
    fn each_reason_has_a_count_as_far_as_there_is_room() {
        if !is_root() {
            return;
        }
        let request = PathRequest {
            stages: vec!["receive".into(), "drop".into()],
            reads: false,
            noise: false,
            ..PathRequest::of_everything()
        };
        let mut hooks = PathHooks::load(&request).unwrap();
        let cpus = cpus::possible().unwrap() as u64;
        // Numbers of subsystems that no array would have room for; the low halves are equal.
        let large = [3 << 16 | 2, 77 << 16 | 2];
        for (reason, count) in large.into_iter().zip([5, 7]) {
            put(&hooks, reason, count);
        }
        hooks.attach(true).unwrap();
        drop_one();
        hooks.detach();
        let found = drops(&hooks, &DropReasons::of_this_kernel());
        let count_of = |name: &str| found.iter().find(|one| one.name == name).map(|one| one.all);
        assert_eq!(count_of("subsystem 77 reason 2"), Some(7 * cpus));
        assert!(
            found
                .iter()
                .any(|one| one.reason == large[0] && one.all == 5 * cpus)
        );
        assert!(count_of("NO_SOCKET") >= Some(1), "{found:?}");
        assert_eq!(hooks.arrays.account().uncounted_drops, 0);

        let mut hooks = PathHooks::load(&request).unwrap();
        for reason in 0..PATH_REASONS_MAX as u32 {
            put(&hooks, 77 << 16 | reason, 1);
        }
        hooks.attach(true).unwrap();
        drop_one();
        hooks.detach();
        assert_eq!(hooks.drops().len(), PATH_REASONS_MAX);
        assert!(hooks.arrays.account().uncounted_drops >= 1);
    }

    /// A CPU beyond the first that this thread may use; it moves there.
    fn moved_to_another_cpu() -> bool {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let other = (1..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu));
        other.is_some_and(|cpu| cpus::bind_to(cpu).is_ok())
    }

    #[test]
    fn packets_on_a_cpu_that_came_later_are_counted_and_in_no_histogram() {
        if !is_root() || !moved_to_another_cpu() {
            return;
        }
        let request = PathRequest {
            path: None,
            stages: vec!["receive".into(), "drop".into()],
            reads: false,
            noise: false,
            filter: None,
            every: 1,
            group: crate::path::request::Group::None,
            ..PathRequest::of_everything()
        };
        let kernel = Btf::from_vmlinux().unwrap();
        let selection = Selection::of(&request, &kernel).unwrap();
        let cpus = cpus::possible().unwrap();
        let mut hooks = PathHooks::load_selection(&request, selection, cpus, 1).unwrap();
        hooks.attach(true).unwrap();
        // Loopback receives a packet on the CPU that sent it.
        for _ in 0..10 {
            drop_one();
        }
        hooks.detach();
        hooks.sweep().unwrap();
        let account = hooks.arrays.account();
        let ended: u64 = account.ended.iter().sum();
        assert!(account.without_histogram >= 10, "{account:?}");
        let mut in_histograms = 0;
        for code in 0..PATH_CODE_COUNT {
            hooks
                .arrays
                .histograms(code, |one| in_histograms += one.packets);
        }
        assert_eq!(ended, account.without_histogram + in_histograms);
    }

    /// Memory of the maps, as the kernel accounts it, bytes.
    fn accounted_bytes(object: &Loaded) -> u64 {
        object
            .maps()
            .map(|map| {
                use std::os::fd::{AsFd, AsRawFd};
                let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
                let text = std::fs::read_to_string(path).unwrap();
                let line = text.lines().find(|line| line.starts_with("memlock:"));
                let (_, bytes) = line.unwrap().split_once(':').unwrap();
                bytes.trim().parse::<u64>().unwrap()
            })
            .sum()
    }

    #[test]
    fn memory_is_known_before_it_is_taken_and_grows_with_the_cpus_that_have_lanes() {
        let request = PathRequest {
            groups_max: 256,
            ring_bytes: 1 << 20,
            interfaces: Vec::new(),
            ..PathRequest::of_everything()
        };
        let kernel = Btf::from_vmlinux().unwrap();
        let selection = Selection::of(&request, &kernel).unwrap();
        let settings = Settings::of(&request, &selection).unwrap();
        let bytes = |possible, online| {
            let open = load::open(&settings, &selection, possible, online).unwrap();
            memory::needed_bytes(&open, possible)
        };
        let (small, idle, large) = (bytes(1, 1), bytes(128, 1), bytes(128, 128));
        // Counts, and what a CPU is doing; no histograms.
        assert!(idle - small < 127 << 20, "{small} {idle}");
        let histograms_bytes =
            127 * (PATH_CODE_COUNT as u64 + 256) * size_of::<PathHistogram>() as u64;
        assert!((large - idle) > histograms_bytes);
        assert!((large - idle) < histograms_bytes + 127 * (4 << 20));
        if !is_root() {
            return;
        }
        let hooks = PathHooks::load(&request).unwrap();
        let taken = accounted_bytes(&hooks.object);
        let expected = bytes(cpus::possible().unwrap(), cpus::with_lanes().unwrap());
        assert!(
            taken.abs_diff(expected) < taken / 20,
            "the kernel accounts {taken} bytes, {expected} were expected"
        );
    }
}
