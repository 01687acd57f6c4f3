//! Inputs and staged results of what comes before attention: projection, per-head norm and RoPE.

use std::collections::BTreeMap;

use super::error::InputError;
use super::metadata::{MAX_POSITION, Metadata};
use super::source::{Axis, Form, Origin, Source};
use super::tensor::{ElementType, Tensor, ValueRule};

/// The five projections of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Branch {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values; neither normed nor turned.
    V,
    /// Index queries.
    IndexQ,
    /// Index keys, one head.
    IndexK,
}

/// The steps of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// After the linear projection.
    Proj,
    /// After `x * rsqrt(mean(x^2) + eps) * (1 + g)`.
    Norm,
    /// After RoPE on the first `rotary_dim` channels.
    Rope,
}

/// The precision in which a staged result was computed and is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// bf16 after every step, and inside RoPE after every product and sum.
    Bf16,
    /// f32 throughout, from the same bf16 weights.
    F32,
}

/// Tokens on their way into the caches, with the results after each step.
#[derive(Clone, Debug)]
pub struct Projection {
    /// Position of each token, 0 to 2^24.
    pub positions: Vec<i32>,
    /// RoPE frequencies, f32 `[rotary_dim / 2]`.
    pub inv_freq: Option<Tensor>,
    /// What the layer receives, bf16 `[tokens, hidden]`; there if and only if the projection weights are.
    pub hidden: Option<Tensor>,
    weights: BTreeMap<Branch, Tensor>,
    norm_weights: BTreeMap<Branch, Tensor>,
    staged: BTreeMap<(Branch, Step, Precision), Tensor>,
    tables: BTreeMap<(&'static str, Precision), Tensor>,
}

impl Projection {
    /// Projection weights, bf16 `[heads * dim, hidden]`: row `h * dim + c` makes channel c of head h.
    pub fn weight(&self, branch: Branch) -> Option<&Tensor> {
        self.weights.get(&branch)
    }

    /// Norm weights `g`, bf16 `[dim]`; `None` for values.
    pub fn norm_weight(&self, branch: Branch) -> Option<&Tensor> {
        self.norm_weights.get(&branch)
    }

    /// The result of a step, `[tokens, heads, dim]`, if the file has it.
    pub fn staged(&self, branch: Branch, step: Step, precision: Precision) -> Option<&Tensor> {
        self.staged.get(&(branch, step, precision))
    }

    /// Cosines `[tokens, rotary_dim]`, each angle twice, if the file has them.
    pub fn cos(&self, precision: Precision) -> Option<&Tensor> {
        self.tables.get(&("cos", precision))
    }

    /// Sines `[tokens, rotary_dim]`, each angle twice, if the file has them.
    pub fn sin(&self, precision: Precision) -> Option<&Tensor> {
        self.tables.get(&("sin", precision))
    }
}

impl Branch {
    /// All five, in the order of the fused projection.
    pub const ALL: [Self; 5] = [Self::Q, Self::K, Self::V, Self::IndexQ, Self::IndexK];

    /// Name in tensor names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::IndexQ => "index_q",
            Self::IndexK => "index_k",
        }
    }

    /// Heads of the branch; index keys are one head.
    pub const fn heads(self, meta: &Metadata) -> usize {
        match self {
            Self::Q => meta.num_q_heads,
            Self::K | Self::V => meta.num_kv_heads,
            Self::IndexQ => meta.num_index_heads,
            Self::IndexK => 1,
        }
    }

    /// Channels of a head of the branch.
    pub const fn dim(self, meta: &Metadata) -> usize {
        match self {
            Self::Q | Self::K | Self::V => meta.head_dim,
            Self::IndexQ | Self::IndexK => meta.index_head_dim,
        }
    }

    /// Steps that the branch goes through.
    pub const fn steps(self) -> &'static [Step] {
        match self {
            Self::V => &[Step::Proj],
            _ => &[Step::Proj, Step::Norm, Step::Rope],
        }
    }
}

impl Step {
    /// Name in tensor names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proj => "proj",
            Self::Norm => "norm",
            Self::Rope => "rope",
        }
    }
}

impl Precision {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Bf16, Self::F32];

    /// The stored type, whose name ends the tensor's name.
    pub const fn element(self) -> ElementType {
        match self {
            Self::Bf16 => ElementType::Bf16,
            Self::F32 => ElementType::F32,
        }
    }
}

/// Reads the projection stage if the file has its input, norm weights or projected tensors.
pub(super) fn read_projection(
    source: &mut Source,
    meta: &Metadata,
) -> Result<Option<Projection>, InputError> {
    let signs = ["hidden", "g_q", "g_k", "g_index_q", "g_index_k", "q_proj_bf16", "q_proj_f32"];
    if !signs.iter().any(|name| source.has(name, Origin::Either)) {
        return Ok(None);
    }
    let rotary_dim = demand(meta.rotary_dim, "rotary_dim")?;
    demand(meta.rms_norm_eps, "rms_norm_eps")?;
    let positions = read_positions(source)?;
    let tokens = positions.len();
    let (hidden, weights) = read_linear(source, meta, tokens)?;
    let staged = read_staged(source, meta, tokens)?;
    if hidden.is_none() && !staged.contains_key(&(Branch::Q, Step::Proj, Precision::Bf16)) {
        let form = Form { axes: &[Axis::Is(tokens), Axis::Named("hidden")], elements: &[ElementType::Bf16] };
        let want = format!("{form}, or q_proj_bf16 and the other projected tensors");
        return Err(InputError::tensor("hidden", want, "no such tensor"));
    }
    Ok(Some(Projection {
        inv_freq: read_finite(source, "inv_freq", &[Axis::Is(rotary_dim / 2)], ElementType::F32)?,
        norm_weights: read_norm_weights(source, meta)?,
        tables: read_tables(source, tokens, rotary_dim)?,
        positions,
        hidden,
        weights,
        staged,
    }))
}

