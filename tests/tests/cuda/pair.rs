//! A case on the GPU and on the reference under the same plan: every bit must be the same.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use msa_core::backend::Device;
use msa_core::registry::Registry;
use msa_tests::memory::Contents;
use msa_tests::oracle::simulate::reference_plan;
use msa_tests::rehearsal;
use msa_tests::steps::Run;
use msa_tests::trial::{Outputs, Trial};

/// The one device, whatever it is: rows that run on every architecture run once.
pub(crate) const ARCHITECTURES: [&str; 1] = ["cuda"];

/// Formats of queries and KV cache.
pub(crate) const FORMATS: [&str; 5] =
    ["q=Q8,kv=nvfp4", "q=Q8,kv=KV8", "q=bf16,kv=bf16", "q=bf16,kv=nvfp4", "q=bf16,kv=KV8"];

/// Element of a query, of a key, and their score over 128 channels: very negative.
pub(crate) const LOGITS: &[(f32, f32, f64)] =
    &[(-468.75, 1.0, -6e4), (-7812.5, 1.0, -1e6), (-2.34375e28, 1.0, -3e30)];

/// Queries that attend to FP8 caches.
pub(crate) const QUERIES: &[&str] = &["Q8", "bf16"];

/// Most that the mean of values 0 and 1 may be off under [`LOGITS`]: P is rounded to bf16, half an ulp, where it meets V.
pub(crate) const MEAN_ERROR: f64 = 0.5 / 512.0;

/// The driver refuses to synchronise a context while a stream of it is being captured: those who capture are alone.
static CONTEXT: RwLock<()> = RwLock::new(());

/// A thread's share of the context; it ends with the thread, or with the next test of the thread.
enum Share {
    Common { _guard: RwLockReadGuard<'static, ()> },
    Alone { _guard: RwLockWriteGuard<'static, ()> },
}

thread_local! {
    static SHARE: RefCell<Option<Share>> = const { RefCell::new(None) };
}

fn take(share: impl FnOnce() -> Share) {
    SHARE.with_borrow_mut(|own| {
        // What the thread holds is given back first.
        *own = None;
        *own = Some(share());
    });
}

/// The device that the tests run on, or why there is none.
fn found() -> Result<Arc<dyn Device>, String> {
    /// With the registry, which holds the plugin.
    type Found = (Arc<dyn Device>, Registry);
    static FOUND: OnceLock<Result<Found, String>> = OnceLock::new();
    let open = || {
        let name = std::env::var("MSA_TEST_DEVICE").unwrap_or_else(|_| "cuda:0".to_owned());
        let mut registry = Registry::with_reference(msa_ref::backend());
        if let Some(arch) = name.strip_prefix(rehearsal::PREFIX) {
            let device = rehearsal::open(arch, None).map_err(|error| error.to_string())?;
            return Ok((device, registry));
        }
        let report = registry.load_default();
        let refused: Vec<String> = report.refused.iter().map(ToString::to_string).collect();
        let device = registry.open(&name).map_err(|error| format!("{error}; {}", refused.join("; ")))?;
        Ok((device, registry))
    };
    FOUND.get_or_init(open).as_ref().map(|(device, _)| Arc::clone(device)).map_err(Clone::clone)
}

/// True if there is a device to run on.
pub(crate) fn ready() -> bool {
    take(|| Share::Common { _guard: CONTEXT.read().unwrap_or_else(PoisonError::into_inner) });
    match found() {
        Ok(_) => true,
        Err(reason) => {
            assert!(std::env::var_os("MSA_REQUIRE_CUDA").is_none(), "{reason}");
            println!("skipped: {reason}");
            false
        }
    }
}

/// As [`ready`], with no other test of this process on the device.
pub(crate) fn ready_alone() -> bool {
    let ready = ready();
    take(|| Share::Alone { _guard: CONTEXT.write().unwrap_or_else(PoisonError::into_inner) });
    ready
}

/// The device, which [`ready`] said is there; there are no orders of waves to choose from.
pub(crate) fn device(_arch: &str, _seed: u64, _resident_groups: usize) -> Arc<dyn Device> {
    found().unwrap()
}

/// A case on both.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) trial: Trial,
}

impl Pair {
    pub(crate) fn new(arch: &str, line: &str) -> Self {
        Self::on(&device(arch, 0, 0), line)
    }

    pub(crate) fn on(device: &Arc<dyn Device>, line: &str) -> Self {
        let line = line.replace("KV8", "fp8").replace("Q8", "e4m3");
        let trial =
            Trial::new(device, line.parse().unwrap()).unwrap_or_else(|error| panic!("{line}: {error}"));
        Self { device: Arc::clone(device), trial }
    }

    /// Runs on both, compares everything that either wrote, and returns the outputs.
    pub(crate) fn run(&self) -> Outputs {
        let (run, _) = self.compared();
        self.trial.outputs(&run, run.status).unwrap()
    }

    /// Bytes of the caches after a run on the device, which must be those of the reference.
    pub(crate) fn caches(&self) -> Vec<Vec<u8>> {
        self.compared().1
    }

    fn compared(&self) -> (Run, Vec<Vec<u8>>) {
        let run = Run::start(&self.device, &self.trial.case, &self.trial.plan, &self.trial.inputs).unwrap();
        let plan = reference_plan(&self.trial.plan).unwrap();
        let want = Run::start(&msa_ref::device(), &self.trial.case, &plan, &self.trial.inputs).unwrap();
        let got = run.read().unwrap();
        compare(&got, &want.read().unwrap(), &self.trial.case.to_string());
        assert_eq!(run.status, want.status, "{}", self.trial.case);
        let caches = got.iter().filter(|c| c.name().contains("cache")).map(|c| c.bytes().to_vec()).collect();
        drop(got);
        (run, caches)
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
        assert_eq!(got.differences(want, None), None, "{what}: {}", got.name());
    }
}

/// Runs a case; `change` edits the inputs first.
pub(crate) fn on_both(line: &str, change: impl Fn(&mut Trial)) -> Vec<Outputs> {
    let mut pair = Pair::new(ARCHITECTURES[0], line);
    change(&mut pair.trial);
    vec![pair.run()]
}

/// Runs a case as it is.
pub(crate) fn plain(line: &str) -> Vec<Outputs> {
    on_both(line, |_| {})
}
