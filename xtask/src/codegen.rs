//! `cargo xtask codegen`: the files that are generated from code and committed.

use std::path::Path;
use std::process::Command;

/// A generated file: what the generator is asked for, and where the answer is kept.
struct Generated {
    what: &'static str,
    path: &'static str,
}

const GENERATED: [Generated; 2] = [
    Generated { what: "header", path: "msa-core/include/msa_plugin.h" },
    Generated { what: "layout", path: "msa-core/docs/abi-layout.txt" },
];

/// Write every generated file, or with `check` compare only.
///
/// # Errors
/// The generator's failure, or with `check` the files that are out of date.
pub(crate) fn run(root: &Path, check: bool) -> Result<(), String> {
    let mut stale = Vec::new();
    for file in GENERATED {
        let text = generate(root, file.what)?;
        let path = root.join(file.path);
        if std::fs::read_to_string(&path).is_ok_and(|committed| committed == text) {
            continue;
        }
        if check {
            stale.push(file.path);
            continue;
        }
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("wrote {}", file.path);
    }
    match stale.is_empty() {
        true => Ok(()),
        false => Err(format!("out of date, run cargo xtask codegen: {}", stale.join(", "))),
    }
}

/// The generator is an example of msa-core: the declarations are compiled there, and this package stays light.
fn generate(root: &Path, what: &str) -> Result<String, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).args(["run", "--quiet", "-p", "msa-core", "--example", "codegen", what]);
    let output = command.output().map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
