use std::path::{Path, PathBuf};

use super::report::Refusal;
use crate::abi::Policy;

/// What the name of a plugin begins with and ends in; everything else in a folder is somebody else's.
const PREFIX: &str = "libmsa_";
const SUFFIX: &str = ".so";

/// The plugins of a folder by absolute path, in order of their names.
pub(super) fn libraries(folder: &Path) -> Result<Vec<PathBuf>, Refusal> {
    let refused = |error: std::io::Error| {
        Refusal::new(folder, Policy::OpenedByPath, format!("the folder cannot be read: {error}"))
    };
    let folder = std::path::absolute(folder).map_err(refused)?;
    let mut found = Vec::new();
    for entry in folder.read_dir().map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        if is_plugin(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn is_plugin(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)).is_some_and(|stem| !stem.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_plugins_count() {
        for (name, is) in [
            ("libmsa_cuda.so", true),
            ("libmsa_größe ü.so", true),
            ("libmsa_.so", false),
            ("libmsa_cuda.so.1", false),
            ("libmsa_cuda.toml", false),
            ("libcuda.so", false),
        ] {
            assert_eq!(is_plugin(&Path::new("/a").join(name)), is, "{name}");
        }
    }
}
