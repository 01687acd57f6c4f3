//! How fast the interpreter is: the budget of continuous integration depends on it.

use std::time::Instant;

use msa_emu::gfx9::{Machine, Options};

use crate::requests::{BLOCK, Requests};
use crate::rig::{Random, bytes_of, kernel, run};
use crate::select::{op, parameters, random_scores};

/// Wave-instructions a second below which the test fails. The aim is a million on an idle core; machines that run tests
/// are neither idle nor fast.
const FLOOR: f64 = 250_000.0;

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
    let start = Instant::now();
    let statistics = run(&mut machine, &kernel, [1, 8, 1], 256, &parameters);
    let rate = statistics.instructions as f64 / start.elapsed().as_secs_f64();
    println!("{} wave-instructions, {rate:.0} a second", statistics.instructions);
    assert!(rate > FLOOR, "{rate:.0} wave-instructions a second");
}
