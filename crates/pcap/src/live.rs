//! A live capture that reads a ring.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{c_int, c_uchar, timeval};
use parshall_core::abi::{CAPTURE_SNAPLEN_MAX, CaptureRecord, DIRECTION_OUT as RECORD_OUT};
use parshall_core::filter::classic::{ClassicInstruction, Origin};
use parshall_core::trace::LINK_TYPE_RAW;
use parshall_kernel::capture::CaptureError;
use parshall_kernel::capture::client::{KeeperMessage, Left};
use parshall_kernel::capture::collector::Collector;
use parshall_kernel::capture::keeper::message::Event;
use parshall_kernel::capture::kept_ring::HookCount;
use parshall_kernel::capture::tagged::Retag;
use parshall_kernel::clock::{monotonic_ns, realtime_offset_ns};
use parshall_kernel::net::interface::Interface;
use parshall_kernel::net::packet_socket::PacketSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::{
    DIRECTION_IN, DIRECTION_OUT, DLT_DOCSIS, DLT_EN10MB, DLT_RAW, PRECISION_NANO, PacketHeader,
    Pcap, Statistics,
};
use crate::error_text;
use crate::forwards::{bpf_filter, pcap_open_dead_with_tstamp_precision, system_function};
use crate::handles::Options;
use crate::injected::Injected;
use crate::reading::{Counted, Reading, return_constant};
use crate::ready::Ready;
use crate::ring::{self, Place};

/// Younger packets wait: a hook on another CPU may still write an older one.
pub const HOLD_BACK_NS: u64 = 1_000_000;
/// Poll intervals of the ring, with and without packets.
pub const NAP: Duration = Duration::from_millis(2);
pub const NAP_MAX: Duration = Duration::from_millis(10);
/// How often the two clocks are compared.
const CLOCK_INTERVAL_NS: u64 = 500_000_000;
/// How long a keeper may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interface counters of packets that never reached the stack.
const INTERFACE_DROPS: [&str; 2] = ["rx_missed_errors", "rx_fifo_errors"];

/// A capture on a ring.
pub struct Live {
    /// A dead handle of the system's with the same link type: it compiles and writes files.
    pub dead: *mut Pcap,
    pub link_type: c_int,
    pub snaplen: c_int,
    pub is_nonblocking: bool,
    /// `DIRECTION_IN`, `DIRECTION_OUT`, or 0 for both.
    pub direction: c_int,
    /// The packet that `pcap_next` returned last.
    pub kept: Kept,
    /// A packet that was taken from the ring and not yet returned.
    ahead: Option<Kept>,
    /// Bytes of the last one of these that was returned.
    returned: Vec<u8>,
    pub timeout: Option<Duration>,
    precision: c_int,
    interface: Interface,
    place: Place,
    reading: Reading,
    /// The one before: a callback may still use a packet of it.
    previous: Option<Collector>,
    retag: Retag,
    offset_ns: i64,
    offset_until_ns: u64,
    /// A filter that the kernel cannot run; runs here, on all packets.
    program: Option<Interpreted>,
    /// Counts of the earlier subscriptions.
    counted: Counted,
    interface_drops_before: u64,
    /// Keeps the interface promiscuous, and sends.
    socket: Option<PacketSocket>,
    injected: Arc<Injected>,
    ready: Option<Ready>,
}

/// A packet that stays until the next one is read.
pub struct Kept {
    pub header: PacketHeader,
    pub bytes: Vec<u8>,
}

/// Whether a ring can serve this capture; otherwise libpcap of the system does.
pub fn can_serve(options: &Options) -> bool {
    !options.is_monitor && options.protocol == 0 && options.time_stamp_type == 0
}

