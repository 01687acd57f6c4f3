//! Plugins found and loaded at run time: `libmsa_<name>.so` beside its manifest `libmsa_<name>.toml` or `.json`.
//!
//! Loading never fails as a whole. Every refusal is data: the path, the policy of `docs/ABI.md` that was broken, and
//! what was seen; one broken plugin does not stop another. Libraries are opened by absolute path, with every symbol
//! bound and none made global, and are never unloaded.
#![allow(unsafe_code)]

mod backend;
mod call;
mod elf;
mod environment;
#[cfg(test)]
mod fuzz;
mod library;
mod manifest;
mod negotiate;
mod report;
mod search;

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::registry::Registry;

pub use environment::{Environment, PLUGIN_PATH_VARIABLE};
pub use manifest::Manifest;
pub use negotiate::Plugin;
pub use report::{Loaded, Refusal, Report};

/// Loads one library and gives it as a backend under its own name. `options` are lines `name = value` for the plugin,
/// empty for its defaults. A manifest beside the library is checked if there is one.
pub fn open(path: &Path, options: &str) -> Result<Arc<dyn Backend>, Refusal> {
    let plugin = Arc::new(library::load(path, options, manifest::Rule::Optional)?);
    let name = plugin.name().to_owned();
    Ok(backend::wrap(plugin, name))
}

impl Registry {
    /// Loads every plugin of a folder: the files named `libmsa_*.so`, in order of their names. Each must have a
    /// manifest. Other files are not looked at.
    pub fn load_dir(&mut self, folder: impl AsRef<Path>) -> Report {
        let mut report = Report::default();
        self.load_folder(folder.as_ref(), &mut report);
        report
    }

    /// Loads one library; a manifest beside it is checked if there is one.
    pub fn load_path(&mut self, path: impl AsRef<Path>) -> Report {
        self.load_path_with(path, "")
    }

    /// The same with options for the plugin, lines `name = value`.
    pub fn load_path_with(&mut self, path: impl AsRef<Path>, options: &str) -> Report {
        let mut report = Report::default();
        self.load_library(path.as_ref(), options, manifest::Rule::Optional, &mut report);
        report
    }

    /// Loads what the process's environment names, then what lies in the executable's folder and in `plugins` beside it;
    /// programs that cargo built also look into `plugins` of the target folder.
    pub fn load_default(&mut self) -> Report {
        self.load_from(&Environment::of_process())
    }

    /// The same for a given environment.
    pub fn load_from(&mut self, environment: &Environment) -> Report {
        let mut report = Report::default();
        for place in environment.places(&mut report) {
            if place.is_dir() {
                self.load_folder(&place, &mut report);
            } else {
                self.load_library(&place, "", manifest::Rule::Optional, &mut report);
            }
        }
        for folder in environment.folders() {
            if folder.is_dir() {
                self.load_folder(&folder, &mut report);
            }
        }
        report
    }

    fn load_folder(&mut self, folder: &Path, report: &mut Report) {
        match search::libraries(folder) {
            Err(refusal) => report.refuse(refusal),
            Ok(paths) => {
                for path in paths {
                    self.load_library(&path, "", manifest::Rule::Required, report);
                }
            }
        }
        report.searched.push(folder.to_owned());
    }

    fn load_library(&mut self, path: &Path, options: &str, rule: manifest::Rule, report: &mut Report) {
        if report.knows(path) {
            return;
        }
        match library::load(path, options, rule) {
            Err(refusal) => report.refuse(refusal),
            Ok(plugin) => self.register(plugin, report),
        }
    }

    /// Adds a plugin under its own name, or under `plugin:<name>` if the host brought a backend of that name itself.
    fn register(&mut self, plugin: Plugin, report: &mut Report) {
        let plugin = Arc::new(plugin);
        let second = format!("plugin:{}", plugin.name());
        let name = if self.contains(plugin.name()) { second } else { plugin.name().to_owned() };
        let loaded = report::Loaded::of(&plugin, &name);
        match self.add(backend::wrap(Arc::clone(&plugin), name)) {
            Ok(()) => report.load(loaded),
            Err(error) => report.refuse(Refusal::of_load(plugin.path(), error)),
        }
    }
}
