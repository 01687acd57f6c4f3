//! How long a case takes: medians over inputs that do not fit the cache, beside what the memory allows.
//!
//! Everything goes through the engine API: a plan is prepared once and enqueued many times. On a GPU of NVIDIA the runs
//! are captured in a graph and its replays are timed by events; elsewhere runs follow each other on the default stream
//! and the host's clock counts. The ceiling is measured in the same process, by a copy that is none of our kernels.

mod ceiling;
mod clock;
mod cost;
mod cuda;

pub use ceiling::Ceiling;
pub use cost::Cost;
pub use cuda::{Graph, Recorder};

use std::sync::Arc;

use clock::{Clock, HostClock};
use cuda::CudaClock;
use msa_core::backend::{Device, Prepared, Span};
use msa_core::error::{Error, Result};

use crate::case::Case;
use crate::inputs::{self, Inputs};
use crate::memory::{Guarded, Placement};
use crate::steps::place;

/// What outputs and workspace hold before the runs.
const POISON: u8 = 0xff;

/// Most sets of inputs.
const MOST_SETS: u64 = 64;

/// Most bytes of all sets together.
const MOST_BYTES: u64 = 8 << 30;

/// Least time of one sample, seconds: far above the resolution of the clocks and the cost of a wait.
const SAMPLE: f64 = 2e-3;

/// Most runs of one sample.
const MOST_RUNS: usize = 1000;

/// Times of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// Seconds of one run, a sample each, ascending.
    pub samples: Vec<f64>,
    /// Runs that a sample is the mean of.
    pub runs: usize,
    /// Sets of inputs that the runs take in turn.
    pub sets: usize,
    /// Bytes of a set.
    pub set_bytes: u64,
    /// How: `graph replays` or `host clock`.
    pub how: &'static str,
}

