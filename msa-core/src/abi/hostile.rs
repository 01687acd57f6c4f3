//! Hostile structs of a host into what decodes them for a plugin: a value, or an error that says what is wrong; never a
//! panic, and no read beyond what the pointers promise. Bounded, so that they run with every test run.

use proptest::prelude::*;

use super::arguments::{Flat, read_run};
use super::border::zeroed;
use super::descriptor::{op_header, op_text, plan_header, read_op, read_plan, read_request};
use super::table::{
    MsaIndexCache, MsaKvCache, MsaOp, MsaPlanRequest, MsaRequestBound, MsaRun, MsaTensor, MsaText, MsaView,
};
use crate::backend::{Span, Stream};
use crate::device::{Arch, DeviceTraits};
use crate::lengths::Lengths;
use crate::op::{Op, OpKind};
use crate::plan::{Plan, PlanOptions};
use crate::tensor::MAX_RANK;
use crate::variant::Variant;

/// Numbers of enumerations and counts: mostly those that exist.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..12_u32, 4 => 0..40_u32, 1 => any::<u32>()]
}

/// Addresses, sizes and strides: mostly sound.
fn wide() -> impl Strategy<Value = u64> {
    prop_oneof![6 => (0..64_u64).prop_map(|n| n * 16), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

/// A size that a struct says: mostly the true one.
fn size(own: usize) -> impl Strategy<Value = u32> {
    prop_oneof![6 => Just(own as u32), 1 => (0..8200_u32).prop_map(|n| n * 8), 1 => any::<u32>()]
}

fn tensor() -> impl Strategy<Value = MsaTensor> {
    let axes = || proptest::array::uniform4(wide());
    (number(), number(), prop_oneof![4 => 0..5_u32, 1 => any::<u32>()], wide(), axes(), axes()).prop_map(
        |(role, dtype, rank, address, shape, strides)| MsaTensor {
            role,
            dtype,
            rank,
            reserved: 0,
            address,
            shape,
            strides,
        },
    )
}

fn view() -> impl Strategy<Value = MsaView> {
    (wide(), wide(), wide(), wide()).prop_map(|(address, page_stride, head_stride, token_stride)| MsaView {
        address,
        page_stride,
        head_stride,
        token_stride,
    })
}

fn kv_cache() -> impl Strategy<Value = MsaKvCache> {
    let numbers = (size(size_of::<MsaKvCache>()), 0..6_u32, 0..10_u32, 0..4_u32);
    (numbers, wide(), number(), proptest::array::uniform4(view())).prop_map(
        |(
            (struct_size, format, present, v_scale_order),
            pages,
            null_page,
            [key, value, key_scale, value_scale],
        )| {
            MsaKvCache {
                struct_size,
                format,
                present,
                v_scale_order,
                pages,
                null_page,
                key,
                value,
                key_scale,
                value_scale,
                ..zeroed()
            }
        },
    )
}

fn index_cache() -> impl Strategy<Value = MsaIndexCache> {
    let numbers = (size(size_of::<MsaIndexCache>()), 0..6_u32, 0..10_u32);
    (numbers, view(), view()).prop_map(|((struct_size, format, present), key, key_scale)| MsaIndexCache {
        struct_size,
        format,
        present,
        key,
        key_scale,
        ..zeroed()
    })
}

/// Bytes of a text with some of them replaced, which may leave no UTF-8.
fn damaged(text: &str, changes: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    changes.iter().for_each(|(at, byte)| bytes[at.index(text.len())] = *byte);
    bytes
}

fn changes(most: usize) -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    let byte = prop_oneof![4 => b' '..b'~', 1 => Just(b'\n'), 1 => any::<u8>()];
    prop::collection::vec((any::<prop::sample::Index>(), byte), 0..most)
}

const VARIANTS: &[Variant] = &[Variant {
    name: "select.f32.cpu.any",
    op: OpKind::Select,
    arch: Arch::Cpu,
    arithmetic: "f32",
    max_query_len: None,
    needs: &[],
}];

fn plan() -> Plan {
    let lengths = Lengths::upto(2, 1, 1000).unwrap();
    let (op, traits) = (Op::of(OpKind::Select), DeviceTraits::cpu(4));
    crate::plan::plan(&op, &lengths, &traits, VARIANTS, &PlanOptions::default(), "t").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arguments_of_a_run(
        tensors in prop::collection::vec(tensor(), 0..4),
        kv in prop::option::of(kv_cache()),
        index in prop::option::of(index_cache()),
        run_size in size(size_of::<MsaRun>()),
    ) {
        prop_assert_eq!(MAX_RANK, 4, "the arrays above");
        let run = MsaRun {
            struct_size: run_size,
            tensor_count: tensors.len() as u32,
            tensors: tensors.as_ptr(),
            kv_cache: kv.as_ref().map_or(std::ptr::null(), |cache| &raw const *cache),
            index_cache: index.as_ref().map_or(std::ptr::null(), |cache| &raw const *cache),
            ..zeroed()
        };
        // SAFETY: the arrays and structs live in this frame; sizes that lie are refused, or end before them.
        match unsafe { read_run(&run) } {
            Err(error) => prop_assert!(error.to_string().contains("want "), "{}", error),
            Ok(args) => {
                let flat = Flat::of(&args).unwrap();
                // SAFETY: `flat` lives in this frame.
                let again = unsafe { read_run(&flat.run(Stream(0), Span::default())) }.unwrap();
                prop_assert_eq!(again.tensors(), args.tensors());
                prop_assert_eq!((again.kv_cache, again.index_cache), (args.kv_cache, args.index_cache));
            }
        }
    }

    #[test]
    fn operations_and_requests(
        kind in 0..OpKind::ALL.len(),
        changes in changes(4),
        revision in prop_oneof![9 => Just(1_u32), 1 => any::<u32>()],
        bounds in prop::collection::vec((any::<u32>(), any::<u32>()), 0..4),
        options in "[ -~\n]{0,40}",
    ) {
        let bytes = damaged(&op_text(&Op::of(OpKind::ALL[kind])).unwrap(), &changes);
        let text = MsaText { text: bytes.as_ptr(), length: bytes.len() as u64 };
        let op = MsaOp { struct_size: size_of::<MsaOp>() as u32, revision, text };
        // SAFETY: the text lives in this frame.
        let read = unsafe { read_op(&op) };
        match &read {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(read) => {
                let text = op_text(read).unwrap();
                // SAFETY: as above.
                prop_assert_eq!(&unsafe { read_op(&op_header(&text)) }.unwrap(), read);
            }
        }
        let requests: Vec<_> =
            bounds.iter().map(|&(query_len, kv_len)| MsaRequestBound { query_len, kv_len }).collect();
        let request = MsaPlanRequest {
            op,
            requests: requests.as_ptr(),
            request_count: requests.len() as u64,
            options: MsaText::of(&options),
            ..zeroed()
        };
        // SAFETY: as above.
        if let Ok((asked, lengths, _)) = unsafe { read_request(&request) } {
            prop_assert_eq!(asked, read.unwrap());
            prop_assert_eq!(lengths.requests().len(), requests.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans(changes in changes(3), number in prop::option::of((0..6_usize, number())), cut in 0..40_u64) {
        let plan = plan();
        let mut bytes = damaged(&plan.to_text(), &changes);
        let mut header = plan_header(&plan, "").unwrap();
        (header.text.text, header.text.capacity) = (bytes.as_mut_ptr(), bytes.len() as u64);
        header.text.length = if cut < 30 { header.text.capacity } else { header.text.capacity + 35 - cut };
        match number {
            Some((0, number)) => header.version = number,
            Some((1, number)) => header.op_revision = number,
            Some((2, number)) => header.batch_invariant = number,
            Some((3, number)) => header.workspace_bytes = number.into(),
            Some((_, number)) => header.hash ^= u64::from(number),
            None => {}
        }
        // SAFETY: the text lives in this frame; a length above the capacity is refused.
        match unsafe { read_plan(&header) } {
            Ok(read) => prop_assert_eq!(read, plan),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
