//! Clocks: what a run takes when many follow each other.

use std::sync::Arc;
use std::time::Instant;

use msa_core::backend::{Device, Stream};
use msa_core::error::Result;

/// Enqueues the run of a number on a stream.
pub(super) type Enqueue<'a> = dyn FnMut(Stream, usize) -> Result<()> + 'a;

/// Something that times runs on a device.
pub(super) trait Clock {
    /// Seconds of one run, in each of `samples` samples of `runs` runs.
    fn sample(&mut self, samples: usize, runs: usize, enqueue: &mut Enqueue<'_>) -> Result<Vec<f64>>;

    /// Name, for reports.
    fn name(&self) -> &'static str;
}

/// The host's clock, from the first run's enqueueing to the end of the last.
pub(super) struct HostClock<'a> {
    device: &'a Arc<dyn Device>,
}

impl<'a> HostClock<'a> {
    pub(super) fn new(device: &'a Arc<dyn Device>) -> Self {
        Self { device }
    }
}

impl Clock for HostClock<'_> {
    fn sample(&mut self, samples: usize, runs: usize, enqueue: &mut Enqueue<'_>) -> Result<Vec<f64>> {
        let mut sample = || -> Result<f64> {
            let start = Instant::now();
            (0..runs).try_for_each(|number| enqueue(Stream::default(), number))?;
            self.device.memory().synchronize(Stream::default())?;
            Ok(start.elapsed().as_secs_f64() / runs.max(1) as f64)
        };
        (0..samples).map(|_| sample()).collect()
    }

    fn name(&self) -> &'static str {
        "host clock"
    }
}
