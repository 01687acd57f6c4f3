//! Where everything stands, in whole pixels.

use super::SelectionMap;

/// The picture: title above, panels in rows, legend below.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Width and height of the picture.
    pub(super) size: (u32, u32),
    /// Columns and rows of cells in every panel.
    pub(super) grid: (usize, usize),
    /// Left, top, right and bottom edge of each panel's cells, one panel for each head shown.
    pub(super) panels: Vec<Rect>,
    /// Top of the legend.
    pub(super) legend_top: i32,
}

/// Left, top, right, bottom; right and bottom are the first pixels outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) left: i32,
    pub(super) top: i32,
    pub(super) right: i32,
    pub(super) bottom: i32,
}

impl Layout {
    /// Fits the panels of `map` into the largest picture, or a smaller one if the map is small.
    pub(super) fn new(map: &SelectionMap<'_>, finest_grid: (usize, usize)) -> Self {
        let heads = map.heads.min(MOST_PANELS);
        let across = (1..=heads).find(|across| across * across >= heads).unwrap_or(1);
        let down = heads.div_ceil(across);
        let room_x = (LARGEST.0 - 2 * MARGIN) / across - PANEL_LEFT - PANEL_RIGHT;
        let room_y = (LARGEST.1 - 2 * MARGIN - TITLE - LEGEND) / down - PANEL_TOP - PANEL_BOTTOM;
        let columns = map.blocks.min(room_x).min(finest_grid.0);
        let rows = map.queries.len().min(room_y).min(finest_grid.1);
        let plot = (extent(columns, room_x, SMALLEST_PLOT.0), extent(rows, room_y, SMALLEST_PLOT.1));
        let step = (PANEL_LEFT + plot.0 + PANEL_RIGHT, PANEL_TOP + plot.1 + PANEL_BOTTOM);
        let panel = |head: usize| {
            let left = MARGIN + (head % across) * step.0 + PANEL_LEFT;
            let top = MARGIN + TITLE + (head / across) * step.1 + PANEL_TOP;
            Rect {
                left: pixel(left),
                top: pixel(top),
                right: pixel(left + plot.0),
                bottom: pixel(top + plot.1),
            }
        };
        let legend_top = MARGIN + TITLE + down * step.1;
        let width = (2 * MARGIN + across * step.0).max(SMALLEST_WIDTH);
        Self {
            size: (pixel(width).unsigned_abs(), pixel(legend_top + LEGEND + MARGIN).unsigned_abs()),
            grid: (columns, rows),
            panels: (0..heads).map(panel).collect(),
            legend_top: pixel(legend_top),
        }
    }
}

/// Pixels along an axis of `cells`: the same whole number for each unless that wastes a fifth of the room, neither
/// huge nor too small to label.
fn extent(cells: usize, room: usize, smallest: usize) -> usize {
    let cells = cells.max(1);
    let even = (room / cells).clamp(1, LARGEST_CELL) * cells;
    let wasteful = even * 5 < room * 4 && room / cells < LARGEST_CELL;
    let stretched = smallest.div_ceil(cells) * cells;
    if wasteful { room } else { even.max(stretched).min(room) }
}

fn pixel(at: usize) -> i32 {
    i32::try_from(at).unwrap_or(i32::MAX)
}

/// Largest picture in pixels: it fits a full-HD screen beside its window frame.
pub(super) const LARGEST: (usize, usize) = (1200, 800);
/// Panels that are still legible; a map with more heads shows its first ones and says so.
pub(super) const MOST_PANELS: usize = 16;

const MARGIN: usize = 12;
const TITLE: usize = 52;
const LEGEND: usize = 36;
const PANEL_LEFT: usize = 88;
const PANEL_RIGHT: usize = 16;
const PANEL_TOP: usize = 24;
const PANEL_BOTTOM: usize = 50;
/// Room for the title and the legend.
const SMALLEST_WIDTH: usize = 640;
/// Room for two tick labels along each axis.
const SMALLEST_PLOT: (usize, usize) = (160, 48);
const LARGEST_CELL: usize = 24;
