//! The TCP programs in the kernel: load, attach, switch, count, sweep, detach.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use libbpf_rs::{IterOpts, Link, MapCore, MapFlags, MapIterOpts, Object, OpenObject};
use parshall_core::abi::{
    HookCounters, ReaderTime, TCP_HOOK_COUNT, TCP_LANES_PER_CPU, TcpListener, TcpOptions,
    plain_bytes, read_plain,
};

use super::options::{Directions, TcpLogOptions};
use super::sweep::{Sweep, Sweeps, sweep_namespaces, walks_maps};
use crate::bpf;
use crate::cpus;
use crate::map_memory;
use crate::measurement_error::MeasurementError;
use crate::net::mapping::Mapping;
use crate::objects::{CompiledObject, compiled_object};
use crate::ring::memory::Lane;
use crate::ring::registry::LaneReaders;
use crate::ring::{self, Preference};

pub(crate) static OBJECT: CompiledObject = compiled_object!("tcp");

/// Smallest flow ring for each CPU. 100,000 short connections write 50 MB in all; a reader that
/// waits longer for a CPU needs a larger packet ring, half of which is the size here.
const FLOW_RING_MIN_BYTES: u64 = 4 << 20;

/// The program that writes a flow's account when its socket is destroyed.
const FLOW_END_PROGRAM: &str = "tcp_destroy";

/// Programs that are attached for the packets, and with which directions asked for each is not.
const PACKET_PROGRAMS: [(&str, Directions); 2] = [
    ("tcp_egress", Directions::In),
    ("tcp_ingress", Directions::Out),
];

/// Programs that are attached for the events, and detached in this order: a close reads how much the kernel has sent
/// again, which the programs for that must have seen.
const EVENT_PROGRAMS: [&str; 6] = [
    "tcp_congestion_state",
    "tcp_close",
    "tcp_close_2",
    "tcp_retransmit",
    "tcp_retransmit_synack",
    FLOW_END_PROGRAM,
];

/// Programs that find the sockets of processes: as they are made, and those that are there already.
const NOTE_NEW_SOCKET: &str = "note_new_socket";
const NOTE_HELD_SOCKETS: &str = "note_held_sockets";

/// Programs that write the accounts of living flows: over the map, or over the sockets where the kernel does not let them.
const SUM_UP_BY_MAP: &str = "sum_up_flows";
const SUM_UP_BY_SOCKET: [&str; 2] = ["sum_up_held_flows", "sum_up_flows_of_namespace"];

/// Programs that measure the softirqs that interrupt the reader.
const READER_PROGRAMS: [&str; 2] = ["reader_softirq", "reader_softirq_end"];
/// What they note, in its map.
const READER_MAP: &str = ".data.reader";
/// Segments that came to listeners for which their table had no room.
const UNLISTED_MAP: &str = ".data.unlisted";
/// The table of listeners, by cookie.
const LISTENERS_MAP: &str = "listeners";
/// The program by which the reader makes itself known.
const READER_IS_HERE: &str = "reader_is_here";
/// The program that ends failed handshakes.
const END_SILENT_HANDSHAKES: &str = "end_silent_handshakes";

/// One program's run-time statistics, as the kernel keeps them.
#[derive(Clone, Debug, Default)]
pub struct ProgramStatistics {
    /// Name in the kernel.
    pub name: String,
    /// Timed runs.
    pub runs: u64,
    /// Nanoseconds of these runs.
    pub run_ns: u64,
    /// Runs that did not take place because the program was already running on this CPU.
    pub missed: u64,
}

/// What was counted of a passive open that is not done yet, as `struct flow_state` has it.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeAccount {
    /// Number of the flow.
    pub flow: u32,
    /// Packets seen.
    pub packets_seen: u64,
    /// Of these, not thinned out; 0 where nothing is thinned.
    pub packets_due: u64,
    /// Packets for which the ring had no room.
    pub packets_dropped: u64,
    /// Events seen.
    pub events_seen: u64,
    /// Events for which the ring had no room.
    pub events_dropped: u64,
    /// SYN-ACKs that were sent again.
    pub retransmits_seen: u32,
}

/// Whose packets are observed, and which.
struct Observed {
    cgroup: OwnedFd,
    directions: Directions,
}

