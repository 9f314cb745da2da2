//! Packets blocked after service, which wait for room where they go next.
//!
//! A blocked packet keeps its server, and its place in a queue that frees it at the end of service. The packet that has
//! waited longest leaves first, whichever station it is at. At a shared station only the packet itself waits, without a
//! share. Stations whose servers all have packets that wait for room at another such station are in a deadlock, which
//! ends the run with an error.

use super::network::Network;
use super::queues::Queues;
use super::routes::Route;
use super::scale::Scale;
use super::stations::Completion;

/// A packet whose service has ended.
pub(super) struct BlockedPacket {
    pub job: u32,
    pub queue: usize,
    /// None at a shared station.
    pub server: Option<usize>,
    /// Where the packet goes, then where its clones go.
    pub copies: Vec<CopyRoute>,
}

/// Where a copy of a packet goes.
pub(super) struct CopyRoute {
    pub place: u32,
    pub becomes: Option<u16>,
    /// Whether it waits for room there.
    pub waits: bool,
}

impl BlockedPacket {
    /// Draws where a packet and its clones go; `uniform` draws a number in [0, 1).
    pub fn new(
        completion: Completion,
        routes: &[Route],
        network: &Network,
        mut uniform: impl FnMut() -> f64,
    ) -> Self {
        let Completion { job, queue, server } = completion;
        let copies = routes.iter().map(|route| {
            let place = route.choose(&mut uniform);
            CopyRoute {
                place,
                becomes: route.becomes,
                waits: route.blocks && (place as usize) < network.queues.len(),
            }
        });
        Self {
            job,
            queue,
            server,
            copies: copies.collect(),
        }
    }

    /// Reserves room for all copies that wait for it. Returns false, and reserves nothing, if one queue is full.
    pub fn reserve<S: Scale>(&self, queues: &mut Queues<S>) -> bool {
        let bytes = queues.jobs[self.job].bytes;
        let waiting = || self.copies.iter().filter(|copy| copy.waits);
        for (reserved, copy) in waiting().enumerate() {
            let queue = &mut queues[copy.place as usize];
            if queue.has_room_or_is_awaited(bytes) {
                queue.hold(bytes);
                continue;
            }
            for copy in waiting().take(reserved) {
                queues[copy.place as usize].cancel_hold(bytes);
            }
            return false;
        }
        true
    }
}

/// The names of queues that wait for each other for ever, the first again at the end. `is_held_up`: whether
/// each station makes no progress before one of its blocked packets leaves.
pub(super) fn find_deadlock<S: Scale>(
    network: &Network,
    queues: &Queues<S>,
    blocked: &[BlockedPacket],
    mut is_held_up: Vec<bool>,
) -> Option<Vec<String>> {
    let station_of = |queue: usize| network.queues[queue].station as usize;
    // The first full queue at a station that is held up.
    let full = |packet: &BlockedPacket, is_held_up: &[bool]| {
        let bytes = queues.jobs[packet.job].bytes;
        let waiting = packet.copies.iter().filter(|copy| copy.waits);
        let mut places = waiting.map(|copy| copy.place as usize);
        places.find(|&place| !queues[place].has_room(bytes) && is_held_up[station_of(place)])
    };
    loop {
        let will_leave = blocked.iter().find(|packet| {
            is_held_up[station_of(packet.queue)] && full(packet, &is_held_up).is_none()
        });
        match will_leave {
            Some(packet) => is_held_up[station_of(packet.queue)] = false,
            None => break,
        }
    }
    let at_station = |station: usize| {
        let mut packets = blocked.iter();
        packets.find(|packet| station_of(packet.queue) == station)
    };
    let mut packet = at_station(is_held_up.iter().position(|&held_up| held_up)?)?;
    let mut path: Vec<usize> = Vec::new();
    loop {
        let begin = path.iter().position(|&queue| queue == packet.queue);
        path.push(packet.queue);
        if let Some(begin) = begin {
            let names = path[begin..].iter();
            let names = names.map(|&queue| network.model.queues[queue].name.clone());
            return Some(names.collect());
        }
        packet = at_station(station_of(full(packet, &is_held_up)?))?;
    }
}
