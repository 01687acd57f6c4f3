use std::path::PathBuf;

use super::*;

/// Lists that look like a selection: block 0, the own block, its neighbour, and a scatter.
fn lists(queries: &[i32], heads: usize, topk: usize, block_size: usize) -> Vec<i32> {
    let mut state = 7u64;
    let mut all = Vec::new();
    for position in queries {
        let own = position / block_size as i32;
        for head in 0..heads {
            let mut list = vec![own];
            while list.len() < topk.min(own as usize + 1) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let near = (own - (state >> 40) as i32 % (8 << (head % 4))).max(0);
                let id = if list.len() == 1 {
                    0
                } else if state >> 62 == 0 {
                    (state >> 33) as i32 % (own + 1)
                } else {
                    near
                };
                if !list.contains(&id) {
                    list.push(id);
                } else if !list.contains(&((id + 1) % (own + 1))) {
                    list.push((id + 1) % (own + 1));
                }
            }
            list.sort_unstable();
            list.resize(topk, -1);
            all.extend(list);
        }
    }
    all
}

fn drawn(name: &str, queries: &[i32], heads: usize, blocks: usize) -> (tempfile::TempDir, PathBuf) {
    let lists = lists(queries, heads, 16, 128);
    let map = SelectionMap { title: "some case", queries, heads, blocks, block_size: 128, lists: &lists };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    draw(&map, &path).unwrap();
    keep(&path);
    (folder, path)
}

/// Copies a picture to the folder named by `MSA_KEEP_PLOTS`, for somebody to look at.
fn keep(path: &Path) {
    if let Some(folder) = std::env::var_os("MSA_KEEP_PLOTS") {
        std::fs::copy(path, Path::new(&folder).join(path.file_name().unwrap())).unwrap();
    }
}

/// Width and height out of a PNG's first chunk.
fn png_size(bytes: &[u8]) -> (u32, u32) {
    assert_eq!(bytes[..8], *b"\x89PNG\r\n\x1a\n");
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (word(16), word(20))
}

#[test]
fn a_large_map_becomes_a_picture_of_bounded_size() {
    let queries: Vec<i32> = (0..32_768).collect();
    let (_folder, path) = drawn("large.png", &queries, 4, 256);
    let (width, height) = png_size(&std::fs::read(path).unwrap());
    assert!(width <= 1200 && height <= 800, "{width} x {height}");
    assert!(width > 900 && height > 600, "a large map uses the room: {width} x {height}");
    let (_folder, path) = drawn("large.svg", &queries, 4, 256);
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.len() < 10_000_000, "{} bytes", text.len());
}

#[test]
fn a_small_map_names_its_parts() {
    let (folder, path) = drawn("small.svg", &[2553, 2554, 2559], 2, 20);
    let text = std::fs::read_to_string(path).unwrap();
    let parts = ["Selected blocks: some case", "index head 0", "index head 1", "block id", "query position"];
    for part in parts.into_iter().chain(["own block", "other block", "2553", "top-16"]) {
        assert!(text.contains(part), "{part} is missing");
    }
    assert!(text.contains("#E67814"), "the own block has its colour");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn the_selection_of_a_golden_file_is_drawn() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/m3_prefill_small.safetensors");
    let file = crate::input::read_input(&file).unwrap();
    let prefill = file.prefill.unwrap();
    let lists = prefill.expected.block_indices.unwrap().to_i32().unwrap();
    let map = SelectionMap {
        title: "<m3> & \u{1b}[2J",
        queries: &prefill.positions,
        heads: file.metadata.num_index_heads,
        blocks: 12,
        block_size: file.metadata.block_size,
        lists: &lists,
    };
    for name in ["golden.svg", "golden.png"] {
        let folder = tempfile::tempdir().unwrap();
        draw(&map, &folder.path().join(name)).unwrap();
        keep(&folder.path().join(name));
        if name.ends_with("svg") {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(text.contains("&lt;m3&gt; &amp; [2J") && !text.contains('\u{1b}'));
        }
    }
}

#[test]
fn shapes_at_the_edges_are_drawn() {
    drawn("one.png", &[0], 1, 1);
    drawn("decode.png", &[0, 126, 127, 2048, 4999], 1, 40);
    drawn("wide.png", &[1_000_000], 2, 7813);
    drawn("heads.png", &(0..512).collect::<Vec<i32>>(), 40, 4);
    drawn("rows.png", &(2528..2560).collect::<Vec<i32>>(), 4, 20);
}

#[test]
fn the_format_goes_by_the_extension() {
    let map = SelectionMap { title: "", queries: &[0], heads: 1, blocks: 1, block_size: 128, lists: &[0] };
    let folder = tempfile::tempdir().unwrap();
    let refusal = draw(&map, Path::new("map.jpg")).unwrap_err().to_string();
    assert_eq!(refusal, "plot file: want a name that ends in .svg or .png, got map.jpg");
    draw(&map, &folder.path().join("MAP.PNG")).unwrap();
    assert_eq!(png_size(&std::fs::read(folder.path().join("MAP.PNG")).unwrap()).0, 640);
    assert!(matches!(draw(&map, Path::new("/absent/map.svg")), Err(PlotError::Write(_))));
}

#[test]
fn a_map_that_contradicts_itself_is_refused() {
    let good = SelectionMap {
        title: "",
        queries: &[0, 200],
        heads: 1,
        blocks: 2,
        block_size: 128,
        lists: &[0, -1, 0, 1],
    };
    let cases = [
        (SelectionMap { heads: 3, ..good }, "lists: want a multiple of 2 x 3 ids, got 4"),
        (SelectionMap { heads: 0, ..good }, "heads: want at least 1, got 0"),
        (
            SelectionMap { heads: usize::MAX, ..good },
            &format!("lists: want a multiple of 2 x {} ids, got 4", usize::MAX),
        ),
        (SelectionMap { lists: &[], ..good }, "lists: want a multiple of 2 x 1 ids, got 0"),
        (SelectionMap { blocks: 1, ..good }, "lists: want ids from -1 to 0, got 1"),
        (SelectionMap { lists: &[0, -2, 0, 1], ..good }, "lists: want ids from -1 to 1, got -2"),
        (SelectionMap { queries: &[0, -5], ..good }, "queries: want positions from 0, got -5"),
        (
            SelectionMap { blocks: usize::MAX, ..good },
            &format!("blocks: want at most 2147483648, got {}", usize::MAX),
        ),
        (SelectionMap { block_size: 0, ..good }, "block_size: want at least 1, got 0"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map.svg");
    for (map, message) in cases {
        assert_eq!(draw(&map, &path).unwrap_err().to_string(), format!("selection map: {message}"));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
