//! References that are wrong on purpose: a true backend whose arguments or results are tampered with on their way.
//!
//! Each fault is one that kernels of this kind have had. The checker must catch every one on its smoke set.
#![allow(unsafe_code)]

mod tamper;

use std::fmt;
use std::sync::Arc;

use msa_core::args::Args;
use msa_core::backend::{Backend, Device, Memory, Prepared, Span, Status, Stream};
use msa_core::device::DeviceInfo;
use msa_core::error::{Error, Result};
use msa_core::lengths::Lengths;
use msa_core::op::Op;
use msa_core::plan::{Plan, PlanOptions};
use msa_core::variant::{Support, Variant};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Of blocks with equal scores the higher id wins.
    TieOrder,
    /// The two E2M1 codes of a key byte change places.
    NibbleSwap,
    /// Scales of V are read in the other order.
    ValueScaleOrder,
    /// Every group of a key takes the block scale of the next.
    ScaleShift,
    /// The scales of the key and value tensors count as 1.
    DroppedScale,
    /// The causal mask is missing in a row's own block.
    LocalBlockUnmasked,
    /// The LSE is in base 2 where natural is asked for.
    LseBaseTwo,
    /// The last part of a split is not combined.
    DroppedLastSplit,
    /// Every page is the next one.
    PageOffByOne,
    /// A byte behind the output is written.
    WritePastEnd,
    /// A byte of the workspace is used before it is written.
    StaleWorkspace,
    /// Block scales that are NaN count as zero.
    NanScaleZero,
    /// Byte offsets of pages wrap at 32 bits.
    OffsetWrap,
    /// Every head gets the list of the first.
    HeadCollapsed,
    /// A row behind those of the requests is written.
    PaddedRow,
    /// The process ends.
    Crash,
    /// The call does not return.
    Hang,
}

impl Fault {
    /// Every fault that leaves results behind.
    pub const WRONG: [Self; 15] = [
        Self::TieOrder,
        Self::NibbleSwap,
        Self::ValueScaleOrder,
        Self::ScaleShift,
        Self::DroppedScale,
        Self::LocalBlockUnmasked,
        Self::LseBaseTwo,
        Self::DroppedLastSplit,
        Self::PageOffByOne,
        Self::WritePastEnd,
        Self::StaleWorkspace,
        Self::NanScaleZero,
        Self::OffsetWrap,
        Self::HeadCollapsed,
        Self::PaddedRow,
    ];

    /// Name in the host's options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TieOrder => "tie_order",
            Self::NibbleSwap => "nibble_swap",
            Self::ValueScaleOrder => "v_scale_order",
            Self::ScaleShift => "scale_shift",
            Self::DroppedScale => "dropped_scale",
            Self::LocalBlockUnmasked => "local_block_unmasked",
            Self::LseBaseTwo => "lse_base_two",
            Self::DroppedLastSplit => "dropped_last_split",
            Self::PageOffByOne => "page_off_by_one",
            Self::WritePastEnd => "write_past_end",
            Self::StaleWorkspace => "stale_workspace",
            Self::NanScaleZero => "nan_scale_zero",
            Self::OffsetWrap => "offset_wrap",
            Self::HeadCollapsed => "head_collapsed",
            Self::PaddedRow => "padded_row",
            Self::Crash => "crash",
            Self::Hang => "hang",
        }
    }

    /// From its name.
    pub fn from_name(name: &str) -> Result<Self> {
        let all = || Self::WRONG.into_iter().chain([Self::Crash, Self::Hang]);
        let names = || all().map(Self::name).collect::<Vec<_>>().join(", ");
        all().find(|f| f.name() == name).ok_or_else(|| Error::invalid("options.fault", names(), name))
    }
}

/// `inner` with `fault`.
pub fn faulty(inner: Arc<dyn Backend>, fault: Fault) -> Arc<dyn Backend> {
    Arc::new(Faulty { inner, fault })
}

struct Faulty {
    inner: Arc<dyn Backend>,
    fault: Fault,
}

impl Backend for Faulty {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn version(&self) -> &str {
        self.inner.version()
    }

    fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.inner.devices()
    }

    fn open(&self, ordinal: u32) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(FaultyDevice { inner: self.inner.open(ordinal)?, fault: self.fault }))
    }
}

struct FaultyDevice {
    inner: Arc<dyn Device>,
    fault: Fault,
}

impl fmt::Debug for FaultyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {}", self.inner, self.fault.name())
    }
}

impl Device for FaultyDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn variants(&self) -> &[Variant] {
        self.inner.variants()
    }

    fn support(&self, op: &Op) -> Support {
        self.inner.support(op)
    }

    fn plan(&self, op: &Op, lengths: &Lengths, options: &PlanOptions) -> Result<Plan> {
        self.inner.plan(op, lengths, options)
    }

    fn prepare(&self, plan: &Plan) -> Result<Box<dyn Prepared>> {
        Ok(Box::new(FaultyPrepared { inner: self.inner.prepare(plan)?, fault: self.fault }))
    }

    fn memory(&self) -> &dyn Memory {
        self.inner.memory()
    }
}

struct FaultyPrepared {
    inner: Box<dyn Prepared>,
    fault: Fault,
}

impl Prepared for FaultyPrepared {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    unsafe fn enqueue(&self, stream: Stream, args: &Args, workspace: Span) -> Result<()> {
        let mut args = args.clone();
        // SAFETY: the caller promises that everything `args` and the workspace name is valid and not shared, and the
        // inner device is the host.
        let undo = unsafe { tamper::before(self.fault, self.plan(), &mut args, workspace) };
        // SAFETY: the caller's promise; tampering keeps every address.
        let result = unsafe { self.inner.enqueue(stream, &args, workspace) };
        // SAFETY: the same memory as before.
        unsafe { undo.restore() };
        result?;
        // SAFETY: as above.
        unsafe { tamper::after(self.fault, self.plan(), &args, &undo) };
        Ok(())
    }

    unsafe fn status(&self, stream: Stream, workspace: Span) -> Result<Status> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.status(stream, workspace) }
    }
}
