//! Plugins that answer anything: whatever a table says and its functions give, the host has an error or a value.

use std::cell::RefCell;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use proptest::prelude::*;

use super::backend::wrap;
use super::negotiate::negotiate;
use crate::abi::Policy;
use crate::abi::table::{
    ABI_MAJOR, ABI_MINOR, MsaBuffer, MsaDevice, MsaDeviceInfo, MsaDiag, MsaHostInfo, MsaInstance, MsaOp,
    MsaPlan, MsaPlanRequest, MsaPluginApi, MsaPrepared, MsaRun, MsaSpan, MsaSupport, MsaText, MsaVariant,
};
use crate::args::Args;
use crate::backend::{Backend, Span, Stream};
use crate::device::{Arch, DeviceTraits};
use crate::lengths::Lengths;
use crate::op::{Op, OpKind};
use crate::plan::PlanOptions;
use crate::variant::Variant;

const VARIANT: Variant = Variant {
    name: "sparse_decode.q16kv16.cpu.odd",
    op: OpKind::SparseDecode,
    arch: Arch::Cpu,
    arithmetic: "f32",
    max_query_len: None,
    needs: &[],
};

/// What the plugin of this thread says: a table, and the numbers that its functions answer with, one after the other.
struct Script {
    table: Box<MsaPluginApi>,
    words: Vec<u64>,
    at: usize,
}

thread_local! {
    static SCRIPT: RefCell<Option<Script>> = const { RefCell::new(None) };
}

fn word() -> u64 {
    SCRIPT.with_borrow_mut(|script| {
        let script = script.as_mut().unwrap();
        script.at += 1;
        script.words[script.at % script.words.len()]
    })
}

/// Text with a length that may lie where no reader may look: null, or longer than any side believes.
fn text(choice: u64) -> MsaText {
    static BROKEN: [u8; 3] = [0xff, 0xfe, b'x'];
    match choice % 8 {
        0 => MsaText::EMPTY,
        1 => MsaText { text: ptr::null(), length: choice },
        2 => MsaText { text: b"x".as_ptr(), length: u64::MAX },
        3 => MsaText { text: b"x".as_ptr(), length: (256 << 20) + 1 },
        4 => MsaText { text: BROKEN.as_ptr(), length: 3 },
        5 => MsaText::of("No Name"),
        _ => MsaText::of("merge"),
    }
}

/// Fills as much of a buffer of the host as it has room for, and says any length.
fn fill(buffer: &mut MsaBuffer) {
    let choice = word();
    let bytes: &[u8] = if choice & 1 == 0 { b"plan.version = 2\nplan." } else { &[0xc3; 64] };
    if !buffer.text.is_null() {
        let count = bytes.len().min(buffer.capacity as usize);
        // SAFETY: the host's buffers are as long as they say.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.text, count) };
    }
    buffer.length = if choice & 2 == 0 { choice % 70 } else { word() };
}

/// A status, mostly good, with a diagnosis whose lengths are anything.
///
/// # Safety
/// `diag` is null or valid.
unsafe fn answer(diag: *mut MsaDiag) -> u32 {
    // SAFETY: by this function's contract.
    if let Some(diag) = unsafe { diag.as_mut() } {
        (diag.length, diag.field_length, diag.want_length) = (word(), word() as u32, word() as u32);
        diag.vendor_code = word() as i32;
    }
    match word() % 8 {
        0 => word() as u32,
        1 => (word() % 10) as u32,
        _ => 0,
    }
}

/// Defines functions of the table that do something to their arguments and then give any status.
macro_rules! stubs {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        unsafe extern "C" fn $name($($argument: $type,)* diag: *mut MsaDiag) -> u32 {
            $body
            // SAFETY: the host's diagnosis is valid for the call.
            unsafe { answer(diag) }
        }
    )*};
}

/// What a function of the table writes to.
fn out<'a, T>(pointer: *mut T) -> &'a mut T {
    // SAFETY: memory of the host, which lives for the call.
    unsafe { &mut *pointer }
}

/// Few in most cases, else any number.
fn few(most: u64) -> u32 {
    if word() & 1 == 0 { (word() % most) as u32 } else { word() as u32 }
}

