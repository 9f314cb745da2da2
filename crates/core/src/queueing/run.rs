//! Replications: how many, on how many cores, from when on they count, when they are enough.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use super::account::new_histogram;
use super::calendar::NEVER;
use super::engine::Engine;
use super::error::ModelError;
use super::interval::{Interval, interval};
use super::network::Network;
use super::result::{
    Estimate, Latencies, LatencySummary, Replication, between, replication, totals,
};
use super::scale::{Large, Medium, Scale, Small};
use super::series::{relaxation, warm_up};
use super::time::{nanoseconds, picoseconds};

/// How a model is run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    /// Where all random numbers come from.
    pub seed: u64,
    /// Time that is counted; None runs until all sources have ended and the network is empty.
    pub duration_ns: Option<f64>,
    /// Time that passes before counting begins; None finds it with a run that is not counted.
    pub warm_up_ns: Option<f64>,
    /// Independent runs; or batches, of which `duration_ns` is the sum.
    pub replications: u32,
    /// One long run that is cut into batches, instead of independent ones: it warms up only once.
    pub by_batches: bool,
    /// With `relative_half_width`: most of them.
    pub replications_max: u32,
    /// Goes on until the confidence intervals of throughput and latency at every sink are this
    /// small, compared with their means.
    pub relative_half_width: Option<f64>,
    /// Of the confidence intervals.
    pub confidence: f64,
    /// Threads; None takes all cores. Results do not depend on it.
    pub threads: Option<usize>,
    /// Keeps what happened to every packet, of the first replication.
    pub trace: bool,
    /// Runs networks that grow for ever.
    pub allow_unstable: bool,
    /// Most packets inside.
    pub jobs_max: usize,
    /// Most events of a replication, or of all batches.
    pub events_max: u64,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            duration_ns: None,
            warm_up_ns: None,
            replications: 5,
            by_batches: false,
            replications_max: 200,
            relative_half_width: None,
            confidence: 0.95,
            threads: None,
            trace: false,
            allow_unstable: false,
            jobs_max: 5_000_000,
            events_max: 10_000_000_000,
        }
    }
}

impl RunOptions {
    fn check(&self, network: &Network) -> Result<(), ModelError> {
        let place = "the run";
        let above_zero = |field: &str, value: Option<f64>| match value {
            Some(value) if !(value.is_finite() && value > 0.0) => Err(ModelError::value(
                place,
                field,
                value,
                "a finite number above 0",
            )),
            _ => Ok(()),
        };
        above_zero("duration_ns", self.duration_ns)?;
        above_zero("relative_half_width", self.relative_half_width)?;
        if let Some(value) = self
            .warm_up_ns
            .filter(|value| !(value.is_finite() && *value >= 0.0))
        {
            return Err(ModelError::value(
                place,
                "warm_up_ns",
                value,
                "a finite number that is not negative",
            ));
        }
        if self.replications == 0 || self.threads == Some(0) {
            return Err(ModelError::value(
                place,
                "replications or threads",
                0,
                "at least 1",
            ));
        }
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return Err(ModelError::value(
                place,
                "confidence",
                self.confidence,
                "between 0 and 1, such as 0.95",
            ));
        }
        if self.duration_ns.is_none() && !network.ends() {
            return Err(ModelError::value(
                place,
                "duration_ns",
                "not given",
                "a duration: the sources of this model never end",
            ));
        }
        if self.by_batches && (self.replications < 2 || self.duration_ns.is_none()) {
            return Err(ModelError::value(
                place,
                "by_batches",
                true,
                "a duration_ns, and replications of 2 or more: so many batches",
            ));
        }
        let longest = self.duration_ns.unwrap_or(0.0) + self.warm_up_ns.unwrap_or(0.0);
        if longest * 1000.0 >= (NEVER / 2) as f64 {
            return Err(ModelError::EndOfTime);
        }
        let expected = network.arrivals_per_ps * longest * 1000.0;
        if expected > self.events_max as f64 {
            return Err(ModelError::TooManyEvents {
                events: format!("at least {expected:.1e}"),
                time_s: longest / 1e9,
                events_max: self.events_max,
            });
        }
        Ok(())
    }
}

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Name of the model.
    pub model: String,
    /// How it was run.
    pub options: RunOptions,
    /// The random generator.
    pub generator: &'static str,
    /// Warm-up that was left out, ns.
    pub warm_up_ns: f64,
    /// Whether the pilot run found a steady state; None when the warm-up was given.
    pub is_steady: Option<bool>,
    /// Whether the intervals became as small as asked for; None when that was not asked for.
    pub is_precise: Option<bool>,
    /// Whether every batch lasts so long that each estimated quantity forgets many times where it was, so that
    /// batches are nearly independent and the intervals can be believed; None of independent replications.
    pub is_uncorrelated: Option<bool>,
    /// Replications, or batches, one by one.
    pub replications: Vec<Replication>,
    /// Over all of them.
    pub estimates: Vec<Estimate>,
    /// Latencies at the sinks, over all of them.
    pub latencies: Vec<LatencySummary>,
    /// Those of clones, since their packet came out of its source.
    pub clone_latencies: Vec<LatencySummary>,
}

