//! The names of a model's parts.

use std::collections::{BTreeSet, HashMap};

use super::error::ModelError;
use super::model::Model;

/// Finds the numbers of a model's parts by name. Queues and sinks share one numbering, as places.
pub(super) struct Names<'m> {
    model: &'m Model,
    stations: HashMap<&'m str, usize>,
    classes: HashMap<&'m str, usize>,
    places: HashMap<&'m str, usize>,
}

impl<'m> Names<'m> {
    /// Checks that names are unique, and that there is a class and a source.
    pub fn new(model: &'m Model) -> Result<Self, ModelError> {
        let places = model.queues.iter().map(|q| &q.name).chain(&model.sinks);
        numbered("sources", model.sources.iter().map(|s| &s.name))?;
        for (what, count) in [
            ("classes", model.classes.len()),
            ("sources", model.sources.len()),
        ] {
            if count == 0 {
                return Err(ModelError::value("the model", what, "[]", "at least one"));
            }
        }
        Ok(Self {
            model,
            stations: numbered("stations", model.stations.iter().map(|s| &s.name))?,
            classes: numbered("classes", model.classes.iter())?,
            places: numbered("queues or sinks", places)?,
        })
    }

    /// Whether the place of this number is a queue, not a sink.
    pub fn is_queue(&self, place: u32) -> bool {
        (place as usize) < self.model.queues.len()
    }

    pub fn station(&self, name: &str, place: &str) -> Result<usize, ModelError> {
        let names = || self.model.stations.iter().map(|station| &station.name);
        let number = self.stations.get(name).copied();
        number.ok_or_else(|| ModelError::unknown(place, "station", name, names()))
    }

    pub fn class(&self, name: &str, place: &str) -> Result<usize, ModelError> {
        let number = self.classes.get(name).copied();
        number.ok_or_else(|| ModelError::unknown(place, "class", name, self.model.classes.iter()))
    }

    pub fn place(&self, name: &str, origin: &str) -> Result<usize, ModelError> {
        let queues = self.model.queues.iter().map(|queue| &queue.name);
        let number = self.places.get(name).copied();
        number.ok_or_else(|| {
            ModelError::unknown(
                origin,
                "queue or sink",
                name,
                queues.chain(&self.model.sinks),
            )
        })
    }

    /// The numbers of the named classes; of all classes, if none is named.
    pub fn classes(&self, named: &[String], place: &str) -> Result<Vec<usize>, ModelError> {
        if named.is_empty() {
            return Ok((0..self.model.classes.len()).collect());
        }
        let mut numbers = Vec::with_capacity(named.len());
        for name in named {
            numbers.push(self.class(name, place)?);
        }
        let distinct: BTreeSet<usize> = numbers.iter().copied().collect();
        if distinct.len() < numbers.len() {
            let expected = "each class once";
            return Err(ModelError::value(
                place,
                "classes",
                shortened(named),
                expected,
            ));
        }
        Ok(numbers)
    }
}

fn shortened(names: &[String]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(5)
        .map(|name| format!("{name:?}"))
        .collect();
    let more = if names.len() > 5 { ", ..." } else { "" };
    format!("[{}{more}]", shown.join(", "))
}

fn numbered<'a>(
    kind: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<HashMap<&'a str, usize>, ModelError> {
    let mut numbers = HashMap::new();
    for (number, name) in names.enumerate() {
        if numbers.insert(name.as_str(), number).is_some() {
            let name = name.clone();
            return Err(ModelError::Twice { kind, name });
        }
    }
    Ok(numbers)
}
