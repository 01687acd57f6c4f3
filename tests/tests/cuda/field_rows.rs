//! Ids of `tests/field.toml` about rows and lists, as the kernels see them: axes, heads, causal alignment, offsets.

use msa_core::Role;
use msa_core::backend::{Span, Status, Stream};
use msa_core::tensor::{DType, Tensor};
use msa_tests::steps::place;

use crate::pair::{ARCHITECTURES, Pair, on_both, plain, ready};

/// A line on the device with the lists in memory as `[lists][rows][k]`, and what it leaves in `outputs`. Lists that are an
/// output are answered as `[rows][lists][k]`.
fn with_turned_lists(line: &str, outputs: &[Role]) -> Vec<Vec<u8>> {
    let pair = Pair::new(ARCHITECTURES[0], line);
    let (trial, memory) = (&pair.trial, pair.device.memory());
    let placement = place(&pair.device, &trial.case, &trial.plan, &trial.inputs).unwrap();
    placement.reset(0xff).unwrap();
    let lists = *placement.args.tensor(Role::BlockIndices).unwrap();
    let [rows, heads, k] = [0, 1, 2].map(|axis| lists.extent(axis));
    let bytes = rows * heads * k * 4;
    let turned = memory.allocate(bytes).unwrap();
    let place_of = |row: u64, head: u64| ((head * rows + row) * k * 4) as usize;
    let mut contents = vec![0xff; bytes as usize];
    let pairs = || (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head)));
    for (row, head) in pairs() {
        let to = &mut contents[place_of(row, head)..][..(k * 4) as usize];
        memory.read(lists.address + row * lists.stride(0) + head * lists.stride(1), to).unwrap();
    }
    memory.write(turned, &contents).unwrap();
    let view = Tensor::strided(turned, DType::I32, &[rows, heads, k], &[k * 4, rows * k * 4, 4]).unwrap();
    let args = placement.args.clone().with(Role::BlockIndices, view);
    let prepared = pair.device.prepare(&trial.plan).unwrap();
    let bytes = trial.plan.workspace_bytes;
    let workspace = Span { address: memory.allocate(bytes).unwrap(), bytes };
    // SAFETY: everything was placed on this device and stays until the status was read.
    unsafe { prepared.enqueue(Stream(0), &args, workspace) }.unwrap();
    // SAFETY: the workspace of the run above.
    assert!(unsafe { prepared.status(Stream(0), workspace) }.unwrap().is_clean());
    let of = |role: &Role| {
        if *role == Role::BlockIndices {
            memory.read(turned, &mut contents).unwrap();
            return pairs()
                .flat_map(|(row, head)| contents[place_of(row, head)..][..(k * 4) as usize].to_vec())
                .collect();
        }
        let tensor = args.tensor(*role).unwrap();
        let mut bytes = vec![0; tensor.span().unwrap() as usize];
        memory.read(tensor.address, &mut bytes).unwrap();
        bytes
    };
    let all = outputs.iter().map(of).collect();
    [turned, workspace.address].into_iter().for_each(|address| memory.free(address).unwrap());
    all
}

#[test]
fn a06_lists_are_read_and_written_by_their_strides() {
    if !ready() {
        return;
    }
    let decode = "sparse_decode(hq=16,hkv=4,hi=4,q=e4m3,kv=fp8,len=[3x5000,1x4000],out=f32)";
    let select = "select(hq=16,hkv=4,hi=4,len=[3x5000,1x4000])";
    let rows = |line: &str, role: Role| -> Vec<u8> {
        let outputs = plain(line);
        (0..4).flat_map(|row| outputs[0].row(role, row).to_vec()).collect()
    };
    let got = with_turned_lists(decode, &[Role::Output, Role::Lse]);
    assert!(got[0] == rows(decode, Role::Output) && got[1] == rows(decode, Role::Lse));
    assert!(with_turned_lists(select, &[Role::BlockIndices])[0] == rows(select, Role::BlockIndices));
}

#[test]
fn a07_every_head_selects_for_itself() {
    if !ready() {
        return;
    }
    for line in [
        "select(hq=16,hkv=4,hi=4,len=[2x9000])",
        "step(hq=16,hkv=4,hi=4,q=e4m3,iq=e4m3,kv=fp8,ik=fp8,len=[2x9000])",
    ] {
        let outputs = plain(line);
        for row in 0..2 {
            let ids = outputs[0].ids(Role::BlockIndices, row);
            let lists: Vec<&[i32]> = ids.chunks(16).collect();
            assert_eq!(lists.len(), 4);
            for (head, list) in lists.iter().enumerate() {
                assert!(lists[..head].iter().all(|other| other != list), "{line}: row {row}, head {head}");
            }
        }
    }
}

