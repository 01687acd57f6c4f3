//! Indexer context parallelism over several fake devices: every rank's lists are those of one device.

use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span, Status, Stream};
use msa_core::op::{IndexScore, Op, Select};
use msa_cuda::indexer::{IndexerOptions, IndexerPlan, IndexerRank, PeerMemory, QuerySource, Transport};
use msa_tests::Case;
use msa_tests::inputs::{Inputs, generate};
use msa_tests::memory::Placement;
use msa_tests::ranks;

use crate::allocations::Counting;
use crate::child::{Driver, test_name};
use crate::engine;
use crate::fake;

/// Ragged, speculative rows, contexts shorter than the world's pages, requests before their first token.
const RAGGED: &str = "hq=16,hkv=4,hi=4,k=4,len=[2x1000,1x130,3x2,0x0,1x0,4x513]";

const EIGHT: &str = "9.0,9.0,9.0,9.0,9.0,9.0,9.0,9.0";

struct Group {
    world: u32,
    line: String,
    transport: Transport,
    queries: QuerySource,
    sharded: bool,
    /// Lists of the own heads alone.
    own_lists: bool,
}

impl Group {
    fn new(world: u32, line: &str) -> Self {
        Self {
            world,
            line: line.to_owned(),
            transport: Transport::Candidates,
            queries: QuerySource::Replicated,
            sharded: false,
            own_lists: false,
        }
    }

    fn check(&self) {
        let ranks = Ranks::new(self);
        ranks.members.iter().for_each(|member| member.enqueue(Stream(0)));
        if self.transport == Transport::Collective {
            ranks.gather();
        }
        ranks.assert_equal(&self.line);
    }
}

struct Member {
    device: Arc<dyn Device>,
    rank: IndexerRank,
    args: Args,
    workspace: Span,
    /// Keeps the buffers of `args`.
    _placement: Placement,
}

impl Member {
    fn enqueue(&self, stream: Stream) {
        let halves = self.rank.plan().options.transport == Transport::Collective;
        let enqueue = if halves { IndexerRank::enqueue_keys } else { IndexerRank::enqueue };
        // SAFETY: everything was placed on this device and stays; the shared memory was zero and is this group's.
        unsafe { enqueue(&self.rank, stream, &self.args, self.workspace) }.unwrap();
    }

    fn status(&self, stream: Stream) -> Status {
        // SAFETY: the workspace of the runs above.
        unsafe { self.rank.status(stream, self.workspace) }.unwrap()
    }

    fn lists(&self) -> Vec<i32> {
        let tensor = self.args.tensor(Role::BlockIndices).unwrap();
        let mut bytes = vec![0; (tensor.shape().iter().product::<u64>() * 4) as usize];
        self.device.memory().read(tensor.address, &mut bytes).unwrap();
        msa_tests::compare::i32s(&bytes)
    }
}

struct Ranks {
    members: Vec<Member>,
    case: Case,
    inputs: Inputs,
    op: IndexScore,
    select: Select,
    /// What the ranks share.
    _memory: Option<PeerMemory>,
}

fn indexer(line: &str) -> (Case, IndexScore, Select) {
    let case: Case = line.parse().unwrap();
    let Op::IndexScore(op) = case.descriptor().unwrap() else { panic!("{line}") };
    let select = ranks::selection(&case).unwrap();
    (case, op, select)
}

