use super::Derived;
use super::given::Given;
use super::workspace::{Need, row_windows};
use crate::error::Result;

/// Bytes that a row needs in the table that finds the last token of each slot: open addressing with two to four
/// entries a row (the next power of two of twice the rows), each an i64 slot and the u32 row, padded to 16 bytes.
pub(super) const WINNER_ROW_BYTES: u64 = 4 * 16;

/// Rows in windows; a later window overwrites an earlier one, so that the last token of a slot wins across them too.
pub(super) fn derive(given: &Given) -> Result<Derived> {
    let scratch = given.scratch([need(given)]);
    let each = scratch.window_rows(given.rows(), given.options.cap())?;
    let (workspace, workspace_bytes) = scratch.regions(each, given.options.cap())?;
    let windows = row_windows(given.rows(), each)?;
    Ok(Derived { batch_invariant: true, windows, workspace, workspace_bytes, ..Derived::default() })
}

pub(super) fn need(_given: &Given) -> Need {
    Need::per_row("slot_winners", WINNER_ROW_BYTES.into())
}
