//! Policies that show on the table itself, called as C calls it.

use std::collections::HashMap;
use std::ffi::c_char;
use std::fs;
use std::path::PathBuf;
use std::ptr;

use msa_core::abi::export::{Plugin, entry};
use msa_core::abi::table::{
    MsaBuffer, MsaDevice, MsaDiag, MsaHostInfo, MsaOp, MsaPlan, MsaPlanRequest, MsaPluginApi, MsaPrepared,
    MsaRequestBound, MsaSupport, MsaText,
};
use msa_tests::plugin_files::host_info;

static PLUGIN: Plugin = Plugin {
    name: "echo",
    version: "1",
    build: "test",
    arches: "cpu",
    backend: |_| Ok(msa_test_plugin::echo()),
};

/// A diagnosis with `N` bytes of text and a canary behind them.
struct Diagnosis<const N: usize> {
    text: [u8; N],
    canary: [u8; 16],
}

impl<const N: usize> Diagnosis<N> {
    fn new() -> Box<Self> {
        Box::new(Self { text: [0; N], canary: [0xa5; 16] })
    }

    fn call(&mut self, function: impl FnOnce(*mut MsaDiag) -> u32) -> (u32, String) {
        let mut diag = MsaDiag {
            struct_size: size_of::<MsaDiag>() as u32,
            vendor_code: 0,
            text: self.text.as_mut_ptr(),
            capacity: N as u64,
            length: 0,
            field_length: 0,
            want_length: 0,
        };
        let status = function(&raw mut diag);
        assert_eq!(self.canary, [0xa5; 16], "text was written past its memory");
        assert_eq!(diag.struct_size, size_of::<MsaDiag>() as u32);
        (status, String::from_utf8(self.text[..diag.length as usize].to_vec()).unwrap())
    }
}

fn enter(host: &MsaHostInfo) -> Result<&'static MsaPluginApi, (u32, String)> {
    let mut table = ptr::null();
    let mut diagnosis = Diagnosis::<256>::new();
    // SAFETY: the arguments are as the header says, or refused.
    let (status, text) = diagnosis.call(|diag| unsafe { entry(&PLUGIN, host, &raw mut table, diag) });
    if status != 0 {
        return Err((status, text));
    }
    // SAFETY: tables live for the process.
    Ok(unsafe { &*table })
}

fn open(table: &MsaPluginApi) -> *mut MsaDevice {
    let mut device = ptr::null_mut();
    let function = table.device_open.unwrap();
    // SAFETY: the arguments are as the header says.
    let status = unsafe { function(table.instance, 0, &raw mut device, ptr::null_mut()) };
    assert_eq!(status, 0);
    device
}

#[test]
fn abi_02_the_plugin_refuses_another_major_version_itself() {
    let other = MsaHostInfo { abi_major: 2, abi_minor: 5, ..host_info() };
    assert_eq!(enter(&other).unwrap_err(), (4, "the host speaks 2.5, the plugin 1.0".to_owned()));
    let older = MsaHostInfo { abi_major: 0, abi_minor: 9, ..host_info() };
    assert_eq!(enter(&older).unwrap_err(), (4, "the host speaks 0.9, the plugin 1.0".to_owned()));
    let newer = MsaHostInfo { abi_minor: 9, ..host_info() };
    assert!(enter(&newer).is_ok());
}

#[test]
fn abi_03_minor_versions_only_append() {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../msa-core/docs");
    let read = |name: &str| fs::read_to_string(docs.join(name)).unwrap();
    let (now, first) = (read("abi-layout.txt"), read("abi-layout-1.0.txt"));
    assert_eq!(now, msa_core::abi::layout::text());
    let places = |text: &str| -> HashMap<String, String> {
        let fields = text.lines().filter_map(|line| line.split_once(' '));
        fields.map(|(name, place)| (name.to_owned(), place.to_owned())).collect()
    };
    let now = places(&now);
    for (name, place) in places(&first) {
        let today = now.get(&name).unwrap_or_else(|| panic!("{name} was removed"));
        match name.contains('.') {
            true => assert_eq!(*today, place, "{name} moved"),
            false => assert!(today.parse::<u32>().unwrap() >= place.parse().unwrap(), "{name} shrank"),
        }
    }
}

