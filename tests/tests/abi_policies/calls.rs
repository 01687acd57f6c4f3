//! Policies that show once a plugin is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use msa_core::abi::owned::{Buffer, OwnedTensor};
use msa_core::args::{Args, Role};
use msa_core::backend::{Backend, Device, Span, Stream};
use msa_core::error::{Error, Result};
use msa_core::loader;
use msa_core::op::{Op, OpKind};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};
use msa_core::variant::Support;
use msa_tests::decode_case::{self, Inputs, WORKSPACE};
use msa_tests::plugin_files::{hostile, test_plugin};
use tempfile::{TempDir, tempdir};

fn plugin(options: &str) -> Arc<dyn Backend> {
    loader::open(&test_plugin(), &format!("backend = echo\n{options}")).unwrap()
}

fn hostile_plugin(definitions: &[&str]) -> (TempDir, Arc<dyn Backend>) {
    let folder = tempdir().unwrap();
    let backend = loader::open(&hostile(folder.path(), "hostile", definitions), "").unwrap();
    (folder, backend)
}

/// Number and detail of the policy that an error names.
fn broken(result: Result<impl Sized>) -> (&'static str, String) {
    match result.err().unwrap() {
        Error::Plugin { policy, detail, .. } => (policy.split(' ').next().unwrap(), detail),
        other => panic!("no policy: {other}"),
    }
}

#[test]
fn abi_06_unknown_numbers_are_errors() {
    let (_folder, backend) = hostile_plugin(&["STATUS=0xdeadbeefu"]);
    let (policy, detail) = broken(backend.open(0));
    assert_eq!((policy, detail.as_str()), ("ABI-6", "status 3735928559 is unknown: "));
    let (_folder, backend) = hostile_plugin(&["ARCH=77"]);
    assert_eq!(broken(backend.devices()).0, "ABI-6");
    let (_folder, backend) = hostile_plugin(&["DEVICE_COUNT=4000000000u"]);
    assert_eq!(broken(backend.devices()), ("ABI-6", "4000000000 devices".to_owned()));
    let (_folder, backend) = hostile_plugin(&["NULL_DEVICE"]);
    assert_eq!(broken(backend.open(0)).0, "ABI-6");
    let (_folder, backend) = hostile_plugin(&["ANSWER=2"]);
    let Support::No { reasons } = backend.open(0).unwrap().support(&Op::of(OpKind::Merge)) else { panic!() };
    assert!(reasons[0].contains("support answered 2"), "{reasons:?}");
}

#[test]
fn abi_07_text_that_does_not_fit_its_own_length_is_an_error() {
    let (_folder, backend) = hostile_plugin(&["LIE=0x7fffffffffff"]);
    assert_eq!(broken(backend.devices()), ("ABI-7", "a text of 140737488355333 bytes".to_owned()));
    let (_folder, backend) = hostile_plugin(&["LIE=1000"]);
    assert_eq!(broken(backend.devices()), ("ABI-7", "a name of 1006 bytes".to_owned()));
}

#[test]
fn a_plan_that_is_nonsense_is_an_error() {
    let (_folder, backend) = hostile_plugin(&[]);
    let device = backend.open(0).unwrap();
    let lengths = decode_case::lengths().unwrap();
    let error = device.plan(&decode_case::op(), &lengths, &PlanOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "plan: line 1: plan.version: want a u32, got 'nonsense'");
}

#[test]
fn errors_of_a_plugin_are_those_of_the_linked_backend() {
    let (linked, across) = (linked_device(), plugin("").open(0).unwrap());
    let lengths = decode_case::lengths().unwrap();
    let both = |op: &Op, options: &PlanOptions| {
        (linked.plan(op, &lengths, options).unwrap_err(), across.plan(op, &lengths, options).unwrap_err())
    };
    let rename = |error: Error| match error {
        Error::Unsupported { op, reasons, .. } => Error::Unsupported { op, backend: String::new(), reasons },
        other => other,
    };
    let mut odd = decode_case::op();
    if let Op::SparseDecode(op) = &mut odd {
        op.geometry.top_k = 64;
    }
    let narrow =
        PlanOptions { variant: Some("sparse_decode.q16kv16.cpu.narrow".into()), ..PlanOptions::default() };
    let nobody = PlanOptions { variant: Some("nobody".into()), ..PlanOptions::default() };
    for (op, options) in [
        (&odd, &PlanOptions::default()),
        (&Op::of(OpKind::Merge), &PlanOptions::default()),
        (&decode_case::op(), &narrow),
        (&decode_case::op(), &nobody),
    ] {
        let (linked, across) = both(op, options);
        assert_eq!(rename(linked), rename(across));
        assert_eq!(linked_device().support(op), plugin("").open(0).unwrap().support(op));
    }
}

