//! The functions of the HIP runtime that this crate and its users call, resolved once.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::os::unix::Library;

use super::{Handle, Unavailable};

/// Declares the table: one line a function, as in `hip/hip_runtime_api.h`. What stands under `needed` must be there; what
/// stands under `offered` is for engines and tools, and a runtime without it serves everything else.
macro_rules! table {
    (needed { $($name:ident($($argument:ty),*);)* } offered { $($other:ident($($parameter:ty),*);)* }) => {
        /// The functions that are used, by their names in `hip/hip_runtime_api.h`; each returns a `hipError_t`.
        #[allow(non_snake_case, missing_docs)]
        #[derive(Clone, Copy)]
        pub struct Table {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub $other: Option<unsafe extern "C" fn($($parameter),*) -> c_int>,)*
            /// Of static lifetime; returns no `hipError_t`.
            pub hipGetErrorString: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        /// Functions without which a library is no runtime for this crate.
        pub const NEEDED: &[&str] = &[$(stringify!($name),)* "hipGetErrorString"];

        /// Functions that a library may lack.
        pub const OFFERED: &[&str] = &[$(stringify!($other)),*];

        impl Table {
            /// Looks every function up.
            pub(super) fn resolve(library: &Library, path: &str) -> Result<Self, Unavailable> {
                let missing = |symbol| Unavailable::MissingSymbol { library: path.to_owned(), symbol };
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of hip_runtime_api.h, and the library is never unloaded.
                        let symbol = unsafe { library.get(stringify!($name)) };
                        *symbol.map_err(|_| missing(stringify!($name)))?
                    },)*
                    $($other: {
                        // SAFETY: the type is that of hip_runtime_api.h, and the library is never unloaded.
                        let symbol = unsafe { library.get(stringify!($other)) };
                        symbol.ok().map(|symbol| *symbol)
                    },)*
                    hipGetErrorString: {
                        // SAFETY: the type is that of hip_runtime_api.h, and the library is never unloaded.
                        let symbol = unsafe { library.get("hipGetErrorString") };
                        *symbol.map_err(|_| missing("hipGetErrorString"))?
                    },
                })
            }
        }
    };
}

table! {
    needed {
        hipInit(c_uint);
        hipGetDeviceCount(*mut c_int);
        hipSetDevice(c_int);
        hipGetDevice(*mut c_int);
        hipDeviceGetName(*mut c_char, c_int, c_int);
        hipDeviceTotalMem(*mut usize, c_int);
        hipDeviceGetAttribute(*mut c_int, c_int, c_int);
        hipRuntimeGetVersion(*mut c_int);
        hipModuleLoadData(*mut Handle, *const c_void);
        hipModuleGetFunction(*mut Handle, Handle, *const c_char);
        hipModuleLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );
        hipMalloc(*mut u64, usize);
        hipFree(u64);
        hipMemcpy(*mut c_void, *const c_void, usize, c_int);
        hipMemcpyAsync(*mut c_void, *const c_void, usize, c_int, Handle);
        hipMemsetD32Async(u64, c_int, usize, Handle);
        hipStreamSynchronize(Handle);
        hipDeviceSynchronize();
    }
    offered {
        hipGetDevicePropertiesR0600(*mut c_void, c_int);
        hipGetDeviceProperties(*mut c_void, c_int);
        hipStreamCreate(*mut Handle);
        hipStreamCreateWithFlags(*mut Handle, c_uint);
        hipStreamDestroy(Handle);
        hipEventCreate(*mut Handle);
        hipEventRecord(Handle, Handle);
        hipEventSynchronize(Handle);
        hipEventDestroy(Handle);
        hipStreamBeginCapture(Handle, c_int);
        hipStreamEndCapture(Handle, *mut Handle);
        hipGraphInstantiate(*mut Handle, Handle, *mut Handle, *mut c_char, usize);
        hipGraphLaunch(Handle, Handle);
        hipDeviceCanAccessPeer(*mut c_int, c_int, c_int);
        hipDeviceEnablePeerAccess(c_int, c_uint);
    }
}
