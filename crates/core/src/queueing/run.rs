//! Runs a network: the warm-up, replications on several threads or batches, until the intervals are narrow enough.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;

use super::batch_means::{are_uncorrelated, between, parts_of_batch, totals};
use super::calendar::NEVER;
use super::engine::Engine;
use super::error::ModelError;
use super::estimate::{Estimate, are_long_enough, are_precise, estimates};
use super::latency::{LatencySummary, latencies};
use super::network::Network;
use super::result::Replication;
use super::run_options::RunOptions;
use super::scale::{Large, Scale, Small, SmallPlain, is_plain, is_small};
use super::series::warm_up;
use super::time::{nanoseconds, picoseconds};

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Name of the model.
    pub model: String,
    /// The options of the run.
    pub options: RunOptions,
    /// The random number generator.
    pub generator: &'static str,
    /// Warm-up time, ns.
    pub warm_up_ns: f64,
    /// Whether the pilot run reached a steady state; None if the warm-up time was given, or too few packets say so.
    pub is_steady: Option<bool>,
    /// Whether the intervals reached `relative_half_width`; None if it was not given.
    pub is_precise: Option<bool>,
    /// Whether every batch lasts many relaxation times of every measure, so that batches are nearly independent and the
    /// intervals valid; None for independent replications.
    pub is_uncorrelated: Option<bool>,
    /// Whether replications or batches are long enough to know the intervals of quantiles; None for a single one.
    pub is_long_enough: Option<bool>,
    /// Replications, or batches, one by one.
    pub replications: Vec<Replication>,
    /// Estimates over all replications.
    pub estimates: Vec<Estimate>,
    /// Latencies at the sinks, over all replications.
    pub latencies: Vec<LatencySummary>,
    /// Latencies of clones, from the source of their packet.
    pub clone_latencies: Vec<LatencySummary>,
}

/// Calls a method for the scale of a network.
macro_rules! at_scale_of {
    ($network:expr, $runner:ident.$method:ident($($argument:expr),*)) => {
        match is_small($network) {
            true if is_plain($network) => $runner.$method::<SmallPlain>($($argument),*),
            true => $runner.$method::<Small>($($argument),*),
            false => $runner.$method::<Large>($($argument),*),
        }
    };
}
/// Runs a network.
///
/// # Errors
/// An option is wrong, a limit was exceeded, the network is in a deadlock, or `stop` was set.
pub fn run(
    network: &Network,
    options: &RunOptions,
    stop: &AtomicBool,
) -> Result<Results, ModelError> {
    options.check(network)?;
    let mut runner = Runner {
        network,
        options,
        stop,
        warm_up_ps: 0,
    };
    let mut is_steady = None;
    match (options.warm_up_ns, options.duration_ns) {
        (Some(given_ns), _) => runner.warm_up_ps = picoseconds(given_ns),
        // A run that ends with its sources has no warm-up.
        (None, None) => {}
        (None, Some(duration_ns)) => {
            let (found_ps, is_found_steady) = runner.pilot(picoseconds(duration_ns))?;
            runner.warm_up_ps = found_ps;
            is_steady = is_found_steady;
        }
    }
    let (replications, is_precise) = if options.by_batches {
        at_scale_of!(network, runner.batches())?
    } else {
        runner.until_precise(|numbers| runner.several(numbers))?
    };
    let samples = replications.iter().map(|each| each.latencies.as_slice());
    let samples: Vec<_> = samples.collect();
    Ok(Results {
        model: network.model.name.clone(),
        options: options.clone(),
        generator: crate::distributions::RNG_NAME,
        warm_up_ns: nanoseconds(runner.warm_up_ps),
        is_steady,
        is_precise,
        is_uncorrelated: options.by_batches.then(|| are_uncorrelated(&replications)),
        is_long_enough: are_long_enough(&replications, options.confidence),
        estimates: estimates(&replications, options.confidence),
        latencies: latencies(network, &samples, |latencies| &latencies.histogram),
        clone_latencies: latencies(network, &samples, |latencies| &latencies.clones),
        replications,
    })
}

