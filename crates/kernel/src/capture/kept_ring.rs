//! A ring with its hooks and its subscribers, as the keeper holds it.

use std::io;
use std::sync::atomic::Ordering;

use parshall_core::abi::{CAPTURE_SLACK_BYTES, CAPTURE_SUBSCRIBERS_MAX};
use serde::{Deserialize, Serialize};

use super::CaptureError;
use super::attachment::{Attachment, Direction, HookKind};
use super::dispatcher::{CompiledFilter, Dispatchers};
use super::generation::{Copying, Counts, Generation, Hook, RunTime};
use super::preparation::Preparation;
use super::request::{Directions, HookChoice, RingRequest, Subscription};
use super::ring_maps::RingMaps;
use crate::cpus;
use crate::grace::Grace;
use crate::net::interface::{Interface, InterfaceError};
use crate::net::packet_socket::PacketSocket;
use crate::net::socket::SocketError;
use crate::ring;
use crate::ring::memory::Lane;
use crate::ring::registry::LaneReaders;

/// Counts of one hook for one subscriber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookCount {
    /// Packets that passed the hook.
    pub seen: u64,
    /// Packets that the subscriber's filter matched.
    pub matched: u64,
    /// Of these, packets that did not fit into the ring.
    pub refused: u64,
}

impl HookCount {
    fn add(&mut self, counts: &Counts, bit: usize) {
        self.seen += counts.seen;
        self.matched += counts.matched[bit];
        self.refused += counts.refused[bit];
    }
}

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
}

struct KeptHook {
    hook: Hook,
    attachment: Attachment,
    generation: Generation,
    past_run_time: RunTime,
    /// Its interface was removed, and the attachment with it.
    is_removed: bool,
}

/// Subscribers about to join or to change their filters, each with its bit, and their programs.
pub(super) struct Join {
    bits: Vec<usize>,
    /// They subscribe already, and their counts go on.
    pub(super) is_replacement: bool,
    /// The programs.
    pub(super) preparation: Preparation,
}

