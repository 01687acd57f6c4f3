//! The byte ranges that make up a page, for transfer between caches (prefill/decode disaggregation, offload).

use super::{Component, IndexCache, KvCache};
use crate::geometry::Geometry;

/// One contiguous byte range of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Components whose bytes it holds, in address order.
    pub components: Vec<&'static str>,
    /// First byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Byte ranges of `page`, index keys and all scales included, in address order, neighbours joined. Copying exactly
/// these bytes moves the page. Empty if the page is beyond either cache.
pub fn regions(geometry: &Geometry, kv: &KvCache, index: Option<&IndexCache>, page: u64) -> Vec<Region> {
    let pages = index.map_or(kv.pages, |i| i.pages.min(kv.pages));
    if page >= pages {
        return Vec::new();
    }
    let mut components = kv.components(geometry);
    components.extend(index.iter().flat_map(|i| i.components(geometry)));
    let mut rows: Vec<Region> = components.iter().flat_map(|c| rows_of(c, page)).collect();
    rows.sort_by_key(|r| r.address);
    join(rows)
}

fn rows_of(component: &Component, page: u64) -> Vec<Region> {
    let base = component.view.address + page * component.view.page_stride;
    let row = |head: u64, token: u64| Region {
        components: vec![component.name],
        address: base + head * component.view.head_stride + token * component.view.token_stride,
        bytes: component.row_bytes,
    };
    (0..component.heads)
        .flat_map(|h| (0..component.tokens).map(move |t| (h, t)))
        .map(|(h, t)| row(h, t))
        .collect()
}

fn join(sorted: Vec<Region>) -> Vec<Region> {
    let mut joined: Vec<Region> = Vec::new();
    for region in sorted {
        match joined.last_mut() {
            Some(last) if last.address + last.bytes == region.address => {
                last.bytes += region.bytes;
                if last.components.last() != region.components.last() {
                    last.components.extend(region.components);
                }
            }
            _ => joined.push(region),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::super::{CacheFormat, block_outer, contiguous, interleaved, planar};
    use super::*;

    #[test]
    fn f07_regions_name_every_component_with_its_size() {
        let g = Geometry::M3;
        let kv = planar(&g, CacheFormat::Nvfp4, 4, 0).unwrap();
        let index = IndexCache::planar(&g, CacheFormat::Nvfp4, 4, 1 << 30).unwrap();
        let all = regions(&g, &kv, Some(&index), 3);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].address, all[0].bytes), (3 * 73_728, 73_728));
        assert_eq!(all[0].components, ["key", "key_scale", "value", "value_scale"]);
        assert_eq!((all[1].address, all[1].bytes), ((1 << 30) + 3 * 9_216, 9_216));
        assert_eq!(all[1].components, ["index_key", "index_key_scale"]);
    }

    #[test]
    fn separate_allocations_stay_separate_regions() {
        let g = Geometry::M3;
        let kv = contiguous(&g, CacheFormat::E4m3, 4, 0, 1 << 24).unwrap();
        assert_eq!(regions(&g, &kv, None, 1).len(), 2);
        assert!(regions(&g, &kv, None, 4).is_empty());
    }

    #[test]
    fn interleaved_rows_join_to_one_page() {
        let g = Geometry::M3;
        let all = regions(&g, &interleaved(&g, CacheFormat::Bf16, 2, 0).unwrap(), None, 1);
        assert_eq!((all.len(), all[0].bytes), (1, 2048 * 128));
    }

    #[test]
    fn a_layer_of_a_block_outer_page_is_two_regions() {
        let g = Geometry::M3;
        let (kv, index) = block_outer(&g, CacheFormat::Nvfp4, CacheFormat::Nvfp4, 2, 0, 3, 1).unwrap();
        let all = regions(&g, &kv, Some(&index), 1);
        assert_eq!(all.iter().map(|r| r.bytes).collect::<Vec<_>>(), [73_728, 9_216]);
    }
}
