use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::report::{Refusal, Report};
use crate::abi::Policy;
use crate::abi::privilege::is_privileged;

/// Variable that lists folders and libraries, separated by colons.
pub const PLUGIN_PATH_VARIABLE: &str = "MSA_PLUGIN_PATH";

/// What a default search takes from the process. A value, so that tests and embedders can bring their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment {
    /// Value of [`PLUGIN_PATH_VARIABLE`].
    pub plugin_path: Option<OsString>,
    /// True if the process has more rights than whoever started it: the variable is then ignored.
    pub privileged: bool,
    /// The executable, beside which plugins are looked for.
    pub executable: Option<PathBuf>,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        Self {
            plugin_path: std::env::var_os(PLUGIN_PATH_VARIABLE),
            privileged: is_privileged(),
            executable: std::env::current_exe().ok(),
        }
    }

    /// Folders and libraries that the variable names. A privileged process takes none, and relative entries, which mean
    /// something else in every working directory, are refused.
    pub(super) fn places(&self, report: &mut Report) -> Vec<PathBuf> {
        let Some(value) = self.plugin_path.as_ref().filter(|value| !value.is_empty()) else {
            return Vec::new();
        };
        if self.privileged {
            let reason = format!("{PLUGIN_PATH_VARIABLE} is ignored: the process has raised privileges");
            report.refuse(Refusal::new(Path::new(value), Policy::Environment, reason));
            return Vec::new();
        }
        let (absolute, relative): (Vec<_>, Vec<_>) = std::env::split_paths(value)
            .filter(|entry| !entry.as_os_str().is_empty())
            .partition(|entry| entry.is_absolute());
        for entry in relative {
            let reason = format!("{PLUGIN_PATH_VARIABLE} takes absolute paths");
            report.refuse(Refusal::new(&entry, Policy::OpenedByPath, reason));
        }
        absolute
    }

    /// The executable's folder and `plugins` beside it, and for what cargo built the `plugins` of its target folder.
    ///
    /// No other folder above is looked at: whoever can write there must not choose what a tool below it loads.
    pub(super) fn folders(&self) -> Vec<PathBuf> {
        let Some(folder) = self.executable.as_deref().and_then(Path::parent) else { return Vec::new() };
        let own = [folder.to_owned(), folder.join("plugins")];
        own.into_iter().chain(target_folder(folder).map(|target| target.join("plugins"))).collect()
    }
}

/// The target folder of cargo, if `folder` is where one of its profiles puts programs (`debug`) or tests (`debug/deps`): it
/// keeps its records there, in a folder of this name.
fn target_folder(folder: &Path) -> Option<&Path> {
    let of_profile = |folder: &&Path| folder.join(".fingerprint").is_dir();
    folder.ancestors().take(2).find(of_profile)?.parent()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_process_has_no_raised_privileges() {
        assert!(!Environment::of_process().privileged);
    }

    #[test]
    fn places_are_split_and_relative_ones_refused() {
        let environment = Environment { plugin_path: Some("/a b:/ü::c/d".into()), ..Environment::default() };
        let mut report = Report::default();
        assert_eq!(environment.places(&mut report), [Path::new("/a b"), Path::new("/ü")]);
        assert_eq!((report.refused.len(), report.refused[0].policy), (1, Policy::OpenedByPath));
    }

    /// Folders for the executable at a path.
    fn folders_of(executable: &Path) -> Vec<PathBuf> {
        Environment { executable: Some(executable.to_owned()), ..Environment::default() }.folders()
    }

    #[test]
    fn a_program_looks_into_its_own_folder_and_not_above_it() {
        assert_eq!(
            folders_of(Path::new("/open/dist/msa")),
            ["/open/dist", "/open/dist/plugins"].map(PathBuf::from)
        );
        assert_eq!(folders_of(Path::new("/")), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn what_cargo_built_looks_into_its_target_folder_too() {
        let test = std::env::current_exe().unwrap();
        let (deps, profile) = (test.parent().unwrap(), test.ancestors().nth(2).unwrap());
        let target = profile.parent().unwrap().join("plugins");
        assert_eq!(folders_of(&test), [deps, &deps.join("plugins"), &target]);
        assert_eq!(folders_of(&profile.join("msa")), [profile, &profile.join("plugins"), &target]);
    }
}
