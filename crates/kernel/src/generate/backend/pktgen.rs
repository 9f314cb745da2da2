//! The kernel's packet generator, where its module is loaded. Lines written to files in `/proc/net/pktgen` control it.
//! It draws by itself, so that a seed fixes nothing and there is no digest.
//!
//! Lines and answers after `Documentation/networking/pktgen.rst` of the kernel.

use super::{Backend, OwnCounts};
use crate::generate::GenerateError;
use crate::generate::plan_ring::PlanRing;
use parshall_core::sizes::SizeDistribution;
use parshall_core::workload::{Order, Protocol, Workload};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the kernel shows it, in the network namespace of the calling thread.
pub(crate) const DIRECTORY: &str = "/proc/thread-self/net/pktgen";
/// Limit of sizes in a mix, and the sum of their weights.
const MIX_SIZES_MAX: usize = 20;
const MIX_SHARES: f64 = 1000.0;
/// How long its thread may take to stop.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Pktgen {
    directory: PathBuf,
    interface: String,
    thread: usize,
    lines: Vec<String>,
}

fn refused(option: &'static str, found: impl Into<String>, expected: &str) -> GenerateError {
    GenerateError::option(option, found, format!("{expected}, with --backend pktgen"))
}

/// The lines by which a device is configured.
fn lines(workload: &Workload, count: Option<u64>) -> Result<Vec<String>, GenerateError> {
    let flows = &workload.flows;
    if flows.protocol != Protocol::Udp {
        return Err(refused("--protocol", "is not udp", "udp"));
    }
    if workload.is_stamped {
        return Err(refused(
            "--stamp",
            "is given",
            "none: it has a stamp of its own",
        ));
    }
    let delay_ns = match workload.gaps.fixed_gap_ns() {
        Some(gap_ns) => gap_ns.round() as u64,
        None if workload.gaps.is_none() => 0,
        None => {
            return Err(refused(
                "--gap",
                workload.gaps.to_string(),
                "none or equal gaps",
            ));
        }
    };
    // 0 means without end.
    let mut lines = vec![
        format!("count {}", count.unwrap_or(0)),
        format!("delay {delay_ns}"),
        "clone_skb 0".to_string(),
        "flag UDPCSUM".to_string(),
    ];
    lines.extend(size_lines(workload)?);
    let macs = flows.mac_ranges();
    for (name, (first, values)) in ["src_mac", "dst_mac"].iter().zip(macs) {
        let text: Vec<String> = first.iter().map(|byte| format!("{byte:02x}")).collect();
        lines.push(format!("{name} {}", text.join(":")));
        lines.push(format!("{name}_count {values}"));
    }
    for (name, (first, last)) in ["src", "dst"].iter().zip(flows.address_ranges()) {
        match (first, last) {
            (IpAddr::V4(_), _) => {
                lines.push(format!("{name}_min {first}"));
                lines.push(format!("{name}_max {last}"));
            }
            _ if first == last => lines.push(format!("{name}6 {first}")),
            _ if *name == "dst" => {
                lines.push(format!("dst6_min {first}"));
                lines.push(format!("dst6_max {last}"));
            }
            _ => {
                return Err(refused(
                    "--src",
                    format!("{first}-{last}"),
                    "one IPv6 source",
                ));
            }
        }
    }
    for (name, (first, last)) in ["udp_src", "udp_dst"].iter().zip(flows.port_ranges()) {
        // The last port is not sent; equal ends are one port.
        let end = if first == last {
            last
        } else {
            last.saturating_add(1)
        };
        lines.push(format!("{name}_min {first}"));
        lines.push(format!("{name}_max {end}"));
    }
    if flows.order == Order::Random {
        lines.extend(
            ["IPSRC_RND", "IPDST_RND", "UDPSRC_RND", "UDPDST_RND"]
                .map(|flag| format!("flag {flag}")),
        );
    }
    if let Some(vlan) = flows.vlan {
        lines.push(format!("vlan_id {}", vlan.id));
        lines.push(format!("vlan_p {}", vlan.priority));
    }
    Ok(lines)
}