/// Replications or batches, and whether they reached the requested precision; None if none was requested.
type Replications = (Vec<Replication>, Option<bool>);

/// What all replications of a run share.
struct Runner<'r> {
    network: &'r Network,
    options: &'r RunOptions,
    stop: &'r AtomicBool,
    warm_up_ps: u64,
}

impl Runner<'_> {
    /// Runs replications or batches with `more` until there are enough for the requested precision.
    fn until_precise(
        &self,
        mut more: impl FnMut(Range<u64>) -> Result<Vec<Replication>, ModelError>,
    ) -> Result<Replications, ModelError> {
        let options = self.options;
        // A fixed step: the result must not depend on the number of cores.
        const STEP: u64 = 4;
        let mut replications = more(0..u64::from(options.replications))?;
        let Some(relative_half_width) = options.relative_half_width else {
            return Ok((replications, None));
        };
        let replications_max = u64::from(options.replications_max.max(options.replications));
        loop {
            let is_precise = are_precise(
                &estimates(&replications, options.confidence),
                relative_half_width,
            );
            let begin = replications.len() as u64;
            if is_precise || begin >= replications_max {
                return Ok((replications, Some(is_precise)));
            }
            replications.extend(more(begin..(begin + STEP).min(replications_max))?);
        }
    }

    /// Runs batches of one long run.
    fn batches<S: Scale>(&self) -> Result<Replications, ModelError> {
        let (network, options) = (self.network, self.options);
        let is_stopped = || self.stop.load(Ordering::Relaxed);
        let run_ns = options.duration_ns.unwrap_or_default();
        let batch_ps = picoseconds(run_ns / f64::from(options.replications)).max(1);
        let mut engine = Engine::<S>::new(network, options, 0, options.trace);
        engine.run(self.warm_up_ps, is_stopped)?;
        let parts_of_batch = parts_of_batch(options.replications);
        self.until_precise(|numbers| {
            let batch = |number| {
                engine.restart_counting();
                let begin = self.warm_up_ps + number * batch_ps;
                let mut parts = Vec::with_capacity(parts_of_batch as usize);
                let mut before = totals(network, &engine.counts());
                for part in 1..=parts_of_batch {
                    let end = u128::from(batch_ps) * u128::from(part) / u128::from(parts_of_batch);
                    engine.run(begin + end as u64, is_stopped)?;
                    let after = totals(network, &engine.counts());
                    parts.push(between(&before, &after));
                    before = after;
                }
                let mut batch = Replication::new(network, number, &engine.counts());
                batch.parts = parts;
                if number == 0 {
                    batch.trace = engine.take_trace();
                }
                Ok(batch)
            };
            numbers.map(batch).collect()
        })
    }

    /// Runs replications on several threads; returns them in the order of their numbers.
    fn several(&self, numbers: Range<u64>) -> Result<Vec<Replication>, ModelError> {
        let count = (numbers.end - numbers.start) as usize;
        let cores = || thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = self.options.threads.unwrap_or_else(cores).min(count).max(1);
        let next = AtomicU64::new(numbers.start);
        let failed = AtomicBool::new(false);
        let done = Mutex::new(Vec::with_capacity(count));
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end || failed.load(Ordering::Relaxed) {
                    return;
                }
                let result = at_scale_of!(self.network, self.simulate(number));
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

    fn simulate<S: Scale>(&self, number: u64) -> Result<Replication, ModelError> {
        let (network, options) = (self.network, self.options);
        let is_stopped = || self.stop.load(Ordering::Relaxed);
        let mut engine = Engine::<S>::new(network, options, number, options.trace && number == 0);
        if self.warm_up_ps > 0 {
            engine.run(self.warm_up_ps, is_stopped)?;
            engine.restart_counting();
        }
        let end = options.duration_ns.map_or(NEVER, |duration_ns| {
            self.warm_up_ps + picoseconds(duration_ns)
        });
        engine.run(end, is_stopped)?;
        let mut replication = Replication::new(network, number, &engine.counts());
        replication.trace = engine.take_trace();
        Ok(replication)
    }

    /// Determines the warm-up time with a pilot run. Returns the time in ps, and whether the latencies reach
    /// a steady state, None if there are too few packets to say so.
    fn pilot(&self, duration_ps: u64) -> Result<(u64, Option<bool>), ModelError> {
        // No replication has this number, so its random numbers are independent.
        let pilot = at_scale_of!(self.network, self.simulate(u64::from(u32::MAX)))?;
        let (mut warm_up_ps, mut is_steady) = (0, None);
        for latencies in &pilot.latencies {
            let means = latencies.series.means();
            if means.len() < 50 {
                continue;
            }
            let found = warm_up(&means);
            is_steady = Some(is_steady.unwrap_or(true) && found.is_some());
            let part = found.map_or(0.5, |batches| batches as f64 / means.len() as f64);
            warm_up_ps = warm_up_ps.max((part * duration_ps as f64) as u64);
        }
        Ok((warm_up_ps, is_steady))
    }
}

