//! The thread that runs the program.

use super::GenerateError;
use super::backend::af_packet::AfPacket;
use super::backend::af_xdp::AfXdp;
use super::backend::live_frames::LiveFrames;
use super::backend::pktgen::{self, Pktgen};
use super::backend::program::Program;
use super::backend::trace_memory::TraceMemory;
use super::backend::{Backend, BackendKind, OwnCounts};
use super::interface;
use super::link::Counters;
use super::plan_ring::{PlanRing, Shape};
use crate::clock::{monotonic_ns, thread_cpu_s};
use crate::confinement;
use crate::cpus;
use crate::net::interface::InterfaceError;
use parshall_core::workload::{Packets, Workload};
use std::os::unix::thread::JoinHandleExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, mpsc};
use std::thread::JoinHandle;

/// Where and on what the sender works.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub interface: String,
    pub namespace: Option<PathBuf>,
    pub cpu: Option<usize>,
    /// The interface's queue, for those who choose one.
    pub queue: u32,
    pub backend: BackendKind,
    /// Packets in all, for back ends that must know at the start.
    pub count: Option<u64>,
    /// What live frames replay.
    pub trace: Option<Arc<TraceMemory>>,
}

/// What the sender found when it had ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Sent {
    pub backend: BackendKind,
    pub cpu: Option<usize>,
    /// Packets that it sent.
    pub packets: u64,
    /// `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    pub ended_ns: u64,
    pub cpu_s: f64,
    pub before: Option<Counters>,
    pub after: Option<Counters>,
    /// What a back end that draws by itself counted.
    pub own_counts: Option<OwnCounts>,
    /// What ended the run before its end.
    pub error: Option<String>,
}

/// Where the thread is, for the others.
#[derive(Default)]
struct Signs {
    is_halted: AtomicBool,
    has_ended: AtomicBool,
}

/// The thread.
pub(super) struct Sender {
    thread: JoinHandle<Sent>,
    go: mpsc::Sender<()>,
    signs: Arc<Signs>,
    pub ring: Arc<PlanRing>,
    pub cpu: Option<usize>,
}

impl Sender {
    /// Starts the thread: it enters the namespace, opens what sends, and waits for [`Sender::go`].
    pub fn start(
        place: Place,
        workload: Arc<Workload>,
        packets: Arc<Packets>,
        shape: Shape,
    ) -> Result<Self, GenerateError> {
        let (ready, is_ready) = mpsc::channel();
        let (go, may_go) = mpsc::channel();
        let signs = Arc::new(Signs::default());
        let shown = Arc::clone(&signs);
        let cpu = place.cpu;
        let thread = std::thread::Builder::new()
            .name("parshall-gen".into())
            .spawn(move || {
                let prepared = prepare(&place, &workload, &packets, shape);
                let result = match prepared {
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        Sent::default()
                    }
                    Ok(Prepared {
                        mut backend,
                        ring,
                        index,
                    }) => {
                        let before = Counters::read(index);
                        let _ = ready.send(Ok(Arc::clone(&ring)));
                        let sent = send(&place, backend.as_mut(), &ring, &may_go, &shown);
                        Sent {
                            before,
                            after: Counters::read(index),
                            ..sent
                        }
                    }
                };
                shown.has_ended.store(true, Ordering::Release);
                result
            })
            .map_err(|error| GenerateError::Thread {
                reason: format!("{error}; the host has too many threads"),
            })?;
        let ring = is_ready.recv().map_err(|_| GenerateError::Thread {
            reason: "ended before it was ready; please report this".into(),
        })??;
        Ok(Self {
            thread,
            go,
            signs,
            ring,
            cpu,
        })
    }

    /// Begin to send; or, after a halt, send the rest.
    pub fn go(&self) {
        self.signs.is_halted.store(false, Ordering::Release);
        let _ = self.go.send(());
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.signs.has_ended.load(Ordering::Acquire)
    }

    /// Whether the thread was stopped before its end, and can go on.
    pub fn is_halted(&self) -> bool {
        self.signs.is_halted.load(Ordering::Acquire)
    }

    /// Interrupts the kernel's loop of the thread. Once may be too early: call again until it has ended or halted.
    pub fn interrupt(&self) {
        if !self.has_ended() {
            // SAFETY: the thread has not been joined, so that its number is still its own.
            unsafe { libc::pthread_kill(self.thread.as_pthread_t(), wake_signal()) };
        }
    }

    /// What the thread found; waits for its end.
    pub fn join(self) -> Result<Sent, GenerateError> {
        drop(self.go);
        self.thread.join().map_err(|_| GenerateError::Thread {
            reason: "died; please report this".into(),
        })
    }
}

