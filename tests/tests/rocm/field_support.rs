//! Ids of `tests/field.toml` about what is taken and what is refused, groups D, E, G, H, J, O and P.

use std::sync::Arc;

use msa_core::backend::{Backend, Device};
use msa_core::cache::CacheFormat;
use msa_core::device::Arch;
use msa_core::geometry::Geometry;
use msa_core::lengths::Lengths;
use msa_core::op::{Attention, IndexScore, Op, OpKind};
use msa_core::plan::PlanOptions;
use msa_core::tensor::DType;
use msa_core::variant::Support;
use msa_fake_hip::{Setup, Simulated};
use msa_rocm::launch::{KernelLaunch, Name};
use msa_rocm::parameters::Block;
use msa_rocm::{backend_over, variants};
use msa_tests::rocm_emu::{self, EmulatedDevice};
use msa_tests::steps::Run;

use crate::pair::{ARCHITECTURES, Pair, device, plain, ready};

fn backend(architectures: &[&str]) -> (Simulated, Arc<dyn Backend>) {
    let simulated = Simulated::new(architectures);
    let backend = backend_over(simulated.hip(), rocm_emu::images().unwrap());
    (simulated, backend)
}

#[test]
fn d07_more_work_items_than_a_packet_counts_are_refused_with_the_limit() {
    let launch = |groups: u32, threads: u32| KernelLaunch {
        source: "append",
        variant: Name::from("append.nvfp4.gfx950.row").unwrap(),
        grid: [groups, 4, 1],
        threads,
        arguments: Block::new(),
    };
    // A million tokens of sixty layers in one call.
    assert_eq!(launch(60 << 20, 64).check(), Ok(()));
    let error = launch((1 << 24) + 1, 256).check().unwrap_err().to_string();
    assert_eq!(error, "append.nvfp4.gfx950.row: groups: want at most 16777215 in a launch, got 16777217");
}

#[test]
fn e04_e05_other_page_sizes_are_refused_by_name() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let device = device(arch, 1, 2);
        for variant in variants(Arch::from_name(arch).unwrap()) {
            for page in [1, 16, 32, 64, 127, 129, 256] {
                let geometry = Geometry { page, ..Geometry::M3 };
                let op = match variant.op {
                    OpKind::IndexScore => Op::IndexScore(IndexScore {
                        geometry,
                        query: DType::E4m3,
                        keys: CacheFormat::Nvfp4,
                        ..IndexScore::default()
                    }),
                    OpKind::SparseDecode => Op::SparseDecode(Attention {
                        geometry,
                        query: DType::E4m3,
                        cache: CacheFormat::Nvfp4,
                        ..Attention::default()
                    }),
                    _ => continue,
                };
                let Support::No { reasons } = device.support(&op) else { panic!("{arch}: pages of {page}") };
                assert!(reasons.iter().any(|reason| reason.contains("page")), "{page}: {reasons:?}");
            }
        }
    }
}

