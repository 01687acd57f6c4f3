//! Checked plans: what is launched, in which order, and what a refused run leaves.

use msa_core::args::Role;
use msa_core::backend::Status;
use msa_core::cache::{IndexCache, KvCache};
use msa_tests::trial::Trial;

use crate::child::{Driver, test_name};
use crate::work::{APPEND, DECODE, INDEX, MERGE, SELECT, STEP, Work, device};
use crate::{engine, fake};

fn checked(line: &str) -> String {
    line.replacen(')', ",checked=true)", 1)
}

/// Kernels of the launches of a log and whether they may overlap the one in front.
fn launches(log: &[String]) -> Vec<(String, bool)> {
    let of = |line: &String| {
        let rest = line.strip_prefix("cuLaunchKernelEx ")?;
        let kernel = rest.split("kernel=").nth(1)?.split(' ').next()?;
        Some((kernel.to_owned(), rest.contains("overlaps=true")))
    };
    log.iter().filter_map(of).collect()
}

fn launched(line: &str) -> Vec<(String, bool)> {
    let work = Work::new(&device(), line);
    fake::take_log();
    work.enqueue(0).unwrap();
    let log = fake::take_log();
    work.status(0).unwrap();
    work.check();
    launches(&log)
}

#[test]
fn a_checked_run_begins_with_one_validation_that_its_successor_waits_for() {
    Driver::of("9.0").run(&test_name!(), || {
        for line in [DECODE, INDEX, SELECT, APPEND, STEP] {
            let plain = launched(line);
            assert!(plain.iter().all(|(kernel, overlaps)| kernel != "validate" && *overlaps), "{plain:?}");
            // Holes name blocks that are not there, which a checked run refuses: these lists do not.
            let own = launched(&checked(line).replace("lists=holes", "lists=ascending"));
            let first = ("validate".to_owned(), true);
            assert_eq!(own.first(), Some(&first), "{line}");
            // Kernels read offsets before they wait: the first behind the validation starts when it has ended.
            assert_eq!(own.iter().filter(|(kernel, _)| kernel == "validate").count(), 1);
            assert!(!own[1].1 && own[2..].iter().all(|(_, overlaps)| *overlaps), "{own:?}");
            let names = |launches: &[(String, bool)]| -> Vec<String> {
                let work = launches.iter().map(|(kernel, _)| kernel.clone());
                work.filter(|kernel| kernel != "clear_status" && kernel != "validate").collect()
            };
            assert_eq!(names(&own), names(&plain), "{line}");
        }
        assert_eq!(launched(&checked(MERGE)), launched(MERGE), "a merge has nothing to validate");
    });
}

/// What is wrong is looked for at every replay, also where there is no row.
#[test]
fn a_captured_run_is_refused_or_not_by_what_is_on_the_device() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let _current = engine::enter(engine::retain_primary(0));
        let stream = engine::create_stream();
        let line = "index_score(hq=16,hkv=1,hi=1,len=[1x300,2x200],ik=fp8,iq=e4m3,checked=true)";
        let mut work = Work::new(&device, line);
        let graph = engine::capture(stream, || work.enqueue(stream).unwrap());
        let refused = Status::LENGTH | Status::REFUSED;
        for (offsets, want) in
            [([0, 1, 3], 0), ([0, 2, 1], refused), ([0, 1, 3], 0), ([1, 1, 3], refused), ([0, 0, 0], 0)]
        {
            work.reset();
            work.upload_i32s(stream, Role::QueryOffsets, &offsets);
            graph.launch(stream);
            engine::synchronize(stream);
            assert_eq!((work.status(stream).unwrap().0, work.check().0), (want, want), "{offsets:?}");
        }
        engine::release_primary(0);
    });
}

/// A NaN in the row of each source that goes to page 0, which is the null page of one cache, of the other, or of none.
#[test]
fn rows_of_a_null_page_are_not_looked_at_for_that_cache() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let refused = Status::NAN | Status::REFUSED;
        for (role, null_kv, null_index, want) in [
            (Role::KeySource, Some(0), None, 0),
            (Role::KeySource, None, Some(0), refused),
            (Role::ValueSource, Some(0), Some(1), 0),
            (Role::ValueSource, Some(1), Some(0), refused),
            (Role::IndexKeySource, None, Some(0), 0),
            (Role::IndexKeySource, Some(0), None, refused),
            (Role::IndexKeySource, None, None, refused),
        ] {
            let line = "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[2x40],checked=true)";
            let mut trial = Trial::new(&device, line.parse().unwrap()).unwrap();
            for memory in &mut trial.inputs.caches {
                memory.writable = std::iter::once(0..memory.bytes.len()).collect();
                memory.kv = memory.kv.map(|cache| KvCache { null_page: null_kv, ..cache });
                memory.index = memory.index.map(|cache| IndexCache { null_page: null_index, ..cache });
            }
            trial.bytes(Role::Slots).unwrap()[..8].copy_from_slice(&5_i64.to_le_bytes());
            let width = trial.row(role, 0).unwrap().len();
            trial.bytes(role).unwrap()[..width].fill(0xff);
            let work = Work::of(&device, trial);
            work.enqueue(0).unwrap();
            let status = work.status(0).unwrap().0;
            assert_eq!((status, work.check().0), (want, want), "{role:?} {null_kv:?} {null_index:?}");
        }
    });
}

#[test]
fn a_run_without_rows_is_validated_too() {
    Driver::of("9.0").run(&test_name!(), || {
        for line in ["select(len=[0x0,0x300],checked=true)", "step(len=[0x300],kv=fp8,ik=fp8,checked=true)"] {
            let mut work = Work::new(&device(), line);
            work.enqueue(0).unwrap();
            assert!(work.status(0).unwrap().is_clean());
            let requests = work.trial.inputs.batch.requests() as usize;
            let mut offsets = vec![0; requests + 1];
            offsets[requests] = 1;
            work.set_i32s(Role::QueryOffsets, &offsets);
            work.enqueue(0).unwrap();
            assert_eq!(work.status(0).unwrap(), work.check());
            assert_eq!(work.status(0).unwrap().0, Status::LENGTH | Status::REFUSED, "{line}");
        }
    });
}
