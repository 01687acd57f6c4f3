//! The host path of msa-rocm from end to end, on two simulated gfx950: load, plan, launch, capture, peers, errors.
//!
//! One test in one process: the HIP runtime of a process is opened once.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "sequences of driver calls, as an engine makes them"
)]
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail loudly")]

use std::path::PathBuf;
use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Prepared, Span, Status, Stream};
use msa_core::cache::{CacheFormat, IndexCache, KvCache, planar};
use msa_core::error::Error;
use msa_core::lengths::Lengths;
use msa_core::op::{Append, Attention, AttentionOutput, Merge, Op, Select};
use msa_core::plan::PlanOptions;
use msa_core::tensor::{DType, Tensor};
use msa_fake_hip::Counting;
use msa_ref::sim::cdna::{Attended, Block, CHANNELS, Generation, Row, Scales, attend_partial};
use msa_ref::sim::merge::{State, merge_head};
use msa_ref::sim::select::select_row;
use msa_rocm::hip::{self, Hip};
use msa_rocm::{Images, backend_with};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const QUERY_LENS: [i32; 2] = [1, 2];
const KV_LENS: [i32; 2] = [300, 700];
const BLOCK: usize = 128;
const TABLE: usize = 6;
const HEADS: usize = 64;
const SLOTS: usize = 16;
const LISTS: usize = 4;

fn target_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().to_owned()
}

/// Points msa-rocm at the fake library. Before any thread starts, in the only test of this process.
fn use_fake_library() -> Option<Images> {
    let folder = target_folder();
    let images =
        Images::of_folder(&folder.join("plugins").join("rocm")).ok().filter(|images| !images.is_empty());
    if images.is_none() {
        assert!(std::env::var_os("MSA_REQUIRE_KERNELS").is_none(), "run cargo xtask plugin rocm");
        println!("skipped: no kernels in {}", folder.display());
        return None;
    }
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libmsa_fake_hip.so");
    // SAFETY: no other thread of this process reads the environment yet.
    unsafe { std::env::set_var("MSA_HIP_LIBRARY", &library) };
    // SAFETY: as above.
    unsafe { std::env::set_var("MSA_ROCTX_LIBRARY", library) };
    // SAFETY: as above.
    unsafe { std::env::set_var("MSA_FAKE_HIP_DEVICES", "gfx950,gfx950") };
    images
}

#[test]
fn everything_runs_over_the_fake_library() {
    let Some(images) = use_fake_library() else { return };
    let backend = backend_with(images);
    let devices = backend.devices().unwrap();
    assert_eq!(devices.len(), 2);
    assert_eq!(
        (devices[1].arch.as_str(), devices[1].name.as_str()),
        ("gfx950:sramecc+:xnack-", "Simulated gfx950")
    );
    assert!(backend.open(2).unwrap_err().to_string().contains("rocm:0 to rocm:1"));
    assert!(backend_with(Images::default()).open(0).unwrap_err().to_string().contains("xtask plugin rocm"));

    let device = backend.open(0).unwrap();
    select_selects(&device);
    append_stores(&device, &msa_ref::device());
    decode_attends(&device, None);
    decode_attends(&device, Some(5));
    wrong_things_are_errors(&device);
    profilers_see_a_range_a_run();
    let hip = hip::runtime().unwrap_or_else(|error| panic!("{error}"));
    graphs_and_peers(hip);
    streams_and_events(hip);
}

struct OnDevice<'a>(&'a Arc<dyn Device>);