/// The loaded programs with their rings.
pub struct TcpHooks {
    object: Object,
    links: Vec<(&'static str, Link)>,
    observed: Option<Observed>,
    counters: Mapping,
    cpus: usize,
    asks_for_processes: bool,
    walks_maps: bool,
    /// Lanes of the packet ring, [`TCP_LANES_PER_CPU`] for each CPU.
    pub packet_lanes: Vec<Lane>,
    /// Lanes of the flow ring, one a CPU.
    pub flow_lanes: Vec<Lane>,
    /// The readers of the packet ring.
    pub packet_readers: Vec<LaneReaders>,
    /// The readers of the flow ring.
    pub flow_readers: Vec<LaneReaders>,
}

impl TcpHooks {
    /// Loads the programs; nothing is attached yet.
    ///
    /// # Errors
    /// [`MeasurementError::Load`] with what the kernel refused and the remedy, [`MeasurementError::Ring`],
    /// [`MeasurementError::Option`].
    pub fn load(options: &TcpLogOptions, cgroup_id: u64) -> Result<Self, MeasurementError> {
        let lane_cpus = cpus::with_lanes().map_err(MeasurementError::load)?;
        Self::load_for(options, cgroup_id, lane_cpus, walks_maps())
    }

    /// For so many CPUs with lanes, and a kernel that lets programs walk over maps, or not.
    pub(super) fn load_for(
        options: &TcpLogOptions,
        cgroup_id: u64,
        lane_cpus: usize,
        walks_maps: bool,
    ) -> Result<Self, MeasurementError> {
        let cpus = cpus::possible().map_err(MeasurementError::load)?;
        let packet_lanes = lane_cpus * TCP_LANES_PER_CPU;
        let packet_layout = ring::layout(
            options.ring_bytes / TCP_LANES_PER_CPU as u64,
            options.preference,
        )?;
        let flow_layout = ring::layout(
            FLOW_RING_MIN_BYTES.max(options.ring_bytes / 2),
            Preference::FastReader,
        )?;
        let kernel_options = options.to_kernel(packet_layout, flow_layout, cgroup_id)?;
        let object = load_programs(&kernel_options, cpus, lane_cpus, walks_maps)?;
        let map = |name: &str| find_map(&object, name);
        let counters = Mapping::of(
            map("hook_accounts")?,
            counters_bytes(cpus).next_multiple_of(4096),
            0,
            false,
        )
        .map_err(|source| ring::RingError::Map {
            lanes: cpus,
            lane_bytes: counters_bytes(1),
            source,
        })?;
        Ok(Self {
            packet_lanes: Lane::of_map(map("packet_ring")?, packet_lanes, packet_layout, false)?,
            flow_lanes: Lane::of_map(map("flow_ring")?, lane_cpus, flow_layout, false)?,
            packet_readers: LaneReaders::of_map(map("packet_readers")?, packet_lanes)?,
            flow_readers: LaneReaders::of_map(map("flow_readers")?, lane_cpus)?,
            counters,
            cpus,
            asks_for_processes: !options.pids.is_empty(),
            walks_maps,
            links: Vec::new(),
            observed: None,
            object,
        })
    }

    /// Attaches to every socket below `cgroup`, and to the events.
    pub fn attach(
        &mut self,
        cgroup: &Path,
        directions: Directions,
    ) -> Result<(), MeasurementError> {
        let directory = rustix::fs::open(
            cgroup,
            rustix::fs::OFlags::RDONLY
                | rustix::fs::OFlags::DIRECTORY
                | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )
        .map_err(|source| MeasurementError::Cgroup {
            path: cgroup.into(),
            reason: format!("{source}; give one that exists and may be read"),
        })?;
        // Events first: a flow that a packet hook finds must not miss its end.
        for name in EVENT_PROGRAMS {
            self.link(name, |program| program.attach())?;
        }
        if self.asks_for_processes {
            // Before the packet hooks: they ignore a connection for good that is not wanted at its first packet.
            self.link(NOTE_NEW_SOCKET, |program| {
                program.attach_cgroup(directory.as_raw_fd())
            })?;
            let held = self.sweep(NOTE_HELD_SOCKETS, IterOpts::None)?;
            held.run().map_err(MeasurementError::load)?;
        }
        self.observed = Some(Observed {
            cgroup: directory,
            directions,
        });
        self.attach_packets()
    }

