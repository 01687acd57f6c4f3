//! Workspace layout: what each stage keeps, how many rows of it fit a cap, and where it stands.
//!
//! Sizes are summed in 128 bits: no descriptor and no lengths that pass validation can overflow them, and what is
//! within the cap fits 64 bits.

use super::{RowWindow, STATUS_BYTES, WORKSPACE_ALIGNMENT, WorkspaceRegion};
use crate::error::{Error, Result};

/// Most windows of a plan: each is several launches, and a plan is kept as text.
pub(super) const MAX_WINDOWS: u64 = 1 << 16;

/// Window lengths are multiples of this where more than this fit: a score tile of the prefill kernels has 64 rows.
const WINDOW_STEP: u64 = 64;

/// Bytes of a region: some once, some for every row of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) name: &'static str,
    pub(super) fixed: u128,
    pub(super) per_row: u128,
}

impl Need {
    pub(super) fn fixed(name: &'static str, bytes: u128) -> Self {
        Self { name, fixed: bytes, per_row: 0 }
    }

    pub(super) fn per_row(name: &'static str, bytes: u128) -> Self {
        Self { name, fixed: 0, per_row: bytes }
    }

    pub(super) fn bytes(&self, rows: u64) -> u128 {
        self.fixed + self.per_row * u128::from(rows)
    }
}

/// The product of extents, in 128 bits.
pub(super) fn product(factors: &[u64]) -> u128 {
    factors.iter().fold(1, |product: u128, &f| product.saturating_mul(f.into()))
}

/// Everything that a workspace holds behind its status words.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch {
    needs: Vec<Need>,
}

/// Regions and their total.
pub(super) type Regions = (Vec<WorkspaceRegion>, u64);

impl Scratch {
    pub(super) fn new(needs: impl IntoIterator<Item = Need>) -> Self {
        Self { needs: needs.into_iter().filter(|n| n.fixed > 0 || n.per_row > 0).collect() }
    }

    /// Bytes with windows of `rows` rows.
    pub(super) fn bytes(&self, rows: u64) -> u128 {
        self.needs.iter().fold(STATUS_BYTES.into(), |at: u128, n| at.saturating_add(aligned(n.bytes(rows))))
    }

    /// The most rows of a window, of `rows` in all, that fit `cap` bytes.
    pub(super) fn window_rows(&self, rows: u64, cap: u64) -> Result<u64> {
        let least = least_rows(rows);
        check_cap(self.bytes(least), cap)?;
        let (mut fits, mut above) = (least, rows.max(least) + 1);
        while above - fits > 1 {
            let middle = fits + (above - fits) / 2;
            if self.bytes(middle) <= cap.into() { fits = middle } else { above = middle }
        }
        let stepped = fits - fits % WINDOW_STEP;
        Ok(if fits < rows && stepped >= least { stepped } else { fits })
    }

    /// Regions for windows of `rows` rows, status first.
    pub(super) fn regions(&self, rows: u64, cap: u64) -> Result<Regions> {
        check_cap(self.bytes(rows), cap)?;
        let mut regions = vec![WorkspaceRegion { name: "status".to_owned(), offset: 0, bytes: STATUS_BYTES }];
        let mut at = u128::from(STATUS_BYTES);
        for need in &self.needs {
            let (offset, bytes) = (narrow(at)?, narrow(need.bytes(rows))?);
            regions.push(WorkspaceRegion { name: need.name.to_owned(), offset, bytes });
            at += aligned(need.bytes(rows));
        }
        Ok((regions, narrow(at)?))
    }
}

/// The least rows that a window must hold so that there are not too many windows.
pub(super) fn least_rows(rows: u64) -> u64 {
    rows.div_ceil(MAX_WINDOWS).max(1)
}

/// The caller's error if `bytes` are more than the cap: they are the least that work.
pub(super) fn check_cap(bytes: u128, cap: u64) -> Result<()> {
    if bytes <= cap.into() {
        return Ok(());
    }
    Err(Error::invalid("options.workspace_cap", format!("at least {bytes} bytes"), cap))
}

/// Windows of `each` rows, in order.
pub(super) fn row_windows(rows: u64, each: u64) -> Result<Vec<RowWindow>> {
    let each = each.max(1);
    (0..rows.div_ceil(each))
        .map(|i| {
            let (begin, end) = (i * each, ((i + 1) * each).min(rows));
            Ok(RowWindow { row_begin: row_number(begin)?, row_end: row_number(end)? })
        })
        .collect()
}

fn row_number(row: u64) -> Result<u32> {
    u32::try_from(row).map_err(|_| Error::invalid("lengths.query_len", "row numbers of 32 bits", row))
}

pub(super) fn aligned(bytes: u128) -> u128 {
    bytes.saturating_add(u128::from(WORKSPACE_ALIGNMENT) - 1) & !(u128::from(WORKSPACE_ALIGNMENT) - 1)
}

fn narrow(bytes: u128) -> Result<u64> {
    u64::try_from(bytes).map_err(|_| Error::invalid("options.workspace_cap", "below 2^64 bytes", bytes))
}
