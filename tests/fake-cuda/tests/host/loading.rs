//! Which drivers are taken: every refusal is a value that says what is missing, and no call panics.

use msa_core::device::Arch;
use msa_core::error::Error;
use object::{Object as _, ObjectSymbol as _};

use crate::child::{Driver, fake_library, is_child, kernels_or_skip, test_name};
use crate::work::{DECODE, INDEX, SELECT, Work, device};
use crate::{engine, fake};

fn reason() -> String {
    let backend = msa_cuda::backend();
    let error = backend.devices().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(backend.open(0).unwrap_err(), error);
    // SAFETY: refused before the context is looked at.
    assert_eq!(unsafe { msa_cuda::open_in_context(0, 16) }.unwrap_err(), error);
    error.to_string()
}

#[test]
fn n02_the_error_lists_every_name_that_was_tried() {
    Driver::absent().run(&test_name!(), || {
        let reason = reason();
        assert!(
            reason.starts_with("cuda is unavailable: no CUDA driver: libcuda.so.1 cannot be opened"),
            "{reason}"
        );
        for name in ["cuda", "nvcuda"].iter().flat_map(|name| cudarc::get_lib_name_candidates(name)) {
            assert!(reason.contains(&name), "{name} is not in {reason}");
        }
    });
}

#[test]
fn n02_the_name_that_a_driver_package_installs_is_enough() {
    Driver::of("9.0").named("libcuda.so.1").run(&test_name!(), || {
        assert_eq!(device().info().name, "Simulated sm_90");
        Work::new(&device(), SELECT).run(0);
    });
}

#[test]
fn an_old_driver_says_what_it_offers_and_what_is_wanted() {
    Driver::of("9.0").without_kernels().with("MSA_FAKE_CUDA_VERSION", 12080).run(&test_name!(), || {
        assert!(reason().ends_with("it offers CUDA 12.8, want CUDA 13.0 or newer"), "{}", reason());
        assert!(fake::take_calls().iter().all(|call| call == "cuDriverGetVersion"));
    });
}

#[test]
fn a_newer_driver_is_taken() {
    Driver::of("9.0").without_kernels().with("MSA_FAKE_CUDA_VERSION", 14030).run(&test_name!(), || {
        assert_eq!(msa_cuda::backend().devices().unwrap()[0].driver, "CUDA 14.3");
    });
}

#[test]
fn a_driver_without_devices_is_a_reason() {
    Driver::of("").without_kernels().run(&test_name!(), || {
        assert!(reason().contains("CUDA_ERROR_NO_DEVICE"), "{}", reason());
    });
}

/// Every function that the library exports, one taken away at a time: a run works to its end, or the error names it. No
/// function that the run calls can be missing from the list of those that are looked up first, since a call of a missing
/// one is a panic of the bindings.
#[test]
fn n01_a_missing_function_is_named_with_the_driver_that_has_it_or_not_needed() {
    let name = test_name!();
    if is_child(&name) {
        let missing = std::env::var("MSA_FAKE_CUDA_MISSING").unwrap();
        match msa_cuda::backend().devices() {
            Ok(_) => {
                let device = device();
                [DECODE, INDEX, SELECT].iter().for_each(|line| Work::new(&device, line).run(0));
                println!("runs without {missing}.");
            }
            Err(error) => {
                let want = format!(
                    "cuda is unavailable: the CUDA driver is too old: it lacks {missing}, want CUDA 13.0 or newer"
                );
                assert_eq!(error.to_string(), want);
                println!("refuses without {missing}.");
            }
        }
        return;
    }
    if !kernels_or_skip() {
        return;
    }
    let library = std::fs::read(fake_library()).unwrap();
    let library = object::File::parse(&*library).unwrap();
    let names = library.dynamic_symbols().filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    let names: Vec<String> = names.filter(|name| name.starts_with("cu")).collect();
    let said: Vec<String> = names
        .iter()
        .map(|symbol| {
            let driver = Driver::of("9.0").lacking(symbol).with("MSA_FAKE_CUDA_MISSING", symbol);
            driver.run_child(&name)
        })
        .collect();
    let count = |what: &str| said.iter().filter(|text| text.contains(what)).count();
    let (refused, ran) = (count("refuses without "), count("runs without "));
    assert!(refused > 20 && refused + ran == names.len(), "{refused} and {ran} of {}", names.len());
    for newer in ["cuCtxCreate_v4", "cuGraphLaunch", "cuEventRecord"] {
        assert_eq!(count(&format!("runs without {newer}.")), 1, "{newer}");
    }
}