fn linked_device() -> Arc<dyn Device> {
    msa_test_plugin::echo().open(0).unwrap()
}

#[test]
fn arguments_that_break_the_contract_are_errors_on_this_side() {
    let device = plugin("").open(0).unwrap();
    let plan =
        device.plan(&decode_case::op(), &decode_case::lengths().unwrap(), &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    let workspace = Buffer::new(&device, WORKSPACE).unwrap();
    let span = Span { address: workspace.span().address, bytes: WORKSPACE };
    let enqueue = |args: &Args, span| {
        // SAFETY: the arguments are refused before anything is touched.
        unsafe { prepared.enqueue(Stream(0), args, span) }.unwrap_err()
    };
    assert_eq!(enqueue(&Args::new(), span), Error::Missing { op: "sparse_decode", role: "query" });
    let inputs = Inputs::new(&device).unwrap();
    let (output, lse) = inputs.outputs(&device).unwrap();
    let args = inputs.args().with(Role::Output, output.view()).with(Role::Lse, lse.view());
    let wrong = args.clone().with(Role::Query, Tensor::contiguous(0, DType::F32, &[3, 4, 64]).unwrap());
    assert!(matches!(enqueue(&wrong, span), Error::Invalid { field, .. } if field.starts_with("query")));
    let odd = Span { address: span.address + 1, ..span };
    assert!(matches!(enqueue(&args, odd), Error::Invalid { field, .. } if field == "workspace.address"));
    assert!(device.memory().free(1).is_err());
    assert!(device.prepare(&msa_core::plan::Plan { workspace_bytes: 7, ..plan }).is_err());
}

/// Does what reaches one function of the table.
type Reach = fn(&Probe) -> Result<()>;

/// Calls that reach `function` of the table, in the order in which a run reaches them.
const CALLS: [(&str, Reach); 17] = [
    ("device_count", |p| p.backend.devices().map(drop)),
    ("device_info", |p| p.backend.devices().map(drop)),
    ("device_open", |p| p.backend.open(0).map(drop)),
    ("variant_count", |p| p.backend.open(0).map(drop)),
    ("variant", |p| p.backend.open(0).map(drop)),
    ("support", |p| {
        p.device(|device| match device.support(&decode_case::op()) {
            Support::Yes { .. } => Ok(()),
            Support::No { reasons } if reasons[0].contains("panicked") => Err(Error::Plugin {
                path: test_plugin(),
                policy: "ABI-8 (no unwinding)",
                detail: reasons[0].clone(),
            }),
            Support::No { reasons } => panic!("{reasons:?}"),
        })
    }),
    ("plan", |p| p.run()),
    ("prepare", |p| p.run()),
    ("enqueue", |p| p.run()),
    ("status", |p| p.run()),
    ("allocate", |p| p.run()),
    ("write", |p| p.run()),
    ("read", |p| p.run()),
    ("release", |p| p.device(|device| device.memory().free(device.memory().allocate(8)?))),
    ("synchronize", |p| p.device(|device| device.memory().synchronize(Stream(0)))),
    // Closing and freeing have nobody to tell: they must not take the process with them.
    ("prepared_free", |p| p.run()),
    ("device_close", |p| p.run()),
];

struct Probe {
    backend: Arc<dyn Backend>,
}

impl Probe {
    fn device(&self, body: impl Fn(&Arc<dyn Device>) -> Result<()>) -> Result<()> {
        let device = self.backend.open(0)?;
        let first = body(&device);
        if first.is_err() {
            let again = body(&device).unwrap_err().to_string();
            assert!(again.contains("is lost"), "the device was used after a panic: {again}");
        }
        first
    }

    fn run(&self) -> Result<()> {
        self.device(|device| decode_case::run(device).map(drop))
    }
}

#[test]
fn abi_08_n06_a_panic_in_every_function_is_an_error_and_loses_the_device() {
    for (function, call) in CALLS {
        let probe = Probe { backend: plugin(&format!("panic = {function}")) };
        match call(&probe) {
            Ok(()) => {
                assert!(matches!(function, "prepared_free" | "device_close"), "{function} did not panic")
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains("ABI-8") && text.contains(&format!("{function}: planted")), "{text}");
            }
        }
    }
    decode_case::run(&plugin("").open(0).unwrap()).unwrap();
}

