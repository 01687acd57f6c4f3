//! `check world` and `check world=N`: N ranks (1, 2, 4 or 8 in turn if it is left out) share the pages of random batches; every rank's lists must be
//! those of a single device, bit for bit.
//!
//! Rank r is on device r modulo the number of devices: on one GPU all ranks are streams of it. Each case runs several times one after
//! the other with other contents and nothing between, then captured and replayed; ranks are late at random. At the end a rank stays
//! away, and the others must say so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use msa_core::args::Role;
use msa_core::backend::{Backend, Device, Span, Status, Stream};
use msa_core::error::{Result, require};
use msa_core::geometry::{Geometry, Grouping};
use msa_core::op::{ForcedPriority, IndexScore, NanRule, Op, Select, SelectOrder};
use msa_core::plan::{Plan, PlanOptions};
use msa_core::tensor::DType;
use msa_cuda::indexer::{IndexerOptions, IndexerPlan, IndexerRank, PeerMemory, QuerySource, Transport};

use crate::cases::{Case, Input, PAGE, Random};
use crate::device::{self, Outcome, Placed};
use crate::driver::{self, Graph};
use crate::replay::Amount;

/// What lists hold before a run.
const POISON: u8 = 0xa5;

/// Runs one after the other, and of one graph.
const RUNS: usize = 3;

/// Replays of the graphs.
const REPLAYS: usize = 2;

/// Differing lists.
pub(crate) fn run(backend: &dyn Backend, world: Option<u32>, amount: Amount) -> Result<u64> {
    let count = backend.devices()?.len() as u32;
    let devices = (0..count).map(|ordinal| backend.open(ordinal)).collect::<Result<Vec<_>>>()?;
    let amount = Amount { only: Some("index_score"), ..amount };
    let (mut failed, mut compared, mut hits) = (0, 0, BTreeMap::<String, u64>::new());
    for (number, case, mut random) in amount.cases() {
        let world = world.unwrap_or([1, 2, 4, 8][(number % 4) as usize]);
        let case = if number % 5 == 4 { Case::long_default(&mut random) } else { case };
        let mut group = match Group::new(&devices, case, world, &mut random) {
            Ok(group) => group,
            Err(error) => {
                *hits.entry(format!("refused: {error}")).or_default() += 1;
                continue;
            }
        };
        group.count(&mut hits);
        let name = format!("case {number} seed {} world {world}", amount.seed);
        let forms: &[&str] = if group.is_collective() { &["gathered"] } else { &["eager", "graph"] };
        for what in forms {
            let (differing, lists) = group.compare(&name, what, &mut random)?;
            failed += differing;
            compared += lists;
        }
        group.free()?;
    }
    failed += absent(&devices, world.unwrap_or(4).max(2))?;
    hits.iter().for_each(|(what, hit)| println!("{hit:7} {what}"));
    println!("{count} devices: lists of {compared} runs of ranks compared, {failed} failed");
    Ok(failed)
}

/// Lists of all ranks of one device: each takes a multiprocessor while it waits, and scoring needs some.
const MOST_LISTS: u64 = 120;

/// A rank with its arguments, one set a run.
struct Member<'a> {
    rank: IndexerRank,
    placed: Vec<Placed<'a>>,
    stream: Stream,
    ordinal: u32,
}

impl Member<'_> {
    fn workspace(&self) -> Span {
        self.placed[0].workspace
    }

    fn enqueue(&self) -> Result<()> {
        for placed in &self.placed {
            // SAFETY: what was placed, the memory of the peers included, lives until the group is freed.
            unsafe { self.rank.enqueue(self.stream, &placed.args, self.workspace()) }?;
        }
        Ok(())
    }

    fn status(&self) -> Result<Status> {
        // SAFETY: as above.
        unsafe { self.rank.status(self.stream, self.workspace()) }
    }
}

/// Ranks of one batch.
struct Group<'a> {
    case: Case,
    select: Select,
    reference: Plan,
    select_reference: Plan,
    members: Vec<Member<'a>>,
    memory: PeerMemory,
    sharded: bool,
}

