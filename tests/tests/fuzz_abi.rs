//! Hosts that pass anything: struct sizes, counts, null pointers and huge lengths into every function of a plugin's table.
//! A plugin answers with a status and text, panics nowhere, writes nowhere else, and works as before afterwards.
//!
//! What no plugin can find out is left true: a pointer that is not null leads to as much memory as a believable length says.
#![allow(unsafe_code, clippy::unwrap_used)] // A host in C; in the functions beside the tests too, where a failure fails the test.

use std::ptr;

use msa_core::abi::export::entry;
use msa_core::abi::table::{
    MsaBuffer, MsaDevice, MsaDeviceInfo, MsaDiag, MsaIndexCache, MsaKvCache, MsaOp, MsaPlan, MsaPlanRequest,
    MsaPluginApi, MsaPrepared, MsaRequestBound, MsaRun, MsaSpan, MsaSupport, MsaTensor, MsaText, MsaVariant,
    MsaView,
};
use msa_tests::Case;
use msa_tests::plugin_files::host_info;
use proptest::prelude::*;

/// Bytes behind every struct, so that any size that a plugin believes is there.
const BEHIND: usize = (64 << 10) / 8;

/// The status that a panic becomes.
const PANIC: u32 = 6;

/// The last status that the header names.
const LAST_STATUS: u32 = 8;

/// A struct with room behind it, in which every byte must stay as it is.
#[repr(C)]
struct Roomy<T> {
    value: T,
    behind: [u64; BEHIND],
}

impl<T> Roomy<T> {
    fn new(value: T) -> Box<Self> {
        Box::new(Self { value, behind: [0x5a5a; BEHIND] })
    }

    fn pointer(&mut self, present: bool) -> *mut T {
        if present { ptr::from_mut(self).cast() } else { ptr::null_mut() }
    }

    fn is_whole(&self) -> bool {
        self.behind.iter().all(|word| *word == 0x5a5a)
    }
}

/// What a fuzzed call is made of.
#[derive(Debug, Clone)]
struct Hostile {
    sizes: Vec<u32>,
    words: Vec<u64>,
    nulls: u64,
    function: u8,
}

fn hostile() -> impl Strategy<Value = Hostile> {
    let size = prop_oneof![
        4 => Just(0_u32),
        1 => prop::sample::select(vec![1, 8, 16, 23, 25, 40, 64, 65_536, 65_544, u32::MAX]),
        1 => any::<u32>(),
    ];
    let edges = [0, 1, 2, 4, 7, 63, 64, 65, 1 << 16, 1 << 31, u64::from(u32::MAX), 1 << 48, u64::MAX];
    let word = prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>()];
    let null = prop_oneof![Just(0), Just(0), 0_u64..256];
    let sizes = prop::collection::vec(size, 4);
    (sizes, prop::collection::vec(word, 16), null, 0_u8..8)
        .prop_map(|(sizes, words, nulls, function)| Hostile { sizes, words, nulls, function })
}

impl Hostile {
    /// The size of a struct: mostly the true one.
    fn size<T>(&self, index: usize) -> u32 {
        match self.sizes[index] {
            0 => size_of::<T>() as u32,
            other => other,
        }
    }

    fn word(&self, index: usize) -> u64 {
        self.words[index % self.words.len()]
    }

    fn present(&self, bit: u32) -> bool {
        self.nulls >> bit & 1 == 0
    }

    /// Text that is there for its length, or is null, or is longer than anything that is believed.
    fn text(&self, index: usize, good: &'static str) -> MsaText {
        let length = good.len() as u64;
        match self.word(index) % 8 {
            0 => MsaText { text: ptr::null(), length: self.word(index + 1) },
            1 => MsaText { text: good.as_ptr(), length: u64::MAX - self.word(index + 1) % 1000 },
            2 => MsaText { text: good.as_ptr(), length: self.word(index + 1) % (length + 1) },
            3 => MsaText { text: [0xff_u8; 2].as_slice().as_ptr(), length: 1 },
            _ => MsaText::of(good),
        }
    }

    /// How many of `there` there are said to be: so many or fewer, or more than are ever believed.
    fn count(&self, index: usize, there: u64) -> u64 {
        match self.word(index) {
            word if word <= there => word,
            word if word > 1 << 40 => word,
            _ => there,
        }
    }
}

/// A plugin's table with an open device and a prepared plan.
struct Session {
    table: &'static MsaPluginApi,
    device: *mut MsaDevice,
    prepared: *mut MsaPrepared,
    plan: &'static str,
    workspace: u64,
}

const DECODE: &str = "op.kind = sparse_decode";

