//! How large a network is, and what the parts of an engine are held in.
//!
//! The parts of a small network stand in arrays inside the engine: where they are is known without a pointer, and a
//! number of one is cut to the size of its array instead of being compared with it. A small network is plain as well,
//! and its engine is compiled without the questions whose answer is known. Both together take a fifth off the
//! instructions of the whole router.

use std::ops::{Index, IndexMut};

use super::calendar::{Calendar, Scan, Tournament};
use super::model::StationKind;
use super::network::{Network, PolicyPlan, UNLIMITED};

/// Parts by their numbers.
pub trait Parts<T>: From<Vec<T>> + Index<usize, Output = T> + IndexMut<usize> {
    /// All of them.
    fn all(&self) -> &[T];
    /// All of them, to be changed.
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

/// Up to `N` parts, a power of two; there must be one.
pub struct Fixed<T, const N: usize> {
    // beyond `used`, copies of the first one, which nobody asks for
    parts: [T; N],
    used: usize,
}

impl<T: Clone, const N: usize> From<Vec<T>> for Fixed<T, N> {
    fn from(parts: Vec<T>) -> Self {
        const { assert!(N.is_power_of_two()) };
        assert!(parts.len() <= N, "{} parts in an array of {N}", parts.len());
        Self {
            parts: std::array::from_fn(|number| parts.get(number).unwrap_or(&parts[0]).clone()),
            used: parts.len(),
        }
    }
}

impl<T, const N: usize> Index<usize> for Fixed<T, N> {
    type Output = T;

    #[inline(always)]
    fn index(&self, number: usize) -> &T {
        debug_assert!(number < self.used);
        &self.parts[number % N]
    }
}

impl<T, const N: usize> IndexMut<usize> for Fixed<T, N> {
    #[inline(always)]
    fn index_mut(&mut self, number: usize) -> &mut T {
        debug_assert!(number < self.used);
        &mut self.parts[number % N]
    }
}

impl<T: Clone, const N: usize> Parts<T> for Fixed<T, N> {
    fn all(&self) -> &[T] {
        &self.parts[..self.used]
    }

    fn all_mut(&mut self) -> &mut [T] {
        &mut self.parts[..self.used]
    }
}

/// What the engine of a network is made of.
pub trait Scale {
    /// Its clocks.
    type Calendar: Calendar;
    /// Its stations, servers, levels and queues.
    type Few<T: Clone>: Parts<T>;
    /// What there is of each queue and class.
    type Many<T: Clone>: Parts<T>;

    /// Whether there is nothing in it that is not plain (see `is_plain`): nothing else is asked for.
    const PLAIN: bool;

    /// Whether a network fits.
    fn fits(network: &Network) -> bool;
}

const FEW: usize = 16;
const MANY: usize = 64;
const CLOCKS: usize = 8;
const MORE_CLOCKS: usize = 24;

/// A router or two.
pub struct Small;

impl Scale for Small {
    type Calendar = Scan<CLOCKS>;
    type Few<T: Clone> = Fixed<T, FEW>;
    type Many<T: Clone> = Fixed<T, MANY>;
    const PLAIN: bool = true;

    fn fits(network: &Network) -> bool {
        let queues = network.queues.len();
        // Every level has a queue.
        network.clocks <= CLOCKS
            && (1..=FEW).contains(&queues)
            && queues * network.classes <= MANY
            && is_plain(network)
    }
}

/// Stations of one server, which serve one packet after the other to its end (unless a smaller priority number
/// interrupts them), in the order of coming or in turn; and one way on for each copy.
fn is_plain(network: &Network) -> bool {
    let stations = network.stations.iter().all(|station| {
        let kinds = [StationKind::NonPreemptive, StationKind::PreemptiveResume];
        station.servers == 1 && kinds.contains(&station.kind)
    });
    let mut policies = network.stations.iter().flat_map(|station| &station.levels);
    let in_turn = PolicyPlan::RoundRobin { quantum: UNLIMITED };
    let policies = policies.all(|level| [PolicyPlan::Single, in_turn].contains(&level.policy));
    let mut queues = network.queues.iter();
    let one_by_one = queues.all(|queue| queue.batch_packets == 1 && !queue.waits);
    let mut ways = network.ways.iter().flat_map(|ways| &ways.all);
    let ways = ways.all(|way| way.choices.is_empty() && way.becomes.is_none());
    stations && policies && one_by_one && ways
}

/// As many clocks as are best looked at one by one.
pub struct Medium;

impl Scale for Medium {
    type Calendar = Scan<MORE_CLOCKS>;
    type Few<T: Clone> = Vec<T>;
    type Many<T: Clone> = Vec<T>;
    const PLAIN: bool = false;

    fn fits(network: &Network) -> bool {
        network.clocks <= MORE_CLOCKS
    }
}

/// Any network.
pub struct Large;

impl Scale for Large {
    type Calendar = Tournament;
    type Few<T: Clone> = Vec<T>;
    type Many<T: Clone> = Vec<T>;
    const PLAIN: bool = false;

    fn fits(_network: &Network) -> bool {
        true
    }
}
