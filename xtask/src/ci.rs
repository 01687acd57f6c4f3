//! `cargo xtask ci`: every check, in order, each with its wall time; the first failure ends the run.

mod border;
mod hip;
mod hip_rs;
mod toolchain;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{codegen, dist, tidy};

/// Run all steps in the workspace at `root`, or those of `only`, in their own order.
///
/// # Errors
/// A name that no step has; the name of the first step that failed, with what it said. The table of the steps is printed in
/// either case.
pub(crate) fn run(root: &Path, only: &[String]) -> Result<(), String> {
    run_steps(&choose(STEPS, only)?, root)
}

fn choose(steps: &[Step], only: &[String]) -> Result<Vec<Step>, String> {
    if let Some(other) = only.iter().find(|name| steps.iter().all(|step| step.name != name.as_str())) {
        let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
        return Err(format!("--only: want one of {}, got {other}", names.join(", ")));
    }
    let chosen = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
    Ok(steps.iter().filter(chosen).copied().collect())
}

/// One check.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    work: Work,
}

/// A step that this program does itself, on the workspace root.
type Function = fn(&Path) -> Result<Outcome, String>;

/// What a step does.
#[derive(Clone, Copy)]
enum Work {
    /// `cargo` with these arguments and, where given, one more environment variable.
    Cargo { arguments: &'static [&'static str], variable: Option<(&'static str, &'static str)> },
    /// The tests, with the CUDA images embedded that were built before.
    Test,
    /// A function of this program.
    Call(Function),
}

/// How a step ended when it did not fail.
#[derive(Debug, PartialEq)]
enum Outcome {
    Passed,
    Skipped(String),
}

/// A finished step, for the closing table.
struct Row {
    name: &'static str,
    result: Result<Outcome, String>,
    time: Duration,
}

