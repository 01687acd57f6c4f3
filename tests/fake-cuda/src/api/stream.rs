//! Streams and events.

use std::ffi::c_uint;

use super::entry::{Handle, Out};
use crate::code::INVALID_HANDLE;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

entries! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) |state| {
        let context = state.current()?;
        let id = state.new_handle();
        state.queues.add(id, context, flags & NON_BLOCKING == 0);
        state.note(format_args!("stream={id:#x}"));
        stream.set(id as Handle)
    }

    // What is queued still runs, as in the driver.
    fn cuStreamDestroy_v2(stream: Handle) |state| {
        let stream = state.stream(stream as usize)?;
        if state.top() == Some(stream) {
            return Err(INVALID_HANDLE);
        }
        state.run(stream, u64::MAX)?;
        state.queues.remove(stream);
        Ok(())
    }

    fn cuStreamSynchronize(stream: Handle) |state| {
        let context = state.current()?;
        let stream = state.stream(stream as usize)?;
        state.note(format_args!("stream={stream:#x}"));
        state.refuse_if_captured(stream)?;
        if stream == context { state.run_default(context) } else { state.run(stream, u64::MAX) }
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) |state| {
        let stream = state.stream(stream as usize)?;
        state.wait_for_event(stream, event as usize)
    }

    fn cuEventCreate(event: Out<Handle>, _flags: c_uint) |state| {
        state.current()?;
        let id = state.new_handle();
        state.queues.add_event(id);
        event.set(id as Handle)
    }

    fn cuEventDestroy_v2(event: Handle) |state| state.queues.remove_event(event as usize)

    fn cuEventRecord(event: Handle, stream: Handle) |state| {
        let stream = state.stream(stream as usize)?;
        state.record(event as usize, stream)
    }

    fn cuEventSynchronize(event: Handle) |state| {
        let context = state.current()?;
        let (stream, number) = state.queues.event(event as usize)?;
        if number == 0 {
            return Ok(());
        }
        state.run(stream, number)?;
        state.usable(context)
    }
}
