//! Graph replays and copies over the CUDA driver that the plugin has already opened in this process.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use libloading::Library;
use msa_core::backend::{Device, Stream};
use msa_core::error::{Error, Result};

use super::clock::{Clock, Enqueue};

type Handle = *mut c_void;
type Code = c_int;

/// Replays before the timed ones: the first upload the graph.
const WARM_UP: usize = 3;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL` (cuda.h).
const THREAD_LOCAL: c_int = 1;

/// `CU_STREAM_NON_BLOCKING` (cuda.h): the default stream does not wait for it.
const NON_BLOCKING: c_uint = 1;

/// Declares the functions of the driver that are used, and loads them.
macro_rules! driver {
    ($($name:ident: fn($($argument:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) -> Code),* }

        impl Functions {
            fn load(library: &Library) -> Option<Self> {
                Some(Self { $(
                    // SAFETY: the signature is that of cuda.h.
                    $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.ok()?,
                )* })
            }
        }
    };
}

driver! {
    cuDeviceGet: fn(*mut c_int, c_int);
    cuDevicePrimaryCtxRetain: fn(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2: fn(c_int);
    cuCtxPushCurrent_v2: fn(Handle);
    cuCtxPopCurrent_v2: fn(*mut Handle);
    cuStreamCreate: fn(*mut Handle, c_uint);
    cuStreamSynchronize: fn(Handle);
    cuStreamDestroy_v2: fn(Handle);
    cuStreamBeginCapture_v2: fn(Handle, c_int);
    cuStreamEndCapture: fn(Handle, *mut Handle);
    cuGraphInstantiateWithFlags: fn(*mut Handle, Handle, u64);
    cuGraphLaunch: fn(Handle, Handle);
    cuGraphExecDestroy: fn(Handle);
    cuGraphDestroy: fn(Handle);
    cuEventCreate: fn(*mut Handle, c_uint);
    cuEventRecord: fn(Handle, Handle);
    cuEventSynchronize: fn(Handle);
    cuEventElapsedTime: fn(*mut f32, Handle, Handle);
    cuEventDestroy_v2: fn(Handle);
    cuMemcpyDtoDAsync_v2: fn(u64, u64, usize, Handle);
}

/// The driver with a stream and two events in a device's primary context, which is current in this thread.
pub(super) struct Driver {
    functions: Functions,
    device: c_int,
    stream: Handle,
    begin: Handle,
    end: Handle,
    _library: Library,
}

fn check(what: &str, code: Code) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(Error::Device { code, text: what.to_owned() }) }
}

impl Driver {
    /// Of a device of the backend `cuda`; `None` for others, and where the driver lacks a function.
    pub(super) fn open(device: &Arc<dyn Device>) -> Result<Option<Self>> {
        let name = device.name();
        let Some(ordinal) = name.strip_prefix("cuda:").and_then(|n| n.parse().ok()) else { return Ok(None) };
        // SAFETY: the driver's initialisers have run already: the device is open.
        let Ok(library) = (unsafe { Library::new("libcuda.so.1") }) else { return Ok(None) };
        let Some(functions) = Functions::load(&library) else { return Ok(None) };
        let (mut handle, mut context) = (0, null_mut());
        let mut driver = Self {
            functions,
            device: 0,
            stream: null_mut(),
            begin: null_mut(),
            end: null_mut(),
            _library: library,
        };
        let f = &driver.functions;
        // SAFETY: the pointers are valid for one value each.
        unsafe {
            check("cuDeviceGet", (f.cuDeviceGet)(&mut handle, ordinal))?;
            check("cuDevicePrimaryCtxRetain", (f.cuDevicePrimaryCtxRetain)(&mut context, handle))?;
            check("cuCtxPushCurrent", (f.cuCtxPushCurrent_v2)(context))?;
            check("cuStreamCreate", (f.cuStreamCreate)(&mut driver.stream, NON_BLOCKING))?;
            check("cuEventCreate", (f.cuEventCreate)(&mut driver.begin, 0))?;
            check("cuEventCreate", (f.cuEventCreate)(&mut driver.end, 0))?;
        }
        driver.device = handle;
        Ok(Some(driver))
    }

    /// Seconds between two events around what `work` enqueues.
    fn time(&self, work: impl FnOnce(&Functions, Handle) -> Result<()>) -> Result<f64> {
        let f = &self.functions;
        let mut milliseconds = 0.0;
        // SAFETY: stream and events are this value's own and alive.
        unsafe {
            check("cuStreamSynchronize", (f.cuStreamSynchronize)(self.stream))?;
            check("cuEventRecord", (f.cuEventRecord)(self.begin, self.stream))?;
            work(f, self.stream)?;
            check("cuEventRecord", (f.cuEventRecord)(self.end, self.stream))?;
            check("cuEventSynchronize", (f.cuEventSynchronize)(self.end))?;
            let code = (f.cuEventElapsedTime)(&mut milliseconds, self.begin, self.end);
            check("cuEventElapsedTime", code)?;
        }
        Ok(f64::from(milliseconds) * 1e-3)
    }

    /// Seconds of each of `copies` copies between two allocations of `bytes`, after one that is not timed.
    pub(super) fn copy_times(&self, to: u64, from: u64, bytes: u64, copies: usize) -> Result<Vec<f64>> {
        let copy = |f: &Functions, stream| {
            // SAFETY: both are allocations of `bytes` on this device, and nothing else uses them.
            check("cuMemcpyDtoDAsync", unsafe { (f.cuMemcpyDtoDAsync_v2)(to, from, bytes as usize, stream) })
        };
        self.time(copy)?;
        (0..copies).map(|_| self.time(copy)).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let f = &self.functions;
        let mut context = null_mut();
        // SAFETY: each handle is this value's own, and null ones are refused by the driver.
        unsafe {
            (f.cuEventDestroy_v2)(self.begin);
            (f.cuEventDestroy_v2)(self.end);
            (f.cuStreamDestroy_v2)(self.stream);
            (f.cuCtxPopCurrent_v2)(&mut context);
            (f.cuDevicePrimaryCtxRelease_v2)(self.device);
        }
    }
}

/// Replays of a graph, between two events.
pub(super) struct CudaClock {
    driver: Driver,
}

impl CudaClock {
    /// `None` where there is no driver to replay graphs with.
    pub(super) fn new(device: &Arc<dyn Device>) -> Result<Option<Self>> {
        Ok(Driver::open(device)?.map(|driver| Self { driver }))
    }

    fn capture(&self, runs: usize, enqueue: &mut Enqueue<'_>) -> Result<Graph<'_>> {
        let (f, stream) = (&self.driver.functions, self.driver.stream);
        let mut graph = Graph { functions: f, graph: null_mut(), executable: null_mut() };
        // SAFETY: the stream is ours and idle.
        check("cuStreamBeginCapture", unsafe { (f.cuStreamBeginCapture_v2)(stream, THREAD_LOCAL) })?;
        let captured = (0..runs).try_for_each(|number| enqueue(Stream(stream as u64), number));
        // SAFETY: the capture began above; it ends whatever was enqueued.
        let ended = check("cuStreamEndCapture", unsafe { (f.cuStreamEndCapture)(stream, &mut graph.graph) });
        captured.and(ended)?;
        // SAFETY: the graph is complete.
        let code = unsafe { (f.cuGraphInstantiateWithFlags)(&mut graph.executable, graph.graph, 0) };
        check("cuGraphInstantiate", code)?;
        Ok(graph)
    }
}

impl Clock for CudaClock {
    fn sample(&mut self, samples: usize, runs: usize, enqueue: &mut Enqueue<'_>) -> Result<Vec<f64>> {
        let graph = self.capture(runs, enqueue)?;
        let replay = |f: &Functions, stream| {
            // SAFETY: the graph is instantiated, and what it names is alive as long as the runs are timed.
            check("cuGraphLaunch", unsafe { (f.cuGraphLaunch)(graph.executable, stream) })
        };
        let times = (0..samples + WARM_UP).map(|_| Ok(self.driver.time(replay)? / runs.max(1) as f64));
        let mut times: Vec<f64> = times.collect::<Result<_>>()?;
        Ok(times.split_off(WARM_UP))
    }

    fn name(&self) -> &'static str {
        "graph replays"
    }
}

/// A captured graph.
struct Graph<'a> {
    functions: &'a Functions,
    graph: Handle,
    executable: Handle,
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: each handle is this value's own; one that was never made is null.
        unsafe {
            if !self.executable.is_null() {
                (self.functions.cuGraphExecDestroy)(self.executable);
            }
            if !self.graph.is_null() {
                (self.functions.cuGraphDestroy)(self.graph);
            }
        }
    }
}
