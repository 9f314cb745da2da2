//! A live capture that reads a ring.

use std::cell::Cell;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libc::{c_int, c_uchar};
use parshall_core::abi::CAPTURE_SNAPLEN_MAX;
use parshall_core::trace::LINK_TYPE_RAW;
use parshall_kernel::capture::bell::Bell;
use parshall_kernel::capture::client::AtOnce;
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::keeper::message::RingDescription;
use parshall_kernel::capture::kept_ring::HookCount;
use parshall_kernel::clock::monotonic_ns;
use parshall_kernel::net::interface::{Interface, missed_packets, name_of, namespace_number};
use parshall_kernel::net::packet_socket::PacketSocket;
use parshall_kernel::ring::HOLD_BACK_NS;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::abi::{DLT_DOCSIS, DLT_EN10MB, DLT_RAW, PRECISION_NANO, PacketHeader, Pcap, Statistics};
use crate::cancellation::wait_readable;
use crate::conversation::{Conversation, Unanswered};
use crate::error_text;
use crate::forwards::{pcap_open_dead_with_tstamp_precision, system_function};
use crate::handles::Options;
use crate::injected::Injected;
use crate::lock;
use crate::own_filter::OwnFilter;
use crate::reader::{Progress, Reader};
use crate::ready::{Ready, Watched};
use crate::ring::{self, Place};
use crate::subscription::{Wanted, everything, return_constant, subscription};

/// Poll intervals of the ring, with and without packets.
pub const NAP: Duration = Duration::from_millis(2);
pub const NAP_MAX: Duration = Duration::from_millis(10);

/// A capture on a ring.
///
/// Threads share it. `reader` is the last lock that a thread takes. None is held while the program's callback runs or a
/// thread waits for packets.
pub struct Live {
    pub snaplen: c_int,
    pub timeout: Option<Duration>,
    pub is_nonblocking: AtomicBool,
    /// `DIRECTION_IN`, `DIRECTION_OUT`, or 0 for both.
    pub direction: AtomicI32,
    reader: Mutex<Reader>,
    /// Until when a filter runs here and not only in the hooks, nanoseconds of `CLOCK_MONOTONIC`;
    /// 0: none does.
    filtered_until_ns: AtomicU64,
    link_type: AtomicI32,
    dead: Mutex<Dead>,
    precision: c_int,
    interface: Interface,
    ring: RingDescription,
    interface_number: u8,
    keeper: Conversation,
    /// The last statistics: packets received, dropped, and dropped by the interface.
    counted: [AtomicU32; 3],
    progress: Mutex<Progress>,
    missed_before: u64,
    /// Keeps the interface promiscuous, and sends.
    socket: Mutex<Option<Arc<PacketSocket>>>,
    injected: Arc<Injected>,
    watched: Watched,
    /// Wakes a reader in immediate mode.
    bell: Option<Arc<Bell>>,
    ready: Mutex<Option<Ready>>,
}

/// A handle of the system's libpcap without a capture (`pcap_open_dead`) and with the same link
/// type. It compiles filters and writes files.
struct Dead(*mut Pcap);

// SAFETY: libpcap binds no handle to a thread.
unsafe impl Send for Dead {}

thread_local! {
    /// Whether the thread holds the lock of the reader or is taking it. A signal handler that
    /// interrupts it may call `pcap_stats`.
    static READS: Cell<bool> = const { Cell::new(false) };
}

/// While this value lives, signal handlers of the thread do not wait for the reader.
struct Reading;

impl Reading {
    fn begin() -> Self {
        READS.set(true);
        Self
    }

    fn is_under_way() -> bool {
        READS.get()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        READS.set(false);
    }
}

/// Whether a ring can serve this capture; otherwise the system's libpcap does.
pub fn can_serve(options: &Options) -> bool {
    !options.is_monitor && options.protocol == 0 && options.time_stamp_type == 0
}

