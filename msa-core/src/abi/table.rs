//! The structs and functions of the border, major version 1.
//!
//! Rules of every declaration here (`docs/ABI.md`): the first field of a struct that may grow is `struct_size`, set by
//! whoever allocates it; fields are appended and never moved; enumerations are `u32`; lengths are `u64`; pointers in
//! arguments live for the call unless the field says otherwise; nothing is freed by the other side.

use std::ffi::c_void;

use super::describe::{c_functions, c_structs};

/// Name of the only symbol that a plugin exports.
pub const ENTRY_SYMBOL: &str = "msa_plugin_entry";

/// Major version: another one is another ABI.
pub const ABI_MAJOR: u32 = 1;

/// Minor version: higher ones only append.
pub const ABI_MINOR: u32 = 0;

/// Bit of [`MsaKvCache::present`] and [`MsaIndexCache::present`]: the view `key_scale` counts.
pub const PRESENT_KEY_SCALE: u32 = 1;
/// Bit of [`MsaKvCache::present`]: the view `value_scale` counts.
pub const PRESENT_VALUE_SCALE: u32 = 1 << 1;
/// Bit of [`MsaKvCache::present`] and [`MsaIndexCache::present`]: `null_page` counts.
pub const PRESENT_NULL_PAGE: u32 = 1 << 2;

/// Most tensors of one [`MsaRun`].
pub const MAX_TENSORS: usize = 64;

/// A plugin as its host loaded it; opaque.
#[repr(C)]
#[derive(Debug)]
pub struct MsaInstance {
    private: [u8; 0],
}

/// An open device; opaque.
#[repr(C)]
#[derive(Debug)]
pub struct MsaDevice {
    private: [u8; 0],
}

/// A plan ready to run; opaque.
#[repr(C)]
#[derive(Debug)]
pub struct MsaPrepared {
    private: [u8; 0],
}

c_functions! {
    /// Receives a log line of `length` bytes at `level`. May be called from any thread.
    fn MsaLog(context: *mut c_void, level: u32, text: *const u8, length: u64);
    /// The exported symbol. Writes a table of the host's major version to `out`, or answers
    /// MSA_STATUS_ABI_MISMATCH with both versions in the text. The table lives for the process.
    fn MsaPluginEntry(host: *const MsaHostInfo, out: *mut *const MsaPluginApi, diag: *mut MsaDiag) -> u32;
    /// Number of devices. Without a driver or a device: MSA_STATUS_UNAVAILABLE, 0 and the reason.
    fn MsaDeviceCount(instance: *mut MsaInstance, out: *mut u32, diag: *mut MsaDiag) -> u32;
    /// Describes the device at `index`, below the number of devices.
    fn MsaDeviceInfoGet(instance: *mut MsaInstance, index: u32, out: *mut MsaDeviceInfo, diag: *mut MsaDiag) -> u32;
    /// Opens the device of an ordinal. The same one may be opened several times.
    fn MsaDeviceOpen(instance: *mut MsaInstance, ordinal: u32, out: *mut *mut MsaDevice, diag: *mut MsaDiag) -> u32;
    /// Closes a device; never synchronises. Null is allowed. What was prepared on it stays usable.
    fn MsaDeviceClose(device: *mut MsaDevice, diag: *mut MsaDiag) -> u32;
    /// Number of kernel variants.
    fn MsaVariantCount(device: *mut MsaDevice, out: *mut u32, diag: *mut MsaDiag) -> u32;
    /// Describes the variant at `index`; best first within an operation.
    fn MsaVariantGet(device: *mut MsaDevice, index: u32, out: *mut MsaVariant, diag: *mut MsaDiag) -> u32;
    /// Says which variants take an operation, or why none does.
    fn MsaSupportGet(device: *mut MsaDevice, op: *const MsaOp, out: *mut MsaSupport, diag: *mut MsaDiag) -> u32;
    /// Plans an operation. Pure: the device is not touched.
    fn MsaPlanMake(device: *mut MsaDevice, request: *const MsaPlanRequest, out: *mut MsaPlan, diag: *mut MsaDiag) -> u32;
    /// Makes a plan runnable: may allocate and load code. Not during graph capture.
    fn MsaPrepare(device: *mut MsaDevice, plan: *const MsaPlan, out: *mut *mut MsaPrepared, diag: *mut MsaDiag) -> u32;
    /// Frees what was prepared; never synchronises. Null is allowed.
    fn MsaPreparedFree(prepared: *mut MsaPrepared, diag: *mut MsaDiag) -> u32;
    /// Enqueues the work and returns: no allocation on the device, no synchronisation, capturable. May run
    /// concurrently on one `prepared` with distinct workspaces and streams. On an error nothing was enqueued.
    fn MsaEnqueue(prepared: *mut MsaPrepared, run: *const MsaRun, diag: *mut MsaDiag) -> u32;
    /// The status word that the last run left in the workspace; waits for the stream.
    fn MsaRunStatus(
        prepared: *mut MsaPrepared, stream: u64, workspace: *const MsaSpan, out: *mut u32, diag: *mut MsaDiag,
    ) -> u32;
    /// Allocates device memory, aligned to 256 bytes.
    fn MsaAllocate(device: *mut MsaDevice, bytes: u64, out: *mut u64, diag: *mut MsaDiag) -> u32;
    /// Frees what MsaAllocate gave.
    fn MsaRelease(device: *mut MsaDevice, address: u64, diag: *mut MsaDiag) -> u32;
    /// Copies `length` bytes to the device; waits.
    fn MsaWrite(device: *mut MsaDevice, address: u64, bytes: *const c_void, length: u64, diag: *mut MsaDiag) -> u32;
    /// Copies `length` bytes from the device; waits for all work before it.
    fn MsaRead(device: *mut MsaDevice, address: u64, bytes: *mut c_void, length: u64, diag: *mut MsaDiag) -> u32;
    /// Waits for a stream.
    fn MsaSynchronize(device: *mut MsaDevice, stream: u64, diag: *mut MsaDiag) -> u32;
}

