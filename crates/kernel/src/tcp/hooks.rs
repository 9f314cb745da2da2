//! The TCP programs in the kernel: load, attach, switch, count, sweep, detach.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;

use libbpf_rs::{IterOpts, MapCore, MapIterOpts};
use parshall_core::abi::{
    FlowState, HookCounters, Plain, ReaderTime, TCP_HOOK_COUNT, TCP_LANES_PER_CPU, TcpControl,
    TcpListener, TcpOptions, plain_bytes, read_plain, view_plain,
};

use super::options::{Directions, TcpLogOptions};
use super::sweep::{Sweep, Sweeps, sweep_namespaces, walks_maps};
use crate::measurement_error::MeasurementError;
use crate::net::mapping::Mapping;
use crate::programs::compiled::{CompiledObject, compiled_object};
use crate::programs::{self, Hook, Link, Loaded, Opened, ProgramStatistics, Setting, memory};
use crate::ring::memory::Lane;
use crate::ring::registry::LaneReaders;
use crate::ring::{self, Preference};
use crate::{cgroup, cpus};

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
const EVENT_PROGRAMS: [&str; 10] = [
    "tcp_congestion_state",
    "tcp_close",
    "tcp_close_2",
    "tcp_retransmit",
    "tcp_retransmit_synack",
    "tcp_reset_received",
    "tcp_reset_received_2",
    "tcp_reset_sent",
    "tcp_reset_sent_2",
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

/// Whose packets are observed, and which.
struct Observed {
    cgroup: OwnedFd,
    directions: Directions,
}

/// The loaded programs with their rings.
pub struct TcpHooks {
    object: Loaded,
    links: Vec<(&'static str, Link)>,
    observed: Option<Observed>,
    control: TcpControl,
    is_paused: bool,
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
        Ok(Self {
            packet_lanes: Lane::of_map(
                object.map("packet_ring")?,
                packet_lanes,
                packet_layout,
                false,
            )?,
            flow_lanes: Lane::of_map(object.map("flow_ring")?, lane_cpus, flow_layout, false)?,
            packet_readers: LaneReaders::of_map(object.map("packet_readers")?, packet_lanes)?,
            flow_readers: LaneReaders::of_map(object.map("flow_readers")?, lane_cpus)?,
            counters: object.mapping("hook_accounts", counters_bytes(cpus), false)?,
            cpus,
            asks_for_processes: !options.pids.is_empty(),
            walks_maps,
            links: Vec::new(),
            observed: None,
            control: TcpControl {
                enabled: 1,
                packets_per_log: 1,
            },
            is_paused: false,
            object,
        })
    }

    /// Attaches to every socket below a control group, and to the events.
    pub fn attach(&mut self, group: &Path, directions: Directions) -> Result<(), MeasurementError> {
        let directory = cgroup::open(group)?;
        // Events first: a flow that a packet hook finds must not miss its end.
        for name in EVENT_PROGRAMS {
            self.attach_to(name, Hook::OfItsSection)?;
        }
        if self.asks_for_processes {
            // Before the packet hooks: they ignore a connection for good that is not wanted at its first packet.
            self.attach_to(NOTE_NEW_SOCKET, Hook::Cgroup(directory.as_fd()))?;
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
        for (name, not_in) in PACKET_PROGRAMS {
            if *directions != not_in {
                let link = self.object.attach(name, Hook::Cgroup(cgroup.as_fd()))?;
                self.links.push((name, link));
            }
        }
        Ok(())
    }

    fn attach_to(&mut self, name: &'static str, hook: Hook<'_>) -> Result<(), MeasurementError> {
        self.links.push((name, self.object.attach(name, hook)?));
        Ok(())
    }

    /// Makes the calling thread known as the reader. Where the kernel charges threads with softirqs, they
    /// are measured from now on.
    pub fn watch_reader(&mut self) -> Result<(), MeasurementError> {
        let is_charged_with_softirqs = self.object.run(READER_IS_HERE)? != 0;
        if is_charged_with_softirqs {
            for name in READER_PROGRAMS {
                self.attach_to(name, Hook::OfItsSection)?;
            }
        }
        Ok(())
    }

    /// Ends the handshakes that have been silent for too long, not too many at once; their accounts
    /// come through the flow ring. Whether there may be more.
    pub fn end_silent_handshakes(&self) -> Result<bool, MeasurementError> {
        Ok(self.object.run(END_SILENT_HANDSHAKES)? != 0)
    }

    /// Nanoseconds that the reader's thread was charged with for softirqs. 0 where the kernel does not
    /// charge threads with these.
    pub fn reader_softirq_ns(&self) -> u64 {
        let time = self.object.first::<ReaderTime>(READER_MAP);
        time.map_or(0, |time| time.softirq_ns)
    }

    /// Lets the programs observe, or not. Switched off, those of the events return at once, and those
    /// of the packets are not even attached: the kernel's path to a program of a cgroup costs a packet some percent.
    ///
    /// # Errors
    /// [`MeasurementError::Load`] or [`MeasurementError::Attach`] when the kernel refuses.
    pub fn switch(&mut self, on: bool) -> Result<(), MeasurementError> {
        self.control.enabled = u32::from(on);
        self.write_control()?;
        self.observe_packets(on && !self.is_paused)
    }

    /// Observes packets, or only events: for times in which packets would cost too much.
    ///
    /// # Errors
    /// As [`TcpHooks::attach`].
    pub fn pause(&mut self, is_paused: bool) -> Result<(), MeasurementError> {
        self.is_paused = is_paused;
        self.observe_packets(!is_paused && self.control.enabled != 0)
    }

    /// Logs every n-th packet of each flow from now on, where the options adapt; a power of two.
    ///
    /// # Errors
    /// As [`TcpHooks::switch`].
    pub fn set_packets_per_log(&mut self, packets: u32) -> Result<(), MeasurementError> {
        self.control.packets_per_log = packets;
        self.write_control()
    }

    /// Whether the log is switched on.
    pub fn is_on(&self) -> bool {
        self.control.enabled != 0
    }

    fn write_control(&self) -> Result<(), MeasurementError> {
        let control = plain_bytes(&self.control);
        Ok(self.object.set(".data.control", 0, control)?)
    }

    fn observe_packets(&mut self, on: bool) -> Result<(), MeasurementError> {
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
            let flows = self.object.map("flows")?;
            let map = IterOpts::Map(MapIterOpts::from_fd(flows.as_fd()));
            return Ok(Sweeps {
                walks: vec![self.sweep(SUM_UP_BY_MAP, map)?],
                is_whole: true,
            });
        }
        let held = self.sweep(SUM_UP_BY_SOCKET[0], IterOpts::None)?;
        let name = SUM_UP_BY_SOCKET[1];
        let link = self.object.iterate(name, IterOpts::None)?;
        let mut sweeps = sweep_namespaces(link.as_fd())
            .map_err(|error| MeasurementError::attach(name, error))?;
        sweeps.walks.insert(0, held);
        Ok(sweeps)
    }

    fn sweep(&self, name: &str, options: IterOpts<'_>) -> Result<Sweep, MeasurementError> {
        let link = self.object.iterate(name, options)?;
        Sweep::new(link.as_fd()).map_err(|error| MeasurementError::attach(name, error))
    }

    /// The hooks' counters, summed over the CPUs, in the order of `enum tcp_hook`.
    pub fn counters(&self) -> [HookCounters; TCP_HOOK_COUNT] {
        let mut sums = [HookCounters::default(); TCP_HOOK_COUNT];
        for cpu in 0..self.cpus {
            for (hook, sum) in sums.iter_mut().enumerate() {
                let start = (cpu * TCP_HOOK_COUNT + hook) * size_of::<HookCounters>();
                let mut words = [0; size_of::<HookCounters>() / 8];
                let counted = self.counters.words(start, words.len());
                for (word, counted) in words.iter_mut().zip(counted) {
                    *word = counted.load(Ordering::Acquire);
                }
                let Some(of_cpu) = view_plain::<HookCounters>(&words) else {
                    continue;
                };
                sum.seen += of_cpu.seen;
                sum.filtered += of_cpu.filtered;
                sum.due += of_cpu.due;
                sum.dropped += of_cpu.dropped;
                sum.unowned += of_cpu.unowned;
                sum.failed += of_cpu.failed;
            }
        }
        sums
    }

    /// Accounts of passive opens that are not done yet; packets that were thinned out are not counted.
    pub fn open_handshakes(&self) -> Vec<FlowState> {
        self.values("handshakes")
    }

    /// The listeners to which a segment of a handshake came.
    pub fn listeners(&self) -> Vec<TcpListener> {
        self.values(LISTENERS_MAP)
    }

    fn values<T: Plain>(&self, map: &str) -> Vec<T> {
        let elements = self.object.elements(map);
        let values = elements.iter().filter_map(|(_, value)| read_plain(value));
        values.collect()
    }

    /// Makes room in the table of listeners.
    pub fn forget_listeners(&self, cookies: &[u64]) {
        let Ok(map) = self.object.map(LISTENERS_MAP) else {
            return;
        };
        for cookie in cookies {
            // What is gone already needs no removal.
            let _ = map.delete(&cookie.to_ne_bytes());
        }
    }

    /// Segments that came to listeners for which the table had no room.
    pub fn segments_unlisted(&self) -> u64 {
        self.object.first(UNLISTED_MAP).unwrap_or_default()
    }

    /// Run-time statistics and misses of every program.
    pub fn statistics(&self) -> Vec<ProgramStatistics> {
        self.object.statistics()
    }
}

fn counters_bytes(cpus: usize) -> usize {
    cpus * TCP_HOOK_COUNT * size_of::<HookCounters>()
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
) -> Result<Loaded, MeasurementError> {
    let opened = open(options, cpus, lane_cpus, walks_maps)?;
    memory::check(&opened, cpus, "--buffer")?;
    Ok(opened.load()?)
}

fn open(
    options: &TcpOptions,
    cpus: usize,
    lane_cpus: usize,
    walks_maps: bool,
) -> Result<Opened, MeasurementError> {
    let packet_lanes = lane_cpus * TCP_LANES_PER_CPU;
    let maps = [
        (
            "packet_ring",
            Setting::Lanes(&options.packet_layout, packet_lanes),
        ),
        ("packet_readers", Setting::Entries(packet_lanes)),
        ("flow_ring", Setting::Lanes(&options.flow_layout, lane_cpus)),
        ("flow_readers", Setting::Entries(lane_cpus)),
        ("hook_accounts", Setting::Entries(cpus * TCP_HOOK_COUNT)),
        (".rodata.options", Setting::Constants(plain_bytes(options))),
    ];
    let is_wanted = |name: &str| match name {
        NOTE_NEW_SOCKET | NOTE_HELD_SOCKETS => options.pid_count > 0,
        SUM_UP_BY_MAP => walks_maps,
        name => !walks_maps || !SUM_UP_BY_SOCKET.contains(&name),
    };
    Ok(programs::open(&OBJECT, &maps, is_wanted)?)
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
            let open = open(&options, possible, online, true).unwrap();
            memory::needed_bytes(&open, possible)
        };
        let (small, idle, large) = (bytes(1, 1), bytes(128, 1), bytes(128, 128));
        assert!(idle - small < 1 << 20, "{small} {idle}");
        // Two lanes of packets and one of flows.
        let lanes_bytes = 127 * 3 * (8 << 20);
        assert!((lanes_bytes..lanes_bytes + (64 << 20)).contains(&(large - idle)));
    }
}
