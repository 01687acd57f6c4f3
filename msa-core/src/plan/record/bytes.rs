//! The byte form of a record, as devices build it.
//!
//! Words are u32, little endian. The header of 64 bytes: `magic "MSR1", version 1, window, row_begin, rows, lists,
//! choices, tiles, entries, chunks, gathered, masks, 0, 0, 0, 0` (counts of entries in use). Then the sections at
//! [`RecordLayout::offsets`], each entry as its fields in the order of the structure:
//! choice `segment list request row_begin row_end schedule pairs live_quads`,
//! tile `segment list request row_begin rows first_bit entry_begin entry_end`, entry `block rows`,
//! chunk `segment list request block gathered_begin gathered_end`, gathered `row slot`,
//! mask: a u64, low word first. Bytes past a count are zero here and need not be on a device.

use super::{Chunk, Gathered, RecordLayout, ScheduleRecord, SegmentChoice, UnionEntry, UnionTile};
use crate::error::{Error, Result};
use crate::plan::Schedule;

/// "MSR1", little endian.
const MAGIC: u32 = u32::from_le_bytes(*b"MSR1");

/// Version of the byte form.
const VERSION: u32 = 1;

impl ScheduleRecord {
    /// The bytes of the region `record`. Errors: more entries than the layout has room for.
    pub fn to_bytes(&self, layout: &RecordLayout) -> Result<Vec<u8>> {
        let at = layout.offsets();
        let mut writer =
            Writer { bytes: vec![0; usize::try_from(at.end).map_err(|_| damaged("too large"))?] };
        writer.words(0, layout.choices, 1, std::iter::once(self.header()?))?;
        writer.words(
            at.choices,
            layout.choices,
            self.choices.len(),
            self.choices.iter().map(SegmentChoice::words),
        )?;
        writer.words(at.tiles, layout.tiles, self.tiles.len(), self.tiles.iter().map(UnionTile::words))?;
        let entries = self.entries.iter().map(|e| [e.block, e.rows]);
        writer.words(at.entries, layout.entries, self.entries.len(), entries)?;
        writer.words(at.chunks, layout.chunks, self.chunks.len(), self.chunks.iter().map(Chunk::words))?;
        let gathered = self.gathered.iter().map(|g| [g.row, g.slot]);
        writer.words(at.gathered, layout.gathered, self.gathered.len(), gathered)?;
        let masks = self.slot_masks.iter().map(|&m| [m as u32, (m >> 32) as u32]);
        writer.words(at.masks, layout.masks, self.slot_masks.len(), masks)?;
        Ok(writer.bytes)
    }

    /// The record in `bytes`; what stands past the counts is not read. Errors: [`Error::Plan`] at damage.
    pub fn from_bytes(layout: &RecordLayout, bytes: &[u8]) -> Result<Self> {
        let at = layout.offsets();
        let reader = Reader { bytes };
        let [h] = reader.words::<16>(0, 1, 1)?[..] else { return Err(damaged("no header")) };
        if (h[0], h[1]) != (MAGIC, VERSION) {
            return Err(damaged("another magic or version"));
        }
        let choices = reader.words(at.choices, layout.choices, h[6])?;
        let masks = reader.words::<2>(at.masks, layout.masks, h[11])?;
        Ok(Self {
            window: h[2],
            row_begin: h[3],
            rows: h[4],
            lists: h[5],
            choices: choices.into_iter().map(SegmentChoice::from_words).collect::<Result<_>>()?,
            tiles: reader
                .words(at.tiles, layout.tiles, h[7])?
                .into_iter()
                .map(UnionTile::from_words)
                .collect(),
            entries: map(reader.words(at.entries, layout.entries, h[8])?, |[block, rows]| UnionEntry {
                block,
                rows,
            }),
            chunks: reader
                .words(at.chunks, layout.chunks, h[9])?
                .into_iter()
                .map(Chunk::from_words)
                .collect(),
            gathered: map(reader.words(at.gathered, layout.gathered, h[10])?, |[row, slot]| Gathered {
                row,
                slot,
            }),
            slot_masks: map(masks, |[low, high]| u64::from(low) | u64::from(high) << 32),
        })
    }