c_structs! {
    /// UTF-8 text that is passed in; not terminated.
    MsaText {
        /// First byte; may be null if `length` is 0.
        text: *const u8,
        /// Bytes.
        length: u64,
    }
    /// Memory of the caller that the callee fills with UTF-8 text.
    MsaBuffer {
        /// First byte; may be null if `capacity` is 0.
        text: *mut u8,
        /// Bytes that may be written.
        capacity: u64,
        /// Out: bytes of the whole text. Above `capacity`, nothing was written: call again with more.
        length: u64,
    }
    /// A range of device memory.
    MsaSpan {
        /// First byte.
        address: u64,
        /// Bytes.
        bytes: u64,
    }
    /// What went wrong, in memory of the caller; nothing is to be freed.
    MsaDiag {
        /// Bytes of this struct.
        struct_size: u32,
        /// Out: CUresult, hipError_t or errno; 0 if there is none.
        vendor_code: i32,
        /// Where the text goes; null if `capacity` is 0.
        text: *mut u8,
        /// Bytes that may be written.
        capacity: u64,
        /// Out: bytes that were written; a longer text is cut at a character.
        length: u64,
        /// Out: bytes of the field's path at the start of the text; 0 if the text names no field.
        field_length: u32,
        /// Out: bytes of what was wanted, after the field and ": want "; ", got " and the rest follow.
        want_length: u32,
    }
    /// What the host tells the plugin.
    MsaHostInfo {
        /// Bytes of this struct.
        struct_size: u32,
        /// Major version that the host speaks.
        abi_major: u32,
        /// Minor version that the host speaks.
        abi_minor: u32,
        /// 0.
        reserved: u32,
        /// Log callback; may be null. Called until the process ends.
        log: Option<MsaLog>,
        /// Passed to `log`; lives for the process.
        log_context: *mut c_void,
        /// Lines `name = value` that the plugin understands; an unknown name is an error. Empty for defaults.
        options: MsaText,
    }
    /// A device and the numbers that planners need.
    MsaDeviceInfo {
        /// Bytes of this struct.
        struct_size: u32,
        /// Out: what MsaDeviceOpen takes.
        ordinal: u32,
        /// Out: product name.
        name: MsaBuffer,
        /// Out: architecture as the driver spells it.
        arch_name: MsaBuffer,
        /// Out: driver version.
        driver: MsaBuffer,
        /// Out: device memory, bytes.
        memory: u64,
        /// Out: MSA_ARCH_*.
        arch: u32,
        /// Out: SMs, CUs or cores.
        units: u32,
        /// Out: shared memory or LDS of a unit, bytes.
        shared_memory: u64,
        /// Out: last-level cache, bytes.
        l2: u64,
        /// Out: memory domains with their own L2 slice.
        domains: u32,
        /// Out: time from one kernel's end to the next one's start in a graph, nanoseconds.
        launch_ns: u32,
        /// Out: store, fence, flag and spin to a peer, one way, nanoseconds.
        hop_ns: u32,
        /// 0.
        reserved: u32,
    }
    /// A kernel variant.
    MsaVariant {
        /// Bytes of this struct.
        struct_size: u32,
        /// Out: MSA_OP_*.
        op: u32,
        /// Out: MSA_ARCH_*.
        arch: u32,
        /// Out: most query rows of a request; 0xffffffff for any number.
        max_query_len: u32,
        /// Out: `op.formats.arch.trick`; lives for the process.
        name: MsaText,
        /// Out: named arithmetic; lives for the process.
        arithmetic: MsaText,
    }
    /// An operation: its text form `op.kind = sparse_decode`, `op.geometry.top_k = 16`, ... The kind stands first;
    /// fields that are not named keep the default of the kind, an unknown field is an error.
    MsaOp {
        /// Bytes of this struct.
        struct_size: u32,
        /// MSA_OP_REVISION of whoever wrote the text: the meaning of the operations, apart from any layout.
        revision: u32,
        /// The text.
        text: MsaText,
    }
    /// Answer to "can you do this?".
    MsaSupport {
        /// Bytes of this struct.
        struct_size: u32,
        /// Out: 1 if some variant takes the operation, 0 if none does.
        answer: u32,
        /// Out: one line each: names of the variants, best first, or the reasons why each was refused.
        lines: MsaBuffer,
    }
    /// Length bounds of one request.
    MsaRequestBound {
        /// Most query rows in one call.
        query_len: u32,
        /// Most tokens in the cache, the new ones included.
        kv_len: u32,
    }
    /// What is to be planned.
    MsaPlanRequest {
        /// Bytes of this struct.
        struct_size: u32,
        /// 0.
        reserved: u32,
        /// The operation.
        op: MsaOp,
        /// Bounds in batch order.
        requests: *const MsaRequestBound,
        /// Number of bounds.
        request_count: u64,
        /// `options.splits = 4`, ...; fields that are not named keep their default. Empty for defaults.
        options: MsaText,
    }
    /// A plan: a header and the text form, position-free and without pointers inside. What MsaPlanMake fills,
    /// MsaPrepare takes; it may be stored and compared meanwhile, but not changed.
    MsaPlan {
        /// Bytes of this struct.
        struct_size: u32,
        /// Out: version of the text form.
        version: u32,
        /// Out: meaning of the operations.
        op_revision: u32,
        /// Out: 1 if a request's bits depend on that request alone.
        batch_invariant: u32,
        /// Out: bytes of workspace that a run needs, aligned to 256.
        workspace_bytes: u64,
        /// Out: hash of the text form.
        hash: u64,
        /// The text form.
        text: MsaBuffer,
    }
    /// A tensor of a run. Strides are in bytes; axes beyond the rank are ignored.
    MsaTensor {
        /// MSA_ROLE_*.
        role: u32,
        /// MSA_DTYPE_*.
        dtype: u32,
        /// Number of axes, at most 4.
        rank: u32,
        /// 0.
        reserved: u32,
        /// Address of element zero on the device.
        address: u64,
        /// Extents, outermost first.
        shape: [u64; 4],
        /// Byte strides, outermost first.
        strides: [u64; 4],
    }
    /// Where row (page, head, token) of a cache component stands.
    MsaView {
        /// Address of page 0, head 0, token 0.
        address: u64,
        /// Bytes from a page to the next.
        page_stride: u64,
        /// Bytes from a head to the next.
        head_stride: u64,
        /// Bytes from a token to the next; the row itself is contiguous.
        token_stride: u64,
    }
    /// A paged KV cache of one layer.
    MsaKvCache {
        /// Bytes of this struct.
        struct_size: u32,
        /// MSA_CACHE_*.
        format: u32,
        /// MSA_PRESENT_* bits.
        present: u32,
        /// MSA_V_SCALE_ORDER_*.
        v_scale_order: u32,
        /// Physical pages.
        pages: u64,
        /// Page id that is never read nor written, if present.
        null_page: u32,
        /// 0.
        reserved: u32,
        /// Keys.
        key: MsaView,
        /// Values.
        value: MsaView,
        /// Scales of the keys, if present.
        key_scale: MsaView,
        /// Scales of the values, if present.
        value_scale: MsaView,
    }
    /// A paged cache of index keys of one layer.
    MsaIndexCache {
        /// Bytes of this struct.
        struct_size: u32,
        /// MSA_CACHE_*.
        format: u32,
        /// MSA_PRESENT_* bits.
        present: u32,
        /// Page id that is never read nor written, if present.
        null_page: u32,
        /// Physical pages.
        pages: u64,
        /// Index keys.
        key: MsaView,
        /// Scales of the index keys, if present.
        key_scale: MsaView,
    }
    /// The arguments of one run. Addresses stay valid until the work is done; the structs themselves for the call.
    MsaRun {
        /// Bytes of this struct.
        struct_size: u32,
        /// Number of tensors, at most 64; a role stands once.
        tensor_count: u32,
        /// Tensors.
        tensors: *const MsaTensor,
        /// KV cache; null if the operation has none.
        kv_cache: *const MsaKvCache,
        /// Index cache; null if the operation has none.
        index_cache: *const MsaIndexCache,
        /// CUstream or hipStream_t; 0 is the default stream.
        stream: u64,
        /// Workspace, exclusive to the run until it is done.
        workspace: MsaSpan,
    }
    /// The table. Lives for the process; null functions are not provided. Functions may be called from any thread.
    MsaPluginApi {
        /// Bytes of this struct: how far the table reaches.
        struct_size: u32,
        /// Major version that the plugin was built with.
        abi_major: u32,
        /// Minor version that the plugin was built with.
        abi_minor: u32,
        /// Meaning of the operations that the plugin was built with.
        op_revision: u32,
        /// Name of the backend: `ref`, `cuda`, `rocm`.
        name: MsaText,
        /// Version of the plugin.
        version: MsaText,
        /// What the plugin was built from, as its manifest says.
        build: MsaText,
        /// Architectures with kernels, separated by blanks.
        arches: MsaText,
        /// First argument of the functions that take none of the other handles; lives for the process.
        instance: *mut MsaInstance,
        /// Required.
        device_count: Option<MsaDeviceCount>,
        /// Required.
        device_info: Option<MsaDeviceInfoGet>,
        /// Required.
        device_open: Option<MsaDeviceOpen>,
        /// Required.
        device_close: Option<MsaDeviceClose>,
        /// Required.
        variant_count: Option<MsaVariantCount>,
        /// Required.
        variant: Option<MsaVariantGet>,
        /// Required.
        support: Option<MsaSupportGet>,
        /// Required.
        plan: Option<MsaPlanMake>,
        /// Required.
        prepare: Option<MsaPrepare>,
        /// Required.
        prepared_free: Option<MsaPreparedFree>,
        /// Required.
        enqueue: Option<MsaEnqueue>,
        /// Required.
        status: Option<MsaRunStatus>,
        /// May be null: memory calls are for tools and tests.
        allocate: Option<MsaAllocate>,
        /// May be null.
        release: Option<MsaRelease>,
        /// May be null.
        write: Option<MsaWrite>,
        /// May be null.
        read: Option<MsaRead>,
        /// May be null.
        synchronize: Option<MsaSynchronize>,
    }
}

// SAFETY: the table is read only after it was made, and its pointers are to memory that lives for the process.
unsafe impl Sync for MsaPluginApi {}
// SAFETY: as above.
unsafe impl Send for MsaPluginApi {}

impl MsaText {
    /// No text.
    pub const EMPTY: Self = Self { text: std::ptr::null(), length: 0 };

    /// `text`, which the result borrows without saying so.
    pub const fn of(text: &str) -> Self {
        Self { text: text.as_ptr(), length: text.len() as u64 }
    }
}

impl MsaBuffer {
    /// No room.
    pub const EMPTY: Self = Self { text: std::ptr::null_mut(), capacity: 0, length: 0 };

    /// All of `bytes`, which the result borrows without saying so.
    pub fn of(bytes: &mut [u8]) -> Self {
        Self { text: bytes.as_mut_ptr(), capacity: bytes.len() as u64, length: 0 }
    }
}
