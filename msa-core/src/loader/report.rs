use std::fmt;
use std::path::{Path, PathBuf};

use super::Plugin;
use crate::abi::Policy;
use crate::error::Error;

/// What a load did, as data.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Plugins that are registered now, in order.
    pub loaded: Vec<Loaded>,
    /// What was refused, in order.
    pub refused: Vec<Refusal>,
    /// Folders that were read.
    pub searched: Vec<PathBuf>,
}

/// A plugin that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Library.
    pub path: PathBuf,
    /// Name under which it is registered.
    pub name: String,
    /// Its version.
    pub version: String,
    /// What it was built from.
    pub build: String,
    /// Architectures with kernels.
    pub arches: Vec<String>,
    /// Major and minor version of the ABI that it was built with.
    pub abi: (u32, u32),
    /// Meaning of the operations that it was built with.
    pub op_revision: u32,
}

/// Why a library, a folder or a variable was refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Library, manifest, folder or, for the environment, the value of the variable.
    pub path: PathBuf,
    /// Policy that was broken; `docs/ABI.md` says what it asks for.
    pub policy: Policy,
    /// What was seen.
    pub reason: String,
}

impl Report {
    /// True if nothing was refused.
    pub fn is_clean(&self) -> bool {
        self.refused.is_empty()
    }

    pub(super) fn load(&mut self, loaded: Loaded) {
        tracing::info!(path = %loaded.path.display(), name = %loaded.name, "plugin loaded");
        self.loaded.push(loaded);
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        tracing::warn!("{refusal}");
        self.refused.push(refusal);
    }

    /// True if this load met the file before, under whatever name.
    pub(super) fn knows(&self, path: &Path) -> bool {
        let Ok(real) = path.canonicalize() else { return false };
        let same = |known: &Path| known.canonicalize().is_ok_and(|known| known == real);
        self.loaded.iter().any(|l| same(&l.path)) || self.refused.iter().any(|r| same(&r.path))
    }
}

impl Loaded {
    pub(super) fn of(plugin: &Plugin, name: &str) -> Self {
        Self {
            path: plugin.path().to_owned(),
            name: name.to_owned(),
            version: plugin.version().to_owned(),
            build: plugin.build().to_owned(),
            arches: plugin.arches().map(str::to_owned).collect(),
            abi: plugin.abi(),
            op_revision: plugin.op_revision(),
        }
    }
}

impl Refusal {
    pub(super) fn new(path: &Path, policy: Policy, reason: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), policy, reason: reason.to_string() }
    }

    /// The refusal as an error, for callers that asked for one plugin only.
    pub fn into_error(self) -> Error {
        crate::abi::plugin(&self.path, self.policy, self.reason)
    }

    /// A plugin that was sound but could not be registered: two of one name.
    pub(super) fn of_load(path: &Path, error: Error) -> Self {
        Self::new(path, Policy::Manifest, format!("the name is taken: {error}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: refused by {}: {}", self.path.display(), self.policy, self.reason)
    }
}

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.abi;
        write!(f, "{} {} (ABI {major}.{minor}, {})", self.name, self.version, self.arches.join(" "))?;
        write!(f, " from {}", self.path.display())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.loaded.iter().try_for_each(|loaded| writeln!(f, "loaded  {loaded}"))?;
        self.refused.iter().try_for_each(|refusal| writeln!(f, "refused {refusal}"))
    }
}
