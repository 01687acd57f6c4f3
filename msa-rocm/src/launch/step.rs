//! `step`: append, then scores, selection and attention of every window of rows.

use msa_core::args::Role;
use msa_core::error::Result;
use msa_core::op;

use super::{Run, Sink, decode, unsupported};

impl Run<'_> {
    pub(super) fn step(&self, op: &op::Step, to: &mut Sink<'_>) -> Result<()> {
        if op.prefill {
            return Err(unsupported("sparse_prefill"));
        }
        if op.appends {
            self.append(&op.append, to)?;
        }
        let attention = decode::kernel_name(&op.attention, self.arch());
        for window in self.windows(self.tensor(Role::Query)?.extent(0)) {
            let scores = self.window_scores(&op.index, window)?;
            to(self.score_rows(&op.index, scores, window)?)?;
            to(self.select_rows(&op.select, scores, window)?)?;
            self.decode_rows(&op.attention, attention, window, to)?;
        }
        Ok(())
    }
}
