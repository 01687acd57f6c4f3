//! What a run or a plan cannot take is refused by name before anything is enqueued.

use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span, Stream};
use msa_core::device::Arch;
use msa_core::error::Error;
use msa_core::op::{Attention, IndexScore, Op, OpKind, Select};
use msa_core::plan::PlanOptions;
use msa_core::tensor::Tensor;
use msa_core::variant::Support;
use msa_tests::case::Case;
use msa_tests::trial::Trial;

use crate::child::{Driver, test_name};
use crate::fake;
use crate::work::{DECODE, INDEX, SELECT, Work, device};

/// The refusal of a run with other arguments; nothing was called but for the context.
fn refusal(work: &Work, args: &Args, workspace: Span) -> String {
    fake::take_log();
    // SAFETY: the call is refused before anything is read.
    let error = unsafe { work.prepared.enqueue(Stream(0), args, workspace) }.unwrap_err();
    let calls = fake::take_calls();
    assert!(!calls.iter().any(|call| call == "cuLaunchKernelEx"), "{error}: {calls:?}");
    assert_eq!((fake::depth(), fake::pending()), (0, 0));
    error.to_string()
}

#[test]
fn a_workspace_that_is_too_small_or_misaligned_is_refused() {
    Driver::of("9.0").run(&test_name!(), || {
        for line in [DECODE, INDEX, SELECT] {
            let work = Work::new(&device(), line);
            let (own, args) = (work.workspace, &work.placement.args);
            let short = refusal(&work, args, Span { bytes: own.bytes - 1, ..own });
            assert_eq!(short, format!("workspace.bytes: want at least {}, got {}", own.bytes, own.bytes - 1));
            for address in [own.address + 128, own.address + 4, 0] {
                let text = refusal(&work, args, Span { address, ..own });
                assert_eq!(text, format!("workspace.address: want a multiple of 256, not 0, got {address}"));
            }
            work.run(0);
        }
    });
}

/// `tensor` at another address and with other strides.
fn moved(tensor: &Tensor, bytes: u64, wider: u64) -> Tensor {
    let mut strides = tensor.strides().to_vec();
    strides[0] += wider;
    Tensor::strided(tensor.address + bytes, tensor.dtype, tensor.shape(), &strides).unwrap()
}

#[test]
fn e11_what_a_kernel_cannot_load_in_vectors_is_refused_by_name() {
    Driver::of("9.0").run(&test_name!(), || {
        let device = device();
        let roles = [(DECODE, Role::Query), (DECODE, Role::Output), (INDEX, Role::IndexQuery)];
        for (line, role) in roles {
            let work = Work::new(&device, line);
            let tensor = *work.placement.args.tensor(role).unwrap();
            for (bytes, wider) in [(1, 0), (2, 0), (4, 0), (8, 0), (0, 4), (0, 8), (4, 4)] {
                let other = moved(&tensor, bytes, wider);
                let text = refusal(&work, &work.placement.args.clone().with(role, other), work.workspace);
                // The contract asks for whole elements, the kernel for vectors.
                let start = format!("{}: want address and strides multiples of ", role.name());
                let rest = text.strip_prefix(&start).unwrap_or_else(|| panic!("{text}"));
                let wanted = ["4 bytes,", "16 bytes (the kernel moves that many at once),"];
                assert!(wanted.iter().any(|want| rest.starts_with(want)), "{text}");
            }
            work.run(0);
        }
    });
}

#[test]
fn e11_cache_strides_that_a_bulk_copy_cannot_take_are_refused_by_name() {
    Driver::of("9.0").run(&test_name!(), || {
        let work = Work::new(&device(), DECODE);
        let own = work.placement.args.kv_cache.unwrap();
        let refused = |change: &dyn Fn(&mut msa_core::cache::KvCache)| {
            let mut cache = own;
            change(&mut cache);
            refusal(&work, &work.placement.args.clone().with_kv_cache(cache), work.workspace)
        };
        let text = refused(&|cache| cache.key.token_stride += 8);
        assert!(text.contains("key.token_stride") || text.contains("key.stride"), "{text}");
        let text = refused(&|cache| cache.value.page_stride += 4);
        assert!(text.contains("value"), "{text}");
        let text = refused(&|cache| cache.key.address += 8);
        assert!(text.contains("key"), "{text}");
        // Rows that stand apart, which a page's one copy of scales cannot bring.
        let text = refused(&|cache| {
            let scale = cache.key_scale.as_mut().unwrap();
            (scale.token_stride, scale.head_stride, scale.page_stride) = (16, 16 * 128, 16 * 128 * 4);
        });
        assert!(text.contains("key_scale.token_stride"), "{text}");
        work.run(0);
    });
}

