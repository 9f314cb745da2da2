//! What a run is asked to do.

use super::backend::frame_limit::FRAME_BYTES_MAX;
use super::{BackendKind, GenerateError};
use crate::free_memory::available_bytes;
use parshall_core::distributions::GapDistribution;
use parshall_core::sizes::{Parameters, SizeDistribution, TwoStage};
use parshall_core::trace::{Reader, allowance_bytes};
use parshall_core::workload::{
    Flows, Order, Packets, Plan, Protocol, Rate, Replay, ReplayLimits, Vlan, Workload,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// Cells of the distribution of the sizes of replayed frames.
const REPLAY_CELLS: u32 = 100_000;

/// A run of the generator; texts are those of the command line.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Interface that sends.
    pub interface: String,
    /// Path of its network namespace; none: that of the caller.
    pub namespace: Option<PathBuf>,
    /// CPUs that send, each with a share of the packets; none: one sender, wherever the kernel lets it run.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// The interface's queue for each sender, where the sender may choose; none: sender k by queue k.
    #[serde(default)]
    pub queues: Vec<u32>,
    /// What sends.
    #[serde(default)]
    pub backend: BackendKind,
    /// A capture file whose frames are sent, in place of frames of these sizes and flows.
    pub replay: Option<PathBuf>,
    /// MTU of the interface, which no frame of that file may exceed; none: any length.
    pub mtu_bytes: Option<u32>,
    /// Distribution of the sizes, see [`SizeDistribution::parse`].
    pub sizes: String,
    /// Distribution of the gaps, see [`GapDistribution::parse`]; none: no gaps, or equal ones when a rate is given.
    pub gap: Option<String>,
    /// Gaps of a trace, ns, in place of `gap`.
    pub recorded_gaps_ns: Option<Vec<f64>>,
    /// Bits of frames per second.
    pub rate_bps: Option<f64>,
    /// Packets per second.
    pub pps: Option<f64>,
    /// Share of a line.
    pub load: Option<f64>,
    /// Bits per second of that line.
    pub line_bps: Option<f64>,
    /// Packets in all; none: until it is stopped.
    pub count: Option<u64>,
    /// How long, from the first packet on, ns; none: until all are sent.
    pub duration_ns: Option<u64>,
    /// Seed of everything that is drawn.
    pub seed: u64,
    /// Source addresses.
    pub source: String,
    /// Destination addresses.
    pub destination: String,
    /// Source ports.
    pub source_port: String,
    /// Destination ports.
    pub destination_port: String,
    /// Source MAC addresses.
    pub source_mac: String,
    /// Whether these are the interface's own.
    #[serde(default)]
    pub has_own_mac: bool,
    /// Destination MAC addresses.
    pub destination_mac: String,
    /// Number of flows; none: as many as the longest range has values.
    pub flows: Option<u32>,
    /// Whether packets choose their flow at random.
    #[serde(default)]
    pub is_random: bool,
    /// `udp`, `tcp` or an IP protocol number.
    pub protocol: String,
    /// VLAN number.
    pub vlan: Option<u16>,
    /// VLAN priority.
    #[serde(default)]
    pub vlan_priority: u8,
    /// Whether sequence number and send time stand in the payload.
    #[serde(default)]
    pub is_stamped: bool,
    /// File for what was sent when, see `departure_log`; paced runs only.
    pub departure_log: Option<PathBuf>,
    /// How the distribution of sizes is represented: cells, bytes of a bin, largest size.
    pub precision: Option<u32>,
    /// See `precision`.
    pub bin_bytes: Option<u32>,
    /// See `precision`.
    pub maximum_bytes: Option<u32>,
}

