//! Runs of a group one after the other with nothing between them: no wait of the host, and no clearing of the status word,
//! where simulated GPUs wait for each other. Only the exchanges keep a fast rank from writing what a slow one still reads.

use std::ffi::{CString, c_void};

use msa_core::args::{Args, Role};
use msa_core::tensor::Tensor;
use msa_emu::gfx9::Options;
use msa_rocm::indexer::{QuerySource, Transport};
use msa_rocm::launch::KernelLaunch;
use msa_tests::inputs::Inputs;
use msa_tests::rocm_emu::{self, ARCHITECTURES};

use crate::pair::ready;
use crate::ranks::{Group, Member, Ranks, formats, of_rank};

const ROUNDS: usize = 4;

/// Polls that a rank has for one that is late on purpose.
const SPINS: u32 = 1 << 24;

/// Orders of GPUs and waves.
const SEEDS: u64 = 3;

fn ok(code: i32) {
    assert_eq!(code, 0);
}

/// Enqueues a launch on the default stream of a rank's device.
fn launch(ranks: &Ranks, device: usize, launch: &KernelLaunch) {
    let folders = rocm_emu::folders();
    let folder = folders.iter().find(|folder| folder.join("manifest.toml").exists()).unwrap();
    let arch = launch.variant.split('.').nth(2).unwrap();
    let image = std::fs::read(folder.join(format!("{}.{arch}.hsaco", launch.source))).unwrap();
    let symbol = CString::new(launch.variant.replace('.', "_")).unwrap();
    let table = ranks.simulated.hip().table();
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut bytes = launch.arguments.len();
    let (pointer, size, end) = (1_usize, 2_usize, 3_usize);
    let mut extra: [*mut c_void; 5] = [
        pointer as *mut c_void,
        launch.arguments.as_ptr().cast_mut().cast(),
        size as *mut c_void,
        std::ptr::from_mut(&mut bytes).cast(),
        end as *mut c_void,
    ];
    let ([x, y, z], threads, none) = (launch.grid, launch.threads, std::ptr::null_mut());
    // SAFETY: no pointers are passed.
    ok(unsafe { (table.hipSetDevice)(device as i32) });
    // SAFETY: the image is a whole code object.
    ok(unsafe { (table.hipModuleLoadData)(&mut module, image.as_ptr().cast()) });
    // SAFETY: the module is loaded, and the name ends with a zero.
    ok(unsafe { (table.hipModuleGetFunction)(&mut function, module, symbol.as_ptr()) });
    let parameters = std::ptr::null_mut();
    // SAFETY: the arguments are copied, and name memory that stays.
    ok(unsafe {
        (table.hipModuleLaunchKernel)(
            function,
            x,
            y,
            z,
            threads,
            1,
            1,
            0,
            none,
            parameters,
            extra.as_mut_ptr(),
        )
    });
}

/// The inputs of a round: other queries.
fn inputs_of(ranks: &Ranks, round: usize) -> Inputs {
    let mut inputs = ranks.inputs.clone();
    let query = inputs.tensors.iter_mut().find(|tensor| tensor.role == Role::IndexQuery).unwrap();
    query.bytes.as_mut().unwrap().rotate_left(4 * round);
    inputs
}

/// A rank's arguments with queries and lists of their own.
fn args_of(member: &Member, inputs: &Inputs) -> Args {
    let place = |role: Role, bytes: &[u8]| {
        let tensor = member.args.tensor(role).unwrap();
        let address = member.device.memory().allocate(bytes.len() as u64).unwrap();
        member.device.memory().write(address, bytes).unwrap();
        Tensor::contiguous(address, tensor.dtype, tensor.shape()).unwrap()
    };
    let query = inputs.tensors.iter().find(|tensor| tensor.role == Role::IndexQuery).unwrap();
    let lists = member.args.tensor(Role::BlockIndices).unwrap();
    let bytes = lists.shape().iter().product::<u64>() as usize * 4;
    let query = place(Role::IndexQuery, query.bytes.as_ref().unwrap());
    let lists = place(Role::BlockIndices, &vec![0xcd; bytes]);
    member.args.clone().with(Role::IndexQuery, query).with(Role::BlockIndices, lists)
}

/// Launches of a run of a rank.
fn launches(member: &Member, args: &Args) -> Vec<KernelLaunch> {
    member.rank.launches(args, member.workspace).unwrap()
}

/// Every run's lists are those of one device, while one rank is late with the last launch of a run.
fn check(group: &Group, seed: u64) {
    let last = {
        let ranks = group.start();
        launches(&ranks.members[0], &ranks.members[0].args).len() - 1
    };
    let laggard = Some((seed as usize % group.world as usize, last));
    let group = Group { options: Options { seed, laggard, ..group.options }, ..group.clone() };
    let mut ranks = group.start();
    let inputs: Vec<Inputs> = (0..ROUNDS).map(|round| inputs_of(&ranks, round)).collect();
    let args: Vec<Vec<Args>> = ranks
        .members
        .iter()
        .map(|member| {
            let own = |inputs: &Inputs| args_of(member, &of_rank(inputs, member.rank.plan(), &group));
            inputs.iter().map(own).collect()
        })
        .collect();
    for member in &ranks.members {
        member.device.memory().write(member.workspace.address, &[0; 4]).unwrap();
    }
    for (number, member) in ranks.members.iter().enumerate() {
        for args in &args[number] {
            launches(member, args).iter().for_each(|of| launch(&ranks, number, of));
        }
    }
    for (round, inputs) in inputs.iter().enumerate() {
        for (member, args) in ranks.members.iter_mut().zip(&args) {
            member.args = args[round].clone();
        }
        ranks.assert_equal(inputs, &format!("round {round}, seed {seed} of {group:?}"));
    }
}

#[test]
fn a_rank_that_is_a_run_ahead_changes_nothing_of_the_run_before() {
    if !ready() {
        return;
    }
    for (number, (transport, queries)) in [
        (Transport::Candidates, QuerySource::Replicated),
        (Transport::Candidates, QuerySource::Own),
        (Transport::Scores, QuerySource::Replicated),
        (Transport::Scores, QuerySource::Own),
    ]
    .into_iter()
    .enumerate()
    {
        let arch = ARCHITECTURES[number % 2];
        let line = format!("index_score(hq=8,hkv=2,hi=2,k=4,len=[2x3000],{})", formats(arch)[1]);
        let group = Group { transport, queries, spins: SPINS, ..Group::new(arch, 2, &line) };
        (1..=SEEDS).for_each(|seed| check(&group, seed));
    }
}