impl Ranks {
    fn new(group: &Group) -> Self {
        let (case, op, select) = indexer(&group.line);
        let inputs = generate(&case, &Op::IndexScore(op.clone())).unwrap();
        let backend = msa_cuda::backend();
        let devices: Vec<_> = (0..group.world).map(|ordinal| backend.open(ordinal).unwrap()).collect();
        let lengths = case.bounds().unwrap();
        let plans: Vec<IndexerPlan> = (0..group.world)
            .map(|rank| {
                let (transport, queries) = (group.transport, group.queries);
                let options = IndexerOptions { transport, queries, ..IndexerOptions::new(group.world, rank) };
                IndexerPlan::new(&*devices[0], &op, &select, &lengths, &options).unwrap()
            })
            .collect();
        let ordinals: Vec<u32> = (0..group.world).collect();
        let mapped = group.transport != Transport::Collective;
        let memory = mapped.then(|| PeerMemory::new(&ordinals, plans[0].shared.bytes()).unwrap());
        let shared = memory.as_ref().map_or(&[][..], PeerMemory::addresses);
        let members = plans.iter().zip(&devices).map(|(plan, device)| {
            let rank = plan.options.rank;
            let heads = plan.shared.heads_of(rank);
            let lists = if group.own_lists { heads.len() as u64 } else { select.lists().into() };
            let own = (group.queries == QuerySource::Own).then_some(heads);
            let own = ranks::of_rank(&inputs, own, group.sharded.then_some((rank, group.world)));
            let placement = Placement::new(device, &own, case.gap, 0).unwrap();
            let lists = ranks::lists_tensor(&**device, plan.rows().into(), lists, op.geometry.top_k).unwrap();
            Member {
                args: placement.args.without(Role::Scores).with(Role::BlockIndices, lists),
                workspace: ranks::filled(&**device, plan.workspace_bytes()).unwrap(),
                rank: IndexerRank::new(rank, plan, shared).unwrap(),
                device: Arc::clone(device),
                _placement: placement,
            }
        });
        let members = members.collect();
        Self { members, case, inputs, op, select, _memory: memory }
    }

    /// What the engine's collective library does between the halves of a run, and the second half.
    fn gather(&self) {
        for (number, from) in self.members.iter().enumerate() {
            let layout = from.rank.plan().collective();
            let mut keys = vec![0; layout.bytes as usize];
            from.device.memory().read(from.workspace.address + layout.send, &mut keys).unwrap();
            for to in &self.members {
                let receive = to.rank.plan().collective().receive + number as u64 * layout.bytes;
                to.device.memory().write(to.workspace.address + receive, &keys).unwrap();
            }
        }
        for member in &self.members {
            // SAFETY: as for the first half, and the keys are there.
            unsafe { member.rank.enqueue_merge(Stream(0), &member.args, member.workspace) }.unwrap();
        }
    }

    /// Waits, and compares every rank's lists with those of one device.
    fn assert_equal(&self, what: &str) {
        let device = &self.members[0].device;
        let want = ranks::single_device(device, &self.case, &self.op, &self.select, &self.inputs).unwrap();
        for (number, member) in self.members.iter().enumerate() {
            assert_eq!(member.status(Stream(0)), Status::default(), "rank {number}: {what}");
            let (all, k) = (self.select.lists() as usize, self.op.geometry.top_k as usize);
            let listed = member.args.tensor(Role::BlockIndices).unwrap().extent(1) as usize;
            let whole = listed == all;
            let first =
                if whole { 0 } else { member.rank.plan().shared.heads_of(number as u32).start as usize };
            let own: Vec<i32> =
                want.chunks(all * k).flat_map(|row| row[first * k..(first + listed) * k].to_vec()).collect();
            assert_eq!(member.lists()[..own.len()], own, "rank {number}: {what}");
        }
    }
}

#[test]
fn every_world_selects_what_one_device_selects() {
    Driver::of(EIGHT).run(&test_name!(), || {
        for world in 1..=8 {
            let format = ["iq=e4m3,ik=nvfp4", "iq=e4m3,ik=fp8", "iq=bf16,ik=bf16"][world as usize % 3];
            let line = format!("index_score({RAGGED},{format},seed={world})");
            Group { sharded: world % 2 == 0, ..Group::new(world, &line) }.check();
        }
        for world in [1, 2, 4, 8] {
            let line =
                format!("index_score({RAGGED},iq=e4m3,ik=nvfp4,precision=fast,scales=true,seed={world})");
            let queries = QuerySource::Own;
            Group { queries, sharded: true, own_lists: world % 4 == 0, ..Group::new(world, &line) }.check();
        }
    });
}

#[test]
fn m01_ties_nan_forced_blocks_orders_and_one_list_in_every_world() {
    let more = [
        "in=ties",
        "in=nan",
        "in=ties,init=2,local=3",
        "in=nan,order=score_then_own,init=1",
        "in=ties,grouping=reduced",
    ];
    Driver::of(EIGHT).run(&test_name!(), || {
        for world in 1..=8 {
            for more in [more[world as usize % 5], more[(world as usize + 2) % 5]] {
                let line =
                    format!("index_score(hq=8,hkv=2,hi=2,k=5,len=[2x3000,1x400],iq=e4m3,ik=fp8,{more})");
                Group::new(world, &line).check();
            }
        }
    });
}

