//! A ring with its hooks and its subscribers, as the keeper holds it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use parshall_core::abi::{CAPTURE_SLACK_BYTES, CAPTURE_SUBSCRIBERS_MAX};
use serde::{Deserialize, Serialize};

use super::CaptureError;
use super::attachment::{Attachment, Direction, HookKind};
use super::bell::Bells;
use super::dispatcher::{CompiledFilter, Dispatchers};
use super::generation::{CopyProgram, Counts, Generation, Hook, RunTime};
use super::preparation::Preparation;
use super::request::{Directions, HookChoice, RingRequest, Subscription};
use super::ring_maps::RingMaps;
use crate::cpus;
use crate::grace::Grace;
use crate::net::interface::{Interface, InterfaceError};
use crate::net::mapping::Mapping;
use crate::net::packet_socket::PacketSocket;
use crate::net::socket::SocketError;
use crate::ring;
use crate::ring::memory::Lane;
use crate::ring::registry::LaneReaders;

/// Words of [`RingMaps::sets`], as offsets in bytes.
const UNFILTERED: usize = 0;
const WOKEN: usize = 8;

/// Counts of one hook for one subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookCount {
    /// Packets that passed the hook.
    pub seen: u64,
    /// Packets that the subscriber's filter matched.
    pub matched: u64,
    /// Of these, packets that did not fit into the ring.
    pub dropped: u64,
}

impl HookCount {
    fn add(&mut self, counts: &Counts, bit: usize) {
        // What passed before a subscriber came in the middle of a generation was subtracted.
        self.seen = self.seen.wrapping_add(counts.seen);
        self.matched += counts.matched[bit];
        self.dropped += counts.dropped[bit];
    }
}

/// Subscribers that come with the next programs: their bits, and what they want.
pub(super) type Joining<'a> = (&'a [usize], &'a [(Subscription, CompiledFilter)]);

/// Where a subscriber begins to read a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Position in the lane.
    pub position: u64,
    /// Records before it, or a few less while others write.
    pub records: u64,
}

struct Subscriber {
    subscription: Subscription,
    filter: CompiledFilter,
    /// Of replaced generations, by hook.
    past: Vec<HookCount>,
    /// How often the filter was changed.
    changes: u64,
    /// The programs have the filter; otherwise the subscriber gets every packet.
    is_merged: bool,
    /// The filter stands for one that cannot be merged.
    is_unmergeable: bool,
    /// It came with the present programs: those at rest were not for it.
    is_new: bool,
}

impl Subscriber {
    fn new(subscription: Subscription, filter: CompiledFilter, hooks: usize) -> Self {
        Self {
            subscription,
            filter,
            past: vec![HookCount::default(); hooks],
            changes: 0,
            is_merged: false,
            is_unmergeable: false,
            is_new: false,
        }
    }
}

struct KeptHook {
    hook: Hook,
    attachment: Attachment,
    generation: Generation,
    /// Replaced, and some CPU may still run it.
    resting: Option<Generation>,
    past_run_time: RunTime,
    /// Its interface was removed, and the attachment with it.
    is_removed: bool,
}

/// The ring.
pub struct KeptRing {
    pub(super) name: String,
    pub(super) maps: RingMaps,
    /// The register of the readers, for slow-reader preference. Only the keeper maps it writable.
    pub(super) readers: Vec<LaneReaders>,
    pub(super) lanes: Vec<Lane>,
    /// Bits of the subscribers that get every packet, and of those that are woken.
    sets: Mapping,
    bells: Bells,
    hooks: Vec<KeptHook>,
    subscribers: [Option<Subscriber>; CAPTURE_SUBSCRIBERS_MAX],
    /// Free bits that a program may still set, because the kernel refused its successor. No subscriber
    /// gets them until programs were replaced.
    stale_bits: u64,
    grace: Grace,
    promiscuous: Vec<PacketSocket>,
}

