//! Many measurements of one thing.

use std::time::{Duration, Instant};

use crate::Result;

/// Measurements, sorted.
#[derive(Clone, Debug)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// At least one measurement.
    pub fn new(mut values: Vec<f64>) -> Self {
        assert!(!values.is_empty(), "nothing was measured");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The value that this part of all measurements does not exceed.
    pub fn at(&self, part: f64) -> f64 {
        let rank = (part * self.0.len() as f64).ceil() as usize;
        self.0[rank.clamp(1, self.0.len()) - 1]
    }

    /// The middle one.
    pub fn p50(&self) -> f64 {
        self.at(0.5)
    }

    /// The one that one in a hundred exceeds.
    pub fn p99(&self) -> f64 {
        self.at(0.99)
    }

    /// Spread and number, for people.
    pub fn describe(&self, unit: &str) -> String {
        format!("p50 {:.2} {unit}, p99 {:.2} {unit}, {} times", self.p50(), self.p99(), self.0.len())
    }
}

/// The middle of some measurements.
pub fn median(values: Vec<f64>) -> f64 {
    Samples::new(values).p50()
}

/// A duration in microseconds.
pub fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Times something again and again, in microseconds, after some rounds that are not counted. It is told its round.
pub fn sample(warm_up: usize, times: usize, mut run: impl FnMut(usize) -> Result<()>) -> Result<Samples> {
    let mut values = Vec::with_capacity(times);
    for round in 0..warm_up + times {
        let start = Instant::now();
        run(round)?;
        let took = start.elapsed();
        if round >= warm_up {
            values.push(microseconds(took));
        }
    }
    Ok(Samples::new(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measured_values() {
        let samples = Samples::new((1..=200).rev().map(f64::from).collect());
        assert_eq!((samples.p50(), samples.p99(), samples.at(1.0), samples.at(0.0)), (100.0, 198.0, 200.0, 1.0));
        assert_eq!(median(vec![3.0]), 3.0);
    }
}
