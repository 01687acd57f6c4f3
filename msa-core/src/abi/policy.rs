use std::fmt;

/// A policy of the border; `docs/ABI.md` states each in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Policy {
    /// A plugin exports exactly one symbol.
    OneSymbol = 1,
    /// Host and plugin agree on the major version.
    SameMajor = 2,
    /// Minor versions only append.
    AppendOnly = 3,
    /// Every struct that may grow says its size, and the size is true.
    StructSize = 4,
    /// Required functions are there.
    RequiredFunctions = 5,
    /// Enumerations are numbers, and unknown ones are errors.
    PlainNumbers = 6,
    /// Whoever allocates, frees; text goes into memory of the caller.
    Ownership = 7,
    /// No unwinding across the border; a device that panicked is lost.
    NoUnwinding = 8,
    /// Pointers in arguments live for the call, text in the table for the process.
    Lifetimes = 9,
    /// Any thread may call.
    AnyThread = 10,
    /// Enqueueing neither allocates nor waits.
    EnqueueOnly = 11,
    /// Plugins are never unloaded.
    NeverUnloaded = 12,
    /// Opened by absolute path, every symbol bound at once, none made global.
    OpenedByPath = 13,
    /// Without a driver or a device a plugin loads and says why.
    Unavailable = 14,
    /// The manifest agrees with the library.
    Manifest = 15,
    /// The environment is not trusted in privileged processes.
    Environment = 16,
}

impl Policy {
    /// Every policy, in order of its number.
    pub const ALL: [Self; 16] = [
        Self::OneSymbol,
        Self::SameMajor,
        Self::AppendOnly,
        Self::StructSize,
        Self::RequiredFunctions,
        Self::PlainNumbers,
        Self::Ownership,
        Self::NoUnwinding,
        Self::Lifetimes,
        Self::AnyThread,
        Self::EnqueueOnly,
        Self::NeverUnloaded,
        Self::OpenedByPath,
        Self::Unavailable,
        Self::Manifest,
        Self::Environment,
    ];

    /// Number, 1 to 16.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// Number and short name, as errors and reports print them.
    pub const fn label(self) -> &'static str {
        match self {
            Self::OneSymbol => "ABI-1 (one exported symbol)",
            Self::SameMajor => "ABI-2 (same major version)",
            Self::AppendOnly => "ABI-3 (minor versions append)",
            Self::StructSize => "ABI-4 (true struct sizes)",
            Self::RequiredFunctions => "ABI-5 (required functions)",
            Self::PlainNumbers => "ABI-6 (known numbers)",
            Self::Ownership => "ABI-7 (memory of the caller)",
            Self::NoUnwinding => "ABI-8 (no unwinding)",
            Self::Lifetimes => "ABI-9 (lifetimes)",
            Self::AnyThread => "ABI-10 (any thread)",
            Self::EnqueueOnly => "ABI-11 (enqueue only enqueues)",
            Self::NeverUnloaded => "ABI-12 (never unloaded)",
            Self::OpenedByPath => "ABI-13 (opened by absolute path)",
            Self::Unavailable => "ABI-14 (loads without a device)",
            Self::Manifest => "ABI-15 (manifest agrees)",
            Self::Environment => "ABI-16 (environment of privileged processes)",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_carry_their_number() {
        for (index, policy) in Policy::ALL.into_iter().enumerate() {
            assert_eq!(policy.number() as usize, index + 1);
            assert!(policy.label().starts_with(&format!("ABI-{} (", policy.number())), "{policy}");
        }
    }
}