#[test]
fn m02_fewer_candidates_than_slots() {
    Driver::of("9.0,9.0,9.0,9.0").run(&test_name!(), || {
        for kv_len in [1, 128, 129, 513] {
            let line = format!("index_score(hq=8,hkv=2,hi=2,len=[1x{kv_len}],iq=e4m3,ik=nvfp4)");
            let ranks = Ranks::new(&Group::new(4, &line));
            ranks.members.iter().for_each(|member| member.enqueue(Stream(0)));
            ranks.assert_equal(&line);
            let blocks = ((kv_len + 127) / 128).min(16);
            let want: Vec<i32> = (0..16).map(|slot| if slot < blocks { slot } else { -1 }).collect();
            assert_eq!(ranks.members[3].lists()[..16], want[..], "{line}");
        }
    });
}

#[test]
fn g01_speculative_rows_see_what_their_global_positions_say() {
    Driver::of("9.0,9.0,9.0,9.0").run(&test_name!(), || {
        for (rows, kv_len) in [(4, 1025), (2, 1), (8, 8), (3, 127), (5, 129), (7, 514), (6, 1100)] {
            let line = format!(
                "index_score(hq=4,hkv=1,hi=1,k=4,len=[{rows}x{kv_len}],iq=e4m3,ik=fp8,seed={kv_len})"
            );
            let queries = if rows % 2 == 0 { QuerySource::Replicated } else { QuerySource::Own };
            Group { queries, ..Group::new(4, &line) }.check();
        }
    });
}

#[test]
fn a_collective_selects_what_one_device_selects() {
    Driver::of(EIGHT).run(&test_name!(), || {
        for world in [1, 2, 5, 8] {
            let more = ["in=ties", "in=nan", "init=1,local=2", "grouping=reduced"][world as usize % 4];
            let line = format!("index_score({RAGGED},iq=e4m3,ik=nvfp4,{more},seed={world})");
            let group = Group::new(world, &line);
            Group { transport: Transport::Collective, sharded: world % 2 == 1, ..group }.check();
        }
    });
}

#[test]
fn a_rank_enqueues_without_allocating() {
    Driver::of(EIGHT).run(&test_name!(), || {
        let line = format!("index_score({RAGGED},iq=e4m3,ik=nvfp4)");
        for transport in [Transport::Candidates, Transport::Collective] {
            let ranks = Ranks::new(&Group { transport, ..Group::new(2, &line) });
            for member in &ranks.members {
                assert_eq!(Counting::during(|| member.enqueue(Stream(0))), 0, "{transport:?}");
            }
            if transport == Transport::Collective {
                ranks.members.iter().for_each(|member| assert_eq!(member.status(Stream(0)), Status(0)));
                // SAFETY: as for the first half; what is merged does not matter here.
                let merge = |member: &Member| unsafe {
                    member.rank.enqueue_merge(Stream(0), &member.args, member.workspace)
                };
                ranks.members.iter().for_each(|member| {
                    assert_eq!(Counting::during(|| merge(member).unwrap()), 0, "merge");
                });
            }
            ranks.members.iter().for_each(|member| assert_eq!(member.status(Stream(0)), Status(0)));
        }
    });
}

#[test]
fn m04_eager_runs_and_replays_count_their_exchanges_on_the_devices() {
    Driver::of("9.0,9.0,9.0").run(&test_name!(), || {
        let line = "index_score(hq=16,hkv=4,hi=4,k=5,len=[1x100,2x3000,1x256],in=ties,iq=e4m3,ik=nvfp4)";
        for (world, queries) in [(2, QuerySource::Own), (3, QuerySource::Replicated)] {
            let ranks = Ranks::new(&Group { queries, ..Group::new(world, line) });
            // All runs of a rank are queued before the next rank has any.
            for member in &ranks.members {
                (0..5).for_each(|_| member.enqueue(Stream(0)));
            }
            ranks.assert_equal(line);
            let graphs: Vec<_> = (0..)
                .zip(&ranks.members)
                .map(|(ordinal, member)| {
                    let _current = engine::enter(engine::retain_primary(ordinal));
                    let stream = engine::create_stream();
                    (ordinal, stream, engine::capture(stream, || member.enqueue(Stream(stream))))
                })
                .collect();
            for round in 0..4 {
                for (ordinal, stream, graph) in &graphs {
                    let _current = engine::enter(engine::retain_primary(*ordinal));
                    graph.launch(*stream);
                }
                for ((_, stream, _), member) in graphs.iter().zip(&ranks.members) {
                    assert!(member.status(Stream(*stream)).is_clean(), "round {round}");
                }
                ranks.assert_equal(line);
            }
        }
    });
}

