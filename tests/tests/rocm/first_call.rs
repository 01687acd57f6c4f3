//! O07 of `tests/field.toml`: the first call of every operation compiles nothing.
//!
//! In a process of its own that may not write to any file (`ulimit -f 0`), with an empty `PATH` and empty folders for all
//! that is usually cached. The interpreter, which stands for the GPU, lists a kernel's code before it executes it: that is
//! done before, by another device.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use msa_core::backend::Device;
use msa_fake_hip::Simulated;
use msa_rocm::backend_over;
use msa_tests::rocm_emu;
use msa_tests::steps::Run;
use msa_tests::trial::Trial;

use crate::pair::{ARCHITECTURES, LINES, flavoured, ready};

/// Says to a process that it is the one without a compiler.
const CHILD: &str = "MSA_FIRST_CALL_TEST";

const TEST: &str = "first_call::o07_the_first_call_starts_no_process_and_writes_no_file";

/// Of a device that nobody has used.
fn fresh(arch: &str) -> Arc<dyn Device> {
    let simulated = Simulated::new(&[arch]);
    let device = backend_over(simulated.hip(), rocm_emu::images().unwrap()).open(0).unwrap();
    // The device outlives what its functions lead to.
    std::mem::forget(simulated);
    device
}

/// Page faults of children that have ended: any program that ran has some. Fields 11 and 13 of proc(5)'s stat.
fn faults_of_children() -> [u64; 2] {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    [8, 10].map(|field| fields[field].parse().unwrap())
}

fn running_children() -> String {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default()).collect()
}

/// Milliseconds from a plan to the end of its first call, the interpreter's work not among them: until it is enqueued.
fn first_call(device: &Arc<dyn Device>, trial: &Trial) -> u128 {
    let start = Instant::now();
    let prepared = device.prepare(&trial.plan).unwrap();
    let time = start.elapsed().as_millis();
    drop(prepared);
    Run::start(device, &trial.case, &trial.plan, &trial.inputs).unwrap();
    time
}

fn child() {
    for arch in ARCHITECTURES {
        let trial = |device: &Arc<dyn Device>, line: &str| {
            Trial::new(device, flavoured(arch, line).parse().unwrap()).unwrap()
        };
        let warm = fresh(arch);
        LINES.iter().for_each(|line| drop(trial(&warm, line).run().unwrap()));
        let before = faults_of_children();
        assert!(
            before[0] > 0,
            "the interpreter asks the compiler where its library is, and that is not seen"
        );
        let device = fresh(arch);
        for line in LINES {
            let time = first_call(&device, &trial(&device, line));
            // The report asks for 100, which hardware has to show: here code is loaded by the interpreter.
            println!("{arch} {line}: {time} ms to load");
        }
        assert_eq!((faults_of_children(), running_children()), (before, String::new()), "{arch}");
    }
    let home = std::env::var("HOME").unwrap();
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
    assert!(std::env::var_os("PATH").is_some_and(|path| path.is_empty()));
    // The limit that the parent set holds.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let of_files = limits.lines().find_map(|line| line.strip_prefix("Max file size")).unwrap();
    assert_eq!(of_files.split_whitespace().next(), Some("0"), "{limits}");
}

#[test]
fn o07_the_first_call_starts_no_process_and_writes_no_file() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    if !ready() {
        return;
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output().unwrap().stdout;
    let rustc = format!("{}/bin/rustc", String::from_utf8(sysroot).unwrap().trim());
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new("/bin/sh");
    // A file may hold nothing: a write to one is a signal that ends the process.
    command.args(["-c", "ulimit -f 0 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
    command.env_clear().env(CHILD, "1").env("PATH", "").env("RUSTC", rustc);
    for folder in ["HOME", "TMPDIR", "XDG_CACHE_HOME"] {
        command.env(folder, home.path());
    }
    let output = command.output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{}:\n{text}", output.status);
    print!("{text}");
}
