//! The geometry of the layer, out of the header's string map.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::error::{InputError, quoted};

/// The string map of an input file, parsed. Counts are checked against each other here and against the tensors
/// where those are read.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    /// Name of the case, for reports.
    pub case: Option<String>,
    /// Channels of a query, key or value head, `D`.
    pub head_dim: usize,
    /// Channels of an index head, `Di`.
    pub index_head_dim: usize,
    /// Tokens of a block, `B`.
    pub block_size: usize,
    /// Slots of a selection list, `k`, own block included; a file without attention inputs may lack it.
    pub topk: Option<usize>,
    /// Query heads, `Hq`.
    pub num_q_heads: usize,
    /// Key/value heads, `Hkv`; divides `Hi`.
    pub num_kv_heads: usize,
    /// Index heads, `Hi`; divides `Hq`.
    pub num_index_heads: usize,
    /// Channels that RoPE turns, in pairs (i, i + rotary_dim/2).
    pub rotary_dim: Option<usize>,
    /// Base of the RoPE frequencies.
    pub rope_theta: Option<f64>,
    /// Epsilon of the per-head RMSNorm.
    pub rms_norm_eps: Option<f64>,
    /// Factor on the logits; `1/sqrt(D)` if the file does not name one.
    pub softmax_scale: f64,
    /// Position of the first query row of a prefill; if absent the last row is the last token.
    pub q_start: Option<usize>,
    /// Blocks up to and including the own one that are always selected; 1 unless named.
    pub local_blocks: usize,
    /// Blocks from the first that are always selected; 0 unless named.
    pub init_blocks: usize,
    /// The file, in the same folder, that holds the tensors missing here; the name as the file gives it.
    pub companion_of: Option<String>,
    /// All entries as they stand in the file, the ones above included.
    pub entries: BTreeMap<String, String>,
}

impl Metadata {
    /// Parses the header's string map.
    ///
    /// # Errors
    /// [`InputError::Metadata`] for a missing head count or size, a number out of its range, or counts that do not
    /// divide as the layer needs.
    pub fn parse(entries: BTreeMap<String, String>) -> Result<Self, InputError> {
        let head_dim = required(&entries, "head_dim", SIZES)?;
        let parsed = Self {
            case: entries.get("case").cloned(),
            head_dim,
            index_head_dim: required(&entries, "index_head_dim", SIZES)?,
            block_size: required(&entries, "block_size", SIZES)?,
            topk: whole(&entries, "topk", SIZES)?,
            num_q_heads: required(&entries, "num_q_heads", SIZES)?,
            num_kv_heads: required(&entries, "num_kv_heads", SIZES)?,
            num_index_heads: required(&entries, "num_index_heads", SIZES)?,
            rotary_dim: whole(&entries, "rotary_dim", SIZES)?,
            rope_theta: positive(&entries, "rope_theta")?,
            rms_norm_eps: positive(&entries, "rms_norm_eps")?,
            softmax_scale: positive(&entries, "softmax_scale")?
                .unwrap_or_else(|| (head_dim as f64).sqrt().recip()),
            q_start: whole(&entries, "q_start", 0..=MAX_POSITION)?,
            local_blocks: whole(&entries, "local_blocks", SIZES)?.unwrap_or(1),
            init_blocks: whole(&entries, "init_blocks", 0..=MAX_SIZE)?.unwrap_or(0),
            companion_of: entries.get("companion_of").cloned(),
            entries,
        };
        parsed.check_heads()?;
        parsed.check_selection()?;
        parsed.check_rotary()?;
        Ok(parsed)
    }

