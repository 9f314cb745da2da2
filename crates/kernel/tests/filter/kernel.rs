//! The maps and programs around a merged filter, so that it can run in the kernel without a hook.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use libbpf_sys as sys;
use parshall_core::abi::{CaptureVerdict, plain_bytes, read_plain};
use parshall_core::filter::MergedFilter;
use parshall_core::filter::classic::Origin;
use parshall_core::filter::emit::{Hook, LinkLayer, TagsBeside, Target};
use parshall_kernel::filter::{Maps, load, try_out};

/// What the program behind the filter returns: `XDP_DROP` and `TC_ACT_SHOT`.
fn caught(hook: Hook) -> i32 {
    match hook {
        Hook::Xdp { .. } => 1,
        Hook::SchedCls => 2,
    }
}

/// What the filter returns for a packet that nobody wants: `XDP_PASS` and `TCX_NEXT`.
fn passes(hook: Hook) -> i32 {
    match hook {
        Hook::Xdp { .. } => 2,
        Hook::SchedCls => -1,
    }
}

/// Whether programs can be loaded here; says so when not. Under CI they must.
pub fn available() -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "this test needs root, and under CI it must not be skipped"
    );
    eprintln!("skipped: loading programs into the kernel needs root");
    false
}

/// Whether the kernel takes the outer tag out of a frame that it receives. It drops frames that end within the tag.
pub fn is_tagged(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([0x81, 0x00] | [0x88, 0xa8]))
}

/// The maps of one hook.
pub struct Surroundings {
    hook: Hook,
    verdict: OwnedFd,
    jumps: OwnedFd,
    unfiltered: OwnedFd,
    cpus: usize,
}

/// A loaded filter.
pub struct Loaded<'a> {
    around: &'a Surroundings,
    program: OwnedFd,
}

impl Surroundings {
    pub fn new(hook: Hook) -> Self {
        let verdict_bytes = size_of::<CaptureVerdict>() as u32;
        let around = Self {
            hook,
            verdict: map(sys::BPF_MAP_TYPE_PERCPU_ARRAY, verdict_bytes),
            jumps: map(sys::BPF_MAP_TYPE_PROG_ARRAY, 4),
            unfiltered: map(sys::BPF_MAP_TYPE_ARRAY, 8),
            // SAFETY: the function takes nothing.
            cpus: unsafe { sys::libbpf_num_possible_cpus() } as usize,
        };
        let next = return_only(hook);
        around.set(&around.jumps, &next.as_raw_fd().to_ne_bytes());
        around
    }

    pub fn load(&self, filter: &MergedFilter, link_layer: LinkLayer) -> Loaded<'_> {
        self.load_where(filter, link_layer, TagsBeside::ALL)
    }

    /// As [`Self::load`], for a hook where a packet socket shows only these tags beside the frame.
    pub fn load_where(
        &self,
        filter: &MergedFilter,
        link_layer: LinkLayer,
        tags_beside: TagsBeside,
    ) -> Loaded<'_> {
        let target = Target {
            hook: self.hook,
            link_layer,
            discard: false,
            origin: Origin::default(),
            tags_beside,
        };
        let program = filter.emit(target).unwrap();
        let maps = Maps {
            verdict: self.verdict.as_fd(),
            jumps: self.jumps.as_fd(),
            unfiltered: self.unfiltered.as_fd(),
        };
        let program = load(&program, maps).unwrap_or_else(|error| {
            let log: Vec<&str> = error.log.lines().collect();
            panic!(
                "{error}\n{}",
                log[log.len().saturating_sub(60)..].join("\n")
            )
        });
        Loaded {
            around: self,
            program,
        }
    }

    fn set(&self, map: &OwnedFd, value: &[u8]) {
        let key = 0_u32;
        // SAFETY: key and value outlive the call and have the sizes that the map was made with.
        let status = unsafe {
            sys::bpf_map_update_elem(
                map.as_raw_fd(),
                ptr::from_ref(&key).cast(),
                value.as_ptr().cast(),
                0,
            )
        };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
    }

    /// Has the programs give every frame to these subscribers.
    pub fn set_unfiltered(&self, subscribers: u64) {
        self.set(&self.unfiltered, &subscribers.to_ne_bytes());
    }

    pub fn clear(&self) {
        let nothing = plain_bytes(&CaptureVerdict::default()).repeat(self.cpus);
        self.set(&self.verdict, &nothing);
    }

    /// The verdict of the CPU that ran the one run since [`Self::clear`].
    pub fn verdict(&self) -> CaptureVerdict {
        self.verdict_if_ran().expect("a CPU ran the program")
    }

    /// The same, once a packet arrived.
    pub fn wait_for_verdict(&self) -> CaptureVerdict {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(verdict) = self.verdict_if_ran() {
                return verdict;
            }
            assert!(Instant::now() < end, "no packet reached the hook");
            std::thread::yield_now();
        }
    }

    fn verdict_if_ran(&self) -> Option<CaptureVerdict> {
        let mut values = vec![0_u8; size_of::<CaptureVerdict>() * self.cpus];
        let key = 0_u32;
        // SAFETY: key and values outlive the call; there is room for a value of each CPU.
        let status = unsafe {
            sys::bpf_map_lookup_elem(
                self.verdict.as_raw_fd(),
                ptr::from_ref(&key).cast(),
                values.as_mut_ptr().cast(),
            )
        };
        assert_eq!(status, 0, "{}", io::Error::last_os_error());
        let ran: Vec<CaptureVerdict> = values
            .chunks(size_of::<CaptureVerdict>())
            .map(|bytes| read_plain::<CaptureVerdict>(bytes).unwrap())
            .filter(|verdict| verdict.seen != 0)
            .collect();
        assert!(ran.len() < 2, "one CPU ran the program: {ran:?}");
        let verdict = ran.first().copied()?;
        assert_eq!(verdict.seen, 1, "every frame is seen once");
        Some(verdict)
    }
}

