//! The stations that dispatch at the end of the current event.

use super::scale::Scale;

/// Stations in the order in which they were added, each at most once at a time.
pub(super) struct DispatchList<S: Scale> {
    // of [station]
    is_listed: S::Few<bool>,
    stations: Vec<u32>,
    next: usize,
}

impl<S: Scale> DispatchList<S> {
    pub fn new(stations: usize) -> Self {
        Self {
            is_listed: vec![false; stations].into(),
            stations: Vec::new(),
            next: 0,
        }
    }

    #[inline]
    pub fn add(&mut self, station: u32) {
        if !std::mem::replace(&mut self.is_listed[station as usize], true) {
            self.stations.push(station);
        }
    }

    /// Lists a station that dispatches before all others, until `take` is called.
    #[inline]
    pub fn reserve(&mut self, station: u32) {
        self.is_listed[station as usize] = true;
    }

    /// Removes a station that is about to dispatch.
    #[inline]
    pub fn take(&mut self, station: u32) {
        self.is_listed[station as usize] = false;
    }

    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let Some(&station) = self.stations.get(self.next) else {
            self.stations.clear();
            self.next = 0;
            return None;
        };
        self.next += 1;
        self.take(station);
        Some(station)
    }

    #[inline]
    pub fn has(&self, station: usize) -> bool {
        self.is_listed[station]
    }
}
