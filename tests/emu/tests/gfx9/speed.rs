//! How fast the interpreter is: the budget of continuous integration depends on it.

use std::time::{Duration, Instant};

use msa_emu::gfx9::{Machine, Options, Statistics};

use crate::requests::{BLOCK, Requests};
use crate::rig::{Random, bytes_of, kernel, run};
use crate::select::{op, parameters, random_scores};

/// Wave-instructions a second of one core that the interpreter must reach, matrix instructions not among them.
const FLOOR: f64 = 1e6;

/// Time that this thread has had a core, so that a busy machine does not count; elsewhere the time on the wall.
fn core_time(start: Instant) -> Duration {
    let own = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = own.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanoseconds.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

/// Runs `work`, and returns what it did and how long a core took.
fn timed(work: impl FnOnce() -> Statistics) -> (Statistics, f64) {
    let start = Instant::now();
    let before = core_time(start);
    let statistics = work();
    (statistics, (core_time(start) - before).as_secs_f64())
}

#[test]
fn instructions_a_second() {
    let Some(kernel) = kernel("select", "f32", "gfx950", "radix") else { return };
    let (mut random, op) = (Random::new(1), op(16, 0, 1));
    let requests = Requests::new(&[(1, 60_000)], &mut random);
    let columns = 60_000usize.div_ceil(BLOCK);
    let scores = random_scores(columns * 8, &mut random);
    let mut machine = Machine::new(1, Options::default());
    let device = requests.place(&mut machine);
    let (scores, out) =
        (machine.constant(&bytes_of(&scores, f32::to_le_bytes)), machine.buffer(&[0; 8 * 16 * 4]));
    let mut parameters = parameters(&op, device.batch, 8, columns);
    (parameters.scores, parameters.lists) = (machine.address(scores), machine.address(out));
    // The best of a few: caches and clocks of a shared machine.
    let mut best: f64 = 0.0;
    for _ in 0..5 {
        let (statistics, seconds) = timed(|| run(&mut machine, &kernel, [1, 8, 1], 256, &parameters));
        assert_eq!(statistics.matrix_instructions, 0);
        best = best.max(statistics.instructions as f64 / seconds);
    }
    println!("{best:.0} wave-instructions a second");
    assert!(best > FLOOR, "{best:.0} wave-instructions a second");
}
