//! `msa-check test`: runs cases in child processes and counts.

use std::collections::{BTreeMap, HashMap};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use msa_tests::sets::{self, Known, matches};
use msa_tests::{Case, report::Check};

use crate::Failed;
use crate::children::Runner;
use crate::devices::Devices;
use crate::outcome::{FailedCheck, Outcome};
use crate::saved::{Saved, default_folder};
use crate::selection::Selection;

/// Options of `msa-check test`.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    devices: Devices,
    #[command(flatten)]
    selection: Selection,
    /// One line of JSON a case instead of text; the last line stays
    #[arg(long)]
    json: bool,
    /// Child processes at a time; by default one a core for CPU backends, else one
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Seconds that a case has
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    timeout: f32,
    /// Known failures instead of those of the harness
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
    /// Output hashes that `record` wrote: a passing case must have its own
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    /// Folder for failures
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
}

/// Runs the cases on every device that matches.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let cases = options.selection.read()?;
    let judge = Judge::new(options)?;
    let mut totals = Totals::default();
    if !options.json {
        println!("msa-check {}  {}", env!("CARGO_PKG_VERSION"), options.selection.describe());
    }
    for name in options.devices.names()? {
        let outcomes = run_device(options, &name, &cases)?;
        for (case, outcome) in cases.iter().zip(outcomes) {
            let outcome = judge.apply(case, outcome);
            report(options, &outcome)?;
            totals.add(&outcome);
        }
    }
    let misses = options.selection.hits()?.map(|hits| (hits.to_string(), hits.misses()));
    if !options.json {
        misses.iter().for_each(|(table, _)| print!("{table}"));
        print!("{}", totals.table());
    }
    let idle = misses.map_or(Vec::new(), |(_, misses)| misses);
    idle.iter().for_each(|miss| eprintln!("msa-check: below its floor: {miss}"));
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    Ok(totals.exit(!idle.is_empty()))
}

fn run_device(options: &Options, name: &str, cases: &[Case]) -> Result<Vec<Outcome>, Failed> {
    let on_cpu = name.starts_with("ref:") || name.starts_with("plugin:ref:");
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = options.jobs.unwrap_or(if on_cpu { cores } else { 1 });
    let timeout = Duration::try_from_secs_f32(options.timeout)?;
    let visible = std::io::stderr().is_terminal() && !options.json;
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(cases.len() as u64), target);
    bar.set_message(name.to_owned());
    let mut outcomes = vec![None; cases.len()];
    let runner = Runner { devices: &options.devices, name, jobs, timeout };
    let result = runner.run(cases, |index, outcome| {
        bar.inc(1);
        outcomes[index] = Some(outcome);
    });
    bar.finish_and_clear();
    result?;
    let missing = |case: &Case| Outcome::failed(name, case, Check::Crash, "no child ran it");
    Ok(outcomes.into_iter().zip(cases).map(|(o, case)| o.unwrap_or_else(|| missing(case))).collect())
}

/// Known failures and recorded hashes.
struct Judge {
    known: Vec<Known>,
    expected: HashMap<String, String>,
}

impl Judge {
    fn new(options: &Options) -> Result<Self, Failed> {
        let known = match &options.known {
            Some(path) => sets::known(&std::fs::read_to_string(path)?)?,
            None => sets::known(sets::KNOWN)?,
        };
        let recorded = match &options.expected {
            Some(path) => std::fs::read_to_string(path)?,
            None => String::new(),
        };
        let entry = |line: &str| {
            let mut words = line.splitn(3, ' ');
            let (hash, _plan, case) = (words.next()?, words.next()?, words.next()?);
            Some((case.to_owned(), hash.to_owned()))
        };
        Ok(Self { known, expected: recorded.lines().filter_map(entry).collect() })
    }

    /// A known failure is a skip, its passing is a failure, and so is another hash than the recorded one.
    fn apply(&self, case: &Case, mut outcome: Outcome) -> Outcome {
        let known = self.known.iter().find(|k| k.case == *case && matches(&k.device, &outcome.device));
        if let Some(known) = known {
            let expected = !outcome.failures.is_empty()
                && outcome.failures.iter().all(|f| f.check == known.check.name());
            if outcome.is_passed() {
                let text = format!("a known failure passes, remove its line: {}", known.reason);
                return Outcome::failed(&outcome.device, case, Check::Known, text);
            } else if expected {
                outcome.verdict = "skipped".to_owned();
                outcome.reason = format!("known failure: {}", known.reason);
                return outcome;
            }
        }
        match self.expected.get(&outcome.case) {
            Some(want) if outcome.is_passed() && *want != outcome.hash => {
                let text = format!("hash of the outputs: got {}, recorded {want}", outcome.hash);
                Outcome::failed(&outcome.device, case, Check::Sim, text)
            }
            _ => outcome,
        }
    }
}

/// Prints an outcome that did not pass; saves failures.
fn report(options: &Options, outcome: &Outcome) -> Result<(), Failed> {
    if options.json {
        println!("{}", serde_json::to_string(outcome)?);
    } else if outcome.is_failed() {
        println!("FAILED {} {}", outcome.device, outcome.case);
        outcome.failures.iter().for_each(|FailedCheck { check, detail }| println!("  {check}: {detail}"));
    }
    if !outcome.is_failed() {
        return Ok(());
    }
    let command = repeat_command(&options.devices, outcome);
    let saved = Saved { version: env!("CARGO_PKG_VERSION").to_owned(), command, outcome: outcome.clone() };
    let path = saved.write(&options.save.clone().unwrap_or_else(default_folder))?;
    if !options.json {
        println!("  repeat: {}\n  saved: {}", saved.command, path.display());
    }
    Ok(())
}

fn repeat_command(devices: &Devices, outcome: &Outcome) -> String {
    let mut command = format!("msa-check -b {}", outcome.device);
    devices.plugin.iter().for_each(|path| command += &format!(" --plugin '{}'", path.display()));
    devices.options.iter().for_each(|line| command += &format!(" --option '{line}'"));
    devices.variant.iter().for_each(|pattern| command += &format!(" -V '{pattern}'"));
    command + &format!(" -c '{}'", outcome.case)
}

/// Counts, by variant and by reason.
#[derive(Debug, Default)]
struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
    variants: BTreeMap<String, (usize, f64, u64)>,
    reasons: BTreeMap<String, usize>,
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        if outcome.is_passed() {
            self.passed += 1;
            let row = self.variants.entry(format!("{}  {}", outcome.device, outcome.variant)).or_default();
            row.0 += 1;
            row.1 = row.1.max(outcome.ratio);
            row.2 += outcome.near_ties;
        } else if outcome.is_failed() {
            self.failed += 1;
        } else {
            self.skipped += 1;
            *self.reasons.entry(outcome.reason.clone()).or_default() += 1;
        }
    }

    fn table(&self) -> String {
        let rows = self.variants.iter().map(|(variant, (cases, ratio, near_ties))| {
            format!("{variant:<48} {cases:>6} passed  worst {ratio:.3} of the bound  {near_ties} near-ties\n")
        });
        let reasons = self.reasons.iter().map(|(reason, count)| format!("skipped {count} x {reason}\n"));
        rows.chain(reasons).collect()
    }

    /// Nothing executed proves nothing.
    fn exit(&self, idle: bool) -> ExitCode {
        match (self.passed + self.failed, self.failed) {
            (0, _) => ExitCode::from(2),
            (_, 0) if !idle => ExitCode::SUCCESS,
            _ => ExitCode::from(1),
        }
    }
}
