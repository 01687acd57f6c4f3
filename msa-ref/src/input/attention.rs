//! Inputs and expected results of an attention step: a prefill of one sequence or a decode of a batch.

use super::error::InputError;
use super::expected::{Expected, read_expected};
use super::metadata::{MAX_POSITION, Metadata};
use super::source::{Axis, Form, Origin, Source};
use super::tensor::{ElementType, Tensor, ValueRule};

/// Query rows of one sequence against its keys. Row-major, token first; projected, normed and turned by RoPE.
#[derive(Clone, Debug)]
pub struct Prefill {
    /// Queries, bf16 `[rows, Hq, D]`.
    pub q: Tensor,
    /// Keys, bf16 `[tokens, Hkv, D]`.
    pub k: Tensor,
    /// Values, bf16 `[tokens, Hkv, D]`.
    pub v: Tensor,
    /// Index queries, bf16 `[rows, Hi, Di]`.
    pub index_q: Tensor,
    /// Index keys, bf16 `[tokens, Di]`.
    pub index_k: Tensor,
    /// Position of each query row, `q_start + i`; every one is below `tokens`.
    pub positions: Vec<i32>,
    /// Slots of a selection list.
    pub topk: usize,
    /// Results to compare with, as far as the file has them.
    pub expected: Expected,
}

/// One query row for each request of a batch, against packed keys: request b owns rows
/// `cu_kv_lens[b] .. cu_kv_lens[b + 1]`.
#[derive(Clone, Debug)]
pub struct Decode {
    /// Queries, bf16 `[requests, Hq, D]`.
    pub q: Tensor,
    /// Keys, bf16 `[total, Hkv, D]`.
    pub k: Tensor,
    /// Values, bf16 `[total, Hkv, D]`.
    pub v: Tensor,
    /// Index queries, bf16 `[requests, Hi, Di]`.
    pub index_q: Tensor,
    /// Index keys, bf16 `[total, Di]`.
    pub index_k: Tensor,
    /// Tokens of each request, the new one included; at least 1.
    pub kv_lens: Vec<i32>,
    /// Running sum of `kv_lens` from 0, one entry more than there are requests.
    pub cu_kv_lens: Vec<i32>,
    /// Position of each query within its request, below its `kv_lens`; `kv_lens - 1` unless the file names it.
    pub q_pos: Vec<i32>,
    /// Slots of a selection list.
    pub topk: usize,
    /// Results to compare with, as far as the file has them.
    pub expected: Expected,
}

/// Reads a prefill if the file has attention inputs and no request lengths.
pub(super) fn read_prefill(source: &mut Source, meta: &Metadata) -> Result<Option<Prefill>, InputError> {
    if !has_attention(source) || is_decode(source) {
        return Ok(None);
    }
    let AttentionInputs { q, k, v, index_q, index_k } = read_inputs(source, meta, "rows", "tokens")?;
    meta.check_count("n_tokens", k.rows(), "the tokens of 'k'")?;
    meta.check_count("n_q_rows", q.rows(), "the rows of 'q'")?;
    let positions = prefill_positions(meta, q.rows(), k.rows())?;
    let blocks = k.rows().div_ceil(meta.block_size);
    let expected = read_expected(source, meta, &positions, blocks)?;
    Ok(Some(Prefill { q, k, v, index_q, index_k, positions, topk: meta.demand_topk()?, expected }))
}

/// Reads a decode batch if the file has attention inputs and request lengths.
pub(super) fn read_decode(source: &mut Source, meta: &Metadata) -> Result<Option<Decode>, InputError> {
    if !has_attention(source) || !is_decode(source) {
        return Ok(None);
    }
    let AttentionInputs { q, k, v, index_q, index_k } =
        read_inputs(source, meta, "requests", "total tokens")?;
    meta.check_count("total_tokens", k.rows(), "the rows of 'k'")?;
    meta.check_count("n_q_rows", q.rows(), "the rows of 'q'")?;
    let kv_lens = read_kv_lens(source, q.rows(), k.rows())?;
    let cu_kv_lens = read_cu_kv_lens(source, &kv_lens)?;
    let q_pos = read_q_pos(source, &kv_lens)?;
    let longest = kv_lens.iter().copied().max().map_or(0, |length| length.unsigned_abs() as usize);
    let expected = read_expected(source, meta, &q_pos, longest.div_ceil(meta.block_size))?;
    Ok(Some(Decode {
        q,
        k,
        v,
        index_q,
        index_k,
        kv_lens,
        cu_kv_lens,
        q_pos,
        topk: meta.demand_topk()?,
        expected,
    }))
}

struct AttentionInputs {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
}

fn has_attention(source: &Source) -> bool {
    ["q", "k", "v", "index_q", "index_k"].iter().any(|name| source.has(name, Origin::Either))
}

fn is_decode(source: &Source) -> bool {
    source.has("kv_lens", Origin::Either) || source.has("cu_kv_lens", Origin::Either)
}

