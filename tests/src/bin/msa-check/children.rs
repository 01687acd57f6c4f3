//! The parent's side: cases go to child processes, so that a crash or a hang costs one case.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use msa_tests::Case;
use msa_tests::report::Check;

use crate::Failed;
use crate::devices::Devices;
use crate::outcome::Outcome;
use crate::worker::READY;

/// Cases that one child runs before the next one is started: what leaks is bounded, and the start costs little.
const BATCH: usize = 64;

/// Time that a device has to open: drivers load slowly.
const OPENING: Duration = Duration::from_secs(120);

/// How cases are run.
pub(crate) struct Runner<'a> {
    /// Device options, for the children's command line.
    pub(crate) devices: &'a Devices,
    /// Name of the device.
    pub(crate) name: &'a str,
    /// Children at a time.
    pub(crate) jobs: usize,
    /// Time that a case has.
    pub(crate) timeout: Duration,
    /// Recorded hashes.
    pub(crate) expected: Option<&'a Path>,
}

/// Cases one after the other in one child, which is replaced when it ends.
pub(crate) struct OneByOne<'a> {
    runner: &'a Runner<'a>,
    worker: Option<Worker>,
}

impl OneByOne<'_> {
    /// Runs one case.
    pub(crate) fn run(&mut self, case: &Case) -> Result<Outcome, Failed> {
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => Worker::start(self.runner)?,
        };
        let outcome = worker.run(self.runner.name, case, self.runner.timeout);
        if outcome.lost_its_device() {
            worker.end();
        }
        self.worker = (worker.alive && worker.runs < BATCH).then_some(worker);
        Ok(outcome)
    }
}

impl Runner<'_> {
    /// Runs `cases`; `done` hears of each as it ends, with its number.
    ///
    /// Errors: a child does not start, or its device does not open.
    pub(crate) fn run(&self, cases: &[Case], mut done: impl FnMut(usize, Outcome)) -> Result<(), Failed> {
        let next = AtomicUsize::new(0);
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, cases.len().max(1)) {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    if let Err(error) = self.work(cases, next, &sender) {
                        next.store(cases.len(), Ordering::Relaxed);
                        // The receiver outlives the threads.
                        let _ = sender.send(Err(error.to_string()));
                    }
                });
            }
            drop(sender);
            let mut first_error = None;
            for message in receiver {
                match message {
                    Ok((index, outcome)) => done(index, outcome),
                    Err(error) => {
                        first_error.get_or_insert(error);
                    }
                }
            }
            first_error.map_or(Ok(()), |error| Err(error.into()))
        })
    }

    /// A child for cases that are made one after the other.
    pub(crate) fn one_by_one(&self) -> OneByOne<'_> {
        OneByOne { runner: self, worker: None }
    }

    /// Takes cases until there are none left.
    fn work(
        &self,
        cases: &[Case],
        next: &AtomicUsize,
        sender: &Sender<Result<(usize, Outcome), String>>,
    ) -> Result<(), Failed> {
        let mut child = self.one_by_one();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(index) else { return Ok(()) };
            if sender.send(Ok((index, child.run(case)?))).is_err() {
                return Ok(());
            }
        }
    }
}

/// A child process.
struct Worker {
    process: Process,
    input: ChildStdin,
    lines: Receiver<String>,
    runs: usize,
    alive: bool,
}

impl Worker {
    fn start(runner: &Runner<'_>) -> Result<Self, Failed> {
        let (devices, name) = (runner.devices, runner.name);
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "--backend", name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(plugin) = &devices.plugin {
            command.arg("--plugin").arg(plugin);
        }
        if let Some(expected) = runner.expected {
            command.arg("--expected").arg(expected);
        }
        if let Some(units) = devices.units {
            command.arg("--units").arg(units.to_string());
        }
        let options = devices.options.iter().flat_map(|line| ["--option", line]);
        command.args(options.chain(devices.variant.iter().flat_map(|pattern| ["--variant", pattern])));
        let mut process = command.spawn()?;
        let input = process.stdin.take().ok_or("a child without standard input")?;
        let output = process.stdout.take().ok_or("a child without standard output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let all = BufReader::new(output).lines().map_while(Result::ok);
            // Ends when the child closes its output or nobody listens.
            all.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        let mut worker = Self { process, input, lines, runs: 0, alive: true };
        match worker.lines.recv_timeout(OPENING) {
            Ok(line) if line == READY => Ok(worker),
            _ => Err(format!("{name} does not open: {}", worker.end()).into()),
        }
    }

    fn run(&mut self, device: &str, case: &Case, timeout: Duration) -> Outcome {
        self.runs += 1;
        // A child that is gone is found by the missing answer.
        let _ = writeln!(self.input, "{case}").and_then(|()| self.input.flush());
        let answer = self.lines.recv_timeout(timeout);
        let wrong = |text: String| Outcome::failed(device, case, Check::Crash, text);
        match answer {
            Ok(line) => serde_json::from_str(&line).unwrap_or_else(|error| {
                self.alive = false;
                wrong(format!("the child answered '{line}': {error}"))
            }),
            Err(RecvTimeoutError::Timeout) => {
                self.end();
                Outcome::failed(
                    device,
                    case,
                    Check::Timeout,
                    format!("no end after {} s", timeout.as_secs_f32()),
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                let text = format!("the child ended with {}", self.end());
                wrong(text)
            }
        }
    }

    /// Ends the process and says how it ended.
    fn end(&mut self) -> String {
        let own = matches!(self.lines.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
        self.alive = false;
        if !own {
            // It may have ended meanwhile.
            let _ = self.process.kill();
        }
        self.process.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.alive {
            self.end();
        }
    }
}
