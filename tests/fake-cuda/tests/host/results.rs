//! Every variant of every architecture, through the whole host path, has the reference's bits.

use msa_core::cache::CacheFormat;
use msa_core::tensor::DType;
use msa_tests::case::Case;
use msa_tests::report::Verdict;
use msa_tests::steps::run_case;

use crate::child::{Driver, test_name};
use crate::fake;

/// Devices that run the images of sm_90a, sm_100a, sm_103a, sm_100f and sm_107a.
const ALL: &str = "9.0,10.0,10.3,10.1,10.7";

/// One line an op and format, and the options that change what a kernel is told.
fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for query in [DType::Bf16, DType::E4m3] {
        for cache in [CacheFormat::Bf16, CacheFormat::E4m3, CacheFormat::Nvfp4] {
            let cache = cache.name();
            let formats = format!("iq={query},ik={cache}");
            for precision in ["faithful", "fast"] {
                lines.push(format!(
                    "index_score(len=[1x300,3x129],precision={precision},scales=true,{formats})"
                ));
            }
            lines.push(format!(
                "sparse_decode(len=[1x300,3x129],scales=true,lists=holes,q={query},kv={cache})"
            ));
        }
    }
    for kv in ["bf16", "fp8", "nvfp4"] {
        for index in ["bf16", "fp8", "nvfp4"] {
            lines.push(format!("append(len=[5x300,3x65],kv={kv},ik={index},scales=true,pad=2,gap=16)"));
            let q = if index == "bf16" { "bf16" } else { "e4m3" };
            lines.push(format!(
                "step(len=[1x300,3x129,0x0],appends=true,kv={kv},ik={index},q={q},iq={q},pad=2)"
            ));
            lines.push(format!("step(len=[1x300,3x129],kv={kv},ik={index},q=bf16,iq=bf16,precision=fast)"));
        }
    }
    let more = [
        "append(hq=16,hkv=1,hi=1,len=[2*700x700],kv=nvfp4,ik=nvfp4,rounding=per_step,q=e4m3,iq=f16)",
        "append(len=[4x300],kv=fp8,ik=bf16,rotary=0,norm=false,quantiser=reciprocal,layout=sglang_row)",
        "step(len=[2x1500,8x65],appends=true,kv=nvfp4,ik=nvfp4,q=e4m3,iq=e4m3,precision=fast,init=1)",
        "step(len=[1x5000],kv=nvfp4,ik=fp8,q=e4m3,iq=e4m3,k=40,splits=40)",
        "merge(len=[5x1],states=5)",
        "merge(hq=16,hkv=1,hi=1,len=[5x1],states=3,domain=sum_max,base=two,out=f32,partial=bf16)",
        "select_merge(len=[5x9000,4x3],world=4,in=ties)",
        "select_merge(hq=16,hkv=1,hi=1,len=[2x9000],world=2,order=score_then_own)",
        "index_score(len=[8x700],ik=nvfp4,deq=exact,pad=2,gap=16)",
        "index_score(hq=16,hkv=1,hi=1,len=[1x5000,1x0],ik=nvfp4,iq=e4m3)",
        "sparse_decode(hq=32,hkv=2,hi=2,len=[1x2049,2x1,0x0],kv=fp8,q=e4m3,splits=5,out=f32,lists=shuffled)",
        "sparse_decode(len=[1x5000],kv=nvfp4,k=40,splits=40,out=f16,base=two)",
        "sparse_decode(len=[8x300],kv=nvfp4,layout=head_slot,pad=2,gap=16)",
        "sparse_decode(len=[1x300,1x65],kv=nvfp4,layout=sglang_row)",
        "sparse_decode(len=[1x300,1x65],kv=bf16,layout=interleaved,grouping=reduced)",
        "select(len=[5x9000,1x3],in=ties)",
        "select(len=[5x9000,4x3],in=nan,grouping=reduced,pad=2,init=1,local=2)",
        "select(hq=16,hkv=1,hi=1,k=64,len=[1x600000])",
        "append(len=[3x300,1x65],kv=nvfp4,ik=fp8,q=e4m3)",
        "append(hq=16,hkv=1,hi=1,len=[1100x1100],kv=fp8,ik=nvfp4)",
        "merge(len=[3x300,1x65],states=5)",
        "merge(len=[3x300],states=3,domain=sum_max,base=two,out=f32)",
        "select_merge(len=[3x3000,1x65],world=4)",
        "select_merge(len=[3x3000],world=3,grouping=reduced)",
        "step(len=[1x300,3x129],iq=e4m3,ik=nvfp4,q=e4m3,kv=fp8)",
        "step(len=[1x300,3x129],iq=e4m3,ik=nvfp4,q=e4m3,kv=nvfp4,precision=fast)",
        "step(len=[1x300,3x129],ik=nvfp4,kv=nvfp4,pad=2)",
        "step(len=[1x300,3x129],ik=bf16,kv=bf16,grouping=reduced)",
    ];
    lines.extend(more.map(str::to_owned));
    let checked = msa_tests::sets::read("checked").unwrap();
    lines.extend(checked.iter().map(ToString::to_string).filter(|line| !line.contains("prefill")));
    lines
}

#[test]
fn every_variant_of_every_architecture_gives_the_bits_of_the_reference() {
    Driver::of(ALL).run(&test_name!(), || {
        let backend = msa_cuda::backend();
        let devices = backend.devices().unwrap();
        assert_eq!(devices.len(), 5);
        for info in devices {
            let device = backend.open(info.ordinal).unwrap();
            let mut ran = Vec::new();
            for line in lines() {
                let case: Case = line.parse().unwrap();
                match run_case(&device, &case) {
                    Verdict::Passed(evidence) => ran.push(evidence.variant),
                    other => panic!("{device:?} {line}: {other:?}"),
                }
            }
            let missed =
                device.variants().iter().filter(|variant| !ran.iter().any(|name| name == variant.name));
            assert_eq!(missed.map(|variant| variant.name).collect::<Vec<_>>(), [""; 0], "{device:?}");
            let arch = info.traits.arch.name();
            let log = fake::take_log();
            let launches = || log.iter().filter(|line| line.starts_with("cuLaunchKernelEx "));
            assert!(
                launches().count() > ran.len() && launches().all(|l| l.contains(&format!("arch={arch} ")))
            );
        }
    });
}
