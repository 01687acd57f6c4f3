//! The set `ci` on the linked reference and on the reference as a plugin: every case must give the same through the border.

use std::path::Path;

use super::Outcome;
use crate::{dist, target_folder};

/// Fewest cases that prove anything: the set has more than twice as many.
const FEWEST: usize = 60;

/// Runs both from the folder that `cargo xtask dist` made, as another machine would, and compares verdicts, variants, errors
/// and hashes of the outputs case by case.
///
/// # Errors
/// A case that fails on either side, or the first that differs.
pub(super) fn compare(root: &Path) -> Result<Outcome, String> {
    let folder = target_folder(root).join("dist");
    let [linked, loaded] = ["ref", "plugin:ref"].map(|device| outcomes(&folder, device));
    let same = equal_outcomes(&linked?, &loaded?)?;
    println!("{same} cases give equal results on ref and on plugin:ref");
    Ok(Outcome::Passed)
}

/// What `msa-check --json` printed: a line a case, then the counts.
fn outcomes(folder: &Path, device: &str) -> Result<String, String> {
    let mut command = dist::elsewhere(folder, "msa-check", &["-b", device, "-s", "ci", "--json"]);
    let output = command.output().map_err(|error| format!("{command:?} does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{device}: {}", text.lines().last().unwrap_or("no output"));
    if output.status.success() {
        return Ok(text);
    }
    let failed: Vec<&str> = text.lines().filter(|line| line.contains("\"verdict\":\"failed\"")).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}\n{}\n{errors}", output.status, failed.join("\n")))
}

/// Number of cases whose lines are equal but for the name of the device.
fn equal_outcomes(linked: &str, loaded: &str) -> Result<usize, String> {
    let cases = |text: &str, device: &str| -> Vec<String> {
        let name = format!("\"device\":\"{device}:0\",");
        text.lines().filter(|line| line.starts_with('{')).map(|line| line.replacen(&name, "", 1)).collect()
    };
    let (linked, loaded) = (cases(linked, "ref"), cases(loaded, "plugin:ref"));
    if let Some((want, got)) = linked.iter().zip(&loaded).find(|(want, got)| want != got) {
        return Err(format!("through the border a case differs:\n  ref        {want}\n  plugin:ref {got}"));
    }
    if linked.len() != loaded.len() || linked.len() < FEWEST {
        let (linked, loaded) = (linked.len(), loaded.len());
        return Err(format!("want equal numbers of cases and at least {FEWEST}, got {linked} and {loaded}"));
    }
    Ok(linked.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `cases` cases on a device, the last with its own hash.
    fn output(device: &str, cases: usize, last: &str) -> String {
        let line =
            |hash: &str| format!("{{\"device\":\"{device}:0\",\"case\":\"merge()\",\"hash\":\"{hash}\"}}\n");
        format!("{}{}{cases} passed, 0 failed, 0 skipped\n", line("0a").repeat(cases - 1), line(last))
    }

    #[test]
    fn only_the_name_of_the_device_may_differ() {
        let linked = output("ref", 100, "0b");
        assert_eq!(equal_outcomes(&linked, &output("plugin:ref", 100, "0b")), Ok(100));
        let message = equal_outcomes(&linked, &output("plugin:ref", 100, "0c")).expect_err("another hash");
        assert!(message.contains("\"hash\":\"0b\"") && message.contains("\"hash\":\"0c\""), "{message}");
    }

    #[test]
    fn too_few_cases_prove_nothing() {
        let few = equal_outcomes(&output("ref", 5, "0a"), &output("plugin:ref", 5, "0a"));
        assert_eq!(few, Err("want equal numbers of cases and at least 60, got 5 and 5".to_owned()));
        assert!(equal_outcomes(&output("ref", 100, "0a"), &output("plugin:ref", 99, "0a")).is_err());
        assert!(equal_outcomes("", "").is_err());
    }
}
