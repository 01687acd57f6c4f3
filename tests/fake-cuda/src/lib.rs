//! A `libcuda.so.1` without a GPU: the functions of the driver API that msa-cuda and an engine around it call.
//!
//! Devices, contexts with their stacks per thread, modules, memory, streams, events and graphs behave as in the driver: work
//! is queued and runs when somebody waits for it, an error of a kernel stays with its context, and a stream that is captured
//! refuses what a real one refuses. A kernel is executed by the CPU reference from the bytes of its parameter, under the
//! arithmetic that its variant declares: the host path gives real results, the device code is not run.
//!
//! Images are recognised by their bytes (`MSA_FAKE_CUDA_IMAGES` is the folder of the kernel build) and their cubins say which
//! kernels there are and how long their parameter is. `config` lists the other variables, [`api::control`] what a test can
//! make fail and read.
#![allow(unsafe_code)]
// The names and types are those of cuda.h.
#![allow(non_snake_case)]

pub mod api;
mod code;
mod config;
mod execute;
mod image;
mod launch;
mod memory;
mod queue;
mod state;