impl<'a> Group<'a> {
    fn new(devices: &'a [Arc<dyn Device>], mut case: Case, world: u32, random: &mut Random) -> Result<Self> {
        let Op::IndexScore(op) = case.op.clone() else { unreachable!("cases of index_score alone") };
        let select = random_selection(random, &op);
        let whole =
            op.geometry.index_heads.is_multiple_of(world) || world.is_multiple_of(op.geometry.index_heads);
        let own = whole && random.chance(50);
        let queries = if own { QuerySource::Own } else { QuerySource::Replicated };
        let collective = !own && random.chance(30);
        let transport = if collective { Transport::Collective } else { Transport::Candidates };
        let sharded = random.chance(50);
        if random.chance(40) {
            case.repeat_pages(random);
        }
        let rows = case.inputs.iter().find(|input| input.role == Role::IndexQuery).map_or(1, |q| q.shape[0]);
        let planner = &*devices[0];
        let each = world.div_ceil(devices.len() as u32);
        let items =
            case.bounds.requests().len() as u64 * u64::from(case.bounds.max_query_len() * select.lists());
        let fits = each == 1 || items * u64::from(each) <= MOST_LISTS;
        require(fits, "lists", "as many as ranks of one device have room for", "more")?;
        let single = planner.plan(&case.op, &case.bounds, &case.options)?;
        let select_single =
            planner.plan(&Op::Select(select.clone()), &case.bounds, &PlanOptions::default())?;
        let plans = (0..world)
            .map(|rank| {
                let options = IndexerOptions { queries, transport, ..IndexerOptions::new(world, rank) };
                IndexerPlan::new(planner, &op, &select, &case.bounds, &options)
            })
            .collect::<Result<Vec<_>>>()?;
        let ordinals: Vec<u32> = (0..world).map(|rank| rank % devices.len() as u32).collect();
        let memory = PeerMemory::new(&ordinals, plans[0].shared.bytes())?;
        let mut members = Vec::new();
        for (plan, &ordinal) in plans.iter().zip(&ordinals) {
            driver::enter_device(ordinal)?;
            let rank = IndexerRank::new(ordinal, plan, if collective { &[] } else { memory.addresses() })?;
            // Some ranks want the lists of their own heads alone.
            let own = plan.shared.heads_of(plan.options.rank).len() as u64;
            let some = whole && select.grouping == Grouping::PerHead && random.chance(30);
            let lists = if some { own } else { select.lists().into() };
            let of_rank = of_rank(&case, plan, sharded, lists, rows);
            let space = Plan { workspace_bytes: plan.workspace_bytes(), ..plan.score.clone() };
            let placed = (0..RUNS)
                .map(|_| Placed::new(&*devices[ordinal as usize], &space, &of_rank))
                .collect::<Result<Vec<_>>>()?;
            members.push(Member { rank, placed, stream: driver::stream()?, ordinal });
        }
        let (reference, select_reference) =
            (device::as_reference(&single), device::as_reference(&select_single));
        Ok(Self { case, select, reference, select_reference, members, memory, sharded })
    }

    fn count(&self, hits: &mut BTreeMap<String, u64>) {
        let mut hit = |what: String| *hits.entry(what).or_default() += 1;
        let (plan, s) = (self.members[0].rank.plan(), &self.select);
        hit(format!(
            "world {} {:?} queries {:?}",
            plan.options.world, plan.options.transport, plan.options.queries
        ));
        hit(format!("variant {}", plan.score.variant));
        for member in &self.members {
            hit(format!("rank's kernel {}", member.rank.plan().score.index_kernel));
        }
        hit(format!("selection {:?} {:?}", s.grouping, s.order));
        hit(format!("k {} forced {}", s.geometry.top_k, s.init_blocks + s.local_blocks));
        hit(format!("special '{}'", self.case.special));
        hit(format!("own pages alone {}", self.sharded));
    }