/// The kernel's loop ends when its thread has a signal to handle.
fn wake_signal() -> i32 {
    libc::SIGRTMIN() + 3
}

extern "C" fn wake(_signal: i32) {}

/// Lets only our signals through to this thread.
fn unblock_only_wake_signal() {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // SAFETY: zeros are a valid sigaction without flags and mask; the handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = wake as *const () as usize;
            libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut());
        }
    });
    // SAFETY: the set is filled before it is used, and only this thread's mask changes.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::sigdelset(&raw mut set, wake_signal());
        libc::sigdelset(&raw mut set, confinement::signal());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// All that sending needs.
struct Prepared {
    backend: Box<dyn Backend>,
    ring: Arc<PlanRing>,
    /// The interface's.
    index: u32,
}

fn prepare(
    place: &Place,
    workload: &Workload,
    packets: &Packets,
    shape: Shape,
) -> Result<Prepared, GenerateError> {
    unblock_only_wake_signal();
    interface::enter(place.namespace.as_deref())?;
    let index = interface::index(&place.interface)?;
    let largest = workload.largest_frame_bytes();
    if let Some(most) = place.backend.frame_bytes_max()
        && largest > most
    {
        let found = format!("with frames of {largest} bytes");
        let expected = format!(
            "frames of at most {most} bytes, since each lies in one page; --backend af-packet and af-xdp \
             send longer ones"
        );
        return Err(GenerateError::option("--sizes", found, expected));
    }
    if let Some(cpu) = place.cpu {
        bind_to(cpu)?;
    }
    let ring = || PlanRing::anonymous(shape).map(Arc::new);
    let (backend, ring): (Box<dyn Backend>, _) = match place.backend {
        BackendKind::Xdp => {
            if let Some(false) = interface::takes_xdp_frames(&place.interface)? {
                let reason = "frames redirected to it would vanish: its driver does not send them, or, if it is a \
                              veth, its peer has no NAPI; switch that on with: ethtool -K PEER gro on, or take \
                              --backend af-packet";
                return Err(InterfaceError::new(&place.interface, reason).into());
            }
            let program = Program::load(workload, packets, index, shape, place.trace.as_deref())?;
            let ring = Arc::clone(&program.ring);
            (Box::new(LiveFrames(program)), ring)
        }
        BackendKind::AfPacket => (Box::new(AfPacket::open(workload, packets, index)?), ring()?),
        BackendKind::AfXdp => (
            Box::new(AfXdp::open(
                workload,
                packets,
                (&place.interface, index),
                place.queue,
            )?),
            ring()?,
        ),
        BackendKind::Pktgen => {
            let (directory, thread) = (Path::new(pktgen::DIRECTORY), place.cpu.unwrap_or(0));
            let pktgen = Pktgen::open(directory, &place.interface, thread, workload, place.count)?;
            (Box::new(pktgen), ring()?)
        }
    };
    Ok(Prepared {
        backend,
        ring,
        index,
    })
}

fn bind_to(cpu: usize) -> Result<(), GenerateError> {
    cpus::bind_to(cpu).map_err(|error| {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let online = online.map_or(String::new(), |cpus| format!(", {}", cpus.trim()));
        let expected = format!("a CPU of this host{online} ({error})");
        GenerateError::option("--cpu", cpu.to_string(), expected)
    })
}

/// Sends when it is released. A sender that is stopped before its end halts, and resumes when it is released again.
fn send(
    place: &Place,
    backend: &mut dyn Backend,
    ring: &PlanRing,
    may_go: &mpsc::Receiver<()>,
    signs: &Signs,
) -> Sent {
    if may_go.recv().is_err() {
        // The team was dropped.
        return Sent::default();
    }
    let (began_ns, cpu_before_s) = (monotonic_ns(), thread_cpu_s());
    let mut result = backend.run(ring);
    if result.is_ok() && ring.is_stopped() {
        signs.is_halted.store(true, Ordering::Release);
        if may_go.recv().is_ok() {
            result = backend.run(ring);
        }
    }
    Sent {
        backend: place.backend,
        cpu: place.cpu,
        packets: ring.next(),
        began_ns,
        ended_ns: monotonic_ns(),
        cpu_s: thread_cpu_s() - cpu_before_s,
        before: None,
        after: None,
        own_counts: backend.own_counts(),
        error: result.err().map(|error| error.to_string()),
    }
}