/// What a request comes to, before anything is sent.
#[derive(Debug, Clone, Serialize)]
pub struct Description {
    /// The largest IP packet, bytes; of a file, what follows Ethernet's header and a tag of 802.1Q.
    pub largest_ip_bytes: u32,
    /// The largest frame, bytes, without its check sequence.
    pub largest_frame_bytes: usize,
    /// Mean length of the frames, bytes.
    pub mean_frame_bytes: f64,
    /// Mean gap, ns; 0: none.
    pub mean_gap_ns: f64,
    /// Number of flows.
    pub flows: u32,
    /// Whether each frame fits into a page, as live XDP frames ask.
    pub fits_live_frames: bool,
    /// Frames of the file that is replayed.
    pub replayed_packets: Option<usize>,
}

impl Request {
    /// What it comes to.
    pub fn describe(&self) -> Result<Description, GenerateError> {
        let workload = self.workload()?;
        Ok(Description {
            largest_ip_bytes: match &workload.replay {
                Some(replay) => replay.largest_untagged_bytes(),
                None => workload.largest_ip_bytes(),
            },
            largest_frame_bytes: workload.largest_frame_bytes(),
            fits_live_frames: workload.largest_frame_bytes() <= FRAME_BYTES_MAX,
            mean_frame_bytes: workload.mean_frame_bytes(),
            mean_gap_ns: workload.gaps.mean_gap_ns(),
            flows: workload.flows.count,
            replayed_packets: workload.replay.as_ref().map(|replay| replay.frames()),
        })
    }

    /// The first frames, one for each send time in `sent_ns`: when a frame is due, nanoseconds after the start, and its
    /// bytes, with the send time in its stamp if it has one.
    pub fn frames(&self, sent_ns: &[u64]) -> Result<Vec<(u64, Vec<u8>)>, GenerateError> {
        let workload = self.workload()?;
        let packets = Packets::of(&workload);
        Ok(Plan::new(&workload, &packets)
            .zip(0..)
            .zip(sent_ns)
            .map(|((packet, sequence), sent_ns)| {
                (packet.due_ns, packets.frame(&packet, sequence, *sent_ns))
            })
            .collect())
    }

    /// The workload that is asked for.
    pub fn workload(&self) -> Result<Workload, GenerateError> {
        let default = Parameters::default();
        let parameters = Parameters {
            precision: self.precision.unwrap_or(default.precision),
            bin_bytes: self.bin_bytes.unwrap_or(default.bin_bytes),
            maximum_bytes: self.maximum_bytes.unwrap_or(default.maximum_bytes),
            ..default
        };
        let mut workload = Workload {
            sizes: SizeDistribution::parse(&self.sizes, &parameters)?,
            gaps: GapDistribution::none(),
            flows: self.flows()?,
            seed: self.seed,
            is_stamped: self.is_stamped,
            replay: None,
        };
        let recorded = self.read_replay(&mut workload)?;
        let recorded = recorded.as_ref().or(self.recorded_gaps_ns.as_ref());
        let mean_gap_ns = match self.rate()? {
            Some(rate) => Some(rate.mean_gap_ns(&workload)?),
            None => None,
        };
        workload.gaps = match (recorded, &self.gap, mean_gap_ns) {
            (Some(gaps_ns), _, None) => GapDistribution::recorded(gaps_ns.clone())?,
            (Some(gaps_ns), _, Some(mean)) => {
                GapDistribution::recorded(gaps_ns.clone())?.with_mean_gap_ns(mean)?
            }
            (None, Some(text), mean) => GapDistribution::parse(text, mean)?,
            (None, None, Some(mean)) => GapDistribution::fixed(mean)?,
            (None, None, None) => GapDistribution::none(),
        };
        let largest = workload.largest_ip_bytes();
        if largest > u32::from(u16::MAX) {
            let option = match self.replay {
                Some(_) => "--replay",
                None => "--sizes",
            };
            let found = format!("with packets of {largest} bytes");
            let expected = format!(
                "at most {}, the longest that an IP header can hold",
                u16::MAX
            );
            return Err(GenerateError::option(option, found, expected));
        }
        Ok(workload)
    }