    fn attach_packets(&mut self) -> Result<(), MeasurementError> {
        let Some(Observed { cgroup, directions }) = &self.observed else {
            return Ok(());
        };
        let (cgroup, directions) = (cgroup.as_raw_fd(), *directions);
        for (name, not_in) in PACKET_PROGRAMS {
            if directions != not_in {
                self.link(name, |program| program.attach_cgroup(cgroup))?;
            }
        }
        Ok(())
    }

    fn link(
        &mut self,
        name: &'static str,
        attach: impl FnOnce(&libbpf_rs::ProgramMut<'_>) -> libbpf_rs::Result<Link>,
    ) -> Result<(), MeasurementError> {
        let program = self.program(name)?;
        let link = attach(&program).map_err(|error| MeasurementError::attach(name, error))?;
        self.links.push((name, link));
        Ok(())
    }

    fn program(&self, name: &str) -> Result<libbpf_rs::ProgramMut<'_>, MeasurementError> {
        self.object
            .progs_mut()
            .find(|program| program.name().to_string_lossy() == name)
            .ok_or_else(|| MeasurementError::attach(name, "not in the object"))
    }

    /// Makes the calling thread known as the reader. Where the kernel charges threads with softirqs, they
    /// are measured from now on.
    pub fn watch_reader(&mut self) -> Result<(), MeasurementError> {
        let is_charged_with_softirqs = self.run(READER_IS_HERE)? != 0;
        if is_charged_with_softirqs {
            for name in READER_PROGRAMS {
                self.link(name, |program| program.attach())?;
            }
        }
        Ok(())
    }

    /// Ends the handshakes that have been silent for too long, not too many at once; their accounts
    /// come through the flow ring. Whether there may be more.
    pub fn end_silent_handshakes(&self) -> Result<bool, MeasurementError> {
        Ok(self.run(END_SILENT_HANDSHAKES)? != 0)
    }

    /// Runs a program once, in this thread, and returns what it returns.
    fn run(&self, name: &str) -> Result<u32, MeasurementError> {
        let ended = bpf::test_run(self.program(name)?.as_fd(), &[], Default::default())
            .map_err(|error| MeasurementError::attach(name, error))?;
        Ok(ended.retval)
    }

    /// Nanoseconds that the reader's thread was charged with for softirqs. 0 where the kernel does not
    /// charge threads with these.
    pub fn reader_softirq_ns(&self) -> u64 {
        self.read_count(READER_MAP, offset_of!(ReaderTime, softirq_ns) / 8)
    }

    /// Lets the programs observe, or not. Switched off, those of the events return at once, and those
    /// of the packets are not even attached: the kernel's path to a program of a cgroup costs a packet some percent.
    ///
    /// # Errors
    /// [`MeasurementError::Load`] or [`MeasurementError::Attach`] when the kernel refuses.
    pub fn switch(&mut self, on: bool) -> Result<(), MeasurementError> {
        let map = find_map(&self.object, ".data.control")?;
        map.update(
            &0u32.to_ne_bytes(),
            &u32::from(on).to_ne_bytes(),
            MapFlags::ANY,
        )
        .map_err(MeasurementError::load)?;
        let sees_packets = |name| PACKET_PROGRAMS.iter().any(|(packets, _)| *packets == name);
        if !on {
            self.links.retain(|(name, _)| !sees_packets(*name));
        } else if !self.links.iter().any(|(name, _)| sees_packets(*name)) {
            // Both or none, so that a retry starts from a known state.
            self.attach_packets()
                .inspect_err(|_| self.links.retain(|(name, _)| !sees_packets(*name)))?;
        }
        Ok(())
    }

    /// Detaches everything that observes. The program that writes the account of a flow whose
    /// socket is destroyed stays: that may happen before [`TcpHooks::sum_up_flows`] gets there.
    pub fn detach_observers(&mut self) {
        // Switching on after this attaches nothing.
        self.observed = None;
        self.links
            .retain(|(name, _)| *name == FLOW_END_PROGRAM || READER_PROGRAMS.contains(name));
    }

    /// Detaches everything; programs that run at this moment still finish.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// A sweep that finds the connections that processes hold already.
    pub fn find_flows(&self) -> Result<Sweep, MeasurementError> {
        self.sweep("find_flows", IterOpts::None)
    }

