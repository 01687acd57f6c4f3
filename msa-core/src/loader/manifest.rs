//! The manifest beside a plugin: what a loader can know without running any of its code.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::Plugin;
use super::report::Refusal;
use crate::abi::Policy;
use crate::abi::table::ABI_MAJOR;

/// Whether a library must have a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Found in a folder: whoever put it there says what it is.
    Required,
    /// Named by the caller.
    Optional,
}

/// A manifest, TOML or JSON. Fields that are not known are skipped: newer manifests may have more.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Manifest {
    /// `major.minor` of the ABI.
    pub abi: String,
    /// Name of the backend.
    pub name: String,
    /// Version of the plugin.
    pub version: String,
    /// Architectures with kernels.
    pub arches: Vec<String>,
    /// What it was built from.
    pub build: String,
    /// SHA-256 of the library, hexadecimal.
    pub sha256: String,
}

impl Manifest {
    /// From TOML.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str::<Self>(text).map_err(|error| error.to_string()).and_then(Self::checked)
    }

    /// From JSON.
    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str::<Self>(text).map_err(|error| error.to_string()).and_then(Self::checked)
    }

    /// Major and minor version.
    pub fn abi_version(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.abi.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    fn checked(self) -> Result<Self, String> {
        if self.abi_version().is_none() {
            return Err(format!("abi: want major.minor, got '{}'", self.abi));
        }
        let digits = self.sha256.len() == 64 && self.sha256.bytes().all(|b| b.is_ascii_hexdigit());
        if !digits {
            return Err(format!("sha256: want 64 hexadecimal digits, got '{}'", self.sha256));
        }
        Ok(self)
    }
}

/// A manifest with the file that it came from.
pub(super) struct Found {
    path: PathBuf,
    manifest: Manifest,
}

/// Largest manifest that is read, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The manifest of `library`, checked as far as that goes without opening the library.
pub(super) fn find(library: &Path, rule: Rule) -> Result<Option<Found>, Refusal> {
    let found =
        ["toml", "json"].map(|ending| library.with_extension(ending)).into_iter().find(|p| p.exists());
    let Some(path) = found else {
        return match rule {
            Rule::Optional => Ok(None),
            Rule::Required => {
                let want = library.with_extension("toml");
                Err(Refusal::new(library, Policy::Manifest, format!("no manifest {}", want.display())))
            }
        };
    };
    let refuse = |reason: String| Refusal::new(&path, Policy::Manifest, reason);
    let manifest = read(&path).map_err(refuse)?;
    if let Some((major, minor)) = manifest.abi_version()
        && major != ABI_MAJOR
    {
        let reason = format!("the host speaks ABI {ABI_MAJOR}, the manifest says {major}.{minor}");
        return Err(Refusal::new(&path, Policy::SameMajor, reason));
    }
    let digest = sha256(library).map_err(refuse)?;
    if !manifest.sha256.eq_ignore_ascii_case(&digest) {
        return Err(refuse(format!(
            "sha256: the manifest says {}, the library has {digest}",
            manifest.sha256
        )));
    }
    Ok(Some(Found { path, manifest }))
}

fn read(path: &Path) -> Result<Manifest, String> {
    let bytes = path.metadata().map_err(|error| error.to_string())?;
    if !bytes.is_file() || bytes.len() > MAX_BYTES {
        return Err(format!("want a file of at most {MAX_BYTES} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    if path.extension().is_some_and(|ending| ending == "json") {
        Manifest::from_json(&text)
    } else {
        Manifest::from_toml(&text)
    }
}

fn sha256(library: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", library.display());
    let bytes = std::fs::read(library).map_err(unreadable)?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Found {
    /// Does the loaded plugin say the same?
    pub(super) fn agree(&self, plugin: &Plugin) -> Result<(), Refusal> {
        let (major, minor) = plugin.abi();
        let list = |arches: &mut dyn Iterator<Item = &str>| {
            let mut all: Vec<_> = arches.collect();
            all.sort_unstable();
            all.join(" ")
        };
        let m = &self.manifest;
        let pairs = [
            ("abi", m.abi.clone(), format!("{major}.{minor}")),
            ("name", m.name.clone(), plugin.name().to_owned()),
            ("version", m.version.clone(), plugin.version().to_owned()),
            ("build", m.build.clone(), plugin.build().to_owned()),
            ("arches", list(&mut m.arches.iter().map(String::as_str)), list(&mut plugin.arches())),
        ];
        match pairs.into_iter().find(|(_, said, is)| said != is) {
            None => Ok(()),
            Some((field, said, is)) => {
                let reason = format!("{field}: the manifest says '{said}', the library '{is}'");
                Err(Refusal::new(&self.path, Policy::Manifest, reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOML: &str = "abi = \"1.0\"\nname = \"ref\"\nversion = \"0.1.0\"\narches = [\"cpu\"]\nbuild = \"b\"\n\
        sha256 = \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"\nfuture = 1\n";

    #[test]
    fn toml_and_json_say_the_same() {
        let manifest = Manifest::from_toml(TOML).unwrap();
        let json = format!(
            "{{\"abi\":\"1.0\",\"name\":\"ref\",\"version\":\"0.1.0\",\"arches\":[\"cpu\"],\"build\":\"b\",\
             \"sha256\":\"{}\"}}",
            manifest.sha256
        );
        assert_eq!(Manifest::from_json(&json).unwrap(), manifest);
        assert_eq!(manifest.abi_version(), Some((1, 0)));
    }

    #[test]
    fn damaged_manifests_are_errors() {
        for (from, to) in
            [("1.0", "1"), ("1.0", "x.y"), ("0123", "0g23"), ("name", "nome"), ("[\"cpu\"]", "7")]
        {
            assert!(Manifest::from_toml(&TOML.replacen(from, to, 1)).is_err(), "{to}");
        }
        assert!(Manifest::from_json(TOML).is_err());
    }
}