#[test]
fn a_missing_or_foreign_argument_is_refused() {
    Driver::of("9.0").run(&test_name!(), || {
        for line in [DECODE, INDEX, SELECT] {
            let work = Work::new(&device(), line);
            let roles: Vec<Role> = work.placement.args.tensors().iter().map(|(role, _)| *role).collect();
            for missing in roles {
                let kept = work.placement.args.tensors().iter().filter(|(role, _)| *role != missing);
                let mut args = kept.fold(Args::new(), |args, (role, tensor)| args.with(*role, *tensor));
                args.kv_cache = work.placement.args.kv_cache;
                args.index_cache = work.placement.args.index_cache;
                let text = refusal(&work, &args, work.workspace);
                assert!(text.contains(&format!("missing argument '{}'", missing.name())), "{text}");
            }
        }
    });
}

#[test]
fn e05_page_sizes_one_step_off_are_refused_by_every_variant() {
    Driver::of("9.0,10.0,10.1,10.3,10.7").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        for info in backend.devices().unwrap() {
            let device = backend.open(info.ordinal).unwrap();
            for op in ["sparse_decode", "index_score", "select"] {
                for page in [127, 129] {
                    let mut case: Case = format!("{op}(len=[1x300])").parse().unwrap();
                    case.geometry.page = page;
                    refused_as(&device, &case, "geometry.page: want a multiple or divisor of block = 128");
                }
                for page in [32, 64, 256] {
                    let case: Case = format!("{op}(len=[1x300],page={page})").parse().unwrap();
                    let op = case.descriptor().unwrap();
                    let Support::No { reasons } = device.support(&op) else { panic!("{device:?} {case}") };
                    let variants = device.variants().iter().filter(|variant| variant.op == op.kind());
                    for variant in variants {
                        let own = reasons.iter().find(|reason| reason.starts_with(variant.name));
                        assert!(
                            own.is_some_and(|reason| reason.contains("pages of 128 tokens")),
                            "{reasons:?}"
                        );
                    }
                    let error =
                        device.plan(&op, &case.bounds().unwrap(), &PlanOptions::default()).unwrap_err();
                    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
                }
            }
        }
    });
}

/// An operation that no case can describe: support, plan and the device give the same reason.
fn refused_as(device: &Arc<dyn Device>, case: &Case, reason: &str) {
    let op = match case.op {
        OpKind::IndexScore => Op::IndexScore(IndexScore { geometry: case.geometry, ..IndexScore::default() }),
        OpKind::Select => Op::Select(Select { geometry: case.geometry, ..Select::default() }),
        _ => Op::SparseDecode(Attention { geometry: case.geometry, ..Attention::default() }),
    };
    let Support::No { reasons } = device.support(&op) else { panic!("{op:?} is supported") };
    let error = device.plan(&op, &case.bounds().unwrap(), &PlanOptions::default()).unwrap_err().to_string();
    assert!(
        reasons.len() == 1 && reasons[0].starts_with(reason) && error == reasons[0],
        "{reasons:?} {error}"
    );
}

/// Support, plan and preparation give one answer for every point of a grid of shapes and formats.
#[test]
fn g07_what_is_supported_can_be_prepared_and_nothing_else() {
    Driver::of("9.0,10.3").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        let (mut taken, mut refused) = (0, 0);
        for info in backend.devices().unwrap() {
            let device = backend.open(info.ordinal).unwrap();
            for line in grid() {
                let case: Case = line.parse().unwrap();
                let op = case.descriptor().unwrap();
                let supported = device.support(&op).is_yes();
                let prepared = device.plan(&op, &case.bounds().unwrap(), &case.plan_options());
                let prepared = prepared.and_then(|plan| device.prepare(&plan));
                assert_eq!(supported, prepared.is_ok(), "{line}: {:?}", prepared.err());
                *(if supported { &mut taken } else { &mut refused }) += 1;
            }
        }
        let mut case: Case = DECODE.parse().unwrap();
        case.geometry.head_dim = 96;
        refused_as(&device(), &case, "geometry.head_dim: want 64 or 128, got 96");
        assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
    });
}