fn read_inputs(
    source: &mut Source,
    meta: &Metadata,
    rows: &'static str,
    tokens: &'static str,
) -> Result<AttentionInputs, InputError> {
    let (hq, hkv, hi) = (meta.num_q_heads, meta.num_kv_heads, meta.num_index_heads);
    let (d, di) = (meta.head_dim, meta.index_head_dim);
    let q = finite(source, "q", &[Axis::Named(rows), Axis::Is(hq), Axis::Is(d)])?;
    let k = finite(source, "k", &[Axis::Named(tokens), Axis::Is(hkv), Axis::Is(d)])?;
    let v = finite(source, "v", &[Axis::Is(k.rows()), Axis::Is(hkv), Axis::Is(d)])?;
    let index_q = finite(source, "index_q", &[Axis::Is(q.rows()), Axis::Is(hi), Axis::Is(di)])?;
    let index_k = finite(source, "index_k", &[Axis::Is(k.rows()), Axis::Is(di)])?;
    if k.rows() > MAX_POSITION {
        return Err(InputError::tensor("k", format!("at most {MAX_POSITION} tokens"), k.rows().to_string()));
    }
    Ok(AttentionInputs { q, k, v, index_q, index_k })
}

fn finite(source: &mut Source, name: &str, axes: &[Axis]) -> Result<Tensor, InputError> {
    let tensor = source.required(name, Form { axes, elements: &[ElementType::Bf16] })?;
    tensor.check(ValueRule::Finite)?;
    Ok(tensor)
}

/// `q_start + i`, or bottom-right alignment (the last row is the last token) if the file names no start.
fn prefill_positions(meta: &Metadata, rows: usize, tokens: usize) -> Result<Vec<i32>, InputError> {
    let Some(latest_start) = tokens.checked_sub(rows) else {
        return Err(InputError::tensor("q", format!("at most the {tokens} rows of 'k'"), rows.to_string()));
    };
    let start = meta.q_start.unwrap_or(latest_start);
    if start > latest_start {
        let want = format!("at most {latest_start}, so that {rows} rows end within {tokens} tokens");
        return Err(InputError::metadata("q_start", want, start.to_string()));
    }
    let position = |at: usize| i32::try_from(at);
    (start..start + rows)
        .map(position)
        .collect::<Result<_, _>>()
        .map_err(|_| InputError::metadata("q_start", "a position that fits i32", start.to_string()))
}

fn read_kv_lens(source: &mut Source, requests: usize, total: usize) -> Result<Vec<i32>, InputError> {
    let (tensor, lengths) = required_i32(source, "kv_lens", requests)?;
    if let Some(at) = lengths.iter().position(|length| *length < 1) {
        return Err(tensor.refuse_element(at, "lengths of at least 1", value_at(&lengths, at)));
    }
    let sum: i64 = lengths.iter().map(|length| i64::from(*length)).sum();
    if usize::try_from(sum) != Ok(total) {
        return Err(InputError::tensor(
            "kv_lens",
            format!("a sum of {total}, the rows of 'k'"),
            sum.to_string(),
        ));
    }
    Ok(lengths)
}

/// The offsets of the file, or the running sum of the lengths if it has none.
fn read_cu_kv_lens(source: &mut Source, kv_lens: &[i32]) -> Result<Vec<i32>, InputError> {
    let mut running = vec![0];
    let mut sum = 0i32;
    for length in kv_lens {
        sum = sum.saturating_add(*length); // read_kv_lens holds the sum to the rows of 'k'
        running.push(sum);
    }
    let form = Form { axes: &[Axis::Is(running.len())], elements: &[ElementType::I32] };
    let Some(tensor) = source.optional("cu_kv_lens", Origin::Either, form)? else { return Ok(running) };
    let offsets = tensor.to_i32().unwrap_or_default();
    if let Some(at) = offsets.windows(2).position(|pair| matches!(pair, [a, b] if a > b)) {
        return Err(tensor.refuse_element(at + 1, "ascending offsets", value_at(&offsets, at + 1)));
    }
    if let Some(at) = offsets.iter().zip(&running).position(|(got, want)| got != want) {
        let want = format!("the running sum of kv_lens, {}", value_at(&running, at));
        return Err(tensor.refuse_element(at, &want, value_at(&offsets, at)));
    }
    Ok(offsets)
}

fn read_q_pos(source: &mut Source, kv_lens: &[i32]) -> Result<Vec<i32>, InputError> {
    let form = Form { axes: &[Axis::Is(kv_lens.len())], elements: &[ElementType::I32] };
    let Some(tensor) = source.optional("q_pos", Origin::Either, form)? else {
        return Ok(kv_lens.iter().map(|length| length - 1).collect());
    };
    let positions = tensor.to_i32().unwrap_or_default();
    let outside = |(position, length): (&i32, &i32)| *position < 0 || position >= length;
    if let Some(at) = positions.iter().zip(kv_lens).position(outside) {
        let want = format!("a position from 0 to {}", value_at(kv_lens, at) - 1);
        return Err(tensor.refuse_element(at, &want, value_at(&positions, at)));
    }
    Ok(positions)
}

fn required_i32(source: &mut Source, name: &str, len: usize) -> Result<(Tensor, Vec<i32>), InputError> {
    let tensor = source.required(name, Form { axes: &[Axis::Is(len)], elements: &[ElementType::I32] })?;
    let values = tensor.to_i32().unwrap_or_default();
    Ok((tensor, values))
}

fn value_at(values: &[i32], at: usize) -> i32 {
    values.get(at).copied().unwrap_or_default()
}