impl KeptRing {
    /// Creates the ring and attaches to its hooks, without subscribers.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing is left behind then.
    pub fn create(name: &str, request: &RingRequest) -> Result<Self, CaptureError> {
        request.check()?;
        let interfaces = request
            .interfaces
            .iter()
            .map(|name| Interface::find(name))
            .collect::<Result<Vec<_>, _>>()?;
        let cpus = cpus::with_lanes().map_err(CaptureError::load)?;
        let mut layout = ring::layout_with_slack(
            request.ring_bytes,
            request.preference(),
            CAPTURE_SLACK_BYTES,
        )?;
        // XDP and tcx programs run with bottom halves disabled in every context.
        layout.writers_alone = u64::from(ring::bottom_halves_run_alone());
        let maps = RingMaps::make(&layout, cpus, request.discard)?;
        let lanes = Lane::of_map(&maps.ring, cpus, layout, false)?;
        let readers = LaneReaders::of_map(&maps.readers, cpus)?;
        let page_bytes = rustix::param::page_size();
        let sets = Mapping::of(&maps.sets, page_bytes, 0, true).map_err(CaptureError::load)?;
        let mut ring = Self {
            name: name.into(),
            maps,
            readers,
            lanes,
            sets,
            bells: Bells::new(),
            hooks: Vec::new(),
            subscribers: std::array::from_fn(|_| None),
            stale_bits: 0,
            grace: Grace::new()?,
            promiscuous: Vec::new(),
        };
        for (number, interface) in interfaces.iter().enumerate() {
            for direction in hooked_directions(interface, request.directions) {
                // XDP in place of tcx does not see sent packets: `session` reports it.
                let replaces_tcx = request.hook == HookChoice::Auto
                    && request.directions == Directions::Both
                    && ring
                        .hooks
                        .last()
                        .is_some_and(|kept| kept.hook.kind.is_xdp());
                if direction == Direction::Out && replaces_tcx {
                    continue;
                }
                ring.attach(interface, number as u8, direction, request.hook)?;
            }
            if request.promiscuous {
                ring.promiscuous.push(hold_promiscuous(interface)?);
            }
        }
        Ok(ring)
    }

    /// Attaches by the first of the chosen kinds that works.
    fn attach(
        &mut self,
        interface: &Interface,
        interface_number: u8,
        direction: Direction,
        choice: HookChoice,
    ) -> Result<(), CaptureError> {
        let xdp = [HookKind::XdpNative, HookKind::XdpGeneric];
        let kinds: Vec<HookKind> = match (choice, direction) {
            (HookChoice::Xdp, _) => xdp.into(),
            (HookChoice::Tcx, _) | (HookChoice::Auto, Direction::Out) => vec![HookKind::Tcx],
            (HookChoice::Auto, Direction::In) => [HookKind::Tcx].into_iter().chain(xdp).collect(),
        };
        let no_subscribers = Dispatchers::merge(&[], [interface])?;
        let mut failure = None;
        for kind in kinds {
            let hook = Hook {
                interface: interface.clone(),
                interface_number,
                direction,
                kind,
            };
            let attached = CopyProgram::load(&hook, self.hooks.len(), &self.maps)
                .and_then(|copying| copying.with_filters(&hook, &self.maps, &no_subscribers))
                .and_then(|generation| {
                    Attachment::new(interface, kind, direction, generation.program())
                        .map(|attachment| (generation, attachment))
                });
            match attached {
                Ok((generation, attachment)) => {
                    self.hooks.push(KeptHook {
                        hook,
                        attachment,
                        generation,
                        resting: None,
                        past_run_time: RunTime::default(),
                        is_removed: false,
                    });
                    return Ok(());
                }
                // The error of the last kind names a remedy.
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| CaptureError::load("no hook is possible")))
    }

    /// Adds subscribers that get every packet until their filters are merged. Returns the bit of each, and the position
    /// in each lane from which the ring contains its packets. `reserved` bits are taken.
    ///
    /// # Errors
    /// [`CaptureError::Subscribers`] when the ring is full.
    pub(super) fn add(
        &mut self,
        subscriptions: Vec<(Subscription, CompiledFilter)>,
        reserved: u64,
    ) -> Result<(Vec<usize>, Vec<Start>), CaptureError> {
        let bits = self.free_bits(subscriptions.len(), reserved)?;
        // The previous subscriber with one of these bits has left, and its last program has ended: its packets
        // lie before these positions.
        let starts = self.starts();
        let mut before = Vec::new();
        for kept in &self.hooks {
            let mut seen = kept.generation.counts()?.seen;
            if let Some(resting) = &kept.resting {
                seen += resting.counts()?.seen;
            }
            before.push(seen);
        }
        for (bit, (subscription, filter)) in bits.iter().zip(subscriptions) {
            let mut subscriber = Subscriber::new(subscription, filter, self.hooks.len());
            for (past, seen) in subscriber.past.iter_mut().zip(&before) {
                past.seen = past.seen.wrapping_sub(*seen);
            }
            self.subscribers[*bit] = Some(subscriber);
        }
        self.set(UNFILTERED, mask_of(&bits), true);
        Ok((bits, starts))
    }

