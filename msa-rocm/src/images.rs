//! The code objects: those built into this library, or those of a folder.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use msa_core::error::{Error, Result};

/// Embedded code objects as (file name, content); empty without `cargo xtask plugin rocm`.
const EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// A code object. Equal ones are loaded once, wherever they came from.
pub(crate) type Image = Arc<Cow<'static, [u8]>>;

/// Code objects by file name, `<source>.<arch>.hsaco`. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Images {
    files: Arc<BTreeMap<String, Image>>,
}

impl Images {
    /// Those built into this library.
    pub fn embedded() -> Self {
        let file =
            |(name, bytes): &(&str, &'static [u8])| ((*name).to_owned(), Arc::new(Cow::Borrowed(*bytes)));
        Self { files: Arc::new(EMBEDDED.iter().map(file).collect()) }
    }

    /// Those of a folder that `cargo xtask plugin rocm` wrote.
    ///
    /// # Errors
    /// The folder or a file cannot be read.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::invalid("kernel folder", "readable code objects", error);
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "hsaco") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                files.insert(name, Arc::new(Cow::Owned(std::fs::read(&path).map_err(failed)?)));
            }
        }
        Ok(Self { files: Arc::new(files) })
    }

    /// True without any code object.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The code object of a source for an architecture.
    pub(crate) fn of(&self, source: &str, arch: &str) -> Option<&Image> {
        self.files.get(&format!("{source}.{arch}.hsaco"))
    }
}
