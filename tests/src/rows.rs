//! Where the bytes of a cache row stand: a second formulation of the layouts, which shares no code with the reference's
//! reader and writer.

use msa_core::cache::{CacheFormat, IndexCache, KvCache, NVFP4_GROUP, VScaleOrder, View};

/// The side of a cache that a row belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Index keys.
    Index,
}

/// One side of a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheSide {
    /// Element format.
    pub format: CacheFormat,
    /// Channels of a row.
    pub channels: u32,
    data: View,
    scales: Option<(View, VScaleOrder)>,
}

/// Addresses of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowPlace {
    /// First data byte; the row is contiguous.
    pub data: u64,
    /// Length of the data.
    pub bytes: u64,
    /// Address of the scale byte of each group; empty unless NVFP4.
    pub scales: Vec<u64>,
}

impl CacheSide {
    /// The keys or values of a KV cache with `channels` channels.
    pub fn of_kv(cache: &KvCache, side: Side, channels: u32) -> Self {
        let (data, scales, order) = match side {
            Side::Value => (cache.value, cache.value_scale, cache.v_scale_order),
            _ => (cache.key, cache.key_scale, VScaleOrder::Linear),
        };
        Self { format: cache.format, channels, data, scales: scales.map(|view| (view, order)) }
    }

    /// The keys of an index cache with `channels` channels.
    pub fn of_index(cache: &IndexCache, channels: u32) -> Self {
        let scales = cache.key_scale.map(|view| (view, VScaleOrder::Linear));
        Self { format: cache.format, channels, data: cache.key, scales }
    }

    /// Addresses of the row of (physical page, head, token within the page).
    pub fn row(&self, page: u64, head: u64, token: u64) -> RowPlace {
        let bytes = match self.format {
            CacheFormat::Bf16 => 2 * u64::from(self.channels),
            CacheFormat::E4m3 | CacheFormat::E4m3Fnuz => self.channels.into(),
            CacheFormat::Nvfp4 => u64::from(self.channels) / 2,
        };
        let row = |v: &View| v.address + page * v.page_stride + head * v.head_stride + token * v.token_stride;
        let groups = u64::from(self.channels / NVFP4_GROUP);
        let scale = |(view, order): (View, VScaleOrder), group: u64| match order {
            VScaleOrder::Linear => row(&view) + group,
            // Rows of four tokens are interleaved group by group.
            VScaleOrder::TokenQuad => {
                let quad = view.address + page * view.page_stride + head * view.head_stride;
                quad + (token - token % 4) * groups + 4 * group + token % 4
            }
        };
        let scales = self.scales.map_or_else(Vec::new, |s| (0..groups).map(|g| scale(s, g)).collect());
        RowPlace { data: row(&self.data), bytes, scales }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msa_core::cache::{head_slot, planar, sglang_row};
    use msa_core::geometry::Geometry;

    #[test]
    fn rows_of_a_page_cover_it_exactly_once() {
        let g = Geometry {
            query_heads: 4,
            kv_heads: 2,
            index_heads: 2,
            head_dim: 64,
            page: 8,
            block: 32,
            ..Geometry::M3
        };
        for make in [planar, head_slot, sglang_row] {
            let cache = make(&g, CacheFormat::Nvfp4, 2, 0).unwrap();
            let mut bytes = Vec::new();
            for side in [Side::Key, Side::Value].map(|s| CacheSide::of_kv(&cache, s, 64)) {
                for (head, token) in (0..2).flat_map(|h| (0..8).map(move |t| (h, t))) {
                    let place = side.row(1, head, token);
                    bytes.extend(place.data..place.data + place.bytes);
                    bytes.extend(place.scales);
                }
            }
            bytes.sort_unstable();
            let distinct = bytes.windows(2).all(|w| w[0] < w[1]);
            assert!(distinct && bytes.len() == 2 * 2 * 8 * 36);
            assert!(bytes[0] >= cache.key.page_stride && bytes[bytes.len() - 1] < 2 * cache.key.page_stride);
        }
    }

    #[test]
    fn a_scale_of_a_token_quad_stands_where_the_engines_put_it() {
        let cache = planar(&Geometry::M3, CacheFormat::Nvfp4, 1, 0).unwrap();
        let scales = CacheSide::of_kv(&cache, Side::Value, 128).row(0, 0, 6).scales;
        let first = cache.value_scale.unwrap().address;
        // Token 6 is the third of the second quad, which starts after 4 tokens of 8 groups.
        assert_eq!(scales.iter().map(|s| s - first).collect::<Vec<_>>(), [34, 38, 42, 46, 50, 54, 58, 62]);
    }
}