impl Live {
    /// Joins or creates the ring and subscribes to everything.
    ///
    /// # Errors
    /// Why there is no ring for this capture, in one line.
    pub fn activate(options: &Options, interface: Interface) -> Result<Self, String> {
        let mut place = ring::open(&interface, u64::try_from(options.buffer_bytes).unwrap_or(0))?;
        let snaplen = match options.snaplen {
            given @ 1..=MAX => given,
            _ => MAX,
        };
        let all = [return_constant(snaplen as u32)];
        let injected = Arc::new(Injected::default());
        let reading = Reading::subscribe(&mut place, &interface, snaplen, &all, "", &injected)
            .map_err(|error| error.to_string())?;
        let link_type = dlt(&interface);
        let mut live = Self {
            dead: std::ptr::null_mut(),
            link_type,
            snaplen,
            is_nonblocking: options.is_nonblocking,
            direction: 0,
            kept: Kept {
                header: PacketHeader {
                    time: timeval {
                        tv_sec: 0,
                        tv_usec: 0,
                    },
                    captured_bytes: 0,
                    wire_bytes: 0,
                },
                bytes: Vec::new(),
            },
            ahead: None,
            returned: Vec::new(),
            timeout: u64::try_from(options.timeout_ms)
                .ok()
                .filter(|timeout_ms| *timeout_ms > 0)
                .map(Duration::from_millis),
            precision: options.precision,
            place,
            reading,
            previous: None,
            retag: Retag::default(),
            offset_ns: realtime_offset_ns(),
            offset_until_ns: monotonic_ns() + CLOCK_INTERVAL_NS,
            program: None,
            counted: Counted::default(),
            interface_drops_before: interface_drops(&interface.name),
            socket: None,
            injected,
            ready: None,
            interface,
        };
        live.set_link_type(link_type);
        if options.is_promiscuous && !live.interface.is_loopback {
            // Members may lack the privilege: they capture promiscuously if another reader does.
            if let Ok(socket) = PacketSocket::open(live.interface.index)
                && socket.hold_promiscuous().is_ok()
            {
                live.socket = Some(socket);
            }
        }
        Ok(live)
    }

    /// The next packet, if one is old enough; its bytes stay until the next call.
    pub fn next(&mut self, horizon_ns: u64) -> Option<(PacketHeader, *const c_uchar)> {
        self.previous = None;
        if let Some(ahead) = self.ahead.take() {
            self.returned = ahead.bytes;
            return Some((ahead.header, self.returned.as_ptr()));
        }
        if horizon_ns >= self.offset_until_ns {
            self.offset_ns = realtime_offset_ns();
            self.offset_until_ns = horizon_ns + CLOCK_INTERVAL_NS;
        }
        let is_nano = self.precision == PRECISION_NANO;
        while let Some((record, bytes)) = self.reading.collector.next(horizon_ns) {
            if record.interface != self.place.interface_number {
                continue;
            }
            self.reading.read += 1;
            let time_ns = record.time_ns.saturating_add_signed(self.offset_ns);
            let (wire_bytes, bytes) = self.retag.whole(record, bytes);
            if record.direction == RECORD_OUT
                && self
                    .injected
                    .take(record.time_ns, wire_bytes as usize, bytes)
            {
                self.reading.own += 1;
                continue;
            }
            if !is_in_direction(record, self.direction) {
                continue;
            }
            let captured = bytes.len().min(self.snaplen as usize);
            if let Some(program) = &self.program {
                // SAFETY: libpcap has validated the program; the packet has so many bytes.
                let accepted = unsafe {
                    bpf_filter(
                        program.at(record.direction == RECORD_OUT).as_ptr(),
                        bytes.as_ptr(),
                        wire_bytes,
                        bytes.len() as u32,
                    )
                };
                if accepted == 0 {
                    continue;
                }
            }
            let below_second_ns = (time_ns % 1_000_000_000) as i64;
            let header = PacketHeader {
                time: timeval {
                    tv_sec: (time_ns / 1_000_000_000) as i64,
                    tv_usec: if is_nano {
                        below_second_ns
                    } else {
                        below_second_ns / 1000
                    },
                },
                captured_bytes: captured as u32,
                wire_bytes,
            };
            return Some((header, bytes.as_ptr()));
        }
        None
    }