/// The ring.
pub struct KeptRing {
    pub(super) name: String,
    pub(super) maps: RingMaps,
    /// The register of the readers, for slow-reader preference. Only the keeper maps it writable.
    pub(super) readers: Vec<LaneReaders>,
    pub(super) lanes: Vec<Lane>,
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
        let mut ring = Self {
            name: name.into(),
            maps,
            readers,
            lanes,
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
        let no_subscribers = Dispatchers::merge(&[], [])?;
        let mut failure = None;
        for kind in kinds {
            let hook = Hook {
                interface: interface.clone(),
                interface_number,
                direction,
                kind,
            };
            let attached = Copying::load(&hook, self.hooks.len(), &self.maps)
                .and_then(|copying| {
                    let dispatcher =
                        copying.load_dispatcher(&hook, self.maps.discard, &no_subscribers)?;
                    Ok(Generation::new(copying, dispatcher))
                })
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

    /// Begins to add subscribers, or to change the filters of those with the bits `replaced`, all or none;
    /// [`KeptRing::join`] completes it when the programs are ready. Nothing changes until then.
    pub(super) fn prepare_join(
        &self,
        subscriptions: &[(Subscription, CompiledFilter)],
        replaced: &[usize],
    ) -> Result<Join, CaptureError> {
        for (subscription, _) in subscriptions {
            subscription.check()?;
        }
        let bits = match replaced {
            [] => self.free_bits(subscriptions.len())?,
            _ => replaced.to_vec(),
        };
        let leaving = replaced.iter().fold(0, |mask, bit| mask | 1 << bit);
        let new = bits.iter().zip(subscriptions);
        let new = new.map(|(bit, (subscription, filter))| (*bit, subscription, filter));
        let preparation = self.prepare(self.wanted(leaving).into_iter().chain(new).collect())?;
        Ok(Join {
            bits,
            is_replacement: !replaced.is_empty(),
            preparation,
        })
    }

    fn free_bits(&self, count: usize) -> Result<Vec<usize>, CaptureError> {
        let bits: Vec<usize> = (0..CAPTURE_SUBSCRIBERS_MAX)
            .filter(|bit| self.subscribers[*bit].is_none() && self.stale_bits >> bit & 1 == 0)
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

    /// Adds the subscribers whose programs were prepared, or changes their filters. Returns the bit of each, and the
    /// position in each lane from which the ring contains the packets of a new one. No packet of the others is lost,
    /// and each packet passes the old or the new filter of a subscriber that changes.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing has changed then.
    pub(super) fn join(
        &mut self,
        join: Join,
        subscriptions: &[(Subscription, CompiledFilter)],
    ) -> Result<(Vec<usize>, Vec<Start>), CaptureError> {
        let Join {
            bits, preparation, ..
        } = join;
        let fresh = preparation.finish()?;
        // The previous subscriber with one of these bits has left, and its last program has ended: its packets
        // lie before these positions.
        let starts = self.starts();
        let before = self.mask();
        let mut replaced = Vec::new();
        for (bit, (subscription, filter)) in bits.iter().zip(subscriptions) {
            let counted = self.subscribers[*bit].as_ref().map(|one| one.past.clone());
            let new = Subscriber {
                subscription: subscription.clone(),
                filter: filter.clone(),
                past: counted.unwrap_or_else(|| vec![HookCount::default(); self.hooks.len()]),
            };
            replaced.push(self.subscribers[*bit].replace(new));
        }
        if let Err(error) = self.replace(fresh, before) {
            for (bit, old) in bits.into_iter().zip(replaced) {
                let failed = self.subscribers[bit].take();
                match (old, failed) {
                    // It goes on as before, with what was counted meanwhile.
                    (Some(old), Some(failed)) => {
                        let past = failed.past;
                        self.subscribers[bit] = Some(Subscriber { past, ..old });
                    }
                    _ => self.stale_bits |= 1 << bit,
                }
            }
            return Err(error);
        }
        Ok((bits, starts))
    }

    /// Begins to remove subscribers; [`KeptRing::leave`] completes it when the programs are ready.
    pub(super) fn prepare_leave(&self, bits: &[usize]) -> Result<Preparation, CaptureError> {
        let leaving = bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        self.prepare(self.wanted(leaving))
    }

    /// Removes subscribers after new programs were prepared. Returns the account of each, and the position in each
    /// lane up to which it may have packets.
    ///
    /// # Errors
    /// [`CaptureError`] when the kernel refused the programs of the remaining subscribers.
    pub(super) fn leave(
        &mut self,
        bits: &[usize],
        preparation: Result<Preparation, CaptureError>,
    ) -> Result<(Vec<Vec<HookCount>>, Vec<u64>), CaptureError> {
        let before = self.mask();
        let fresh = preparation.and_then(Preparation::finish);
        let leaving: Vec<(usize, Option<Subscriber>)> = bits
            .iter()
            .map(|bit| (*bit, self.subscribers[*bit].take()))
            .collect();
        let past = fresh.and_then(|fresh| self.replace(fresh, before));
        if past.is_err() {
            self.stale_bits |= bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        }
        let mut accounts = Vec::new();
        for (bit, subscriber) in leaving {
            let mut account = subscriber.map(|left| left.past).unwrap_or_default();
            for (count, counts) in account.iter_mut().zip(past.as_deref().unwrap_or_default()) {
                count.add(counts, bit);
            }
            accounts.push(account);
        }
        past?;
        Ok((accounts, self.positions()))
    }

    /// Subscriptions of all subscribers except those whose bits are set.
    fn wanted(&self, leaving: u64) -> Vec<(usize, &Subscription, &CompiledFilter)> {
        let present = self.subscribers.iter().enumerate();
        present
            .filter(|(bit, _)| leaving >> bit & 1 == 0)
            .filter_map(|(bit, one)| {
                let one = one.as_ref()?;
                Some((bit, &one.subscription, &one.filter))
            })
            .collect()
    }

    fn prepare(
        &self,
        subscribers: Vec<(usize, &Subscription, &CompiledFilter)>,
    ) -> Result<Preparation, CaptureError> {
        let hooks: Vec<&Hook> = self.hooks().collect();
        Preparation::start(&hooks, &self.maps, &subscribers)
    }

    /// Replaces the programs and adds the counts of the replaced ones to the subscribers `served` that
    /// remain. Returns those counts, by hook.
    fn replace(
        &mut self,
        fresh: Vec<Generation>,
        served: u64,
    ) -> Result<Vec<Counts>, CaptureError> {
        let mut past = Vec::new();
        let mut result = Ok(());
        for (kept, fresh) in self.hooks.iter_mut().zip(fresh) {
            if let Err(error) = kept.attachment.replace(fresh.program()) {
                if !is_removed(&error) {
                    result = Err(CaptureError::load(error));
                    break;
                }
                kept.is_removed = true;
            }
            past.push(std::mem::replace(&mut kept.generation, fresh));
        }
        result = result.and(self.grace.wait());
        // The counts of the replaced programs are added even after a failure: nothing else has them.
        let mut all = Vec::new();
        for (number, generation) in past.iter().enumerate() {
            match generation.counts() {
                Ok(counts) => {
                    self.book(number, &counts, generation.run_time(), served);
                    all.push(counts);
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result?;
        self.stale_bits = 0;
        Ok(all)
    }

    /// Adds the counts of a hook's replaced program to the subscribers `served` that remain.
    fn book(&mut self, hook: usize, counts: &Counts, run_time: RunTime, served: u64) {
        self.hooks[hook].past_run_time.add(run_time);
        for (bit, subscriber) in self.subscribers.iter_mut().enumerate() {
            if let Some(subscriber) = subscriber
                && served >> bit & 1 == 1
            {
                subscriber.past[hook].add(counts, bit);
            }
        }
    }

    /// Counts of a subscriber so far, by hook.
    pub fn account(&self, bit: usize) -> Result<Vec<HookCount>, CaptureError> {
        let Some(subscriber) = &self.subscribers[bit] else {
            return Ok(Vec::new());
        };
        let mut account = subscriber.past.clone();
        for (count, kept) in account.iter_mut().zip(&self.hooks) {
            count.add(&kept.generation.counts()?, bit);
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

    fn mask(&self) -> u64 {
        self.subscribers().fold(0, |mask, (bit, _)| mask | 1 << bit)
    }
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
