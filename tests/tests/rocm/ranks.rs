//! Ranks of one process, each a simulated GPU, and the selection of a single device to compare with.

use std::sync::Arc;

use msa_core::args::{Args, Role};
use msa_core::backend::{Device, Span, Status, Stream};
use msa_core::op::{IndexScore, Op, Select};
use msa_emu::gfx9::Options;
use msa_fake_hip::{Setup, Simulated};
use msa_rocm::backend_over;
use msa_rocm::indexer::{IndexerOptions, IndexerPlan, IndexerRank, QuerySource, Transport};
use msa_tests::Case;
use msa_tests::inputs::{Inputs, generate};
use msa_tests::memory::Placement;
use msa_tests::ranks;
use msa_tests::rocm_emu;

/// One group of ranks.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) arch: &'static str,
    pub(crate) world: u32,
    /// A case of `index_score`; `init`, `local`, `order` and `k` are those of the selection.
    pub(crate) line: String,
    pub(crate) transport: Transport,
    pub(crate) queries: QuerySource,
    /// Every rank's cache holds its own pages alone.
    pub(crate) sharded: bool,
    pub(crate) spins: u32,
    pub(crate) options: Options,
}

impl Group {
    pub(crate) fn new(arch: &'static str, world: u32, line: &str) -> Self {
        Self {
            arch,
            world,
            line: line.to_owned(),
            transport: Transport::Candidates,
            queries: QuerySource::Replicated,
            sharded: false,
            spins: 1 << 16,
            options: Options::default(),
        }
    }

    pub(crate) fn start(&self) -> Ranks {
        Ranks::new(self)
    }

    /// One run on every rank; the lists of each must be those of one device.
    pub(crate) fn check(&self) {
        let ranks = self.start();
        ranks.enqueue_all();
        if self.transport == Transport::Collective {
            ranks.gather();
        }
        ranks.assert_equal(&ranks.inputs, &format!("{self:?}"));
    }
}

/// A device of the group with what is placed on it.
pub(crate) struct Member {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) rank: IndexerRank,
    pub(crate) args: Args,
    pub(crate) workspace: Span,
    /// Keeps the buffers of `args`.
    _placement: Placement,
}

pub(crate) struct Ranks {
    pub(crate) simulated: Simulated,
    pub(crate) members: Vec<Member>,
    pub(crate) case: Case,
    pub(crate) inputs: Inputs,
    pub(crate) select: Select,
    op: IndexScore,
}

impl Ranks {
    fn new(group: &Group) -> Self {
        let case: Case = group.line.parse().unwrap();
        let Op::IndexScore(op) = case.descriptor().unwrap() else { panic!("{}", group.line) };
        let select = ranks::selection(&case).unwrap();
        let inputs = generate(&case, &Op::IndexScore(op.clone())).unwrap();
        let architectures = vec![group.arch; group.world as usize];
        let setup = Setup { options: group.options, ..Setup::of(&architectures) };
        let simulated = Simulated::with(&setup);
        let backend = backend_over(simulated.hip(), rocm_emu::images().unwrap());
        let devices: Vec<_> = (0..group.world).map(|rank| backend.open(rank).unwrap()).collect();
        let lengths = case.bounds().unwrap();
        let plans: Vec<IndexerPlan> = (0..group.world)
            .map(|rank| {
                let options = IndexerOptions {
                    transport: group.transport,
                    queries: group.queries,
                    spins: group.spins,
                    ..IndexerOptions::new(group.world, rank)
                };
                IndexerPlan::new(&*devices[0], &op, &select, &lengths, &options).unwrap()
            })
            .collect();
        let shared: Vec<u64> = match group.transport {
            Transport::Collective => Vec::new(),
            _ => devices
                .iter()
                .map(|device| ranks::zeroed(&**device, plans[0].shared.bytes()).unwrap())
                .collect(),
        };
        let members = plans.iter().zip(&devices).enumerate().map(|(rank, (plan, device))| {
            let placement = Placement::new(device, &of_rank(&inputs, plan, group), case.gap, 0).unwrap();
            let heads = match group.transport {
                Transport::Scores => plan.shared.heads_of(rank as u32).len() as u64,
                _ => op.geometry.index_heads.into(),
            };
            let lists = ranks::lists_tensor(&**device, plan.rows().into(), heads, op.geometry.top_k).unwrap();
            let args = placement.args.without(Role::Scores).with(Role::BlockIndices, lists);
            let workspace = ranks::filled(&**device, plan.workspace_bytes()).unwrap();
            let images = rocm_emu::images().unwrap();
            let rank = IndexerRank::new(simulated.hip(), rank as u32, images, plan, &shared).unwrap();
            Member { device: Arc::clone(device), rank, args, workspace, _placement: placement }
        });
        let members = members.collect();
        Self { simulated, members, case, inputs, select, op }
    }