impl OnDevice<'_> {
    fn place(&self, bytes: &[u8]) -> u64 {
        let address = self.0.memory().allocate(bytes.len() as u64).unwrap();
        self.0.memory().write(address, bytes).unwrap();
        address
    }

    fn tensor(&self, dtype: DType, shape: &[u64], bytes: &[u8]) -> Tensor {
        Tensor::contiguous(self.place(bytes), dtype, shape).unwrap()
    }

    fn integers(&self, values: &[i32], shape: &[u64]) -> Tensor {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(DType::I32, shape, &bytes)
    }

    fn read(&self, tensor: &Tensor) -> Vec<u8> {
        let count: u64 = tensor.shape().iter().product();
        let mut bytes = vec![0; (count * tensor.dtype.bytes()) as usize];
        self.0.memory().read(tensor.address, &mut bytes).unwrap();
        bytes
    }

    fn lengths(&self, args: Args) -> Args {
        let offsets = [0, QUERY_LENS[0], QUERY_LENS[0] + QUERY_LENS[1]];
        args.with(Role::KvLengths, self.integers(&KV_LENS, &[2]))
            .with(Role::QueryOffsets, self.integers(&offsets, &[3]))
    }

    fn run(&self, prepared: &dyn Prepared, args: &Args) -> Status {
        let bytes = prepared.plan().workspace_bytes;
        let workspace = Span { address: self.place(&vec![0x5a; bytes as usize]), bytes };
        // SAFETY: every tensor was placed on this device and stays.
        let run = || unsafe { prepared.enqueue(Stream(0), args, workspace) };
        let (allocations, done) = Counting::during(run);
        done.unwrap();
        // The reference does its work in the call.
        assert!(allocations == 0 || self.0.name().starts_with("ref"), "with a profiler's library too");
        // SAFETY: the workspace of the run above.
        unsafe { prepared.status(Stream(0), workspace) }.unwrap()
    }
}

struct Random(u64);

