//! Policies that the loader enforces before a plugin is registered.

use std::fs;
use std::path::Path;
use std::process::Command;

use msa_core::abi::Policy;
use msa_core::loader::{self, Environment, Refusal, Report};
use msa_core::registry::Registry;
use msa_tests::plugin_files::{hostile, install, manifest_of, test_plugin, write_manifest};
use tempfile::tempdir;

fn refusal(library: &Path) -> Refusal {
    match loader::open(library, "") {
        Ok(backend) => panic!("{} was loaded as {}", library.display(), backend.name()),
        Err(refusal) => refusal,
    }
}

/// The policy and the reason by which the C plugin with these definitions is refused.
fn refused(definitions: &[&str]) -> (Policy, String) {
    let folder = tempdir().unwrap();
    let refusal = refusal(&hostile(folder.path(), "hostile", definitions));
    (refusal.policy, refusal.reason)
}

fn registry() -> Registry {
    Registry::with_reference(msa_test_plugin::echo())
}

#[test]
fn abi_01_a_plugin_exports_exactly_one_symbol() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(test_plugin()).output();
    let output = output.unwrap_or_else(|error| panic!("`nm` is needed: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(names, ["msa_plugin_entry"]);

    let (policy, reason) = refused(&["NO_SYMBOL"]);
    assert_eq!(policy, Policy::OneSymbol);
    assert!(reason.starts_with("the symbol msa_plugin_entry is missing: "), "{reason}");
}

#[test]
fn abi_02_another_major_version_is_refused_with_both_versions() {
    let (policy, reason) = refused(&["MAJOR=2", "MINOR=3"]);
    assert_eq!((policy, reason.as_str()), (Policy::SameMajor, "the host speaks 1.0, the plugin 2.3"));
    // An older table may be shorter: its size is not looked at before its version.
    let (policy, reason) = refused(&["MAJOR=0", "MINOR=9", "TABLE_SIZE=16"]);
    assert_eq!((policy, reason.as_str()), (Policy::SameMajor, "the host speaks 1.0, the plugin 0.9"));
    let (policy, reason) = refused(&["ENTRY_STATUS=MSA_STATUS_ABI_MISMATCH"]);
    assert_eq!(policy, Policy::SameMajor);
    assert!(reason.starts_with("the entry answered status 4: no "), "{reason}");
}

#[test]
fn abi_04_tables_whose_size_lies_are_refused() {
    for size in ["0", "1", "16", "216", "223", "225", "232", "65544", "0xffffffff"] {
        let (policy, reason) = refused(&[&format!("TABLE_SIZE={size}")]);
        assert_eq!(policy, Policy::StructSize, "{size}: {reason}");
    }
    assert_eq!(refused(&["NULL_TABLE"]).0, Policy::StructSize);
    let newer = ["MINOR=1", "TABLE_SIZE=216"];
    assert_eq!(refused(&newer).0, Policy::StructSize, "a newer table is not shorter");
}

#[test]
fn abi_04_a_newer_plugin_is_used_as_far_as_it_is_known() {
    let folder = tempdir().unwrap();
    let library = hostile(folder.path(), "newer", &["MINOR=7", "TABLE_SIZE=sizeof(LongerTable)"]);
    let backend = loader::open(&library, "").unwrap();
    assert_eq!(backend.devices().unwrap().len(), 1);
    backend.open(0).unwrap();
}

#[test]
fn abi_05_each_required_function_is_asked_for_by_name() {
    let required = [
        "device_count",
        "device_info",
        "device_open",
        "device_close",
        "variant_count",
        "variant",
        "support",
        "plan",
        "prepare",
        "prepared_free",
        "enqueue",
        "status",
    ];
    for name in required {
        let want = (Policy::RequiredFunctions, format!("{name} is null"));
        assert_eq!(refused(&[&format!("NULL_FUNCTION={name}")]), want);
    }
}

#[test]
fn abi_05_memory_calls_may_be_null() {
    let folder = tempdir().unwrap();
    let device = loader::open(&hostile(folder.path(), "hostile", &[]), "").unwrap().open(0).unwrap();
    let error = device.memory().allocate(1).unwrap_err().to_string();
    assert_eq!(error, "hostile:0 is unavailable: the plugin does not provide allocate");
    assert!(device.memory().free(0).is_err());
    assert!(device.memory().write(0, &[1]).is_err());
    assert!(device.memory().read(0, &mut [1]).is_err());
    assert!(device.memory().synchronize(Default::default()).is_err());
}

#[test]
fn abi_06_a_garbage_status_of_the_entry_is_a_refusal() {
    for status in ["9", "77", "0xdeadbeef"] {
        let (policy, reason) = refused(&[&format!("ENTRY_STATUS={status}u"), "LIE=0x7fffffffffff"]);
        assert_eq!(policy, Policy::PlainNumbers);
        assert!(reason.starts_with("the entry answered status"), "{reason}");
    }
}

#[test]
fn abi_08_a_panic_of_the_entry_is_a_refusal() {
    let refusal = loader::open(&test_plugin(), "panic = msa_plugin_entry").err().unwrap();
    assert_eq!(refusal.policy, Policy::NoUnwinding);
    assert!(refusal.reason.contains("msa_plugin_entry: planted by the option 'panic'"), "{refusal}");
}

#[test]
fn abi_12_plugins_are_never_unloaded_and_loading_again_maps_nothing() {
    let folder = tempdir().unwrap();
    let library = hostile(folder.path(), "mapped", &[]).canonicalize().unwrap();
    let mappings = || {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.ends_with(library.to_str().unwrap())).count()
    };
    assert_eq!(mappings(), 0);
    drop(loader::open(&library, "").unwrap().open(0).unwrap());
    let once = mappings();
    assert!(once > 0, "the plugin was unloaded");
    for _ in 0..1000 {
        drop(loader::open(&library, "").unwrap().open(0).unwrap());
    }
    assert_eq!(mappings(), once);
}