    /// Enqueues on every rank's default stream. Nothing runs until somebody waits.
    pub(crate) fn enqueue_all(&self) {
        self.members.iter().for_each(|member| member.enqueue(Stream(0)));
    }

    /// What the engine's collective library does between the halves of a run, and the second half.
    pub(crate) fn gather(&self) {
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

    /// Waits, and compares every rank's lists with those of one device on `inputs`.
    pub(crate) fn assert_equal(&self, inputs: &Inputs, what: &str) {
        let want = self.single_device(inputs);
        for (number, member) in self.members.iter().enumerate() {
            assert_eq!(member.status(Stream(0)), Status::default(), "rank {number}: {what}");
            let lists = *member.args.tensor(Role::BlockIndices).unwrap();
            let heads = if lists.extent(1) == u64::from(self.op.geometry.index_heads) {
                0..self.op.geometry.index_heads
            } else {
                member.rank.plan().shared.heads_of(number as u32)
            };
            let got = member.lists();
            let k = self.op.geometry.top_k as usize;
            let all = self.op.geometry.index_heads as usize;
            let rows = want.len() / (all * k);
            let own = (0..rows)
                .flat_map(|row| heads.clone().map(move |head| row * all + head as usize))
                .flat_map(|list| &want[list * k..(list + 1) * k]);
            let got = &got[..rows * heads.len() * k];
            assert!(own.eq(got), "rank {number}: {what}\n got {got:?}\nwant {want:?}");
        }
    }

    /// Lists `[rows of requests, heads, k]` of one device.
    pub(crate) fn single_device(&self, inputs: &Inputs) -> Vec<i32> {
        let device = &self.members[0].device;
        ranks::single_device(device, &self.case, &self.op, &self.select, inputs).unwrap()
    }

    /// Writes i32 values over a tensor of every rank.
    pub(crate) fn write(&self, role: Role, values: &[i32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for member in &self.members {
            let tensor = member.args.tensor(role).unwrap();
            member.device.memory().write(tensor.address, &bytes).unwrap();
        }
    }
}

impl Member {
    /// A run; with a collective the half before it.
    pub(crate) fn enqueue(&self, stream: Stream) {
        let halves = self.rank.plan().options.transport == Transport::Collective;
        let enqueue = if halves { IndexerRank::enqueue_keys } else { IndexerRank::enqueue };
        // SAFETY: everything was placed on this device and stays; the shared memory was zero and is this group's.
        unsafe { enqueue(&self.rank, stream, &self.args, self.workspace) }.unwrap();
    }

    pub(crate) fn status(&self, stream: Stream) -> Status {
        // SAFETY: the workspace of the runs above.
        unsafe { self.rank.status(stream, self.workspace) }.unwrap()
    }

    pub(crate) fn lists(&self) -> Vec<i32> {
        let tensor = self.args.tensor(Role::BlockIndices).unwrap();
        let mut bytes = vec![0; (tensor.shape().iter().product::<u64>() * 4) as usize];
        self.device.memory().read(tensor.address, &mut bytes).unwrap();
        msa_tests::compare::i32s(&bytes)
    }
}

/// What a rank is given: its own heads' queries, its own pages.
pub(crate) fn of_rank(inputs: &Inputs, plan: &IndexerPlan, group: &Group) -> Inputs {
    let rank = plan.options.rank;
    let own = (group.queries == QuerySource::Own).then(|| plan.shared.heads_of(rank));
    ranks::of_rank(inputs, own, group.sharded.then_some((rank, group.world)))
}

/// Formats of an architecture for a case line.
pub(crate) fn formats(arch: &str) -> [&'static str; 2] {
    match arch {
        "gfx942" => ["iq=e4m3fnuz,ik=nvfp4", "iq=e4m3fnuz,ik=fp8fnuz"],
        _ => ["iq=e4m3,ik=nvfp4", "iq=e4m3,ik=fp8"],
    }
}