#[test]
fn g07_support_and_plan_agree() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let device = device(arch, 1, 2);
        let query = if arch == "gfx942" { DType::E4m3Fnuz } else { DType::E4m3 };
        for group in 1..=64 {
            for (k, rows, dim) in
                [(1, 1, 128), (16, 4, 128), (64, 8, 128), (16, 16, 128), (16, 1, 64), (16, 1, 96)]
            {
                let geometry = Geometry {
                    query_heads: group,
                    kv_heads: 1,
                    index_heads: 1,
                    head_dim: dim,
                    top_k: k,
                    ..Geometry::M3
                };
                let cache = CacheFormat::Nvfp4;
                let op = Op::SparseDecode(Attention { geometry, query, cache, ..Attention::default() });
                let lengths = Lengths::upto(1, rows, 300).unwrap();
                let planned = device.plan(&op, &lengths, &PlanOptions::default());
                let supported = device.support(&op).is_yes() && rows <= 8;
                assert_eq!(planned.is_ok(), supported, "{arch} group {group} k {k} rows {rows} D {dim}");
                match planned {
                    Ok(plan) if group % 21 == 1 => drop(device.prepare(&plan).unwrap()),
                    Ok(_) => {}
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
    for group in 1..=16 {
        plain(&format!("sparse_decode(hq={group},hkv=1,hi=1,q=Q8,kv=KV8,len=[2x300],k=3)"));
    }
}

#[test]
fn j06_o01_o03_every_architecture_is_taken_or_refused_before_anything_is_loaded() {
    if !ready() {
        return;
    }
    for name in ["gfx90a", "gfx1036", "gfx1201", "gfx1250", "gfx940", "gfx906"] {
        let (simulated, backend) = backend(&[name]);
        let error = backend.open(0).unwrap_err().to_string();
        assert!(error.contains("gfx942, gfx950") && error.contains(name), "{error}");
        assert!(simulated.calls().iter().all(|call| call.function != "hipModuleLoadData"), "{name}");
    }
    for (name, fnuz) in [("gfx942:sramecc+:xnack-", true), ("gfx950:sramecc+:xnack-", false)] {
        assert_eq!(Arch::from_name(name).unwrap().fp8_is_fnuz(), fnuz);
    }
    assert!(Arch::from_name("gfx9").is_err() && Arch::from_name("gfx9500").is_err());
}

#[test]
fn j03_a_cache_of_the_other_flavour_is_refused() {
    if !ready() {
        return;
    }
    for (arch, query, cache) in
        [("gfx942", DType::E4m3, CacheFormat::E4m3), ("gfx950", DType::E4m3Fnuz, CacheFormat::E4m3Fnuz)]
    {
        let op = Op::SparseDecode(Attention { query, cache, ..Attention::default() });
        let Support::No { reasons } = device(arch, 1, 2).support(&op) else { panic!("{arch} takes it") };
        assert!(reasons.iter().any(|reason| reason.contains("fp8")), "{reasons:?}");
    }
    // A cache that was made as one kind and is passed as another.
    let pair = Pair::new("gfx950", "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300])");
    let own: Arc<dyn Device> = pair.device.clone();
    let mut run =
        msa_tests::steps::Run::start(&own, &pair.trial.case, &pair.trial.plan, &pair.trial.inputs).unwrap();
    let mut cache = run.placement.args.kv_cache.unwrap();
    cache.format = CacheFormat::E4m3Fnuz;
    run.placement.args = run.placement.args.clone().with_kv_cache(cache);
    assert!(run.again(0x33).unwrap_err().to_string().starts_with("kv_cache.format"));
}

#[test]
fn o06_index_formats_answer_by_architecture() {
    if !ready() {
        return;
    }
    let answers = |arch: &str| -> Vec<bool> {
        let device = device(arch, 1, 2);
        [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::E4m3Fnuz, CacheFormat::Nvfp4]
            .map(|keys| {
                let queries = [DType::Bf16, DType::E4m3, DType::E4m3Fnuz];
                queries.into_iter().any(|query| {
                    device
                        .support(&Op::IndexScore(IndexScore { query, keys, ..IndexScore::default() }))
                        .is_yes()
                })
            })
            .to_vec()
    };
    assert_eq!(answers("gfx942"), [true, false, true, true]);
    assert_eq!(answers("gfx950"), [true, true, false, true]);
}

/// A device with the compute units of an MI300X.
fn of_full_size(arch: &str) -> Arc<EmulatedDevice> {
    Arc::new(EmulatedDevice::with(&Setup { units: 304, ..Setup::of(&[arch]) }).unwrap())
}

/// When the last unit is done if the parts, in their order, go to the unit that is free first, two at a time.
fn makespan(parts: impl IntoIterator<Item = u64>, units: u64) -> u64 {
    let mut busy = std::collections::BinaryHeap::from(vec![std::cmp::Reverse(0_u64); units as usize]);
    for part in parts {
        let std::cmp::Reverse(until) = busy.pop().unwrap();
        busy.push(std::cmp::Reverse(until + part));
    }
    busy.into_iter().map(|std::cmp::Reverse(until)| until).max().unwrap()
}

fn index_parts(device: &EmulatedDevice, kv_lens: &[i32]) -> Vec<u64> {
    let op =
        Op::IndexScore(IndexScore { query: DType::Bf16, keys: CacheFormat::Nvfp4, ..IndexScore::default() });
    let lengths = Lengths::from_lists(&vec![1; kv_lens.len()], kv_lens).unwrap();
    let plan = device.plan(&op, &lengths, &PlanOptions::default()).unwrap();
    plan.block_parts.iter().map(|part| u64::from(part.block_end - part.block_begin)).collect()
}

#[test]
fn p03_parts_fill_the_machine_and_every_key_is_loaded_once() {
    if !ready() {
        return;
    }
    let device = of_full_size("gfx950");
    for (requests, kv) in [1, 4, 16].into_iter().flat_map(|b| [8_700, 32_768, 262_144].map(|kv| (b, kv))) {
        let parts = index_parts(&device, &vec![kv; requests]);
        // The four waves of a group take a block each.
        let quads = requests * (kv as usize).div_ceil(4 * 128);
        assert!(parts.len() >= quads.min(304), "{requests} of {kv}: {} parts", parts.len());
    }
    // Bytes of an index page in NVFP4: 128 tokens of 64 bytes of codes and 8 of scales, whatever heads and rows there are.
    for lengths in ["1x8700", "8x8700", "1x8700,4x1300"] {
        let pair =
            Pair::new("gfx950", &format!("index_score(hq=16,hkv=4,hi=4,iq=Q8,ik=nvfp4,len=[{lengths}])"));
        let blocks: u64 =
            pair.trial.case.lengths.0.iter().map(|length| (length.kv_len as u64).div_ceil(128)).sum();
        let own: Arc<dyn Device> = pair.device.clone();
        let run = Run::start(&own, &pair.trial.case, &pair.trial.plan, &pair.trial.inputs).unwrap();
        let cache = run.placement.buffers.iter().find(|buffer| buffer.name.contains("cache")).unwrap();
        let loaded = pair.device.simulated().loaded_bytes(cache.span().address).unwrap();
        assert_eq!(loaded, blocks * 128 * 72, "{lengths}");
    }
}

#[test]
fn p04_one_long_request_does_not_stall_the_batch() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let device = of_full_size(arch);
        let units = 304;
        let alone = makespan(index_parts(&device, &[512 << 10]), units);
        let batch = index_parts(&device, &[&[512 << 10][..], &[1024; 63]].concat());
        let total: u64 = batch.iter().sum();
        assert!(batch.iter().max() <= Some(&(total / units).max(4)), "{arch}");
        let together = makespan(batch, units);
        assert!(
            10 * together <= 13 * alone,
            "{arch}: {together} blocks in turn, {alone} for the long one alone"
        );
    }
}