/// A known number in half of the cases.
fn perhaps(known: u32) -> u32 {
    if word() & 1 == 0 { known } else { word() as u32 }
}

/// A handle that the host never looks behind, or null.
fn handle<T>() -> *mut T {
    if word().is_multiple_of(4) { ptr::null_mut() } else { ptr::dangling_mut() }
}

stubs! {
    fn device_count(_i: *mut MsaInstance, count: *mut u32) {
        *out(count) = few(3);
    }
    fn device_info(_i: *mut MsaInstance, _index: u32, info: *mut MsaDeviceInfo) {
        let info = out(info);
        [&mut info.name, &mut info.arch_name, &mut info.driver].into_iter().for_each(fill);
        (info.ordinal, info.arch, info.units) = ((word() % 2) as u32, perhaps(0), word() as u32);
        (info.memory, info.struct_size) = (word(), word() as u32);
    }
    fn device_open(_i: *mut MsaInstance, _ordinal: u32, device: *mut *mut MsaDevice) {
        *out(device) = handle();
    }
    fn device_close(_device: *mut MsaDevice) {}
    fn variant_count(_device: *mut MsaDevice, count: *mut u32) {
        *out(count) = few(4);
    }
    fn variant(_device: *mut MsaDevice, _index: u32, variant: *mut MsaVariant) {
        let variant = out(variant);
        (variant.op, variant.arch, variant.max_query_len) = ((word() % 9) as u32, perhaps(90), word() as u32);
        (variant.name, variant.arithmetic, variant.struct_size) = (text(word()), text(word()), word() as u32);
    }
    fn support(_device: *mut MsaDevice, _op: *const MsaOp, support: *mut MsaSupport) {
        let support = out(support);
        fill(&mut support.lines);
        (support.answer, support.struct_size) = ((word() % 3) as u32, word() as u32);
    }
    fn plan(_device: *mut MsaDevice, _request: *const MsaPlanRequest, plan: *mut MsaPlan) {
        let plan = out(plan);
        fill(&mut plan.text);
        (plan.version, plan.op_revision, plan.struct_size) = (word() as u32, word() as u32, word() as u32);
        (plan.workspace_bytes, plan.hash) = (word(), word());
    }
    fn prepare(_device: *mut MsaDevice, _plan: *const MsaPlan, prepared: *mut *mut MsaPrepared) {
        *out(prepared) = handle();
    }
    fn prepared_free(_prepared: *mut MsaPrepared) {}
    fn enqueue(_prepared: *mut MsaPrepared, _run: *const MsaRun) {}
    fn status(_prepared: *mut MsaPrepared, _stream: u64, _workspace: *const MsaSpan, status: *mut u32) {
        *out(status) = word() as u32;
    }
    fn allocate(_device: *mut MsaDevice, _bytes: u64, address: *mut u64) {
        *out(address) = word();
    }
    fn synchronize(_device: *mut MsaDevice, _stream: u64) {}
}

unsafe extern "C" fn entry(
    _host: *const MsaHostInfo,
    out: *mut *const MsaPluginApi,
    diag: *mut MsaDiag,
) -> u32 {
    let table = SCRIPT.with_borrow(|script| ptr::from_ref(&*script.as_ref().unwrap().table));
    // The table lives as long as the script.
    *self::out(out) = if word().is_multiple_of(16) { ptr::null() } else { table };
    // SAFETY: the host's diagnosis is valid for the call.
    unsafe { answer(diag) }
}

fn sound() -> MsaPluginApi {
    MsaPluginApi {
        struct_size: size_of::<MsaPluginApi>() as u32,
        abi_major: ABI_MAJOR,
        abi_minor: ABI_MINOR,
        op_revision: crate::op::OP_REVISION,
        name: MsaText::of("odd"),
        version: MsaText::of("1"),
        build: MsaText::of("b"),
        arches: MsaText::of("cpu"),
        instance: ptr::null_mut(),
        device_count: Some(device_count),
        device_info: Some(device_info),
        device_open: Some(device_open),
        device_close: Some(device_close),
        variant_count: Some(variant_count),
        variant: Some(variant),
        support: Some(support),
        plan: Some(plan),
        prepare: Some(prepare),
        prepared_free: Some(prepared_free),
        enqueue: Some(enqueue),
        status: Some(status),
        allocate: Some(allocate),
        release: None,
        write: None,
        read: None,
        synchronize: Some(synchronize),
    }
}

