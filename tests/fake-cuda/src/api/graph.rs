//! Captures and graphs. A graph is ready as it was captured: its executable is a copy.

use std::ffi::{c_uint, c_ulonglong, c_void};

use super::entry::{Handle, Out};

entries! {
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) |state| {
        let stream = state.stream(stream as usize)?;
        state.begin_capture(stream, mode)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) |state| {
        let stream = state.stream(stream as usize)?;
        graph.set(std::ptr::null_mut())?;
        state.end_capture(stream).and_then(|id| graph.set(id as Handle))
    }

    fn cuGraphGetNodes(graph: Handle, nodes: *mut c_void, count: Out<usize>) |state| {
        let tasks = state.queues.graph(graph as usize)?.len();
        state.note(format_args!("list={}", !nodes.is_null()));
        count.set(tasks)
    }

    fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, _flags: c_ulonglong) |state| {
        let tasks = state.queues.graph(graph as usize)?.to_vec();
        let id = state.new_handle();
        state.queues.add_graph(id, tasks);
        executable.set(id as Handle)
    }

    fn cuGraphLaunch(executable: Handle, stream: Handle) |state| {
        let stream = state.stream(stream as usize)?;
        state.note(format_args!("stream={stream:#x}"));
        state.launch_graph(executable as usize, stream)
    }

    fn cuGraphDestroy(graph: Handle) |state| state.queues.remove_graph(graph as usize)

    fn cuGraphExecDestroy(executable: Handle) |state| state.queues.remove_graph(executable as usize)
}
