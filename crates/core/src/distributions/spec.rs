//! Parses the text of a distribution: `NAME:KEY=VALUE,KEY=VALUE`. A single value needs no key.

use super::DistributionError;

/// A parsed text, from which parameters are taken one by one.
#[derive(Debug)]
pub(super) struct Spec<'a> {
    text: &'a str,
    name: &'a str,
    expected: &'static str,
    // An empty key is a value without a key.
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Spec<'a> {
    /// Splits `text`; `expected` is the form that error messages show.
    pub fn parse(text: &'a str, expected: &'static str) -> Result<Self, DistributionError> {
        let text = text.trim();
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let parameters = rest
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(|part| match part.split_once('=') {
                Some((key, value)) => (key.trim(), value.trim()),
                None => ("", part),
            })
            .collect::<Vec<_>>();
        let spec = Self {
            text,
            name: name.trim(),
            expected,
            parameters,
        };
        for (index, (key, _)) in spec.parameters.iter().enumerate() {
            if spec.parameters[..index]
                .iter()
                .any(|(other, _)| other == key)
            {
                return Err(spec.wrong(format!("{key:?} is given twice")));
            }
        }
        Ok(spec)
    }

    pub fn name(&self) -> &'a str {
        self.name
    }

    /// The text of a parameter, if it was given. A value without a key is the parameter that is read
    /// first.
    pub fn optional_text(&mut self, key: &str) -> Option<&'a str> {
        let index = self
            .parameters
            .iter()
            .position(|(given, _)| *given == key)
            .or_else(|| {
                self.parameters
                    .iter()
                    .position(|(given, _)| given.is_empty())
            })?;
        Some(self.parameters.remove(index).1)
    }

    pub fn optional_number(&mut self, key: &str) -> Result<Option<f64>, DistributionError> {
        let value = self.optional_text(key);
        value.map(|value| self.number_of(key, value)).transpose()
    }

    pub fn number(&mut self, key: &str) -> Result<f64, DistributionError> {
        let value = self.optional_number(key)?;
        self.required(key, value)
    }

    fn number_of(&self, key: &str, value: &str) -> Result<f64, DistributionError> {
        number(value)
            .ok_or_else(|| self.wrong(format!("{key} is {value:?}, which is not a number")))
    }

    /// A time in ns. A number without a unit is ambiguous, except 0.
    pub fn optional_time(&mut self, key: &str) -> Result<Option<f64>, DistributionError> {
        let value = self.optional_text(key);
        value.map(|value| self.time_of(key, value)).transpose()
    }

    pub fn time(&mut self, key: &str) -> Result<f64, DistributionError> {
        let value = self.optional_time(key)?;
        self.required(key, value)
    }

    fn time_of(&self, key: &str, value: &str) -> Result<f64, DistributionError> {
        match value.trim().parse::<f64>() {
            Ok(bare) if bare != 0.0 => Err(DistributionError::Syntax {
                text: self.text.to_string(),
                reason: format!("{key} is {value}, a time without a unit"),
                expected: "ns, us, ms or s behind the number, for example 2us",
            }),
            _ => number(value)
                .ok_or_else(|| self.wrong(format!("{key} is {value:?}, which is not a time"))),
        }
    }

    pub fn optional_count(&mut self, key: &str) -> Result<Option<u32>, DistributionError> {
        let value = self.optional_text(key);
        let expected = "which is not a whole number from 0 to 2^32-1";
        let wrong = |value| self.wrong(format!("{key} is {value:?}, {expected}"));
        value
            .map(|value| value.parse().map_err(|_| wrong(value)))
            .transpose()
    }

    pub fn count(&mut self, key: &str) -> Result<u32, DistributionError> {
        let value = self.optional_count(key)?;
        self.required(key, value)
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, DistributionError> {
        value.ok_or_else(|| self.wrong(format!("{key} is missing")))
    }

    fn parts(&mut self, key: &str) -> Result<std::str::Split<'a, char>, DistributionError> {
        let value = self.optional_text(key);
        Ok(self.required(key, value)?.split('/'))
    }

    /// Numbers separated by slashes.
    pub fn numbers(&mut self, key: &str) -> Result<Vec<f64>, DistributionError> {
        self.parts(key)?
            .map(|part| {
                number(part)
                    .ok_or_else(|| self.wrong(format!("{key} has {part:?}, which is not a number")))
            })
            .collect()
    }

    /// Times separated by slashes, ns.
    pub fn times(&mut self, key: &str) -> Result<Vec<f64>, DistributionError> {
        self.parts(key)?
            .map(|part| self.time_of(key, part))
            .collect()
    }

    pub fn finish(self) -> Result<(), DistributionError> {
        match self.parameters.first() {
            None => Ok(()),
            Some(("", value)) => Err(self.wrong(format!("{value:?} has no key"))),
            Some((key, _)) => Err(self.wrong(format!("{} has no parameter {key:?}", self.name))),
        }
    }

    fn wrong(&self, reason: String) -> DistributionError {
        DistributionError::Syntax {
            text: self.text.to_string(),
            reason,
            expected: self.expected,
        }
    }
}

/// A number, perhaps with a unit of time: then it is in ns.
fn number(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let text = text.trim();
    for (suffix, factor) in UNITS {
        if let Some(digits) = text.strip_suffix(suffix)
            && let Ok(value) = digits.trim().parse::<f64>()
        {
            return Some(value * factor);
        }
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}