/// Runs a network.
///
/// # Errors
/// An option is wrong, the network grew too large, or `stop` was set.
pub fn run(
    network: &Network,
    options: &RunOptions,
    stop: &AtomicBool,
) -> Result<Results, ModelError> {
    options.check(network)?;
    let (warm_up_ps, is_steady) = match (options.warm_up_ns, options.duration_ns) {
        (Some(given_ns), _) => (picoseconds(given_ns), None),
        // What ends by itself is counted from its first packet on.
        (None, None) => (0, None),
        (None, Some(duration_ns)) => {
            let (found, is_steady) = pilot(network, options, picoseconds(duration_ns), stop)?;
            (found, Some(is_steady))
        }
    };

    let (replications, is_precise) = if options.by_batches {
        batches(network, options, warm_up_ps, stop)?
    } else {
        let more = |numbers| several(network, options, numbers, warm_up_ps, stop);
        until_precise(options, more)?
    };
    Ok(Results {
        model: network.model.name.clone(),
        options: options.clone(),
        generator: crate::laws::GENERATOR,
        warm_up_ns: nanoseconds(warm_up_ps),
        is_steady,
        is_precise,
        is_uncorrelated: options.by_batches.then(|| are_uncorrelated(&replications)),
        estimates: estimates(&replications, options.confidence),
        latencies: latencies(network, &replications, |of| &of.histogram),
        clone_latencies: latencies(network, &replications, |of| &of.clones),
        replications,
    })
}

/// As many replications or batches as are asked for, and as the wanted precision takes; `more` makes them.
/// Tells whether it was reached.
fn until_precise(
    options: &RunOptions,
    mut more: impl FnMut(std::ops::Range<u64>) -> Result<Vec<Replication>, ModelError>,
) -> Result<(Vec<Replication>, Option<bool>), ModelError> {
    // The steps are fixed, so that the result does not depend on the number of cores.
    const STEP: u64 = 4;
    let mut found = more(0..u64::from(options.replications))?;
    let Some(wanted) = options.relative_half_width else {
        return Ok((found, None));
    };
    let most = u64::from(options.replications_max.max(options.replications));
    loop {
        let is_precise = is_as_precise(&estimates(&found, options.confidence), wanted);
        let begin = found.len() as u64;
        if is_precise || begin >= most {
            return Ok((found, Some(is_precise)));
        }
        found.extend(more(begin..(begin + STEP).min(most))?);
    }
}

/// Batches of one run (the method of batch means; Law, Simulation Modeling and Analysis, 9.5.3).
fn batches(
    network: &Network,
    options: &RunOptions,
    warm_up_ps: u64,
    stop: &AtomicBool,
) -> Result<(Vec<Replication>, Option<bool>), ModelError> {
    match options.trace {
        false if Small::fits(network) => cut::<Small, false>(network, options, warm_up_ps, stop),
        false if Medium::fits(network) => cut::<Medium, false>(network, options, warm_up_ps, stop),
        true if Medium::fits(network) => cut::<Medium, true>(network, options, warm_up_ps, stop),
        false => cut::<Large, false>(network, options, warm_up_ps, stop),
        true => cut::<Large, true>(network, options, warm_up_ps, stop),
    }
}

