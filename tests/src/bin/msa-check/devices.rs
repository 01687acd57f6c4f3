//! Which device: linked backends and those of plugins, by pattern.

use std::path::PathBuf;
use std::sync::Arc;

use msa_core::backend::Device;
use msa_core::loader::Report;
use msa_core::registry::Registry;
use msa_tests::rehearsal;
use msa_tests::rocm_emu;
use msa_tests::sets::matches;

use crate::Failed;

/// Options that name devices.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Devices {
    /// ref, plugin:NAME, cuda:0, rocm-emu:gfx950, ... or a pattern with * and ?; as:ARCH for the reference under the plans of ARCH
    #[arg(short, long, default_value = "ref", value_name = "GLOB")]
    pub(crate) backend: String,
    /// Load this plugin too, beside those found by the usual search
    #[arg(long, value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,
    /// An option for that plugin, `name = value`; may be given several times
    #[arg(long = "option", value_name = "LINE", requires = "plugin")]
    pub(crate) options: Vec<String>,
    /// Kernel variants, a pattern: the first that matches and takes the case runs it
    #[arg(short = 'V', long, value_name = "GLOB")]
    pub(crate) variant: Option<String>,
    /// SMs or CUs of as:ARCH instead of those of its best-known product
    #[arg(long, value_name = "N")]
    pub(crate) units: Option<u32>,
}

impl Devices {
    /// The linked backends and every plugin that is found; what was refused is in the report.
    pub(crate) fn registry(&self) -> (Registry, Report) {
        let mut registry = Registry::with_reference(msa_ref::backend());
        // Interpreters answer to their names only: `*` stands for devices.
        let own = |name: &str| matches(&self.backend, name) || self.backend == format!("{name}:0");
        let emulated = rocm_emu::backends().into_iter();
        let emulated = emulated.filter(|b| self.backend.starts_with("rocm-emu") && own(b.name()));
        // Their names are apart from each other's and from the reference's.
        emulated.for_each(|backend| drop(registry.add(backend)));
        let mut report = Report::default();
        if let Some(path) = &self.plugin {
            let own = registry.load_path_with(path, &self.options.join("\n"));
            report.loaded.extend(own.loaded);
            report.refused.extend(own.refused);
        }
        // A plugin that was named replaces whatever the search finds.
        let linked =
            ["ref", "ref:0"].contains(&self.backend.as_str()) || self.backend.starts_with("rocm-emu");
        let wants_plugins = self.plugin.is_none() && !linked;
        if wants_plugins {
            report = registry.load_default();
        }
        (registry, report)
    }

    /// Names of the devices that the pattern matches.
    pub(crate) fn names(&self) -> Result<Vec<String>, Failed> {
        if self.backend.starts_with(rehearsal::PREFIX) {
            return Ok(vec![self.open(&self.backend)?.name()]);
        }
        let (registry, report) = self.registry();
        let mut known = Vec::new();
        let mut reasons: Vec<String> = report.refused.iter().map(ToString::to_string).collect();
        for listing in registry.listings() {
            match listing.devices {
                Ok(devices) => {
                    known.extend(devices.iter().map(|d| format!("{}:{}", listing.backend, d.ordinal)))
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        let loaded: Vec<&str> = report.loaded.iter().map(|l| l.name.as_str()).collect();
        let chosen = choose(&self.backend, &known, &loaded);
        if chosen.is_empty() {
            let text = format!("no device matches '{}': there are {}", self.backend, known.join(", "));
            return Err([vec![text], reasons].concat().join("\n  ").into());
        }
        Ok(chosen)
    }

    /// Opens a device by the name that [`Devices::names`] gave.
    pub(crate) fn open(&self, name: &str) -> Result<Arc<dyn Device>, Failed> {
        match name.strip_prefix(rehearsal::PREFIX) {
            Some(arch) => Ok(rehearsal::open(arch, self.units)?),
            None => Ok(self.registry().0.open(name)?),
        }
    }
}

/// A backend's name stands for all of its devices, `plugin:NAME` for the plugin NAME under whatever name it is registered.
fn choose(pattern: &str, known: &[String], loaded: &[&str]) -> Vec<String> {
    let fits = |pattern: &str, name: &str| {
        let backend = name.rsplit_once(':').map_or(name, |(backend, _)| backend);
        matches(pattern, name) || matches(pattern, backend)
    };
    let direct: Vec<String> = known.iter().filter(|name| fits(pattern, name)).cloned().collect();
    let Some(own) = pattern.strip_prefix("plugin:").filter(|_| direct.is_empty()) else { return direct };
    let of_plugin =
        |name: &&String| loaded.iter().any(|l| name.rsplit_once(':').is_some_and(|(b, _)| b == *l));
    known.iter().filter(of_plugin).filter(|name| fits(own, name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_found_under_either_name() {
        let known = ["ref:0", "plugin:ref:0", "cuda:0", "cuda:1"].map(str::to_owned);
        let loaded = ["plugin:ref", "cuda"];
        let chosen = |pattern: &str| choose(pattern, &known, &loaded).join(" ");
        assert_eq!(chosen("ref"), "ref:0");
        assert_eq!(chosen("plugin:ref"), "plugin:ref:0");
        assert_eq!(chosen("plugin:cuda"), "cuda:0 cuda:1");
        assert_eq!(chosen("cuda:1"), "cuda:1");
        assert_eq!(chosen("plugin:cuda:1"), "cuda:1");
        assert_eq!(chosen("plugin:rocm"), "");
    }
}
