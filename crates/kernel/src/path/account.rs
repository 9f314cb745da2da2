//! What the arrays of the programs say, as tables.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use parshall_core::abi::{NOISE_COUNT, PATH_CODE_COUNT, PATH_WAIT_CODES, PathKey, READ_TIME_COUNT};
use parshall_core::ledger::Ledger;
use parshall_core::path_log::{CODE_NAMES, TimeHistogram};
use parshall_core::stage::{PATH_STAGE_COUNT, STAGE_NAMES, STAGE_PAD};
use serde::Serialize;

use super::arrays::Arrays;
use super::budget::BudgetAccount;
use super::drop_reasons::DropReasons;
use super::hooks::PathHooks;
use super::request::Group;
use crate::cgroup;
use crate::net::interface;

/// Times of one stage on one code path.
#[derive(Clone, Debug, Serialize)]
pub struct StageTimes {
    /// Code path.
    pub path: &'static str,
    /// The group that has histograms of its own; `None`: all packets of the code path.
    pub group: Option<GroupKey>,
    /// The stage; `whole` is from the first stage to the last.
    pub stage: &'static str,
    /// Packets that passed the stage after another one.
    pub packets: u64,
    /// Sum of the times since the stage before, ns.
    pub sum_ns: u64,
    /// Part of the sum of the whole.
    pub share: f64,
    /// Quantiles, ns.
    pub median_ns: f64,
    /// See `median_ns`.
    pub p90_ns: f64,
    /// See `median_ns`.
    pub p99_ns: f64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Number of the bucket, and times in it; docs/formats/path-log.md has the edges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<(usize, u64)>,
}

/// Which packets a group has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupKey {
    /// Index of the interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<u32>,
    /// Name of the interface; `None`: it is not in the measured namespace, or no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Inode of the network namespace of an interface or a connection: others have the same numbers and addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub netns_inode: Option<u32>,
    /// Number of the control group; 0: the packet's socket is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_id: Option<u64>,
    /// Path of the control group; `None`: it was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Name of the thread that sent it, or that last read from its socket; [`SOFTIRQ`]: neither is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Source address, port, destination address, port, protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<(String, u16, String, u16, u32)>,
}

/// The account of a measurement at its last tick.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PathAccount {
    /// The ledger of the whole run.
    pub ledger: Ledger,
    /// Packets by code path.
    pub paths: BTreeMap<&'static str, u64>,
    /// Times of the stages, without groups.
    pub times: Vec<StageTimes>,
    /// Drops by reason.
    pub drops: Vec<Drops>,
    /// Drops for still other reasons.
    pub uncounted_drops: u64,
    /// Packets that are in no histogram.
    pub without_histogram: u64,
    /// Times of reads.
    pub reads: Vec<Noise>,
    /// Seconds during which the programs were attached.
    pub attached_s: f64,
    /// What a budget came to; `None`: there is none.
    pub budget: Option<BudgetAccount>,
}

/// Noise of one kind on one CPU, or one of the times of reads.
#[derive(Clone, Debug, Serialize)]
pub struct Noise {
    /// Kind.
    pub kind: &'static str,
    /// CPU; `None`: all.
    pub cpu: Option<usize>,
    /// Events.
    pub events: u64,
    /// Sum of their times, ns; of `poll_packets`, packets.
    pub sum_ns: u64,
    /// Quantiles, ns.
    pub median_ns: f64,
    /// See `median_ns`.
    pub p90_ns: f64,
    /// See `median_ns`.
    pub p99_ns: f64,
    /// The longest, ns.
    pub max_ns: u64,
    /// Mean time between the starts of two events, ns; NaN with fewer than two.
    pub gap_mean_ns: f64,
    /// Standard deviation of these, ns.
    pub gap_deviation_ns: f64,
    /// Number of the bucket, and times in it.
    pub buckets: Vec<(usize, u64)>,
}

/// Drops for one reason.
#[derive(Clone, Debug, Serialize)]
pub struct Drops {
    /// The kernel's number of the reason.
    pub reason: u32,
    /// Its name: see [`DropReasons::name`].
    pub name: String,
    /// All that the kernel dropped.
    pub all: u64,
    /// Of these, packets that were followed.
    pub followed: u64,
    /// These, by the last stage that they passed.
    pub places: BTreeMap<&'static str, u64>,
}

/// Times of some packets of a code path whose whole lies in one bucket.
#[derive(Clone, Debug, Serialize)]
pub struct Wait {
    /// Code path.
    pub path: &'static str,
    /// The bucket of the whole.
    pub bucket: usize,
    /// Packets: one of seven.
    pub packets: u64,
    /// Sum of the times of each stage since the stage before, ns; `whole` is from the first stage to the last.
    pub sum_ns: BTreeMap<&'static str, u64>,
}

