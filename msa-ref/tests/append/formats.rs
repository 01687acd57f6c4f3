//! Every query type, cache format and quantiser, against the equations in f64 and against the format conversions.

use half::{bf16, f16};
use msa_core::abi::host::HostKernel;
use msa_core::args::Role;
use msa_core::backend::Status;
use msa_core::cache::CacheFormat;
use msa_core::format::{E4m3, E4m3Fnuz, Nvfp4Quantiser};
use msa_core::geometry::Geometry;
use msa_core::op::{Append, Op, OpKind, Quantiser, Rope};
use msa_core::plan::Plan;
use msa_core::rope::RopeTables;
use msa_core::tensor::DType;
use msa_ref::sim::append::{AppendKernel, HeadNorm, HeadTransform, norm_rope_f32};
use msa_ref::spec::append::norm_rope_once;

use super::rig::{POISON, Rig, SMALL, Sources, Stored, assert_scattered};

const SLOTS: [i64; 5] = [70, 3, 16, 33, 15];
const POSITIONS: [i32; 5] = [0, 999, 17, 512, 3];

#[test]
fn queries_are_near_the_equations_and_rounded_once() {
    let full = Full::new(SMALL);
    let floats = |dtype| {
        let op = Append { query: dtype, index_query: dtype, ..full.op.clone() };
        let rig = full.rig(op);
        assert!(rig.run().is_clean());
        [Role::Query, Role::IndexQuery].map(|role| rig.bytes_of(role))
    };
    let exact = floats(DType::F32).map(|bytes| decode_f32(&bytes));
    for (role, (source, weight)) in
        [(&full.sources.query, &full.weights[0]), (&full.sources.index_query, &full.weights[2])]
            .iter()
            .enumerate()
    {
        let heads = [4, 2][role];
        for (i, x) in source.chunks_exact(128).enumerate() {
            let want = full.equation(x, weight, POSITIONS[i / heads]);
            for (got, want) in exact[role][i * 128..].iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 1e-6 * (1.0 + want.abs()), "{got} {want}");
            }
        }
    }
    let round =
        |code: fn(f32) -> Vec<u8>| exact.clone().map(|x| x.into_iter().flat_map(code).collect::<Vec<u8>>());
    assert_eq!(floats(DType::Bf16), round(|x| bf16::from_f32(x).to_le_bytes().to_vec()));
    assert_eq!(floats(DType::F16), round(|x| f16::from_f32(x).to_le_bytes().to_vec()));
    assert_eq!(floats(DType::E4m3), round(|x| code(CacheFormat::E4m3, bf16::from_f32(x).to_f32())));
    assert_eq!(floats(DType::E4m3Fnuz), round(|x| code(CacheFormat::E4m3Fnuz, bf16::from_f32(x).to_f32())));
}

#[test]
fn every_cache_format_holds_the_conversion_of_the_bf16_rounded_value() {
    let scales = [None, Some([0.25, 3.0, 0.7])];
    for format in CacheFormat::ALL {
        for quantiser in [Quantiser::Vendor, Quantiser::Reciprocal] {
            for scales in scales {
                for index_dim in [64, 128] {
                    check_cache(format, quantiser, scales, Geometry { index_dim, ..SMALL });
                }
            }
        }
    }
}

fn check_cache(format: CacheFormat, quantiser: Quantiser, scales: Option<[f32; 3]>, geometry: Geometry) {
    assert_scattered(&SLOTS, geometry.page);
    let full = Full::new(geometry);
    let mut rig = full.rig(Append { kv: format, index: format, quantiser, ..full.op.clone() });
    let roles = [Role::KeyScale, Role::ValueScale, Role::IndexKeyScale];
    for (role, scale) in roles.into_iter().zip(scales.into_iter().flatten()) {
        rig = rig.scale(role, scale);
    }
    assert!(rig.run().is_clean());
    rig.assert_only(&SLOTS);
    let scale = |i: usize| scales.map(|s| s[i]);
    for (row, &slot) in SLOTS.iter().enumerate() {
        for head in 0..2 {
            let at = (row * 2 + head) * 128..(row * 2 + head) * 128 + 128;
            let key = full.transformed(&full.sources.key[at.clone()], &full.weights[1], POSITIONS[row]);
            let context = format!("{format:?} {quantiser:?} {scales:?} row {row} head {head}");
            let expected = expect(format, quantiser, scale(0), &key);
            assert_eq!(rig.stored(Stored::Key, slot, head as u64), expected, "key {context}");
            let expected = expect(format, quantiser, scale(1), &full.sources.value[at]);
            assert_eq!(rig.stored(Stored::Value, slot, head as u64), expected, "value {context}");
        }
        let channels = geometry.index_dim as usize;
        let source = &full.sources.index_key[row * channels..(row + 1) * channels];
        let key = full.transformed(source, &full.weights[3], POSITIONS[row]);
        assert_eq!(rig.stored(Stored::IndexKey, slot, 0), expect(format, quantiser, scale(2), &key));
    }
}

