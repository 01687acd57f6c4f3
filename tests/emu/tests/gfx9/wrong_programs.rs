//! What the interpreter does not let pass: each wrong program is a few instructions, put in the place of a shipped kernel.

use msa_emu::gfx9::code_object::CodeObject;
use msa_emu::gfx9::disassemble::Disassembler;
use msa_emu::gfx9::{Arguments, EmuError, Kernel, Launch, Machine};

use crate::rig::{ARCHITECTURES, artifacts, code_object, options};

/// A kernel with LDS, whose first argument is an address here.
const HOST: &str = "select_merge";

/// Instructions by LLVM's text; their encodings are the same on both architectures.
const ENCODINGS: &[(&str, &[u32])] = &[
    ("s_load_dwordx2 s[4:5], s[0:1], 0x0", &[0xc006_0100, 0x0000_0000]),
    ("s_waitcnt lgkmcnt(0)", &[0xbf8c_c07f]),
    ("s_waitcnt vmcnt(0)", &[0xbf8c_0f70]),
    ("s_barrier", &[0xbf8a_0000]),
    ("v_lshlrev_b32_e32 v1, 2, v0", &[0x2402_0082]),
    ("v_mov_b32_e32 v1, 0x7fff0000", &[0x7e02_02ff, 0x7fff_0000]),
    ("v_mov_b32_e32 v1, 0", &[0x7e02_0280]),
    ("v_mov_b32_e32 v1, 2", &[0x7e02_0282]),
    ("global_load_dword v2, v1, s[4:5]", &[0xdc50_8000, 0x0204_0001]),
    ("global_load_dword v2, v1, s[4:5] offset:256", &[0xdc50_8100, 0x0204_0001]),
    ("global_store_dword v1, v0, s[4:5]", &[0xdc70_8000, 0x0004_0001]),
    ("v_add_u32_e32 v3, v2, v2", &[0x6806_0502]),
    ("s_add_u32 s6, s20, 1", &[0x8006_8114]),
    ("v_cndmask_b32_e32 v3, v0, v0, vcc", &[0x0006_0100]),
    ("s_cselect_b32 s6, 1, 2", &[0x8506_8281]),
    ("ds_read_b32 v2, v1", &[0xd86c_0000, 0x0200_0001]),
    ("ds_write_b32 v1, v0", &[0xd81a_0000, 0x0000_0001]),
    ("v_sin_f32_e32 v3, v0", &[0x7e06_5300]),
    ("s_branch 1000", &[0xbf82_03e8]),
    ("s_endpgm", &[0xbf81_0000]),
];

fn encode(program: &[&str]) -> Vec<u8> {
    let words = program.iter().flat_map(|text| {
        let found = ENCODINGS.iter().find(|(known, _)| known == text);
        found.unwrap_or_else(|| panic!("no encoding of `{text}`")).1
    });
    words.flat_map(|word| word.to_le_bytes()).collect()
}

fn host(architecture: &str) -> Option<CodeObject> {
    code_object(&artifacts().join(format!("{HOST}.{architecture}.hsaco")))
}

/// What `program` gives in two waves on 64 words of memory; `None` where kernels were not built.
fn run(architecture: &str, program: &[&str]) -> Option<Result<(), EmuError>> {
    let symbol = format!("{HOST}_u64_{architecture}_count");
    let object = host(architecture)?.with_code(&symbol, encode(program)).unwrap();
    let kernel = match Kernel::load(&object, &symbol) {
        Ok(kernel) => kernel,
        Err(error) => return Some(Err(error)),
    };
    let mut machine = Machine::new(1, options(1));
    let words = machine.buffer(&[0x11; 64 * 4]);
    let mut arguments = machine.address(words).to_le_bytes().to_vec();
    arguments.resize(kernel.code().argument_bytes as usize, 0);
    let launch =
        Launch { kernel, grid: [1, 1, 1], threads: 128, arguments: Arguments::new().bytes(&arguments) };
    Some(machine.run(&launch).map(drop))
}

#[test]
fn the_encodings_are_llvms() {
    for (architecture, _) in ARCHITECTURES {
        let disassembler = Disassembler::new(architecture).unwrap();
        for (text, _) in ENCODINGS {
            let listing = disassembler.listing(&encode(&[text])).unwrap();
            assert_eq!(listing[0].text, *text, "{architecture}");
        }
    }
}