fn demand<T>(value: Option<T>, key: &str) -> Result<T, InputError> {
    value.ok_or_else(|| {
        InputError::metadata(key, "a number, for the norm and RoPE of a projection", "no such entry")
    })
}

fn read_positions(source: &mut Source) -> Result<Vec<i32>, InputError> {
    let form = Form { axes: &[Axis::Named("tokens")], elements: &[ElementType::I32] };
    let tensor = source.required("positions", form)?;
    let positions = tensor.to_i32().unwrap_or_default();
    let outside = |at: &i32| usize::try_from(*at).map_or(true, |at| at > MAX_POSITION);
    if let Some((at, got)) = positions.iter().enumerate().find(|(_, position)| outside(position)) {
        return Err(tensor.refuse_element(at, &format!("positions from 0 to {MAX_POSITION}"), got));
    }
    Ok(positions)
}

/// The hidden states and all five weights, or neither.
fn read_linear(
    source: &mut Source,
    meta: &Metadata,
    tokens: usize,
) -> Result<(Option<Tensor>, BTreeMap<Branch, Tensor>), InputError> {
    let axes = [Axis::Is(tokens), Axis::Named("hidden")];
    let Some(hidden) = read_finite(source, "hidden", &axes, ElementType::Bf16)? else {
        return Ok((None, BTreeMap::new()));
    };
    let width = hidden.shape().last().copied().unwrap_or_default();
    meta.check_count("hidden_size", width, "the width of 'hidden'")?;
    let mut weights = BTreeMap::new();
    for branch in Branch::ALL {
        let axes = [Axis::Is(branch.heads(meta) * branch.dim(meta)), Axis::Is(width)];
        let name = format!("w_{}", branch.name());
        weights.insert(branch, require_finite(source, &name, &axes, ElementType::Bf16)?);
    }
    Ok((Some(hidden), weights))
}

fn read_norm_weights(source: &mut Source, meta: &Metadata) -> Result<BTreeMap<Branch, Tensor>, InputError> {
    let normed = Branch::ALL.into_iter().filter(|branch| branch.steps().contains(&Step::Norm));
    normed
        .map(|branch| {
            let name = format!("g_{}", branch.name());
            let axes = [Axis::Is(branch.dim(meta))];
            Ok((branch, require_finite(source, &name, &axes, ElementType::Bf16)?))
        })
        .collect()
}

fn read_staged(
    source: &mut Source,
    meta: &Metadata,
    tokens: usize,
) -> Result<BTreeMap<(Branch, Step, Precision), Tensor>, InputError> {
    let mut staged = BTreeMap::new();
    for branch in Branch::ALL {
        let axes = [Axis::Is(tokens), Axis::Is(branch.heads(meta)), Axis::Is(branch.dim(meta))];
        for step in branch.steps() {
            for precision in Precision::ALL {
                let name = format!("{}_{}_{}", branch.name(), step.name(), precision.element().name());
                if let Some(tensor) = read_finite(source, &name, &axes, precision.element())? {
                    staged.insert((branch, *step, precision), tensor);
                }
            }
        }
    }
    Ok(staged)
}

fn read_tables(
    source: &mut Source,
    tokens: usize,
    rotary_dim: usize,
) -> Result<BTreeMap<(&'static str, Precision), Tensor>, InputError> {
    let mut tables = BTreeMap::new();
    for function in ["cos", "sin"] {
        for precision in Precision::ALL {
            let name = format!("{function}_{}", precision.element().name());
            let axes = [Axis::Is(tokens), Axis::Is(rotary_dim)];
            if let Some(tensor) = read_finite(source, &name, &axes, precision.element())? {
                tables.insert((function, precision), tensor);
            }
        }
    }
    Ok(tables)
}

fn require_finite(
    source: &mut Source,
    name: &str,
    axes: &[Axis],
    element: ElementType,
) -> Result<Tensor, InputError> {
    let tensor = source.required(name, Form { axes, elements: &[element] })?;
    tensor.check(ValueRule::Finite)?;
    Ok(tensor)
}

fn read_finite(
    source: &mut Source,
    name: &str,
    axes: &[Axis],
    element: ElementType,
) -> Result<Option<Tensor>, InputError> {
    let tensor = source.optional(name, Origin::Either, Form { axes, elements: &[element] })?;
    tensor.iter().try_for_each(|tensor| tensor.check(ValueRule::Finite))?;
    Ok(tensor)
}
