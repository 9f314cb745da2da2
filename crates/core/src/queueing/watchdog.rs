//! Ends runs that do not end: too many events or packets, or no progress in time.

use super::error::ModelError;
use super::time::seconds;

/// Events between two checks.
const EVENTS_PER_CHECK: u64 = 1 << 16;

/// Maximum number of events at one time.
const EVENTS_STANDSTILL: u64 = 1 << 24;

/// The limits of a run, and what they are compared with.
pub(super) struct Watchdog {
    pub(super) jobs_max: usize,
    events_max: u64,
    /// Events of the run at the last check, with the warm-up.
    events: u64,
    /// Time of the last check.
    checked_at: u64,
    /// Events since time has stood still.
    events_standing: u64,
}

/// A limit that was exceeded; the engine knows the queue that is the cause.
pub(super) enum Exceeded {
    Jobs,
    Standstill(u64),
    Other(ModelError),
}

impl Watchdog {
    /// A watchdog with these limits.
    pub fn new(jobs_max: usize, events_max: u64) -> Self {
        Self {
            jobs_max,
            events_max,
            events: 0,
            checked_at: 0,
            events_standing: 0,
        }
    }

    /// Number of events after which to check.
    pub fn events_per_check(&self) -> u64 {
        EVENTS_PER_CHECK
    }

    /// Whether there are too many packets in the network.
    #[inline]
    pub fn has_too_many(&self, jobs: usize) -> bool {
        jobs > self.jobs_max
    }

    /// Counts events without a check.
    pub fn count(&mut self, events: u64) {
        self.events += events;
    }

    /// Counts events since the last check and checks all limits.
    pub fn check(&mut self, events: u64, now: u64, jobs: usize) -> Result<(), Exceeded> {
        self.count(events);
        if self.events > self.events_max {
            return Err(Exceeded::Other(ModelError::TooManyEvents {
                events: self.events.to_string(),
                time_s: seconds(now),
                events_max: self.events_max,
            }));
        }
        let stands = now == self.checked_at;
        self.events_standing = if stands {
            self.events_standing + events
        } else {
            0
        };
        self.checked_at = now;
        // Times are saturating sums.
        if now > u64::MAX / 2 {
            return Err(Exceeded::Other(ModelError::EndOfTime));
        }
        if self.has_too_many(jobs) {
            return Err(Exceeded::Jobs);
        }
        if self.events_standing >= EVENTS_STANDSTILL {
            return Err(Exceeded::Standstill(self.events_standing));
        }
        Ok(())
    }
}