const STEPS: &[Step] = &[
    Step { name: "toolchain", work: Work::Call(toolchain::ensure_components) },
    Step::cargo("format", &["fmt", "--all", "--check"]),
    Step::cargo("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    Step::cargo("build", &["build", "--workspace"]),
    Step { name: "rocm", work: Work::Call(rocm_step) },
    Step { name: "cuda", work: Work::Call(cuda_step) },
    Step { name: "census", work: Work::Call(census_step) },
    Step { name: "hip", work: Work::Call(hip::unpack) },
    // Before the tests, which load the plugins that it makes.
    Step { name: "dist", work: Work::Call(dist_step) },
    Step { name: "test", work: Work::Test },
    Step {
        name: "doc",
        work: Work::Cargo {
            arguments: &["doc", "--workspace", "--no-deps"],
            variable: Some(("RUSTDOCFLAGS", "-D warnings")),
        },
    },
    Step { name: "hip-rs", work: Work::Call(hip_rs::check) },
    Step { name: "codegen", work: Work::Call(codegen_step) },
    Step { name: "tidy", work: Work::Call(tidy_step) },
    Step { name: "aarch64", work: Work::Call(check_aarch64) },
    Step { name: "border", work: Work::Call(border::compare) },
    // Packaging reads the folders only: what it packs was compiled above, and the network is not touched.
    Step::cargo(
        "package",
        &[
            "package",
            "--no-verify",
            "--allow-dirty",
            "--offline",
            "-p",
            "msa-core",
            "-p",
            "msa-ref",
            "-p",
            "msa-cuda",
            "-p",
            "msa-rocm",
        ],
    ),
];

const TEST: [&str; 2] = ["test", "--workspace"];

const AARCH64: &str = "aarch64-unknown-linux-gnu";

impl Step {
    const fn cargo(name: &'static str, arguments: &'static [&'static str]) -> Step {
        Step { name, work: Work::Cargo { arguments, variable: None } }
    }

    fn run(&self, root: &Path) -> Result<Outcome, String> {
        match &self.work {
            Work::Cargo { arguments, variable } => {
                let variable = variable.map(|(name, value)| (name, value.into()));
                cargo(root, arguments, variable.as_slice())
            }
            Work::Test => cargo(root, &TEST, &test_variables(root)),
            Work::Call(function) => function(root),
        }
    }

    fn heading(&self) -> String {
        match &self.work {
            Work::Cargo { arguments, variable } => {
                let variable = variable.map_or(String::new(), |(name, value)| format!("{name}={value:?} "));
                format!("{}: {variable}cargo {}", self.name, arguments.join(" "))
            }
            Work::Test => format!("{}: cargo {}", self.name, TEST.join(" ")),
            Work::Call(_) => self.name.to_owned(),
        }
    }
}

fn run_steps(steps: &[Step], root: &Path) -> Result<(), String> {
    let start = Instant::now();
    let mut rows = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        println!("\n== {}/{} {}", number + 1, steps.len(), step.heading());
        let begin = Instant::now();
        let result = step.run(root);
        let time = begin.elapsed();
        println!("-- {}: {:.1} s", step.name, time.as_secs_f64());
        let failed = result.is_err();
        rows.push(Row { name: step.name, result, time });
        if failed {
            break;
        }
    }
    print!("\n{}", table(&rows, steps, start.elapsed()));
    match rows.pop() {
        Some(Row { name, result: Err(message), .. }) => Err(format!("step `{name}` failed: {message}")),
        _ => Ok(()),
    }
}

/// The closing table: every step with its time and its end, those that were not reached included, then the sum.
fn table(rows: &[Row], steps: &[Step], total: Duration) -> String {
    let mut text = String::new();
    for (number, step) in steps.iter().enumerate() {
        let (time, end) = match rows.get(number) {
            Some(row) => (format!("{:.1} s", row.time.as_secs_f64()), end_of(row)),
            None => ("-".to_owned(), "not run".to_owned()),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<10} {time:>9}  {end}", step.name);
    }
    let _ = writeln!(text, "{:<10} {:>9}", "total", format!("{:.1} s", total.as_secs_f64()));
    text
}

fn end_of(row: &Row) -> String {
    match &row.result {
        Ok(Outcome::Passed) => "ok".to_owned(),
        Ok(Outcome::Skipped(reason)) => format!("skipped: {reason}"),
        Err(_) => "FAILED".to_owned(),
    }
}

/// Run cargo with its output on ours: the closing lines of the test runner must reach whoever counts them.
fn cargo(root: &Path, arguments: &[&str], variables: &[(&str, OsString)]) -> Result<Outcome, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(root).args(arguments).envs(variables.iter().cloned());
    let status = command.status().map_err(|error| format!("cargo does not start: {error}"))?;
    match status.success() {
        true => Ok(Outcome::Passed),
        false => Err(format!("`cargo {}` ended with {status}", arguments.join(" "))),
    }
}

/// AMD kernels and their faulty twins, which the tests execute.
fn rocm_step(root: &Path) -> Result<Outcome, String> {
    crate::rocm::build_kernels(root, false)?;
    crate::rocm::build_mutants(root).map(|()| Outcome::Passed)
}

/// Every plugin and the tools: made and tried.
fn dist_step(root: &Path) -> Result<Outcome, String> {
    dist::make(root, &[]).map(|_| Outcome::Passed)
}

/// Every image of every architecture; only what changed is compiled.
fn cuda_step(root: &Path) -> Result<Outcome, String> {
    crate::cuda::build_kernels(root).map(|()| Outcome::Passed)
}

/// What the compiler made of the kernels is what was committed, without spills, QMUL4 where it should be.
fn census_step(root: &Path) -> Result<Outcome, String> {
    crate::cuda::check_census(root, false).map(|()| Outcome::Passed)
}

