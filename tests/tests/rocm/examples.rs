//! The examples of msa-rocm, over simulated GPUs.

use msa_fake_hip::Simulated;
use msa_rocm::probe;
use msa_tests::rocm_emu;

use crate::pair::{ARCHITECTURES, ready};

#[allow(dead_code, reason = "its main is for a machine with GPUs")]
#[path = "../../../msa-rocm/examples/gather.rs"]
mod gather;

#[test]
fn every_rank_of_a_gather_selects_what_one_device_selects() {
    if !ready() {
        return;
    }
    for devices in [&["gfx950", "gfx950", "gfx950", "gfx950"][..], &["gfx942"]] {
        let simulated = Simulated::new(devices);
        let run = |world| gather::run(simulated.hip(), &rocm_emu::images().unwrap(), world).unwrap();
        let (lists, alone) = (run(4), run(1));
        assert_eq!((lists.len(), alone.len()), (4, 1));
        assert!(lists.iter().all(|list| *list == alone[0]), "{lists:?}, alone {alone:?}");
        // 3,000 tokens have 24 blocks; the own one is always there.
        assert!(lists[0].windows(2).all(|pair| pair[0] < pair[1]) && lists[0][15] == 23, "{lists:?}");
    }
}

#[test]
fn the_probe_records_every_lane() {
    if !ready() {
        return;
    }
    for arch in ARCHITECTURES {
        let simulated = Simulated::new(&[arch]);
        let images = rocm_emu::images().unwrap();
        // The transcendental unit has no model: what it gives is what the probe is for.
        let text = probe::record(simulated.hip(), 0, images, &probe::KERNELS[..3]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(arch), "{}", lines[0]);
        assert_eq!(lines.len(), 1 + 3 * 96 * 64);
        let words: Vec<&str> = lines[1].split(' ').collect();
        let widths: Vec<usize> = words[3..].iter().map(|word| word.len()).collect();
        assert_eq!((words[0], widths), (&*format!("probe.fp8k32.{arch}.mfma"), vec![64, 64, 32, 32]));
        // Something was computed.
        assert!(lines[1..].iter().filter(|line| line.ends_with(&"0".repeat(32))).count() < 100);
    }
}
