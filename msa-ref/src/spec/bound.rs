//! How far an execution in the `f32` arithmetic can be from the equations.
//!
//! First-order running error analysis (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., section
//! 3.3): every rounding contributes at most `u = 2^-24` times the magnitude of its result. Written for one query row
//! and one head over its visible tokens in the order in which they are processed; `S_j` is the raw score of token j,
//! `m` the reference of the exponentials, `c = scale * log2(e)`, `x_j = (S_j - m) c`, `p_j = 2^x_j`, `l` their sum.
//!
//! * A score is a chain of FMAs: `|dS_j| <= u * sum_i |s_ji|` over its partial sums.
//! * `x_j` is one FMA of the score with the rounded `c` and the rounded `m c`. The rounding of `m c` is the same for
//!   every token of one reference and cancels in `o`; each change of reference adds the difference, two roundings of
//!   the rescaling exponent, one exponential and one product (`R` below).
//! * `2^x` has relative error `e2` (the polynomial of degree 5: 1.6e-7).
//! * So `p_j` is off by a relative `n_j = ln2 (c |dS_j| + 5u |x_j|) + e2 + R`, and the average by at most
//!   `sum_j p_j n_j |v_j - o| / l`.
//! * The chain of `O` adds `u * sum_j |O_j|` over its partial sums, the lanes of `l` likewise, the division `u |o|`.
//! * Combining `s` states adds to `R` one exponential and four roundings, and `s` roundings to `O` and `l`.
//!
//! The bounds carry a factor `1 + 2^-8` for the terms of second order.

use super::SpecError;

/// Unit roundoff of f32.
pub const UNIT: f64 = 1.0 / (1_u64 << 24) as f64;

/// Largest relative error of the polynomial exponential of degree 5, evaluated in f32.
const EXP2_ERROR: f64 = 1.6e-7;

/// Largest absolute error of the polynomial logarithm in units of `u`, plus the same relative to its value.
const LOG_ERROR: f64 = 4.0;

const SECOND_ORDER: f64 = 1.0 + 1.0 / 256.0;

/// One head of one row: its visible tokens in processing order.
#[derive(Debug, Clone)]
pub struct AttentionCase<'a> {
    /// `[D]`.
    pub query: &'a [f64],
    /// `[n][D]`.
    pub keys: &'a [&'a [f64]],
    /// `[n][D]`.
    pub values: &'a [&'a [f64]],
    /// Tokens of each block, in order; the reference can only change between blocks.
    pub blocks: &'a [usize],
    /// Blocks of each state; one entry unless states are combined.
    pub states: &'a [usize],
    /// Softmax scale with every folded factor.
    pub scale: f64,
    /// Relative half-spacing of the output type: [`UNIT`] for f32, 2^-8 for bf16, 2^-11 for f16.
    pub output_unit: f64,
}

/// The exact result and how far the execution may be from it.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionBound {
    /// `[D]`.
    pub output: Vec<f64>,
    /// Natural LSE.
    pub lse: f64,
    /// `[D]`, absolute.
    pub output_bound: Vec<f64>,
    /// Absolute.
    pub lse_bound: f64,
}

/// Bound of a chain of FMAs from zero, with its exact value: `(sum a_i b_i, u * sum of |partial sums|)`.
pub fn dot_bound(a: &[f64], b: &[f64]) -> (f64, f64) {
    let (mut sum, mut bound) = (0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        sum += x * y;
        bound += f64::abs(sum);
    }
    (sum, bound * UNIT * SECOND_ORDER)
}

/// Bound of a dot product summed in any order in f32: `gamma_n * sum |a_i b_i|`.
pub fn dot_bound_any_order(a: &[f64], b: &[f64]) -> f64 {
    let magnitude: f64 = a.iter().zip(b).map(|(x, y)| (x * y).abs()).sum();
    magnitude * a.len() as f64 * UNIT * SECOND_ORDER
}

/// The exact attention of `case` and the bound of its `f32` execution. Fails on lists of different lengths.
pub fn attention_bound(case: &AttentionCase<'_>) -> Result<AttentionBound, SpecError> {
    let n = case.keys.len();
    super::check_length("values", case.values.len(), n)?;
    super::check_length("tokens of all blocks", case.blocks.iter().sum(), n)?;
    super::check_length("blocks of all states", case.states.iter().sum(), case.blocks.len())?;
    if n == 0 {
        let zeros = vec![0.0; case.query.len()];
        let none = f64::NEG_INFINITY;
        return Ok(AttentionBound { output: zeros.clone(), lse: none, output_bound: zeros, lse_bound: 0.0 });
    }
    let scores: Vec<(f64, f64)> = case.keys.iter().map(|k| dot_bound(case.query, k)).collect();
    let exact = Exact::new(case, &scores);
    let weight_errors = exact.weight_errors(case, &scores);
    let lanes = lane_sum_error(&exact.weights);
    let mean_error: f64 =
        exact.weights.iter().zip(&weight_errors).map(|(p, n)| p * n).sum::<f64>() / exact.mass;
    let states = case.states.len() as f64;
    let mut bound = Vec::with_capacity(exact.output.len());
    for (d, &o) in exact.output.iter().enumerate() {
        let (mut running, mut chain, mut spread, mut magnitude) = (0.0_f64, 0.0, 0.0, 0.0);
        for ((p, value), error) in exact.weights.iter().zip(case.values).zip(&weight_errors) {
            running += p * value[d];
            chain += running.abs();
            spread += p * error * (value[d] - o).abs();
            magnitude += p * value[d].abs();
        }
        let combine = if case.states.len() > 1 { states * magnitude } else { 0.0 };
        let sums = UNIT * (chain + combine) + o.abs() * (lanes + UNIT * states * exact.mass);
        let total = (spread + sums) / exact.mass + o.abs() * 2.0 * UNIT;
        bound.push(total * SECOND_ORDER + o.abs() * case.output_unit);
    }
    let m = exact.reference * case.scale;
    let log = exact.mass.ln();
    let lse_bound = mean_error
        + lanes / exact.mass
        + UNIT * (states + 3.0 * m.abs() + (m + log).abs() + LOG_ERROR * (1.0 + log.abs()));
    Ok(AttentionBound {
        output: exact.output,
        lse: m + log,
        output_bound: bound,
        lse_bound: lse_bound * SECOND_ORDER,
    })
}

