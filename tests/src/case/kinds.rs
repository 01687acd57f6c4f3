//! The choices of a case that are the harness's own: classes of values, cache layouts, kinds of block lists.

use msa_core::text::Leaf;

/// Implements [`Leaf`] and `name` for an enumeration of unit variants.
macro_rules! named {
    ($t:ident { $($variant:ident = $name:literal),* $(,)? }) => {
        impl $t {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Name in case lines.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
        impl Leaf for $t {
            fn print(&self) -> String {
                self.name().to_owned()
            }
            fn parse(&mut self, text: &str) -> Result<(), String> {
                *self = match text.trim() {
                    $($name => Self::$variant,)*
                    _ => return Err([$($name),*].join(", ")),
                };
                Ok(())
            }
        }
    };
}

/// What the tensors hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ValueClass {
    /// Gaussian values of model-like size.
    #[default]
    Normal,
    /// Small integers whose sums are exact in f32 in any order; weights of attention are 0 or 1.
    Exact,
    /// Signed zeros, subnormals, the largest codes and scales, one score far above the rest.
    Edge,
    /// Few distinct keys: hundreds of blocks with equal scores, zeros of both signs among them.
    Ties,
    /// NaN of both signs in a part of the index keys, scores and partial states.
    Nan,
}
named!(ValueClass { Normal = "normal", Exact = "exact", Edge = "edge", Ties = "ties", Nan = "nan" });

/// How the caches stand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CacheLayout {
    /// All K of a page, then all V.
    #[default]
    Planar,
    /// K and V of a head side by side.
    HeadSlot,
    /// Page rows aligned to 128 bytes, V scales linear.
    SglangRow,
    /// K and V of a token side by side; formats without block scales.
    Interleaved,
    /// K and V in two allocations; formats without block scales.
    Contiguous,
    /// One row a page for three layers, index keys included; the middle layer is the one in use.
    BlockOuter,
    /// Planar; the case runs once more with the pages so far apart that offsets pass 2^31 bytes, over memory that is
    /// mapped but hardly used.
    Far,
}
named!(CacheLayout {
    Planar = "planar",
    HeadSlot = "head_slot",
    SglangRow = "sglang_row",
    Interleaved = "interleaved",
    Contiguous = "contiguous",
    BlockOuter = "block_outer",
    Far = "far",
});

/// What the lists of selected blocks look like that attention is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ListKind {
    /// Random blocks up to the row's own, the own one among them, in random order, then -1.
    #[default]
    Shuffled,
    /// The same in ascending order.
    Ascending,
    /// -1, blocks of the future and ids beyond the cache anywhere among them; some lists without any block.
    Holes,
    /// Block 0 and the own block only: the pattern of an attention sink.
    Sink,
}
named!(ListKind { Shuffled = "shuffled", Ascending = "ascending", Holes = "holes", Sink = "sink" });

/// What unused bytes hold: page tails, pages of nobody, scale bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Poison {
    /// 0xff: NaN in every format, -1 as an integer.
    #[default]
    Ones,
    /// 0x7f: NaN in E4M3, huge in bf16.
    Sevens,
    /// 0x80: negative zero, NaN in FNUZ.
    Sign,
    /// Zero: a cache that was never used.
    Zero,
    /// Random bytes.
    Random,
}
named!(Poison { Ones = "ff", Sevens = "7f", Sign = "80", Zero = "00", Random = "random" });

/// What on the device is wrong, so that a checked plan must refuse the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Wrong {
    /// Nothing.
    #[default]
    Nothing,
    /// The first offset is not 0.
    Start,
    /// Offsets that do not ascend.
    Offsets,
    /// A length below 0 or above its bound.
    Length,
    /// Page ids outside the cache.
    Page,
    /// A listed block below -1 or beyond the length.
    Block,
    /// A block twice in a list.
    Duplicate,
    /// A slot outside the caches.
    Slot,
    /// A position outside the tables.
    Position,
    /// A NaN in a source of an NVFP4 cache.
    Nan,
    /// An infinity there.
    Infinite,
}
named!(Wrong {
    Nothing = "nothing",
    Start = "start",
    Offsets = "offsets",
    Length = "length",
    Page = "page",
    Block = "block",
    Duplicate = "duplicate",
    Slot = "slot",
    Position = "position",
    Nan = "nan",
    Infinite = "infinite",
});