#[test]
fn abi_12_n05_threads_that_load_call_drop_and_exit_leave_no_destructor_behind() {
    let threads: Vec<_> = (0..100)
        .map(|_| {
            std::thread::spawn(|| {
                let device = loader::open(&test_plugin(), "").unwrap().open(0).unwrap();
                assert!(!device.variants().is_empty());
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn abi_13_every_symbol_is_bound_at_once_and_none_is_made_global() {
    let (policy, reason) = refused(&["UNDEFINED"]);
    assert_eq!(policy, Policy::OpenedByPath);
    assert!(reason.contains("nobody_defines_this"), "{reason}");

    let folder = tempdir().unwrap();
    loader::open(&hostile(folder.path(), "local", &[]), "").unwrap();
    unsafe extern "C" {
        fn dlsym(handle: *mut std::ffi::c_void, name: *const std::ffi::c_char) -> *mut std::ffi::c_void;
    }
    // SAFETY: a null handle is RTLD_DEFAULT of glibc: what later libraries would be bound to.
    let global = unsafe { dlsym(std::ptr::null_mut(), c"msa_plugin_entry".as_ptr()) };
    assert!(global.is_null(), "the entry of a plugin is visible to others");
}

#[test]
fn abi_13_relative_paths_are_made_absolute() {
    let folder = tempdir().unwrap();
    let library = hostile(folder.path(), "relative", &[]);
    let up = "../".repeat(std::env::current_dir().unwrap().ancestors().count());
    let relative = Path::new(&up).join(library.strip_prefix("/").unwrap());
    let report = registry().load_path(&relative);
    assert!(report.is_clean() && report.loaded[0].path.is_absolute(), "{report}");
}

#[test]
fn abi_15_a_manifest_that_disagrees_refuses_the_plugin() {
    let folder = tempdir().unwrap();
    let library = install(folder.path(), "ref");
    assert!(registry().load_dir(folder.path()).is_clean());
    let good = manifest_of(&library);
    for (from, to, reason) in [
        ("\"ref\"", "\"cuda\"", "name: the manifest says 'cuda', the library 'ref'"),
        ("\"1.0\"", "\"1.1\"", "abi: the manifest says '1.1', the library '1.0'"),
        ("[\"cpu\"]", "[\"cpu\", \"sm90a\"]", "arches: the manifest says 'cpu sm90a', the library 'cpu'"),
        ("\"test\"", "\"other\"", "build: the manifest says 'other', the library 'test'"),
        ("\"0.", "\"7.", "version: the manifest says '7."),
        ("sha256 = \"", "sha256 = \"0123456789", "sha256: want 64 hexadecimal digits"),
        ("name = ", "nome = ", "missing field `name`"),
    ] {
        write_manifest(&library, &good.replace(from, to));
        let report = registry().load_dir(folder.path());
        assert!(report.loaded.is_empty());
        assert_eq!((report.refused.len(), report.refused[0].policy), (1, Policy::Manifest), "{report}");
        assert!(report.refused[0].reason.contains(reason), "{report}");
    }
    let other = "0123456789abcdef".repeat(4);
    let (head, _) = good.split_once("sha256").unwrap();
    write_manifest(&library, &format!("{head}sha256 = \"{other}\"\n"));
    let report = registry().load_dir(folder.path());
    assert!(report.refused[0].reason.starts_with(&format!("sha256: the manifest says {other}")), "{report}");
    write_manifest(&library, &good.replace("\"1.0\"", "\"2.0\""));
    assert_eq!(registry().load_dir(folder.path()).refused[0].policy, Policy::SameMajor);
}

#[test]
fn abi_15_a_plugin_in_a_folder_needs_a_manifest_and_json_will_do() {
    let folder = tempdir().unwrap();
    let library = install(folder.path(), "ref");
    let toml = library.with_extension("toml");
    let manifest = loader::Manifest::from_toml(&fs::read_to_string(&toml).unwrap()).unwrap();
    fs::remove_file(&toml).unwrap();
    let report = registry().load_dir(folder.path());
    assert_eq!(report.refused[0].policy, Policy::Manifest);
    assert!(report.refused[0].reason.starts_with("no manifest /"), "{report}");
    assert!(registry().load_path(&library).is_clean(), "an explicit path needs none");
    let json = serde_json::json!({
        "abi": manifest.abi, "name": manifest.name, "version": manifest.version, "arches": manifest.arches,
        "build": manifest.build, "sha256": manifest.sha256,
    });
    fs::write(library.with_extension("json"), json.to_string()).unwrap();
    assert!(registry().load_dir(folder.path()).is_clean());
}

#[test]
fn abi_16_the_variable_is_ignored_in_privileged_processes() {
    let folder = tempdir().unwrap();
    install(folder.path(), "ref");
    let load = |privileged| -> Report {
        let plugin_path = Some(folder.path().as_os_str().to_owned());
        registry().load_from(&Environment { plugin_path, privileged, executable: None })
    };
    let report = load(false);
    assert!(report.is_clean() && report.loaded.len() == 1, "{report}");
    let report = load(true);
    assert!(report.loaded.is_empty());
    assert_eq!(report.refused[0].policy, Policy::Environment);
    assert_eq!(report.refused[0].reason, "MSA_PLUGIN_PATH is ignored: the process has raised privileges");
}