impl Live {
    /// Joins or creates the ring and subscribes to everything.
    ///
    /// # Errors
    /// Why there is no ring for this capture, in one line.
    pub fn activate(options: &Options, interface: Interface) -> Result<Self, String> {
        let Place {
            mut client,
            interface_number,
        } = ring::open(&interface, u64::try_from(options.buffer_bytes).unwrap_or(0))?;
        let snaplen = match options.snaplen {
            given @ 1..=MAX => given,
            _ => MAX,
        };
        let all = [return_constant(snaplen as u32)];
        let all = subscription(&client.ring, &interface, snaplen, everything(&all));
        let AtOnce { bit, starts, bell } = all
            .and_then(|all| client.subscribe_at_once(all, options.is_immediate))
            .map_err(|error| error.to_string())?;
        let bell = bell.map(Arc::new);
        let mask = 1 << bit;
        let register = client.register.as_ref();
        let register = register.map(|(readers, slot)| (readers.as_slice(), *slot));
        let collector = Collector::new(&client.lanes, &starts, register, mask, snaplen as u32);
        let injected = Arc::new(Injected::default());
        let is_nano = options.precision == PRECISION_NANO;
        let reader = Reader::new(collector, interface_number, snaplen, is_nano, &injected);
        let (lanes, ring) = (client.lanes.clone(), client.ring.clone());
        let keeper = Conversation::new(client, &interface).map_err(|error| error.to_string())?;
        let link_type = dlt(&interface);
        let live = Self {
            snaplen,
            timeout: u64::try_from(options.timeout_ms)
                .ok()
                .filter(|timeout_ms| *timeout_ms > 0)
                .map(Duration::from_millis),
            is_nonblocking: AtomicBool::new(options.is_nonblocking),
            direction: AtomicI32::new(0),
            reader: Mutex::new(reader),
            filtered_until_ns: AtomicU64::new(0),
            link_type: AtomicI32::new(link_type),
            dead: Mutex::new(Dead(std::ptr::null_mut())),
            precision: options.precision,
            ring,
            interface_number,
            watched: Watched {
                lanes,
                starts,
                mask,
                interface_number,
                keeper: keeper.connection(),
                injected: Arc::clone(&injected),
                bell: bell.clone(),
            },
            bell,
            keeper,
            counted: [const { AtomicU32::new(0) }; 3],
            progress: Mutex::default(),
            missed_before: missed_packets(interface.index).unwrap_or(0),
            // Opened at once: another interface may get the index later. Members of the ring's
            // group may lack the privilege.
            socket: Mutex::new(PacketSocket::open(interface.index).ok().map(Arc::new)),
            injected,
            ready: Mutex::default(),
            interface,
        };
        live.set_link_type(link_type);
        if options.is_promiscuous
            && !live.interface.is_loopback
            && let Some(socket) = &*lock(&live.socket)
        {
            // If this fails, the interface is promiscuous only if another program makes it so.
            let _ = socket.hold_promiscuous();
        }
        Ok(live)
    }

    /// The next packet, if one is old enough; its bytes stay until the next call.
    pub fn next(&self, horizon_ns: u64) -> Option<(PacketHeader, *const c_uchar)> {
        self.reader(|reader| {
            if reader.should_check_filter(horizon_ns) {
                // An error is left to `wait`, which gets it as well.
                let _ = self.keeper.take_messages();
                reader.note_merged(self.keeper.merged());
                self.note_filter(reader);
            }
            reader.next(horizon_ns, self.direction.load(Ordering::Relaxed))
        })
    }

    /// Uses the reader, for one thread at a time.
    pub fn reader<T>(&self, act: impl FnOnce(&mut Reader) -> T) -> T {
        let _reading = Reading::begin();
        act(&mut lock(&self.reader))
    }

    fn note_filter(&self, reader: &Reader) {
        self.filtered_until_ns
            .store(reader.filtered_until_ns(), Ordering::Relaxed);
    }

    /// Waits for packets, at most `wait_max`, or until `wake` or the keeper's connection is
    /// readable. The caller has nothing to drop: the thread may be cancelled here.
    ///
    /// # Errors
    /// What ends the capture, in libpcap's words if libpcap has this error.
    pub fn wait(&self, wait_max: Duration, wake: &OwnedFd) -> Result<(), String> {
        let bell = self.bell.as_ref().map_or(-1, |bell| bell.as_raw_fd());
        let waiting = [self.keeper.descriptor(), wake.as_raw_fd(), bell];
        let [has_message, is_woken, _] = wait_readable(waiting, wait_max);
        if is_woken {
            // Cleared before the caller checks for `pcap_breakloop`, so that no later call is
            // missed.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        match has_message {
            true => self.keeper.take_messages(),
            false => self.keeper.check(),
        }
    }

    /// The time up to which packets may be read now, nanoseconds of `CLOCK_MONOTONIC`. In immediate
    /// mode packets are read as soon as the hooks write them, so packets of two CPUs may be out of
    /// order.
    pub fn horizon_ns(&self) -> u64 {
        let hold_back_ns = match self.bell {
            Some(_) => 0,
            None => HOLD_BACK_NS,
        };
        monotonic_ns().saturating_sub(hold_back_ns)
    }