/// Of 769 blocks rank 0 has 385, and rank 1 the 384 that are few enough for warps to share pages.
#[test]
fn a_rank_runs_the_kernel_for_its_own_pages() {
    Driver::of("9.0,9.0").run(&test_name!(), || {
        let line = "index_score(hq=8,hkv=2,hi=2,k=4,len=[1x98432],iq=e4m3,ik=fp8)";
        let ranks = Ranks::new(&Group::new(2, line));
        let launched = |member: &Member| {
            fake::take_log();
            member.enqueue(Stream(0));
            let log = fake::take_log();
            let kernels = log.iter().filter_map(|line| line.split_once("kernel=")?.1.split(' ').next());
            kernels.map(str::to_owned).collect::<Vec<_>>()
        };
        let want = ["index_score_n1_few", "index_score_n1_quad"].map(|score| [score, "exchange_keys_small"]);
        assert_eq!([0, 1].map(|rank| launched(&ranks.members[rank])), want);
        ranks.assert_equal(line);
    });
}

#[test]
fn ranks_that_do_not_arrive_are_named_and_nobody_hangs() {
    Driver::of("9.0,9.0,9.0,9.0").run(&test_name!(), || {
        for queries in [QuerySource::Replicated, QuerySource::Own] {
            let line = "index_score(hq=16,hkv=4,hi=4,k=4,len=[1x700],iq=e4m3,ik=fp8)";
            let ranks = Ranks::new(&Group { queries, ..Group::new(4, line) });
            for rank in [0, 2] {
                ranks.members[rank].enqueue(Stream(0));
            }
            for rank in [0, 2] {
                let status = ranks.members[rank].status(Stream(0));
                assert_eq!(status.0, Status::RANK | 1 << 17 | 1 << 19, "rank {rank}: {status}");
                assert_eq!(status.to_string(), "rank did not arrive (1, 3)");
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_with_the_field() {
    Driver::of("9.0,9.0,10.0").run(&test_name!(), || {
        let (case, op, select) = indexer("index_score(hq=8,hkv=2,hi=2,k=4,len=[1x700],iq=e4m3,ik=fp8)");
        let (device, lengths) = (crate::work::device(), case.bounds().unwrap());
        let plan = |options| IndexerPlan::new(&*device, &op, &select, &lengths, &options);
        let options = IndexerOptions::new(2, 0);
        let refused = |options| plan(options).unwrap_err().to_string();
        let scores = refused(IndexerOptions { transport: Transport::Scores, ..options });
        assert_eq!(scores, "options.transport: want candidates or collective: this backend's ranks hand over keys, got scores");
        assert!(refused(IndexerOptions { rank: 2, ..options }).starts_with("options.rank: want below world = 2"));
        assert!(refused(IndexerOptions { world: 9, ..options }).starts_with("options.world: want 1 to 8"));
        let both = IndexerOptions { transport: Transport::Collective, queries: QuerySource::Own, ..options };
        assert!(refused(both).starts_with("options.queries: want all heads"));
        let plan = plan(options).unwrap();
        let memory = PeerMemory::new(&[0, 1], plan.shared.bytes()).unwrap();
        let [first, second] = [0, 1].map(|rank| memory.addresses()[rank]);
        let error = |ordinal, ranks: &[u64]| {
            let rank = IndexerRank::new(ordinal, &plan, ranks);
            rank.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(error(0, &[256]), "ranks: want 2 addresses, got 1");
        assert!(error(0, &[256, 0]).starts_with("ranks: want addresses at multiples of 256, not 0"));
        assert_eq!(error(2, &[first, second]), "device: want sm90a, as the plan, got sm100a");
        assert!(error(0, &[first, 256]).contains("CUDA_ERROR_INVALID_VALUE"));
        assert_eq!(error(3, &[first, second]), "device: want cuda:0 to cuda:2, got cuda:3");
        // A plan of ranks is not prepared as one of a single device.
        let single = device.prepare(&plan.score).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(single.starts_with("options.world: want 1 (ranks are prepared by msa_cuda::indexer)"), "{single}");
    });
}

#[test]
fn arguments_that_do_not_fit_enqueue_nothing() {
    Driver::of("9.0,9.0").run(&test_name!(), || {
        let line = "index_score(hq=8,hkv=2,hi=2,k=4,len=[1x700],iq=e4m3,ik=fp8)";
        let ranks = Ranks::new(&Group::new(2, line));
        let member = &ranks.members[0];
        let lists = *member.args.tensor(Role::BlockIndices).unwrap();
        let three = msa_core::Tensor::contiguous(lists.address, lists.dtype, &[1, 3, 4]).unwrap();
        let refused = |args: &Args, workspace: Span| {
            // SAFETY: refused before anything is launched.
            unsafe { member.rank.enqueue(Stream(0), args, workspace) }.unwrap_err().to_string()
        };
        fake::take_log();
        let three = refused(&member.args.clone().with(Role::BlockIndices, three), member.workspace);
        assert_eq!(three, "block_indices.shape[1]: want 2 or 1, got 3");
        let small = Span { bytes: 64, ..member.workspace };
        assert!(refused(&member.args, small).starts_with("workspace.bytes: want at least"));
        let lacking = member.args.without(Role::BlockTable);
        assert!(refused(&lacking, member.workspace).contains("block_table"));
        // SAFETY: refused before anything is launched.
        let merge = unsafe { member.rank.enqueue_merge(Stream(0), &member.args, member.workspace) };
        assert!(merge.unwrap_err().to_string().starts_with("options.transport: want collective"));
        assert!(fake::take_calls().iter().all(|call| call != "cuLaunchKernelEx"));
        // A run takes no allocation, no copy and no wait.
        member.enqueue(Stream(0));
        let calls = fake::take_calls();
        let allowed = ["cuLaunchKernelEx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"];
        assert!(calls.iter().all(|call| allowed.contains(&call.as_str())), "{calls:?}");
        assert_eq!(calls.iter().filter(|call| *call == "cuLaunchKernelEx").count(), 2);
        ranks.members[1].enqueue(Stream(0));
        ranks.assert_equal(line);
    });
}

#[test]
fn devices_that_do_not_map_each_other_are_named_and_memory_is_given_back() {
    let name = test_name!();
    Driver::of("9.0,9.0").with("MSA_FAKE_CUDA_PEERS", 0).without_kernels().run(&name, || {
        let error = PeerMemory::new(&[0, 1], 1 << 20).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains("cuda:0 does not map that of cuda:1"), "{error}");
        assert_eq!((fake::used(0), fake::used(1), fake::depth()), (0, 0, 0));
        // Ranks of one device need no mapping.
        let memory = PeerMemory::new(&[1, 1], 1 << 20).unwrap();
        assert_eq!((memory.addresses().len(), fake::used(1)), (2, 2 << 20));
        memory.free().unwrap();
        assert_eq!(fake::used(1), 0);
    });
}

#[test]
fn a_device_without_memory_gives_back_that_of_the_others() {
    Driver::of("9.0,9.0").without_kernels().with("MSA_FAKE_CUDA_MEMORY", 1 << 20).run(&test_name!(), || {
        let all = PeerMemory::new(&[0, 1], 1 << 19).unwrap();
        fake::fail("cuMemAlloc_v2", cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY, 1);
        let error = PeerMemory::new(&[0, 1], 1 << 18).err().map(|error| error.to_string());
        assert!(error.unwrap_or_default().contains("OUT_OF_MEMORY"));
        assert_eq!([0, 1].map(fake::used), [1 << 19; 2]);
        all.free().unwrap();
        assert_eq!([0, 1].map(fake::used), [0; 2]);
    });
}
