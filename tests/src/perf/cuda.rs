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

/// Declares the functions of the driver that are used, loads them, and calls them: a code other than 0 is an error with
/// the function's name. For this file only, which passes handles of its own, null where one was never made.
macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case)]
        struct Functions { $($name: unsafe extern "C" fn($($type),*) -> Code),* }

        #[allow(non_snake_case)]
        impl Functions {
            fn load(library: &Library) -> Option<Self> {
                Some(Self { $(
                    // SAFETY: the signature is that of cuda.h.
                    $name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }.ok()?,
                )* })
            }

            $(fn $name(&self, $($argument: $type),*) -> Result<()> {
                // SAFETY: pointers are to locals of the caller, handles are its own and alive or null, and device addresses
                // are of live allocations.
                let code = unsafe { (self.$name)($($argument),*) };
                if code == 0 { Ok(()) } else { Err(Error::Device { code, text: stringify!($name).to_owned() }) }
            })*
        }
    };
}

driver! {
    cuDeviceGet(out: *mut c_int, ordinal: c_int);
    cuDevicePrimaryCtxRetain(out: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxPopCurrent_v2(out: *mut Handle);
    cuStreamCreate(out: *mut Handle, flags: c_uint);
    cuStreamSynchronize(stream: Handle);
    cuStreamDestroy_v2(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamEndCapture(stream: Handle, out: *mut Handle);
    cuGraphInstantiateWithFlags(out: *mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch(graph: Handle, stream: Handle);
    cuGraphExecDestroy(graph: Handle);
    cuGraphDestroy(graph: Handle);
    cuEventCreate(out: *mut Handle, flags: c_uint);
    cuEventRecord(event: Handle, stream: Handle);
    cuEventSynchronize(event: Handle);
    cuEventElapsedTime(out: *mut f32, begin: Handle, end: Handle);
    cuEventDestroy_v2(event: Handle);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle);
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
        f.cuDeviceGet(&mut handle, ordinal)?;
        f.cuDevicePrimaryCtxRetain(&mut context, handle)?;
        f.cuCtxPushCurrent_v2(context)?;
        f.cuStreamCreate(&mut driver.stream, NON_BLOCKING)?;
        f.cuEventCreate(&mut driver.begin, 0)?;
        f.cuEventCreate(&mut driver.end, 0)?;
        driver.device = handle;
        Ok(Some(driver))
    }

    /// Seconds between two events around what `work` enqueues.
    fn time(&self, work: impl FnOnce(&Functions, Handle) -> Result<()>) -> Result<f64> {
        let f = &self.functions;
        let mut milliseconds = 0.0;
        f.cuStreamSynchronize(self.stream)?;
        f.cuEventRecord(self.begin, self.stream)?;
        work(f, self.stream)?;
        f.cuEventRecord(self.end, self.stream)?;
        f.cuEventSynchronize(self.end)?;
        f.cuEventElapsedTime(&mut milliseconds, self.begin, self.end)?;
        Ok(f64::from(milliseconds) * 1e-3)
    }

    /// Seconds of each of `copies` copies between two allocations of `bytes`, after one that is not timed.
    pub(super) fn copy_times(&self, to: u64, from: u64, bytes: u64, copies: usize) -> Result<Vec<f64>> {
        let copy = |f: &Functions, stream| f.cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream);
        self.time(copy)?;
        (0..copies).map(|_| self.time(copy)).collect()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let f = &self.functions;
        let mut context = null_mut();
        // There is nobody to tell; null handles are refused by the driver.
        let _ = f.cuEventDestroy_v2(self.begin);
        let _ = f.cuEventDestroy_v2(self.end);
        let _ = f.cuStreamDestroy_v2(self.stream);
        let _ = f.cuCtxPopCurrent_v2(&mut context);
        let _ = f.cuDevicePrimaryCtxRelease_v2(self.device);
    }
}

/// Captures graphs on a stream of its own; a device's primary context is current in its thread while it lives.
pub struct Recorder(Driver);

impl Recorder {
    /// `None` for devices that are not of the backend `cuda`, and where the driver lacks a function.
    ///
    /// # Errors
    /// The driver's.
    pub fn open(device: &Arc<dyn Device>) -> Result<Option<Self>> {
        Ok(Driver::open(device)?.map(Self))
    }

    /// Its stream, which does not wait for the default one.
    pub fn stream(&self) -> Stream {
        Stream(self.0.stream as u64)
    }

    /// Captures what `work` enqueues on the stream. Meanwhile no thread may synchronise the context.
    ///
    /// # Errors
    /// Those of `work`, and the driver's.
    pub fn capture(&self, work: impl FnOnce(Stream) -> Result<()>) -> Result<Graph<'_>> {
        let (f, stream) = (&self.0.functions, self.0.stream);
        let mut graph = Graph { functions: f, stream, graph: null_mut(), executable: null_mut() };
        f.cuStreamBeginCapture_v2(stream, THREAD_LOCAL)?;
        let captured = work(self.stream());
        // It ends whatever was enqueued.
        let ended = f.cuStreamEndCapture(stream, &mut graph.graph);
        captured.and(ended)?;
        f.cuGraphInstantiateWithFlags(&mut graph.executable, graph.graph, 0)?;
        Ok(graph)
    }
}

/// Replays of a graph, between two events.
pub(super) struct CudaClock(Recorder);

impl CudaClock {
    /// `None` where there is no driver to replay graphs with.
    pub(super) fn new(device: &Arc<dyn Device>) -> Result<Option<Self>> {
        Ok(Recorder::open(device)?.map(Self))
    }
}

impl Clock for CudaClock {
    fn sample(&mut self, samples: usize, runs: usize, enqueue: &mut Enqueue<'_>) -> Result<Vec<f64>> {
        let graph = self.0.capture(|stream| (0..runs).try_for_each(|number| enqueue(stream, number)))?;
        let times =
            (0..samples + WARM_UP).map(|_| Ok(self.0.0.time(|_, _| graph.launch())? / runs.max(1) as f64));
        let mut times: Vec<f64> = times.collect::<Result<_>>()?;
        Ok(times.split_off(WARM_UP))
    }

    fn name(&self) -> &'static str {
        "graph replays"
    }
}

/// A captured graph.
pub struct Graph<'a> {
    functions: &'a Functions,
    stream: Handle,
    graph: Handle,
    executable: Handle,
}

impl Graph<'_> {
    /// Launches it on the stream that it was captured on; does not wait.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self) -> Result<()> {
        self.functions.cuGraphLaunch(self.executable, self.stream)
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // There is nobody to tell.
        if !self.executable.is_null() {
            let _ = self.functions.cuGraphExecDestroy(self.executable);
        }
        if !self.graph.is_null() {
            let _ = self.functions.cuGraphDestroy(self.graph);
        }
    }
}