    /// Refuses an entry `key` (`n_tokens`, ...) that is there and differs from the `count` that the tensors show.
    pub(super) fn check_count(&self, key: &str, count: usize, of: &str) -> Result<(), InputError> {
        match whole(&self.entries, key, 0..=usize::MAX)? {
            Some(stated) if stated != count => {
                Err(InputError::metadata(key, format!("{count}, {of}"), stated.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// `topk`, for a stage that selects blocks.
    pub(super) fn demand_topk(&self) -> Result<usize, InputError> {
        self.topk.ok_or_else(|| InputError::metadata("topk", wanted_whole(&SIZES), "no such entry"))
    }

    /// Refuses a companion whose geometry is another one.
    pub(super) fn check_companion(&self, companion: &BTreeMap<String, String>) -> Result<(), InputError> {
        for key in SHARED_WITH_COMPANION {
            if let (Some(own), Some(other)) = (self.entries.get(key), companion.get(key))
                && own != other
            {
                let want = format!("{}, as in the file that names this one", quoted(own));
                return Err(InputError::metadata(key, want, quoted(other)));
            }
        }
        Ok(())
    }

    fn check_heads(&self) -> Result<(), InputError> {
        let (query, index, kv) = (self.num_q_heads, self.num_index_heads, self.num_kv_heads);
        if query % index != 0 {
            let want = format!("a divisor of num_q_heads = {query}");
            return Err(InputError::metadata("num_index_heads", want, index.to_string()));
        }
        if index % kv != 0 {
            let want = format!("a multiple of num_kv_heads = {kv}");
            return Err(InputError::metadata("num_index_heads", want, index.to_string()));
        }
        Ok(())
    }

    fn check_selection(&self) -> Result<(), InputError> {
        let forced = self.local_blocks + self.init_blocks;
        match self.topk {
            Some(topk) if forced > topk => {
                let want = format!("at least init_blocks + local_blocks = {forced}");
                Err(InputError::metadata("topk", want, topk.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn check_rotary(&self) -> Result<(), InputError> {
        let limit = self.head_dim.min(self.index_head_dim);
        match self.rotary_dim {
            Some(turned) if turned % 2 != 0 || turned > limit => {
                let want = format!("an even number up to the head dim {limit}");
                Err(InputError::metadata("rotary_dim", want, turned.to_string()))
            }
            _ => Ok(()),
        }
    }
}

fn required(
    entries: &BTreeMap<String, String>,
    key: &str,
    range: RangeInclusive<usize>,
) -> Result<usize, InputError> {
    let want = wanted_whole(&range);
    whole(entries, key, range)?.ok_or_else(|| InputError::metadata(key, want, "no such entry"))
}

fn whole(
    entries: &BTreeMap<String, String>,
    key: &str,
    range: RangeInclusive<usize>,
) -> Result<Option<usize>, InputError> {
    let Some(text) = entries.get(key) else { return Ok(None) };
    let value = text.parse().ok().filter(|value| range.contains(value));
    value.map_or_else(|| Err(InputError::metadata(key, wanted_whole(&range), quoted(text))), |v| Ok(Some(v)))
}

fn positive(entries: &BTreeMap<String, String>, key: &str) -> Result<Option<f64>, InputError> {
    let Some(text) = entries.get(key) else { return Ok(None) };
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(Some(value)),
        _ => Err(InputError::metadata(key, "a finite number above 0", quoted(text))),
    }
}

fn wanted_whole(range: &RangeInclusive<usize>) -> String {
    match (range.start(), *range.end()) {
        (low, usize::MAX) => format!("a whole number from {low}"),
        (low, high) => format!("a whole number from {low} to {high}"),
    }
}

/// Largest head count, head dim, block size or list length. Far above any model; small enough that no product of
/// three of them overflows.
const MAX_SIZE: usize = 1 << 16;
const SIZES: RangeInclusive<usize> = 1..=MAX_SIZE;

/// Largest token position: f32 holds every whole number up to 2^24, and RoPE's angle starts from `f32(pos)`.
pub(super) const MAX_POSITION: usize = 1 << 24;

/// Entries that mean the same in a file and in its companion.
const SHARED_WITH_COMPANION: [&str; 11] = [
    "head_dim",
    "index_head_dim",
    "block_size",
    "topk",
    "num_q_heads",
    "num_kv_heads",
    "num_index_heads",
    "rotary_dim",
    "softmax_scale",
    "local_blocks",
    "init_blocks",
];