    /// Waits for packets, at most this long, or until `wake` or the keeper's connection is readable.
    ///
    /// # Errors
    /// What ends the capture, in libpcap's words where it has any.
    pub fn wait(&mut self, most: Duration, wake: &OwnedFd) -> Result<(), String> {
        let timeout = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: i64::from(most.subsec_nanos()),
        };
        let mut waiting = [
            PollFd::new(&self.place.client, PollFlags::IN),
            PollFd::new(wake, PollFlags::IN),
        ];
        let _ = poll(&mut waiting, Some(&timeout));
        if !waiting[0].revents().is_empty() {
            self.receive(Duration::ZERO)?;
        }
        Ok(())
    }

    fn receive(&mut self, most: Duration) -> Result<Option<KeeperMessage>, String> {
        let message = self
            .place
            .client
            .receive(most)
            .map_err(|error| error.to_string())?;
        match message {
            Some(KeeperMessage::Event(Event::Gone { interface, .. }))
                if interface == self.interface.name =>
            {
                Err("The interface disappeared".into())
            }
            message => Ok(message),
        }
    }

    /// Changes the filter. Packets that the old filter accepted are discarded, as with a packet socket.
    ///
    /// # Errors
    /// What ends the capture.
    pub fn set_filter(&mut self, program: &[ClassicInstruction], text: &str) -> Result<(), String> {
        self.leave()?;
        let mut subscribe = |program: &[ClassicInstruction]| {
            let place = &mut self.place;
            Reading::subscribe(
                place,
                &self.interface,
                self.snaplen,
                program,
                text,
                &self.injected,
            )
        };
        let (reading, own) = match subscribe(program) {
            Ok(reading) => (reading, None),
            Err(error @ CaptureError::KeeperGone { .. }) => return Err(error.to_string()),
            // The kernel cannot run it merged with the others: libpcap's interpreter does, as with a packet socket.
            Err(_) => {
                let all = [return_constant(self.snaplen as u32)];
                let reading = subscribe(&all).map_err(|error| error.to_string())?;
                (
                    reading,
                    Some(Interpreted::new(program, self.interface.index)),
                )
            }
        };
        let before = std::mem::replace(&mut self.reading, reading);
        self.previous = Some(before.collector);
        self.ahead = None;
        self.program = own;
        if let Some(ready) = &mut self.ready {
            ready
                .watch(&self.reading.watched)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Ends the subscription, and keeps its counts.
    fn leave(&mut self) -> Result<(), String> {
        self.place
            .client
            .request_leave()
            .map_err(|error| error.to_string())?;
        let left = self.receive_until(|message| match message {
            KeeperMessage::Left(Left { counts, .. }) => Some(counts),
            _ => None,
        })?;
        self.counted = self.counted_with(&left);
        Ok(())
    }

    fn receive_until<T>(
        &mut self,
        mut answer: impl FnMut(KeeperMessage) -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(message) = self.receive(Duration::from_millis(100))?
                && let Some(answer) = answer(message)
            {
                return Ok(answer);
            }
        }
        let name = &self.place.client.ring.name;
        Err(format!(
            "the keeper of ring {name} does not answer; end it, and start again"
        ))
    }

    /// Counts of the earlier subscriptions, and of this one.
    fn counted_with(&self, counts: &[Vec<HookCount>]) -> Counted {
        let counted = self.reading.count(&self.place, counts);
        Counted {
            received: self.counted.received + counted.received,
            dropped: self.counted.dropped + counted.dropped,
        }
    }

    /// Packets captured and lost since the start.
    ///
    /// # Errors
    /// When the keeper has ended.
    pub fn statistics(&mut self) -> Result<Statistics, String> {
        self.place
            .client
            .request_account()
            .map_err(|error| error.to_string())?;
        let counts = self.receive_until(|message| match message {
            KeeperMessage::Account { counts, .. } => Some(counts),
            _ => None,
        })?;
        let counted = self.counted_with(&counts);
        let drops = interface_drops(&self.interface.name);
        Ok(Statistics {
            received: counted.received as u32,
            dropped: counted.dropped as u32,
            interface_dropped: drops.saturating_sub(self.interface_drops_before) as u32,
        })
    }

    /// Link types that `pcap_set_datalink` takes.
    pub fn link_types(&self) -> Vec<c_int> {
        match dlt(&self.interface) {
            // Cable modem termination systems send DOCSIS frames on Ethernet.
            DLT_EN10MB if !self.interface.is_loopback => vec![DLT_EN10MB, DLT_DOCSIS],
            one => vec![one],
        }
    }

    /// Takes one of [`Live::link_types`].
    pub fn set_link_type(&mut self, link_type: c_int) {
        self.close_dead();
        self.link_type = link_type;
        // SAFETY: the function takes numbers only.
        self.dead = unsafe {
            pcap_open_dead_with_tstamp_precision(link_type, self.snaplen, self.precision as u32)
        };
    }

    fn close_dead(&mut self) {
        if !self.dead.is_null() {
            // SAFETY: the handle is open, and closed only here.
            unsafe { system_function!(pcap_close: fn(*mut Pcap))(self.dead) };
        }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn inject(&mut self, frame: &[u8]) -> Result<usize, String> {
        if self.socket.is_none() {
            let socket =
                PacketSocket::open(self.interface.index).map_err(|error| error.to_string())?;
            self.socket = Some(socket);
        }
        let Some(socket) = &self.socket else {
            return Err("no packet socket".into());
        };
        let send = || rustix::net::send(socket.as_fd(), frame, rustix::net::SendFlags::empty());
        self.injected
            .send(frame, send)
            .map_err(|error| format!("send: {}", error_text::of_kernel(error)))
    }

    /// A descriptor that is readable when packets are there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn ready_descriptor(&mut self) -> std::io::Result<c_int> {
        if self.ready.is_none() {
            self.ready = Some(Ready::start(&self.reading.watched)?);
        }
        Ok(self.ready.as_ref().map_or(-1, |ready| ready.as_raw_fd()))
    }

    /// Makes the descriptor unreadable when no packets wait. The bytes of the last packet may change.
    pub fn update_ready(&mut self) {
        if self.ready.is_none() {
            return;
        }
        if let Some(read_until_ns) = self.read_until() {
            self.ready.iter().for_each(|one| one.clear(read_until_ns));
            // Its thread may have seen one between these two.
            if self.read_until().is_none() {
                self.ready.iter().for_each(Ready::set);
            }
        }
    }

    /// The time up to which all packets have been returned; `None` when one waits.
    fn read_until(&mut self) -> Option<u64> {
        let horizon_ns = monotonic_ns().saturating_sub(HOLD_BACK_NS);
        let has_next = if self.ahead.is_some() {
            true
        } else if self.injected.is_empty() {
            self.reading.collector.has_next(horizon_ns)
        } else {
            // The next one may be a frame of its own, which is only skipped.
            self.take_ahead(horizon_ns)
        };
        (!has_next).then_some(horizon_ns)
    }

    fn take_ahead(&mut self, horizon_ns: u64) -> bool {
        self.ahead = self.next(horizon_ns).map(|(header, bytes)| {
            // SAFETY: the packet has so many bytes until the next call.
            let bytes =
                unsafe { std::slice::from_raw_parts(bytes, header.captured_bytes as usize) };
            Kept {
                header,
                bytes: bytes.to_vec(),
            }
        });
        self.ahead.is_some()
    }

    /// After a fork, in the child.
    pub fn restart_in_child(&mut self) {
        if let Some(ready) = &mut self.ready {
            let _ = ready.watch_in_child(&self.reading.watched);
        }
    }

    /// Bytes of the ring for each CPU.
    pub fn ring_bytes(&self) -> c_int {
        c_int::try_from(self.place.client.ring.layout.size_bytes).unwrap_or(c_int::MAX)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Its thread uses the connection, so it ends first.
        self.ready = None;
        self.close_dead();
    }
}

