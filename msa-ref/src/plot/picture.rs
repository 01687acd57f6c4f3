//! The drawing itself, the same for both formats.

use std::path::Path;
use std::sync::LazyLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontTransform, register_font};

use super::cells::{Cell, Cells, SHADES, share};
use super::layout::{Layout, Rect};
use super::{PlotError, SelectionMap};

/// The picture as SVG text.
pub(super) fn svg(map: &SelectionMap<'_>, layout: &Layout, cells: &[Cells]) -> Result<String, PlotError> {
    let mut text = String::new();
    paint(map, layout, cells, SVGBackend::with_string(&mut text, layout.size))?;
    Ok(text)
}

/// The picture as a PNG file at `path`, whose name ends in `.png`.
pub(super) fn png(
    map: &SelectionMap<'_>,
    layout: &Layout,
    cells: &[Cells],
    path: &Path,
) -> Result<(), PlotError> {
    paint(map, layout, cells, BitMapBackend::new(path, layout.size))
}

type Area<B> = DrawingArea<B, Shift>;

fn paint<B: DrawingBackend>(
    map: &SelectionMap<'_>,
    layout: &Layout,
    cells: &[Cells],
    backend: B,
) -> Result<(), PlotError> {
    if !*FONT {
        return Err(PlotError::Draw("the built-in font cannot be read".to_owned()));
    }
    let area = backend.into_drawing_area();
    area.fill(&WHITE).map_err(drawing)?;
    paint_title(map, layout, &area)?;
    for (head, (panel, cells)) in layout.panels.iter().zip(cells).enumerate() {
        paint_cells(*panel, cells, layout.grid, &area)?;
        paint_frame(*panel, &format!("index head {head}"), &area)?;
        paint_block_axis(*panel, map, &area)?;
        paint_query_axis(*panel, map, &area)?;
    }
    paint_legend(map, layout, &area)?;
    area.present().map_err(drawing)
}

fn paint_title<B: DrawingBackend>(
    map: &SelectionMap<'_>,
    layout: &Layout,
    area: &Area<B>,
) -> Result<(), PlotError> {
    // A title from a file's metadata may be anything; what is cut here would run out of the picture.
    let title: String = map.title.chars().filter(|c| !c.is_control()).take(LONGEST_TITLE).collect();
    write(area, &format!("Selected blocks: {title}"), (14, 12), TITLE_SIZE, (HPos::Left, VPos::Top))?;
    let shown = if layout.panels.len() < map.heads {
        format!(" (first {} shown)", layout.panels.len())
    } else {
        String::new()
    };
    let facts = format!(
        "{}, {} of {} tokens, {}{shown}, top-{}",
        counted(map.queries.len(), "query", "queries"),
        counted(map.blocks, "block", "blocks"),
        map.block_size,
        counted(map.heads, "index head", "index heads"),
        map.topk()
    );
    write(area, &facts, (14, 38), TEXT_SIZE, (HPos::Left, VPos::Top))
}

fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Runs of equal cells in a row become one rectangle.
fn paint_cells<B: DrawingBackend>(
    panel: Rect,
    cells: &Cells,
    grid: (usize, usize),
    area: &Area<B>,
) -> Result<(), PlotError> {
    let (width, height) = (panel.right - panel.left, panel.bottom - panel.top);
    for (row, line) in cells.rows().enumerate() {
        let down = share(row, grid.1, span(height));
        let mut column = 0;
        for run in line.chunk_by(|a, b| a == b) {
            let begin = share(column, grid.0, span(width)).start;
            column += run.len();
            let end = share(column - 1, grid.0, span(width)).end;
            let Some(color) = run.first().copied().and_then(color_of) else { continue };
            let corners = [
                (panel.left + offset(begin), panel.top + offset(down.start)),
                (panel.left + offset(end), panel.top + offset(down.end)),
            ];
            fill(area, corners, color)?;
        }
    }
    Ok(())
}

fn paint_frame<B: DrawingBackend>(panel: Rect, name: &str, area: &Area<B>) -> Result<(), PlotError> {
    let corners = [(panel.left - 1, panel.top - 1), (panel.right, panel.bottom)];
    area.draw(&Rectangle::new(corners, LINE.stroke_width(1))).map_err(drawing)?;
    let above = (panel.left, panel.top - 5);
    write(area, name, above, TEXT_SIZE, (HPos::Left, VPos::Bottom))
}

fn paint_block_axis<B: DrawingBackend>(
    panel: Rect,
    map: &SelectionMap<'_>,
    area: &Area<B>,
) -> Result<(), PlotError> {
    let width = panel.right - panel.left;
    for block in ticks(map.blocks, span(width) / TICK_GAP.0) {
        let at = panel.left + middle(block, map.blocks, width);
        area.draw(&PathElement::new([(at, panel.bottom + 1), (at, panel.bottom + 4)], LINE))
            .map_err(drawing)?;
        write(area, &block.to_string(), (at, panel.bottom + 9), TICK_SIZE, (HPos::Center, VPos::Top))?;
    }
    let below = (panel.left + width / 2, panel.bottom + 25);
    write(area, "block id", below, TEXT_SIZE, (HPos::Center, VPos::Top))
}

