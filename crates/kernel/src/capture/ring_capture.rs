//! Starts a capture by a ring. `run` is the thread that reads the ring.

use std::sync::Arc;
use std::time::Instant;

use parshall_core::trace::Section;

use super::CaptureError;
use super::client::{self, Client};
use super::collector::Collector;
use super::output::{Opened, Output, compile_filters};
use super::request::{Directions, RingRequest, Subscription};
use super::run::Run;
use super::status::{CaptureProgress, Summary, THREAD};
use super::tagged::Retag;
use super::tally::Tally;
use crate::clock::{monotonic_ns, realtime_offset_ns};
use crate::net::interface::Interface;
use crate::os_text::OsText;
use crate::session::{Control, Session, Startup};

/// Where the ring comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Create this ring.
    Create {
        /// The ring.
        ring: RingRequest,
        /// The command that runs its keeper.
        keeper: Vec<OsText>,
    },
    /// Join the running ring of this name.
    Join(String),
}

/// A running capture by a ring.
pub(super) struct RingCapture {
    pub session: Session<CaptureProgress, Summary>,
    /// Name of the ring.
    pub ring: String,
    /// Names of its interfaces, by number.
    pub interfaces: Vec<String>,
}

impl RingCapture {
    /// Opens the files, creates or joins the ring, subscribes, and starts to read.
    pub fn start(
        source: Source,
        outputs: Vec<Output>,
        count: Option<u64>,
        section: &Section,
        startup: &Startup,
    ) -> Result<Self, CaptureError> {
        let wants_both = match &source {
            Source::Create { ring, .. } => ring.directions == Directions::Both,
            Source::Join(_) => false,
        };
        let open = |outputs| startup.open(|is_given_up| Opened::open_all(outputs, is_given_up));
        let mut others = Vec::new();
        let (mut client, filters, mut outputs) = match &source {
            Source::Create { ring, keeper } => {
                let interfaces = ring
                    .interfaces
                    .iter()
                    .map(|name| Interface::find(name))
                    .collect::<Result<Vec<_>, _>>()?;
                // Compiled first, so that a mistake in a filter attaches no program to an
                // interface.
                let filters = compile_filters(&outputs, &interfaces)?;
                let outputs = open(outputs)?;
                others = client::rings_at(&interfaces);
                (Client::create(keeper, ring)?, filters, outputs)
            }
            Source::Join(name) => {
                let client = Client::join(name)?;
                let filters = compile_filters(&outputs, &client.ring.interfaces)?;
                (client, filters, open(outputs)?)
            }
        };
        let started_ns = monotonic_ns();
        for output in &mut outputs {
            output.begin(section, &client.ring.interfaces)?;
        }
        let subscriptions: Vec<Subscription> = outputs
            .iter()
            .map(|opened| opened.subscription.clone())
            .collect();
        let (bits, starts) =
            client.subscribe(subscriptions.iter().cloned().zip(filters).collect())?;
        for output in &mut outputs {
            output.commit()?;
        }
        let mask = bits.iter().fold(0, |mask, bit| mask | 1 << bit);
        let snaplen = subscriptions.iter().map(|one| one.snaplen).max();
        let collector = Collector::new(
            &client.lanes,
            &starts,
            client
                .register
                .as_ref()
                .map(|(readers, slot)| (readers.as_slice(), *slot)),
            mask,
            snaplen.unwrap_or(0),
        );
        let control = Arc::new(Control::default());
        for notice in notices(&client, others, wants_both) {
            control.notify(notice);
        }
        let ring = client.ring.name.clone();
        let interfaces = client.ring.interfaces.iter();
        let interfaces = interfaces.map(|one| one.name.clone()).collect();
        let run = Run {
            tally: Tally::new(&client.ring, outputs.len()),
            client,
            collector,
            outputs,
            bits,
            count,
            counts: Vec::new(),
            at_request: None,
            started: Instant::now(),
            started_ns,
            offset_ns: realtime_offset_ns(),
            retag: Retag::default(),
            control: Arc::clone(&control),
            failure: None,
        };
        let read = |_: &Control<CaptureProgress>| run.read();
        Ok(Self {
            session: Session::start(THREAD, control, [read])?,
            ring,
            interfaces,
        })
    }
}

/// What the user should know before the first packet. `others` are other rings at these interfaces:
/// name of the ring, name of the interface.
fn notices(client: &Client, others: Vec<(String, String)>, wants_both: bool) -> Vec<String> {
    let ring = &client.ring;
    let mut notices = Vec::new();
    for number in &ring.removed {
        let name = &ring.interfaces[usize::from(*number)].name;
        notices.push(format!(
            "interface {name} of the ring was removed; the others go on"
        ));
    }
    let present = (0..).zip(&ring.interfaces);
    let present = present.filter(|(number, _)| !ring.removed.contains(number));
    for (_, interface) in present.filter(|(_, interface)| !interface.is_up) {
        notices.push(format!(
            "interface {} is down; the capture begins when it is up",
            interface.name
        ));
    }
    for (other, interface) in others {
        notices.push(format!(
            "ring {other} takes packets at {interface} already; --join {other} joins it, and the kernel copies \
             each packet once"
        ));
    }
    let without_sent: Vec<&str> = ring.interfaces_without_sent().collect();
    if wants_both && !without_sent.is_empty() {
        notices.push(format!(
            "what {} sends is not captured: this kernel refuses tcx, and XDP in its place sees \
             only received packets; --backend af-packet sees both directions",
            without_sent.join(", ")
        ));
    }
    if ring.layout.wait_for_readers != 0 && client.register.is_none() {
        notices.push(
            "this ring waits for readers of root and of its creator only: packets that this reader \
             is too slow for are overwritten and counted as lost"
                .into(),
        );
    }
    notices
}
