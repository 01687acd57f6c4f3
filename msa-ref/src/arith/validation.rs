//! How far a model has been confirmed.

use std::fmt;

/// How a model was checked. The comparison class of a kernel (`exact` or `model`) follows from it: only
/// [`Validation::Silicon`] may be called exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Validation {
    /// Compared bit for bit with hardware, without a mismatch.
    Silicon {
        /// The card and driver that the comparison ran on.
        card: &'static str,
        /// What was compared.
        compared: &'static str,
    },
    /// Taken from public descriptions or public vectors; not compared with hardware by us.
    PublicModel {
        /// The paper, repository or manual.
        source: &'static str,
    },
    /// Inferred: neither measured nor described in public.
    Unverified {
        /// What the inference rests on, and which part is a guess.
        basis: &'static str,
    },
    /// Correctly rounded IEEE operations in a fixed order: equal on all hardware by construction.
    ByConstruction,
}

impl Validation {
    /// Whether equality with this model may be reported as equality with the device.
    pub const fn is_exact(&self) -> bool {
        matches!(self, Validation::Silicon { .. } | Validation::ByConstruction)
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Validation::Silicon { card, compared } => write!(f, "silicon ({card}): {compared}"),
            Validation::PublicModel { source } => write!(f, "public model: {source}"),
            Validation::Unverified { basis } => write!(f, "unverified: {basis}"),
            Validation::ByConstruction => f.write_str("by construction: IEEE operations in a fixed order"),
        }
    }
}

/// The card behind every measurement in this module.
pub(crate) const H200: &str = "NVIDIA H200, compute capability 9.0, driver 580.159, CUDA 13.0.88";
