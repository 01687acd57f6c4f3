//! Text that ties the repository to one machine: paths, registry hosts, and documents that are not here.

use super::Finding;
use super::scan::{is_identifier, line_of};
use super::tree::{File, Tree};

/// First folders of absolute paths that exist on somebody's machine only.
const MACHINE_FOLDERS: [&str; 4] = ["home", "root", "work", "tmp"];

/// Hosts and settings that choose a package registry. Where packages come from is the machine's business.
/// Taken apart so that this file does not contain them.
const REGISTRY: [&str; 9] = [
    concat!("index.", "crates.io"),
    concat!("static.", "crates.io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("registry.", "npmjs.org"),
    concat!("--index", "-url"),
    concat!("--extra-index", "-url"),
    concat!("[source", ".crates-io]"),
    concat!("CARGO_REGISTRIES", "_"),
];

pub(super) fn check(file: &File, tree: &Tree, findings: &mut Vec<Finding>) {
    // The lock file names the registry of every package, and cargo writes it.
    if file.path == "Cargo.lock" || file.name().starts_with("LICENSE") {
        return;
    }
    let searched: Vec<&String> = match (&file.source, &file.text) {
        (Some(source), _) => vec![&source.comments, &source.literals],
        (None, Some(text)) => vec![text],
        (None, None) => return,
    };
    for text in searched {
        check_paths(file, text, findings);
        check_registry(file, text, findings);
    }
    if let Some(source) = &file.source {
        check_documents(file, &source.comments, tree, findings);
    }
}

fn check_paths(file: &File, text: &str, findings: &mut Vec<Finding>) {
    for folder in MACHINE_FOLDERS {
        for (offset, _) in text.match_indices(&format!("/{folder}/")) {
            let before = text.as_bytes().get(offset.wrapping_sub(1));
            // `target/tmp/` and `https://host/home/` go on from something: they are no absolute paths.
            let goes_on = before.is_some_and(|byte| is_identifier(byte) || b".-}~)>".contains(byte));
            if !goes_on {
                let message =
                    format!("path of one machine (`/{folder}/`): build it from the workspace or temp_dir()");
                findings.push(Finding::new(&file.path, line_of(text, offset), "machine-path", message));
            }
        }
    }
    for (offset, _) in text.match_indices(concat!("..", "/shared")) {
        let message = "path out of the repository";
        findings.push(Finding::new(&file.path, line_of(text, offset), "machine-path", message));
    }
}

fn check_registry(file: &File, text: &str, findings: &mut Vec<Finding>) {
    for host in REGISTRY {
        for (offset, _) in text.match_indices(host) {
            let message = format!("`{host}`: where packages come from is the machine's business");
            findings.push(Finding::new(&file.path, line_of(text, offset), "registry", message));
        }
    }
}

/// A comment that cites a document by file name needs that document in the repository.
fn check_documents(file: &File, comments: &str, tree: &Tree, findings: &mut Vec<Finding>) {
    for (offset, extension) in comments.match_indices(".md") {
        let ends = comments.as_bytes().get(offset + extension.len()).is_none_or(|byte| !is_identifier(byte));
        let is_name = |byte: &u8| is_identifier(byte) || b"-.".contains(byte);
        let start = comments[..offset].bytes().rposition(|byte| !is_name(&byte)).map_or(0, |index| index + 1);
        let name = &comments[start..offset + extension.len()];
        if ends && start < offset && !tree.files.iter().any(|file| file.name() == name) {
            let message = format!("`{name}` is not in the repository: cite what a reader can get");
            findings.push(Finding::new(&file.path, line_of(comments, offset), "dead-document", message));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    /// An absolute path, put together here so that this file holds none.
    fn below(folder: &str) -> String {
        format!("/{folder}/x")
    }

    #[test]
    fn machine_paths_are_found_in_strings_and_comments() {
        for folder in ["home", "root", "work", "tmp"] {
            let path = below(folder);
            assert_eq!(found("a.rs", &format!("const A: &str = \"{path}\";\n")), [("machine-path", 1)]);
            assert_eq!(found("a.rs", &format!("//! See {path}.\n")), [("machine-path", 1)]);
            assert_eq!(found("README.md", &format!("\nRun {path}\n")), [("machine-path", 2)]);
        }
        let shared = concat!("// from ..", "/shared/data\n");
        assert_eq!(found("a.rs", shared), [("machine-path", 1)]);
    }

    #[test]
    fn relative_paths_and_temp_dir_are_fine() {
        let path = below("tmp");
        assert_eq!(found("a.rs", &format!("const A: &str = \"target{path}\";\n")), []);
        assert_eq!(found("a.rs", &format!("//! <https://host.org{}>\n", below("home"))), []);
        assert_eq!(
            found("a.rs", &format!("fn f() {{ std::env::temp_dir(); a {} b; }}\n", below("home"))),
            []
        );
    }

    #[test]
    fn registry_hosts_are_found_outside_the_lock_file() {
        let host = concat!("https://index.", "crates.io/");
        assert_eq!(found(".cargo/config.toml", &format!("index = \"{host}\"\n")), [("registry", 1)]);
        assert_eq!(found("Cargo.lock", host), []);
        assert_eq!(found("a.sh", concat!("pip install --index", "-url x\n")), [("registry", 1)]);
        assert_eq!(found("README.md", "from [crates.io](https://crates.io/crates/half)\n"), []);
    }

    #[test]
    fn cited_documents_must_exist() {
        assert_eq!(found("a.rs", "// See numbers.md section 4.\n"), [("dead-document", 1)]);
        assert_eq!(found("a.rs", "// The .md files, x.mdx\nconst A: &str = \"numbers.md\";\n"), []);
        let tree = crate::tidy::Tree::of(&[("a.rs", "// See `README.md`.\n"), ("README.md", "")]);
        let mut findings = Vec::new();
        super::check(&tree.files[0], &tree, &mut findings);
        assert_eq!(findings, []);
    }
}