/// Data and scale bytes of one head.
fn expect(
    format: CacheFormat,
    quantiser: Quantiser,
    scale: Option<f32>,
    values: &[f32],
) -> (Vec<u8>, Vec<u8>) {
    let rounded = values.iter().map(|&x| bf16::from_f32(x).to_f32());
    let divided = rounded.clone().map(|x| x / scale.unwrap_or(1.0));
    if format != CacheFormat::Nvfp4 {
        return (divided.flat_map(|x| code(format, x)).collect(), Vec::new());
    }
    let (rule, input, global_scale): (_, Vec<f32>, _) = match quantiser {
        Quantiser::Vendor => (Nvfp4Quantiser::Vendor, divided.collect(), 1.0),
        Quantiser::Reciprocal => (Nvfp4Quantiser::Reciprocal, rounded.collect(), scale.unwrap_or(1.0)),
    };
    let groups = input.as_chunks::<16>().0.iter().map(|g| rule.quantise(g, global_scale).unwrap());
    groups.fold(Default::default(), |(mut data, mut scales): (Vec<u8>, Vec<u8>), group| {
        data.extend(group.codes);
        scales.push(group.scale.to_bits());
        (data, scales)
    })
}

fn code(format: CacheFormat, x: f32) -> Vec<u8> {
    match format {
        CacheFormat::Bf16 => bf16::from_f32(x).to_le_bytes().to_vec(),
        CacheFormat::E4m3 => vec![E4m3::from_f32_rne_satfinite(x).to_bits()],
        CacheFormat::E4m3Fnuz => vec![E4m3Fnuz::from_f32_rne_satfinite(x).to_bits()],
        CacheFormat::Nvfp4 => Vec::new(),
    }
}

/// The block scales that are stored are those of the values: a reader takes the shift out of them.
#[test]
fn the_block_scale_shift_changes_no_byte() {
    let full = Full::new(SMALL);
    let stored = |block_scale_shift| {
        let op = Append {
            kv: CacheFormat::Nvfp4,
            index: CacheFormat::Nvfp4,
            block_scale_shift,
            ..full.op.clone()
        };
        let rig = full.rig(op);
        assert!(rig.run().is_clean());
        rig.cache_bytes()
    };
    assert_eq!(stored(0), stored(3));
}

#[test]
fn rows_beyond_one_window_are_written_and_the_last_of_them_wins() {
    let rows = 2100;
    let sources = Sources::random(&SMALL, rows, 5);
    let mut slots: Vec<i64> = (0..rows as i64).map(|t| t * 1009 % 2112).collect();
    slots[5] = slots[2000];
    let rig =
        Rig::new(Append::plain(SMALL, CacheFormat::Bf16, CacheFormat::Bf16), 132, &slots).sources(&sources);
    assert!(rig.run().is_clean());
    assert_eq!(rig.bytes_of(Role::Query), super::rig::bf16_bytes(&sources.query).collect::<Vec<_>>());
    for row in [0, 1, 1023, 1024, 2000, 2099] {
        assert_eq!(
            rig.values(Stored::Key, slots[row], 1),
            sources.key[(row * 2 + 1) * 128..(row * 2 + 2) * 128]
        );
        assert_eq!(
            rig.values(Stored::IndexKey, slots[row], 0),
            sources.index_key[row * 128..(row + 1) * 128]
        );
    }
    rig.assert_only(&slots);
}

#[test]
fn no_rows_write_nothing() {
    let rig = Rig::new(Append::plain(SMALL, CacheFormat::Nvfp4, CacheFormat::Nvfp4), 2, &[]);
    let rig = rig.sources(&Sources::random(&SMALL, 0, 1));
    assert!(rig.run().is_clean());
    rig.assert_only(&[]);
}

