//! What lies in plugin folders: good plugins, broken ones, and everything else.
#![allow(clippy::unwrap_used)] // In the functions beside the tests too: a failure there fails the test.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use msa_core::abi::Policy;
use msa_core::loader::{Environment, Report};
use msa_core::registry::Registry;
use msa_tests::decode_case;
use msa_tests::plugin_files::{hostile, install, manifest_of, test_plugin, write_manifest};
use tempfile::tempdir;

fn registry() -> Registry {
    Registry::with_reference(msa_test_plugin::echo())
}

/// Policy and reason of the only refusal of a file with these bytes.
fn refusal_of(bytes: &[u8]) -> (Policy, String) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("libmsa_x.so");
    fs::write(&path, bytes).unwrap();
    only_refusal(&registry().load_path(&path))
}

fn only_refusal(report: &Report) -> (Policy, String) {
    assert!(report.loaded.is_empty() && report.refused.len() == 1, "{report}");
    (report.refused[0].policy, report.refused[0].reason.clone())
}

/// The test plugin with one byte of its header changed.
fn with_byte(offset: usize, value: u8) -> Vec<u8> {
    let mut bytes = fs::read(test_plugin()).unwrap();
    bytes[offset] = value;
    bytes
}

#[test]
fn a_missing_library_is_refused() {
    let (policy, reason) = only_refusal(&registry().load_path("/nowhere/libmsa_x.so"));
    assert_eq!(policy, Policy::OpenedByPath);
    assert!(reason.starts_with("no library: No such file"), "{reason}");
}

#[test]
fn files_that_are_no_library_for_this_machine_are_refused_before_they_run() {
    // Offsets of class, type and machine in an ELF header.
    for (bytes, want) in [
        (with_byte(4, 1), "wrong ELF class: want 64-bit little-endian, got class 1"),
        (with_byte(5, 2), "wrong ELF class"),
        (with_byte(16, 1), "not a library: ELF type 1"),
        (with_byte(18, 40), "built for another machine: "),
        (b"#!/bin/sh\nexit 1\n".to_vec(), "not a library: no ELF header"),
        (Vec::new(), "not a library: no ELF header"),
        (b"\x7fELF".to_vec(), "not a library: no ELF header"),
    ] {
        let (policy, reason) = refusal_of(&bytes);
        assert_eq!(policy, Policy::OpenedByPath);
        assert!(reason.starts_with(want), "want {want}, got {reason}");
    }
}

#[test]
fn a_truncated_library_is_refused_before_the_dynamic_linker_touches_it() {
    let bytes = fs::read(test_plugin()).unwrap();
    for length in [64, 100, 4096, 64 << 10] {
        let (policy, reason) = refusal_of(&bytes[..length]);
        assert_eq!(policy, Policy::OpenedByPath);
        assert!(reason.starts_with(&format!("truncated: the file has {length} bytes")), "{reason}");
    }
}

#[test]
fn a_folder_that_is_none_and_a_library_that_is_a_folder_are_refused() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let (policy, reason) = only_refusal(&registry().load_dir(&file));
    assert_eq!(policy, Policy::OpenedByPath);
    assert!(reason.starts_with("the folder cannot be read: "), "{reason}");
    assert!(!registry().load_dir(folder.path().join("none")).is_clean());

    fs::create_dir(folder.path().join("libmsa_folder.so")).unwrap();
    let (_, reason) = only_refusal(&registry().load_dir(folder.path()));
    assert_eq!(reason, "no library: not a file");
}

