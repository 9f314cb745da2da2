//! The gateway's thread: packets from the TUN device to the peer, and from the peer to the TUN device.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use super::cipher::{DirectionKey, OVERHEAD_BYTES, SEQUENCE_BYTES};
use super::ledger::GatewayLedger;
use super::replay::ReplayWindow;
use super::{GatewayError, GatewayRequest, tun};
use crate::clock::thread_cpu_s;
use crate::net::interface::enter_namespace;
use crate::net::socket::{receive_drops, set_receive_buffer};
use crate::session::Control;

/// Packets of one side before the other has its turn.
const BATCH: usize = 32;
/// Longest datagram: the longest IP packet, and what encryption adds.
const BUFFER_BYTES: usize = 65_535 + OVERHEAD_BYTES;
/// Longest time until a request to stop is noticed.
const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
const RECEIVE_BUFFER_BYTES: usize = 32 << 20;
const STAMP_BYTES: usize = 8;

/// What the loop works on; it lives in the thread.
pub(super) struct Worker {
    request: GatewayRequest,
    tun: File,
    socket: UdpSocket,
    outbound: DirectionKey,
    inbound: DirectionKey,
    window: ReplayWindow,
    next_sequence: u64,
    buffer: Vec<u8>,
    stamps: Vec<u64>,
    ledger: GatewayLedger,
}

impl Worker {
    /// Creates the device and the socket, in the request's namespace, which the calling thread enters.
    pub fn prepare(request: GatewayRequest) -> Result<Self, GatewayError> {
        let [local, peer] = request.addresses()?;
        if let Some(path) = &request.namespace {
            enter_namespace(path).map_err(|source| GatewayError::Namespace {
                path: path.display().to_string(),
                source,
            })?;
        }
        if let Some(cpu) = request.cpu {
            crate::cpus::bind_to(cpu).map_err(|source| GatewayError::Cpu { cpu, source })?;
        }
        let key =
            |direction| DirectionKey::derive(request.cipher, request.secret.as_bytes(), direction);
        let (outbound, inbound) = (
            key(u8::from(!request.is_first))?,
            key(u8::from(request.is_first))?,
        );
        let tun = tun::create(&request.tun).map_err(|source| GatewayError::Tun {
            name: request.tun.clone(),
            source,
        })?;
        let fail = |source: io::Error| GatewayError::Socket {
            local: request.local.clone(),
            peer: request.peer.clone(),
            source,
        };
        let socket = UdpSocket::bind(local).map_err(fail)?;
        socket.connect(peer).map_err(fail)?;
        socket.set_nonblocking(true).map_err(fail)?;
        set_receive_buffer(socket.as_fd(), RECEIVE_BUFFER_BYTES)
            .map_err(|error| fail(io::Error::other(error.to_string())))?;
        let stamps = Vec::with_capacity(request.stamp_capacity.min(1 << 26));
        Ok(Self {
            request,
            tun,
            socket,
            outbound,
            inbound,
            window: ReplayWindow::default(),
            next_sequence: 0,
            buffer: vec![0; BUFFER_BYTES],
            stamps,
            ledger: GatewayLedger::default(),
        })
    }

    /// Moves packets until it is asked to stop.
    pub fn run(&mut self, control: &Control<GatewayLedger>) -> Result<(), GatewayError> {
        let mut is_idle = false;
        while !control.should_stop() {
            let outward = self.encrypt_batch();
            let inward = self.decrypt_batch();
            let is_busy = outward? || inward;
            if !is_busy && !is_idle {
                self.count_costs();
            }
            is_idle = !is_busy;
            control.update(|shown| *shown = self.ledger);
            if is_idle {
                let mut waited = [
                    PollFd::new(&self.tun, PollFlags::IN),
                    PollFd::new(&self.socket, PollFlags::IN),
                ];
                // An error is a signal: the flag is read again.
                let _ = poll(&mut waited, Some(&POLL_INTERVAL));
            }
        }
        self.count_costs();
        control.update(|shown| *shown = self.ledger);
        Ok(())
    }

    fn count_costs(&mut self) {
        self.ledger.cpu_ns = (thread_cpu_s() * 1e9) as u64;
        self.ledger.socket_dropped = receive_drops(self.socket.as_fd()).unwrap_or(0);
    }

    /// Sends what the stack has for the peer; true when there may be more.
    fn encrypt_batch(&mut self) -> Result<bool, GatewayError> {
        for _ in 0..BATCH {
            let room = BUFFER_BYTES - OVERHEAD_BYTES + SEQUENCE_BYTES;
            let bytes = match self.tun.read(&mut self.buffer[SEQUENCE_BYTES..room]) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(GatewayError::Read {
                        name: self.request.tun.clone(),
                        source,
                    });
                }
            };
            self.ledger.read += 1;
            self.ledger.read_bytes += bytes as u64;
            self.log_stamp(bytes);
            let Some(length) = self
                .outbound
                .seal(self.next_sequence, &mut self.buffer, bytes)
            else {
                self.ledger.oversized += 1;
                continue;
            };
            // A number is used once, whether its datagram is sent or not.
            self.next_sequence += 1;
            match self.send(length) {
                Ok(()) => self.ledger.sent += 1,
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    self.ledger.oversized += 1;
                }
                Err(_) => self.ledger.send_failed += 1,
            }
        }
        Ok(true)
    }

    /// Sends a datagram. That an earlier one was refused is reported in place of sending, so it is tried again.
    fn send(&mut self, length: usize) -> io::Result<()> {
        match self.socket.send(&self.buffer[..length]) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                self.ledger.refused += 1;
                self.socket.send(&self.buffer[..length]).map(|_| ())
            }
            sent => sent.map(|_| ()),
        }
    }

    fn log_stamp(&mut self, packet_bytes: usize) {
        if self.request.stamp_log.is_none() {
            return;
        }
        let first = SEQUENCE_BYTES + self.request.stamp_offset;
        let stamp = self.buffer[..SEQUENCE_BYTES + packet_bytes].get(first..first + STAMP_BYTES);
        let number = stamp
            .and_then(|stamp| stamp.try_into().ok())
            .map_or(u64::MAX, u64::from_be_bytes);
        self.stamps.push(number);
    }

    /// Writes what the peer has sent to the TUN device; true when there may be more.
    fn decrypt_batch(&mut self) -> bool {
        for _ in 0..BATCH {
            let bytes = match self.socket.recv(&mut self.buffer) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    self.ledger.refused += 1;
                    continue;
                }
                Err(_) => return false,
            };
            self.ledger.received += 1;
            let Some((sequence, packet)) = self.inbound.open(&mut self.buffer[..bytes]) else {
                self.ledger.tampered += 1;
                continue;
            };
            if !self.window.accept(sequence) {
                self.ledger.replayed += 1;
                continue;
            }
            match self.tun.write(packet) {
                Ok(written) => {
                    self.ledger.written += 1;
                    self.ledger.written_bytes += written as u64;
                }
                Err(_) => self.ledger.write_failed += 1,
            }
        }
        true
    }

    /// Writes the log of stamps, if one is kept, and returns the account.
    pub fn finish(self) -> Result<GatewayLedger, GatewayError> {
        if let Some(path) = &self.request.stamp_log {
            write_words(path, &self.stamps).map_err(|source| GatewayError::Write {
                path: path.display().to_string(),
                source,
            })?;
        }
        Ok(self.ledger)
    }
}

fn write_words(path: &Path, words: &[u64]) -> io::Result<()> {
    std::fs::write(path, parshall_core::abi::bytes_of_words(words))
}