fn size_lines(workload: &Workload) -> Result<Vec<String>, GenerateError> {
    let frame = |size_bytes: u32| workload.frame_bytes(workload.ip_bytes(size_bytes));
    match &workload.sizes {
        SizeDistribution::Fixed(size) => Ok(vec![format!("pkt_size {}", frame(*size))]),
        SizeDistribution::Uniform {
            low_bytes,
            high_bytes,
        } => Ok(vec![
            format!("min_pkt_size {}", frame(*low_bytes)),
            format!("max_pkt_size {}", frame(*high_bytes) + 1),
            "flag TXSIZE_RND".to_string(),
        ]),
        SizeDistribution::TwoStage(distribution) => {
            let sizes: Vec<(usize, f64)> = distribution
                .probabilities()
                .iter()
                .enumerate()
                .filter(|(_, probability)| **probability > 0.0)
                .map(|(size, probability)| (frame(size as u32), *probability))
                .collect();
            if sizes.len() > MIX_SIZES_MAX {
                return Err(refused(
                    "--sizes",
                    format!("of {} different sizes", sizes.len()),
                    "one size, a range, or a mix of at most 20 sizes",
                ));
            }
            let shares: Vec<String> = sizes
                .iter()
                .map(|(size, share)| format!("{size},{:.0}", (share * MIX_SHARES).max(1.0)))
                .collect();
            Ok(vec![format!("imix_weights {}", shares.join(" "))])
        }
    }
}

impl Pktgen {
    /// Adds the interface to a thread of the kernel and configures what it sends.
    pub fn open(
        directory: &Path,
        interface: &str,
        thread: usize,
        workload: &Workload,
        count: Option<u64>,
    ) -> Result<Self, GenerateError> {
        let lines = lines(workload, count)?;
        if !directory.join("pgctrl").exists() {
            return Err(GenerateError::Kernel {
                what: "show /proc/net/pktgen",
                reason: "its packet generator is not there; modprobe pktgen, or take --backend xdp"
                    .into(),
            });
        }
        let generator = Self {
            directory: directory.to_path_buf(),
            interface: interface.to_string(),
            thread,
            lines,
        };
        let keeper = format!("kpktgend_{thread}");
        generator.write(&keeper, "rem_device_all")?;
        generator.write(&keeper, &format!("add_device {interface}"))?;
        for line in &generator.lines {
            generator.write(interface, line)?;
        }
        Ok(generator)
    }

    /// One line is one write; the kernel answers it at once.
    fn write(&self, file: &str, line: &str) -> Result<(), GenerateError> {
        OpenOptions::new()
            .append(true)
            .open(self.directory.join(file))
            .and_then(|mut opened| opened.write_all(format!("{line}\n").as_bytes()))
            .map_err(|error| GenerateError::Kernel {
                what: "take a line for its packet generator",
                reason: format!("{file}: {line:?}: {error}"),
            })
    }

    /// What the device counted.
    fn own_counts(&self) -> Option<OwnCounts> {
        let text = std::fs::read_to_string(self.directory.join(&self.interface)).ok()?;
        let number = |name: &str| {
            let rest = &text[text.find(name)? + name.len()..];
            let digits: String = rest
                .trim_start()
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            digits.parse::<u64>().ok()
        };
        Some(OwnCounts {
            packets: number("pkts-sofar:")?,
            errors: number("errors:").unwrap_or(0),
            elapsed_ns: number("Result: OK:").map(|elapsed_us| elapsed_us * 1000),
        })
    }
}

