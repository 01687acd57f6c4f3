//! Field problems of other projects that arose where numbers and names cross a border.

use std::collections::BTreeSet;
use std::ptr;

use msa_core::abi::export::entry;
use msa_core::abi::table::{MsaBuffer, MsaDevice, MsaDiag, MsaOp, MsaPluginApi, MsaSupport, MsaText};
use msa_core::args::Role;
use msa_core::cache::CacheFormat;
use msa_core::loader;
use msa_core::op::OP_REVISION;
use msa_tests::plugin_files::{host_info, include_folder, test_plugin};
use msa_tests::trial::Trial;

#[test]
fn d06_every_stride_that_crosses_is_64_bit() {
    let text = msa_core::abi::layout::text();
    let strides: Vec<&str> = text.lines().filter(|line| line.contains("stride")).collect();
    assert_eq!(strides.len(), 4, "{strides:?}");
    for line in strides {
        let kind = line.splitn(4, ' ').nth(3).unwrap();
        assert!(kind == "u64" || kind.starts_with("[u64; "), "{line}");
    }
}

#[test]
fn j02_scales_cross_under_their_own_names() {
    let roles = constants("MSA_ROLE_");
    for name in ["QUERY_SCALE", "KEY_SCALE", "VALUE_SCALE", "INDEX_KEY_SCALE"] {
        assert!(roles.iter().any(|(role, _)| role == name), "{name}: {roles:?}");
    }
    let plugin = loader::open(&test_plugin(), "").unwrap().open(0).unwrap();
    let line =
        "sparse_decode(hq=8,hkv=2,hi=2,d=64,di=64,block=32,page=32,k=4,len=[1x300,3x65],kv=fp8,scales=true)";
    let outputs = |device, key: f32, value: f32| {
        let mut trial = Trial::new(device, line.parse().unwrap()).unwrap();
        trial.set_values(Role::KeyScale, |_| key).unwrap();
        trial.set_values(Role::ValueScale, |_| value).unwrap();
        trial.run().unwrap()
    };
    let linked = msa_ref::device();
    assert_eq!(outputs(&plugin, 0.01, 3.0), outputs(&linked, 0.01, 3.0));
    assert_ne!(outputs(&plugin, 3.0, 0.01), outputs(&linked, 0.01, 3.0));
    assert_ne!(outputs(&plugin, 1.0, 1.0), outputs(&linked, 0.01, 3.0));
}

#[test]
fn j05_a_cache_format_has_one_number_and_every_spelling_means_it() {
    let formats = constants("MSA_CACHE_");
    let numbers: BTreeSet<&u32> = formats.iter().map(|(_, number)| number).collect();
    assert_eq!(
        (formats.len(), numbers.len()),
        (CacheFormat::ALL.len(), CacheFormat::ALL.len()),
        "{formats:?}"
    );
    assert!(constants("MSA_DTYPE_").iter().all(|(name, _)| name != "U8"), "raw bytes are no element type");

    let table = enter();
    let fp8 = support(table, "fp8").unwrap();
    assert_eq!(support(table, "fp8_e4m3").unwrap(), fp8);
    assert_eq!(support(table, "e4m3").unwrap(), fp8);
    let refused = support(table, "uint8").unwrap_err();
    assert!(refused.contains("op.cache: want bf16, fp8, fp8fnuz, nvfp4, got uint8"), "{refused}");
}

/// Constants of the C header that begin with `prefix`, without it, and their numbers.
fn constants(prefix: &str) -> Vec<(String, u32)> {
    let header = std::fs::read_to_string(include_folder().join("msa_plugin.h")).unwrap();
    let constant = |line: &str| {
        let (name, number) = line.strip_prefix("#define ")?.strip_prefix(prefix)?.split_once(' ')?;
        Some((name.to_owned(), number.strip_suffix('u')?.parse().unwrap()))
    };
    let found: Vec<_> = header.lines().filter_map(constant).collect();
    assert!(!found.is_empty(), "{prefix}");
    found
}

fn enter() -> &'static MsaPluginApi {
    let host = host_info();
    let mut table = ptr::null();
    // SAFETY: the arguments are as the header says.
    let status = unsafe { entry(&msa_ref::plugin::PLUGIN, &host, &raw mut table, ptr::null_mut()) };
    assert_eq!(status, 0);
    // SAFETY: tables live for the process.
    unsafe { &*table }
}

/// What the table answers about a decode over a cache of the format that C calls `name`: its lines, or why not.
fn support(table: &MsaPluginApi, name: &str) -> Result<String, String> {
    let (mut device, mut words, mut lines): (*mut MsaDevice, _, _) = (ptr::null_mut(), [0; 256], [0; 1024]);
    // SAFETY: the arguments are as the header says.
    assert_eq!(unsafe { table.device_open.unwrap()(table.instance, 0, &raw mut device, ptr::null_mut()) }, 0);
    let mut diag = MsaDiag {
        struct_size: size_of::<MsaDiag>() as u32,
        vendor_code: 0,
        text: words.as_mut_ptr(),
        capacity: words.len() as u64,
        length: 0,
        field_length: 0,
        want_length: 0,
    };
    let text = format!("op.kind = sparse_decode\nop.cache = {name}");
    let op =
        MsaOp { struct_size: size_of::<MsaOp>() as u32, revision: OP_REVISION, text: MsaText::of(&text) };
    let mut out = MsaSupport {
        struct_size: size_of::<MsaSupport>() as u32,
        answer: 0,
        lines: MsaBuffer::of(&mut lines),
    };
    // SAFETY: as above.
    let status = unsafe { table.support.unwrap()(device, &raw const op, &raw mut out, &raw mut diag) };
    // SAFETY: closed once.
    assert_eq!(unsafe { table.device_close.unwrap()(device, ptr::null_mut()) }, 0);
    let said = |bytes: &[u8], length: u64| String::from_utf8(bytes[..length as usize].to_vec()).unwrap();
    let (words_length, lines_length) = (diag.length, out.lines.length);
    if status == 0 { Ok(said(&lines, lines_length)) } else { Err(said(&words, words_length)) }
}