    /// Runs with new contents; differing lists and runs compared.
    fn compare(&mut self, name: &str, what: &str, random: &mut Random) -> Result<(u64, u64)> {
        let (mut failed, mut compared) = (0, 0);
        let mut graphs = Vec::new();
        for member in self.members.iter().filter(|_| what == "graph") {
            driver::enter_device(member.ordinal)?;
            graphs.push(Graph::capture(member.stream, || member.enqueue())?);
        }
        for round in 0..if what == "graph" { REPLAYS } else { 1 } {
            let cases: Vec<Case> = (0..RUNS).map(|_| self.case.varied(random)).collect();
            for member in &self.members {
                for (case, placed) in cases.iter().zip(&member.placed) {
                    placed.rewrite(&self.of_member(case, member))?;
                }
            }
            let start = random.below(self.members.len() as u64) as usize;
            for at in (0..self.members.len()).map(|i| (start + i) % self.members.len()) {
                let member = &self.members[at];
                if random.chance(30) {
                    std::thread::sleep(Duration::from_micros(random.below(2000)));
                }
                driver::enter_device(member.ordinal)?;
                match graphs.get(at) {
                    Some(graph) => graph.launch(member.stream)?,
                    None if self.is_collective() => {}
                    None => member.enqueue()?,
                }
            }
            let statuses = if self.is_collective() { self.gather()? } else { Vec::new() };
            let wants = cases.iter().map(|case| self.single_device(case)).collect::<Result<Vec<_>>>()?;
            for (number, member) in self.members.iter().enumerate() {
                let status = statuses.get(number).map_or_else(|| member.status(), |status| Ok(*status))?;
                for (run, ((case, want), placed)) in cases.iter().zip(&wants).zip(&member.placed).enumerate()
                {
                    let own = self.of_member(case, member);
                    let got = placed.outcome(&own, status)?;
                    let mut want = listed(want, &own, member);
                    if self.is_collective() {
                        leave_out_untouched(&mut want, &got, self.select.geometry.top_k);
                    }
                    compared += 1;
                    // The status is that of the last run; pages are looked at by the rank that holds them.
                    let bits = |s: Status| s.0 & !Status::PAGE;
                    let other = run + 1 == RUNS && bits(status) != bits(want.status);
                    let other = other.then(|| format!("status {status} want {}", want.status));
                    if let Some(difference) = want.difference(&got).or(other) {
                        failed += 1;
                        println!(
                            "{name} {what} {round} run {run} rank {number} status {status}: {difference}: {case} {:?}",
                            self.select
                        );
                    }
                }
            }
        }
        graphs.into_iter().try_for_each(Graph::free)?;
        Ok((failed, compared))
    }

    fn is_collective(&self) -> bool {
        self.members[0].rank.plan().options.transport == Transport::Collective
    }

    /// Every run in two halves, with what a collective library does between them; the statuses of the last run's first halves.
    fn gather(&self) -> Result<Vec<Status>> {
        let mut statuses = Vec::new();
        for run in 0..RUNS {
            for member in &self.members {
                driver::enter_device(member.ordinal)?;
                // SAFETY: what was placed lives until the group is freed.
                unsafe {
                    member.rank.enqueue_keys(member.stream, &member.placed[run].args, member.workspace())
                }?;
            }
            statuses = self.members.iter().map(Member::status).collect::<Result<_>>()?;
            for (number, from) in self.members.iter().enumerate() {
                let layout = from.rank.plan().collective();
                let mut keys = vec![0; layout.bytes as usize];
                from.placed[0].read(from.workspace().address + layout.send, &mut keys)?;
                for to in &self.members {
                    let place = to.rank.plan().collective().receive + number as u64 * layout.bytes;
                    to.placed[0].write(to.workspace().address + place, &keys)?;
                }
            }
            for member in &self.members {
                driver::enter_device(member.ordinal)?;
                // SAFETY: as above; the keys are there.
                unsafe {
                    member.rank.enqueue_merge(member.stream, &member.placed[run].args, member.workspace())
                }?;
            }
            self.members.iter().try_for_each(|member| member.status().map(drop))?;
        }
        Ok(statuses)
    }