    /// Changes the filters of subscribers, which get every packet until these are merged. Their counts go on.
    pub(super) fn change(
        &mut self,
        bits: &[usize],
        subscriptions: Vec<(Subscription, CompiledFilter)>,
    ) {
        for (bit, (subscription, filter)) in bits.iter().zip(subscriptions) {
            if let Some(subscriber) = &mut self.subscribers[*bit] {
                subscriber.subscription = subscription;
                subscriber.filter = filter;
                subscriber.changes += 1;
                (subscriber.is_merged, subscriber.is_unmergeable) = (false, false);
            }
        }
        self.set(UNFILTERED, mask_of(bits), true);
    }

    /// Lets subscribers whose filters cannot be merged have every packet by the programs.
    pub(super) fn give_everything(&mut self, bits: &[usize]) {
        let filter = CompiledFilter::everything(self.hooks.iter().map(|kept| &kept.hook.interface));
        for bit in bits {
            if let Some(subscriber) = &mut self.subscribers[*bit] {
                subscriber.filter = filter.clone();
                subscriber.is_unmergeable = true;
            }
        }
    }

    /// Whether subscribers get every packet by [`KeptRing::give_everything`].
    pub(super) fn have_everything(&self, bits: &[usize]) -> bool {
        let mut subscribers = bits
            .iter()
            .filter_map(|bit| self.subscribers[*bit].as_ref());
        subscribers.all(|one| one.is_unmergeable)
    }

    /// How often the filters of these subscribers were changed.
    pub(super) fn changes(&self, bits: &[usize]) -> Vec<u64> {
        let subscribers = bits.iter().map(|bit| self.subscribers[*bit].as_ref());
        subscribers
            .map(|one| one.map_or(0, |one| one.changes))
            .collect()
    }

    /// The programs have the present filters of these subscribers: they get only the packets that these accept.
    pub(super) fn mark_merged(&mut self, bits: &[usize]) {
        for bit in bits {
            if let Some(subscriber) = &mut self.subscribers[*bit] {
                subscriber.is_merged = true;
            }
        }
        self.set(UNFILTERED, mask_of(bits), false);
    }

    /// Subscribers are about to leave.
    pub(super) fn begin_leave(&self, bits: &[usize]) {
        for set in [UNFILTERED, WOKEN] {
            self.set(set, mask_of(bits), false);
        }
    }

    /// Has the kernel wake a subscriber at each packet; returns what it polls.
    ///
    /// # Errors
    /// When this kernel cannot.
    pub(super) fn wake(&mut self, bit: usize, user: u32) -> Result<OwnedFd, CaptureError> {
        let bell = self.bells.give(&self.maps.bells, bit, user);
        let bell = bell.map_err(CaptureError::load)?;
        self.set(WOKEN, 1 << bit, true);
        Ok(bell)
    }

    fn set(&self, set: usize, mask: u64, is_in: bool) {
        let word = self.sets.word(set);
        match is_in {
            true => word.fetch_or(mask, Ordering::SeqCst),
            false => word.fetch_and(!mask, Ordering::SeqCst),
        };
    }

    /// As many bits that no subscriber has.
    pub(super) fn free_bits(
        &self,
        count: usize,
        reserved: u64,
    ) -> Result<Vec<usize>, CaptureError> {
        let taken = self.stale_bits | reserved;
        let bits: Vec<usize> = (0..CAPTURE_SUBSCRIBERS_MAX)
            .filter(|bit| self.subscribers[*bit].is_none() && taken >> bit & 1 == 0)
            .take(count)
            .collect();
        if bits.len() < count {
            return Err(CaptureError::Subscribers {
                ring: self.name.clone(),
                present: self.subscribers.iter().flatten().count(),
                asked: count,
            });
        }
        Ok(bits)
    }