/// A change of a sound table. Sizes above the true one only with a version that is refused or memory that is there: a
/// table that is shorter than it says cannot be found out.
fn damaged(mut table: MsaPluginApi, field: u64, value: u64) -> MsaPluginApi {
    match field % 12 {
        0 => table.struct_size = (value % 256) as u32,
        1 => table.abi_major = value as u32,
        2 => table.abi_minor = (value % 2) as u32,
        3 => table.name = text(value),
        4 => table.version = text(value),
        5 => table.arches = text(value),
        6 => table.device_count = None,
        7 => table.status = None,
        8 => table.plan = None,
        9 => table.op_revision = value as u32,
        10 => table.allocate = None,
        _ => {}
    }
    table
}

fn hostile() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 2, 3, 4096, 4097, u64::from(u32::MAX), u64::MAX, 1 << 31, 1 << 63, 256 << 20];
    prop_oneof![prop::sample::select(edges.to_vec()), 0_u64..20, any::<u64>()]
}

/// Everything that a host asks of a plugin. Returns how many answers were values.
fn ask(backend: &dyn Backend) -> usize {
    let devices = backend.devices().is_ok();
    let Ok(device) = backend.open(0) else { return usize::from(devices) };
    let op = Op::of(OpKind::SparseDecode);
    let lengths = Lengths::upto(2, 1, 300).unwrap();
    let supported = device.support(&op).is_yes();
    let planned = device.plan(&op, &lengths, &PlanOptions::default()).is_ok();
    let memory = device.memory();
    let memory = memory.allocate(64).is_ok() & memory.free(7).is_err() & memory.read(1, &mut [0; 4]).is_err();
    let traits = DeviceTraits::cpu(2);
    let plan = crate::plan::plan(&op, &lengths, &traits, &[VARIANT], &PlanOptions::default(), "odd");
    let ran = plan.and_then(|plan| device.prepare(&plan)).is_ok_and(|prepared| {
        let (stream, span) = (Stream::default(), Span { address: 256, bytes: 256 });
        // SAFETY: the stub looks at nothing behind the addresses.
        let enqueued = unsafe { prepared.enqueue(stream, &Args::new(), span) }.is_ok();
        // SAFETY: as above.
        enqueued & unsafe { prepared.status(stream, span) }.is_ok()
    });
    [devices, supported, planned, memory, ran].into_iter().filter(|answer| *answer).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tables_and_answers_of_any_kind(
        damage in prop::collection::vec((any::<u64>(), hostile()), 0..3),
        words in prop::collection::vec(hostile(), 1..60),
    ) {
        let table = damage.iter().fold(sound(), |table, (field, value)| damaged(table, *field, *value));
        SCRIPT.set(Some(Script { table: Box::new(table), words, at: 0 }));
        match negotiate(Path::new("/plugins/libmsa_odd.so"), entry, "") {
            Ok(plugin) => {
                prop_assert_eq!(plugin.abi().0, ABI_MAJOR);
                prop_assert!(table.status.is_some() && table.device_count.is_some() && table.plan.is_some());
                prop_assert!(!plugin.name().is_empty() && plugin.name().len() <= 32);
                ask(&*wrap(Arc::new(plugin), "odd".to_owned()));
            }
            Err(refusal) => prop_assert!(Policy::ALL.contains(&refusal.policy) && !refusal.reason.is_empty()),
        }
    }
}

/// The script is not so hostile that nothing is ever reached.
#[test]
fn a_sound_script_is_answered() {
    SCRIPT.set(Some(Script { table: Box::new(sound()), words: vec![14], at: 0 }));
    let plugin = negotiate(Path::new("/plugins/libmsa_odd.so"), entry, "").unwrap();
    assert!(ask(&*wrap(Arc::new(plugin), "odd".to_owned())) >= 3);
}
