//! One placement that is run many times, eagerly or as a graph, beside the same on the reference.

use std::sync::Arc;

use msa_core::Role;
use msa_core::backend::{Device, Prepared, Span, Status, Stream};
use msa_core::plan::Plan;
use msa_tests::memory::{Guarded, Placement};
use msa_tests::oracle::simulate::reference_plan;
use msa_tests::perf::{Graph, Recorder};
use msa_tests::steps::place;
use msa_tests::trial::Trial;

use crate::pair::Pair;

/// What outputs hold before a run that is compared.
const POISON: u8 = 0xff;

/// A case that was placed once.
pub(crate) struct Placed {
    device: Arc<dyn Device>,
    placement: Placement,
    prepared: Box<dyn Prepared>,
    workspace: Guarded,
}

impl Placed {
    fn new(device: &Arc<dyn Device>, plan: &Plan, trial: &Trial) -> Self {
        let prepared = device.prepare(plan).unwrap();
        let placement = place(device, &trial.case, plan, &trial.inputs).unwrap();
        let bytes = plan.workspace_bytes as usize;
        let all = std::iter::once(0..bytes).collect();
        let workspace = Guarded::new(device, "workspace", &vec![0x77; bytes], all).unwrap();
        placement.reset(POISON).unwrap();
        Self { device: Arc::clone(device), placement, prepared, workspace }
    }

    fn workspace(&self) -> Span {
        Span { bytes: self.prepared.plan().workspace_bytes, ..self.workspace.span() }
    }

    fn enqueue(&self, stream: Stream) -> msa_core::error::Result<()> {
        // SAFETY: everything was placed on this device and lives as long as this value.
        unsafe { self.prepared.enqueue(stream, &self.placement.args, self.workspace()) }
    }

    fn status(&self, stream: Stream) -> Status {
        // SAFETY: the workspace of the runs of this value.
        unsafe { self.prepared.status(stream, self.workspace()) }.unwrap()
    }

    fn write(&self, role: Role, bytes: &[u8]) {
        let address = self.placement.args.tensor(role).unwrap().address;
        self.device.memory().write(address, bytes).unwrap();
        // Reading waits for the whole device, so that no stream overtakes what was written.
        self.device.memory().read(address, &mut [0]).unwrap();
    }
}

/// A case on the device, captured where the device can, and on the reference.
pub(crate) struct Twin<'a> {
    device: Placed,
    reference: Placed,
    stream: Stream,
    graph: Option<Graph<'a>>,
}

impl<'a> Twin<'a> {
    pub(crate) fn new(pair: &Pair, recorder: Option<&'a Recorder>) -> Self {
        let plan = reference_plan(&pair.trial.plan).unwrap();
        let reference = Placed::new(&msa_ref::device(), &plan, &pair.trial);
        let device = Placed::new(&pair.device, &pair.trial.plan, &pair.trial);
        let graph = recorder.map(|recorder| recorder.capture(|stream| device.enqueue(stream)).unwrap());
        let stream = recorder.map(Recorder::stream).unwrap_or_default();
        Self { device, reference, stream, graph }
    }

    /// Initial inputs and poisoned outputs again.
    pub(crate) fn reset(&self) {
        for placed in [&self.device, &self.reference] {
            placed.placement.reset(POISON).unwrap();
        }
    }

    /// Other contents of an input.
    pub(crate) fn write(&self, role: Role, bytes: &[u8]) {
        [&self.device, &self.reference].iter().for_each(|placed| placed.write(role, bytes));
    }

    pub(crate) fn write_i32s(&self, role: Role, values: &[i32]) {
        self.write(role, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    }

    /// Launches the graph, or enqueues where there is none.
    pub(crate) fn replay(&self) {
        match &self.graph {
            Some(graph) => graph.launch().unwrap(),
            None => self.device.enqueue(self.stream).unwrap(),
        }
    }

    /// Enqueues on the default stream.
    pub(crate) fn eager(&self) {
        self.device.enqueue(Stream::default()).unwrap();
        self.device.device.memory().synchronize(Stream::default()).unwrap();
    }

    /// Runs the reference, and compares every byte of every buffer with what the device has.
    pub(crate) fn check(&self, what: &str) -> Status {
        self.reference.enqueue(Stream::default()).unwrap();
        let want = self.reference.status(Stream::default());
        let status = self.device.status(self.stream);
        assert_eq!(status, want, "{what}");
        let contents = self.device.placement.read().unwrap();
        for (got, want) in contents.iter().zip(self.reference.placement.read().unwrap()) {
            let at = got.bytes().iter().zip(want.bytes()).position(|(a, b)| a != b);
            assert_eq!(at, None, "{what}: {} differs", got.name());
        }
        status
    }

    /// What the device has in every buffer.
    pub(crate) fn bytes(&self) -> Vec<Vec<u8>> {
        self.device.placement.read().unwrap().iter().map(|contents| contents.bytes().to_vec()).collect()
    }
}