impl Random {
    fn word(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// FP8 of moderate size, never NaN.
    fn fp8(&mut self) -> u8 {
        (self.word() as u8 & 0x87) | ((self.word() % 6 + 4) as u8 * 8)
    }
}

fn lengths() -> Lengths {
    Lengths::from_lists(&QUERY_LENS, &KV_LENS).unwrap()
}

/// Tokens that each of the three rows sees, with its request.
const ROWS: [(usize, usize); 3] = [(0, 300), (1, 699), (1, 700)];

fn select_selects(device: &Arc<dyn Device>) {
    let on = OnDevice(device);
    let mut random = Random(1);
    let blocks = 6;
    let scores: Vec<f32> = (0..3 * LISTS * blocks).map(|_| (random.word() % 9) as f32 - 4.0).collect();
    let mut op = Select::default();
    op.geometry.top_k = 4;
    let plan = device.plan(&Op::Select(op.clone()), &lengths(), &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    let bytes: Vec<u8> = scores.iter().flat_map(|score| score.to_le_bytes()).collect();
    let lists = on.tensor(DType::I32, &[3, LISTS as u64, 4], &[0xcd; 3 * LISTS * 16]);
    let shape = [3, LISTS as u64, blocks as u64];
    let args = on.lengths(Args::new().with(Role::Scores, on.tensor(DType::F32, &shape, &bytes)));
    assert!(on.run(&*prepared, &args.with(Role::BlockIndices, lists)).is_clean());
    let mut want = Vec::new();
    for (row, (_, visible)) in ROWS.iter().enumerate() {
        for head in 0..LISTS {
            let mut list = [0; 4];
            let own = visible.div_ceil(BLOCK) as u32 - 1;
            select_row(&scores[(row * LISTS + head) * blocks..][..blocks], own, &op, &mut list).unwrap();
            want.extend(list);
        }
    }
    let got: Vec<i32> =
        on.read(&lists).chunks_exact(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(got, want);
}

/// IEEE arithmetic only: the device and the reference store the same bytes.
fn append_stores(device: &Arc<dyn Device>, reference: &Arc<dyn Device>) {
    for cache in [CacheFormat::Nvfp4, CacheFormat::E4m3, CacheFormat::Bf16] {
        let (got, want) = (appended(device, cache), appended(reference, cache));
        for (name, (got, want)) in ["kv", "index", "query", "index query"].iter().zip(got.iter().zip(&want)) {
            assert!(got == want, "{name} of {cache:?}");
        }
    }
}

/// KV cache, index cache, query and index query after an append of three rows.
fn appended(device: &Arc<dyn Device>, format: CacheFormat) -> [Vec<u8>; 4] {
    let on = OnDevice(device);
    let mut random = Random(3);
    let op = Append { kv: format, index: format, query: DType::E4m3, ..Append::default() };
    let plan = device.plan(&Op::Append(op.clone()), &lengths(), &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    let pages = 2;
    let sizes = (
        planar(&op.geometry, format, pages, 0).unwrap(),
        IndexCache::planar(&op.geometry, format, pages, 0).unwrap(),
    );
    let (kv_bytes, index_bytes) = (sizes.0.key.page_stride * pages, sizes.1.key.page_stride * pages);
    let (kv_at, index_at) =
        (on.place(&vec![0xcd; kv_bytes as usize]), on.place(&vec![0xcd; index_bytes as usize]));
    let mut bf16s = |shape: &[u64]| {
        let count: u64 = shape.iter().product();
        let values = (0..count).map(|_| half::bf16::from_f32((random.word() % 2001) as f32 * 0.003 - 3.0));
        on.tensor(DType::Bf16, shape, &values.flat_map(|x| x.to_bits().to_le_bytes()).collect::<Vec<_>>())
    };
    let mut args = Args::new()
        .with_kv_cache(planar(&op.geometry, format, pages, kv_at).unwrap())
        .with_index_cache(IndexCache::planar(&op.geometry, format, pages, index_at).unwrap());
    let heads = [
        (Role::QuerySource, 64),
        (Role::KeySource, 4),
        (Role::ValueSource, 4),
        (Role::IndexQuerySource, 4),
        (Role::IndexKeySource, 1),
    ];
    for (role, heads) in heads {
        args = args.with(role, bf16s(&[3, heads, 128]));
    }
    for role in [Role::QueryNorm, Role::KeyNorm, Role::IndexQueryNorm, Role::IndexKeyNorm] {
        args = args.with(role, bf16s(&[128]));
    }
    let angles: Vec<u8> = (0..10 * 32).flat_map(|i| (i as f32 * 0.01).sin().to_le_bytes()).collect();
    let slots: Vec<u8> = [130i64, -1, 7].iter().flat_map(|slot| slot.to_le_bytes()).collect();
    let query = on.tensor(DType::E4m3, &[3, 64, 128], &vec![0xcd; 3 * 64 * 128]);
    let index_query = on.tensor(DType::Bf16, &[3, 4, 128], &vec![0xcd; 3 * 4 * 256]);
    let args = args
        .with(Role::RopeCos, on.tensor(DType::F32, &[10, 32], &angles))
        .with(Role::RopeSin, on.tensor(DType::F32, &[10, 32], &angles))
        .with(Role::Positions, on.integers(&[4, 9, 0], &[3]))
        .with(Role::Slots, on.tensor(DType::I64, &[3], &slots))
        .with(Role::Query, query)
        .with(Role::IndexQuery, index_query);
    assert!(on.run(&*prepared, &args).is_clean());
    let read = |address, bytes: u64| {
        let mut content = vec![0; bytes as usize];
        device.memory().read(address, &mut content).unwrap();
        content
    };
    [read(kv_at, kv_bytes), read(index_at, index_bytes), on.read(&query), on.read(&index_query)]
}

fn decode_attends(device: &Arc<dyn Device>, splits: Option<u32>) {
    let on = OnDevice(device);
    let mut random = Random(2);
    let op = Attention {
        query: DType::E4m3,
        cache: CacheFormat::E4m3,
        output: AttentionOutput { dtype: DType::F32, lse: true, ..AttentionOutput::default() },
        ..Attention::default()
    };
    let options = PlanOptions { splits, ..PlanOptions::default() };
    let plan = device.plan(&Op::SparseDecode(op.clone()), &lengths(), &options).unwrap();
    let prepared = device.prepare(&plan).unwrap();

    let pages = 9u64;
    let sizing = planar(&op.geometry, op.cache, pages, 0).unwrap();
    let memory: Vec<u8> = (0..pages * sizing.key.page_stride).map(|_| random.fp8()).collect();
    let cache = planar(&op.geometry, op.cache, pages, on.place(&memory)).unwrap();
    let table: Vec<i32> = [3, 7, 1, 0, 0, 0, 8, 2, 5, 0, 4, 6].to_vec();
    let queries: Vec<Row> = (0..3 * HEADS).map(|_| std::array::from_fn(|_| random.fp8())).collect();
    let lists: Vec<i32> = ROWS.iter().flat_map(|row| row_lists(row.1, &mut random)).collect();
    let rows = 3u64;
    let output =
        on.tensor(DType::F32, &[rows, HEADS as u64, CHANNELS as u64], &vec![0xcd; 3 * HEADS * CHANNELS * 4]);
    let lse = on.tensor(DType::F32, &[rows, HEADS as u64], &[0xcd; 3 * HEADS * 4]);
    let args = on
        .lengths(Args::new().with_kv_cache(cache))
        .with(
            Role::Query,
            on.tensor(DType::E4m3, &[rows, HEADS as u64, CHANNELS as u64], queries.as_flattened()),
        )
        .with(Role::BlockIndices, on.integers(&lists, &[rows, LISTS as u64, SLOTS as u64]))
        .with(Role::BlockTable, on.integers(&table, &[2, TABLE as u64]))
        .with(Role::Output, output)
        .with(Role::Lse, lse);
    assert!(on.run(&*prepared, &args).is_clean());

    let world = World { memory: &memory, cache: &sizing, table: &table, queries: &queries, lists: &lists };
    let (mut want_output, mut want_lse) = (Vec::new(), Vec::new());
    for (row, (request, visible)) in ROWS.iter().enumerate() {
        let parts: Vec<(u32, u32)> = plan
            .slot_parts
            .iter()
            .filter(|part| part.request as usize == *request)
            .map(|part| (part.slot_begin, part.slot_end))
            .collect();
        for head in 0..HEADS {
            let states: Vec<Attended> =
                parts.iter().map(|part| world.attend(&op, row, *request, *visible, head, *part)).collect();
            let attended = merged(states);
            want_output.extend(attended.output.iter().flat_map(|x| x.to_le_bytes()));
            want_lse.extend(attended.lse.to_le_bytes());
        }
    }
    assert_eq!(on.read(&lse), want_lse, "splits {splits:?}");
    assert!(on.read(&output) == want_output, "splits {splits:?}");
}

fn row_lists(visible: usize, random: &mut Random) -> Vec<i32> {
    let blocks = visible.div_ceil(BLOCK) as i32;
    (0..LISTS)
        .flat_map(|_| {
            let mut list: Vec<i32> = (0..blocks).filter(|_| !random.word().is_multiple_of(4)).collect();
            list.resize(SLOTS, -1);
            list
        })
        .collect()
}

struct World<'a> {
    memory: &'a [u8],
    cache: &'a KvCache,
    table: &'a [i32],
    queries: &'a [Row],
    lists: &'a [i32],
}

impl World<'_> {
    fn rows(&self, base: u64, page: i32, kv_head: usize, tokens: usize) -> Vec<Row> {
        let view = &self.cache.key;
        let start = base + page as u64 * view.page_stride + kv_head as u64 * view.head_stride;
        let row = |token: usize| {
            let at = (start + token as u64 * view.token_stride) as usize;
            std::array::from_fn(|channel| self.memory[at + channel])
        };
        (0..tokens).map(row).collect()
    }

    fn attend(
        &self,
        op: &Attention,
        row: usize,
        request: usize,
        visible: usize,
        head: usize,
        (begin, end): (u32, u32),
    ) -> Attended {
        let kv_head = head / 16;
        let list = &self.lists[(row * LISTS + kv_head) * SLOTS..][begin as usize..end as usize];
        let blocks: Vec<(Vec<Row>, Vec<Row>)> = list
            .iter()
            .filter(|id| **id >= 0)
            .map(|id| {
                let tokens = (visible - *id as usize * BLOCK).min(BLOCK);
                let page = self.table[request * TABLE + *id as usize];
                let rows = |base| self.rows(base, page, kv_head, tokens);
                (rows(self.cache.key.address), rows(self.cache.value.address))
            })
            .collect();
        let scales = Scales { natural: op.scale(), value: 1.0 };
        let blocks = blocks.iter().map(|(keys, values)| Block { keys, values });
        attend_partial(Generation::Cdna4, &self.queries[row * HEADS + head], blocks, &scales)
    }
}

/// Partial states as the plan's merge makes one of them.
fn merged(states: Vec<Attended>) -> Attended {
    if states.len() == 1 {
        return states.into_iter().next().unwrap();
    }
    let op = Merge { output: DType::F32, ..Merge::default() };
    let lses: Vec<State> = states.iter().map(|state| State { lse: state.lse, sum: 1.0 }).collect();
    let bytes = |state: &Attended| -> Vec<u8> { state.output.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let outputs: Vec<Vec<u8>> = states.iter().map(bytes).collect();
    let slices: Vec<&[u8]> = outputs.iter().map(Vec::as_slice).collect();
    let mut out = vec![0; CHANNELS * 4];
    let lse = merge_head(&op, &lses, &slices, &mut out).unwrap();
    let output = out.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect();
    Attended { output, lse }
}

fn wrong_things_are_errors(device: &Arc<dyn Device>) {
    let on = OnDevice(device);
    let op = Op::Select(Select::default());
    let plan = device.plan(&op, &lengths(), &PlanOptions::default()).unwrap();
    let prepared = device.prepare(&plan).unwrap();
    let workspace = Span { address: on.place(&[0; 4096]), bytes: 4096 };
    // SAFETY: the call is refused before anything is read.
    let missing = unsafe { prepared.enqueue(Stream(0), &Args::new(), workspace) }.unwrap_err();
    assert!(matches!(missing, Error::Missing { .. }), "{missing}");
    let mut small_pages = Attention::default();
    small_pages.geometry.page = 64;
    assert!(!device.support(&Op::SparseDecode(small_pages)).is_yes());
    let mut other = plan.clone();
    other.traits.arch = msa_core::device::Arch::Gfx942;
    other.hash = other.computed_hash();
    assert!(device.prepare(&other).is_err());
    assert!(device.memory().free(12345).unwrap_err().to_string().contains("invalid argument"));
}

/// The library that msa-rocm opened is asked for what it was told.
fn profilers_see_a_range_a_run() {
    let path = std::env::var_os("MSA_ROCTX_LIBRARY").unwrap();
    // SAFETY: it is loaded already.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    // SAFETY: the type is that of msa_fake_hip.
    let ranges: libloading::Symbol<'_, extern "C" fn(*mut u8, usize) -> usize> =
        unsafe { library.get(b"fakeRoctxRanges") }.unwrap();
    let mut text = vec![0; 1 << 16];
    let length = ranges(text.as_mut_ptr(), text.len());
    let text = String::from_utf8(text[..length].to_vec()).unwrap();
    let names: Vec<&str> = text.lines().collect();
    // Names as they began, and how deep the last one was; every range has ended.
    assert_eq!(names.first(), Some(&"select.f32.gfx950.radix"), "{text}");
    assert!(names.contains(&"sparse_decode.q8kv8.gfx950.mfma"), "{text}");
    assert_eq!(names.last(), Some(&"depth 0"), "{text}");
}

/// What a context-parallel engine calls itself.
fn graphs_and_peers(hip: &Hip) {
    let table = hip.table();
    let (mut can, mut stream, mut graph, mut executable) =
        (0, std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: all pointers are valid for the calls.
    unsafe {
        assert_eq!(table.hipDeviceCanAccessPeer.unwrap()(&mut can, 0, 1), 0);
    }
    assert_eq!(can, 1);
    // SAFETY: no pointers are passed.
    let codes = [0, 1].map(|_| unsafe { table.hipDeviceEnablePeerAccess.unwrap()(1, 0) });
    assert_eq!(codes, [0, 704]);
    assert!(hip.check("peer", 704).unwrap_err().to_string().contains("already enabled"));
    let mut word = 0;
    // SAFETY: all pointers are valid for the calls.
    unsafe {
        assert_eq!((table.hipMalloc)(&mut word, 4), 0);
        assert_eq!(table.hipStreamCreate.unwrap()(&mut stream), 0);
        assert_eq!(table.hipStreamBeginCapture.unwrap()(stream, 0), 0);
        assert_eq!((table.hipMemsetD32Async)(word, 7, 1, stream), 0);
        let mut refused = 0;
        assert_eq!((table.hipMalloc)(&mut refused, 4), 900);
        assert_eq!(table.hipStreamEndCapture.unwrap()(stream, &mut graph), 0);
        let none = std::ptr::null_mut();
        assert_eq!(
            table.hipGraphInstantiate.unwrap()(&mut executable, graph, none, std::ptr::null_mut(), 0),
            0
        );
        assert_eq!(table.hipGraphLaunch.unwrap()(executable, stream), 0);
        assert_eq!((table.hipStreamSynchronize)(stream), 0);
    }
    let mut value = 0u32;
    let to = std::ptr::from_mut(&mut value).cast();
    // SAFETY: four bytes each.
    assert_eq!(unsafe { (table.hipMemcpy)(to, word as *const std::ffi::c_void, 4, 4) }, 0);
    assert_eq!(value, 7);
}

/// A stream that blocks nobody is waited for by its events, and by nothing else.
fn streams_and_events(hip: &Hip) {
    const NON_BLOCKING: u32 = 1;
    let table = hip.table();
    let (mut stream, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut word, mut seen) = (0, [0_u32; 2]);
    let [first, second] = seen.each_mut().map(|value| std::ptr::from_mut(value).cast());
    // SAFETY: all pointers are valid for the calls, and copies have four bytes on either side.
    unsafe {
        assert_eq!(table.hipStreamCreateWithFlags.unwrap()(&mut stream, NON_BLOCKING), 0);
        assert_eq!(table.hipEventCreate.unwrap()(&mut event), 0);
        assert_eq!((table.hipMalloc)(&mut word, 4), 0);
        let address = word as *const std::ffi::c_void;
        assert_eq!((table.hipMemsetD32Async)(word, 1, 1, std::ptr::null_mut()), 0);
        assert_eq!((table.hipMemsetD32Async)(word, 2, 1, stream), 0);
        assert_eq!(table.hipEventRecord.unwrap()(event, stream), 0);
        // The copy waits for the default stream alone.
        assert_eq!((table.hipMemcpy)(first, address, 4, 4), 0);
        assert_eq!(table.hipEventSynchronize.unwrap()(event), 0);
        assert_eq!((table.hipMemcpy)(second, address, 4, 4), 0);
        assert_eq!(table.hipEventDestroy.unwrap()(event), 0);
        assert_eq!(table.hipEventSynchronize.unwrap()(event), 400, "it is gone");
        assert_eq!(table.hipStreamDestroy.unwrap()(stream), 0);
    }
    assert_eq!(seen, [1, 2]);
}