    /// Sweeps that write the accounts of all flows that are alive. For when nothing observes any more.
    pub fn sum_up_flows(&self) -> Result<Sweeps, MeasurementError> {
        if self.walks_maps {
            let flows = find_map(&self.object, "flows")?;
            let map = IterOpts::Map(MapIterOpts::from_fd(flows.as_fd()));
            return Ok(Sweeps {
                walks: vec![self.sweep(SUM_UP_BY_MAP, map)?],
                is_whole: true,
            });
        }
        let held = self.sweep(SUM_UP_BY_SOCKET[0], IterOpts::None)?;
        let name = SUM_UP_BY_SOCKET[1];
        let link = self.iterate(name, IterOpts::None)?;
        let mut sweeps = sweep_namespaces(link.as_fd())
            .map_err(|error| MeasurementError::attach(name, error))?;
        sweeps.walks.insert(0, held);
        Ok(sweeps)
    }

    fn sweep(&self, name: &str, options: IterOpts<'_>) -> Result<Sweep, MeasurementError> {
        let link = self.iterate(name, options)?;
        Sweep::new(link.as_fd()).map_err(|error| MeasurementError::attach(name, error))
    }

    fn iterate(&self, name: &str, options: IterOpts<'_>) -> Result<Link, MeasurementError> {
        self.program(name)?
            .attach_iter_with_opts(options)
            .map_err(|error| MeasurementError::attach(name, error))
    }

    /// The hooks' counters, summed over the CPUs, in the order of `enum tcp_hook`.
    pub fn counters(&self) -> [HookCounters; TCP_HOOK_COUNT] {
        let mut sums = [HookCounters::default(); TCP_HOOK_COUNT];
        for cpu in 0..self.cpus {
            for (hook, sum) in sums.iter_mut().enumerate() {
                let start = (cpu * TCP_HOOK_COUNT + hook) * size_of::<HookCounters>();
                let words = self.counters.words(start, size_of::<HookCounters>() / 8);
                let value = |word: usize| words[word].load(std::sync::atomic::Ordering::Acquire);
                sum.seen += value(0);
                sum.filtered += value(1);
                sum.due += value(2);
                sum.dropped += value(3);
                sum.unowned += value(4);
                sum.failed += value(5);
            }
        }
        sums
    }

    /// Accounts of passive opens that are not done yet; packets that were thinned out are not counted.
    pub fn open_handshakes(&self) -> Vec<HandshakeAccount> {
        let Ok(map) = find_map(&self.object, "handshakes") else {
            return Vec::new();
        };
        map.keys()
            .filter_map(|key| map.lookup(&key, MapFlags::ANY).ok().flatten())
            .filter_map(|value| {
                let word = |index: usize| read_plain_u64(&value, index);
                Some(HandshakeAccount {
                    flow: word(4)? as u32,
                    packets_seen: word(0)?,
                    packets_due: word(1)?,
                    packets_dropped: word(2)?,
                    events_seen: word(7)?,
                    events_dropped: word(8)?,
                    retransmits_seen: word(10)? as u32,
                })
            })
            .collect()
    }

    /// The listeners to which a segment of a handshake came.
    pub fn listeners(&self) -> Vec<TcpListener> {
        let Ok(map) = find_map(&self.object, LISTENERS_MAP) else {
            return Vec::new();
        };
        map.keys()
            .filter_map(|key| map.lookup(&key, MapFlags::ANY).ok().flatten())
            .filter_map(|value| read_plain(&value))
            .collect()
    }

    /// Makes room in the table of listeners.
    pub fn forget_listeners(&self, cookies: &[u64]) {
        let Ok(map) = find_map(&self.object, LISTENERS_MAP) else {
            return;
        };
        for cookie in cookies {
            // What is gone already needs no removal.
            let _ = map.delete(&cookie.to_ne_bytes());
        }
    }

    /// Segments that came to listeners for which the table had no room.
    pub fn segments_unlisted(&self) -> u64 {
        self.read_count(UNLISTED_MAP, 0)
    }

    fn read_count(&self, map: &str, word: usize) -> u64 {
        find_map(&self.object, map)
            .ok()
            .and_then(|map| {
                map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY)
                    .ok()
                    .flatten()
            })
            .and_then(|value| read_plain_u64(&value, word))
            .unwrap_or(0)
    }

