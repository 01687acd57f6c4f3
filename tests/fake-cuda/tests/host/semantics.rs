//! The fake library itself: the order of its streams, and what it refuses to launch.

use cudarc::driver::sys::{self, CUresult};

use crate::child::{Driver, test_name};
use crate::engine::{self, ok};
use crate::fake;
use crate::work::device;

fn create_stream(flags: sys::CUstream_flags) -> sys::CUstream {
    let mut stream = std::ptr::null_mut();
    // SAFETY: the pointer is valid.
    ok(unsafe { sys::cuStreamCreate(&mut stream, flags as u32) });
    stream
}

fn set(stream: sys::CUstream, address: u64, value: u32) {
    // SAFETY: the memory is four bytes of the device.
    ok(unsafe { sys::cuMemsetD32Async(address, value, 1, stream) });
}

fn copy(stream: sys::CUstream, to: u64, from: u64) {
    // SAFETY: the memory is four bytes each of the device.
    ok(unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 4, stream) });
}

/// Waits for one stream alone.
fn read(stream: sys::CUstream, address: u64) -> u32 {
    let mut word = 0_u32;
    let to = std::ptr::from_mut(&mut word).cast();
    // SAFETY: the word has four bytes.
    ok(unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, 4, stream) });
    word
}

#[test]
fn streams_keep_the_order_of_the_driver() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let [a, b] = [0, 1].map(|_| device.memory().allocate(4).unwrap());
        let default = std::ptr::null_mut();
        let free = [0, 1].map(|_| create_stream(sys::CUstream_flags::CU_STREAM_NON_BLOCKING));
        let blocking = create_stream(sys::CUstream_flags::CU_STREAM_DEFAULT);
        // The default stream waits for a blocking one and is waited for by it; a free one does neither.
        set(blocking, a, 1);
        set(free[0], b, 1);
        copy(default, b, a);
        copy(blocking, a, b);
        set(free[0], a, 9);
        assert_eq!((read(blocking, a), fake::pending()), (1, 2), "the free stream has not run");
        assert_eq!((read(free[0], a), fake::pending()), (9, 0));
        // An event orders two free streams, up to where it was recorded.
        let mut event = std::ptr::null_mut();
        // SAFETY: the pointer is valid.
        ok(unsafe { sys::cuEventCreate(&mut event, 0) });
        set(free[0], a, 5);
        // SAFETY: event and stream live.
        ok(unsafe { sys::cuEventRecord(event, free[0]) });
        set(free[0], a, 6);
        // SAFETY: as above.
        ok(unsafe { sys::cuStreamWaitEvent(free[1], event, 0) });
        copy(free[1], b, a);
        assert_eq!(read(free[1], b), 5);
        assert_eq!((read(free[0], a), fake::pending()), (6, 0));
        // SAFETY: as above.
        ok(unsafe { sys::cuEventSynchronize(event) });
        engine::release_primary(0);
    });
}

/// A launch of `clear_status` as the host makes it, and changed.
fn launch(function: sys::CUfunction, change: impl Fn(&mut sys::CUlaunchConfig, &mut u32)) -> CUresult {
    let mut cluster = 1;
    let mut config = sys::CUlaunchConfig {
        gridDimX: 4,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: std::ptr::null_mut(),
        attrs: std::ptr::null_mut(),
        numAttrs: 0,
    };
    change(&mut config, &mut cluster);
    // SAFETY: plain data for which zero is valid.
    let mut attribute: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
    attribute.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: cluster, y: 1, z: 1 };
    (config.attrs, config.numAttrs) = (&mut attribute, 1);
    let mut parameter = [0_u64; 128];
    let mut parameters = [std::ptr::from_mut(&mut parameter).cast()];
    // SAFETY: the parameter is longer than any kernel's here; what would run is not waited for.
    unsafe { sys::cuLaunchKernelEx(&config, function, parameters.as_mut_ptr(), std::ptr::null_mut()) }
}

#[test]
fn launches_beyond_the_limits_of_a_kernel_are_refused() {
    Driver::of("9.0").run(&test_name!(), || {
        device();
        let _current = engine::enter(engine::retain_primary(0));
        let folder = std::path::PathBuf::from(std::env::var_os("MSA_FAKE_CUDA_IMAGES").unwrap());
        let load = |arch: &str| {
            let image = std::fs::read(folder.join(format!("status.{arch}.fatbin"))).unwrap();
            let mut module = std::ptr::null_mut();
            // SAFETY: a whole image.
            (unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) }, module)
        };
        assert_eq!(load("sm100a").0, CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU);
        let (loaded, module) = load("sm90a");
        ok(loaded);
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, and the name ends with a zero.
        let unknown = unsafe { sys::cuModuleGetFunction(&mut function, module, c"clear".as_ptr()) };
        assert_eq!(unknown, CUresult::CUDA_ERROR_NOT_FOUND);
        // SAFETY: as above.
        ok(unsafe { sys::cuModuleGetFunction(&mut function, module, c"clear_status".as_ptr()) });
        ok(launch(function, |_, _| ()));
        let refused = [
            launch(function, |config, _| config.gridDimX = 0),
            launch(function, |config, _| config.gridDimY = 65_536),
            launch(function, |config, _| config.blockDimX = 2048),
            launch(function, |config, _| config.sharedMemBytes = (48 << 10) + 16),
            launch(function, |_, cluster| *cluster = 3),
            launch(function, |config, cluster| (config.gridDimX, *cluster) = (16, 16)),
        ];
        assert_eq!(refused, [CUresult::CUDA_ERROR_INVALID_VALUE; 6]);
        let large = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        // SAFETY: the function is loaded.
        ok(unsafe { sys::cuFuncSetAttribute(function, large, 1) });
        ok(launch(function, |config, cluster| (config.gridDimX, *cluster) = (16, 16)));
        let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        let beyond = unsafe { sys::cuFuncSetAttribute(function, shared, 228 << 10) };
        assert_eq!(beyond, CUresult::CUDA_ERROR_INVALID_VALUE);
        let no_image = [0_u8; 64];
        let mut module = std::ptr::null_mut();
        // SAFETY: the library reads a header and refuses it.
        let refused = unsafe { sys::cuModuleLoadData(&mut module, no_image.as_ptr().cast()) };
        assert_eq!(refused, CUresult::CUDA_ERROR_INVALID_IMAGE);
    });
}