    /// In immediate mode, makes the next packet end a wait. Returns false without a bell.
    pub fn rearm_bell(&self) -> bool {
        match &self.bell {
            Some(bell) => bell.rearm(),
            None => return false,
        }
        true
    }

    /// Changes the filter. From the keeper's answer on, the hooks let every packet through until
    /// they have the new filter. Meanwhile the filter runs here. Unread packets that the old filter
    /// accepted must pass the new one, too, as with a packet socket.
    ///
    /// # Errors
    /// What is wrong with the program, or what ends the capture.
    pub fn set_filter(&self, program: Wanted<'_>) -> Result<(), String> {
        let own =
            OwnFilter::new(program, self.interface.index).map_err(|error| error.to_string())?;
        let merged = subscription(&self.ring, &self.interface, self.snaplen, program);
        let (new, is_mergeable) = match merged {
            Ok(new) => (new, true),
            // A filter that cannot be merged runs here for good.
            Err(_) => {
                // The filter may read bytes beyond the snapshot length.
                let all = [return_constant(CAPTURE_SNAPLEN_MAX)];
                let all = Wanted {
                    text: program.text,
                    ..everything(&all)
                };
                let all = subscription(&self.ring, &self.interface, MAX, all);
                (all.map_err(|error| error.to_string())?, false)
            }
        };
        let from_ns = monotonic_ns();
        let set = |change| {
            let change = if is_mergeable { change } else { 0 };
            self.reader(|reader| {
                reader.set_filter(own, from_ns, change);
                self.note_filter(reader);
            });
        };
        let replaced = self.keeper.replace(new, set);
        replaced.map_err(|unanswered| match unanswered {
            Unanswered::Ended(reason) | Unanswered::Refused(reason) => reason,
            Unanswered::Interrupted => {
                "a signal handler that interrupted libpcap cannot set a filter".into()
            }
        })
    }

