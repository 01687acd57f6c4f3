use super::Derived;
use super::given::Given;
use super::workspace::{Scratch, row_windows};
use crate::error::Result;

/// Merge and select_merge: every row by itself, from arguments to outputs, with nothing kept in between.
pub(super) fn derive(given: &Given) -> Result<Derived> {
    let (workspace, workspace_bytes) = Scratch::default().regions(0, given.options.cap())?;
    let windows = row_windows(given.rows(), given.rows())?;
    Ok(Derived { batch_invariant: true, windows, workspace, workspace_bytes, ..Derived::default() })
}