/// In place of a command: the kernel handled the packet for none.
pub const SOFTIRQ: &str = "(softirq)";

const NOISE_NAMES: [&str; NOISE_COUNT] = [
    "softirq_hi",
    "softirq_timer",
    "softirq_net_tx",
    "softirq_net_rx",
    "softirq_block",
    "softirq_irq_poll",
    "softirq_tasklet",
    "softirq_sched",
    "softirq_hrtimer",
    "softirq_rcu",
    "irq",
    "timer_irq",
    "net_rx_delay",
    "poll_packets",
];
const READ_NAMES: [&str; READ_TIME_COUNT] = ["waking", "running", "read", "whole"];

/// Adds up a stage of a group over the CPUs.
pub fn stage_histogram(arrays: &Arrays, group: usize, stage: usize) -> TimeHistogram {
    let mut sum = TimeHistogram::default();
    arrays.histograms(group, |one| {
        let counts = one.counts[stage].iter().map(|&count| count.into());
        sum.add(counts, one.sum_ns[stage], one.max_ns[stage].into());
    });
    sum
}

fn buckets_of(histogram: &TimeHistogram) -> Vec<(usize, u64)> {
    let counts = histogram.counts.iter().copied().enumerate();
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The times of all stages of the code paths, and of the groups. Interfaces have the names of the calling thread's network
/// namespace.
pub fn stage_times(hooks: &PathHooks, group: Group) -> Vec<StageTimes> {
    let arrays = &hooks.arrays;
    let mut rows = Vec::new();
    let mut keys = BTreeMap::new();
    if group != Group::None {
        let mut names = Names::new();
        for (key, number) in hooks.groups() {
            if let Some((code, key)) = group_key(&key, group, &mut names) {
                keys.insert(PATH_CODE_COUNT + number as usize, (code, key));
            }
        }
    }
    let codes = (0..PATH_CODE_COUNT).map(|code| (code, (code, None)));
    let groups = keys
        .into_iter()
        .map(|(number, (code, key))| (number, (code, Some(key))));
    for (number, (code, key)) in codes.chain(groups) {
        let mut sums = vec![TimeHistogram::default(); PATH_STAGE_COUNT];
        let mut packets = 0;
        arrays.histograms(number, |one| {
            packets += one.packets;
            if one.packets == 0 {
                return;
            }
            for (stage, sum) in sums.iter_mut().enumerate() {
                let counts = one.counts[stage].iter().map(|&count| count.into());
                sum.add(counts, one.sum_ns[stage], one.max_ns[stage].into());
            }
        });
        if packets == 0 {
            continue;
        }
        let whole_ns = sums[STAGE_PAD].sum_ns.max(1) as f64;
        for (stage, histogram) in sums.iter().enumerate() {
            let packets = histogram.total();
            if packets == 0 {
                continue;
            }
            rows.push(StageTimes {
                path: CODE_NAMES[code],
                group: key.clone(),
                stage: STAGE_NAMES[stage],
                packets,
                sum_ns: histogram.sum_ns,
                share: histogram.sum_ns as f64 / whole_ns,
                median_ns: histogram.quantile_ns(0.5),
                p90_ns: histogram.quantile_ns(0.9),
                p99_ns: histogram.quantile_ns(0.99),
                max_ns: histogram.max_ns,
                buckets: buckets_of(histogram),
            });
        }
    }
    rows
}

/// What the numbers of groups are called when a measurement ends.
struct Names {
    netns_inode: u64,
    cgroups: cgroup::Paths,
}

impl Names {
    fn new() -> Self {
        Self {
            netns_inode: interface::namespace_number(),
            cgroups: cgroup::Paths::new(),
        }
    }

    fn of_interface(&self, netns_inode: u32, index: u32) -> Option<String> {
        (u64::from(netns_inode) == self.netns_inode)
            .then(|| interface::name_of(index).ok())
            .flatten()
    }
}

/// The code path and the group of a histogram.
fn group_key(key: &PathKey, group: Group, names: &mut Names) -> Option<(usize, GroupKey)> {
    let code = key.code as usize;
    let key = match group {
        Group::None => GroupKey::default(),
        Group::Interface => GroupKey {
            interface: Some(key.number as u32),
            name: names.of_interface(key.netns_inode, key.number as u32),
            netns_inode: Some(key.netns_inode),
            ..GroupKey::default()
        },
        Group::Cgroup => GroupKey {
            cgroup_id: Some(key.number),
            cgroup: (key.number != 0)
                .then(|| names.cgroups.path_of(key.number))
                .flatten(),
            ..GroupKey::default()
        },
        // The programs put the name of a command in the place of the first address.
        Group::Command => GroupKey {
            command: Some(match key.source.split(|&byte| byte == 0).next()? {
                [] => SOFTIRQ.into(),
                name => String::from_utf8_lossy(name).into_owned(),
            }),
            ..GroupKey::default()
        },
        Group::Connection => GroupKey {
            connection: Some((
                canonical(key.source).to_string(),
                key.source_port,
                canonical(key.destination).to_string(),
                key.destination_port,
                key.protocol,
            )),
            netns_inode: Some(key.netns_inode),
            ..GroupKey::default()
        },
    };
    (code < PATH_CODE_COUNT).then_some((code, key))
}

fn canonical(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

/// The noise of each CPU.
pub fn noises(arrays: &Arrays) -> Vec<Noise> {
    let mut rows = Vec::new();
    for (kind, name) in NOISE_NAMES.iter().enumerate() {
        arrays.noises(false, kind, |cpu, one| {
            if one.events == 0 {
                return;
            }
            let mut histogram = TimeHistogram::default();
            histogram.add(
                one.counts.iter().map(|&count| count.into()),
                one.sum_ns,
                one.max_ns,
            );
            let gaps = one.events.saturating_sub(1) as f64;
            let mean_ns = one.sum_gap_ns as f64 / gaps;
            let square_ns = one.sum_gap_squared_us as f64 * 1e6 / gaps;
            let deviation_ns = (square_ns - mean_ns * mean_ns).max(0.0).sqrt();
            rows.push(Noise {
                gap_mean_ns: if gaps > 0.0 { mean_ns } else { f64::NAN },
                gap_deviation_ns: if gaps > 0.0 { deviation_ns } else { f64::NAN },
                ..noise(name, Some(cpu), one.events, &histogram)
            });
        });
    }
    rows
}

/// The times of reads, of all CPUs.
pub fn reads(arrays: &Arrays) -> Vec<Noise> {
    let mut rows = Vec::new();
    for (kind, name) in READ_NAMES.iter().enumerate() {
        let mut histogram = TimeHistogram::default();
        arrays.noises(true, kind, |_, one| {
            histogram.add(
                one.counts.iter().map(|&count| count.into()),
                one.sum_ns,
                one.max_ns,
            );
        });
        if histogram.total() > 0 {
            rows.push(noise(name, None, histogram.total(), &histogram));
        }
    }
    rows
}

fn noise(kind: &'static str, cpu: Option<usize>, events: u64, histogram: &TimeHistogram) -> Noise {
    Noise {
        kind,
        cpu,
        events,
        sum_ns: histogram.sum_ns,
        median_ns: histogram.quantile_ns(0.5),
        p90_ns: histogram.quantile_ns(0.9),
        p99_ns: histogram.quantile_ns(0.99),
        max_ns: histogram.max_ns,
        gap_mean_ns: f64::NAN,
        gap_deviation_ns: f64::NAN,
        buckets: buckets_of(histogram),
    }
}

/// Drops by reason.
pub fn drops(hooks: &PathHooks, names: &DropReasons) -> Vec<Drops> {
    let by_reason = hooks.drops().into_iter();
    by_reason
        .map(|(reason, drops)| Drops {
            reason,
            name: names.name(reason),
            all: drops.all,
            followed: drops.followed.iter().sum(),
            places: by_stage(&drops.followed),
        })
        .collect()
}

/// Where packets spent their time, by how long the whole took.
pub fn waits(arrays: &Arrays) -> Vec<Wait> {
    (0..PATH_WAIT_CODES)
        .flat_map(|code| {
            let buckets = arrays.waits(code).into_iter().enumerate();
            buckets.map(move |(bucket, one)| (code, bucket, one))
        })
        .filter(|(_, _, one)| one.packets > 0)
        .map(|(code, bucket, one)| Wait {
            path: CODE_NAMES[code],
            bucket,
            packets: one.packets,
            sum_ns: by_stage(&one.sum_ns),
        })
        .collect()
}

fn by_stage(values: &[u64; PATH_STAGE_COUNT]) -> BTreeMap<&'static str, u64> {
    let named = STAGE_NAMES.iter().zip(values);
    named
        .filter(|(_, value)| **value > 0)
        .map(|(name, value)| (*name, *value))
        .collect()
}
