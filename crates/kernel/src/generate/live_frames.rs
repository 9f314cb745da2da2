//! Live XDP frames: the kernel runs our program again and again, and redirects what it made.

use super::GenerateError;
use super::backend::{Backend, failed};
use super::plan_ring::PlanRing;
use super::program::{Program, TURN_RUNS};
use libbpf_sys as sys;

/// Frames of one turn of the kernel's loop.
const BATCH: u32 = 64;
/// Whole turns: the program counts its runs in them.
const REPEAT_PACED: i32 = i32::MAX - i32::MAX % TURN_RUNS as i32;

pub(super) struct LiveFrames(pub Program);

impl Backend for LiveFrames {
    fn run(&mut self, ring: &PlanRing) -> Result<(), GenerateError> {
        let descriptor = self.0.descriptor()?;
        while ring.next() < ring.end() && !ring.is_stopped() {
            let left = ring.end() - ring.next();
            let mut options = sys::bpf_test_run_opts {
                sz: size_of::<sys::bpf_test_run_opts>() as _,
                data_in: self.0.frame.as_ptr().cast(),
                data_size_in: self.0.frame.len() as u32,
                // Paced, the loop runs on until it is called out: a call takes milliseconds to begin.
                repeat: if ring.is_paced() {
                    REPEAT_PACED
                } else {
                    left.min(i32::MAX as u64) as i32
                },
                flags: sys::BPF_F_TEST_XDP_LIVE_FRAMES,
                batch_size: if ring.is_paced() { TURN_RUNS } else { BATCH },
                ..Default::default()
            };
            // SAFETY: the frame outlives the call, its size is its own, and nothing is written back.
            let status = unsafe { sys::bpf_prog_test_run_opts(descriptor, &mut options) };
            if status < 0 && status != -libc::EINTR {
                return Err(failed("run the generator")(
                    std::io::Error::from_raw_os_error(-status),
                ));
            }
        }
        Ok(())
    }
}
