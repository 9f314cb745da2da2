//! Values of the kernel in the units of the log.

use super::columns::{ENDING_NAMES, NO_VALUE, STATE_NAMES};
use crate::abi::{EVENT_CLOSE, LOSS_STATE_KNOWN, LOSS_STATE_TIMER, TcpStateRecord};

/// The clock and the timer frequency of the kernel that a log is from.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    monotonic_offset_ns: i64,
    hz: u64,
    us_per_jiffy: Option<u32>,
}

impl Scale {
    /// For a clock offset (`CLOCK_REALTIME - CLOCK_MONOTONIC`) and the kernel's `CONFIG_HZ`.
    pub fn new(monotonic_offset_ns: i64, hz: u32) -> Self {
        let hz = u64::from(hz.max(1));
        let us_per_jiffy = 1_000_000u64
            .is_multiple_of(hz)
            .then(|| (1_000_000 / hz) as u32);
        Self {
            monotonic_offset_ns,
            hz,
            us_per_jiffy,
        }
    }

    /// Converts `CLOCK_MONOTONIC` to `CLOCK_REALTIME`.
    pub(super) fn realtime_ns(&self, monotonic_ns: u64) -> i64 {
        (monotonic_ns as i64).wrapping_add(self.monotonic_offset_ns)
    }

    /// Jiffies in microseconds, at most `u32::MAX`.
    pub(super) fn us_of_jiffies(&self, jiffies: u32) -> u32 {
        match self.us_per_jiffy {
            Some(us) => jiffies.saturating_mul(us),
            None => (u64::from(jiffies) * 1_000_000 / self.hz)
                .try_into()
                .unwrap_or(u32::MAX),
        }
    }
}

/// `tcp_compute_delivery_rate` of the kernel, in bytes a second.
#[allow(non_snake_case)]
pub(super) fn delivery_rate_Bps(record: &TcpStateRecord) -> u64 {
    if record.rate_interval_us == 0 {
        return 0;
    }
    let bytes = u64::from(record.rate_delivered) * u64::from(record.mss_bytes);
    match bytes.checked_mul(1_000_000) {
        Some(scaled) => scaled / u64::from(record.rate_interval_us),
        None => (u128::from(bytes) * 1_000_000 / u128::from(record.rate_interval_us))
            .try_into()
            .unwrap_or(u64::MAX),
    }
}

/// An index into names. Invalid indices, which the kernel side never writes, become the last one, so that
/// every index has a name.
pub(super) fn clamped(index: u8, names: &[&str]) -> u8 {
    index.min(names.len() as u8 - 1)
}

/// A number of `sk_state`; 0 for one that Linux does not have.
pub(super) fn known_state(state: u8) -> u8 {
    if usize::from(state) < STATE_NAMES.len() {
        state
    } else {
        0
    }
}

/// The pending timer as an index of [`TIMER_NAMES`](super::columns::TIMER_NAMES).
pub(super) fn timer_of(record: &TcpStateRecord) -> u8 {
    /// By `icsk_pending`: 1 `ICSK_TIME_RETRANS`, 3 `PROBE0`, 5 `LOSS_PROBE`, 6 `REO_TIMEOUT`.
    const INDICES: [u8; 8] = [0, 1, NO_VALUE, 2, NO_VALUE, 3, 4, NO_VALUE];
    if record.loss_state & LOSS_STATE_KNOWN == 0 {
        return NO_VALUE;
    }
    INDICES[usize::from(record.loss_state & LOSS_STATE_TIMER)]
}

/// The duplicate threshold; none where the loss state was not recorded.
pub(super) fn dupthresh_of(record: &TcpStateRecord) -> u8 {
    if record.loss_state & LOSS_STATE_KNOWN == 0 {
        return NO_VALUE;
    }
    record.dupthresh_segments.min(NO_VALUE - 1)
}

/// A flag of the loss state as 0 or 1; none where it was not recorded.
pub(super) fn loss_flag(record: &TcpStateRecord, flag: u8) -> u8 {
    if record.loss_state & LOSS_STATE_KNOWN == 0 {
        return NO_VALUE;
    }
    u8::from(record.loss_state & flag != 0)
}

/// How the connection ended as an index of [`ENDING_NAMES`]; none where it is unknown, and where the record is no close.
pub(super) fn ending_of(record: &TcpStateRecord) -> u8 {
    match record.app_limited >> 4 {
        ending @ 1.. if record.event == EVENT_CLOSE => clamped(ending - 1, ENDING_NAMES),
        _ => NO_VALUE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ENDING_OPEN, EVENT_PACKET};

    #[test]
    fn only_a_close_has_an_ending() {
        let of = |event, ending: u8| {
            ending_of(&TcpStateRecord {
                event,
                app_limited: ending << 4 | 1,
                ..TcpStateRecord::default()
            })
        };
        let name = |index: u8| ENDING_NAMES[usize::from(index)];
        assert_eq!(name(of(EVENT_CLOSE, ENDING_OPEN)), "open");
        assert_eq!(name(of(EVENT_CLOSE, ENDING_OPEN + 1)), "fin");
        assert_eq!(name(of(EVENT_CLOSE, 15)), "unreachable");
        assert_eq!(of(EVENT_CLOSE, 0), NO_VALUE);
        assert_eq!(of(EVENT_PACKET, ENDING_OPEN), NO_VALUE);
    }
}