fn paint_query_axis<B: DrawingBackend>(
    panel: Rect,
    map: &SelectionMap<'_>,
    area: &Area<B>,
) -> Result<(), PlotError> {
    let height = panel.bottom - panel.top;
    for row in ticks(map.queries.len(), span(height) / TICK_GAP.1) {
        let at = panel.top + middle(row, map.queries.len(), height);
        area.draw(&PathElement::new([(panel.left - 5, at), (panel.left - 2, at)], LINE)).map_err(drawing)?;
        let position = map.queries.get(row).copied().unwrap_or_default();
        write(area, &position.to_string(), (panel.left - 8, at + 3), TICK_SIZE, (HPos::Right, VPos::Center))?;
    }
    let beside = (panel.left - 82, panel.top + height / 2);
    let style = style(TEXT_SIZE).transform(FontTransform::Rotate270).color(&LINE);
    let anchored = style.pos(Pos::new(HPos::Center, VPos::Top));
    area.draw(&Text::new("query position", beside, anchored)).map_err(drawing)
}

fn paint_legend<B: DrawingBackend>(
    map: &SelectionMap<'_>,
    layout: &Layout,
    area: &Area<B>,
) -> Result<(), PlotError> {
    let top = layout.legend_top + 8;
    let own = Cell { own: SHADES, ..Cell::default() };
    let future = Cell { future: true, ..Cell::default() };
    let samples = [("own block", own, 14), ("not yet visible", future, 130)];
    for (name, cell, left) in samples {
        swatch(area, cell, left, top)?;
        write(area, name, (left + 22, top + 7), TEXT_SIZE, (HPos::Left, VPos::Center))?;
    }
    let coarse = layout.grid.0 < map.blocks || layout.grid.1 < map.queries.len();
    let first = if coarse { 1 } else { SHADES };
    let left = 282;
    for shade in first..=SHADES {
        let cell = Cell { other: shade, ..Cell::default() };
        swatch(area, cell, left + 14 * i32::from(shade - first), top)?;
    }
    let right = left + 14 * i32::from(SHADES - first) + 22;
    let meaning = if coarse { SHADE_MEANING } else { "other block" };
    write(area, meaning, (right, top + 7), TEXT_SIZE, (HPos::Left, VPos::Center))
}

fn swatch<B: DrawingBackend>(area: &Area<B>, cell: Cell, left: i32, top: i32) -> Result<(), PlotError> {
    fill(area, [(left, top), (left + 14, top + 14)], color_of(cell).unwrap_or(WHITE))
}

fn fill<B: DrawingBackend>(
    area: &Area<B>,
    corners: [(i32, i32); 2],
    color: RGBColor,
) -> Result<(), PlotError> {
    area.draw(&Rectangle::new(corners, color.filled())).map_err(drawing)
}

fn write<B: DrawingBackend>(
    area: &Area<B>,
    text: &str,
    at: (i32, i32),
    size: i32,
    anchor: (HPos, VPos),
) -> Result<(), PlotError> {
    let style = style(size).color(&LINE).pos(Pos::new(anchor.0, anchor.1));
    area.draw(&Text::new(text, at, style)).map_err(drawing)
}

fn style(size: i32) -> TextStyle<'static> {
    FontDesc::new(FontFamily::Name(FONT_FAMILY), f64::from(size), FontStyle::Normal).into()
}

/// Blue for other blocks, orange over it for own ones, light grey for the future, nothing for white.
fn color_of(cell: Cell) -> Option<RGBColor> {
    if cell.own == 0 && cell.other == 0 {
        return cell.future.then_some(FUTURE);
    }
    Some(blend(blend(WHITE, OTHER, cell.other), OWN, cell.own))
}

fn blend(from: RGBColor, to: RGBColor, shade: u8) -> RGBColor {
    // The faintest shade is already a fifth of the way: it has to be seen on white.
    let weight = if shade == 0 { 0.0 } else { 0.2 + 0.8 * f64::from(shade) / f64::from(SHADES) };
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * weight.min(1.0)).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

/// At most `most` numbers below `count`, from 0 in steps of a power of two: blocks and sequences are that long.
fn ticks(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let enough = |step: &usize| count.div_ceil(*step) <= most.max(2);
    let steps = (0..u32::BITS).map(|power| 1usize << power);
    let step = steps.into_iter().find(enough).unwrap_or(count.max(1));
    (0..count).step_by(step)
}

/// Pixel of the middle of element `at` of `count` along `extent` pixels.
fn middle(at: usize, count: usize, extent: i32) -> i32 {
    let share = (at as f64 + 0.5) / count.max(1) as f64;
    (share * f64::from(extent)) as i32
}

fn span(pixels: i32) -> usize {
    usize::try_from(pixels).unwrap_or_default()
}

fn offset(pixels: usize) -> i32 {
    i32::try_from(pixels).unwrap_or_default()
}

fn drawing(error: impl std::fmt::Display) -> PlotError {
    PlotError::Draw(error.to_string())
}

/// Also a list of families for whoever opens the SVG, whose text is not drawn by us.
const FONT_FAMILY: &str = "DejaVu Sans, sans-serif";

/// Whether the font is registered under [`FONT_FAMILY`]. It is compiled in: no system font is needed.
static FONT: LazyLock<bool> =
    LazyLock::new(|| register_font(FONT_FAMILY, FontStyle::Normal, dejavu::sans::regular()).is_ok());

/// The upper ends of the faintest and the darkest shade, `(shade / SHADES)^2`; it fits the narrowest picture.
const SHADE_MEANING: &str = "other block, 2 ... 100 % of pairs";

const OTHER: RGBColor = RGBColor(31, 90, 166);
const OWN: RGBColor = RGBColor(230, 120, 20);
const FUTURE: RGBColor = RGBColor(228, 228, 228);
const LINE: RGBColor = RGBColor(40, 40, 40);
const TITLE_SIZE: i32 = 22;
const TEXT_SIZE: i32 = 16;
const TICK_SIZE: i32 = 14;
/// Pixels that a tick label needs along each axis.
const TICK_GAP: (usize, usize) = (44, 22);
const LONGEST_TITLE: usize = 60;
