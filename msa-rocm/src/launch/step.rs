//! `step`: append, then scores, selection and attention of every window of rows.

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::op;

use super::{KernelLaunch, Run, decode, unsupported};

impl Run<'_> {
    pub(super) fn step(&self, op: &op::Step) -> Result<Vec<KernelLaunch>> {
        if op.prefill {
            return Err(unsupported("sparse_prefill"));
        }
        let mut all = if op.appends { self.append(&op.append)? } else { Vec::new() };
        let attention = decode::kernel_name(&op.attention, self.arch());
        for window in self.windows(self.tensor(Role::Query)?.extent(0)) {
            let scores = self.window_scores(&op.index, window)?;
            all.push(self.score_rows(&op.index, scores, window)?);
            all.push(self.select_rows(&op.select, scores, window)?);
            all.extend(self.decode_rows(&op.attention, &attention, window)?);
        }
        Ok(all)
    }
}