impl Loaded<'_> {
    /// The program's descriptor.
    pub fn program(&self) -> &OwnedFd {
        &self.program
    }

    /// Whether a packet socket shows the outer tag of a frame of a test run beside it: XDP runs before the kernel takes
    /// it out, and a classifier gets the frame as it is given.
    pub fn has_tag_beside(&self, frame: &[u8]) -> bool {
        matches!(self.around.hook, Hook::Xdp { .. }) && is_tagged(frame)
    }

    /// Whether the kernel takes a frame for a test run.
    pub fn takes(&self, frame: &[u8]) -> bool {
        let least = match (self.around.hook, frame.get(12..14)) {
            (Hook::SchedCls, Some([0x08, 0x00])) => 34,
            (Hook::SchedCls, Some([0x86, 0xdd])) => 54,
            _ => 14,
        };
        frame.len() >= least
    }

    /// Subscribers and snapshot length for a frame; `(0, 0)` when nobody wants it.
    pub fn verdict(&self, frame: &[u8]) -> (u64, u32) {
        self.verdict_when_linear(frame, None)
    }

    /// The same, when only so many bytes lie in the first buffer.
    pub fn verdict_when_linear(&self, frame: &[u8], linear_bytes: Option<u32>) -> (u64, u32) {
        self.around.clear();
        let trial = try_out(self.program.as_fd(), frame, linear_bytes, 1)
            .unwrap_or_else(|error| panic!("{} bytes: {error}", frame.len()));
        let verdict = self.around.verdict();
        let hook = self.around.hook;
        if verdict.subscribers == 0 {
            assert_eq!(
                trial.returned as i32,
                passes(hook),
                "an unwanted frame passes"
            );
            return (0, 0);
        }
        assert_eq!(
            trial.returned as i32,
            caught(hook),
            "a wanted frame goes on"
        );
        (verdict.subscribers, verdict.snaplen)
    }
}

fn map(kind: u32, value_bytes: u32) -> OwnedFd {
    // SAFETY: the name outlives the call, and null options are the defaults.
    owned(unsafe {
        sys::bpf_map_create(
            kind,
            c"filter_test".as_ptr(),
            4,
            value_bytes,
            1,
            ptr::null(),
        )
    })
}

/// A program that the filter goes on to, of its own kind.
fn return_only(hook: Hook) -> OwnedFd {
    let instructions = [
        sys::bpf_insn {
            code: 0xb7,
            imm: caught(hook),
            ..Default::default()
        },
        sys::bpf_insn {
            code: 0x95,
            ..Default::default()
        },
    ];
    let (kind, attach_type, flags) = match hook {
        Hook::Xdp { frags } => (
            sys::BPF_PROG_TYPE_XDP,
            sys::BPF_XDP,
            if frags { sys::BPF_F_XDP_HAS_FRAGS } else { 0 },
        ),
        Hook::SchedCls => (sys::BPF_PROG_TYPE_SCHED_CLS, 0, 0),
    };
    let mut options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: attach_type,
        prog_flags: flags,
        ..Default::default()
    };
    // SAFETY: names, instructions and options outlive the call, and the count is theirs.
    owned(unsafe {
        sys::bpf_prog_load(
            kind,
            c"filter_test".as_ptr(),
            c"Dual MIT/GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as _,
            &mut options,
        )
    })
}

fn owned(descriptor: i32) -> OwnedFd {
    assert!(
        descriptor >= 0,
        "{}",
        io::Error::from_raw_os_error(-descriptor)
    );
    // SAFETY: libbpf has just opened the descriptor for us, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}