fn grid() -> Vec<String> {
    let mut lines = Vec::new();
    for query in ["bf16", "e4m3", "f16"] {
        for cache in ["bf16", "fp8", "fp8fnuz", "nvfp4"] {
            for heads in ["hq=64,hkv=4,hi=4", "hq=64,hkv=1,hi=1", "hq=32,hkv=2,hi=4", "hq=8,hkv=8,hi=8"] {
                for shape in ["", ",d=64,di=64", ",page=64", ",k=64", ",block=64,page=64"] {
                    lines.push(format!("sparse_decode(len=[1x300],q={query},kv={cache},{heads}{shape})"));
                    lines.push(format!("index_score(len=[1x300],iq={query},ik={cache},{heads}{shape})"));
                }
            }
            for rule in ["deq=exact", "shift=2", "fold=before_rounding", "partial=bf16", "grouping=reduced"] {
                lines.push(format!("sparse_decode(len=[1x300],q={query},kv={cache},{rule})"));
            }
        }
    }
    for group in [1, 2, 4, 8, 16, 32, 64] {
        for k in [1, 2, 16, 63, 64] {
            for rows in [1, 2, 8, 16] {
                for d in [64, 128] {
                    let heads = format!("hq={},hkv=2,hi=2,d={d}", 2 * group);
                    lines.push(format!("sparse_decode(len=[{rows}x300],kv=fp8,k={k},{heads})"));
                }
            }
        }
    }
    for rule in ["tie=row_range16", "nan=highest", "grouping=reduced", "k=64", "block=64,page=64"] {
        lines.push(format!("select(len=[1x300],{rule})"));
    }
    lines
}

#[test]
fn o06_every_index_format_is_answered_for_and_the_answer_holds() {
    Driver::of("9.0,10.0,10.1,10.3,10.7").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        for info in backend.devices().unwrap() {
            let device = backend.open(info.ordinal).unwrap();
            for (format, taken) in [("bf16", true), ("fp8", true), ("nvfp4", true), ("fp8fnuz", false)] {
                let line = format!("index_score(len=[1x300],ik={format})");
                let op = line.parse::<Case>().unwrap().descriptor().unwrap();
                match device.support(&op) {
                    Support::Yes { .. } if taken => Work::new(&device, &line).run(0),
                    Support::No { reasons } if !taken => {
                        assert!(reasons.iter().all(|r| r.contains("index keys")))
                    }
                    other => panic!("{device:?} {line}: {other:?}"),
                }
            }
        }
    });
}

#[test]
fn plans_of_another_device_or_arithmetic_are_refused() {
    Driver::of("9.0,10.0").run(&test_name!(), || {
        let backend = msa_cuda::backend();
        let [hopper, blackwell] = [0, 1].map(|ordinal| backend.open(ordinal).unwrap());
        let plan = Trial::new(&blackwell, DECODE.parse().unwrap()).unwrap().plan;
        assert_eq!(plan.traits.arch, Arch::Sm100a);
        let error = hopper.prepare(&plan).err().unwrap().to_string();
        assert!(error.contains("variant: want one of cuda:0"), "{error}");
        let line = DECODE.replace("out=f32", "out=f32,arith=f32");
        let plan = Trial::new(&hopper, line.parse().unwrap()).unwrap().plan;
        let error = hopper.prepare(&plan).err().unwrap().to_string();
        assert!(error.starts_with("options.arithmetic: want hopper_decode_faithful"), "{error}");
        let mut damaged = plan;
        damaged.hash = "0".to_owned();
        assert!(matches!(hopper.prepare(&damaged).err(), Some(Error::Plan(_))));
    });
}
