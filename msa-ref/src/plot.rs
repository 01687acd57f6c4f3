//! Draws which blocks each query selected: query rows against block ids, one panel for each index head.

use std::path::Path;

mod cells;
mod layout;
mod picture;

use crate::atomic_file::write_atomically;
use cells::Cells;
use layout::Layout;

/// A selection to draw, borrowed from whoever made it.
#[derive(Clone, Copy, Debug)]
pub struct SelectionMap<'a> {
    /// Name of the case, for the title.
    pub title: &'a str,
    /// Position of each query row in its sequence.
    pub queries: &'a [i32],
    /// Index heads, at least one.
    pub heads: usize,
    /// Blocks of the longest sequence, at least one.
    pub blocks: usize,
    /// Tokens of a block; a row's own block is `position / block_size`.
    pub block_size: usize,
    /// Block ids `[queries][heads][k]`; -1 for an empty slot.
    pub lists: &'a [i32],
}

/// Why a map was not drawn. No file is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The fields of the map contradict each other.
    #[error("selection map: {field}: want {want}, got {got}")]
    Map {
        /// The field at fault.
        field: &'static str,
        /// What it should be.
        want: String,
        /// What it is.
        got: String,
    },
    /// The file name does not say which format to write.
    #[error("plot file: want a name that ends in .svg or .png, got {got}")]
    Extension {
        /// The path as given.
        got: String,
    },
    /// The file could not be written.
    #[error("cannot write the plot: {0}")]
    Write(#[from] std::io::Error),
    /// The drawing library refused.
    #[error("cannot draw the plot: {0}")]
    Draw(String),
}

/// Draws the map to `path`, as SVG or PNG by its extension. The picture is at most 1200 x 800 pixels; where a map is
/// larger, a pixel's shade shows the share of its (query, block) pairs that are selected, in eight steps on a square-root
/// scale.
///
/// # Errors
/// [`PlotError`]; whatever stood at `path` is then still there.
pub fn draw(map: &SelectionMap<'_>, path: &Path) -> Result<(), PlotError> {
    let format = Format::of(path)?;
    map.check()?;
    let layout = Layout::new(map, format.finest_grid());
    let shown = 0..layout.panels.len();
    let cells: Vec<Cells> = shown.map(|head| Cells::count(map, head, layout.grid)).collect();
    write_atomically(path, |temporary| match format {
        Format::Svg => {
            let text = picture::svg(map, &layout, &cells)?;
            Ok(std::fs::write(temporary, text)?)
        }
        Format::Png => picture::png(map, &layout, &cells, temporary),
    })
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Svg,
    Png,
}

impl Format {
    fn of(path: &Path) -> Result<Self, PlotError> {
        let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_lowercase);
        match extension.as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            _ => Err(PlotError::Extension { got: path.display().to_string() }),
        }
    }

    /// Most cells of a panel, `(columns, rows)`. A PNG can use every pixel; every run of cells of an SVG is an
    /// element of its text, and four panels of this grid stay below 10 MB.
    fn finest_grid(self) -> (usize, usize) {
        match self {
            Self::Svg => (256, 96),
            Self::Png => (usize::MAX, usize::MAX),
        }
    }
}

impl SelectionMap<'_> {
    /// Slots of a list.
    fn topk(&self) -> usize {
        self.lists.len() / (self.queries.len() * self.heads).max(1)
    }

    /// The lists of query row `query` for `head`; empty outside the map.
    fn list(&self, query: usize, head: usize) -> &[i32] {
        let first = (query * self.heads + head) * self.topk();
        self.lists.get(first..first + self.topk()).unwrap_or_default()
    }

    /// The own block of a query row.
    fn own(&self, query: usize) -> usize {
        let position = self.queries.get(query).copied().unwrap_or_default();
        usize::try_from(position).unwrap_or_default() / self.block_size.max(1)
    }

    fn check(&self) -> Result<(), PlotError> {
        let refuse = |field, want: String, got: String| Err(PlotError::Map { field, want, got });
        let sizes = [("queries", self.queries.len()), ("heads", self.heads), ("blocks", self.blocks)];
        for (field, size) in sizes.into_iter().chain([("block_size", self.block_size)]) {
            if size == 0 {
                return refuse(field, "at least 1".to_owned(), "0".to_owned());
            }
        }
        if self.blocks > MOST_BLOCKS {
            return refuse("blocks", format!("at most {MOST_BLOCKS}"), self.blocks.to_string());
        }
        let lists = self.queries.len().checked_mul(self.heads);
        if lists.is_none_or(|lists| self.lists.is_empty() || !self.lists.len().is_multiple_of(lists)) {
            let want = format!("a multiple of {} x {} ids", self.queries.len(), self.heads);
            return refuse("lists", want, self.lists.len().to_string());
        }
        let inside = |id: &i32| *id == -1 || usize::try_from(*id).is_ok_and(|id| id < self.blocks);
        if let Some(id) = self.lists.iter().find(|id| !inside(id)) {
            return refuse("lists", format!("ids from -1 to {}", self.blocks - 1), id.to_string());
        }
        if let Some(position) = self.queries.iter().find(|position| **position < 0) {
            return refuse("queries", "positions from 0".to_owned(), position.to_string());
        }
        Ok(())
    }
}

/// Block ids are i32; the products of a block and a pixel then fit 64 bits.
const MOST_BLOCKS: usize = 1 << 31;

#[cfg(test)]
mod tests;