#[test]
fn abi_04_a_newer_host_is_read_as_far_as_it_is_known_and_a_lying_one_refused() {
    #[repr(C)]
    struct Longer {
        known: MsaHostInfo,
        appended: [u64; 3],
    }
    let known = MsaHostInfo { struct_size: size_of::<Longer>() as u32, ..host_info() };
    let longer = Box::new(Longer { known, appended: [7; 3] });
    assert!(enter(&longer.known).is_ok());
    assert_eq!(longer.appended, [7; 3]);
    for size in [0, 8, 40, 47, 49, u32::MAX] {
        let (status, text) = enter(&MsaHostInfo { struct_size: size, ..host_info() }).unwrap_err();
        assert_eq!(status, 1);
        assert!(text.starts_with("MsaHostInfo.struct_size: want a multiple of 8 from 48"), "{text}");
    }
}

#[test]
fn abi_06_no_type_of_the_border_depends_on_a_language_or_a_target() {
    let plain = |kind: &str| {
        let scalar = |kind: &str| {
            matches!(kind, "u32" | "u64" | "i32") || kind.starts_with("Msa") || kind.starts_with("*")
        };
        let inner = kind.strip_prefix("Option<").and_then(|kind| kind.strip_suffix('>'));
        let element =
            kind.strip_prefix('[').and_then(|kind| kind.split_once("; ")).map(|(element, _)| element);
        scalar(inner.or(element).unwrap_or(kind))
    };
    for line in msa_core::abi::layout::text().lines().filter(|line| line.contains('.')) {
        let kind = line.splitn(4, ' ').nth(3).unwrap();
        assert!(plain(kind), "{line}");
    }
    assert!(!plain("bool") && !plain("usize") && !plain("[u8; 4]"));
}

#[test]
fn abi_07_text_goes_into_memory_of_the_caller_and_no_further() {
    let table = enter(&host_info()).unwrap();
    let (open, plan) = (table.device_open.unwrap(), table.plan.unwrap());
    let mut device = ptr::null_mut();
    let mut tiny = Diagnosis::<5>::new();
    // SAFETY: the arguments are as the header says.
    let failed = tiny.call(|diag| unsafe { open(table.instance, 9, &raw mut device, diag) });
    assert_eq!(failed, (1, "devic".to_owned()));
    assert!(device.is_null());
    // SAFETY: null is allowed where nobody listens.
    let failed = unsafe { plan(ptr::null_mut(), ptr::null(), ptr::null_mut(), ptr::null_mut()) };
    assert_eq!(failed, 1);

    let device = self::open(table);
    let mut small = [b'x'; 24];
    let mut answer = MsaSupport {
        struct_size: size_of::<MsaSupport>() as u32,
        answer: 7,
        lines: MsaBuffer { capacity: 8, ..MsaBuffer::of(&mut small) },
    };
    let op = op("op.kind = sparse_decode");
    let support = table.support.unwrap();
    // SAFETY: the arguments are as the header says.
    assert_eq!(unsafe { support(device, &raw const op, &raw mut answer, ptr::null_mut()) }, 0);
    assert_eq!((answer.answer, answer.lines.length), (1, 63));
    assert_eq!(small, [b'x'; 24], "a text that does not fit is not begun");
    close(table, device);
}

#[test]
fn abi_08_bad_handles_are_errors() {
    let table = enter(&host_info()).unwrap();
    let (count, enqueue) = (table.device_count.unwrap(), table.enqueue.unwrap());
    let mut out = 0;
    // SAFETY: null is refused.
    assert_eq!(unsafe { count(ptr::null_mut(), &raw mut out, ptr::null_mut()) }, 1);
    // SAFETY: as above.
    assert_eq!(unsafe { count(table.instance, ptr::null_mut(), ptr::null_mut()) }, 1);
    // SAFETY: as above.
    assert_eq!(unsafe { enqueue(ptr::null_mut(), ptr::null(), ptr::null_mut()) }, 1);
    close(table, ptr::null_mut());
}

