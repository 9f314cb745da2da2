//! What the path instrument is asked for.

use std::path::{Path, PathBuf};

use parshall_core::abi::PATH_INTERFACES_MAX;
use parshall_core::stage::Stage;
use serde::Deserialize;

use crate::measurement_error::MeasurementError;
use crate::net::interface;
use crate::os_text;
use crate::ring;

/// What has histograms of its own, beside the code paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Nothing.
    #[default]
    None,
    /// The interface of the first stage.
    Interface,
    /// Addresses, ports and protocol.
    Connection,
    /// The control group of the socket.
    Cgroup,
    /// The name of the thread that sent it, or that last read from its socket.
    Command,
}

/// A measurement of paths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathRequest {
    /// The log of packets; `-` is standard output. `None`: histograms only.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub path: Option<PathBuf>,
    /// JSON object of the host, for the head of the log.
    pub environment: String,
    /// JSON object of the options, for the head of the log.
    pub options_text: String,
    /// Names of the stages.
    pub stages: Vec<String>,
    /// Follow the readers of sockets, too.
    pub reads: bool,
    /// Measure interrupts and softirqs, too.
    pub noise: bool,
    /// Capture filter (pcap-filter(7) syntax) from the network layer on.
    pub filter: Option<String>,
    /// Follow every n-th packet.
    pub every: u32,
    /// Only packets that begin at these interfaces.
    pub interfaces: Vec<String>,
    /// Only packets of this network namespace, which is entered for the netfilter hooks.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub netns: Option<PathBuf>,
    /// Only packets of sockets below this control group.
    #[serde(default, deserialize_with = "os_text::optional_path")]
    pub cgroup: Option<PathBuf>,
    /// What has histograms of its own.
    pub group: Group,
    /// Groups that have histograms, at most.
    pub groups_max: u32,
    /// Packets that are followed at once, a power of two.
    pub packets_max: u32,
    /// Bytes of the ring for each CPU, a power of two.
    pub ring_bytes: u64,
    /// Part of the time that the programs are attached, in windows at random times.
    pub share: f64,
    /// Share of one CPU that programs and reader may cost: the programs are attached as long as that allows.
    pub budget: Option<f64>,
    /// Seed of these times.
    pub seed: u64,
    /// Measure the cost of the probes between first and last stage, in windows with and without them.
    pub probe_cost: bool,
}

impl PathRequest {
    /// A request of all stages and groups of programs, with a ring and tables of a size that costs nothing: a trial.
    pub(super) fn of_everything() -> Self {
        Self {
            path: Some("-".into()),
            environment: "{}".into(),
            options_text: "{}".into(),
            stages: (Stage::ALL.iter())
                .map(|stage| stage.name().into())
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
            budget: None,
            seed: 0,
            probe_cost: false,
        }
    }

    /// Refuses what no request may have.
    pub(super) fn check(&self) -> Result<(), MeasurementError> {
        let fail = |option: &'static str, value: String, expected: String| {
            Err(MeasurementError::Option {
                option,
                value,
                expected,
            })
        };
        if self.every == 0 {
            return fail("every", "0".into(), "1 (every packet) or more".into());
        }
        if self.interfaces.len() > PATH_INTERFACES_MAX {
            let count = format!("{} interfaces", self.interfaces.len());
            return fail("interface", count, format!("at most {PATH_INTERFACES_MAX}"));
        }
        if !self.packets_max.is_power_of_two() || !(1 << 10..=1 << 22).contains(&self.packets_max) {
            let value = self.packets_max.to_string();
            return fail(
                "packets-max",
                value,
                "a power of two from 1024 to 4194304".into(),
            );
        }
        if !(self.share > 0.0 && self.share <= 1.0) {
            return fail(
                "share",
                self.share.to_string(),
                "above 0 and at most 1 (100%)".into(),
            );
        }
        if let Some(budget) = self.budget {
            if !(budget > 0.0 && budget <= 1.0) {
                let expected = "a share of one CPU above 0, at most 1, such as 0.01 or 1%";
                return fail("budget", budget.to_string(), expected.into());
            }
            if self.share < 1.0 || self.probe_cost || self.stages.iter().any(|one| one == "xdp") {
                let expected = "no --share, no --probe-cost and no stage xdp beside it";
                return fail("budget", budget.to_string(), expected.into());
            }
        }
        if !(1..=4096).contains(&self.groups_max) {
            return fail(
                "groups-max",
                self.groups_max.to_string(),
                "1 to 4096".into(),
            );
        }
        Ok(())
    }
}

/// Moves the calling thread into the network namespace of a request, if it has one.
pub(super) fn enter(netns: Option<&Path>) -> Result<(), MeasurementError> {
    let Some(path) = netns else { return Ok(()) };
    interface::enter_namespace(path).map_err(|error| MeasurementError::Option {
        option: "netns",
        value: path.display().to_string(),
        expected: format!("a network namespace that may be entered ({error})"),
    })
}
