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
use msa_fake_hip::Simulated;
use msa_rocm::launch::{KernelLaunch, Name};
use msa_rocm::parameters::Block;
use msa_rocm::{backend_over, variants};
use msa_tests::rocm_emu;

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
        for group in [1, 3, 7, 16] {
            plain(&format!("sparse_decode(hq={group},hkv=1,hi=1,q=Q8,kv=KV8,len=[2x300],k=3)"));
        }
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

#[test]
fn p03_p04_work_is_divided_by_blocks() {
    if !ready() {
        return;
    }
    let device = device("gfx950", 1, 2);
    let op =
        Op::IndexScore(IndexScore { query: DType::E4m3, keys: CacheFormat::Nvfp4, ..IndexScore::default() });
    let units = u64::from(device.info().traits.units);
    // One context of 512K tokens among 63 short ones: no part has more than its share.
    let lengths = Lengths::from_lists(&[1; 64], &[&[512 << 10][..], &[1024; 63]].concat()).unwrap();
    let plan = device.plan(&op, &lengths, &PlanOptions::default()).unwrap();
    let width = |part: &msa_core::plan::BlockPart| u64::from(part.block_end - part.block_begin);
    let total: u64 = plan.block_parts.iter().map(width).sum();
    let longest = plan.block_parts.iter().map(width).max().unwrap();
    assert!(longest <= (total / units).max(4), "{longest} of {total} blocks");
    // Blocks enough for every unit give every unit a group.
    let plan = device.plan(&op, &Lengths::upto(1, 1, 8704).unwrap(), &PlanOptions::default()).unwrap();
    assert!(plan.block_parts.len() as u64 >= units);
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
