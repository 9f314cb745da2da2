//! The log of TEACUP's Web10G logger: 123 values per line with the names of RFC 4898.
//!
//! Without an interval, it has a line per packet. With one, it has a line per flow at every poll instant with
//! the state at that instant, so that polling and event-driven sampling can be compared on the same flow.

use super::error::ConvertError;
use super::row::NEW_SYN_RECV;
use super::source::Source;
use super::web10g_account::{Account, Settings};
use crate::abi::{EVENT_CLOSE, EVENT_PACKET};
use crate::tcp_log::FlowRow;
use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};

/// Maximum number of lines, some 40 GB: more are a mistake in the interval.
const LINES_MAX: i128 = 100_000_000;

pub fn write<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
    every_ns: Option<u64>,
) -> Result<u64, ConvertError> {
    match every_ns {
        None => each_packet(source, out),
        Some(every_ns) => polled(source, out, every_ns),
    }
}

fn each_packet<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
) -> Result<u64, ConvertError> {
    let settings = Settings::of(&source.reader().header().environment);
    let mut accounts: BTreeMap<u32, Account> = BTreeMap::new();
    let mut lines = 0;
    source.for_each_row(|row, flow| {
        let account = accounts
            .entry(row.flow)
            .or_insert_with(|| Account::new(flow, &settings));
        account.take(row);
        if row.event == EVENT_PACKET && row.state != NEW_SYN_RECV && account.is_established() {
            account.write(out, row.time_ns)?;
            lines += 1;
        }
        Ok(())
    })?;
    Ok(lines)
}

fn polled<R: Read + Seek>(
    source: &mut Source<R>,
    out: &mut impl Write,
    every_ns: u64,
) -> Result<u64, ConvertError> {
    let refused = |reason| ConvertError::Option {
        option: "every",
        format: super::Format::Web10g,
        reason,
    };
    let every_ns =
        i64::try_from(every_ns).map_err(|_| refused("the interval is longer than 292 years"))?;
    if every_ns == 0 {
        return Err(refused("the interval must be longer than 0"));
    }
    refuse_more(polled_ns(&source.flows()), every_ns)?;
    let settings = Settings::of(&source.reader().header().environment);
    let mut accounts: BTreeMap<u32, Account> = BTreeMap::new();
    let mut next_ns: Option<i64> = None;
    let mut lines = 0;
    source.for_each_row(|row, flow| {
        let mut poll_ns = *next_ns.get_or_insert(row.time_ns.saturating_add(every_ns));
        // The flow table of a cut log may not cover all its time.
        refuse_more(i128::from(row.time_ns) - i128::from(poll_ns), every_ns)?;
        while poll_ns < row.time_ns {
            lines += poll(&mut accounts, out, poll_ns)?;
            poll_ns = poll_ns.saturating_add(every_ns);
        }
        next_ns = Some(poll_ns);
        let account = accounts
            .entry(row.flow)
            .or_insert_with(|| Account::new(flow, &settings));
        account.take(row);
        if row.event == EVENT_CLOSE {
            account.closed = true;
        }
        Ok(())
    })?;
    // One more poll has the state after the last event.
    if let Some(poll_ns) = next_ns {
        if lines == 0 {
            source.warn(format!(
                "--every: the log is not longer than {every_ns} ns, so each flow has one line, its last state"
            ));
        }
        lines += poll(&mut accounts, out, poll_ns)?;
    }
    Ok(lines)
}

/// The total polling time of all flows.
fn polled_ns(flows: &BTreeMap<u32, FlowRow>) -> i128 {
    let end_ns = flows.values().map(|flow| flow.last_time_ns).max();
    flows
        .values()
        .map(|flow| {
            let last_ns = match flow.ended {
                true => flow.last_time_ns,
                false => end_ns.unwrap_or(flow.last_time_ns),
            };
            (i128::from(last_ns) - i128::from(flow.first_time_ns)).max(0)
        })
        .sum()
}

/// Refuses an interval that gives too many lines in this time.
fn refuse_more(polled_ns: i128, every_ns: i64) -> Result<(), ConvertError> {
    let lines = polled_ns / i128::from(every_ns);
    if lines > LINES_MAX {
        return Err(ConvertError::TooManyLines {
            every_ns,
            lines,
            lines_max: LINES_MAX,
            least_ns: polled_ns / LINES_MAX + 1,
        });
    }
    Ok(())
}

/// Writes a line for each established flow. A flow that ended has one more line.
fn poll(
    accounts: &mut BTreeMap<u32, Account>,
    out: &mut impl Write,
    poll_ns: i64,
) -> Result<u64, ConvertError> {
    let mut lines = 0;
    for account in accounts.values().filter(|account| account.is_established()) {
        account.write(out, poll_ns)?;
        lines += 1;
    }
    accounts.retain(|_, account| !account.has_ended(poll_ns));
    Ok(lines)
}