    /// Puts the frames of the file into the workload; gives their gaps, unless a distribution is given for them.
    fn read_replay(&self, workload: &mut Workload) -> Result<Option<Vec<f64>>, GenerateError> {
        let Some(path) = &self.replay else {
            return Ok(None);
        };
        let refused = |expected: &str| {
            GenerateError::option("--replay", path.display().to_string(), expected)
        };
        if self.backend == BackendKind::Pktgen {
            return Err(refused("--backend xdp, af-packet or af-xdp beside it"));
        }
        if self.is_stamped || self.vlan.is_some() {
            return Err(refused(
                "neither --stamp nor --vlan beside it: the frames are sent as they are",
            ));
        }
        // A vector that grows is in memory twice for a moment.
        let free_bytes = available_bytes().map_or(u64::MAX, |bytes| bytes / 2);
        let limits = ReplayLimits {
            memory_bytes: free_bytes.min(allowance_bytes(path)),
            ip_bytes: self.mtu_bytes,
        };
        let name = path.display().to_string();
        let replay = Replay::read(&mut Reader::open(path)?, &name, limits)?;
        let counts = replay.sizes()?;
        let exact = Parameters {
            precision: REPLAY_CELLS,
            bin_bytes: 1,
            maximum_bytes: counts.iter().map(|(size, _)| size).max().unwrap_or(1),
            ..Parameters::default()
        };
        workload.sizes =
            SizeDistribution::TwoStage(Box::new(TwoStage::from_counts(&counts, &exact)?));
        let gaps_ns = replay.gaps_ns().to_vec();
        workload.replay = Some(Arc::new(replay));
        // When all frames have the same time, there are no gaps to follow.
        let has_times = gaps_ns.iter().any(|gap_ns| *gap_ns > 0.0);
        Ok((self.gap.is_none() && has_times).then_some(gaps_ns))
    }

    fn rate(&self) -> Result<Option<Rate>, GenerateError> {
        let one = |found: &str, expected: &str| GenerateError::option("rate", found, expected);
        let load = match (self.load, self.line_bps) {
            (Some(share), Some(line_bps)) => Some(Rate::Load { share, line_bps }),
            (None, None) => None,
            _ => {
                return Err(one(
                    "of a line",
                    "both --load and --line, for example --load 0.8 --line 10G",
                ));
            }
        };
        let mut given = [
            self.rate_bps.map(Rate::Bits),
            self.pps.map(Rate::Packets),
            load,
        ]
        .into_iter()
        .flatten();
        let rate = given.next();
        if given.next().is_some() {
            return Err(one("given twice", "one of --rate, --pps and --load"));
        }
        Ok(rate)
    }

    fn flows(&self) -> Result<Flows, GenerateError> {
        let mut flows = Flows::between(&self.source, &self.destination)?
            .with_ports(&self.source_port, &self.destination_port)?
            .with_macs(&self.source_mac, &self.destination_mac)?;
        flows.has_own_mac = self.has_own_mac;
        flows.protocol = match self.protocol.as_str() {
            "udp" => Protocol::Udp,
            "tcp" => Protocol::Tcp,
            other => Protocol::Raw(other.parse().map_err(|_| {
                let expected = "udp, tcp or an IP protocol number from 0 to 255";
                GenerateError::option("--protocol", other, expected)
            })?),
        };
        if let Some(id) = self.vlan {
            if id > 4095 || self.vlan_priority > 7 {
                let found = format!("{id}, priority {}", self.vlan_priority);
                let expected = "a VLAN from 0 to 4095 and a priority from 0 to 7";
                return Err(GenerateError::option("--vlan", found, expected));
            }
            flows.vlan = Some(Vlan {
                id,
                priority: self.vlan_priority,
            });
        }
        if let Some(count) = self.flows {
            flows = flows.with_count(count)?;
        }
        if self.is_random {
            flows.order = Order::Random;
        }
        Ok(flows)
    }
}
