//! Kernel variants: an ordered list that can explain itself.

use crate::arithmetic::{Arithmetic, by_name};
use crate::device::Arch;
use crate::error::{Error, Result};
use crate::op::{Op, OpKind};

/// Something that an operation, as described, must offer for a variant to take it.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// What is needed, for the refusal: "page = block = 128".
    pub what: &'static str,
    /// True if the operation offers it.
    pub holds: fn(&Op) -> bool,
}

/// One kernel variant of a backend.
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// `op.formats.arch.trick`; the same string in file, symbol, plan, log and report.
    pub name: &'static str,
    /// Operation.
    pub op: OpKind,
    /// Architecture that it is built for.
    pub arch: Arch,
    /// Named arithmetic that it follows.
    pub arithmetic: &'static str,
    /// Most query rows of a request, `None` for any number.
    pub max_query_len: Option<u32>,
    /// What it needs.
    pub needs: &'static [Need],
}

impl Variant {
    /// Why this variant cannot do `op`; empty if it can.
    pub fn refusals(&self, op: &Op) -> Vec<&'static str> {
        self.needs.iter().filter(|n| !(n.holds)(op)).map(|n| n.what).collect()
    }

    /// True if `name` is that of a decode variant that takes a page once for all rows that attend to it: the trick
    /// `shared`. Its plans make a part of every slot, see [`crate::plan::shared`].
    pub fn shares_pages(name: &str) -> bool {
        name.split('.').nth(3) == Some("shared")
    }

    /// Its arithmetic.
    pub fn arithmetic(&self) -> Result<Arithmetic> {
        by_name(self.arithmetic)
    }
}

/// Answer to "can you do this?".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Support {
    /// By these variants, best first.
    Yes {
        /// Names.
        variants: Vec<String>,
    },
    /// By none, and why each was refused.
    No {
        /// One line a variant.
        reasons: Vec<String>,
    },
}

impl Support {
    /// True if some variant does it.
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes { .. })
    }
}

/// Variants of `list` that take `op`, best first, or every refusal.
pub fn support(list: &[Variant], op: &Op) -> Support {
    let mut variants = Vec::new();
    let mut reasons = Vec::new();
    for variant in list.iter().filter(|v| v.op == op.kind()) {
        let refusals = variant.refusals(op);
        if refusals.is_empty() {
            variants.push(variant.name.to_owned());
        } else {
            reasons.push(format!("{}: needs {}", variant.name, refusals.join(", ")));
        }
    }
    if variants.is_empty() && reasons.is_empty() {
        reasons.push(format!("no {} kernel", op.name()));
    }
    if variants.is_empty() { Support::No { reasons } } else { Support::Yes { variants } }
}

/// The variant that a plan uses: the one asked for, or the first that takes `op`. An explicit choice is honoured or
/// refused, never replaced.
pub fn choose<'a>(list: &'a [Variant], op: &Op, asked: Option<&str>, backend: &str) -> Result<&'a Variant> {
    let unsupported = |reasons| Error::Unsupported { op: op.name(), backend: backend.to_owned(), reasons };
    if let Some(name) = asked {
        let names =
            || list.iter().filter(|v| v.op == op.kind()).map(|v| v.name).collect::<Vec<_>>().join(", ");
        let variant = list.iter().find(|v| v.name == name && v.op == op.kind());
        let variant = variant.ok_or_else(|| Error::invalid("options.variant", names(), name))?;
        let refusals = variant.refusals(op);
        if refusals.is_empty() {
            return Ok(variant);
        }
        return Err(unsupported(vec![format!("{name}: needs {}", refusals.join(", "))]));
    }
    match support(list, op) {
        Support::No { reasons } => Err(unsupported(reasons)),
        Support::Yes { variants } => list
            .iter()
            .find(|v| v.op == op.kind() && variants.first().is_some_and(|n| n == v.name))
            .ok_or_else(|| unsupported(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[Variant] = &[
        Variant {
            name: "select.f32.cpu.fast",
            op: OpKind::Select,
            arch: Arch::Cpu,
            arithmetic: "f32",
            max_query_len: None,
            needs: &[Need { what: "k = 16", holds: |op| op.geometry().top_k == 16 }],
        },
        Variant {
            name: "select.f32.cpu.any",
            op: OpKind::Select,
            arch: Arch::Cpu,
            arithmetic: "f32",
            max_query_len: None,
            needs: &[],
        },
    ];

    #[test]
    fn the_first_that_can_is_chosen_and_a_name_is_honoured_or_refused() {
        let op = Op::of(OpKind::Select);
        assert_eq!(choose(LIST, &op, None, "ref").unwrap().name, "select.f32.cpu.fast");
        assert_eq!(choose(LIST, &op, Some("select.f32.cpu.any"), "ref").unwrap().name, "select.f32.cpu.any");
        let mut small = crate::op::Select::default();
        small.geometry.top_k = 4;
        let small = Op::Select(small);
        assert_eq!(choose(LIST, &small, None, "ref").unwrap().name, "select.f32.cpu.any");
        let none = Support::No { reasons: vec!["no merge kernel".to_owned()] };
        assert_eq!(support(LIST, &Op::of(OpKind::Merge)), none, "never without a reason");
        let refused = choose(LIST, &small, Some("select.f32.cpu.fast"), "ref").unwrap_err().to_string();
        assert_eq!(refused, "select is not supported by ref: select.f32.cpu.fast: needs k = 16");
        assert!(
            choose(LIST, &small, Some("nonsense"), "ref")
                .unwrap_err()
                .to_string()
                .contains("select.f32.cpu.any")
        );
    }
}