const MAX: c_int = CAPTURE_SNAPLEN_MAX as c_int;

/// A program that libpcap's interpreter runs, which knows nothing of direction and interface: they stand in it as numbers.
struct Interpreted {
    inbound: Vec<ClassicInstruction>,
    outbound: Vec<ClassicInstruction>,
}

impl Interpreted {
    fn new(program: &[ClassicInstruction], interface_index: u32) -> Self {
        let [inbound, outbound] = [false, true].map(|is_outbound| {
            let origin = Origin {
                is_outbound,
                interface_index,
            };
            let known = |one: &ClassicInstruction| one.with_origin(origin);
            program.iter().map(known).collect()
        });
        Self { inbound, outbound }
    }

    fn at(&self, is_outbound: bool) -> &[ClassicInstruction] {
        match is_outbound {
            true => &self.outbound,
            false => &self.inbound,
        }
    }
}

/// The link type as programs see it.
fn dlt(interface: &Interface) -> c_int {
    match interface.link_type {
        LINK_TYPE_RAW => DLT_RAW,
        other => c_int::from(other),
    }
}

fn is_in_direction(record: &CaptureRecord, direction: c_int) -> bool {
    let is_out = record.direction == RECORD_OUT;
    match direction {
        DIRECTION_IN => !is_out,
        DIRECTION_OUT => is_out,
        _ => true,
    }
}

fn interface_drops(name: &str) -> u64 {
    let directory = PathBuf::from("/sys/class/net")
        .join(name)
        .join("statistics");
    INTERFACE_DROPS
        .iter()
        .filter_map(|counter| std::fs::read_to_string(directory.join(counter)).ok())
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .sum()
}