fn cut<S: Scale, const TRACED: bool>(
    network: &Network,
    options: &RunOptions,
    warm_up_ps: u64,
    stop: &AtomicBool,
) -> Result<(Vec<Replication>, Option<bool>), ModelError> {
    let is_stopped = || stop.load(Ordering::Relaxed);
    let whole_ns = options.duration_ns.unwrap_or_default();
    let batch_ps = picoseconds(whole_ns / f64::from(options.replications)).max(1);
    let mut engine = Engine::<S, TRACED>::new(network, options, 0);
    engine.run(warm_up_ps, is_stopped)?;
    let parts_of_batch = PARTS_MIN.max(PARTS_OF_RUN.div_ceil(options.replications));
    until_precise(options, |numbers| {
        let batch = |number| {
            engine.restart_counting();
            let begin = warm_up_ps + number * batch_ps;
            let mut parts = Vec::with_capacity(parts_of_batch as usize);
            let mut before = totals(&mut engine);
            for part in 1..=parts_of_batch {
                let end = u128::from(batch_ps) * u128::from(part) / u128::from(parts_of_batch);
                engine.run(begin + end as u64, is_stopped)?;
                let after = totals(&mut engine);
                parts.push(between(&before, &after));
                before = after;
            }
            let mut batch = replication(&mut engine, number);
            batch.parts = parts;
            if number > 0 {
                // As of replications, the trace of the first.
                batch.trace = Default::default();
            }
            Ok(batch)
        };
        numbers.map(batch).collect()
    })
}

/// Parts of a batch at least, and of all batches together: so many show how long a quantity takes to forget where it
/// was far better than the few batches themselves, whose lag-1 correlation is known to 1 / sqrt(batches) only.
const PARTS_MIN: u32 = 8;
const PARTS_OF_RUN: u32 = 160;
/// Relaxation times that a batch has to last: then the variance of the mean of all batches is underestimated by a
/// twentieth at most.
const RELAXATIONS_MIN: f64 = 20.0;

/// How many relaxation times a batch lasts, by the parts of all batches. Of a quantity that does not vary, or that
/// was there in less than half of the parts, it is infinite: nothing can be told of it.
fn relaxations(batches: &[Replication], measure: usize) -> f64 {
    let parts = batches.iter().flat_map(|batch| &batch.parts);
    let all = parts.clone().count();
    let values: Vec<f64> = parts
        .map(|part| part[measure])
        .filter(|value| value.is_finite())
        .collect();
    if values.is_empty() || 2 * values.len() < all {
        return f64::INFINITY;
    }
    let time = relaxation(&values);
    if time.is_nan() || time == 0.0 {
        return f64::INFINITY;
    }
    all as f64 / batches.len() as f64 / time
}

/// By how much the variance between batches falls short of that between independent ones: for a correlation that
/// decays exponentially, over so many relaxation times.
fn shortfall(relaxations: f64) -> f64 {
    if relaxations.is_infinite() {
        return 1.0;
    }
    // A batch that lasts less than a relaxation time tells nothing; its interval is not made wider without end.
    let relaxations = relaxations.max(1.0);
    1.0 + libm::expm1(-relaxations) / relaxations
}

/// Whether batches last long enough for all quantities.
fn are_uncorrelated(batches: &[Replication]) -> bool {
    let measures = batches
        .first()
        .map_or(0, |batch| batch.parts.first().map_or(0, Vec::len));
    (0..measures).all(|measure| relaxations(batches, measure) >= RELAXATIONS_MIN)
}