#[test]
fn p07_one_query_more_costs_a_wave_of_parts_at_most() {
    if !ready() {
        return;
    }
    let device = of_full_size("gfx950");
    for cache in [CacheFormat::Nvfp4, CacheFormat::E4m3] {
        let geometry = Geometry { query_heads: 16, kv_heads: 1, index_heads: 1, ..Geometry::M3 };
        let op = Op::SparseDecode(Attention { geometry, query: DType::E4m3, cache, ..Attention::default() });
        let at_once = if cache == CacheFormat::Nvfp4 { 608 } else { 304 };
        let planned = |queries: u32| {
            let lengths =
                Lengths::from_lists(&vec![1; queries as usize], &vec![8192; queries as usize]).unwrap();
            let plan = device.plan(&op, &lengths, &PlanOptions::default()).unwrap();
            assert!(plan.to_string().contains("slot_parts"), "the plan names its parts");
            let state = u64::from(plan.slot_parts.len() > queries as usize);
            let widths: Vec<u64> = plan
                .slot_parts
                .iter()
                .map(|part| u64::from(part.slot_end - part.slot_begin) + state)
                .collect();
            // A merge is a launch more.
            (makespan(widths.iter().copied(), at_once) + 4 * state, widths.len() as u64, widths[0])
        };
        for queries in 1..256 {
            let (now, groups, width) = planned(queries);
            let (next, ..) = planned(queries + 1);
            // At a border of waves one wave of parts more, else nothing.
            let more = groups / u64::from(queries) * u64::from(queries + 1);
            let border = more.div_ceil(at_once) > groups.div_ceil(at_once);
            let most = now + if border { width } else { 0 };
            assert!(next <= most, "{cache:?} {queries}: {now} slots in turn, then {next}, width {width}");
        }
    }
}

#[test]
fn o04_code_objects_hold_the_documented_architectures() {
    if !ready() {
        return;
    }
    let folder =
        rocm_emu::folders().into_iter().find(|folder| folder.join("manifest.toml").exists()).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.extension().is_some_and(|extension| extension == "hsaco") {
            let object =
                msa_emu::gfx9::code_object::CodeObject::parse(&std::fs::read(&path).unwrap()).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(name.ends_with(object.architecture()), "{name} holds {}", object.architecture());
            found.insert(object.architecture().to_owned());
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    assert_eq!(found, ARCHITECTURES);
    assert_eq!(found.join(" "), msa_rocm::plugin::PLUGIN.arches);
    let readme = include_str!("../../../README.md");
    assert!(readme.contains("| `msa-rocm`, gfx942, gfx950 |"), "the table of README says something else");
}