#[test]
fn abi_09_arguments_live_for_the_call_only() {
    let table = enter(&host_info()).unwrap();
    let device = open(table);
    let mut prepared: *mut MsaPrepared = ptr::null_mut();
    {
        let mut text = b"op.kind = sparse_decode\nop.geometry.top_k = 4".to_vec();
        let mut bounds = vec![MsaRequestBound { query_len: 1, kv_len: 100 }];
        let mut room = vec![0; 1 << 16];
        let mut plan = plan(MsaBuffer::of(&mut room));
        let request = request(op(std::str::from_utf8(&text).unwrap()), &bounds);
        let (make, prepare) = (table.plan.unwrap(), table.prepare.unwrap());
        // SAFETY: the arguments are as the header says.
        assert_eq!(unsafe { make(device, &raw const request, &raw mut plan, ptr::null_mut()) }, 0);
        assert!(plan.text.length > 0 && plan.text.length <= plan.text.capacity);
        text.fill(0xff);
        bounds[0].kv_len = u32::MAX;
        // SAFETY: as above.
        assert_eq!(unsafe { prepare(device, &raw const plan, &raw mut prepared, ptr::null_mut()) }, 0);
        room.fill(0xff);
    }
    close(table, device);
    let (free, status) = (table.prepared_free.unwrap(), table.status.unwrap());
    let workspace = Box::new([0_u8; 64]);
    let span =
        msa_core::abi::table::MsaSpan { address: workspace.as_ptr() as u64, bytes: workspace.len() as u64 };
    let mut word = 7;
    // SAFETY: what was prepared keeps its device; the workspace lives in this frame.
    assert_eq!(unsafe { status(prepared, 0, &raw const span, &raw mut word, ptr::null_mut()) }, 0);
    assert_eq!(word, 0);
    // SAFETY: freed once.
    assert_eq!(unsafe { free(prepared, ptr::null_mut()) }, 0);
}

#[test]
fn abi_09_names_in_the_table_live_for_the_process() {
    let table = enter(&host_info()).unwrap();
    // SAFETY: text of the table lives for the process.
    let name = unsafe { std::slice::from_raw_parts(table.name.text, table.name.length as usize) };
    assert_eq!(name, b"echo");
    let _: *const c_char = table.version.text.cast();
    assert!(ptr::eq(table, enter(&host_info()).unwrap()), "the same options give the same table");
}

#[test]
fn options_that_nobody_knows_are_refused() {
    let options = MsaText::of("colour = red");
    let (status, text) = enter(&MsaHostInfo { options, ..host_info() }).unwrap_err();
    assert_eq!((status, text.as_str()), (1, "options.colour: want no such option, got red"));
}

fn op(text: &str) -> MsaOp {
    MsaOp { struct_size: size_of::<MsaOp>() as u32, revision: 1, text: MsaText::of(text) }
}

fn plan(text: MsaBuffer) -> MsaPlan {
    MsaPlan {
        struct_size: size_of::<MsaPlan>() as u32,
        version: 0,
        op_revision: 0,
        batch_invariant: 0,
        workspace_bytes: 0,
        hash: 0,
        text,
    }
}

fn request(op: MsaOp, bounds: &[MsaRequestBound]) -> MsaPlanRequest {
    MsaPlanRequest {
        struct_size: size_of::<MsaPlanRequest>() as u32,
        reserved: 0,
        op,
        requests: bounds.as_ptr(),
        request_count: bounds.len() as u64,
        options: MsaText::EMPTY,
    }
}

fn close(table: &MsaPluginApi, device: *mut MsaDevice) {
    let function = table.device_close.unwrap();
    // SAFETY: closed once, or null.
    assert_eq!(unsafe { function(device, ptr::null_mut()) }, 0);
}
