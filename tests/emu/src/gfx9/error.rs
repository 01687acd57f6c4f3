//! What can go wrong, with the place where it did.

use std::fmt;

/// An error of the interpreter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EmuError {
    /// The disassembler of the Rust toolchain cannot be used.
    #[error("disassembler: {0}")]
    Disassembler(String),
    /// The file is no code object that this interpreter reads.
    #[error("code object: {0}")]
    CodeObject(String),
    /// A launch does not fit its kernel.
    #[error("launch of {kernel}: {reason}")]
    Launch {
        /// Symbol.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
    /// An instruction that the interpreter does not know.
    #[error("{kernel}+{address:#x}: `{text}` is not implemented")]
    Unimplemented {
        /// Symbol.
        kernel: String,
        /// Offset from the kernel's entry.
        address: u64,
        /// Listing.
        text: String,
    },
    /// An instruction did what no correct program does.
    #[error("{kernel}+{address:#x}: `{text}` in wave {wave} of group {group:?} on GPU {gpu}: {fault}")]
    Fault {
        /// Symbol.
        kernel: String,
        /// Offset from the kernel's entry.
        address: u64,
        /// Listing.
        text: String,
        /// Number of the wave in its group.
        wave: usize,
        /// Group.
        group: [u32; 3],
        /// Simulated GPU.
        gpu: usize,
        /// What it did.
        fault: Fault,
    },
    /// The limit of steps was reached.
    #[error("not finished after {steps} wave-instructions")]
    Endless {
        /// Limit.
        steps: u64,
    },
}

/// What an instruction did wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Global memory outside every buffer.
    OutOfBounds {
        /// Address.
        address: u64,
        /// Bytes.
        bytes: u32,
    },
    /// A store to memory that may only be read.
    ReadOnly {
        /// Address.
        address: u64,
    },
    /// An address that is not a multiple of the access.
    Misaligned {
        /// Address.
        address: u64,
        /// Wanted multiple.
        want: u32,
    },
    /// LDS beyond what the kernel has.
    LdsOutOfBounds {
        /// Offset.
        offset: u64,
        /// Bytes of the group's LDS.
        size: usize,
    },
    /// LDS that nobody wrote.
    LdsUninitialised {
        /// Offset.
        offset: u64,
    },
    /// LDS that another wave touched since the last barrier.
    LdsRace {
        /// Offset.
        offset: u64,
        /// The other wave.
        other: usize,
    },
    /// A register that nobody wrote.
    Uninitialised {
        /// `v7`, `s4`, `vcc_lo`, `scc`.
        register: String,
    },
    /// A register whose load or whose read by a store is still under way: a `s_waitcnt` is missing.
    MissingWait {
        /// Register.
        register: String,
    },
    /// A branch out of the kernel.
    WildBranch {
        /// Target, from the entry.
        target: i64,
    },
    /// A wave waits at a barrier that its group's other waves cannot reach any more.
    Stuck,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds { address, bytes } => {
                write!(f, "{bytes} bytes at {address:#x} lie outside every buffer")
            }
            Self::ReadOnly { address } => write!(f, "store to read-only memory at {address:#x}"),
            Self::Misaligned { address, want } => {
                write!(f, "address {address:#x} is no multiple of {want}")
            }
            Self::LdsOutOfBounds { offset, size } => {
                write!(f, "LDS offset {offset:#x} is beyond the group's {size} bytes")
            }
            Self::LdsUninitialised { offset } => write!(f, "LDS offset {offset:#x} was never written"),
            Self::LdsRace { offset, other } => {
                write!(f, "wave {other} touched LDS offset {offset:#x} since the last barrier")
            }
            Self::Uninitialised { register } => write!(f, "{register} was never written"),
            Self::MissingWait { register } => {
                write!(f, "{register} is used while its load or store is under way: s_waitcnt is missing")
            }
            Self::WildBranch { target } => write!(f, "branch to {target:#x}, outside the kernel"),
            Self::Stuck => f.write_str("a barrier that the other waves cannot reach"),
        }
    }
}
