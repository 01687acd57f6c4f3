//! What an engine does with the driver itself.

use cudarc::driver::sys;

/// The call succeeded.
pub(crate) fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

/// A context of its own on a device; it is not current.
pub(crate) fn create_context(device: i32) -> u64 {
    let (mut context, mut popped) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the driver was probed, and the pointer is valid.
    ok(unsafe { sys::cuCtxCreate_v4(&mut context, std::ptr::null_mut(), 0, device) });
    // SAFETY: the context was pushed by its creation.
    ok(unsafe { sys::cuCtxPopCurrent_v2(&mut popped) });
    context as u64
}

pub(crate) fn destroy_context(context: u64) {
    // SAFETY: created above.
    ok(unsafe { sys::cuCtxDestroy_v2(context as sys::CUcontext) });
}

/// The primary context, as a runtime takes it.
pub(crate) fn retain_primary(device: i32) -> u64 {
    let mut context = std::ptr::null_mut();
    // SAFETY: the driver was probed, and the pointer is valid.
    ok(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) });
    context as u64
}

pub(crate) fn release_primary(device: i32) {
    // SAFETY: retained above.
    ok(unsafe { sys::cuDevicePrimaryCtxRelease_v2(device) });
}

pub(crate) fn primary_is_active(device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the pointers are valid.
    ok(unsafe { sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) });
    active != 0
}

/// Makes a context current for as long as the value lives.
pub(crate) struct Current;

pub(crate) fn enter(context: u64) -> Current {
    // SAFETY: the context lives.
    ok(unsafe { sys::cuCtxPushCurrent_v2(context as sys::CUcontext) });
    Current
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pushed by `enter`.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut context) };
    }
}

/// The current context of this thread, 0 if there is none.
pub(crate) fn current() -> u64 {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is valid.
    ok(unsafe { sys::cuCtxGetCurrent(&mut context) });
    context as u64
}

/// A stream of the current context that waits for no other.
pub(crate) fn create_stream() -> u64 {
    let mut stream = std::ptr::null_mut();
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: the pointer is valid.
    ok(unsafe { sys::cuStreamCreate(&mut stream, flags) });
    stream as u64
}

/// Copies to the device when the stream comes to it.
pub(crate) fn upload(stream: u64, to: u64, bytes: &[u8]) {
    // SAFETY: the source has this length.
    ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), stream as sys::CUstream) });
}

pub(crate) fn synchronize(stream: u64) {
    // SAFETY: the stream lives.
    ok(unsafe { sys::cuStreamSynchronize(stream as sys::CUstream) });
}

/// What a captured stream recorded, ready to be launched.
pub(crate) struct Graph {
    executable: sys::CUgraphExec,
    /// Kernels.
    pub(crate) nodes: usize,
}

/// Captures what `record` enqueues on a stream.
pub(crate) fn capture(stream: u64, record: impl FnOnce()) -> Graph {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let stream = stream as sys::CUstream;
    let (mut graph, mut executable, mut nodes) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    // SAFETY: the stream lives.
    ok(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) });
    record();
    // SAFETY: the stream is captured, and the pointer is valid.
    ok(unsafe { sys::cuStreamEndCapture(stream, &mut graph) });
    // SAFETY: the graph was captured just now; only its number of nodes is asked for.
    ok(unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes) });
    // SAFETY: as above.
    ok(unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) });
    // SAFETY: as above; the executable is a copy.
    ok(unsafe { sys::cuGraphDestroy(graph) });
    Graph { executable, nodes }
}

impl Graph {
    pub(crate) fn launch(&self, stream: u64) {
        // SAFETY: graph and stream live.
        ok(unsafe { sys::cuGraphLaunch(self.executable, stream as sys::CUstream) });
    }
}

/// Takes off a context that a failed pop left.
pub(crate) fn drop_current() {
    let mut context = std::ptr::null_mut();
    // SAFETY: the pointer is valid.
    ok(unsafe { sys::cuCtxPopCurrent_v2(&mut context) });
}