    fn of_member(&self, case: &Case, member: &Member<'_>) -> Case {
        let lists = member.placed[0].args.tensor(Role::BlockIndices);
        let extent = |axis| lists.map_or(0, |lists| lists.extent(axis));
        of_rank(case, member.rank.plan(), self.sharded, extent(1), extent(0))
    }

    /// Scores and selection of the reference under the plans of one device.
    fn single_device(&self, case: &Case) -> Result<Outcome> {
        let reference = msa_ref::device();
        let scored = device::run(&*reference, &self.reference, case)?;
        let mut selected = case.clone();
        selected.op = Op::Select(self.select.clone());
        let lengths = [Role::QueryOffsets, Role::KvLengths, Role::Positions];
        selected.inputs.retain(|input| lengths.contains(&input.role));
        let scores = case.outputs[0].clone();
        let (rows, k) = (scores.shape[0], u64::from(self.select.geometry.top_k));
        selected.inputs.push(Input { bytes: scored.outputs[0].2.clone(), ..scores });
        selected.outputs = vec![lists_of(rows, self.select.lists().into(), k)];
        let lists = device::run(&*reference, &self.select_reference, &selected)?;
        Ok(Outcome { status: lists.status.with(scored.status), ..lists })
    }

    fn free(self) -> Result<()> {
        for member in self.members {
            member.placed.into_iter().try_for_each(Placed::free)?;
            driver::enter_device(member.ordinal)?;
            driver::destroy(member.stream)?;
        }
        self.memory.free()
    }
}

/// The lists that a member wants of those of one device.
fn listed(want: &Outcome, own: &Case, member: &Member<'_>) -> Outcome {
    let plan = member.rank.plan();
    let (role, dtype, bytes) = &want.outputs[0];
    let list = 4 * plan.select.geometry.top_k as usize;
    let (all, some) = (plan.shared.lists as usize, own.outputs[0].shape[1] as usize);
    let first = if some == all { 0 } else { plan.shared.heads_of(plan.options.rank).start as usize };
    let rows = bytes.chunks(all * list);
    let bytes = rows.flat_map(|row| row[first * list..(first + some) * list].to_vec()).collect();
    Outcome { outputs: vec![(*role, *dtype, bytes)], pool: Vec::new(), status: want.status }
}

/// Lists of rows that no request has are nobody's around a collective: the merge has no offsets and writes every row of its tensor.
fn leave_out_untouched(want: &mut Outcome, got: &Outcome, k: u32) {
    let list = 4 * k as usize;
    let (wanted, gotten) = (&mut want.outputs[0].2, &got.outputs[0].2);
    for (want, got) in wanted.chunks_mut(list).zip(gotten.chunks(list)) {
        if want.iter().all(|&byte| byte == POISON) {
            want.copy_from_slice(got);
        }
    }
}

fn lists_of(rows: u64, lists: u64, k: u64) -> Input {
    let bytes = vec![POISON; (rows * lists * k * 4) as usize];
    Input { role: Role::BlockIndices, dtype: DType::I32, shape: vec![rows, lists, k], bytes, pad: 0 }
}

/// What a rank is given of a case: the queries of its own heads if it is to gather the others, its own pages if they are not replicated.
fn of_rank(case: &Case, plan: &IndexerPlan, sharded: bool, lists: u64, rows: u64) -> Case {
    let mut own = case.clone();
    own.outputs = vec![lists_of(rows, lists, plan.select.geometry.top_k.into())];
    let heads = plan.shared.heads_of(plan.options.rank);
    for input in &mut own.inputs {
        if input.role == Role::IndexQuery && plan.options.queries == QuerySource::Own {
            let head = (input.shape[2] * input.dtype.bytes()) as usize;
            let row = head * input.shape[1] as usize;
            let range = heads.start as usize * head..heads.end as usize * head;
            input.bytes = input.bytes.chunks(row).flat_map(|row| row[range.clone()].to_vec()).collect();
            input.shape[1] = heads.len() as u64;
        }
    }
    if sharded {
        shard(&mut own, plan);
    }
    own
}

