//! A case on a simulated GPU and on the reference under the same plan: every bit must be the same.

use std::sync::Arc;

use msa_core::backend::Device;
use msa_emu::gfx9::Options;
use msa_fake_hip::Setup;
use msa_tests::memory::Contents;
use msa_tests::oracle::simulate::reference_plan;
use msa_tests::rocm_emu::{self, EmulatedDevice};
use msa_tests::steps::Run;
use msa_tests::trial::{Outputs, Trial};

pub(crate) use msa_tests::rocm_emu::ARCHITECTURES;

/// Formats of queries and KV cache.
pub(crate) const FORMATS: [&str; 3] = ["q=Q8,kv=nvfp4", "q=Q8,kv=KV8", "q=bf16,kv=bf16"];

/// Element of a query, of a key, and their score over 128 channels: very negative.
pub(crate) const LOGITS: &[(f32, f32, f64)] =
    &[(-468.75, 1.0, -6e4), (-7812.5, 1.0, -1e6), (-2.34375e28, 1.0, -3e30)];

/// Queries that attend to FP8 caches.
pub(crate) const QUERIES: &[&str] = &["Q8"];

/// Most that the mean of values 0 and 1 may be off under [`LOGITS`].
pub(crate) const MEAN_ERROR: f64 = 1e-6;

/// `hipStreamNonBlocking`: the default stream and this one do not wait for each other, as with the streams of engines.
pub(crate) const NON_BLOCKING: u32 = 1;

/// A small case of every operation.
pub(crate) const LINES: [&str; 6] = [
    "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300],splits=2)",
    "index_score(hq=4,hkv=1,hi=1,iq=Q8,ik=nvfp4,len=[1x300])",
    "select(hq=4,hkv=1,hi=1,len=[1x3000])",
    "merge(hq=4,hkv=1,hi=1,len=[1x5])",
    "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[1x20])",
    "step(hq=4,hkv=1,hi=1,q=Q8,iq=Q8,kv=nvfp4,ik=nvfp4,appends=true,len=[1x300])",
];

/// True if there are kernels to run.
pub(crate) fn ready() -> bool {
    match rocm_emu::images() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "{error}");
            println!("skipped: {error}");
            false
        }
    }
}

/// `line` with the FP8 flavour of an architecture in place of `Q8` (queries) and `KV8` (caches).
pub(crate) fn flavoured(arch: &str, line: &str) -> String {
    let (query, cache) = if arch == "gfx942" { ("e4m3fnuz", "fp8fnuz") } else { ("e4m3", "fp8") };
    line.replace("KV8", cache).replace("Q8", query)
}

/// A device with an order of waves of its own.
pub(crate) fn device(arch: &str, seed: u64, resident_groups: usize) -> Arc<EmulatedDevice> {
    let options = Options { seed, resident_groups, ..Options::default() };
    Arc::new(EmulatedDevice::with(&Setup { options, ..Setup::of(&[arch]) }).unwrap())
}

/// A case on both.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) device: Arc<EmulatedDevice>,
    pub(crate) trial: Trial,
}

impl Pair {
    pub(crate) fn new(arch: &str, line: &str) -> Self {
        Self::on(&device(arch, 1, 2), line)
    }

    pub(crate) fn on(device: &Arc<EmulatedDevice>, line: &str) -> Self {
        let line = flavoured(device.architecture(), line);
        let own: Arc<dyn Device> = device.clone();
        let trial = Trial::new(&own, line.parse().unwrap()).unwrap_or_else(|error| panic!("{line}: {error}"));
        Self { device: Arc::clone(device), trial }
    }

    /// Runs on both, compares everything that either wrote, and returns the outputs.
    pub(crate) fn run(&self) -> Outputs {
        let own: Arc<dyn Device> = self.device.clone();
        let run = Run::start(&own, &self.trial.case, &self.trial.plan, &self.trial.inputs).unwrap();
        let (got, want) = (run.read().unwrap(), self.reference());
        let outputs = self.trial.outputs(&run, run.status).unwrap();
        let reference = want.read().unwrap();
        compare(&got, &reference, &self.trial.case.to_string());
        assert_eq!(run.status, want.status, "{}", self.trial.case);
        outputs
    }

    /// Bytes of the caches after a run on the device, which must be those of the reference.
    pub(crate) fn caches(&self) -> Vec<Vec<u8>> {
        let own: Arc<dyn Device> = self.device.clone();
        let run = Run::start(&own, &self.trial.case, &self.trial.plan, &self.trial.inputs).unwrap();
        let (got, want) = (run.read().unwrap(), self.reference());
        compare(&got, &want.read().unwrap(), &self.trial.case.to_string());
        assert_eq!(run.status, want.status, "{}", self.trial.case);
        got.iter().filter(|c| c.name().contains("cache")).map(|c| c.bytes().to_vec()).collect()
    }

    fn reference(&self) -> Run {
        let plan = reference_plan(&self.trial.plan).unwrap();
        Run::start(&msa_ref::device(), &self.trial.case, &plan, &self.trial.inputs).unwrap()
    }

    /// Lets the run write anywhere in the caches: a test that moves slots says where by comparing.
    pub(crate) fn open_caches(&mut self) {
        for memory in &mut self.trial.inputs.caches {
            memory.writable = std::iter::once(0..memory.bytes.len()).collect();
        }
    }
}

fn compare(got: &[Contents<'_>], want: &[Contents<'_>], what: &str) {
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got.differences(want, None), None, "{what}");
    }
}

/// Runs a case on both architectures; `change` edits the inputs first.
pub(crate) fn on_both(line: &str, change: impl Fn(&mut Trial)) -> Vec<Outputs> {
    ARCHITECTURES
        .into_iter()
        .map(|arch| {
            let mut pair = Pair::new(arch, line);
            change(&mut pair.trial);
            pair.run()
        })
        .collect()
}

/// Runs a case on both architectures as it is.
pub(crate) fn plain(line: &str) -> Vec<Outputs> {
    on_both(line, |_| {})
}
