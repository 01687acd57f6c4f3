//! A case of the harness that is placed on a device: run on any stream, compared with the reference's run of its plan.

use std::sync::Arc;

use msa_core::args::Role;
use msa_core::backend::{Device, Prepared, Span, Status, Stream};
use msa_core::error::Result;
use msa_core::op::OpKind;
use msa_tests::memory::Placement;
use msa_tests::oracle::simulate::reference_plan;
use msa_tests::trial::Trial;

/// Few rows of everything, and an empty request.
pub(crate) const DECODE: &str = "sparse_decode(len=[1x300,3x129,0x0],kv=nvfp4,q=e4m3,lists=holes,out=f32)";
pub(crate) const INDEX: &str = "index_score(len=[1x300,3x129],ik=fp8,iq=e4m3)";
pub(crate) const APPEND: &str = "append(len=[5x300,3x65],kv=nvfp4,ik=fp8,q=e4m3,iq=e4m3,scales=true)";
pub(crate) const MERGE: &str = "merge(len=[5x1],states=5,out=f32)";
pub(crate) const STEP: &str =
    "step(len=[1x300,3x129,0x0],appends=true,kv=nvfp4,ik=nvfp4,q=e4m3,iq=e4m3,scales=true,pad=2)";
pub(crate) const SELECT: &str = "select(len=[1x9000,3x129],in=ties)";

/// A case on a device.
pub(crate) struct Work {
    pub(crate) trial: Trial,
    pub(crate) placement: Placement,
    pub(crate) prepared: Box<dyn Prepared>,
    pub(crate) workspace: Span,
    device: Arc<dyn Device>,
    /// Inputs that the test has written.
    changed: Vec<Role>,
}

impl Work {
    pub(crate) fn new(device: &Arc<dyn Device>, line: &str) -> Self {
        Self::of(device, Trial::new(device, line.parse().unwrap()).unwrap())
    }

    /// A case whose inputs the test has changed.
    pub(crate) fn of(device: &Arc<dyn Device>, trial: Trial) -> Self {
        let prepared = device.prepare(&trial.plan).unwrap();
        let placement = Placement::new(device, &trial.inputs, trial.case.gap, written_rows(&trial)).unwrap();
        placement.reset(0xff).unwrap();
        let bytes = trial.plan.workspace_bytes;
        let workspace = Span { address: device.memory().allocate(bytes).unwrap(), bytes };
        Self { trial, placement, prepared, workspace, device: device.clone(), changed: Vec::new() }
    }

    pub(crate) fn enqueue(&self, stream: u64) -> Result<()> {
        // SAFETY: the placement and the workspace live on the device.
        unsafe { self.prepared.enqueue(Stream(stream), &self.placement.args, self.workspace) }
    }

    /// With a workspace that has so many bytes.
    pub(crate) fn enqueue_into(&self, stream: u64, bytes: u64) -> Result<()> {
        let workspace = Span { bytes, ..self.workspace };
        // SAFETY: as above; a workspace that is too small is refused.
        unsafe { self.prepared.enqueue(Stream(stream), &self.placement.args, workspace) }
    }

    pub(crate) fn status(&self, stream: u64) -> Result<Status> {
        // SAFETY: the workspace lives on the device.
        unsafe { self.prepared.status(Stream(stream), self.workspace) }
    }

    /// Writes an input of i32 values, on the device and for the reference.
    pub(crate) fn set_i32s(&mut self, role: Role, values: &[i32]) {
        let bytes = self.change_i32s(role, values);
        self.device.memory().write(self.address(role), &bytes).unwrap();
    }

    /// The same, when `stream` comes to it.
    pub(crate) fn upload_i32s(&mut self, stream: u64, role: Role, values: &[i32]) {
        let bytes = self.change_i32s(role, values);
        crate::engine::upload(stream, self.address(role), &bytes);
    }

    /// Writes an input of i64 values when `stream` comes to it.
    pub(crate) fn upload_i64s(&mut self, stream: u64, role: Role, values: &[i64]) {
        self.changed.push(role);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.trial.bytes(role).unwrap().clone_from(&bytes);
        crate::engine::upload(stream, self.address(role), &bytes);
    }

    fn change_i32s(&mut self, role: Role, values: &[i32]) -> Vec<u8> {
        self.changed.push(role);
        self.trial.set_i32s(role, values).unwrap();
        self.trial.bytes(role).unwrap().clone()
    }

    pub(crate) fn address(&self, role: Role) -> u64 {
        self.placement.args.tensor(role).unwrap().address
    }

    /// Every byte is what the reference leaves, in the outputs and around them. Returns the reference's status.
    pub(crate) fn check(&self) -> Status {
        let reference = msa_ref::device();
        let rows = written_rows(&self.trial);
        let own = Placement::new(&reference, &self.trial.inputs, self.trial.case.gap, rows).unwrap();
        own.reset(0xff).unwrap();
        let plan = reference_plan(&self.trial.plan).unwrap();
        let bytes = plan.workspace_bytes;
        let workspace = Span { address: reference.memory().allocate(bytes).unwrap(), bytes };
        let prepared = reference.prepare(&plan).unwrap();
        // SAFETY: the placement and the workspace live in this function.
        unsafe { prepared.enqueue(Stream(0), &own.args, workspace) }.unwrap();
        if self.changed.contains(&Role::Slots) {
            self.check_caches(&own);
        }
        let (got, want) = (self.placement.read().unwrap(), own.read().unwrap());
        for (got, want) in got.iter().zip(&want) {
            // A cache with other slots than the harness gave was compared whole.
            let changed = self.changed.iter().any(|role| role.name() == got.name());
            let changed = changed || self.changed.contains(&Role::Slots) && got.name().contains("cache");
            assert!(changed || got.trespass().is_none(), "{}: {:?}", got.name(), got.trespass());
            let tensor = self.placement.args.tensors().iter().find(|(role, _)| role.name() == got.name());
            assert_eq!(got.differences(want, tensor.map(|(_, tensor)| tensor)), None);
        }
        // SAFETY: as above.
        unsafe { prepared.status(Stream(0), workspace) }.unwrap()
    }

    fn check_caches(&self, own: &Placement) {
        let caches = self.placement.buffers.iter().zip(&own.buffers);
        for (got, want) in caches.filter(|(got, _)| got.name.contains("cache")) {
            let (got, want) = (got.span(), want.span());
            let mut bytes = vec![0; got.bytes as usize];
            self.device.memory().read(got.address, &mut bytes).unwrap();
            // SAFETY: the reference's memory is the host's, and the placement lives.
            let want = unsafe { std::slice::from_raw_parts(want.address as *const u8, bytes.len()) };
            assert_eq!(bytes.iter().zip(want).position(|(a, b)| a != b), None);
        }
    }

    /// Poisons the outputs again.
    pub(crate) fn reset(&self) {
        self.placement.reset(0xff).unwrap();
    }

    /// Enqueues, waits and compares.
    pub(crate) fn run(&self, stream: u64) {
        self.enqueue(stream).unwrap();
        let status = self.status(stream).unwrap();
        assert_eq!(status, self.check());
    }
}

/// Merges and appends have no requests: every row is written.
fn written_rows(trial: &Trial) -> u64 {
    match trial.case.op {
        OpKind::Append | OpKind::Merge | OpKind::SelectMerge => trial.inputs.rows,
        _ => trial.case.rows().into(),
    }
}

/// The first device of the fake driver.
pub(crate) fn device() -> Arc<dyn Device> {
    msa_cuda::backend().open(0).unwrap()
}
