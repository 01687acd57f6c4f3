//! Where the library may be.

use std::ffi::OsString;
use std::path::PathBuf;

/// Versions of the runtime, newest first; driver-only machines have no name without one.
const NAMES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

/// Paths and names in the order in which they are tried; `variable` reads the environment, as far as it is trusted.
pub(super) fn candidates(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    if let Some(path) = variable("MSA_HIP_LIBRARY") {
        return vec![path.into()];
    }
    let roots = ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(variable).map(PathBuf::from);
    let folders = roots.chain([PathBuf::from("/opt/rocm")]).map(|root| root.join("lib"));
    let in_folders = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    in_folders.chain(NAMES.map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n02_versioned_names_come_first_in_every_folder() {
        let set = |name: &str| (name == "HIP_PATH").then(|| OsString::from("/hip"));
        let paths: Vec<String> = candidates(set).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(paths[0], "/hip/lib/libamdhip64.so.7");
        assert_eq!(paths[3], "/hip/lib/libamdhip64.so");
        assert_eq!(paths[4], "/opt/rocm/lib/libamdhip64.so.7");
        assert_eq!(paths[8..], NAMES);
    }

    #[test]
    fn a_library_that_is_named_is_the_only_one() {
        let set = |name: &str| (name == "MSA_HIP_LIBRARY").then(|| OsString::from("/mine.so"));
        assert_eq!(candidates(set), [PathBuf::from("/mine.so")]);
    }
}