    fn header(&self) -> Result<[u32; 16]> {
        let count = |n: usize| u32::try_from(n).map_err(|_| damaged("counts beyond 32 bits"));
        let (choices, tiles) = (count(self.choices.len())?, count(self.tiles.len())?);
        let (entries, chunks) = (count(self.entries.len())?, count(self.chunks.len())?);
        let (gathered, masks) = (count(self.gathered.len())?, count(self.slot_masks.len())?);
        let Self { window, row_begin, rows, lists, .. } = *self;
        let mut words = [0; 16];
        words[..12].copy_from_slice(&[
            MAGIC, VERSION, window, row_begin, rows, lists, choices, tiles, entries, chunks, gathered, masks,
        ]);
        Ok(words)
    }
}

impl SegmentChoice {
    fn words(&self) -> [u32; 8] {
        let Self { segment, list, request, row_begin, row_end, schedule, pairs, live_quads } = *self;
        [segment, list, request, row_begin, row_end, schedule as u32, pairs, live_quads]
    }

    fn from_words(words: [u32; 8]) -> Result<Self> {
        let [segment, list, request, row_begin, row_end, schedule, pairs, live_quads] = words;
        let known = [Schedule::Union, Schedule::KvOuter, Schedule::Hybrid];
        let schedule =
            known.into_iter().find(|s| *s as u32 == schedule).ok_or_else(|| damaged("no such schedule"))?;
        Ok(Self { segment, list, request, row_begin, row_end, schedule, pairs, live_quads })
    }
}

impl UnionTile {
    fn words(&self) -> [u32; 8] {
        let Self { segment, list, request, row_begin, rows, first_bit, entry_begin, entry_end } = *self;
        [segment, list, request, row_begin, rows, first_bit, entry_begin, entry_end]
    }

    fn from_words(words: [u32; 8]) -> Self {
        let [segment, list, request, row_begin, rows, first_bit, entry_begin, entry_end] = words;
        Self { segment, list, request, row_begin, rows, first_bit, entry_begin, entry_end }
    }
}

impl Chunk {
    fn words(&self) -> [u32; 6] {
        let Self { segment, list, request, block, gathered_begin, gathered_end } = *self;
        [segment, list, request, block, gathered_begin, gathered_end]
    }

    fn from_words(words: [u32; 6]) -> Self {
        let [segment, list, request, block, gathered_begin, gathered_end] = words;
        Self { segment, list, request, block, gathered_begin, gathered_end }
    }
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Writes `count` entries of `N` words at `offset`, where there is room for `room`.
    fn words<const N: usize>(
        &mut self,
        offset: u64,
        room: u64,
        count: usize,
        entries: impl Iterator<Item = [u32; N]>,
    ) -> Result<()> {
        if count as u64 > room.max(u64::from(offset == 0)) {
            return Err(damaged("more entries than the plan has room for"));
        }
        let begin = usize::try_from(offset).map_err(|_| damaged("too large"))?;
        let section = self.bytes.get_mut(begin..).ok_or_else(|| damaged("a section past the end"))?;
        for (to, word) in section.chunks_exact_mut(4).zip(entries.flatten()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn words<const N: usize>(&self, offset: u64, room: u64, count: u32) -> Result<Vec<[u32; N]>> {
        if u64::from(count) > room {
            return Err(damaged("more entries than the plan has room for"));
        }
        let begin = usize::try_from(offset).map_err(|_| damaged("too large"))?;
        let end = begin.checked_add(count as usize * N * 4);
        let section = end.and_then(|end| self.bytes.get(begin..end)).ok_or_else(|| damaged("ends early"))?;
        let entry = |bytes: &[u8]| {
            let mut words = [0; N];
            for (word, b) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = b.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte));
            }
            words
        };
        Ok(section.chunks_exact(N * 4).map(entry).collect())
    }
}

fn map<A, B>(list: Vec<A>, with: impl Fn(A) -> B) -> Vec<B> {
    list.into_iter().map(with).collect()
}

fn damaged(what: &str) -> Error {
    Error::Plan(format!("record: {what}"))
}