#[test]
fn folders_and_libraries_that_cannot_be_read_are_refused() {
    let folder = tempdir().unwrap();
    let (here, there) = (folder.path().join("libmsa_here.so"), folder.path().join("libmsa_there.so"));
    std::os::unix::fs::symlink(&there, &here).unwrap();
    std::os::unix::fs::symlink(&here, &there).unwrap();
    let (policy, reason) = only_refusal(&registry().load_dir(&here));
    assert_eq!(policy, Policy::OpenedByPath);
    assert!(reason.starts_with("the folder cannot be read: Too many levels of symbolic links"), "{reason}");
    let (policy, reason) = only_refusal(&registry().load_path(&here));
    assert_eq!(policy, Policy::OpenedByPath);
    assert!(reason.starts_with("no library: Too many levels of symbolic links"), "{reason}");
    let report = registry().load_dir(folder.path());
    assert_eq!((report.loaded.len(), report.refused.len()), (0, 2), "{report}");
    let (_, reason) = only_refusal(&registry().load_dir(folder.path().join("n".repeat(300))));
    assert!(reason.starts_with("the folder cannot be read: File name too long"), "{reason}");
}

#[test]
fn what_a_user_may_not_read_is_refused_and_does_not_stop_what_he_may() {
    let folder = tempdir().unwrap();
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    install(&closed, "ref");
    let library = hostile(folder.path(), "unread", &[]);
    for path in [&closed, &library] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    }
    // Root reads everything: then all is loaded, and only the folder's rights are those of another user.
    let reads_all = fs::read(&library).is_ok();
    let mut registry = registry();
    let reports = [registry.load_dir(&closed), registry.load_path(&library)];
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    for report in reports {
        if reads_all {
            assert!(report.is_clean(), "{report}");
        } else {
            let (policy, reason) = only_refusal(&report);
            assert!(policy == Policy::OpenedByPath && reason.contains("Permission denied"), "{reason}");
        }
    }
}

#[test]
fn one_broken_plugin_does_not_stop_another() {
    let folder = tempdir().unwrap();
    for (stem, definitions) in [
        ("a", &["NO_SYMBOL"][..]),
        ("b", &["MAJOR=9"]),
        ("y", &["NULL_FUNCTION=plan"]),
        ("z", &["UNDEFINED"]),
    ] {
        let library = hostile(folder.path(), stem, definitions);
        write_manifest(&library, &manifest_of(&library));
    }
    fs::write(folder.path().join("libmsa_c.so"), "text").unwrap();
    install(folder.path(), "good");
    let mut registry = registry();
    let report = registry.load_dir(folder.path());
    let policies: Vec<_> = report.refused.iter().map(|refusal| refusal.policy).collect();
    let want = [
        Policy::OneSymbol,
        Policy::SameMajor,
        Policy::OpenedByPath,
        Policy::RequiredFunctions,
        Policy::OpenedByPath,
    ];
    assert_eq!(policies, want, "{report}");
    assert_eq!((report.loaded.len(), report.loaded[0].name.as_str()), (1, "ref"));
    decode_case::run(&registry.open("ref:0").unwrap()).unwrap();
}

#[test]
fn a_plugin_that_bears_the_name_of_a_linked_backend_is_called_plugin() {
    let folder = tempdir().unwrap();
    install(folder.path(), "ref");
    let mut registry = Registry::with_reference(msa_ref::backend());
    let report = registry.load_dir(folder.path());
    assert_eq!(report.loaded[0].name, "plugin:ref");
    assert_eq!(registry.open("plugin:ref").unwrap().name(), "plugin:ref:0");
    assert_eq!(registry.open("plugin:ref:0").unwrap().name(), "plugin:ref:0");
    assert_eq!(registry.open("ref").unwrap().name(), "ref:0");
    let best = registry.best().unwrap();
    assert_eq!(decode_case::run(&best), decode_case::run(&registry.open("ref:0").unwrap()));
}