impl Backend for Pktgen {
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError> {
        // Started again after a stop, it would count from 0.
        if ring.is_stopped() {
            return Ok(());
        }
        // The write returns when all is sent, or when our signal interrupts it, which stops pktgen.
        match self.write("pgctrl", "start") {
            Err(GenerateError::Kernel { reason, .. }) if reason.contains("os error 4)") => {}
            other => other?,
        }
        // After an interrupt this thread returns before the kernel's has stopped: its counts are not final yet.
        let deadline = Instant::now() + STOP_WAIT_MAX;
        while Self::own_counts(self).is_some_and(|counts| counts.elapsed_ns.is_none())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn own_counts(&self) -> Option<OwnCounts> {
        Self::own_counts(self)
    }
}

impl Drop for Pktgen {
    fn drop(&mut self) {
        // The interface is free for others again; a failure could not be reported any more.
        let _ = self.write(&format!("kpktgend_{}", self.thread), "rem_device_all");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::plan_ring::Shape;
    use parshall_core::distributions::GapDistribution;
    use parshall_core::sizes::Parameters;
    use parshall_core::workload::Flows;

    fn workload(sizes: &str, gaps: &str) -> Workload {
        Workload {
            sizes: SizeDistribution::parse(sizes, &Parameters::default()).unwrap(),
            gaps: GapDistribution::parse(gaps, None).unwrap(),
            flows: Flows::between("10.0.0.1-10.0.0.9", "10.1.0.1")
                .unwrap()
                .with_ports("9", "7-8")
                .unwrap(),
            seed: 1,
            is_stamped: false,
            replay: None,
        }
    }

    /// Files as the kernel has them; what is written is appended, and the device's answer stands in front of it.
    fn fake() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("pgctrl", ""),
            ("kpktgend_1", ""),
            (
                "v0",
                "Current:\n     pkts-sofar: 41  errors: 2\n     started: 1us\n\
                 Result: OK: 1811(c1796+d15) usec, 41 (60byte,0frags)\n",
            ),
        ] {
            std::fs::write(directory.path().join(file), text).unwrap();
        }
        directory
    }

    #[test]
    fn pktgen_commands_and_counts_follow_the_kernel() {
        let directory = fake();
        let read = |file: &str| std::fs::read_to_string(directory.path().join(file)).unwrap();
        let ring = PlanRing::anonymous(Shape {
            sender: 0,
            senders: 1,
            capacity: 4096,
            is_paced: false,
        })
        .unwrap();
        let counts = {
            let workload = workload("imix", "fixed:mean=2us");
            let mut pktgen = Pktgen::open(directory.path(), "v0", 1, &workload, Some(41)).unwrap();
            pktgen.run(&ring).unwrap();
            Backend::own_counts(&pktgen).unwrap()
        };
        assert_eq!((counts.packets, counts.errors), (41, 2));
        assert_eq!(counts.elapsed_ns, Some(1_811_000));
        assert_eq!(read("pgctrl"), "start\n");
        assert_eq!(
            read("kpktgend_1"),
            "rem_device_all\nadd_device v0\nrem_device_all\n"
        );
        let device = read("v0");
        let counts: Vec<&str> = device.lines().skip(4).collect();
        assert_eq!(
            counts,
            [
                "count 41",
                "delay 2000",
                "clone_skb 0",
                "flag UDPCSUM",
                "imix_weights 60,584 590,333 1514,83",
                "src_mac 02:00:00:00:00:01",
                "src_mac_count 1",
                "dst_mac 02:00:00:00:00:02",
                "dst_mac_count 1",
                "src_min 10.0.0.1",
                "src_max 10.0.0.9",
                "dst_min 10.1.0.1",
                "dst_max 10.1.0.1",
                "udp_src_min 9",
                "udp_src_max 9",
                "udp_dst_min 7",
                "udp_dst_max 9",
            ]
        );
    }

    #[test]
    fn unsupported_requests_are_refused_in_one_line() {
        let directory = fake();
        let refusal = |sizes: &str, gaps: &str, directory: &Path| {
            Pktgen::open(directory, "v0", 1, &workload(sizes, gaps), None)
                .err()
                .unwrap()
                .to_string()
        };
        let unequal = refusal("64", "poisson:mean=1us", directory.path());
        assert!(
            unequal.contains("equal gaps, with --backend pktgen"),
            "{unequal}"
        );
        assert!(refusal("thesis", "none", directory.path()).contains("at most 20 sizes"));
        let missing = refusal("64", "none", &directory.path().join("nowhere"));
        assert!(missing.contains("modprobe pktgen"), "{missing}");
    }
}
