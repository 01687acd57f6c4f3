//! The census of a kernel: registers, memory and how often each instruction occurs.
//!
//! It is committed beside the sources and compared in continuous integration, so that a change of the compiler or of a
//! kernel shows in review.

use std::collections::BTreeMap;
use std::fmt;

use super::code_object::KernelCode;
use super::disassemble::Line;
use super::text::Instruction;

/// What a kernel consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// Symbol.
    pub kernel: String,
    /// Bytes of code.
    pub code_bytes: usize,
    /// Bytes of LDS.
    pub lds_bytes: u32,
    /// Bytes of scratch: 0, or registers were spilled.
    pub scratch_bytes: u32,
    /// Vector registers as allocated.
    pub vector_registers: u32,
    /// One more than the highest scalar register that the code names.
    pub scalar_registers: u32,
    /// Instructions by mnemonic, with the cache scope of those that carry one (`buffer_inv sc0 sc1`).
    pub instructions: BTreeMap<String, u32>,
}

impl Census {
    /// Of a kernel and its listing.
    pub fn of(kernel: &KernelCode, listing: &[Line]) -> Self {
        let mut instructions = BTreeMap::new();
        let mut scalar_registers = 0;
        for line in listing {
            let instruction = Instruction::parse(line.clone());
            *instructions.entry(counted_name(&instruction)).or_insert(0) += 1;
            scalar_registers = scalar_registers.max(highest_scalar(&instruction));
        }
        Self {
            kernel: kernel.name.clone(),
            code_bytes: kernel.code.len(),
            lds_bytes: kernel.lds_bytes,
            scratch_bytes: kernel.scratch_bytes,
            vector_registers: kernel.vector_registers,
            scalar_registers,
            instructions,
        }
    }

    /// How often a mnemonic occurs, whatever its scope.
    pub fn count(&self, mnemonic: &str) -> u32 {
        let is_it = |name: &str| name.split(' ').next() == Some(mnemonic);
        self.instructions.iter().filter(|(name, _)| is_it(name)).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {}", self.kernel)?;
        writeln!(f, "code_bytes {}", self.code_bytes)?;
        writeln!(f, "lds_bytes {}", self.lds_bytes)?;
        writeln!(f, "scratch_bytes {}", self.scratch_bytes)?;
        writeln!(f, "vector_registers {}", self.vector_registers)?;
        writeln!(f, "scalar_registers {}", self.scalar_registers)?;
        self.instructions.iter().try_for_each(|(name, count)| writeln!(f, "{count:6} {name}"))
    }
}

/// The cache scope belongs to the name: a release at the wrong scope is another instruction.
fn counted_name(instruction: &Instruction) -> String {
    let memory = ["global_", "buffer_"].iter().any(|prefix| instruction.mnemonic.starts_with(prefix));
    let mut name = instruction.mnemonic.clone();
    for scope in ["sc0", "sc1", "nt"] {
        if memory && instruction.flag(scope) {
            name.push(' ');
            name.push_str(scope);
        }
    }
    name
}

fn highest_scalar(instruction: &Instruction) -> u32 {
    let ends = instruction.arguments.iter().filter_map(|argument| match argument.operand {
        super::text::Operand::Scalar { first, count } if first <= 101 => Some(u32::from(first + count)),
        _ => None,
    });
    ends.max().unwrap_or(0)
}
