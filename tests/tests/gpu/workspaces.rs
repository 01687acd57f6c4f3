//! L05 of `tests/field.toml` on any device: one workspace for runs of several operations, with rubbish in it before each.

use std::sync::Arc;

use msa_core::args::Args;
use msa_core::backend::{Device, Prepared, Span, Stream};
use msa_tests::memory::Placement;

use crate::pair::Pair;

/// One operation with splits, one without a workspace of its own, one that writes caches, one that ranks.
pub(crate) const LINES: [&str; 4] = [
    "sparse_decode(hq=4,hkv=1,hi=1,q=Q8,kv=KV8,len=[1x300],splits=3)",
    "merge(hq=4,hkv=1,hi=1,len=[2x5])",
    "append(hq=4,hkv=1,hi=1,kv=nvfp4,ik=nvfp4,len=[2x20])",
    "select(hq=4,hkv=1,hi=1,len=[2x3000])",
];

/// Runs the cases of [`LINES`] in turn, `calls` times in all; before every tenth call `fail` makes one that fails, which leaves
/// nothing that the next one trips over.
pub(crate) fn in_turn(
    own: &Arc<dyn Device>,
    pairs: &[Pair; 4],
    calls: usize,
    fail: impl Fn(&dyn Prepared, &Args, Span),
) {
    let wants = pairs.each_ref().map(Pair::run);
    let bytes = pairs.iter().map(|pair| pair.trial.plan.workspace_bytes).max().unwrap();
    let workspace = Span { address: own.memory().allocate(bytes).unwrap(), bytes };
    let prepared = pairs.each_ref().map(|pair| own.prepare(&pair.trial.plan).unwrap());
    let placed = pairs
        .each_ref()
        .map(|pair| Placement::new(own, &pair.trial.inputs, 0, u64::from(pair.trial.case.rows())).unwrap());
    for call in 0..calls {
        let which = call * 7 % 4;
        let (prepared, args) = (&prepared[which], &placed[which].args);
        placed[which].reset(call as u8).unwrap();
        let junk: Vec<u8> = (0..bytes).map(|i| (i as usize * 31 + call) as u8).collect();
        own.memory().write(workspace.address, &junk).unwrap();
        if call % 10 == 5 {
            fail(&**prepared, args, workspace);
        }
        // SAFETY: everything was placed on this device and stays.
        unsafe { prepared.enqueue(Stream(0), args, workspace) }.unwrap();
        // SAFETY: the workspace of the run above.
        assert!(unsafe { prepared.status(Stream(0), workspace) }.unwrap().is_clean());
        for (role, tensor) in args.tensors() {
            let row = wants[which].row(*role, 0);
            let mut got = vec![0; row.len()];
            own.memory().read(tensor.address, &mut got).unwrap();
            assert!(got == row, "{own:?} call {call}: {}", role.name());
        }
    }
    own.memory().free(workspace.address).unwrap();
}
