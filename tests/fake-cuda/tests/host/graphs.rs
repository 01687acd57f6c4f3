//! Captured runs: what is captured is what runs eagerly, and what changes between replays is read by the kernels.

use msa_core::args::Role;

use crate::child::{Driver, test_name};
use crate::work::{APPEND, DECODE, INDEX, MERGE, SELECT, STEP, Work, device};
use crate::{engine, fake};

/// Kernels that ran, with everything that they were launched with but the stream.
fn kernels(log: &[String]) -> Vec<String> {
    let ran = log.iter().filter_map(|line| line.strip_prefix("run stream="));
    ran.map(|line| line.split_once(' ').map_or("", |(_, launch)| launch).to_owned()).collect()
}

#[test]
fn h03_the_nodes_of_a_graph_are_the_kernels_of_an_eager_run() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let stream = engine::create_stream();
        let split = "sparse_decode(len=[1x5000],kv=nvfp4,k=40,splits=40)";
        for line in [DECODE, INDEX, SELECT, APPEND, MERGE, STEP, split] {
            let work = Work::new(&device, line);
            fake::take_log();
            work.run(stream);
            let eager = kernels(&fake::take_log());
            let graph = engine::capture(stream, || work.enqueue(stream).unwrap());
            assert_eq!(kernels(&fake::take_log()), [""; 0], "a captured run runs nothing");
            work.reset();
            graph.launch(stream);
            engine::synchronize(stream);
            assert_eq!(kernels(&fake::take_log()), eager);
            assert_eq!(graph.nodes, eager.len());
            work.check();
        }
        engine::release_primary(0);
    });
}

/// Insertion of tokens one by one, seen by attention: one graph, lengths 1 to 300, another table every time.
#[test]
fn h05_lengths_and_tables_are_read_at_every_replay() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let stream = engine::create_stream();
        let line = "sparse_decode(hq=16,hkv=1,hi=1,len=[1x300,1x300],kv=fp8,q=e4m3,lists=holes,out=f32)";
        let index = "index_score(hq=16,hkv=1,hi=1,len=[1x300,1x300],ik=fp8,iq=e4m3)";
        for line in [line, index] {
            let mut work = Work::new(&device, line);
            let graph = engine::capture(stream, || work.enqueue(stream).unwrap());
            let table = work.trial.inputs.batch.tables.clone();
            let borders = [127, 128, 129, 255, 256, 257, 299, 300];
            for step in (1..=300).step_by(23).chain(borders) {
                work.reset();
                work.upload_i32s(stream, Role::KvLengths, &[step, 301 - step]);
                let mut turned = table.clone();
                turned.rotate_left(step as usize % table.len());
                work.upload_i32s(stream, Role::BlockTable, &turned);
                graph.launch(stream);
                engine::synchronize(stream);
                work.check();
            }
        }
        engine::release_primary(0);
    });
}

/// Insertion, scores, selection and attention captured once; every replay inserts the next token of each request, at a slot
/// of its own, and attends to one more. Twenty replays cross the border of a page.
#[test]
fn h04_a_step_that_inserts_is_captured_once_and_replayed() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let stream = engine::create_stream();
        let line =
            "step(hq=16,hkv=1,hi=1,len=[1x300,1x300],appends=true,kv=fp8,ik=fp8,q=e4m3,iq=e4m3,out=f32)";
        let mut work = Work::new(&device, line);
        let graph = engine::capture(stream, || work.enqueue(stream).unwrap());
        let batch = work.trial.inputs.batch.clone();
        for position in 118..138 {
            let lengths = [position + 1, 256 - position];
            work.reset();
            work.upload_i32s(stream, Role::KvLengths, &lengths);
            work.upload_i32s(stream, Role::Positions, &lengths.map(|length| length - 1));
            let slots = [0, 1].map(|request| {
                let (page, offset) = batch.place(request, lengths[request as usize] as u64 - 1);
                (page * 128 + offset) as i64
            });
            work.upload_i64s(stream, Role::Slots, &slots);
            graph.launch(stream);
            engine::synchronize(stream);
            work.check();
        }
        engine::release_primary(0);
    });
}

/// A batch of 64 that was captured holds one, 50, 64, none: offsets that end early.
#[test]
fn h02_fewer_requests_than_captured_are_the_ones_that_run() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let stream = engine::create_stream();
        let line = "sparse_decode(hq=16,hkv=1,hi=1,len=[64*1x300],kv=fp8,q=e4m3,out=f32)";
        let mut work = Work::new(&device, line);
        let graph = engine::capture(stream, || work.enqueue(stream).unwrap());
        for live in [1, 50, 64, 0] {
            work.reset();
            let offsets: Vec<i32> = (0..=64).map(|request| request.min(live)).collect();
            let lengths: Vec<i32> = (0..64).map(|request| if request < live { 300 } else { 0 }).collect();
            work.upload_i32s(stream, Role::QueryOffsets, &offsets);
            work.upload_i32s(stream, Role::KvLengths, &lengths);
            graph.launch(stream);
            engine::synchronize(stream);
            work.check();
        }
        engine::release_primary(0);
    });
}

/// Status words of two graphs of one prepared run stay apart, and one graph may be launched many times before anybody waits.
#[test]
fn replays_follow_each_other_without_the_host() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let streams = [engine::create_stream(), engine::create_stream()];
        let works = [Work::new(&device, DECODE), Work::new(&device, DECODE)];
        let graphs = [0, 1].map(|i| engine::capture(streams[i], || works[i].enqueue(streams[i]).unwrap()));
        for _ in 0..20 {
            graphs[0].launch(streams[0]);
            graphs[1].launch(streams[1]);
        }
        for i in [1, 0] {
            engine::synchronize(streams[i]);
            works[i].check();
        }
        engine::release_primary(0);
    });
}

#[test]
fn what_waits_or_allocates_spoils_a_capture_and_enqueueing_does_not() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let stream = engine::create_stream();
        let work = Work::new(&device, DECODE);
        // The library would say so if a run did something that a capture forbids: `status` does, by its contract.
        let mode = cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        let handle = stream as cudarc::driver::sys::CUstream;
        // SAFETY: the stream lives.
        engine::ok(unsafe { cudarc::driver::sys::cuStreamBeginCapture_v2(handle, mode) });
        work.enqueue(stream).unwrap();
        let error = work.status(stream).unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{error}");
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is captured.
        let ended = unsafe { cudarc::driver::sys::cuStreamEndCapture(handle, &mut graph) };
        assert_eq!(ended, cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        // Nothing of it stays: the run works eagerly and captured.
        work.run(stream);
        let graph = engine::capture(stream, || work.enqueue(stream).unwrap());
        work.reset();
        graph.launch(stream);
        engine::synchronize(stream);
        work.check();
        engine::release_primary(0);
    });
}