    /// Run-time statistics and misses of every attached program.
    pub fn statistics(&self) -> Vec<ProgramStatistics> {
        self.object
            .progs()
            .filter_map(|program| {
                bpf::program_info(program.as_fd()).map(|info| ProgramStatistics {
                    name: program.name().to_string_lossy().into_owned(),
                    runs: info.run_cnt,
                    run_ns: info.run_time_ns,
                    missed: info.recursion_misses,
                })
            })
            .collect()
    }
}

fn counters_bytes(cpus: usize) -> usize {
    cpus * TCP_HOOK_COUNT * size_of::<HookCounters>()
}

fn read_plain_u64(bytes: &[u8], word: usize) -> Option<u64> {
    let bytes = bytes.get(word * 8..)?.get(..8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

fn find_map<'object>(
    object: &'object Object,
    name: &str,
) -> Result<libbpf_rs::Map<'object>, MeasurementError> {
    object
        .maps()
        .find(|map| map.name().to_string_lossy().ends_with(name))
        .ok_or_else(|| MeasurementError::load(format!("map {name} is not in the object")))
}

/// Loads the programs as an instrument would, with tiny rings, and unloads them.
pub fn try_programs() -> Result<(), MeasurementError> {
    let layout = ring::layout(ring::LANE_SIZE_MIN_BYTES, Preference::FastReader)?;
    // Filters by cgroup and by process are on, so that the verifier sees all code.
    let request = TcpLogOptions {
        pids: vec![1],
        ..TcpLogOptions::default()
    };
    let options = request.to_kernel(layout, layout, 1)?;
    load_programs(&options, 1, 1, walks_maps()).map(drop)
}

/// Loads the programs with accounts for so many CPUs, and lanes for so many.
fn load_programs(
    options: &TcpOptions,
    cpus: usize,
    lane_cpus: usize,
    walks_maps: bool,
) -> Result<Object, MeasurementError> {
    let open = size_maps(options, cpus, lane_cpus, walks_maps)?;
    map_memory::check(&open, cpus, "--buffer")?;
    open.load()
        .map_err(|error| MeasurementError::load(crate::libbpf_log::explained(&error)))
}

fn size_maps(
    options: &TcpOptions,
    cpus: usize,
    lane_cpus: usize,
    walks_maps: bool,
) -> Result<OpenObject, MeasurementError> {
    let packet_lanes = lane_cpus * TCP_LANES_PER_CPU;
    let mut open = crate::libbpf_log::open(&OBJECT).map_err(MeasurementError::load)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let (layout, entries) = match name.as_str() {
            "packet_ring" => (Some(&options.packet_layout), packet_lanes),
            "packet_readers" => (None, packet_lanes),
            "flow_ring" => (Some(&options.flow_layout), lane_cpus),
            "flow_readers" => (None, lane_cpus),
            "hook_accounts" => (None, cpus * TCP_HOOK_COUNT),
            _ => {
                if name.ends_with("rodata.options") {
                    map.set_initial_value(plain_bytes(options))
                        .map_err(MeasurementError::load)?;
                }
                continue;
            }
        };
        if let Some(layout) = layout {
            map.set_value_size(ring::lane_bytes(layout) as u32)
                .map_err(MeasurementError::load)?;
        }
        map.set_max_entries(entries as u32)
            .map_err(MeasurementError::load)?;
    }
    for mut program in open.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        program.set_autoload(match name.as_str() {
            NOTE_NEW_SOCKET | NOTE_HELD_SOCKETS => options.pid_count > 0,
            SUM_UP_BY_MAP => walks_maps,
            name => !walks_maps || !SUM_UP_BY_SOCKET.contains(&name),
        });
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_grows_with_the_cpus_that_have_lanes() {
        let bytes = |possible, online| {
            let packets = ring::layout(8 << 20, Preference::FastReader).unwrap();
            let flows = ring::layout(8 << 20, Preference::FastReader).unwrap();
            let options = TcpLogOptions::default()
                .to_kernel(packets, flows, 1)
                .unwrap();
            let open = size_maps(&options, possible, online, true).unwrap();
            map_memory::needed_bytes(&open, possible)
        };
        let (small, idle, large) = (bytes(1, 1), bytes(128, 1), bytes(128, 128));
        assert!(idle - small < 1 << 20, "{small} {idle}");
        // Two lanes of packets and one of flows.
        let lanes_bytes = 127 * 3 * (8 << 20);
        assert!((lanes_bytes..lanes_bytes + (64 << 20)).contains(&(large - idle)));
    }
}