    /// Begins to make programs without subscribers that are to leave, and with those that are to come or whose filters
    /// are to be merged. Those that get every packet meanwhile are not in the programs. Nothing changes until
    /// [`KeptRing::install`].
    pub(super) fn prepare(
        &self,
        leaving: &[usize],
        merging: &[usize],
        joining: &[Joining<'_>],
    ) -> Result<Preparation, CaptureError> {
        let (leaving, merging) = (mask_of(leaving), mask_of(merging));
        let present = self.subscribers.iter().enumerate();
        let present = present.filter_map(|(bit, one)| Some((bit, one.as_ref()?)));
        let staying = present
            .filter(|(bit, one)| {
                leaving >> bit & 1 == 0 && (one.is_merged || merging >> bit & 1 == 1)
            })
            .map(|(bit, one)| (bit, &one.subscription, &one.filter));
        let joining = joining.iter().flat_map(|(bits, subscriptions)| {
            let new = bits.iter().zip(subscriptions.iter());
            new.map(|(bit, (subscription, filter))| (*bit, subscription, filter))
        });
        let hooks: Vec<&Hook> = self.hooks().collect();
        let subscribers: Vec<_> = staying.chain(joining).collect();
        Preparation::start(&hooks, &self.maps, &self.grace, &subscribers)
    }

    /// Adds subscribers with bits from [`KeptRing::free_bits`], just before the programs that serve them are installed.
    /// Returns the position in each lane from which the ring contains their packets.
    pub(super) fn join(
        &mut self,
        bits: &[usize],
        subscriptions: Vec<(Subscription, CompiledFilter)>,
    ) -> Vec<Start> {
        let starts = self.starts();
        for (bit, (subscription, filter)) in bits.iter().zip(subscriptions) {
            let mut subscriber = Subscriber::new(subscription, filter, self.hooks.len());
            (subscriber.is_merged, subscriber.is_new) = (true, true);
            self.subscribers[*bit] = Some(subscriber);
        }
        starts
    }

    /// Exchanges the programs. No packet of the subscribers is lost. The old programs may run until a grace period has
    /// passed; then comes [`KeptRing::rest`], also after an error.
    ///
    /// # Errors
    /// The kernel refused a program; some hooks have the old ones then.
    pub(super) fn install(&mut self, fresh: Vec<Generation>) -> Result<(), CaptureError> {
        for (kept, fresh) in self.hooks.iter_mut().zip(fresh) {
            if let Err(error) = kept.attachment.replace(fresh.program()) {
                if !is_removed(&error) {
                    return Err(CaptureError::load(error));
                }
                kept.is_removed = true;
            }
            kept.resting = Some(std::mem::replace(&mut kept.generation, fresh));
        }
        Ok(())
    }

    /// Waits until no CPU runs a program that was replaced, where [`Preparation::has_rested`] did not.
    pub(super) fn wait(&self) -> Result<(), CaptureError> {
        self.grace.wait()
    }

    /// Adds the counts of the replaced programs to their subscribers, after they have come to rest.
    ///
    /// # Errors
    /// When the kernel does not give the counts.
    pub(super) fn rest(&mut self) -> Result<(), CaptureError> {
        let mut result = Ok(());
        for (number, kept) in self.hooks.iter_mut().enumerate() {
            let Some(generation) = kept.resting.take() else {
                continue;
            };
            match generation.counts() {
                Ok(counts) => {
                    kept.past_run_time.add(generation.run_time());
                    for (bit, subscriber) in self.subscribers.iter_mut().enumerate() {
                        if let Some(subscriber) = subscriber
                            && !subscriber.is_new
                        {
                            subscriber.past[number].add(&counts, bit);
                        }
                    }
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        for subscriber in self.subscribers.iter_mut().flatten() {
            subscriber.is_new = false;
        }
        result
    }

    /// The programs that may still set bits of subscribers who left are replaced.
    pub(super) fn forget_stale_bits(&mut self) {
        self.stale_bits = 0;
    }

    /// Removes subscribers, whose bits the programs may still set unless they came to rest. Returns the account of each.
    pub(super) fn remove(&mut self, bits: &[usize], is_at_rest: bool) -> Vec<Vec<HookCount>> {
        if !is_at_rest {
            self.stale_bits |= mask_of(bits);
        }
        let leaving = bits.iter().map(|bit| self.subscribers[*bit].take());
        leaving
            .map(|left| left.map(|left| left.past).unwrap_or_default())
            .collect()
    }

    /// Counts of a subscriber so far, by hook.
    pub fn account(&self, bit: usize) -> Result<Vec<HookCount>, CaptureError> {
        let Some(subscriber) = &self.subscribers[bit] else {
            return Ok(Vec::new());
        };
        let mut account = subscriber.past.clone();
        for (count, kept) in account.iter_mut().zip(&self.hooks) {
            count.add(&kept.generation.counts()?, bit);
            if let Some(resting) = &kept.resting
                && !subscriber.is_new
            {
                count.add(&resting.counts()?, bit);
            }
        }
        Ok(account)
    }

    /// Timed runs of the programs, by hook.
    pub fn run_times(&self) -> Vec<RunTime> {
        self.hooks
            .iter()
            .map(|kept| {
                let mut run_time = kept.past_run_time;
                run_time.add(kept.generation.run_time());
                if let Some(resting) = &kept.resting {
                    run_time.add(resting.run_time());
                }
                run_time
            })
            .collect()
    }

    /// The hooks, in the order of their numbers.
    pub fn hooks(&self) -> impl Iterator<Item = &Hook> {
        self.hooks.iter().map(|kept| &kept.hook)
    }

    /// The subscribers, with their bits.
    pub fn subscribers(&self) -> impl Iterator<Item = (usize, &Subscription)> {
        self.subscribers
            .iter()
            .enumerate()
            .filter_map(|(bit, one)| Some((bit, &one.as_ref()?.subscription)))
    }

    /// Marks an interface as removed; true when none is left.
    pub fn mark_removed(&mut self, index: u32) -> bool {
        for kept in &mut self.hooks {
            kept.is_removed |= kept.hook.interface.index == index;
        }
        self.hooks.iter().all(|kept| kept.is_removed)
    }

    /// Changes what is known of an interface that was not removed.
    pub fn update_interface(&mut self, index: u32, change: impl Fn(&mut Interface)) {
        for kept in &mut self.hooks {
            if kept.hook.interface.index == index && !kept.is_removed {
                change(&mut kept.hook.interface);
            }
        }
    }

    /// The interfaces, by number, each with whether it was removed.
    pub fn interfaces(&self) -> Vec<(&Interface, bool)> {
        let mut interfaces = Vec::new();
        for KeptHook {
            hook, is_removed, ..
        } in &self.hooks
        {
            if usize::from(hook.interface_number) == interfaces.len() {
                interfaces.push((&hook.interface, *is_removed));
            }
        }
        interfaces
    }

    /// How far each lane has been reserved.
    pub fn positions(&self) -> Vec<u64> {
        self.lanes
            .iter()
            .map(|lane| lane.reserved_bytes().load(Ordering::Acquire))
            .collect()
    }

    fn starts(&self) -> Vec<Start> {
        let start = |lane: &Lane| {
            // In this order, because a record is numbered after its place was reserved.
            let records = lane.records().load(Ordering::Acquire);
            let position = lane.reserved_bytes().load(Ordering::Acquire);
            Start { position, records }
        };
        self.lanes.iter().map(start).collect()
    }
}

fn mask_of(bits: &[usize]) -> u64 {
    bits.iter().fold(0, |mask, bit| mask | 1 << bit)
}

/// Keeps an interface promiscuous while the socket is open.
fn hold_promiscuous(interface: &Interface) -> Result<PacketSocket, CaptureError> {
    let hold = || {
        let socket = PacketSocket::open(interface.index)?;
        socket.hold_promiscuous()?;
        Ok::<_, SocketError>(socket)
    };
    hold().map_err(|error| {
        let reason = format!(
            "cannot be made promiscuous: {}; run as root, or without --promiscuous",
            error.source
        );
        InterfaceError::new(&interface.name, reason).into()
    })
}

fn is_removed(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOLINK | libc::ENODEV | libc::ENXIO)
    )
}

/// Directions of an interface to capture: on loopback, every sent packet is also received.
fn hooked_directions(interface: &Interface, directions: Directions) -> Vec<Direction> {
    match directions {
        Directions::In => vec![Direction::In],
        Directions::Out => vec![Direction::Out],
        Directions::Both if interface.is_loopback => vec![Direction::In],
        Directions::Both => vec![Direction::In, Direction::Out],
    }
}
