//! Row sums in the order of [`RowSum`].

use msa_core::arithmetic::RowSum;

/// Most partial sums of a row.
const LANES: usize = 16;

/// The partial sums of one row; those that an order does not have stay +0.
pub(super) type Lanes = [f32; LANES];

/// Adds the weights of one step to their partial sums.
pub(super) fn add(order: RowSum, weights: &[f32], lanes: &mut Lanes) {
    match order {
        RowSum::Lanes16 => {
            weights.chunks(LANES).for_each(|chunk| chunk.iter().zip(&mut *lanes).for_each(|(w, l)| *l += w));
        }
        RowSum::QuadPairs => {
            for eight in 0..weights.len() / 8 {
                for (q, lane) in lanes.iter_mut().take(4).enumerate() {
                    let token = 16 * (eight >> 1) + 4 * q + 2 * (eight & 1);
                    *lane += weights[token] + weights[token + 1];
                }
            }
        }
        RowSum::QuadColumns | RowSum::QuadTiles | RowSum::GroupsOf8 => {
            of_step(order, weights).iter().zip(lanes).for_each(|(sum, lane)| *lane += sum);
        }
    }
}

/// The four partial sums of one step, from zero.
pub(super) fn of_step(order: RowSum, weights: &[f32]) -> [f32; 4] {
    std::array::from_fn(|q| match order {
        RowSum::QuadColumns => {
            let column = |x: usize| weights.chunks_exact(8).fold(0.0, |sum, w| sum + w[2 * q + x]);
            column(0) + column(1)
        }
        RowSum::QuadTiles => {
            let half = |x: usize| {
                let pairs = weights.chunks_exact(16).map(|tile| tile[x + 2 * q] + tile[x + 2 * q + 1]);
                pairs.fold(0.0, |sum: f32, pair| sum + pair)
            };
            half(0) + half(8)
        }
        RowSum::GroupsOf8 => {
            let own = weights.chunks_exact(32).flat_map(|tile| &tile[8 * q..8 * q + 8]);
            own.copied().reduce(|sum, w| sum + w).unwrap_or(0.0)
        }
        RowSum::Lanes16 | RowSum::QuadPairs => {
            let mut lanes = [0.0; LANES];
            add(order, weights, &mut lanes);
            lanes[q]
        }
    })
}

/// The sum of the partial sums.
pub(super) fn total(order: RowSum, mut lanes: Lanes) -> f32 {
    if order != RowSum::Lanes16 {
        return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    }
    for distance in [8, 4, 2, 1] {
        for i in 0..distance {
            lanes[i] += lanes[i + distance];
        }
    }
    lanes[0]
}

/// Tokens of which a step must hold a multiple.
pub(super) fn granularity(order: RowSum) -> usize {
    match order {
        RowSum::QuadColumns => 8,
        RowSum::Lanes16 | RowSum::QuadPairs | RowSum::QuadTiles => 16,
        RowSum::GroupsOf8 => 32,
    }
}
