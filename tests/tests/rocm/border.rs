//! The plugin that was built, loaded by a process that finds the simulated runtime: enqueueing allocates nothing on either side
//! of the border.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use msa_core::backend::{Device, Span, Stream};
use msa_core::loader;
use msa_tests::counted::{Allocations, preload};
use msa_tests::memory::{Contents, Placement};
use msa_tests::oracle::simulate::reference_plan;
use msa_tests::plugin_files::vendor_plugin;
use msa_tests::trial::Trial;

use crate::pair::{ARCHITECTURES, LINES, flavoured, ready};

/// Says that a process is the one that counts.
const CHILD: &str = "MSA_TEST_COUNTS";

/// Besides [`LINES`]: what two ranks found, a checked run, and pages that are shared.
const MORE: [&str; 3] = [
    "select_merge(hq=4,hkv=1,hi=1,len=[1x3000],world=2)",
    "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=KV8,ik=KV8,appends=true,len=[1x300],checked=true)",
    "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=nvfp4,len=[2x300,3x700],variant=sparse_decode.q8kv4.ARCH.shared)",
];

fn simulated() -> PathBuf {
    std::env::current_exe().unwrap().with_file_name("libmsa_fake_hip.so")
}

#[test]
fn abi_11_enqueue_through_the_border_allocates_nothing_on_either_side() {
    let Some(plugin) = vendor_plugin("rocm") else { return };
    if !ready() {
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        let backend = loader::open(&plugin, "").unwrap();
        let devices = [0, 1].map(|ordinal| backend.open(ordinal).unwrap());
        let allocations = Allocations::except_by(&simulated()).unwrap();
        assert_eq!(allocations.during(|| drop(std::hint::black_box(vec![1_u8; 100]))), 1, "they are counted");
        for (device, arch) in devices.iter().zip(ARCHITECTURES) {
            for line in LINES.into_iter().chain(MORE) {
                count(&allocations, device, &flavoured(arch, line).replace("ARCH", arch));
            }
        }
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "border::abi_11_enqueue_through_the_border_allocates_nothing_on_either_side";
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    command.env("LD_PRELOAD", preload(folder.path())).env("MSA_HIP_LIBRARY", simulated());
    command.env("MSA_FAKE_HIP_DEVICES", ARCHITECTURES.join(","));
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{}:\n{text}", output.status);
}

/// Runs a case, counting, and compares what it wrote with the reference.
fn count(allocations: &Allocations, device: &Arc<dyn Device>, line: &str) {
    let trial = Trial::new(device, line.parse().unwrap()).unwrap();
    let reference = msa_ref::device();
    let own = Placed::new(device, &trial, &trial.plan);
    let want = Placed::new(&reference, &trial, &reference_plan(&trial.plan).unwrap());
    assert_eq!(allocations.during(|| own.enqueue()), 0, "{}: {line}", device.name());
    want.enqueue();
    assert_eq!(own.status(), want.status(), "{line}");
    let (got, want) = (own.contents(), want.contents());
    assert!(got.iter().zip(&want).all(|(got, want)| got.differences(want, None).is_none()), "{line}");
    // Refused on the plugin's side: the error is counted there and here.
    let refused = || drop(own.enqueue_into(Span { bytes: 0, ..own.workspace }).unwrap_err());
    assert!(allocations.during(refused) > 3);
}

struct Placed {
    prepared: Box<dyn msa_core::backend::Prepared>,
    placement: Placement,
    workspace: Span,
}

impl Placed {
    fn new(device: &Arc<dyn Device>, trial: &Trial, plan: &msa_core::plan::Plan) -> Self {
        let placement = Placement::new(device, &trial.inputs, 0, trial.inputs.rows).unwrap();
        placement.reset(0x33).unwrap();
        let bytes = plan.workspace_bytes;
        let workspace = Span { address: device.memory().allocate(bytes).unwrap(), bytes };
        Self { prepared: device.prepare(plan).unwrap(), placement, workspace }
    }

    fn enqueue_into(&self, workspace: Span) -> msa_core::error::Result<()> {
        // SAFETY: everything was placed on this device and stays; a workspace that is too small is refused.
        unsafe { self.prepared.enqueue(Stream(0), &self.placement.args, workspace) }
    }

    fn enqueue(&self) {
        self.enqueue_into(self.workspace).unwrap();
    }

    fn status(&self) -> msa_core::backend::Status {
        // SAFETY: the workspace of the run above.
        unsafe { self.prepared.status(Stream(0), self.workspace) }.unwrap()
    }

    fn contents(&self) -> Vec<Contents<'_>> {
        self.placement.read().unwrap()
    }
}
