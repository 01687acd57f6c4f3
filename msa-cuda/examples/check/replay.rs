//! `check graph`: graphs whose inputs change between replays, and `check streams`: two streams at once.
//!
//! A graph holds several runs over different arguments in one workspace, so that stages of neighbouring runs may overlap
//! where nothing but their order protects the workspace.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use msa_core::backend::{Device, Status};
use msa_core::error::{Error, Result};

use crate::cases::{Case, Random};
use crate::device::{self, Outcome, Placed};
use crate::driver::{self, Graph};

/// Runs in one graph.
const RUNS: usize = 3;

/// Replays of a graph.
const REPLAYS: usize = 3;

/// Enqueues of one thread before it waits.
const ENQUEUES: usize = 12;

/// How many random cases, from which seed, for how long.
#[derive(Clone, Copy)]
pub(crate) struct Amount {
    /// The only op, if one is named.
    pub(crate) only: Option<&'static str>,
    pub(crate) count: u64,
    pub(crate) seed: u64,
    pub(crate) limit: Duration,
}

impl Amount {
    pub(crate) fn cases(&self) -> impl Iterator<Item = (u64, Case, Random)> + use<> {
        let (start, Self { only, count, seed, limit }) = (Instant::now(), *self);
        (0..count).take_while(move |_| start.elapsed() < limit).map(move |number| {
            let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number));
            (number, Case::random(&mut random, only), random)
        })
    }
}

/// Outcomes by kind.
#[derive(Default)]
struct Tally {
    hits: BTreeMap<String, u64>,
    failed: u64,
    compared: u64,
}

impl Tally {
    fn hit(&mut self, what: String) {
        *self.hits.entry(what).or_default() += 1;
    }

    /// Compares outputs, and the status if it is that of this run; pages the device looks at beyond the reference's are known.
    fn compare(&mut self, name: &str, want: &Outcome, got: &Outcome, status: bool, case: &Case) {
        self.compared += 1;
        let bits = |s: Status| s.0 & !Status::PAGE;
        let difference = want.difference(got);
        let other = status && bits(want.status) != bits(got.status);
        let difference =
            difference.or_else(|| other.then(|| format!("status {} want {}", got.status, want.status)));
        if let Some(difference) = difference {
            self.failed += 1;
            println!("{name}: {difference}: {case}");
        }
    }

    fn finish(self) -> u64 {
        self.hits.iter().for_each(|(what, hit)| println!("{hit:7} {what}"));
        println!("{} runs compared, {} failed", self.compared, self.failed);
        self.failed
    }
}

/// Differing runs under graph replay.
pub(crate) fn graphs(device: &dyn Device, amount: Amount) -> Result<u64> {
    driver::enter()?;
    let stream = driver::stream()?;
    let (reference, mut tally) = (msa_ref::device(), Tally::default());
    for (number, case, mut random) in amount.cases() {
        let Ok(plan) = device.plan(&case.op, &case.bounds, &case.options) else { continue };
        tally.hit(format!("graphs of {}", plan.variant));
        let prepared = device.prepare(&plan)?;
        let placed = (0..RUNS).map(|_| Placed::new(device, &plan, &case)).collect::<Result<Vec<_>>>()?;
        let workspace = placed[0].workspace;
        let graph = Graph::capture(stream, || {
            // SAFETY: what was placed lives until the replays are done.
            placed.iter().try_for_each(|p| unsafe { prepared.enqueue(stream, &p.args, workspace) })
        })?;
        for replay in 0..REPLAYS {
            let cases: Vec<Case> = (0..RUNS).map(|_| case.varied(&mut random)).collect();
            cases.iter().zip(&placed).try_for_each(|(case, placed)| placed.rewrite(case))?;
            graph.launch(stream)?;
            // SAFETY: the workspace is the one that the graph uses.
            let status = unsafe { prepared.status(stream, workspace) }?;
            for (run, (case, placed)) in cases.iter().zip(&placed).enumerate() {
                let want = device::run(&*reference, &device::as_reference(&plan), case)?;
                let got = placed.outcome(case, status)?;
                let name =
                    format!("case {number} seed {} replay {replay} run {run} {}", amount.seed, plan.variant);
                tally.compare(&name, &want, &got, run + 1 == RUNS, case);
            }
        }
        graph.free()?;
        placed.into_iter().try_for_each(Placed::free)?;
    }
    Ok(tally.finish())
}

/// Differing runs on two streams at once, each with its own thread, arguments and workspace.
pub(crate) fn streams(device: &dyn Device, amount: Amount) -> Result<u64> {
    driver::enter()?;
    let streams = [driver::stream()?, driver::stream()?];
    let (reference, mut tally) = (msa_ref::device(), Tally::default());
    for (number, case, mut random) in amount.cases() {
        // Two runs of one plan, or of two.
        let other =
            if random.chance(50) { case.varied(&mut random) } else { Case::random(&mut random, amount.only) };
        let cases = [case, other];
        let plan = |case: &Case| device.plan(&case.op, &case.bounds, &case.options);
        let [Ok(first), Ok(second)] = cases.each_ref().map(plan) else { continue };
        let plans = [first, second];
        tally.hit(format!("{} beside {}", plans[0].op.name(), plans[1].op.name()));
        let one = device.prepare(&plans[0])?;
        let two = if plans[0] == plans[1] { None } else { Some(device.prepare(&plans[1])?) };
        let prepared = [&*one, two.as_deref().unwrap_or(&*one)];
        let placed = [Placed::new(device, &plans[0], &cases[0])?, Placed::new(device, &plans[1], &cases[1])?];
        let statuses = std::thread::scope(|scope| {
            let work = |side: usize| {
                let (placed, prepared, stream) = (&placed[side], prepared[side], streams[side]);
                move || -> Result<Status> {
                    for _ in 0..ENQUEUES {
                        // SAFETY: what was placed lives until both threads are done.
                        unsafe { prepared.enqueue(stream, &placed.args, placed.workspace) }?;
                    }
                    // SAFETY: as above.
                    unsafe { prepared.status(stream, placed.workspace) }
                }
            };
            [0, 1].map(|side| scope.spawn(work(side))).map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err(Error::Plan("a thread of the check panicked".to_owned())))
            })
        });
        for (side, status) in statuses.into_iter().enumerate() {
            let want = device::run(&*reference, &device::as_reference(&plans[side]), &cases[side])?;
            let got = placed[side].outcome(&cases[side], status?)?;
            let name = format!("case {number} seed {} stream {side} {}", amount.seed, plans[side].variant);
            tally.compare(&name, &want, &got, true, &cases[side]);
        }
        placed.into_iter().try_for_each(Placed::free)?;
    }
    Ok(tally.finish())
}