#[cfg(test)]
mod tests {
    use super::super::traces::Traces;
    use super::*;
    use serde_json::{Value, json};

    /// Two sources, each with a queue at the station `shared`; packets of both go to a lossy queue behind it.
    fn network(shared: Value) -> Network {
        let queue = |name: &str, station: &str, mean_ns: u32, to: &str| {
            json!({
                "name": name,
                "station": station,
                "capacity_packets": 3,
                "service": [{"time_ns": format!("exponential:mean={mean_ns}")}],
                "to": [{"to": [{"place": to}]}],
            })
        };
        let source = |class: &str, gap_ns: u32, to: &str| {
            json!({
                "name": class,
                "class": class,
                "gap_ns": format!("exponential:mean={gap_ns}"),
                "to": [{"to": [{"place": to}]}],
            })
        };
        let model = json!({
            "name": "tandem",
            "classes": ["a", "b"],
            "sources": [source("a", 2000, "first"), source("b", 3000, "second")],
            "stations": [shared, {"name": "last"}],
            "queues": [
                queue("first", "shared", 900, "third"),
                queue("second", "shared", 1100, "third"),
                queue("third", "last", 1000, "out"),
            ],
            "sinks": ["out"],
        });
        let model = serde_json::from_value(model).expect("a model");
        Network::new(model, &Traces::default(), false).expect("a network")
    }

    #[test]
    fn small_and_general_engines_give_the_same_results() {
        let options = RunOptions {
            duration_ns: Some(1e6),
            trace: true,
            ..RunOptions::default()
        };
        let round_robin = json!([{"policy": "round-robin"}]);
        let quantum = json!([{"policy": "round-robin", "quantum_ns": 300}]);
        let fair = json!([{"policy": "weighted-fair", "tags": "time"}]);
        let polling = json!([{"policy": "polling", "batch": 2, "visit_ns": 50}]);
        for (shared, plain) in [
            (json!({"name": "shared", "policies": round_robin}), true),
            (json!({"name": "shared", "policies": quantum}), false),
            (json!({"name": "shared", "policies": fair}), false),
            (json!({"name": "shared", "policies": polling}), false),
            (json!({"name": "shared", "servers": 2}), false),
            (
                json!({"name": "shared", "kind": "processor-sharing"}),
                false,
            ),
        ] {
            let network = network(shared.clone());
            assert_eq!((is_small(&network), is_plain(&network)), (true, plain));
            let runner = Runner {
                network: &network,
                options: &options,
                stop: &AtomicBool::new(false),
                warm_up_ps: 0,
            };
            let general = format!("{:?}", runner.simulate::<Large>(0).expect("a run"));
            let small = runner.simulate::<Small>(0).expect("a run");
            assert_eq!(format!("{small:?}"), general, "{shared}");
            assert!(small.balance.lost > 0 && small.balance.left > 100);
            if plain {
                let small_plain = runner.simulate::<SmallPlain>(0).expect("a run");
                assert_eq!(format!("{small_plain:?}"), general, "{shared}");
            }
        }
    }
}