/// Replications on all threads, in the order of their numbers.
fn several(
    network: &Network,
    options: &RunOptions,
    numbers: std::ops::Range<u64>,
    warm_up_ps: u64,
    stop: &AtomicBool,
) -> Result<Vec<Replication>, ModelError> {
    let count = (numbers.end - numbers.start) as usize;
    let cores = || thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = options.threads.unwrap_or_else(cores).min(count).max(1);
    let next = AtomicU64::new(numbers.start);
    let failed = AtomicBool::new(false);
    let done = Mutex::new(Vec::with_capacity(count));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end || failed.load(Ordering::Relaxed) {
                return;
            }
            let result = one(network, options, number, warm_up_ps, stop);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            done.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((number, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

fn one(
    network: &Network,
    options: &RunOptions,
    number: u64,
    warm_up_ps: u64,
    stop: &AtomicBool,
) -> Result<Replication, ModelError> {
    // The size of the network and the question of traces are settled here, not at every event.
    match options.trace && number == 0 {
        false if Small::fits(network) => {
            simulate::<Small, false>(network, options, number, warm_up_ps, stop)
        }
        false if Medium::fits(network) => {
            simulate::<Medium, false>(network, options, number, warm_up_ps, stop)
        }
        true if Medium::fits(network) => {
            simulate::<Medium, true>(network, options, number, warm_up_ps, stop)
        }
        false => simulate::<Large, false>(network, options, number, warm_up_ps, stop),
        true => simulate::<Large, true>(network, options, number, warm_up_ps, stop),
    }
}

fn simulate<S: Scale, const TRACED: bool>(
    network: &Network,
    options: &RunOptions,
    number: u64,
    warm_up_ps: u64,
    stop: &AtomicBool,
) -> Result<Replication, ModelError> {
    let is_stopped = || stop.load(Ordering::Relaxed);
    let mut engine = Engine::<S, TRACED>::new(network, options, number);
    if warm_up_ps > 0 {
        engine.run(warm_up_ps, is_stopped)?;
        engine.restart_counting();
    }
    let end = options
        .duration_ns
        .map_or(NEVER, |duration_ns| warm_up_ps + picoseconds(duration_ns));
    engine.run(end, is_stopped)?;
    Ok(replication(&mut engine, number))
}

/// Runs once to see when the latencies become steady. Returns the time and whether they do.
fn pilot(
    network: &Network,
    options: &RunOptions,
    duration_ps: u64,
    stop: &AtomicBool,
) -> Result<(u64, bool), ModelError> {
    // Its random numbers are those of no replication.
    let pilot = one(network, options, u64::from(u32::MAX), 0, stop)?;
    let mut latest = (0, true);
    for latencies in &pilot.latencies {
        let means = latencies.series.means();
        if means.len() < 50 {
            continue;
        }
        let part = match warm_up(&means) {
            Some(batches) => batches as f64 / means.len() as f64,
            None => {
                latest.1 = false;
                0.5
            }
        };
        latest.0 = latest.0.max((part * duration_ps as f64) as u64);
    }
    Ok(latest)
}

fn estimates(replications: &[Replication], confidence: f64) -> Vec<Estimate> {
    let all: Vec<_> = replications.iter().map(Replication::measures).collect();
    let first = all.first().map_or(&[][..], Vec::as_slice);
    let estimates =
        first
            .iter()
            .enumerate()
            .filter_map(|(at, &(kind, place, class, measure, _))| {
                // Of what no packet came to in a replication there is no mean.
                let values: Vec<f64> = all
                    .iter()
                    .map(|measures| measures[at].4)
                    .filter(|value| !value.is_nan())
                    .collect();
                if values.is_empty() {
                    return None;
                }
                let own = interval(&values, confidence);
                // Independent replications have no parts.
                let missing = shortfall(relaxations(replications, at));
                Some(Estimate {
                    kind,
                    place: place.to_string(),
                    class: class.to_string(),
                    measure,
                    interval: Interval {
                        half_width: own.half_width.map(|width| width / missing.sqrt()),
                        ..own
                    },
                })
            });
    estimates.collect()
}

fn is_as_precise(estimates: &[Estimate], wanted: f64) -> bool {
    let sinks = estimates
        .iter()
        .filter(|estimate| estimate.kind == "sink" && estimate.interval.mean != 0.0)
        .filter(|estimate| {
            ["throughput_pps", "throughput_bps", "latency_ns"].contains(&estimate.measure)
        });
    sinks.clone().count() > 0
        && sinks.into_iter().all(|estimate| {
            let interval = estimate.interval;
            interval
                .half_width
                .is_some_and(|half_width| half_width <= wanted * interval.mean.abs())
        })
}

fn latencies(
    network: &Network,
    replications: &[Replication],
    which: impl Fn(&Latencies) -> &hdrhistogram::Histogram<u64>,
) -> Vec<LatencySummary> {
    let model = &network.model;
    let mut summaries = Vec::new();
    for (sink, name) in model.sinks.iter().enumerate() {
        let mut together = new_histogram();
        let mut classes = 0;
        for (class, class_name) in model.classes.iter().enumerate() {
            let mut own = new_histogram();
            for replication in replications {
                // Histograms that grow by themselves take in any other.
                let _ = own.add(which(
                    &replication.latencies[sink * network.classes + class],
                ));
            }
            if !own.is_empty() {
                classes += 1;
                let _ = together.add(&own);
                summaries.push(LatencySummary::of(name, class_name, &own));
            }
        }
        if classes > 1 {
            summaries.push(LatencySummary::of(name, "", &together));
        }
    }
    summaries
}