#[test]
fn c03_the_base_of_the_lse_goes_through_the_merge() {
    if !ready() {
        return;
    }
    let line = |base: &str| format!("merge(hq=16,hkv=1,hi=1,len=[5x1],states=4,base={base},out=f32)");
    let [natural, two] = ["natural", "two"].map(|base| plain(&line(base)));
    // The same numbers as LSEs mean other weights in another base.
    assert!((0..5).any(|row| natural[0].row(Role::Output, row) != two[0].row(Role::Output, row)));
    let decode = |base: &str| {
        plain(&format!("sparse_decode(hq=16,hkv=1,hi=1,kv=fp8,q=e4m3,len=[2x700],base={base},out=f32)"))
    };
    let [natural, two] = ["natural", "two"].map(decode);
    for row in 0..2 {
        assert_eq!(natural[0].row(Role::Output, row), two[0].row(Role::Output, row));
        let pairs = natural[0].values(Role::Lse, row).into_iter().zip(two[0].values(Role::Lse, row));
        for (natural, two) in pairs {
            assert!(
                (natural / std::f64::consts::LN_2 - two).abs() <= 1e-5 * two.abs().max(1.0),
                "{natural} {two}"
            );
        }
    }
}

#[test]
fn f01_f02_rows_end_at_the_last_token_and_may_begin_before_the_first() {
    if !ready() {
        return;
    }
    for formats in ["q=e4m3,iq=e4m3,kv=nvfp4,ik=nvfp4", "q=bf16,iq=bf16,kv=bf16,ik=bf16"] {
        let lengths = "len=[8x3,4x4,3x130,5x128,2x257]";
        plain(&format!("index_score(hq=8,hkv=2,hi=2,{formats},{lengths})"));
        plain(&format!("step(hq=8,hkv=2,hi=2,{formats},{lengths},appends=true)"));
        let outputs = plain(&format!("sparse_decode(hq=8,hkv=2,hi=2,{formats},{lengths},out=f32)"));
        for row in 0..8 {
            // The first five rows of the first request stand before its first token.
            let values = outputs[0].values(Role::Output, row);
            assert_eq!(values.iter().all(|value| *value == 0.0), row < 5, "{formats} row {row}");
            let lse = outputs[0].values(Role::Lse, row);
            assert!(lse.iter().all(|lse| (*lse == f64::NEG_INFINITY) == (row < 5)), "{formats} row {row}");
        }
    }
}

#[test]
fn f03_offsets_of_full_lengths_are_reported_and_followed_nowhere() {
    if !ready() {
        return;
    }
    for line in [
        "sparse_decode(hq=8,hkv=2,hi=2,kv=fp8,q=e4m3,len=[8x1034])",
        "index_score(hq=8,hkv=2,hi=2,ik=fp8,iq=e4m3,len=[8x1034])",
    ] {
        let got = on_both(line, |trial| trial.set_i32s(Role::QueryOffsets, &[0, 1034]).unwrap());
        assert_eq!(got[0].status.0, Status::LENGTH, "{line}");
        assert!((0..8).all(|row| got[0].whole_row(row).iter().all(|byte| *byte == 0xff)), "{line}");
    }
}

#[test]
fn g05_each_request_has_the_rows_between_its_offsets() {
    if !ready() {
        return;
    }
    // Counts of rows that no prefix sum of them equals.
    let lengths = "len=[3x700,1x300,8x129,0x0,2x2000]";
    for line in [
        "index_score(hq=8,hkv=2,hi=2,ik=nvfp4,iq=e4m3,LEN)",
        "sparse_decode(hq=8,hkv=2,hi=2,kv=nvfp4,q=e4m3,LEN)",
        "select(hq=8,hkv=2,hi=2,LEN)",
    ] {
        let outputs = plain(&line.replace("LEN", lengths));
        assert!(outputs[0].status.is_clean());
        assert!((0..14).all(|row| outputs[0].whole_row(row).iter().any(|byte| *byte != 0xff)), "{line}");
    }
}
