//! The layout of the border as text and as assertions that hold on every 64-bit target.

use std::fmt::Write as _;
use std::mem::offset_of;

use super::table::{
    MsaBuffer, MsaDeviceInfo, MsaDiag, MsaHostInfo, MsaIndexCache, MsaKvCache, MsaOp, MsaPlan,
    MsaPlanRequest, MsaPluginApi, MsaRun, MsaSpan, MsaSupport, MsaTensor, MsaText, MsaVariant, MsaView,
    RECORDS,
};
use crate::tensor::MAX_RANK;

/// One line a field: `struct.field offset size type`, and one a struct: `struct size`.
pub fn text() -> String {
    let mut text = String::new();
    for record in RECORDS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {}", record.name, record.size);
        for field in record.fields {
            let _ = writeln!(
                text,
                "{}.{} {} {} {}",
                record.name, field.name, field.offset, field.size, field.rust_type
            );
        }
    }
    text
}

/// Sizes that version 1.0 has on every target, and the offsets at which the parts of each struct begin.
macro_rules! layout {
    ($($type:ident = $size:literal { $($field:ident = $offset:literal),* $(,)? })*) => {
        $(
            const _: () = assert!(size_of::<$type>() == $size);
            $(const _: () = assert!(offset_of!($type, $field) == $offset);)*
        )*
    };
}

/// Strides are 64-bit: pages of all layers are megabytes apart, and a few thousand of them pass 2^31 bytes.
const _: fn(&MsaTensor) -> [u64; MAX_RANK] = |tensor| tensor.strides;
const _: fn(&MsaView) -> [u64; 3] = |view| [view.page_stride, view.head_stride, view.token_stride];

const _: () = assert!(size_of::<usize>() == 8, "the ABI is for 64-bit targets");
const _: () = assert!(cfg!(target_endian = "little"), "the ABI is for little-endian targets");

layout! {
    MsaText = 16 { text = 0, length = 8 }
    MsaBuffer = 24 { text = 0, capacity = 8, length = 16 }
    MsaSpan = 16 { address = 0, bytes = 8 }
    MsaDiag = 40 { struct_size = 0, vendor_code = 4, text = 8, capacity = 16, length = 24, field_length = 32 }
    MsaHostInfo = 48 { struct_size = 0, abi_major = 4, abi_minor = 8, log = 16, log_context = 24, options = 32 }
    MsaDeviceInfo = 128 {
        struct_size = 0, ordinal = 4, name = 8, arch_name = 32, driver = 56, memory = 80, arch = 88,
        shared_memory = 96, l2 = 104, domains = 112, hop_ns = 120,
    }
    MsaVariant = 48 { struct_size = 0, op = 4, arch = 8, max_query_len = 12, name = 16, arithmetic = 32 }
    MsaOp = 24 { struct_size = 0, revision = 4, text = 8 }
    MsaSupport = 32 { struct_size = 0, answer = 4, lines = 8 }
    MsaPlanRequest = 64 { struct_size = 0, op = 8, requests = 32, request_count = 40, options = 48 }
    MsaPlan = 56 { struct_size = 0, version = 4, op_revision = 8, workspace_bytes = 16, hash = 24, text = 32 }
    MsaTensor = 88 { role = 0, dtype = 4, rank = 8, address = 16, shape = 24, strides = 56 }
    MsaView = 32 { address = 0, page_stride = 8, head_stride = 16, token_stride = 24 }
    MsaKvCache = 160 {
        struct_size = 0, format = 4, present = 8, v_scale_order = 12, pages = 16, null_page = 24, key = 32,
        value = 64, key_scale = 96, value_scale = 128,
    }
    MsaIndexCache = 88 { struct_size = 0, format = 4, present = 8, null_page = 12, pages = 16, key = 24, key_scale = 56 }
    MsaRun = 56 { struct_size = 0, tensor_count = 4, tensors = 8, kv_cache = 16, index_cache = 24, stream = 32, workspace = 40 }
    MsaPluginApi = 224 {
        struct_size = 0, abi_major = 4, abi_minor = 8, op_revision = 12, name = 16, version = 32, build = 48,
        arches = 64, instance = 80, device_count = 88, device_close = 112, variant_count = 120, support = 136,
        plan = 144, prepare = 152, prepared_free = 160, enqueue = 168, status = 176, allocate = 184,
        synchronize = 216,
    }
}