/// Pages of other ranks become poison, and their entries of the tables name no page.
fn shard(own: &mut Case, plan: &IndexerPlan) {
    let (world, rank) = (plan.options.world as usize, plan.options.rank as usize);
    let mut kept = vec![false; own.pages as usize];
    for table in own.inputs.iter_mut().filter(|input| input.role == Role::BlockTable) {
        let width = table.shape[1] as usize;
        for (at, id) in table.bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            if at % width % world != rank {
                *id = i32::MAX.to_le_bytes();
            } else if let Some(kept) = kept.get_mut(i32::from_le_bytes(*id) as usize) {
                *kept = true;
            }
        }
    }
    let Ok(cache) = own.index_cache(4096) else { return };
    let others = kept.iter().enumerate().filter(|(_, kept)| !**kept);
    for page in others.map(|(number, _)| number as u64) {
        for component in cache.components(own.op.geometry()) {
            let (view, bytes) = (component.view, component.row_bytes as usize);
            for token in 0..u64::from(PAGE) {
                let at = (view.address - 4096 + page * view.page_stride + token * view.token_stride) as usize;
                own.pool[at..at + bytes].fill(0xff);
            }
        }
    }
}

fn random_selection(random: &mut Random, op: &IndexScore) -> Select {
    let k = op.geometry.top_k;
    let local = 1 + random.below(3) as u32;
    let init = random.pick(&[0, 0, 1, 4]).min(k - 1);
    Select {
        geometry: op.geometry,
        grouping: random.pick(&[Grouping::PerHead, Grouping::PerHead, Grouping::Reduced]),
        init_blocks: init,
        local_blocks: local.min(k - init),
        forced_priority: random.pick(&[ForcedPriority::Local, ForcedPriority::Init]),
        nan_rule: random.pick(&[NanRule::Lowest, NanRule::Lowest, NanRule::Highest]),
        order: random.pick(&[SelectOrder::Ascending, SelectOrder::Ascending, SelectOrder::ScoreThenOwn]),
        ..Select::default()
    }
}

/// The last rank stays away: every other one must end with a status that names it. 0 or 1 failures.
fn absent(devices: &[Arc<dyn Device>], world: u32) -> Result<u64> {
    let mut random = Random::new(u64::from(world));
    let mut group = loop {
        let case = Case::index(&mut random, Geometry::M3);
        if !case.special.is_empty() || case.lengths.iter().all(|(rows, _)| *rows == 0) {
            continue;
        }
        match Group::new(devices, case, world, &mut random) {
            Ok(group) if !group.is_collective() => break group,
            Ok(group) => group.free()?,
            Err(_) => {}
        }
    };
    let mut failed = 0;
    let spins = 1 << 20;
    for number in 0..group.members.len() - 1 {
        let plan = group.members[number].rank.plan().clone();
        let plan = IndexerPlan { options: IndexerOptions { spins, ..plan.options }, ..plan };
        let ordinal = group.members[number].ordinal;
        group.members[number].rank = IndexerRank::new(ordinal, &plan, group.memory.addresses())?;
    }
    let (_, present) = group.members.split_last().map_or((None, &[][..]), |(last, rest)| (Some(last), rest));
    let start = Instant::now();
    for member in present {
        driver::enter_device(member.ordinal)?;
        let placed = &member.placed[0];
        // SAFETY: what was placed lives until the group is freed.
        unsafe { member.rank.enqueue(member.stream, &placed.args, placed.workspace) }?;
    }
    let want = Status(Status::RANK | 1 << (16 + world - 1));
    for (number, member) in present.iter().enumerate() {
        let status = member.status()?;
        if status != want {
            failed = 1;
            println!("rank {number} of {world}, the last absent: status {status}, want {want}");
        }
    }
    // A gather and an exchange wait one after the other.
    let waits = if present[0].rank.plan().options.queries == QuerySource::Own { 2.0 } else { 1.0 };
    let poll = start.elapsed().as_secs_f64() * 1e9 / f64::from(spins) / waits;
    println!("an absent rank is given up after {spins} polls of at most {poll:.0} ns");
    group.free()?;
    Ok(failed)
}
