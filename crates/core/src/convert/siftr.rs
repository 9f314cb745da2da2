//! What the versions of SIFTR share: FreeBSD's numbers, and the counts of the last line.

use super::error::ConvertError;
use super::format::Format;
use super::row::{NEW_SYN_RECV, Row, seconds_and_us};
use super::source::Source;
use crate::abi::DIRECTION_IN;
use crate::ledger::HookAccount;
use crate::tcp_log::FlowRow;
use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

/// FreeBSD's initial slow start threshold (`TCP_MAXWIN << TCP_MAX_WINSHIFT`), for Linux's
/// `TCP_INFINITE_SSTHRESH`.
pub const SSTHRESH_INFINITE_BYTES: u32 = 65_535 << 14;
/// FreeBSD's number of `ESTABLISHED`; SIFTR skips packets of connections in lower states.
const ESTABLISHED: u8 = 4;

/// FreeBSD's `t_state` of Linux's `sk_state`.
pub fn state(linux: u8) -> u8 {
    match linux {
        1 => ESTABLISHED,
        2 => 2,
        3 | 12 => 3,
        4 => 6,
        5 => 9,
        6 => 10,
        8 => 5,
        9 => 8,
        10 => 1,
        11 => 7,
        _ => 0,
    }
}

/// The bits of FreeBSD's `t_flags` that follow from the flow table.
pub fn t_flags(flow: &FlowRow) -> u32 {
    const REQ_SCALE_AND_RCVD_SCALE: u32 = 0x60;
    const REQ_TSTMP_AND_RCVD_TSTMP: u32 = 0x180;
    const SACK_PERMIT: u32 = 0x200;
    (u32::from(flow.window_scaling) * REQ_SCALE_AND_RCVD_SCALE)
        | (u32::from(flow.timestamps) * REQ_TSTMP_AND_RCVD_TSTMP)
        | (u32::from(flow.sack) * SACK_PERMIT)
}

/// FreeBSD's `t_flags2`: `TF2_ECN_PERMIT` only.
pub fn t_flags2(flow: &FlowRow) -> u32 {
    if flow.ecn { 0x20 } else { 0 }
}

pub fn direction(row: &Row) -> char {
    if row.direction == DIRECTION_IN {
        'i'
    } else {
        'o'
    }
}

/// A flow identifier: any number but 0.
pub fn flow_id(flow: u32) -> u32 {
    if flow == 0 { u32::MAX } else { flow }
}

/// The kernel's release in the environment of the log: `kernel.release`, or the first `release`.
pub fn release(environment: &str) -> String {
    fn find(value: &serde_json::Value) -> Option<&str> {
        let object = value.as_object()?;
        object
            .get("release")
            .and_then(|release| release.as_str())
            .or_else(|| object.values().find_map(find))
    }
    let parsed = serde_json::from_str::<serde_json::Value>(environment).unwrap_or_default();
    let kernel = parsed
        .get("kernel")
        .and_then(|kernel| kernel.as_str().or_else(|| find(kernel)));
    kernel.or_else(|| find(&parsed)).unwrap_or("0").to_string()
}

/// A flow that the last line lists, with the values of the flow's first line.
pub struct ListedFlow {
    pub mss_bytes: u32,
    pub snd_scale: u8,
    pub rcv_scale: u8,
    pub lines: u64,
}

#[derive(Default)]
pub struct Counts {
    lines: [u64; 2],
    /// Packets of connections before ESTABLISHED, by direction.
    pub below_established: [u64; 2],
    /// Packets of handshakes that have no socket yet, by direction.
    pub without_socket: [u64; 2],
    pub end_ns: i64,
    pub flows: BTreeMap<u32, ListedFlow>,
}

impl Counts {
    pub fn from(start_ns: i64) -> Self {
        Self {
            end_ns: start_ns,
            ..Self::default()
        }
    }

    /// Counts a packet; false when SIFTR would skip it.
    pub fn take(&mut self, row: &Row) -> bool {
        let side = usize::from(row.direction != DIRECTION_IN);
        self.end_ns = self.end_ns.max(row.time_ns);
        if row.state == NEW_SYN_RECV {
            self.without_socket[side] += 1;
            return false;
        }
        if state(row.state) < ESTABLISHED {
            self.below_established[side] += 1;
            return false;
        }
        self.lines[side] += 1;
        let flow = self.flows.entry(row.flow).or_insert(ListedFlow {
            mss_bytes: row.mss_bytes,
            snd_scale: row.snd_scale,
            rcv_scale: row.rcv_scale,
            lines: 0,
        });
        flow.lines += 1;
        true
    }

    pub fn lines(&self) -> u64 {
        self.lines[0] + self.lines[1]
    }

    /// Packets missing from the log, by direction: SIFTR counts them as skipped for lack of memory.
    pub fn lost<R: Read + Seek>(source: &Source<R>) -> [u64; 2] {
        Self::of_packet_hooks(source, |account| account.lost.total())
    }

    fn of_packet_hooks<R: Read + Seek>(
        source: &Source<R>,
        count: impl Fn(&HookAccount) -> u64,
    ) -> [u64; 2] {
        // The ledger has no counts by flow.
        if source.is_selection() {
            return [0; 2];
        }
        ["tcp_ingress", "tcp_egress"].map(|hook| {
            let accounts = source.ledger().hooks.iter();
            accounts
                .filter(|account| account.hook == hook)
                .map(&count)
                .sum()
        })
    }

    /// Packets by direction, as SIFTR counts them: logged, skipped, lost or thinned out.
    pub fn packets<R: Read + Seek>(&self, source: &Source<R>, lost: [u64; 2]) -> [u64; 2] {
        let thinned = Self::of_packet_hooks(source, |account| account.thinned);
        [0, 1].map(|side| {
            self.lines[side]
                + self.below_established[side]
                + self.without_socket[side]
                + lost[side]
                + thinned[side]
        })
    }
}

/// Writes `head` before the first packet, then `line` for each packet that SIFTR logs.
///
/// # Errors
/// [`ConvertError::NoFlow`] if SIFTR would log no packet.
pub fn write_lines<R: Read + Seek, W: Write>(
    source: &mut Source<R>,
    out: &mut W,
    format: Format,
    head: &str,
    mut line: impl FnMut(&mut W, &Row, &FlowRow) -> std::io::Result<()>,
) -> Result<Counts, ConvertError> {
    let mut counts = Counts::from(source.start_ns());
    source.for_each_packet(|row, flow| {
        if !counts.take(row) {
            return Ok(());
        }
        if counts.lines() == 1 {
            out.write_all(head.as_bytes())?;
        }
        Ok(line(out, row, flow)?)
    })?;
    if counts.lines() == 0 {
        return Err(source.no_flow(format));
    }
    Ok(counts)
}

/// The common fields of the first line.
pub fn start_fields<R: Read + Seek>(source: &Source<R>) -> String {
    let (seconds, us) = seconds_and_us(source.start_ns());
    format!("enable_time_secs={seconds}\tenable_time_usecs={us:06}")
}

/// Warns if the last line is too long for a known reader.
pub fn check_footer<R: Read + Seek>(
    source: &mut Source<R>,
    counts: &Counts,
    footer_bytes: usize,
    reader: &str,
    bytes_max: usize,
) {
    if footer_bytes >= bytes_max {
        let flows = counts.flows.len();
        source.warn(format!(
            "the last line lists {flows} flows in {footer_bytes} bytes; {reader} reads fewer than {bytes_max}, \
             log fewer flows at a time"
        ));
    }
}