#[test]
fn a_row_with_a_bad_position_leaves_no_trace() {
    let full = Full::new(SMALL);
    for bad in [-1, 1000, i32::MIN, i32::MAX] {
        let positions = [POSITIONS[0], bad, POSITIONS[2], POSITIONS[3], POSITIONS[4]];
        let rig = full.rig(full.op.clone()).rope(full.tables.cosines(), full.tables.sines(), &positions);
        assert_eq!(rig.run().0, Status::POSITION);
        rig.assert_only(&[70, 16, 33, 15]);
        let untouched = |role, row_bytes: usize| {
            let rows = rig.bytes_of(role);
            rows.chunks_exact(row_bytes).map(|r| r.iter().all(|b| *b == POISON)).collect::<Vec<_>>()
        };
        assert_eq!(untouched(Role::Query, 1024), [false, true, false, false, false]);
        assert_eq!(untouched(Role::IndexQuery, 512), [false, true, false, false, false]);
    }
}

#[test]
fn a_nan_that_is_quantised_is_code_6_under_scale_448_and_reported() {
    let op = Append::plain(SMALL, CacheFormat::Nvfp4, CacheFormat::Nvfp4);
    let mut sources = Sources::random(&SMALL, 5, 3);
    assert!(Rig::new(op.clone(), 5, &SLOTS).sources(&sources).run().is_clean());
    sources.value[128 + 37] = f32::NAN;
    let rig = Rig::new(op, 5, &SLOTS).sources(&sources);
    assert_eq!(rig.run().0, Status::NAN);
    let (data, scales) = rig.stored(Stored::Value, SLOTS[0], 1);
    assert_eq!((data[18] >> 4, scales[2]), (0x7, 0x7e));
    let fp8 = Append::plain(SMALL, CacheFormat::E4m3, CacheFormat::E4m3);
    let rig = Rig::new(fp8, 5, &SLOTS).sources(&sources);
    assert!(rig.run().is_clean());
    assert_eq!(rig.stored(Stored::Value, SLOTS[0], 1).0[37], 0x7f);
}

#[test]
fn a_kernel_takes_only_a_plan_that_appends() {
    let kernel = |kind| AppendKernel::new(Plan { op: Op::of(kind), ..Plan::default() });
    assert!(kernel(OpKind::Select).unwrap_err().to_string().starts_with("plan.op: want append"));
    assert_eq!(kernel(OpKind::Append).unwrap().plan().op.kind(), OpKind::Append);
}

/// An append with norm and RoPE, its inputs, and what they should become.
struct Full {
    op: Append,
    sources: Sources,
    weights: [Vec<f32>; 4],
    tables: RopeTables,
}

impl Full {
    fn new(geometry: Geometry) -> Self {
        let op = Append { geometry, rope: Rope { rotary_dim: 64 }, ..Append::default() };
        let random = Sources::random(&geometry, 1, 77);
        let (d, di) = (geometry.head_dim as usize, geometry.index_dim as usize);
        let weights =
            [&random.query[..d], &random.key[..d], &random.index_query[..di], &random.index_key[..di]];
        let tables = RopeTables::new(5e6, 64, 1000).unwrap();
        let sources = Sources::random(&geometry, SLOTS.len(), 9);
        Self { op, sources, weights: weights.map(<[f32]>::to_vec), tables }
    }

    fn rig(&self, op: Append) -> Rig {
        Rig::new(op, 5, &SLOTS)
            .sources(&self.sources)
            .weights([&self.weights[0], &self.weights[1], &self.weights[2], &self.weights[3]])
            .rope(self.tables.cosines(), self.tables.sines(), &POSITIONS)
    }

    fn angles(&self, position: i32) -> (&[f32], &[f32]) {
        let row = position as usize * 32..position as usize * 32 + 32;
        (&self.tables.cosines()[row.clone()], &self.tables.sines()[row])
    }

    fn transformed(&self, x: &[f32], weight: &[f32], position: i32) -> Vec<f32> {
        let (cos, sin) = self.angles(position);
        let mut row = x.to_vec();
        let transform = HeadTransform { norm: Some(HeadNorm { weight, epsilon: 1e-6 }), cos, sin };
        norm_rope_f32(&mut row, &transform).unwrap();
        row
    }

    fn equation(&self, x: &[f32], weight: &[f32], position: i32) -> Vec<f64> {
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (cos, sin) = self.angles(position);
        norm_rope_once(&wide(x), &wide(weight), 1e-6, &wide(cos), &wide(sin), 64).unwrap()
    }
}

fn decode_f32(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}