impl Session {
    fn new() -> Self {
        let host = host_info();
        let (mut table, mut device, mut prepared) = (ptr::null(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the arguments are as the header says.
        let status = unsafe { entry(&msa_ref::plugin::PLUGIN, &host, &raw mut table, ptr::null_mut()) };
        assert_eq!(status, 0);
        // SAFETY: a table lives for the process.
        let table: &MsaPluginApi = unsafe { &*table };
        let case: Case = "sparse_decode(len=[1x300])".parse().unwrap();
        let op = case.descriptor().unwrap();
        let plan = msa_ref::device().plan(&op, &case.bounds().unwrap(), &case.plan_options()).unwrap();
        let text: &'static str = plan.to_text().leak();
        let flat = plan_struct(text, &plan);
        let (open, prepare) = (table.device_open.unwrap(), table.prepare.unwrap());
        // SAFETY: the arguments are as the header says.
        assert_eq!(unsafe { open(table.instance, 0, &raw mut device, ptr::null_mut()) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { prepare(device, &flat, &raw mut prepared, ptr::null_mut()) }, 0);
        Self { table, device, prepared, plan: text, workspace: plan.workspace_bytes }
    }

    /// Calls a function with a diagnosis whose size and room may be anything that is there.
    fn call(
        &self,
        hostile: &Hostile,
        function: impl FnOnce(*mut MsaDiag) -> u32,
    ) -> Result<(), TestCaseError> {
        let mut bytes = [0xa5_u8; 96];
        let capacity = hostile.word(13) % 65;
        let mut diag = Roomy::new(MsaDiag {
            struct_size: hostile.size::<MsaDiag>(3),
            vendor_code: 0,
            text: if hostile.present(7) { bytes.as_mut_ptr() } else { ptr::null_mut() },
            capacity,
            length: 0,
            field_length: 0,
            want_length: 0,
        });
        let status = function(diag.pointer(hostile.present(6)));
        prop_assert!(status <= LAST_STATUS && status != PANIC, "status {}", status);
        prop_assert!(bytes[capacity as usize..].iter().all(|byte| *byte == 0xa5), "past the text's room");
        prop_assert!(diag.is_whole(), "past the diagnosis");
        Ok(())
    }

    fn run(&self, h: &Hostile) -> Result<(), TestCaseError> {
        match h.function {
            0 => self.device_info(h),
            1 => self.variant(h),
            2 => self.support(h),
            3 => self.plan(h),
            4 => self.prepare(h),
            5 => self.enqueue(h),
            6 => self.open(h),
            _ => self.memory(h),
        }
    }

    fn device_info(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let mut bytes = [0xa5_u8; 64];
        let room = h.word(0) % 33;
        let buffer = MsaBuffer { text: bytes.as_mut_ptr(), capacity: room, length: h.word(1) };
        let empty = MsaBuffer { text: ptr::null_mut(), capacity: h.word(2), length: h.word(3) };
        // SAFETY: all-zero bytes are a device without names.
        let mut out: Box<Roomy<MsaDeviceInfo>> = Roomy::new(unsafe { std::mem::zeroed() });
        (out.value.struct_size, out.value.name, out.value.driver) =
            (h.size::<MsaDeviceInfo>(0), buffer, empty);
        let function = self.table.device_info.unwrap();
        // SAFETY: what is not null is there.
        self.call(h, |diag| unsafe {
            function(self.table.instance, h.word(4) as u32, out.pointer(h.present(0)), diag)
        })?;
        prop_assert!(bytes[room as usize..].iter().all(|byte| *byte == 0xa5) && out.is_whole());
        Ok(())
    }

    fn variant(&self, h: &Hostile) -> Result<(), TestCaseError> {
        // SAFETY: all-zero bytes are a variant without names.
        let mut out: Box<Roomy<MsaVariant>> = Roomy::new(unsafe { std::mem::zeroed() });
        out.value.struct_size = h.size::<MsaVariant>(0);
        let (device, function) = (self.device_or_null(h), self.table.variant.unwrap());
        // SAFETY: what is not null is there.
        self.call(h, |diag| unsafe { function(device, h.word(4) as u32, out.pointer(h.present(0)), diag) })?;
        prop_assert!(out.is_whole());
        Ok(())
    }

    fn support(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let mut bytes = [0xa5_u8; 64];
        let room = h.word(0) % 65;
        let lines = MsaBuffer { text: bytes.as_mut_ptr(), capacity: room, length: h.word(1) };
        let mut op = Roomy::new(self.op(h, 0));
        let mut out = Roomy::new(MsaSupport { struct_size: h.size::<MsaSupport>(1), answer: 7, lines });
        let (device, function) = (self.device_or_null(h), self.table.support.unwrap());
        // SAFETY: what is not null is there.
        self.call(h, |diag| unsafe {
            function(device, op.pointer(h.present(0)), out.pointer(h.present(1)), diag)
        })?;
        prop_assert!(bytes[room as usize..].iter().all(|byte| *byte == 0xa5) && out.is_whole());
        Ok(())
    }

    fn op(&self, h: &Hostile, size: usize) -> MsaOp {
        let revision = if h.word(5).is_multiple_of(3) { h.word(5) as u32 } else { self.table.op_revision };
        MsaOp { struct_size: h.size::<MsaOp>(size), revision, text: h.text(6, DECODE) }
    }

    fn plan(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let bound = |i: usize| MsaRequestBound { query_len: h.word(i) as u32, kv_len: h.word(i + 1) as u32 };
        let bounds = [bound(8), MsaRequestBound { query_len: 1, kv_len: 300 }];
        let mut request = Roomy::new(MsaPlanRequest {
            struct_size: h.size::<MsaPlanRequest>(0),
            reserved: h.word(0) as u32,
            op: self.op(h, 1),
            requests: if h.present(2) { bounds.as_ptr() } else { ptr::null() },
            request_count: h.count(1, 2),
            options: h.text(2, "options.splits = 4"),
        });
        let mut bytes = vec![0xa5_u8; 4096];
        let room = h.word(10) % 4000;
        let text = MsaBuffer { text: bytes.as_mut_ptr(), capacity: room, length: h.word(11) };
        let mut out = Roomy::new(MsaPlan { struct_size: h.size::<MsaPlan>(2), text, ..plan_header() });
        let (device, function) = (self.device_or_null(h), self.table.plan.unwrap());
        // SAFETY: what is not null is there.
        self.call(h, |diag| unsafe {
            function(device, request.pointer(h.present(0)), out.pointer(h.present(1)), diag)
        })?;
        prop_assert!(bytes[room as usize..].iter().all(|byte| *byte == 0xa5) && out.is_whole());
        Ok(())
    }

    fn prepare(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let text = h.text(2, self.plan);
        let text = MsaBuffer { text: text.text.cast_mut(), capacity: h.word(3), length: text.length };
        let mut plan = Roomy::new(MsaPlan {
            struct_size: h.size::<MsaPlan>(0),
            version: h.word(0) as u32,
            hash: h.word(1),
            text,
            ..plan_header()
        });
        let mut out = ptr::null_mut();
        let slot = if h.present(1) { &raw mut out } else { ptr::null_mut() };
        let (device, function) = (self.device_or_null(h), self.table.prepare.unwrap());
        // SAFETY: what is not null is there.
        self.call(h, |diag| unsafe { function(device, plan.pointer(h.present(0)), slot, diag) })?;
        if !out.is_null() {
            // SAFETY: it was prepared just now.
            self.call(h, |diag| unsafe { self.table.prepared_free.unwrap()(out, diag) })?;
        }
        Ok(())
    }

    /// Every workspace is smaller than the plan's, so that nothing behind an address is ever looked at.
    fn enqueue(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let tensor = |i: usize| MsaTensor {
            role: h.word(i) as u32 % 40,
            dtype: h.word(i + 1) as u32 % 12,
            rank: h.word(i + 2) as u32 % 6,
            reserved: h.word(i + 3) as u32,
            address: h.word(i + 4),
            shape: [0, 1, 2, 3].map(|axis| h.word(i + 5 + axis)),
            strides: [0, 1, 2, 3].map(|axis| h.word(i + 9 + axis)),
        };
        let tensors = [tensor(0), tensor(3), tensor(7)];
        let view = |i: usize| MsaView {
            address: h.word(i),
            page_stride: h.word(i + 1),
            head_stride: h.word(i + 2),
            token_stride: h.word(i + 3),
        };
        let mut kv = Roomy::new(MsaKvCache {
            struct_size: h.size::<MsaKvCache>(1),
            format: h.word(0) as u32 % 6,
            present: h.word(1) as u32 % 9,
            v_scale_order: h.word(2) as u32 % 3,
            pages: h.word(3),
            null_page: h.word(4) as u32,
            reserved: 0,
            key: view(5),
            value: view(6),
            key_scale: view(7),
            value_scale: view(8),
        });
        let mut index = Roomy::new(MsaIndexCache {
            struct_size: h.size::<MsaIndexCache>(2),
            format: h.word(9) as u32 % 6,
            present: h.word(10) as u32 % 9,
            null_page: 0,
            pages: h.word(11),
            key: view(1),
            key_scale: view(2),
        });
        let mut run = Roomy::new(MsaRun {
            struct_size: h.size::<MsaRun>(0),
            tensor_count: match h.word(12) as u32 {
                count @ (0..=3 | 65..) => count,
                _ => 3,
            },
            tensors: if h.present(2) { tensors.as_ptr() } else { ptr::null() },
            kv_cache: kv.pointer(h.present(3)),
            index_cache: index.pointer(h.present(4)),
            stream: h.word(13),
            workspace: MsaSpan { address: h.word(14), bytes: h.word(15) % self.workspace },
        });
        let prepared = if h.present(1) { self.prepared } else { ptr::null_mut() };
        let function = self.table.enqueue.unwrap();
        self.call(h, |diag| {
            // SAFETY: what is not null is there, and addresses are refused with the workspace.
            let status = unsafe { function(prepared, run.pointer(h.present(0)), diag) };
            assert_ne!(status, 0, "a run in too little workspace");
            status
        })
    }

    fn open(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let mut device = ptr::null_mut();
        let slot = if h.present(0) { &raw mut device } else { ptr::null_mut() };
        let function = self.table.device_open.unwrap();
        // SAFETY: what is not null is there.
        self.call(h, |diag| unsafe { function(self.table.instance, h.word(0) as u32, slot, diag) })?;
        // SAFETY: closed once, or null.
        self.call(h, |diag| unsafe { self.table.device_close.unwrap()(device, diag) })
    }

    fn memory(&self, h: &Hostile) -> Result<(), TestCaseError> {
        let (device, mut address) = (self.device_or_null(h), 0);
        let slot = if h.present(1) { &raw mut address } else { ptr::null_mut() };
        // Sizes that a machine could have are left out, so that the test takes none of them.
        let bytes = if h.word(0) > 1 << 44 { h.word(0) } else { h.word(0) % 4096 };
        let mut host = [0_u8; 16];
        let pointer = if h.present(2) { host.as_mut_ptr() } else { ptr::null_mut() };
        let length = h.count(1, 16);
        let table = self.table;
        // SAFETY: what is not null is there; host memory is as long as a believable length says, and device addresses are
        // checked by the plugin.
        self.call(h, |diag| unsafe { table.allocate.unwrap()(device, bytes, slot, diag) })?;
        let target = if h.word(2).is_multiple_of(2) { address } else { h.word(2) };
        // SAFETY: as above.
        self.call(h, |diag| unsafe {
            table.write.unwrap()(device, target, pointer.cast_const().cast(), length, diag)
        })?;
        // SAFETY: as above.
        self.call(h, |diag| unsafe { table.read.unwrap()(device, target, pointer.cast(), length, diag) })?;
        // SAFETY: as above.
        self.call(h, |diag| unsafe { table.release.unwrap()(device, target, diag) })?;
        if address != target && address != 0 {
            // SAFETY: it was allocated just now.
            self.call(h, |diag| unsafe { table.release.unwrap()(self.device, address, diag) })?;
        }
        Ok(())
    }

    fn device_or_null(&self, h: &Hostile) -> *mut MsaDevice {
        if h.present(5) { self.device } else { ptr::null_mut() }
    }

    /// The text of a plan, by a host that does everything right.
    fn planned(&self) -> Vec<u8> {
        let bounds = [MsaRequestBound { query_len: 1, kv_len: 300 }];
        let request = MsaPlanRequest {
            struct_size: size_of::<MsaPlanRequest>() as u32,
            reserved: 0,
            op: MsaOp {
                struct_size: size_of::<MsaOp>() as u32,
                revision: self.table.op_revision,
                text: MsaText::of(DECODE),
            },
            requests: bounds.as_ptr(),
            request_count: 1,
            options: MsaText::EMPTY,
        };
        let mut bytes = vec![0; 64 << 10];
        let mut out = MsaPlan { text: MsaBuffer::of(&mut bytes), ..plan_header() };
        // SAFETY: the arguments are as the header says.
        let status =
            unsafe { self.table.plan.unwrap()(self.device, &request, &raw mut out, ptr::null_mut()) };
        assert_eq!(status, 0);
        bytes.truncate(out.text.length as usize);
        bytes
    }
}

fn plan_header() -> MsaPlan {
    MsaPlan {
        struct_size: size_of::<MsaPlan>() as u32,
        version: 0,
        op_revision: 0,
        batch_invariant: 0,
        workspace_bytes: 0,
        hash: 0,
        text: MsaBuffer::EMPTY,
    }
}

fn plan_struct(text: &'static str, plan: &msa_core::plan::Plan) -> MsaPlan {
    MsaPlan {
        version: plan.version,
        op_revision: plan.op_revision,
        batch_invariant: plan.batch_invariant.into(),
        workspace_bytes: plan.workspace_bytes,
        hash: u64::from_str_radix(&plan.hash, 16).unwrap(),
        text: MsaBuffer {
            text: text.as_ptr().cast_mut(),
            capacity: text.len() as u64,
            length: text.len() as u64,
        },
        ..plan_header()
    }
}

#[test]
fn calls_of_any_kind() {
    let session = Session::new();
    let config = ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() };
    let before = session.planned();
    proptest!(config, |(hostile in hostile())| session.run(&hostile)?);
    assert!(before == session.planned() && before.starts_with(b"plan.version"), "the plugin works as before");
}
