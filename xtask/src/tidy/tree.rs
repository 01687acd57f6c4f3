//! The files of the repository, read once.

use std::path::Path;
use std::process::Command;

use super::scan::{Language, Source};

/// Every file that git tracks or would track.
pub(super) struct Tree {
    pub(super) files: Vec<File>,
}

/// One file.
pub(super) struct File {
    /// Path from the repository's root, with forward slashes.
    pub(super) path: String,
    /// Size in bytes.
    pub(super) bytes: u64,
    /// Content, unless the file is binary.
    pub(super) text: Option<String>,
    /// Content taken apart, if the file is source code of a language that the rules know.
    pub(super) source: Option<Source>,
}

impl Tree {
    /// Read the repository at `root`: files that git knows and new ones that it does not ignore.
    ///
    /// # Errors
    /// git does not answer, or a file cannot be read.
    pub(super) fn read(root: &Path) -> Result<Tree, String> {
        let output = Command::new("git")
            .current_dir(root)
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .output()
            .map_err(|error| format!("git does not start: {error}"))?;
        if !output.status.success() {
            return Err(format!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let listing = String::from_utf8_lossy(&output.stdout);
        let mut paths: Vec<&str> = listing.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            // A file that was deleted but not yet committed as deleted is still listed.
            if root.join(path).is_file() {
                let content = std::fs::read(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
                files.push(File::new(path, content));
            }
        }
        Ok(Tree { files })
    }

    /// The file at `path`, if there is one.
    pub(super) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// A tree of these paths and contents.
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Tree {
        Tree { files: files.iter().map(|(path, text)| File::new(path, text.as_bytes().to_vec())).collect() }
    }
}

impl File {
    fn new(path: &str, content: Vec<u8>) -> File {
        let bytes = content.len() as u64;
        let text = if content.contains(&0) { None } else { String::from_utf8(content).ok() };
        let source = match (&text, Language::of(path)) {
            (Some(text), Some(language)) => Some(Source::new(text, language)),
            _ => None,
        };
        File { path: path.to_owned(), bytes, text, source }
    }

    /// Last part of the path.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_files_have_no_text() {
        let file = File::new("a/b.safetensors", vec![1, 0, 2]);
        assert!(file.text.is_none() && file.source.is_none());
        assert_eq!((file.name(), file.bytes), ("b.safetensors", 3));
    }

    #[test]
    fn only_known_languages_are_taken_apart() {
        let tree = Tree::of(&[("a.rs", "fn f() {}"), ("b.cu", "int x;"), ("c.md", "text")]);
        let known: Vec<bool> = tree.files.iter().map(|file| file.source.is_some()).collect();
        assert_eq!(known, [true, true, false]);
    }
}