    /// Packets captured and lost since the start.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn statistics(&self) -> Result<Statistics, String> {
        // A signal handler that interrupted this thread while it reads must not wait for other
        // threads: they may wait for the reader, whose lock this thread holds. Nor can it read
        // packets that a filter here has yet to judge, so then it gets the last statistics.
        let is_reading = Reading::is_under_way();
        let is_unknown =
            is_reading && self.filtered_until_ns.load(Ordering::Relaxed) >= monotonic_ns();
        let counted = match is_unknown {
            true => Err(Unanswered::Interrupted),
            false => self.keeper.account(!is_reading, |counts| {
                let counted = self.count(&counts);
                let missed = match missed_packets(self.interface.index) {
                    Some(missed) if self.is_here() => {
                        missed.saturating_sub(self.missed_before) as u32
                    }
                    _ => self.counted[2].load(Ordering::Relaxed),
                };
                [counted[0] as u32, counted[1] as u32, missed]
            }),
        };
        let [received, dropped, interface_dropped] = match counted {
            Ok(counted) => {
                for (last, counted) in self.counted.iter().zip(counted) {
                    last.store(counted, Ordering::Relaxed);
                }
                counted
            }
            Err(Unanswered::Interrupted) => self
                .counted
                .each_ref()
                .map(|last| last.load(Ordering::Relaxed)),
            Err(Unanswered::Ended(reason) | Unanswered::Refused(reason)) => return Err(reason),
        };
        Ok(Statistics {
            received,
            dropped,
            interface_dropped,
        })
    }

    /// Packets that the filter accepted, and how many of them were lost, from the kernel's counts.
    fn count(&self, counts: &[Vec<HookCount>]) -> [u64; 2] {
        let hooks = self.ring.hooks.iter();
        let (mut matched, mut dropped) = (0, 0);
        for (hook, count) in hooks.zip(counts.first().into_iter().flatten()) {
            if hook.interface_number == self.interface_number {
                matched += count.matched;
                dropped += count.dropped;
            }
        }
        self.progress().received_and_dropped(matched, dropped)
    }

    /// Whether the interface exists in the network namespace of the calling thread.
    fn is_here(&self) -> bool {
        !self.keeper.is_removed() && self.ring.namespace == namespace_number()
    }

    /// How far the ring is read. In a signal handler that interrupted the reader, how far it was
    /// read at the last call.
    fn progress(&self) -> Progress {
        let mut last = lock(&self.progress);
        if !Reading::is_under_way() {
            let direction = self.direction.load(Ordering::Relaxed);
            *last = self.reader(|reader| reader.progress(direction));
        }
        *last
    }

    /// The link type of its packets.
    pub fn link_type(&self) -> c_int {
        self.link_type.load(Ordering::Relaxed)
    }

    /// The interface's present name.
    pub fn device(&self) -> Option<String> {
        name_of(self.interface.index).ok()
    }

    /// Link types that `pcap_set_datalink` takes.
    pub fn link_types(&self) -> Vec<c_int> {
        match dlt(&self.interface) {
            // Cable modem termination systems send DOCSIS frames on Ethernet.
            DLT_EN10MB if !self.interface.is_loopback => vec![DLT_EN10MB, DLT_DOCSIS],
            one => vec![one],
        }
    }

    /// Sets the link type to one of [`Live::link_types`].
    pub fn set_link_type(&self, link_type: c_int) {
        let mut dead = lock(&self.dead);
        self.link_type.store(link_type, Ordering::Relaxed);
        // SAFETY: the function takes numbers only.
        *dead = Dead(unsafe {
            pcap_open_dead_with_tstamp_precision(link_type, self.snaplen, self.precision as u32)
        });
    }

    /// Uses the dead handle, which one thread does at a time.
    pub fn with_dead<T>(&self, act: impl FnOnce(*mut Pcap) -> T) -> T {
        act(lock(&self.dead).0)
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn inject(&self, frame: &[u8]) -> Result<usize, String> {
        let socket = self.socket()?;
        // As in libpcap, where non-blocking mode is a mode of the socket.
        let flags = match self.is_nonblocking.load(Ordering::Relaxed) {
            true => SendFlags::DONTWAIT,
            false => SendFlags::empty(),
        };
        let send = || rustix::net::send(socket.as_fd(), frame, flags);
        self.injected
            .send(frame, send)
            .map_err(|error| format!("send: {}", error_text::of_kernel(error)))
    }

    fn socket(&self) -> Result<Arc<PacketSocket>, String> {
        let mut socket = lock(&self.socket);
        if let Some(socket) = &*socket {
            return Ok(Arc::clone(socket));
        }
        if !self.is_here() {
            return Err(format!("send: {}", error_text::of_kernel(Errno::NXIO)));
        }
        let opened = PacketSocket::open(self.interface.index).map_err(|error| error.to_string())?;
        Ok(Arc::clone(socket.insert(Arc::new(opened))))
    }

    /// A descriptor that is readable when packets are there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn ready_descriptor(&self) -> std::io::Result<c_int> {
        let mut ready = lock(&self.ready);
        let ready = match &mut *ready {
            Some(ready) => ready,
            none => none.insert(Ready::start(&self.watched)?),
        };
        Ok(ready.as_raw_fd())
    }

    /// Makes the descriptor not readable when no packets wait. May overwrite the bytes of the last
    /// packet.
    pub fn update_ready(&self) {
        let ready = lock(&self.ready);
        if let Some(ready) = &*ready
            && let Some(read_until_ns) = self.read_until()
        {
            ready.clear(read_until_ns);
            // `clear` also hides a packet that came after the check above.
            if self.read_until().is_none() {
                ready.set();
            }
        }
    }

    /// The time up to which all packets have been returned; `None` when one waits.
    fn read_until(&self) -> Option<u64> {
        let horizon_ns = self.horizon_ns();
        let direction = self.direction.load(Ordering::Relaxed);
        self.reader(|reader| {
            let has_next = reader.has_next(horizon_ns, direction);
            (!has_next).then(|| match self.bell {
                // A hook may still write a packet that is older than now.
                Some(_) => reader.newest_ns(),
                None => horizon_ns,
            })
        })
    }

    /// Restarts the thread of `ready` in the child of a fork. The lock is only tried: if another
    /// thread held it at the fork, nothing in the child releases it.
    pub fn restart_in_child(&self) {
        if let Ok(mut ready) = self.ready.try_lock()
            && let Some(ready) = &mut *ready
        {
            let _ = ready.watch_in_child(&self.watched);
        }
    }

    /// Bytes of the ring for each CPU.
    pub fn ring_bytes(&self) -> c_int {
        c_int::try_from(self.ring.layout.size_bytes).unwrap_or(c_int::MAX)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // The thread of `ready` uses the keeper's connection, so the thread ends first.
        *lock(&self.ready) = None;
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the handle is open, and closed only here.
            unsafe { system_function!(pcap_close: fn(*mut Pcap))(self.0) };
        }
    }
}

const MAX: c_int = CAPTURE_SNAPLEN_MAX as c_int;

/// The link type as programs see it.
fn dlt(interface: &Interface) -> c_int {
    match interface.link_type {
        LINK_TYPE_RAW => DLT_RAW,
        other => c_int::from(other),
    }
}
