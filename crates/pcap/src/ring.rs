//! Which ring a capture reads: one that runs at its interface, or a new one.

use parshall_kernel::capture::CaptureError;
use parshall_kernel::capture::attachment::Direction;
use parshall_kernel::capture::client::{Client, list, rings_at};
use parshall_kernel::capture::keeper::directory;
use parshall_kernel::capture::keeper::message::RingDescription;
use parshall_kernel::capture::request::{Directions, HookChoice, RingRequest};
use parshall_kernel::net::interface::{Interface, namespace_number};
use parshall_kernel::os_text::OsText;
use parshall_kernel::ring::LANE_SIZE_MAX_BYTES;

/// Environment variable with the keeper's command, as a JSON list.
const KEEPER: &str = "PARSHALL_PCAP_KEEPER";
/// The ring to join.
const RING: &str = "PARSHALL_PCAP_RING";
const RING_BYTES: u64 = 32 << 20;

/// A place in a ring.
pub struct Place {
    pub client: Client,
    /// Number of the interface in the ring.
    pub interface_number: u8,
}

/// Joins the ring at an interface, or creates one with this many bytes for each CPU.
///
/// # Errors
/// Why there is none, in one line.
pub fn open(interface: &Interface, buffer_bytes: u64) -> Result<Place, String> {
    if let Ok(name) = std::env::var(RING) {
        let client = Client::join(&name).map_err(|error| error.to_string())?;
        return place(client, interface)
            .ok_or_else(|| format!("ring {name} does not capture both directions of it"));
    }
    directory::check().map_err(|error| error.to_string())?;
    // Programs that start together share a ring. A process that may not create one does not wait.
    let _alone = match directory::lock(directory::SEARCH_LOCK) {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Err(error.to_string()),
        locked => locked.ok(),
    };
    for name in rings_there(interface) {
        if let Ok(client) = Client::join(&name)
            && let Some(place) = place(client, interface)
        {
            return Ok(place);
        }
    }
    let keeper = std::env::var(KEEPER)
        .map_err(|_| "no ring runs there, and only `parshall pcap` can create one".to_owned())?;
    let keeper: Vec<OsText> =
        serde_json::from_str(&keeper).map_err(|error| format!("{KEEPER}: {error}"))?;
    let mut request = RingRequest {
        name: None,
        interfaces: vec![interface.name.clone()],
        hook: HookChoice::Auto,
        directions: Directions::Both,
        ring_bytes: buffer_bytes
            .clamp(RING_BYTES, LANE_SIZE_MAX_BYTES)
            .next_power_of_two(),
        slow_reader: false,
        promiscuous: false,
        group: None,
        discard: false,
    };
    let client = loop {
        match Client::create(&keeper, &request) {
            // As libpcap, whose buffer is smaller when there is no memory for it.
            Err(CaptureError::Refused { .. }) if request.ring_bytes > RING_BYTES => {
                request.ring_bytes /= 2;
            }
            created => break created.map_err(|error| error.to_string())?,
        }
    };
    place(client, interface).ok_or_else(|| {
        "this kernel has no tcx (Linux 6.6), so a ring sees only inbound packets".to_owned()
    })
}

/// Names of the rings at an interface.
fn rings_there(interface: &Interface) -> Vec<String> {
    let found = rings_at(std::slice::from_ref(interface));
    if !found.is_empty() {
        return found.into_iter().map(|(name, _)| name).collect();
    }
    // A keeper that takes in many programs at once may not have answered in time; now it gets longer, since another
    // ring there would copy each packet again.
    let namespace = namespace_number();
    let listed = directory::names()
        .into_iter()
        .filter_map(|name| list(&name).ok());
    listed
        .filter(|ring| ring.namespace == namespace && ring.indices.contains(&interface.index))
        .map(|ring| ring.name)
        .collect()
}

/// The place of an interface in a ring that captures both its directions. An interface is known by its network namespace
/// and its index, as its name may change; the keeper knows which ones were removed, as another may get the index.
fn place(client: Client, interface: &Interface) -> Option<Place> {
    let interface_number = interface_number(&client.ring, interface)?;
    Some(Place {
        client,
        interface_number,
    })
}

fn interface_number(ring: &RingDescription, interface: &Interface) -> Option<u8> {
    if ring.namespace != namespace_number() {
        return None;
    }
    let has = |direction: Direction| {
        let mut hooks = ring.hooks.iter();
        hooks.find(|hook| {
            hook.interface.index == interface.index
                && hook.direction == direction
                && !ring.removed.contains(&hook.interface_number)
        })
    };
    let inbound = has(Direction::In)?;
    (inbound.interface.is_loopback || has(Direction::Out).is_some())
        .then_some(inbound.interface_number)
}
