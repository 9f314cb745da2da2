//! The sizes of an engine: how it stores its parts, which calendar it has, and what the compiler may leave out.
//!
//! The parts of a small network are in arrays inside the engine, so that an access needs no pointer and no bounds
//! check, and its calendar compares all event times. docs/measurements/model.md has its effect.

use std::ops::{Index, IndexMut};

use super::calendar::{Calendar, Scan, Tournament};
use super::levels::PolicyPlan;
use super::network::Network;

/// Storage of numbered parts.
pub(super) trait Parts<T>:
    From<Vec<T>> + Index<usize, Output = T> + IndexMut<usize>
{
    /// All parts.
    fn all(&self) -> &[T];
    /// All parts, mutable.
    fn all_mut(&mut self) -> &mut [T];
}

impl<T> Parts<T> for Vec<T> {
    fn all(&self) -> &[T] {
        self
    }

    fn all_mut(&mut self) -> &mut [T] {
        self
    }
}

/// An array of 1 to `N` parts; `N` is a power of two.
pub(super) struct Array<T, const N: usize> {
    // copies of the first part fill the array beyond `len`
    parts: [T; N],
    len: usize,
}

impl<T: Clone, const N: usize> From<Vec<T>> for Array<T, N> {
    fn from(parts: Vec<T>) -> Self {
        const { assert!(N.is_power_of_two()) };
        assert!(parts.len() <= N, "{} parts in an array of {N}", parts.len());
        Self {
            parts: std::array::from_fn(|number| parts.get(number).unwrap_or(&parts[0]).clone()),
            len: parts.len(),
        }
    }
}

impl<T, const N: usize> Index<usize> for Array<T, N> {
    type Output = T;

    #[inline(always)]
    fn index(&self, number: usize) -> &T {
        debug_assert!(number < self.len);
        &self.parts[number % N]
    }
}

impl<T, const N: usize> IndexMut<usize> for Array<T, N> {
    #[inline(always)]
    fn index_mut(&mut self, number: usize) -> &mut T {
        debug_assert!(number < self.len);
        &mut self.parts[number % N]
    }
}

impl<T: Clone, const N: usize> Parts<T> for Array<T, N> {
    fn all(&self) -> &[T] {
        &self.parts[..self.len]
    }

    fn all_mut(&mut self) -> &mut [T] {
        &mut self.parts[..self.len]
    }
}

/// A size of an engine.
pub(super) trait Scale {
    type Calendar: Calendar;
    /// Stations, servers, levels or queues.
    type Few<T: Clone>: Parts<T>;
    /// Pairs of queue and class.
    type Many<T: Clone>: Parts<T>;
    /// Whether its networks are plain.
    const IS_PLAIN: bool;

    /// A condition that never holds in a plain network, which the compiler then leaves out.
    #[inline(always)]
    fn special(condition: bool) -> bool {
        !Self::IS_PLAIN && condition
    }
}

const EVENTS: usize = 8;
const FEW: usize = 16;
const MANY: usize = 64;

/// The size of a network that `is_small`, and `is_plain` if `PLAIN`.
pub(super) struct SmallScale<const PLAIN: bool>;

pub(super) type SmallPlain = SmallScale<true>;
pub(super) type Small = SmallScale<false>;

impl<const PLAIN: bool> Scale for SmallScale<PLAIN> {
    type Calendar = Scan<EVENTS>;
    type Few<T: Clone> = Array<T, FEW>;
    type Many<T: Clone> = Array<T, MANY>;
    const IS_PLAIN: bool = PLAIN;
}

/// Any size.
pub(super) struct Large;

impl Scale for Large {
    type Calendar = Tournament;
    type Few<T: Clone> = Vec<T>;
    type Many<T: Clone> = Vec<T>;
    const IS_PLAIN: bool = false;
}

/// Whether a network fits into the arrays of a small engine.
pub(super) fn is_small(network: &Network) -> bool {
    let queues = network.queues.len();
    let fits = (1..=FEW).contains(&queues) && queues * network.classes <= MANY;
    // Servers have events, and every level has a queue, so these fit too.
    network.events() <= EVENTS && fits
}

/// Whether every station has one server, which serves one packet after the other, first come, first served or in turn
/// without a quantum. No queue blocks after service.
pub(super) fn is_plain(network: &Network) -> bool {
    let stations = || network.stations.iter();
    let round_robin = PolicyPlan::RoundRobin { quantum: u64::MAX };
    let policies = [PolicyPlan::Single, round_robin];
    let mut levels = stations().flat_map(|station| &station.levels);
    let mut queues = network.queues.iter();
    stations().all(|station| station.servers == 1 && !station.kind.is_shared())
        && levels.all(|level| policies.contains(&level.policy))
        && queues.all(|queue| queue.batch_packets == 1 && !queue.blocks_after_service)
}
