//! `msa-check test`: runs cases in child processes and counts.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use msa_tests::hits::Hits;
use msa_tests::{Case, report::Check};
use msa_tests::{rehearsal, rocm_emu};

use crate::Failed;
use crate::children::Runner;
use crate::devices::Devices;
use crate::expected::Record;
use crate::judge::Judge;
use crate::outcome::{FailedCheck, Outcome};
use crate::random;
use crate::saved::{Saved, default_folder};
use crate::selection::Selection;
use crate::totals::Totals;

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
    /// Seconds that a case has: 30, on interpreted hardware 300
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f32>,
    /// Known failures instead of those of the harness
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
    /// Hashes that `record` wrote: a case with the same plan and outputs passes without the reference
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    /// Folder for failures
    #[arg(long, value_name = "FOLDER")]
    save: Option<PathBuf>,
    /// Print random cases that fail as they were drawn instead of making them small
    #[arg(long)]
    no_shrink: bool,
}

/// Runs the cases on every device that matches.
pub(crate) fn run(options: &Options) -> Result<ExitCode, Failed> {
    let cases = options.selection.read()?;
    let judge = Judge::new(options.known.as_deref())?;
    // A file that does not parse is an error of this process, not of its children.
    options.expected.as_deref().map(Record::read).transpose()?;
    let (mut totals, mut misses) = (Totals::default(), Vec::new());
    if !options.json {
        println!("msa-check {}  {}", env!("CARGO_PKG_VERSION"), options.selection.describe());
    }
    for name in options.devices.names()? {
        let mut on_device = OnDevice { options, judge: &judge, name: &name, totals: &mut totals };
        on_device.named(&cases)?;
        if let Some(hits) = on_device.random()? {
            print_hits(options, &name, &hits);
            misses.extend(hits.misses().into_iter().map(|miss| format!("{name}: below its floor: {miss}")));
        }
    }
    if !options.json {
        print!("{}", totals.table());
    }
    misses.iter().for_each(|miss| eprintln!("msa-check: {miss}"));
    println!("{}", totals.last_line());
    Ok(totals.exit(!misses.is_empty()))
}

fn print_hits(options: &Options, name: &str, hits: &Hits) {
    if options.json {
        let object = serde_json::json!({ "device": name, "hits": hits.to_json(), "below": hits.misses() });
        println!("{object}");
    } else {
        println!("executed on {name}:\n{hits}");
    }
}

/// Runs on one device, with where their outcomes go.
struct OnDevice<'a> {
    options: &'a Options,
    judge: &'a Judge,
    name: &'a str,
    totals: &'a mut Totals,
}

impl OnDevice<'_> {
    fn runner(&self) -> Result<Runner<'_>, Failed> {
        let options = self.options;
        let on_cpu = ["ref:", "plugin:ref:", rehearsal::PREFIX].iter().any(|own| self.name.starts_with(own));
        let own_limit = if rocm_emu::is_model(self.name) { 300.0 } else { 30.0 };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Runner {
            devices: &options.devices,
            name: self.name,
            jobs: options.jobs.unwrap_or(if on_cpu { cores } else { 1 }),
            timeout: Duration::try_from_secs_f32(options.timeout.unwrap_or(own_limit))?,
            expected: options.expected.as_deref(),
        })
    }

    /// The cases that were named.
    fn named(&mut self, cases: &[Case]) -> Result<(), Failed> {
        let outcomes = run_all(&self.runner()?, cases, self.options.json)?;
        cases.iter().zip(outcomes).try_for_each(|(case, outcome)| self.take(case, outcome))
    }

    /// The random cases; what they hit, if there are any.
    fn random(&mut self) -> Result<Option<Hits>, Failed> {
        let runner = self.runner()?;
        let run = |cases: &[Case]| run_all(&runner, cases, self.options.json);
        let Some(mut ran) = random::run(&self.options.selection, run)? else { return Ok(None) };
        if !self.options.no_shrink {
            random::shrink_failures(&runner, &mut ran.outcomes)?;
        }
        ran.outcomes.into_iter().try_for_each(|(case, outcome)| self.take(&case, outcome))?;
        Ok(Some(ran.hits))
    }

    fn take(&mut self, case: &Case, outcome: Outcome) -> Result<(), Failed> {
        let outcome = self.judge.apply(case, outcome);
        self.totals.add(&outcome);
        report(self.options, &outcome)
    }
}

/// Runs cases with a progress bar on a terminal.
fn run_all(runner: &Runner<'_>, cases: &[Case], json: bool) -> Result<Vec<Outcome>, Failed> {
    let visible = std::io::stderr().is_terminal() && !json;
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(cases.len() as u64), target);
    bar.set_style(ProgressStyle::with_template("{msg} [{bar:40}] {pos}/{len} cases, {eta} left")?);
    bar.set_message(runner.name.to_owned());
    let mut outcomes = vec![None; cases.len()];
    let result = runner.run(cases, |index, outcome| {
        bar.inc(1);
        outcomes[index] = Some(outcome);
    });
    bar.finish_and_clear();
    result?;
    let missing = |case: &Case| Outcome::failed(runner.name, case, Check::Crash, "no child ran it");
    Ok(outcomes.into_iter().zip(cases).map(|(o, case)| o.unwrap_or_else(|| missing(case))).collect())
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
        if !outcome.shrunk_from.is_empty() {
            println!("  {}", outcome.shrunk_from);
        }
        println!("  repeat: {}\n  saved: {}", saved.command, path.display());
    }
    Ok(())
}

fn repeat_command(devices: &Devices, outcome: &Outcome) -> String {
    let mut command = format!("msa-check -b {}", outcome.device);
    devices.plugin.iter().for_each(|path| command += &format!(" --plugin '{}'", path.display()));
    devices.options.iter().for_each(|line| command += &format!(" --option '{line}'"));
    devices.variant.iter().for_each(|pattern| command += &format!(" -V '{pattern}'"));
    devices.units.iter().for_each(|units| command += &format!(" --units {units}"));
    command + &format!(" -c '{}'", outcome.case)
}