#[test]
fn of_two_copies_of_one_plugin_the_second_is_refused_by_name_and_both_work_alone() {
    let folder = tempdir().unwrap();
    let copies = ["a", "b", "c"].map(|stem| install(folder.path(), stem));
    let mut registry = registry();
    let report = registry.load_dir(folder.path());
    assert_eq!(names(&report), ["ref", "plugin:ref"]);
    assert_eq!(report.refused.len(), 1);
    assert!(report.refused[0].path.ends_with("libmsa_c.so"));
    assert!(report.refused[0].reason.contains("the name is taken"), "{report}");
    let devices = copies.map(|copy| msa_core::loader::open(&copy, "").unwrap().open(0).unwrap());
    let outcomes = devices.each_ref().map(|device| decode_case::run(device).unwrap());
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]));
}

fn names(report: &Report) -> Vec<&str> {
    report.loaded.iter().map(|loaded| loaded.name.as_str()).collect()
}

#[test]
fn of_64_threads_that_load_one_folder_at_once_each_gets_the_same() {
    const THREADS: usize = 64;
    let folder = tempdir().unwrap();
    install(folder.path(), "good");
    let old = hostile(folder.path(), "old", &["MAJOR=0"]);
    write_manifest(&old, &manifest_of(&old));
    let start = std::sync::Barrier::new(THREADS);
    let load = || {
        start.wait();
        let mut registry = registry();
        let report = registry.load_dir(folder.path());
        (report, decode_case::run(&registry.open("ref").unwrap()).unwrap())
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!((all[0].0.loaded.len(), all[0].0.refused.len()), (1, 1), "{}", all[0].0);
    assert_eq!(all[0].0.refused[0].policy, Policy::SameMajor);
    assert!(all.iter().all(|one| *one == all[0]));
}

#[test]
fn a_folder_with_a_thousand_unrelated_files_costs_nothing() {
    let folder = tempdir().unwrap();
    for i in 0..1000 {
        let name = ["libmsa_x.so.", "libother.so", "notes.txt", "libmsa_.toml"][i % 4];
        fs::write(folder.path().join(format!("{i}{name}")), "x").unwrap();
    }
    install(folder.path(), "ref");
    let report = registry().load_dir(folder.path());
    assert!(report.is_clean() && report.loaded.len() == 1, "{report}");
}

#[test]
fn paths_may_hold_blanks_and_unicode() {
    let folder = tempdir().unwrap();
    let odd = folder.path().join("ein Ordner/模型 é");
    fs::create_dir_all(&odd).unwrap();
    install(&odd, "größe a");
    let mut registry = registry();
    let report = registry.load_dir(&odd);
    assert!(report.is_clean() && report.loaded.len() == 1, "{report}");
    decode_case::run(&registry.open("ref").unwrap()).unwrap();
}

#[test]
fn a_report_prints_what_was_loaded_and_what_was_refused() {
    let folder = tempdir().unwrap();
    install(folder.path(), "ref");
    fs::write(folder.path().join("libmsa_bad.so"), "x").unwrap();
    let text = registry().load_dir(folder.path()).to_string();
    let version = env!("CARGO_PKG_VERSION");
    let at = folder.path().display();
    assert_eq!(
        text,
        format!(
            "loaded  ref {version} (ABI 1.0, cpu) from {at}/libmsa_ref.so\n\
             refused {at}/libmsa_bad.so: refused by ABI-13 (opened by absolute path): not a library: no ELF header\n"
        )
    );
}

#[test]
fn the_variable_takes_folders_and_libraries_and_a_file_met_twice_is_loaded_once() {
    let folder = tempdir().unwrap();
    let library = install(folder.path(), "ref");
    let other = tempdir().unwrap();
    let elsewhere = hostile(other.path(), "elsewhere", &[]);
    let places: Vec<PathBuf> = vec![folder.path().to_owned(), library, elsewhere, "relative".into()];
    let environment = Environment {
        plugin_path: Some(std::env::join_paths(places).unwrap()),
        privileged: false,
        executable: Some(folder.path().join("tool")),
    };
    let report = registry().load_from(&environment);
    assert_eq!(names(&report), ["ref", "hostile"]);
    assert_eq!((report.refused.len(), report.refused[0].path.as_path()), (1, Path::new("relative")));
}
