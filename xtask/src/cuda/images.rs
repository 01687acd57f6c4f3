//! `msa-cuda/kernels/images.toml`: what is compiled, and with which limits it is launched.

use std::path::Path;

use serde::Deserialize;

/// Architectures that images are built for, as nvcc names them without the `sm_`.
pub(super) const ARCHS: [&str; 5] = ["90a", "100a", "100f", "103a", "107a"];

/// One image: a source with its defines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Image {
    /// `op.formats.trick`.
    pub(super) name: String,
    /// File in `msa-cuda/kernels`.
    pub(super) source: String,
    /// Preprocessor defines.
    pub(super) defines: Vec<String>,
    /// Architectures (`sm90a`, ...); all if left out.
    pub(super) archs: Option<Vec<String>>,
    /// Exported kernels.
    pub(super) kernels: Vec<Kernel>,
}

/// One kernel of an image. The source asserts the numbers when it is compiled.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Kernel {
    /// Symbol.
    pub(super) symbol: String,
    /// Threads of a block.
    pub(super) threads: u32,
    /// Dynamic shared memory, bytes.
    pub(super) shared: u32,
    /// Blocks that fit one SM at once.
    pub(super) blocks: u32,
}

#[derive(Deserialize)]
struct List {
    image: Vec<Image>,
}

/// Reads the list.
pub(super) fn read(root: &Path) -> Result<Vec<Image>, String> {
    let path = root.join("msa-cuda/kernels/images.toml");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// An architecture that nothing is built for is an error: its images would be missing without a word.
fn parse(text: &str) -> Result<Vec<Image>, String> {
    let list: List = toml::from_str(text).map_err(|error| error.to_string())?;
    for image in &list.image {
        let known = |name: &&String| ARCHS.iter().any(|arch| name.strip_prefix("sm") == Some(*arch));
        if let Some(name) = image.archs.iter().flatten().find(|name| !known(name)) {
            let all = ARCHS.map(|arch| format!("sm{arch}")).join(", ");
            return Err(format!("{}: architecture {name}: want one of {all}", image.name));
        }
    }
    Ok(list.image)
}

impl Image {
    /// Architectures of this image, as in [`ARCHS`].
    pub(super) fn archs(&self) -> Vec<&'static str> {
        let wanted = |arch: &&str| {
            self.archs
                .as_ref()
                .is_none_or(|list| list.iter().any(|name| name.strip_prefix("sm") == Some(*arch)))
        };
        ARCHS.into_iter().filter(wanted).collect()
    }

    /// Command-line defines: the image's own, then the limits that the source asserts.
    pub(super) fn flags(&self) -> Vec<String> {
        let own = self.defines.iter().map(|define| format!("-D{define}"));
        let limits = self.kernels.iter().flat_map(|kernel| {
            let Kernel { symbol, shared, blocks, .. } = kernel;
            [format!("-D{symbol}_SHARED={shared}"), format!("-D{symbol}_BLOCKS={blocks}")]
        });
        own.chain(limits).collect()
    }

    /// File stem of the image for an architecture.
    pub(super) fn stem(&self, arch: &str) -> String {
        format!("{}.sm{arch}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(archs: &str) -> String {
        format!("[[image]]\nname = \"a\"\nsource = \"a.cu\"\ndefines = []\narchs = {archs}\nkernels = []\n")
    }

    #[test]
    fn o02_an_unknown_architecture_is_an_error_and_none_is_dropped() {
        let error = parse(&list("[\"sm90a\", \"sm103\"]")).unwrap_err();
        assert_eq!(error, "a: architecture sm103: want one of sm90a, sm100a, sm100f, sm103a, sm107a");
        assert_eq!(parse(&list("[\"sm107a\", \"sm90a\"]")).unwrap()[0].archs(), ["90a", "107a"]);
    }
}
