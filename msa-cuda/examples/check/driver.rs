//! Streams and graphs of the examples: the calls of an engine.

use cudarc::driver::sys;
use msa_core::backend::Stream;
use msa_core::error::{Error, Result};

/// Makes the primary context of device 0 current for this thread.
pub(crate) fn enter() -> Result<()> {
    enter_device(0)
}

/// Makes the primary context of a device current for this thread.
pub(crate) fn enter_device(ordinal: u32) -> Result<()> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the device is open, so the driver is; the context stays retained until the process ends.
    check(unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, ordinal as i32) })?;
    // SAFETY: as above.
    check(unsafe { sys::cuCtxSetCurrent(context) })
}

/// A stream that does not wait for the default one.
pub(crate) fn stream() -> Result<Stream> {
    let mut stream = std::ptr::null_mut();
    // SAFETY: a context is current.
    check(unsafe { sys::cuStreamCreate(&mut stream, 1) })?;
    Ok(Stream(stream as u64))
}

/// Destroys a stream of the current context.
pub(crate) fn destroy(stream: Stream) -> Result<()> {
    // SAFETY: the stream is ours and idle.
    check(unsafe { sys::cuStreamDestroy_v2(stream.0 as sys::CUstream) })
}

/// A graph that can be launched.
pub(crate) struct Graph {
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    /// Captures what `work` enqueues. In this mode the driver refuses allocations and synchronisation meanwhile.
    pub(crate) fn capture(stream: Stream, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let raw = stream.0 as sys::CUstream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        // SAFETY: the stream is ours and idle.
        check(unsafe { sys::cuStreamBeginCapture_v2(raw, mode) })?;
        let enqueued = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above.
        check(unsafe { sys::cuStreamEndCapture(raw, &mut graph) })?;
        enqueued?;
        let mut exec = std::ptr::null_mut();
        // SAFETY: the graph is complete.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&mut exec, graph, 0) })?;
        Ok(Self { graph, exec })
    }

    pub(crate) fn launch(&self, stream: Stream) -> Result<()> {
        // SAFETY: the graph was instantiated; the stream is ours.
        check(unsafe { sys::cuGraphLaunch(self.exec, stream.0 as sys::CUstream) })
    }

    pub(crate) fn free(self) -> Result<()> {
        // SAFETY: nothing of the graph is running: the caller waited.
        check(unsafe { sys::cuGraphExecDestroy(self.exec) })?;
        // SAFETY: as above.
        check(unsafe { sys::cuGraphDestroy(self.graph) })
    }
}

pub(crate) fn check(code: sys::CUresult) -> Result<()> {
    if code == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(Error::Device { code: code as i32, text: format!("{code:?}") })
}
