//! What the pinned toolchain has installed: formatter, linter, standard libraries of other targets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Outcome;

/// Make sure that rustfmt and clippy are there: minimal toolchains come without.
///
/// They are added to the toolchain that `rust-toolchain.toml` pins, and to no other.
///
/// # Errors
/// The command to run by hand, if rustup is missing or cannot fetch them.
pub(super) fn ensure_components(root: &Path) -> Result<Outcome, String> {
    let missing: Vec<&str> = ["fmt", "clippy"].into_iter().filter(|tool| !answers(root, tool)).collect();
    if missing.is_empty() {
        println!("rustfmt and clippy are installed");
        return Ok(Outcome::Passed);
    }
    let text = std::fs::read_to_string(root.join("rust-toolchain.toml"))
        .map_err(|error| format!("rust-toolchain.toml: {error}"))?;
    let channel = pinned_channel(&text)?;
    let arguments = ["component", "add", "--toolchain", &channel, "rustfmt", "clippy"];
    let by_hand = format!("rustup {}", arguments.join(" "));
    println!("cargo {} missing: running `{by_hand}`", missing.join(" and cargo "));
    let added = Command::new("rustup").current_dir(root).args(arguments).status();
    match added {
        Ok(status) if status.success() && answers(root, "fmt") && answers(root, "clippy") => {
            Ok(Outcome::Passed)
        }
        Ok(status) => Err(format!("rustfmt or clippy is still missing ({status}); run `{by_hand}`")),
        Err(error) => Err(format!("rustup does not start ({error}); install it and run `{by_hand}`")),
    }
}

/// Whether the standard library of `target` lies beside the pinned compiler.
///
/// # Errors
/// The compiler does not start or does not know the target.
pub(super) fn has_standard_library(root: &Path, target: &str) -> Result<bool, String> {
    let output = Command::new("rustc")
        .current_dir(root)
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .map_err(|error| format!("rustc does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("rustc does not know {target}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(holds_std(&folder))
}

fn answers(root: &Path, tool: &str) -> bool {
    let mut command = Command::new("cargo");
    command.current_dir(root).args([tool, "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn pinned_channel(text: &str) -> Result<String, String> {
    let table: toml::Table = text.parse().map_err(|error| format!("rust-toolchain.toml: {error}"))?;
    let channel = table.get("toolchain").and_then(|toolchain| toolchain.get("channel"));
    match channel.and_then(toml::Value::as_str) {
        Some(channel) => Ok(channel.to_owned()),
        None => Err("rust-toolchain.toml: no toolchain.channel".to_owned()),
    }
}

fn holds_std(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_channel_is_read_from_the_pin() {
        assert_eq!(pinned_channel("[toolchain]\nchannel = \"1.95.0\"\n"), Ok("1.95.0".to_owned()));
        assert!(pinned_channel("[toolchain]\n").is_err());
        assert!(pinned_channel("channel = ").is_err());
    }

    #[test]
    fn a_folder_without_libstd_is_not_a_standard_library() {
        assert!(!holds_std(Path::new("no/such/folder")));
        assert!(!holds_std(Path::new(".")));
    }
}