#[test]
fn o01_every_architecture_has_its_variants_or_is_refused_by_name() {
    const DEVICES: [(&str, Option<Arch>); 12] = [
        ("8.0", None),
        ("8.6", None),
        ("8.9", None),
        ("9.0", Some(Arch::Sm90a)),
        ("10.0", Some(Arch::Sm100a)),
        ("10.1", Some(Arch::Sm100f)),
        ("10.3", Some(Arch::Sm103a)),
        ("10.7", Some(Arch::Sm107a)),
        ("11.0", None),
        ("12.0", None),
        ("12.1", None),
        ("13.0", None),
    ];
    let list = DEVICES.map(|(capability, _)| capability).join(",");
    Driver::of(&list).run(&test_name!(), || {
        let backend = msa_cuda::backend();
        for (ordinal, (capability, arch)) in (0..).zip(DEVICES) {
            let opened = backend.open(ordinal);
            let sm = format!("sm_{}", capability.replace('.', ""));
            match (opened, arch) {
                (Ok(device), Some(arch)) => {
                    assert!(
                        device.variants().iter().all(|v| v.arch == arch) && !device.variants().is_empty()
                    );
                }
                (Err(error), None) => {
                    let text = error.to_string();
                    let supported = "sm90a, sm100a, sm100f, sm103a, sm107a";
                    assert!(text.contains(&format!("({sm}): no kernels for this architecture")), "{text}");
                    assert!(text.contains(supported), "{text}");
                }
                (opened, _) => panic!("{capability}: {opened:?}"),
            }
        }
        let calls = fake::take_calls();
        assert!(
            !calls.iter().any(|call| call == "cuModuleLoadData" || call == "cuLaunchKernelEx"),
            "{calls:?}"
        );
    });
}

#[test]
fn l02_each_of_two_kinds_of_device_runs_its_own_image() {
    Driver::of("9.0,10.3").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        for (ordinal, arch) in [(1, "sm103a"), (0, "sm90a"), (1, "sm103a")] {
            let device = backend.open(ordinal).unwrap();
            // Whichever device is current on this thread has no say.
            let other = engine::create_context(1 - ordinal as i32);
            let _current = engine::enter(other);
            fake::take_log();
            Work::new(&device, DECODE).run(0);
            let log = fake::take_log();
            let images = || log.iter().filter(|line| line.starts_with("cuModuleLoadData "));
            assert!(images().count() > 0 && images().all(|line| line.ends_with(&format!("arch={arch}"))));
        }
    });
}

#[test]
fn images_that_the_driver_does_not_take_are_errors() {
    Driver::of("9.0").with("MSA_FAKE_CUDA_IMAGES", "/nowhere").run(&test_name!(), || {
        let device = device();
        let plan = msa_tests::trial::Trial::new(&device, SELECT.parse().unwrap()).unwrap().plan;
        let error = device.prepare(&plan).err().unwrap();
        assert!(matches!(error, Error::Device { code: 200, .. }), "{error}");
        assert_eq!(fake::depth(), 0);
    });
}

#[test]
fn the_first_error_of_the_driver_is_the_reason_and_stays_it() {
    Driver::of("9.0").without_kernels().run(&test_name!(), || {
        // The library is there before the backend asks for it, so that its first call can be made to fail.
        fake::fail("cuInit", cudarc::driver::sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 0);
        assert!(reason().contains("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "{}", reason());
    });
}

/// The first run of a process finds everything in the library: no compiler in the path, nowhere to write, no child.
#[test]
fn o07_the_first_run_starts_no_process_and_writes_no_file() {
    let empty = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = empty.path().display();
    let driver = Driver::of("9.0").with("PATH", "").with("HOME", &folder).with("TMPDIR", &folder);
    driver.with("XDG_CACHE_HOME", &folder).run(&test_name!(), || {
        let home = std::env::var("HOME").unwrap();
        let open_files = || -> Vec<_> {
            let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let targets = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            targets.filter(|target| target.is_file()).collect()
        };
        // What whoever started the tests had open is open here too.
        let inherited = open_files();
        [DECODE, INDEX, SELECT].iter().for_each(|line| Work::new(&device(), line).run(0));
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let children =
            tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
        assert_eq!(children.collect::<String>(), "");
        // Children that have ended count in the user and system time of children, fields 16 and 17.
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        assert_eq!(fields[13..15], ["0", "0"], "{stat}");
        assert_eq!(std::fs::read_dir(home).unwrap().count(), 0);
        assert_eq!(open_files(), inherited, "files are kept open");
    });
}