/// The same for an evaluation in f32 whose order of summation is not known (dense or eager implementations).
pub fn attention_bound_any_order(case: &AttentionCase<'_>) -> Result<AttentionBound, SpecError> {
    let mut result = attention_bound(case)?;
    if case.keys.is_empty() {
        return Ok(result);
    }
    let scores: Vec<(f64, f64)> = case.keys.iter().map(|k| dot_bound(case.query, k)).collect();
    let exact = Exact::new(case, &scores);
    let n = case.keys.len() as f64;
    let mut worst: f64 = 0.0;
    for (key, (score, _)) in case.keys.iter().zip(&scores) {
        let logit = case.scale * dot_bound_any_order(case.query, key);
        worst = worst.max(logit + 4.0 * UNIT * ((score - exact.reference) * case.scale).abs());
    }
    // Relative error of every weight, of the normaliser's sum and of the weighted sum.
    let weights = worst + 4.0 * UNIT;
    for (d, bound) in result.output_bound.iter_mut().enumerate() {
        let magnitude: f64 =
            exact.weights.iter().zip(case.values).map(|(p, v)| p * v[d].abs()).sum::<f64>() / exact.mass;
        *bound = 2.0 * (weights + n * UNIT) * magnitude * SECOND_ORDER + magnitude * case.output_unit;
    }
    result.lse_bound = (weights + n * UNIT + 4.0 * UNIT * (1.0 + result.lse.abs())) * SECOND_ORDER;
    Ok(result)
}

struct Exact {
    reference: f64,
    weights: Vec<f64>,
    mass: f64,
    output: Vec<f64>,
}

impl Exact {
    fn new(case: &AttentionCase<'_>, scores: &[(f64, f64)]) -> Self {
        let reference = scores.iter().map(|s| s.0).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| ((s.0 - reference) * case.scale).exp()).collect();
        let mass: f64 = weights.iter().sum();
        let mut output = vec![0.0; case.query.len()];
        for (p, value) in weights.iter().zip(case.values) {
            output.iter_mut().zip(*value).for_each(|(o, v)| *o += p * v / mass);
        }
        Self { reference, weights, mass, output }
    }

    /// Relative error of each weight.
    fn weight_errors(&self, case: &AttentionCase<'_>, scores: &[(f64, f64)]) -> Vec<f64> {
        let c = case.scale * std::f64::consts::LOG2_E;
        let rescale = rescale_error(case, scores, c);
        let ln2 = std::f64::consts::LN_2;
        let error = |(score, bound): &(f64, f64)| {
            let x = (score - self.reference) * c;
            ln2 * (c * bound + 5.0 * UNIT * x.abs()) + EXP2_ERROR + rescale
        };
        scores.iter().map(error).collect()
    }
}

/// `R`: what the changes of reference and the combination of states add to every weight.
fn rescale_error(case: &AttentionCase<'_>, scores: &[(f64, f64)], c: f64) -> f64 {
    let ln2 = std::f64::consts::LN_2;
    let change = |from: f64, to: f64| EXP2_ERROR + UNIT + 2.0 * ln2 * UNIT * c * (to - from).abs();
    let mut worst: f64 = 0.0;
    let mut block = 0;
    let mut token = 0;
    let mut largest: f64 = 0.0;
    let mut maxima = Vec::new();
    for &blocks in case.states {
        let (mut m, mut error) = (f64::NEG_INFINITY, 0.0);
        for &tokens in &case.blocks[block..block + blocks] {
            let top = scores[token..token + tokens].iter().map(|s| s.0).fold(f64::NEG_INFINITY, f64::max);
            if m > f64::NEG_INFINITY && top > m {
                error += change(m, top);
            }
            m = m.max(top);
            token += tokens;
        }
        if m > f64::NEG_INFINITY {
            largest = largest.max(m.abs());
            maxima.push(m);
        }
        worst = worst.max(error);
        block += blocks;
    }
    let top = maxima.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let combined = maxima.iter().map(|&m| change(m, top) + 3.0 * UNIT).fold(0.0, f64::max);
    let combined = if maxima.len() > 1 { combined } else { 0.0 };
    if worst + combined == 0.0 { 0.0 } else { worst + combined + 2.0 * ln2 * UNIT * c * largest }
}

/// Rounding of sixteen lane sums and their tree of four levels.
fn lane_sum_error(weights: &[f64]) -> f64 {
    let mut lanes = [0.0_f64; 16];
    let mut error = 0.0;
    for (token, p) in weights.iter().enumerate() {
        let lane = &mut lanes[token % 16];
        *lane += p;
        error += *lane;
    }
    UNIT * (error + 4.0 * lanes.iter().sum::<f64>())
}
