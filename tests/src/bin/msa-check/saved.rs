//! Failures on disk, for `msa-check show`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Failed;
use crate::outcome::Outcome;

/// A failure with what repeats it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Saved {
    /// Version of the harness that wrote it.
    pub(crate) version: String,
    /// Command that repeats it.
    pub(crate) command: String,
    /// What failed.
    pub(crate) outcome: Outcome,
}

impl Saved {
    /// Writes to a file of `folder` that is named after device and case.
    pub(crate) fn write(&self, folder: &Path) -> Result<PathBuf, Failed> {
        std::fs::create_dir_all(folder)?;
        let digest = Sha256::digest(format!("{} {}", self.outcome.device, self.outcome.case));
        let name: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let path = folder.join(format!("{name}.json"));
        std::fs::write(&path, serde_json::to_string_pretty(self)?)?;
        Ok(path)
    }

    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Failed> {
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| at(&error))?;
        Ok(serde_json::from_str(&text).map_err(|error| at(&error))?)
    }
}

/// Where failures go unless the caller says otherwise.
pub(crate) fn default_folder() -> PathBuf {
    std::env::temp_dir().join("msa-check")
}