impl Timing {
    /// The median, seconds.
    pub fn median(&self) -> f64 {
        self.samples.get(self.samples.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Times `case` on `device`: `samples` samples, whose sets of inputs are more than twice `cache` bytes together. The
/// case must have passed: what is timed here is compared with one run of its own only.
///
/// Errors: the case cannot be planned or run; the outputs of the timed runs are not those of one run.
pub fn measure(device: &Arc<dyn Device>, case: &Case, samples: usize, cache: u64) -> Result<Timing> {
    let op = case.descriptor()?;
    let plan = device.plan(&op, &case.bounds()?, &case.plan_options())?;
    let inputs = inputs::generate(case, &op)?;
    let bench = Bench::new(device, case, device.prepare(&plan)?, &inputs, cache)?;
    let once = bench.one_by_one()?;
    // Anew, so that what is compared afterwards was written by timed runs.
    bench.sets.iter().try_for_each(|set| set.reset(POISON))?;
    let runs = bench.runs_of_a_sample()?;
    let (times, how) = bench.sample(samples, runs)?;
    let timed: Vec<u8> = bench.outputs()?;
    if timed != once {
        let at = timed.iter().zip(&once).position(|(a, b)| a != b).unwrap_or(0);
        return Err(Error::invalid("timed outputs", "those of one run", format!("byte {at} differs")));
    }
    let mut samples = times;
    samples.sort_by(f64::total_cmp);
    let set_bytes = bench.sets.first().map_or(0, Placement::bytes);
    Ok(Timing { samples, runs, sets: bench.sets.len(), set_bytes, how })
}

/// A case with everything that its runs need.
struct Bench<'a> {
    device: &'a Arc<dyn Device>,
    prepared: Box<dyn Prepared>,
    sets: Vec<Placement>,
    workspace: Guarded,
}

impl<'a> Bench<'a> {
    fn new(
        device: &'a Arc<dyn Device>,
        case: &Case,
        prepared: Box<dyn Prepared>,
        inputs: &Inputs,
        cache: u64,
    ) -> Result<Self> {
        let plan = prepared.plan();
        let mut sets = vec![place(device, case, plan, inputs)?];
        let bytes = sets[0].bytes().max(1);
        let wanted = (2 * cache).div_ceil(bytes).clamp(1, MOST_SETS) + 1;
        for _ in 1..wanted.min((MOST_BYTES / bytes).max(1)) {
            sets.push(place(device, case, plan, inputs)?);
        }
        let bytes = plan.workspace_bytes as usize;
        let used = 0..bytes;
        let workspace = Guarded::new(device, "workspace", &vec![POISON; bytes], vec![used])?;
        Ok(Self { device, prepared, sets, workspace })
    }

    fn enqueue(&self, stream: msa_core::backend::Stream, number: usize) -> Result<()> {
        let bytes = self.prepared.plan().workspace_bytes;
        let workspace = Span { address: self.workspace.span().address, bytes };
        let args = &self.sets[number % self.sets.len()].args;
        // SAFETY: the buffers of the set and the workspace are live allocations of this device that nothing else uses;
        // runs follow each other on one stream, which is waited for before they are read or freed.
        unsafe { self.prepared.enqueue(stream, args, workspace) }
    }

    /// Runs every set once; the outputs of the first.
    fn one_by_one(&self) -> Result<Vec<u8>> {
        self.sets.iter().try_for_each(|set| set.reset(POISON))?;
        let mut clock = HostClock::new(self.device);
        clock.sample(1, self.sets.len(), &mut |stream, number| self.enqueue(stream, number))?;
        self.outputs()
    }

    fn outputs(&self) -> Result<Vec<u8>> {
        let Some(first) = self.sets.first() else { return Ok(Vec::new()) };
        Ok(first.read()?.iter().flat_map(|c| c.written().collect::<Vec<_>>().concat()).collect())
    }

    /// Whole turns through the sets, for about [`SAMPLE`].
    fn runs_of_a_sample(&self) -> Result<usize> {
        let mut clock = HostClock::new(self.device);
        let turn = self.sets.len();
        let time = clock.sample(2, turn, &mut |stream, number| self.enqueue(stream, number))?;
        let fastest = time.into_iter().fold(f64::INFINITY, f64::min) * turn as f64;
        let turns = (SAMPLE / fastest.max(1e-7)).ceil() as usize;
        Ok((turns.max(1) * turn).min(MOST_RUNS.max(turn)))
    }

    fn sample(&self, samples: usize, runs: usize) -> Result<(Vec<f64>, &'static str)> {
        let mut enqueue = |stream, number| self.enqueue(stream, number);
        let mut clock: Box<dyn Clock> = match CudaClock::new(self.device)? {
            Some(clock) => Box::new(clock),
            None => Box::new(HostClock::new(self.device)),
        };
        Ok((clock.sample(samples, runs, &mut enqueue)?, clock.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use msa_core::args::Args;
    use msa_core::backend::{Memory, Status, Stream};
    use msa_core::device::DeviceInfo;
    use msa_core::plan::Plan;
    use msa_core::variant::Variant;

    #[test]
    fn sets_exceed_the_cache_and_runs_take_whole_turns() {
        let case: Case = "merge(hq=4,hkv=1,hi=1,len=[64x1],states=5)".parse().unwrap();
        let device = msa_ref::device();
        let timing = measure(&device, &case, 3, 1 << 20).unwrap();
        assert!(timing.sets as u64 * timing.set_bytes > 2 << 20, "{timing:?}");
        assert!(timing.runs.is_multiple_of(timing.sets) && timing.samples.len() == 3, "{timing:?}");
        assert!(timing.median() > 0.0 && timing.samples.is_sorted(), "{timing:?}");
        assert_eq!(timing.how, "host clock");
        // A set is larger than any cache that is asked for: two of them all the same.
        assert_eq!(measure(&device, &case, 1, 0).unwrap().sets, 2);
    }

    /// The reference, whose third run and all later ones write nothing: fast, and wrong.
    #[derive(Debug)]
    struct Idle(Arc<dyn Device>);

    struct IdlePrepared(Box<dyn Prepared>, AtomicUsize);

    impl Device for Idle {
        fn info(&self) -> &DeviceInfo {
            self.0.info()
        }
        fn name(&self) -> String {
            self.0.name()
        }
        fn variants(&self) -> &[Variant] {
            self.0.variants()
        }
        fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
            Ok(Box::new(IdlePrepared(self.0.prepare(plan)?, AtomicUsize::new(0))))
        }
        fn memory(&self) -> &dyn Memory {
            self.0.memory()
        }
    }

    impl Prepared for IdlePrepared {
        fn plan(&self) -> &Plan {
            self.0.plan()
        }
        unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
            if self.1.fetch_add(1, Ordering::Relaxed) > 1 {
                return Ok(());
            }
            // SAFETY: the caller's promise.
            unsafe { self.0.enqueue(stream, args, workspace) }
        }
        unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
            // SAFETY: the caller's promise.
            unsafe { self.0.status(stream, workspace) }
        }
    }

    #[test]
    fn a_device_whose_timed_runs_are_wrong_has_no_time() {
        let case: Case = "merge(hq=4,hkv=1,hi=1,len=[5x1],states=5)".parse().unwrap();
        let device: Arc<dyn Device> = Arc::new(Idle(msa_ref::device()));
        let error = measure(&device, &case, 2, 0).unwrap_err().to_string();
        assert!(error.contains("timed outputs: want those of one run"), "{error}");
    }
}
