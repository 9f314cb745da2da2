//! Live XDP frames: the kernel runs our program again and again, and redirects what it made.

use super::Backend;
use super::program::{BATCH_RUNS, Program};
use crate::generate::GenerateError;
use crate::generate::error::failed;
use crate::generate::plan_ring::PlanRing;
use crate::programs::calls::test_run;
use libbpf_sys as sys;
use parshall_core::abi::{
    GENERATE_FAILURE_CONTENT, GENERATE_FAILURE_CUT, GENERATE_FAILURE_INTERFACE,
    GENERATE_FAILURE_PLACE,
};
use std::io::ErrorKind;
use std::os::fd::AsFd;

/// Frames of one batch.
const BATCH: u32 = 64;
/// Whole batches: the program counts its runs in each.
const REPEAT_PACED: i32 = i32::MAX - i32::MAX % BATCH_RUNS as i32;

pub(crate) struct LiveFrames(pub Program);

impl Backend for LiveFrames {
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError> {
        while ring.next() < ring.end() && !ring.is_stopped() {
            let left = ring.end() - ring.next();
            let options = sys::bpf_test_run_opts {
                // When paced, the loop runs until a signal ends it, because a call takes milliseconds to begin.
                repeat: if ring.is_paced() {
                    REPEAT_PACED
                } else {
                    left.min(i32::MAX as u64) as i32
                },
                flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
                batch_size: if ring.is_paced() { BATCH_RUNS } else { BATCH },
                ..Default::default()
            };
            match test_run(self.0.program()?.as_fd(), &self.0.frame, options) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    return Err(failed("run the generator")(error));
                }
                _ => {}
            }
        }
        match ring.failure() {
            0 => Ok(()),
            failure => Err(program_error(failure)),
        }
    }
}

/// The error of a program that ended its run.
fn program_error(failure: u64) -> GenerateError {
    let reason = match failure {
        GENERATE_FAILURE_INTERFACE => {
            "the interface is gone, removed or moved to another network namespace".into()
        }
        GENERATE_FAILURE_PLACE => {
            "the plan has no place for it, or its frame is too short; please report this".into()
        }
        GENERATE_FAILURE_CONTENT => {
            "its flow, or its frame of the trace, is not there, or it is too long; please report this".into()
        }
        GENERATE_FAILURE_CUT => {
            "its frame cannot be cut to its length; --backend af-packet does without".into()
        }
        other => format!("failure {other}; please report this"),
    };
    GenerateError::Kernel {
        what: "send the next packet",
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::plan_ring::Shape;
    use parshall_core::distributions::GapDistribution;
    use parshall_core::sizes::SizeDistribution;
    use parshall_core::workload::{Flows, Packet, Packets, Workload};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    /// Runs a plan of one packet on the loopback, which drops redirected frames; returns the error
    /// and the number of packets sent.
    fn run_of(flow: u32, ip_bytes: u32) -> Option<(String, u64)> {
        let workload = Workload {
            sizes: SizeDistribution::Fixed(64),
            gaps: GapDistribution::none(),
            flows: Flows::between("10.0.0.1-10.0.0.2", "10.1.0.1").unwrap(),
            seed: 1,
            is_stamped: false,
            replay: None,
        };
        let shape = Shape {
            sender: 0,
            senders: 1,
            capacity: 4096,
            is_paced: false,
        };
        let program = match Program::load(&workload, &Packets::of(&workload), 1, shape, None) {
            Err(error) if !rustix::process::geteuid().is_root() => {
                eprintln!("skipped: needs root: {error}");
                return None;
            }
            loaded => loaded.unwrap(),
        };
        let ring = Arc::clone(&program.ring);
        let packet = Packet {
            due_ns: 0,
            flow,
            ip_bytes,
            ip_checksum: 0,
            transport_checksum: 0,
        };
        ring.plan(0, &packet);
        ring.set_end(1);
        ring.set_drawn(1);
        let (sender, receiver) = mpsc::channel();
        let running = std::thread::spawn({
            let ring = Arc::clone(&ring);
            move || sender.send(LiveFrames(program).run(&ring))
        });
        let result = receiver.recv_timeout(Duration::from_secs(10));
        ring.set_stopped(true);
        running.join().unwrap().ok();
        let result = result.expect("the run goes on without end");
        let message = result.map_or_else(|error| error.to_string(), |()| String::new());
        Some((message, ring.next()))
    }

    #[test]
    fn a_packet_that_cannot_be_sent_ends_the_run_and_does_not_count() {
        for (flow, ip_bytes, expected) in [(7, 64, "its flow"), (1, 60_000, "too long")] {
            let Some((message, sent)) = run_of(flow, ip_bytes) else {
                return;
            };
            assert!(message.contains(expected), "{message}");
            assert_eq!(sent, 0);
        }
        assert_eq!(run_of(1, 64), Some((String::new(), 1)));
    }
}