#[test]
fn wrong_programs_are_errors_that_name_the_instruction() {
    const POINTER: [&str; 2] = ["s_load_dwordx2 s[4:5], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)"];
    let [load, wait] = POINTER;
    let (lane, end) = ("v_lshlrev_b32_e32 v1, 2, v0", "s_endpgm");
    let (fetch, use_it) = ("global_load_dword v2, v1, s[4:5]", "v_add_u32_e32 v3, v2, v2");
    // Each with the offset of the faulty instruction, its text and what is wrong with it.
    let cases: &[(&[&str], &str)] = &[
        (
            &[use_it, end],
            "+0x0: `v_add_u32_e32 v3, v2, v2` in wave 0 of group [0, 0, 0] on GPU 0: v2 of lane 0 was never",
        ),
        (&["s_add_u32 s6, s20, 1", end], "s20 was never written"),
        (&["v_cndmask_b32_e32 v3, v0, v0, vcc", end], "vcc_lo was never written"),
        (&["s_cselect_b32 s6, 1, 2", end], "scc was never written"),
        (&[lane, "ds_read_b32 v2, v1", end], "+0x4: `ds_read_b32 v2, v1` in wave"),
        (&[lane, "ds_read_b32 v2, v1", end], "was never written"),
        (&["v_mov_b32_e32 v1, 0x7fff0000", "ds_read_b32 v2, v1", end], "LDS offset 0x7fff0000 is beyond"),
        (
            &["v_mov_b32_e32 v1, 0", "ds_write_b32 v1, v0", end],
            "touched LDS offset 0x0 since the last barrier",
        ),
        (&["v_mov_b32_e32 v1, 2", "ds_read_b32 v2, v1", end], "is no multiple of 4"),
        (&[load, lane, fetch, end], "s4 is used while its load or store is under way: s_waitcnt is missing"),
        (&[load, wait, lane, fetch, use_it, end], "v2 is used while its load or store is under way"),
        (&[load, wait, "v_mov_b32_e32 v1, 0x7fff0000", fetch, end], "lie outside every buffer"),
        (&[load, wait, lane, "global_load_dword v2, v1, s[4:5] offset:256", end], "4 bytes at"),
        (&[load, wait, "v_mov_b32_e32 v1, 2", fetch, end], "is no multiple of 4"),
        (&["v_sin_f32_e32 v3, v0", end], "+0x0: `v_sin_f32_e32 v3, v0` is not implemented"),
        (&["s_branch 1000", end], "+0x0: `s_branch 1000`"),
    ];
    for (architecture, _) in ARCHITECTURES {
        for (program, want) in cases {
            let Some(result) = run(architecture, program) else { return };
            let error = result.expect_err("a wrong program").to_string();
            assert!(error.contains(want), "{architecture} {program:?}: want {want}, got {error}");
        }
        // The same with what was missing.
        for program in [
            &[load, wait, lane, fetch, "s_waitcnt vmcnt(0)", use_it, end][..],
            &[lane, "ds_write_b32 v1, v0", wait, "s_barrier", "ds_read_b32 v2, v1", wait, use_it, end],
            &["v_mov_b32_e32 v1, 0", load, wait, "global_store_dword v1, v0, s[4:5]", end],
        ] {
            // A lane of the second wave reaches beyond the 64 words.
            let threads_fit =
                program.contains(&"ds_write_b32 v1, v0") || program.contains(&"v_mov_b32_e32 v1, 0");
            let result = run(architecture, program).unwrap();
            assert_eq!(result.is_ok(), threads_fit, "{architecture} {program:?}: {result:?}");
        }
    }
}

#[test]
fn every_instruction_of_every_kernel_is_known() {
    for (architecture, _) in ARCHITECTURES {
        for path in std::fs::read_dir(artifacts()).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if !path.to_string_lossy().ends_with(&format!("{architecture}.hsaco")) {
                continue;
            }
            let object = code_object(&path).unwrap();
            for name in object.kernels().keys().filter(|name| !name.starts_with("probe_f32")) {
                Kernel::load(&object, name).unwrap_or_else(|error| panic!("{error}"));
            }
        }
    }
}
