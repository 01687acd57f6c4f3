//! A kernel, decoded once.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::code_object::KernelCode;
use super::super::disassemble::Disassembler;
use super::super::error::EmuError;
use super::super::text::{Instruction, Operand};
use super::global::{GlobalAction, ScalarLoad};
use super::lds::LdsAction;
use super::matrix::MatrixAction;
use super::scalar::ScalarAction;
use super::vector::VectorAction;

/// An instruction that is not implemented, or not in this form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Problem;

/// What an instruction does.
#[derive(Debug, Clone)]
pub(super) enum Action {
    End,
    Nothing,
    /// Gives way to other waves.
    Sleep,
    Barrier,
    Wait {
        vm: Option<usize>,
        lgkm: Option<usize>,
    },
    Branch {
        when: When,
        target: usize,
    },
    Scalar(ScalarAction),
    ScalarLoad(ScalarLoad),
    Vector(VectorAction),
    Global(GlobalAction),
    /// `buffer_wbl2 sc0 sc1`.
    WriteBack,
    /// `buffer_inv sc0 sc1`.
    Invalidate,
    Lds(LdsAction),
    Matrix(MatrixAction),
}

/// When a branch is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Condition(bool),
    VccZero(bool),
    ExecZero(bool),
}

/// One instruction.
pub(super) struct Step {
    pub(super) action: Action,
    pub(super) address: u64,
    pub(super) text: String,
    pub(super) executed: AtomicBool,
    pub(super) permutes_bytes: bool,
}

/// A decoded kernel.
pub(super) struct Program {
    pub(super) code: KernelCode,
    pub(super) steps: Vec<Step>,
}

impl Program {
    /// Decodes `code` for the processor of `disassembler`.
    pub(super) fn new(
        code: &KernelCode,
        processor: &str,
        disassembler: &Disassembler,
    ) -> Result<Self, EmuError> {
        let listing = disassembler.listing(&code.code)?;
        let index: HashMap<i64, usize> =
            listing.iter().enumerate().map(|(index, line)| (line.address as i64, index)).collect();
        let mut steps = Vec::with_capacity(listing.len());
        for line in listing {
            let instruction = Instruction::parse(line);
            let action =
                decode(&instruction, processor, &index).map_err(|Problem| EmuError::Unimplemented {
                    kernel: code.name.clone(),
                    address: instruction.line.address,
                    text: instruction.line.text.clone(),
                })?;
            let permutes_bytes = instruction.mnemonic == "v_perm_b32";
            let (address, text) = (instruction.line.address, instruction.line.text);
            steps.push(Step { action, address, text, executed: AtomicBool::new(false), permutes_bytes });
        }
        Ok(Self { code: code.clone(), steps })
    }

    /// Instructions that were never executed, as (address, text).
    pub(super) fn not_executed(&self) -> Vec<(u64, String)> {
        let missed = self.steps.iter().filter(|step| !step.executed.load(Ordering::Relaxed));
        missed.map(|step| (step.address, step.text.clone())).collect()
    }
}

/// The vector register that operand `at` starts with.
pub(super) fn vector_of(instruction: &Instruction, at: usize) -> Result<u16, Problem> {
    match instruction.arguments.get(at).map(|argument| argument.operand) {
        Some(Operand::Vector { first, .. }) => Ok(first),
        _ => Err(Problem),
    }
}

/// The scalar register that operand `at` starts with.
pub(super) fn scalar_of(instruction: &Instruction, at: usize) -> Result<u16, Problem> {
    match instruction.arguments.get(at).map(|argument| argument.operand) {
        Some(Operand::Scalar { first, .. }) => Ok(first),
        _ => Err(Problem),
    }
}

fn decode(
    instruction: &Instruction,
    processor: &str,
    index: &HashMap<i64, usize>,
) -> Result<Action, Problem> {
    let name = instruction.mnemonic.as_str();
    Ok(match name {
        "s_endpgm" => Action::End,
        "s_nop" | "s_setprio" | "s_code_end" => Action::Nothing,
        "s_sleep" => Action::Sleep,
        "s_barrier" => Action::Barrier,
        "s_waitcnt" => wait(instruction)?,
        "buffer_wbl2" if system_scope(instruction) => Action::WriteBack,
        "buffer_inv" if system_scope(instruction) => Action::Invalidate,
        // Within a GPU memory is coherent here.
        "buffer_wbl2" | "buffer_inv" => Action::Nothing,
        _ if name.starts_with("s_load_") => Action::ScalarLoad(ScalarLoad::decode(instruction)?),
        _ if name.starts_with("s_branch") || name.starts_with("s_cbranch_") => branch(instruction, index)?,
        _ if name.starts_with("s_") => Action::Scalar(ScalarAction::decode(instruction)?),
        _ if name.starts_with("v_mfma_") => Action::Matrix(MatrixAction::decode(instruction, processor)?),
        _ if name.starts_with("v_") => {
            Action::Vector(VectorAction::decode(instruction)?.with_fnuz(processor == "gfx942"))
        }
        _ if name.starts_with("ds_") => Action::Lds(LdsAction::decode(instruction)?),
        _ if name.starts_with("global_") => Action::Global(GlobalAction::decode(instruction)?),
        _ => return Err(Problem),
    })
}

fn system_scope(instruction: &Instruction) -> bool {
    instruction.flag("sc0") && instruction.flag("sc1")
}

fn wait(instruction: &Instruction) -> Result<Action, Problem> {
    let limit =
        |name: &str| instruction.modifier(name).map(|value| value.parse::<usize>().map_err(|_| Problem));
    if instruction.modifiers.iter().any(|(name, _)| !["vmcnt", "lgkmcnt", "expcnt"].contains(&name.as_str()))
    {
        return Err(Problem);
    }
    // A bare number is the raw encoding, which the listing gives only for forms without meaning.
    if !instruction.arguments.is_empty() {
        return Err(Problem);
    }
    Ok(Action::Wait { vm: limit("vmcnt").transpose()?, lgkm: limit("lgkmcnt").transpose()? })
}

fn branch(instruction: &Instruction, index: &HashMap<i64, usize>) -> Result<Action, Problem> {
    let when = match instruction.mnemonic.as_str() {
        "s_branch" => When::Always,
        "s_cbranch_scc0" => When::Condition(false),
        "s_cbranch_scc1" => When::Condition(true),
        "s_cbranch_vccz" => When::VccZero(true),
        "s_cbranch_vccnz" => When::VccZero(false),
        "s_cbranch_execz" => When::ExecZero(true),
        "s_cbranch_execnz" => When::ExecZero(false),
        _ => return Err(Problem),
    };
    let Some(Operand::Integer(words)) = instruction.arguments.first().map(|argument| argument.operand) else {
        return Err(Problem);
    };
    let target = instruction.line.address as i64 + 4 + i64::from(words as u16 as i16) * 4;
    let target = *index.get(&target).ok_or(Problem)?;
    Ok(Action::Branch { when, target })
}