#[test]
fn abi_10_64_threads_open_and_run_at_once() {
    const THREADS: usize = 64;
    let shared = plugin("").open(0).unwrap();
    let wanted = decode_case::run(&shared).unwrap();
    let plan =
        shared.plan(&decode_case::op(), &decode_case::lengths().unwrap(), &PlanOptions::default()).unwrap();
    let prepared = shared.prepare(&plan).unwrap();
    let inputs = Inputs::new(&shared).unwrap();
    let done = AtomicUsize::new(0);
    let start = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                let own = plugin("").open(0).unwrap();
                assert_eq!(decode_case::run(&own).unwrap(), wanted);
                // One prepared plan, with a workspace and outputs of this thread's own.
                let workspace = Buffer::new(&shared, WORKSPACE).unwrap();
                let (output, lse) = inputs.outputs(&shared).unwrap();
                let args = inputs.args().with(Role::Output, output.view()).with(Role::Lse, lse.view());
                // SAFETY: workspace and outputs are this thread's, the inputs are only read.
                unsafe { prepared.enqueue(Stream(0), &args, workspace.span()) }.unwrap();
                assert_eq!(output.to_bytes().unwrap(), wanted.output);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), THREADS);
}

#[test]
fn abi_11_enqueueing_is_one_call_and_neither_allocates_nor_waits() {
    let (_folder, backend) = hostile_plugin(&["MEMORY"]);
    let device = backend.open(0).unwrap();
    let linked = linked_device();
    let plan =
        linked.plan(&decode_case::op(), &decode_case::lengths().unwrap(), &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    // The C plugin answers a status query with the number of calls of the function that the stream names.
    let calls = |function: u64| {
        // SAFETY: the C plugin looks at no address.
        unsafe { prepared.status(Stream(function), Span::default()) }.unwrap().0
    };
    let all = || (0..17).filter(|function| *function != 11).map(calls).collect::<Vec<_>>();
    let before = all();
    for _ in 0..5 {
        // SAFETY: as above.
        unsafe { prepared.enqueue(Stream(3), &Args::new(), Span::default()) }.unwrap();
    }
    let mut want = before;
    want[10] += 5;
    assert_eq!(all(), want);
}

#[test]
fn abi_14_without_a_driver_a_plugin_loads_and_says_why() {
    let backend = loader::open(&test_plugin(), "driver = missing").unwrap();
    let reason = "libnothing.so.1: cannot open shared object file".to_owned();
    let want = Error::Unavailable { backend: "ref".to_owned(), reason };
    assert_eq!(backend.devices().unwrap_err(), want);
    assert_eq!(backend.open(0).unwrap_err(), want);
    assert_eq!(plugin("").devices().unwrap().len(), 1, "both live in one process");
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_those_that_are() {
    let error = plugin("").open(7).unwrap_err().to_string();
    assert_eq!(error, "device: want ref:0, got ref:7");
}

#[test]
fn handles_may_be_dropped_in_any_order_on_any_thread() {
    let device = plugin("").open(0).unwrap();
    let plan =
        device.plan(&decode_case::op(), &decode_case::lengths().unwrap(), &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    let tensor = OwnedTensor::zeros(&device, DType::U32, &[4]).unwrap();
    std::thread::spawn(move || drop(device)).join().unwrap();
    std::thread::spawn(move || drop(prepared)).join().unwrap();
    assert_eq!(tensor.to_bytes().unwrap(), [0; 16]);
}