/// Kernels were just built: a test that misses them must not pass. Tests for a GPU run under its plans on the reference where
/// nothing else is said.
fn test_variables(root: &Path) -> Vec<(&'static str, OsString)> {
    let images = crate::cuda::output_folder(root).into_os_string();
    let device = std::env::var_os("MSA_TEST_DEVICE").unwrap_or_else(|| "as:sm90a".into());
    let mut variables =
        vec![("MSA_REQUIRE_KERNELS", "1".into()), ("MSA_CUDA_KERNELS", images), ("MSA_TEST_DEVICE", device)];
    // Where AMD's runtime was unpacked, the test that opens it must.
    variables.extend(hip::unpacked(root).map(|folder| ("MSA_HIP_RUNTIME", folder.into_os_string())));
    variables
}

fn tidy_step(root: &Path) -> Result<Outcome, String> {
    tidy::run(root).map(|()| Outcome::Passed)
}

fn codegen_step(root: &Path) -> Result<Outcome, String> {
    codegen::run(root, true).map(|()| Outcome::Passed)
}

/// Type-check for 64-bit Arm hosts where that target's standard library is installed; nothing is downloaded.
fn check_aarch64(root: &Path) -> Result<Outcome, String> {
    if toolchain::has_standard_library(root, AARCH64)? {
        return cargo(root, &["check", "--workspace", "--target", AARCH64], &[]);
    }
    let reason = format!("the standard library of {AARCH64} is not installed");
    println!("skipped: {reason}");
    Ok(Outcome::Skipped(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(_: &Path) -> Result<Outcome, String> {
        Ok(Outcome::Passed)
    }

    fn skip(_: &Path) -> Result<Outcome, String> {
        Ok(Outcome::Skipped("not here".to_owned()))
    }

    fn fail(_: &Path) -> Result<Outcome, String> {
        Err("it broke".to_owned())
    }

    fn steps(works: &[Function]) -> Vec<Step> {
        works.iter().map(|work| Step { name: "step", work: Work::Call(*work) }).collect()
    }

    #[test]
    fn the_first_failure_ends_the_run() {
        let here = Path::new(".");
        assert_eq!(run_steps(&steps(&[pass, skip]), here), Ok(()));
        let stopped = run_steps(&steps(&[pass, fail, |_| panic!("reached")]), here);
        assert_eq!(stopped, Err("step `step` failed: it broke".to_owned()));
    }

    #[test]
    fn chosen_steps_run_in_their_own_order() {
        let chosen = |only: &[&str]| -> Result<Vec<&str>, String> {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            choose(STEPS, &only).map(|steps| steps.iter().map(|step| step.name).collect())
        };
        assert_eq!(chosen(&["border", "dist"]), Ok(vec!["dist", "border"]));
        assert_eq!(chosen(&[]).map(|all| all.len()), Ok(STEPS.len()));
        assert!(chosen(&["dist", "lunch"]).is_err_and(|text| text.ends_with(", package, got lunch")));
    }

    /// The feature hip-rs of msa-rocm cannot be linked without ROCm.
    #[test]
    fn no_step_asks_for_all_features() {
        let asks = |step: &Step| step.heading().contains("--all-features");
        assert!(!STEPS.iter().any(asks) && STEPS.iter().any(|step| step.name == "hip-rs"));
    }

    #[test]
    fn the_table_names_every_step() {
        let steps = steps(&[pass, skip, fail, pass]);
        let rows: Vec<Row> = steps[..3]
            .iter()
            .map(|step| Row {
                name: step.name,
                result: step.run(Path::new(".")),
                time: Duration::from_millis(1250),
            })
            .collect();
        let text = table(&rows, &steps, Duration::from_secs(3));
        let ends: Vec<&str> = text.lines().map(|line| line.rsplit("  ").next().unwrap_or("")).collect();
        assert_eq!(ends, ["ok", "skipped: not here", "FAILED", "not run", "3.0 s"]);
        assert!(text.contains("1.2 s"), "{text}");
    }

    #[test]
    fn a_cargo_failure_is_an_error_with_the_command() {
        let message = cargo(Path::new("."), &["no-such-subcommand"], &[]).expect_err("cargo refuses it");
        assert!(message.contains("cargo no-such-subcommand"), "{message}");
    }
}
